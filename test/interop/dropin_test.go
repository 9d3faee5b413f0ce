//go:build linux

package interop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
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
	endless        bool   // the server does not end
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

func dropinCases() (list []dropinCase) {
	both := func(command string) { list = append(list, dropinCase{server: command, client: command}) }
	perf := func(test string) { both("ib_" + test + " -F -u 18") } // a guest may stand still for the half second that is the default until the last retry
	for _, p := range []string{"rc", "uc", "ud", "srq"} {
		both("ibv_" + p + "_pingpong")
	}
	for _, p := range []string{"send_bw", "send_lat", "write_bw", "write_lat", "read_bw", "read_lat", "atomic_bw", "atomic_lat"} {
		perf(p + " -n 200")
	}
	for _, p := range []string{"send_bw -c UC -s 4096", "send_lat -c UC", "write_bw -c UC -s 4096", "write_lat -c UC", "send_bw -c UD -s 1024", "send_lat -c UD",
		"send_bw -b", "write_bw -q 4 -t 16", "send_bw -e", "write_lat -I 64", "send_bw --use-srq", "send_bw -R", "write_bw -R", "read_lat -R", "send_lat -R -c UD"} {
		perf(p + " -n 200")
	}
	for _, p := range []string{"send_bw -a -n 5", "write_bw -a -n 5", "read_bw -a -n 5", "write_bw -l 16 -n 320"} {
		perf(p)
	}
	return append(list,
		dropinCase{server: "rping -s -C 20 -S 1000 -V", client: "rping -c -C 20 -S 1000 -V", bind: "-a", connect: "-a"},
		dropinCase{server: "ucmatose -c 5 -C 10 -S 100", client: "ucmatose -c 5 -C 10 -S 100", bind: "-b", connect: "-s"},
		dropinCase{server: "udaddy -c 3 -C 10 -S 100", client: "udaddy -c 3 -C 10 -S 100", bind: "-b", connect: "-s", ownPort: true},
		dropinCase{server: "rdma_server", client: "rdma_client", bind: "-s", connect: "-s"},
		dropinCase{server: "cmtime -c 20", client: "cmtime -c 20", bind: "-b", connect: "-s", endless: true},
		dropinCase{server: "rstream -S 1024 -C 100", client: "rstream -S 1024 -C 100", bind: "-b", connect: "-s"},
		dropinCase{server: "riostream -S 1024 -C 100", client: "riostream -S 1024 -C 100", bind: "-b", connect: "-s"},
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
	late := lateLibrary(t)
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
				{side: rxe, device: "rxe0", gid: gid, late: preload(putInGuest(t, g, late)), guest: g},
				{side: us, device: "roce0", before: []string{"env", "ROCE_DROPIN=" + libraries, bin.roce, "exec", "--addr", us.addr4, "--"}, late: preload(late)},
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
			for i, role := range []string{"rxe receives", "we receive"} {
				t.Run("mckey, "+role, func(t *testing.T) { multicast(t, ends[i], ends[1-i]) })
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

func lateLibrary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "late.so")
	if out, err := exec.Command("gcc", "-Wall", "-shared", "-fPIC", "-o", path, "dropin/late.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func preload(library string) []string { return []string{"env", "LD_PRELOAD=" + library} }

// putInGuest copies a file of this machine and returns where it is.
func putInGuest(t *testing.T, g *lab.Guest, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join("/tmp", filepath.Base(path))
	if err := g.Put(to, 0o755, b); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestDropinSpeed prints what perftest moves on rxe and on the drop-in libraries, in turns, in the same pair of guests.
func TestDropinSpeed(t *testing.T) {
	if os.Getenv("GOROCE_INTEROP") != dropin {
		t.Skip("GOROCE_INTEROP is not dropin: no guest is booted")
	}
	ctx, cancel := needGuests(t)
	defer cancel()
	l := newGoodputLab(t, ctx)
	files, err := filepath.Glob(filepath.Join(dropinLibraries(t), "*.so*"))
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*goodputEnd
	for i, g := range l.guests {
		for _, f := range files {
			putInGuest(t, g, f)
		}
		e := *l.rxe[i]
		e.dropin = []string{"env", "ROCE_DROPIN=/tmp", roceInGuest, "exec", "--addr", e.addr4, "--"}
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
	late   []string // before that: a client of perftest -R comes late (dropin/late.c), for the server may be slow to listen again
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
	sp := server.begin(t, server.argv(c, c.server, c.bind, own, port)...)
	defer sp.Kill()
	var err error
	if c.byTCP() {
		err = sp.WaitPort(port, 30*time.Second)
	} else {
		err = server.listens(c, port)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, sp.Stdout()+sp.Stderr())
	}
	argv := client.argv(c, c.client, c.connect, server.addr4, port)
	if strings.HasPrefix(c.client, "ib_") && !c.byTCP() {
		argv = append(client.late, argv...)
	}
	cp := client.begin(t, argv...)
	defer cp.Kill()
	if err = endsWell("client", cp); err == nil && !c.endless {
		err = endsWell("server", sp)
	}
	if err != nil {
		t.Errorf("%v\nclient:\n%s\nserver:\n%s", err, cp.Stdout()+cp.Stderr(), sp.Stdout()+sp.Stderr())
	}
}

func (e *dropinEnd) begin(t *testing.T, argv ...string) program {
	t.Helper()
	p, err := e.start(argv...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// endsWell waits for the end of a program and says what is wrong with it.
func endsWell(what string, p program) error {
	if exit, err := p.Wait(2 * time.Minute); err != nil || exit != 0 {
		return fmt.Errorf("%s: exit status %d (%v)", what, exit, err)
	}
	return nil
}

// multicast lets mckey send from one end to a group that the other end has joined. It comes again until all messages are there: it neither
// knows whether the receiver is, nor waits until its own have left (multicast_test.go).
func multicast(t *testing.T, receiver, sender *dropinEnd) {
	mckey := func(e *dropinEnd, more ...string) program {
		return e.begin(t, append(append(append([]string{}, e.before...), "mckey", "-m", "239.77.1.2", "-b", e.addr4), more...)...)
	}
	rp := mckey(receiver)
	defer rp.Kill()
	for range 20 {
		sp := mckey(sender, "-s")
		err := endsWell("sender", sp)
		sp.Kill()
		if err != nil {
			t.Fatalf("%v\n%s", err, sp.Stdout()+sp.Stderr())
		}
		select {
		case <-rp.Done():
			if err := endsWell("receiver", rp); err != nil {
				t.Errorf("%v\n%s", err, rp.Stdout()+rp.Stderr())
			}
			return
		default:
		}
	}
	t.Errorf("the receiver waits for more:\n%s", rp.Stdout()+rp.Stderr())
}
