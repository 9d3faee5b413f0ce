//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/goroce/goroce/test/interop/lab"
)

// The part rxe measures the kernel's RoCE driver and this stack in the same two
// guests, joined by a bridge: perftest on rxe, and roce perf where rxe has been
// unloaded, since it has port 4791. QEMU emulates the guests' processors, so that only
// the ratios mean something.

const guestRoce = "/tmp/roce"

// guestPair are the two guests; they are booted when first needed.
type guestPair struct {
	suite, agent, roce string
	ns                 *lab.Netns
	guests             []*lab.Guest // server and client
	rxe                [2]bool      // it is loaded there
	port               int
}

func (p *guestPair) boot(ctx context.Context) error {
	if p.guests != nil {
		return nil
	}
	k, err := lab.FetchKernel(ctx, p.suite)
	if err != nil {
		return err
	}
	if p.ns, err = lab.NewNetns(ctx, 2); err != nil {
		return err
	}
	roce, err := os.ReadFile(p.roce)
	if err != nil {
		return err
	}
	for i := range 2 {
		g, err := lab.BootGuest(ctx, lab.GuestConfig{Kernel: k, Netns: p.ns, Index: i, Agent: p.agent})
		if err != nil {
			return err
		}
		p.guests = append(p.guests, g)
		if err := g.Put(guestRoce, 0o755, roce); err != nil {
			return err
		}
		// Both ends poll: with two processors each, four would share the two that there
		// are, and what is measured would be time slices.
		if _, err := g.Run(ctx, "sh", "-c", "echo 0 > /sys/devices/system/cpu/cpu1/online"); err != nil {
			return err
		}
	}
	p.rxe, p.port = [2]bool{true, true}, perfPort
	return nil
}

func (p *guestPair) close() {
	for _, g := range p.guests {
		g.Close()
	}
	if p.ns != nil {
		p.ns.Close()
	}
}

// load loads rxe into a guest, or unloads it.
func (p *guestPair) load(ctx context.Context, i int, wanted bool) error {
	if p.rxe[i] == wanted {
		return nil
	}
	script := "rdma link delete rxe0 && modprobe -r rdma_rxe"
	if wanted {
		script = "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"
	}
	if _, err := p.guests[i].Run(ctx, "sh", "-c", script); err != nil {
		return err
	}
	p.rxe[i] = wanted
	return nil
}

// guestRun is one test between the guests, each end of it rxe or ours.
type guestRun struct {
	pair   *guestPair
	test   string
	flags  []string
	ours   [2]bool // server, client
	column int     // of perftest's row
}

// Columns of perftest's rows.
const (
	columnAverage = 3 // of throughput
	columnTypical = 4 // of latency
)

func (r guestRun) play(ctx context.Context, _ *testLab) (s sample, err error) {
	if err := r.pair.boot(ctx); err != nil {
		return s, err
	}
	for i, ours := range r.ours {
		if err := r.pair.load(ctx, i, !ours); err != nil {
			return s, err
		}
	}
	r.pair.port++
	server, err := r.start(ctx, 0, "")
	if err != nil {
		return s, err
	}
	defer server.Kill()
	if err := r.pair.guests[0].WaitPort(r.pair.port, runTimeout); err != nil {
		return s, err
	}
	client, err := r.start(ctx, 1, r.pair.guests[0].Addr4())
	if err != nil {
		return s, err
	}
	defer client.Kill()
	exit, err := client.Wait(runTimeout)
	if err != nil || exit != 0 {
		return s, fmt.Errorf("%s: exit status %d: %w\n%s%s", r.test, exit, err, client.Stdout(), client.Stderr())
	}
	if exit, err = server.Wait(runTimeout); err != nil || exit != 0 {
		return s, fmt.Errorf("the server of %s: exit status %d: %w\n%s%s", r.test, exit, err, server.Stdout(), server.Stderr())
	}
	s.Value, err = perftestCell(client.Stdout(), r.column)
	return s, err
}

// start starts one end.
func (r guestRun) start(ctx context.Context, i int, server string) (*lab.Remote, error) {
	g := r.pair.guests[i]
	argv := []string{guestRoce, "perf", r.test, "--addr", g.Addr4()}
	if !r.ours[i] {
		index, err := g.GIDIndex(ctx, g.Addr4())
		if err != nil {
			return nil, err
		}
		argv = []string{"ib_" + r.test, "-d", "rxe0", "-x", strconv.Itoa(index), "-F"}
	} else if r.ours[1-i] {
		argv = append(argv, "--verify=last")
	}
	argv = append(argv, "-u", "17", "-p", strconv.Itoa(r.pair.port))
	argv = append(argv, r.flags...)
	if server != "" {
		argv = append(argv, server)
	}
	return g.Start(nil, argv...)
}

var perftestRow = regexp.MustCompile(`(?m)^ \d+ +\d+ +\d.*$`)

// perftestCell finds a number in the row of perftest's table.
func perftestCell(out string, column int) (float64, error) {
	f := strings.Fields(perftestRow.FindString(out))
	if len(f) <= column {
		return 0, errors.New("no row of results in\n" + out)
	}
	return strconv.ParseFloat(f[column], 64)
}

var guestTests = []struct {
	what, test string
	flags      []string
	unit       string
	column     int
}{
	{"WRITE 64 KiB", "write_bw", []string{"-s", "65536", "-n", "2000", "--report_gbits"}, gbit, columnAverage},
	{"SEND 64 KiB", "send_bw", []string{"-s", "65536", "-n", "2000", "--report_gbits"}, gbit, columnAverage},
	{"READ 64 KiB", "read_bw", []string{"-s", "65536", "-n", "2000", "--report_gbits"}, gbit, columnAverage},
	{"WRITE 8 bytes, one way", "write_lat", []string{"-s", "8", "-n", "400"}, usec, columnTypical},
	{"SEND 8 bytes, one way", "send_lat", []string{"-s", "8", "-n", "400"}, usec, columnTypical},
	{"READ 8 bytes", "read_lat", []string{"-s", "8", "-n", "400"}, usec, columnTypical},
}

// guestPairs are who is client and who is server, with the least loading of modules.
var guestPairs = []struct {
	name string
	ours [2]bool // server, client
}{
	{"rxe to rxe", [2]bool{false, false}},
	{"ours to rxe", [2]bool{false, true}},
	{"ours to ours", [2]bool{true, true}},
	{"rxe to ours", [2]bool{true, false}},
}

// rxePart needs root, QEMU and the packages of test/interop/setup.sh.
func rxePart(suite, agent, roce string) *part {
	pair := &guestPair{suite: suite, agent: agent, roce: roce}
	g := group{title: "two guests, " + suite}
	for _, ends := range guestPairs {
		for _, t := range guestTests {
			g.subjects = append(g.subjects, &subject{
				ID: t.test + "/" + ends.name, What: t.what + ", " + ends.name, Unit: t.unit,
				player: guestRun{pair, t.test, t.flags, ends.ours, t.column},
			})
		}
	}
	return &part{name: "rxe", rounds: 5, groups: []group{g}, print: func(w io.Writer, p *part) { printGuests(w, p, pair) }, close: pair.close}
}

// printGuests writes the medians, and their ratios to those of rxe with itself.
func printGuests(w io.Writer, p *part, pair *guestPair) {
	by := p.byID()
	fmt.Fprintf(w, "Linux %s in both guests.\n\n| what |", pair.guests[0].Kernel.Release)
	for _, ends := range guestPairs {
		fmt.Fprintf(w, " %s |", ends.name)
	}
	fmt.Fprint(w, "\n|---|---|---|---|---|\n")
	for _, t := range guestTests {
		fmt.Fprintf(w, "| %s |", t.what)
		base := by[t.test+"/"+guestPairs[0].name].median(value)
		for _, ends := range guestPairs {
			v := by[t.test+"/"+ends.name].median(value)
			fmt.Fprintf(w, " %s", quantity(v, t.unit))
			if ends.name != guestPairs[0].name {
				fmt.Fprintf(w, " (%.2f)", v/base)
			}
			fmt.Fprint(w, " |")
		}
		fmt.Fprintln(w)
	}
}
