//go:build linux

package interop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/test/interop/lab"
)

// dropinCase is a Debian program on the drop-in libraries here against the same one on
// rxe in a guest.
type dropinCase struct {
	server, client string // the commands, without device, port and address
	bind, connect  string // of programs of librdmacm: the flags before the server's address, at either end
	ownPort        bool   // the program has no flag for the port
}

// gidFlag is the flag of programs of libibverbs for the GID's index, "" for those of librdmacm.
func (c dropinCase) gidFlag() string {
	switch {
	case strings.HasPrefix(c.server, "ibv_"):
		return "-g"
	case strings.HasPrefix(c.server, "ib_"):
		return "-x"
	}
	return ""
}

// byTCP says whether the ends meet by a TCP connection, not by rdma_cm.
func (c dropinCase) byTCP() bool { return c.gidFlag() != "" && !strings.Contains(c.server, " -R") }

// reads is the flag for how many READs may be outstanding: rxe says 128, which perftest would ask of the other end, too.
func reads(test string) string {
	if strings.HasPrefix(test, "read") || strings.HasPrefix(test, "atomic") {
		return " -o 16"
	}
	return ""
}

func dropinCases() (list []dropinCase) {
	both := func(command string) { list = append(list, dropinCase{server: command, client: command}) }
	for _, p := range []string{"rc", "uc", "ud", "srq"} {
		both("ibv_" + p + "_pingpong")
	}
	for _, p := range []string{"send_bw", "send_lat", "write_bw", "write_lat", "read_bw", "read_lat", "atomic_bw", "atomic_lat"} {
		both("ib_" + p + reads(p) + " -F -n 200")
	}
	for _, p := range []string{"send_bw -c UC -s 4096", "send_lat -c UC", "write_bw -c UC -s 4096", "write_lat -c UC", "send_bw -c UD -s 1024", "send_lat -c UD",
		"send_bw -b", "write_bw -q 4 -t 16", "write_bw -l 8", "send_bw -e", "write_lat -I 64", "send_bw --use-srq", "send_bw -R", "write_bw -R", "read_lat -R -o 16"} {
		both("ib_" + p + " -F -n 200")
	}
	return append(list,
		dropinCase{server: "rping -s -C 20 -S 1000 -V", client: "rping -c -C 20 -S 1000 -V", bind: "-a", connect: "-a"},
		dropinCase{server: "ucmatose -c 5 -C 10 -S 100", client: "ucmatose -c 5 -C 10 -S 100", bind: "-b", connect: "-s"},
		dropinCase{server: "udaddy -c 3 -C 10 -S 100", client: "udaddy -c 3 -C 10 -S 100", bind: "-b", connect: "-s", ownPort: true},
		dropinCase{server: "rdma_server", client: "rdma_client", bind: "-s", connect: "-s"},
		dropinCase{server: "rstream -S 1024 -C 100", client: "rstream -S 1024 -C 100", bind: "-b", connect: "-s"},
	)
}

// TestDropin runs Debian's programs on the drop-in libraries against the same ones on rxe, in both roles.
func TestDropin(t *testing.T) {
	if os.Getenv("GOROCE_INTEROP") != dropin {
		t.Skip("GOROCE_INTEROP is not dropin: no guest is booted")
	}
	ctx, cancel := needGuests(t)
	defer cancel()
	libraries := dropinLibraries(t)
	bin := build(t, ctx, subset)
	for _, k := range suites {
		t.Run(k.suite, func(t *testing.T) {
			ns, g := oneGuest(t, ctx, k.suite, dropin, bin)
			rxe := guestSide(ctx, "rxe", g)
			gid, err := g.GIDIndex(ctx, rxe.addr4)
			if err != nil {
				t.Fatal(err)
			}
			us := ourSide(ns, bin)
			ends := [2]*dropinEnd{
				{rxe, "rxe0", gid, nil, g},
				{us, "roce0", 0, []string{"env", "ROCE_DROPIN=" + libraries, bin.roce, "exec", "--addr", us.addr4, "--"}, nil},
			}
			port := 20000
			for _, c := range dropinCases() {
				for i, role := range []string{"rxe serves", "we serve"} {
					port++
					t.Run(c.server+", "+role, func(t *testing.T) {
						c.meet(t, port, ends[i], ends[1-i])
					})
				}
			}
		})
	}
}

func dropinLibraries(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(root(t), "build/dropin")
	if _, err := os.Stat(filepath.Join(dir, "libibverbs.so.1")); err != nil {
		t.Fatalf("%v: make dropin builds it", err)
	}
	return dir
}

// TestDropinSpeed prints what perftest moves on rxe and on the drop-in libraries, in turns, in the same pair of guests.
func TestDropinSpeed(t *testing.T) {
	if os.Getenv("GOROCE_INTEROP") != dropin {
		t.Skip("GOROCE_INTEROP is not dropin: no guest is booted")
	}
	ctx, cancel := needGuests(t)
	defer cancel()
	const inGuest = "/tmp/dropin"
	l := newGoodputLab(t, ctx)
	files, err := filepath.Glob(filepath.Join(dropinLibraries(t), "*.so*"))
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*goodputEnd
	for i, g := range l.guests {
		l.in(g, "mkdir -p "+inGuest)
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Put(filepath.Join(inGuest, filepath.Base(f)), 0o755, b); err != nil {
				t.Fatal(err)
			}
		}
		e := *l.rxe[i]
		e.dropin = []string{"env", "ROCE_DROPIN=" + inGuest, roceInGuest, "exec", "--addr", e.addr4, "--"}
		ends[i] = &e
	}
	fmt.Printf("Linux %s, %s, load %s\n\n| test | rxe | drop-in | ratio |\n|---|---|---|---|\n", l.guests[0].Kernel.Release, time.Now().Format(time.DateOnly), load())
	for _, verb := range []string{"write_bw", "read_bw", "send_bw"} {
		var rxe, ours float64
		for range *goodputRuns {
			rxe = max(rxe, l.measure(goodputFault{}, verb, l.rxe[0], l.rxe[1]))
			l.switchRxe(false)
			ours = max(ours, l.measure(goodputFault{}, verb, ends[0], ends[1]))
			l.switchRxe(true)
		}
		if ours == 0 {
			t.Errorf("%s has moved nothing", verb)
		}
		fmt.Printf("| `ib_%s` | %.2f MB/s | %.2f MB/s | %.1f |\n", verb, rxe, ours, ours/rxe)
	}
}

// dropinEnd is where a program runs, and on which device.
type dropinEnd struct {
	*side
	device string
	gid    int
	before []string // the program
	guest  *lab.Guest
}

// listens waits until a program of librdmacm listens, as clients of perftest crash when they come sooner.
func (e *dropinEnd) listens(c dropinCase, port int) error {
	if e.guest == nil || c.ownPort {
		time.Sleep(2 * time.Second) // nothing says so
		return nil
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		out, err := e.guest.Run(context.Background(), "rdma", "resource", "show", "cm_id")
		if err != nil {
			return err
		}
		if strings.Contains(out, fmt.Sprintf(":%d ", port)) {
			return nil
		}
	}
	return fmt.Errorf("no identifier of rdma_cm listens at port %d after 30s", port)
}

// argv is a command of a case at this end; at is the server's address for librdmacm, and the client's argument.
func (e *dropinEnd) argv(c dropinCase, command, flag, at string, port int) []string {
	argv := append(append([]string{}, e.before...), strings.Fields(command)...)
	if flag := c.gidFlag(); flag != "" {
		argv = append(argv, "-d", e.device, flag, fmt.Sprint(e.gid))
	}
	if !c.ownPort {
		argv = append(argv, "-p", fmt.Sprint(port))
	}
	if flag != "" {
		argv = append(argv, flag)
	}
	if at != "" {
		argv = append(argv, at)
	}
	return argv
}

// meet runs both ends, which have to end without an error; the programs compare what they get as far as they do.
func (c dropinCase) meet(t *testing.T, port int, server, client *dropinEnd) {
	own := ""
	if c.bind != "" {
		own = server.addr4
	}
	sp, err := server.start(server.argv(c, c.server, c.bind, own, port)...)
	if err != nil {
		t.Fatal(err)
	}
	defer sp.Kill()
	if c.byTCP() {
		if err := sp.WaitPort(port, 30*time.Second); err != nil {
			t.Fatalf("%v\n%s", err, sp.Stdout()+sp.Stderr())
		}
	} else if err := server.listens(c, port); err != nil {
		t.Fatalf("%v\n%s", err, sp.Stdout()+sp.Stderr())
	}
	cp, err := client.start(client.argv(c, c.client, c.connect, server.addr4, port)...)
	if err != nil {
		t.Fatal(err)
	}
	defer cp.Kill()
	for _, p := range []struct {
		what string
		program
	}{{"client", cp}, {"server", sp}} {
		if exit, err := p.Wait(40 * time.Second); err != nil || exit != 0 {
			t.Errorf("%s: exit status %d (%v)\nclient:\n%s\nserver:\n%s", p.what, exit, err, cp.Stdout()+cp.Stderr(), sp.Stdout()+sp.Stderr())
			return
		}
	}
}
