//go:build linux

package interop

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/test/interop/lab"
)

var (
	goodputSuite = flag.String("goodput.suite", "trixie", "kernel of TestGoodput, by its Debian suite")
	goodputMTU   = flag.Int("goodput.mtu", 4096, "path MTU of TestGoodput")
	goodputRuns  = flag.Int("goodput.runs", 2, "runs of TestGoodput, of which the best counts")
)

// goodputFault is what the network does to packets.
type goodputFault struct {
	name     string
	perMille int  // lost in each direction
	reorder  bool // 1 % is overtaken
}

var goodputFaults = []goodputFault{
	{name: "0 %"},
	{name: "0.1 % lost", perMille: 1},
	{name: "1 % lost", perMille: 10},
	{name: "5 % lost", perMille: 50},
	{name: "1 % overtaken", reorder: true},
}

const (
	goodputSeconds = 5     // of a run, of which perftest leaves out the first and the last
	goodputSize    = 65536 // bytes of a message
	roceInGuest    = "/tmp/roce"
)

// goodputLab is a pair of guests on a bridge where this machine is the third.
type goodputLab struct {
	*testing.T
	ctx    context.Context
	ns     *lab.Netns
	guests [2]*lab.Guest
	rxe    [2]*goodputEnd
	ours   [2]*goodputEnd // in the guests, which have no rxe then
	host   *goodputEnd    // ours, on this machine
	port   int
}

// goodputEnd is where one end of a transfer runs.
type goodputEnd struct {
	*side
	guest  *lab.Guest // nil on this machine
	roce   string     // the program, if it is ours
	dropin []string   // what runs perftest on the drop-in libraries instead of rxe
}

// TestGoodput measures how fast data moves under loss: from rxe to rxe and from this stack to itself in the same pair of guests, where
// netem of both kernels loses or delays packets, and between rxe in a guest and this stack on the host, where nftables of both does. It
// prints the table of docs/recovery.md; what fails in it is a result, too.
func TestGoodput(t *testing.T) {
	if os.Getenv("GOROCE_INTEROP") != goodput {
		t.Skip("GOROCE_INTEROP is not goodput: no guest is booted")
	}
	ctx, cancel := needGuests(t)
	defer cancel()
	l := newGoodputLab(t, ctx)
	fmt.Printf("Linux %s, %s, load %s\n\n", l.guests[0].Kernel.Release, time.Now().Format(time.DateOnly), load())
	fmt.Println("| network | operation | rxe to rxe | ours to ours | ratio | ours to rxe | rxe to ours |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, f := range goodputFaults {
		t.Run(f.name, func(t *testing.T) {
			l.T = t
			for _, verb := range []string{"write_bw", "read_bw"} {
				fmt.Println(l.row(f, verb))
			}
		})
	}
}

func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(b), " ")
	return one
}

func newGoodputLab(t *testing.T, ctx context.Context) *goodputLab {
	bin := build(t, ctx, subset)
	k, err := lab.FetchKernel(ctx, *goodputSuite)
	if err != nil {
		t.Fatal(err)
	}
	l := &goodputLab{T: t, ctx: ctx, port: 18515}
	if l.ns, err = lab.NewNetns(ctx, len(l.guests)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.ns.Close() })
	roce, err := os.ReadFile(bin.roce)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root(t), "build/interop/goodput")
	os.MkdirAll(dir, 0o755)
	l.host = &goodputEnd{side: ourSide(l.ns, bin), roce: bin.roce}
	for i := range l.guests {
		g := bootGuest(t, ctx, lab.GuestConfig{Kernel: k, Netns: l.ns, Index: i, Agent: bin.agent, Log: t.Logf}, dir)
		if err := g.Put(roceInGuest, 0o755, roce); err != nil {
			t.Fatal(err)
		}
		l.guests[i] = g
		l.rxe[i] = &goodputEnd{side: guestSide(ctx, "rxe", g), guest: g}
		ours := *l.rxe[i].side
		ours.name, ours.rxe = "goroce", false
		l.ours[i] = &goodputEnd{side: &ours, guest: g, roce: roceInGuest}
	}
	return l
}

// row measures one line of the table, the two of the guests in turns.
func (l *goodputLab) row(f goodputFault, verb string) string {
	var rxe, ours, toRxe, fromRxe float64
	for range *goodputRuns {
		l.netem(f)
		rxe = max(rxe, l.measure(f, verb, l.rxe[0], l.rxe[1]))
		l.switchRxe(false)
		ours = max(ours, l.measure(f, verb, l.ours[0], l.ours[1]))
		l.switchRxe(true)
		l.netem(goodputFault{})
		stop := l.drop(f)
		toRxe = max(toRxe, l.measure(f, verb, l.host, l.rxe[0]))
		fromRxe = max(fromRxe, l.measure(f, verb, l.rxe[0], l.host))
		stop()
	}
	name := map[string]string{"write_bw": "WRITE", "read_bw": "READ"}[verb]
	return fmt.Sprintf("| %s | %s | %.2f MB/s | %.2f MB/s | %.1f | %.2f MB/s | %.2f MB/s |", f.name, name, rxe, ours, ours/rxe, toRxe, fromRxe)
}

// in runs a shell command in a guest.
func (l *goodputLab) in(g *lab.Guest, script string) {
	l.Helper()
	if _, err := g.Run(l.ctx, "sh", "-c", script); err != nil {
		l.Fatal(err)
	}
}

// netem sets what the guests' devices do to what they send. What is delayed by 2 ms is overtaken by what is sent meanwhile.
func (l *goodputLab) netem(f goodputFault) {
	l.Helper()
	script := "tc qdisc del dev eth0 root 2>/dev/null; true"
	switch {
	case f.reorder:
		script = "tc qdisc replace dev eth0 root netem limit 10000 delay 2ms reorder 99%"
	case f.perMille > 0:
		script = fmt.Sprintf("tc qdisc replace dev eth0 root netem limit 10000 loss %.1f%%", float64(f.perMille)/10)
	}
	for _, g := range l.guests {
		l.in(g, script)
	}
}

// drop makes nftables lose packets between the host and the first guest.
func (l *goodputLab) drop(f goodputFault) (stop func()) {
	l.Helper()
	if f.perMille == 0 {
		return func() {}
	}
	loss, err := l.guests[0].StartLoss(l.ctx, f.perMille, false)
	if err != nil {
		l.Fatal(err)
	}
	return func() {
		if err := loss.Stop(context.WithoutCancel(l.ctx)); err != nil {
			l.Error(err)
		}
	}
}

// switchRxe loads rxe in the guests or makes room on its port.
func (l *goodputLab) switchRxe(on bool) {
	l.Helper()
	script := "rdma link delete rxe0 && modprobe -r rdma_rxe"
	if on {
		script = "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"
	}
	for _, g := range l.guests {
		l.in(g, script)
	}
}

// measure runs one test and returns what the client has measured, 0 if it failed.
func (l *goodputLab) measure(f goodputFault, verb string, client, server *goodputEnd) float64 {
	l.Helper()
	l.port++
	run := func(e *goodputEnd, at ...string) program {
		p, err := e.start(append(l.argv(f, verb, e), at...)...)
		if err != nil {
			l.Fatal(err)
		}
		return p
	}
	sp := run(server)
	defer sp.Kill()
	if err := sp.WaitPort(l.port, 30*time.Second); err != nil {
		l.Fatalf("%s %s server: %v\n%s", server.name, verb, err, sp.Stdout()+sp.Stderr())
	}
	cp := run(client, server.addr4)
	defer cp.Kill()
	exit, err := cp.Wait(pingpongTimeout)
	if err == nil && exit != 0 {
		err = fmt.Errorf("exit status %d", exit)
	}
	var rate float64
	if err == nil {
		rate, err = goodputOf(client.rxe, cp.Stdout())
	}
	if err != nil {
		sp.Wait(afterFirst)
		l.Logf("%s to %s, %s, %s: %v\nclient:\n%sserver:\n%s", client.name, server.name, verb, f.name, err, cp.Stdout()+cp.Stderr(), sp.Stdout()+sp.Stderr())
	}
	return rate
}

// argv is the command line of one side. In a guest a segmented send would be lost as
// a whole, so this stack sends packet by packet there; on the host it is single packets that nftables sees.
func (l *goodputLab) argv(f goodputFault, verb string, e *goodputEnd) []string {
	l.Helper()
	flags := []string{"-p", fmt.Sprint(l.port), "-s", fmt.Sprint(goodputSize), "-m", fmt.Sprint(*goodputMTU), "-D", fmt.Sprint(goodputSeconds)}
	if e.dropin != nil {
		return append(append(append([]string{}, e.dropin...), "ib_"+verb, "-d", "roce0", "-x", "0", "-F", "-f", "1"), flags...)
	}
	if e.rxe {
		index, err := e.guest.GIDIndex(l.ctx, e.addr4)
		if err != nil {
			l.Fatal(err)
		}
		return append([]string{"ib_" + verb, "-d", "rxe0", "-x", fmt.Sprint(index), "-F", "-f", "1"}, flags...)
	}
	if e.guest == nil && f.reorder {
		flags = append(flags, "--reorder", "1")
	}
	argv := []string{e.roce}
	if e.guest != nil && f != (goodputFault{name: f.name}) {
		argv = []string{"env", "GOROCE_OFFLOAD=gro", e.roce}
	}
	return append(append(argv, "perf", verb, "--json", "--addr", e.addr4), flags...)
}

var perftestRow = regexp.MustCompile(`(?m)^ 65536 +(\d+) `)

// goodputOf reads the client's report, in MB/s of data. perftest's own rate depends on the clock rate that it finds in the guest; the
// number of messages does not.
func goodputOf(rxe bool, out string) (float64, error) {
	if rxe {
		m := perftestRow.FindStringSubmatch(out)
		if m == nil {
			return 0, fmt.Errorf("no row of results in %q", out)
		}
		n, err := strconv.ParseFloat(m[1], 64)
		return n * goodputSize / (goodputSeconds - 2) / 1e6, err
	}
	var r struct {
		Results []struct {
			Size, Iters int
			Seconds     float64
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Results) != 1 {
		return 0, fmt.Errorf("no result in %q (%v)", out, err)
	}
	x := r.Results[0]
	return float64(x.Size) * float64(x.Iters) / x.Seconds / 1e6, nil
}
