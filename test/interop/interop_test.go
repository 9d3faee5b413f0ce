//go:build linux

package interop

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/test/interop/lab"
)

//go:embed guest/verbs.py
var verbsScript []byte

const verbsPath = "/tmp/verbs.py" // in the guest

// suites are the kernels under test. The version is what the suite had when the cases were written; a later one is fine.
var suites = []struct{ suite, version string }{
	{"bookworm", "6.1"},
	{"trixie", "6.12"},
	{"sid", "7.2"},
}

// The modes of GOROCE_INTEROP.
const (
	subset    = "subset"
	full      = "full"
	reference = "reference"
	goodput   = "goodput"  // TestGoodput instead of TestInterop
	reports   = "reports"  // TestReports instead of TestInterop
	perftests = "perftest" // TestPerftest instead of TestInterop
	dropin    = "dropin"   // TestDropin instead of TestInterop
)

// lossPerMille of the packets are dropped in each direction by the loss cases.
const lossPerMille = 20

// needGuests skips the test where guests cannot be booted. The context ends when the run is interrupted.
func needGuests(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root: the guests need a network namespace with tap devices")
	}
	needPackages(t)
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}

// TestInterop runs every case against every kernel, one guest at a time.
func TestInterop(t *testing.T) {
	mode := os.Getenv("GOROCE_INTEROP")
	switch mode {
	case subset, full, reference:
	case "":
		t.Skip("GOROCE_INTEROP is not set (subset, full or reference): no guest is booted")
	case goodput:
		t.Skip("GOROCE_INTEROP=goodput: TestGoodput runs instead")
	case reports:
		t.Skip("GOROCE_INTEROP=reports: TestReports runs instead")
	case perftests:
		t.Skip("GOROCE_INTEROP=perftest: TestPerftest runs instead")
	case dropin:
		t.Skip("GOROCE_INTEROP=dropin: TestDropin runs instead")
	default:
		t.Fatalf("GOROCE_INTEROP=%q: want subset, full, reference, goodput, reports, perftest or dropin", mode)
	}
	ctx, cancel := needGuests(t)
	defer cancel()
	bin := build(t, ctx, mode)
	var results []result
	for _, k := range suites {
		t.Run(k.suite, func(t *testing.T) {
			s := newSession(t, ctx, mode, k.suite, bin)
			defer func() { results = append(results, s.results...) }()
			s.pingpong(t)
			s.perf(t)
			s.verbs(t)
			s.services(t)
			s.atomics(t)
			s.placement(t)
			s.srq(t)
			s.paths(t)
			s.errors(t)
			s.windows(t)
			s.loss(t)
			s.congestion(t)
			s.multicast(t, bin)
			s.nvme(t, bin)
			s.rsockets(t, bin)
			s.cm(t, bin)
			s.beside(t, bin)
		})
	}
	// Only a run of all groups makes a table, with its failures if it has any.
	page := os.Getenv("GOROCE_TABLE")
	if run := flag.Lookup("test.run").Value.String(); page != "" && mode != reference && ctx.Err() == nil && (run == "" || run == "TestInterop") {
		writeTable(t, page, document{mode, results, runOwnTests(t, ctx), time.Now()})
	}
}

// needPackages skips the test, saying why, when setup.sh finds that something is missing.
func needPackages(t *testing.T) {
	cmd := exec.Command("./setup.sh")
	cmd.Env = append(os.Environ(), "NOINSTALL=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 3 {
		t.Skipf("%s", out)
	} else if err != nil {
		t.Fatalf("setup.sh: %v\n%s", err, out)
	}
}

// root is the top of the repository.
func root(t *testing.T) string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// binaries are the programs under test and those of the harness.
type binaries struct{ agent, roce, peer, netio, mcast, rsock, nvme string }

func build(t *testing.T, ctx context.Context, mode string) binaries {
	t.Helper()
	dir := filepath.Join(root(t), "build/interop/bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	make := func(name, pkg string, how ...string) string {
		out := filepath.Join(dir, name)
		if how == nil {
			how = []string{"build"}
		}
		cmd := exec.CommandContext(ctx, "go", append(how, "-o", out, pkg)...)
		cmd.Dir = root(t)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build %s: %v\n%s", pkg, err, b)
		}
		return out
	}
	b := binaries{agent: make("agent", "./test/interop/agent")}
	if mode != reference {
		b.roce = make("roce", "./cmd/roce")
		b.peer = make("peer", "./test/interop/peer")
		b.mcast = make("mcast", "./test/interop/mcast")
		b.nvme = make("nvme", "./test/interop/nvme")
		b.rsock = make("rsock", "./test/interop/rsock")
		b.netio = make("netio.test", "./roce/netio", "test", "-c")
	}
	return b
}

// result is one row of the table.
type result struct {
	kernel, group, name string
	ok                  bool
	took                time.Duration
	note                string
	uses                []use
}

// session is one kernel's guest and everything around it.
type session struct {
	ctx     context.Context
	mode    string
	kernel  *lab.Kernel
	ns      *lab.Netns
	capture *lab.Capture
	guest   *lab.Guest // the peer that none of us wrote
	rxe     *side
	us      *side // this stack or, in reference mode, a second guest
	dir     string
	ends    map[endKey]*end // verbs peers
	port    int             // the next TCP port for a pingpong
	results []result
}

// newSession boots the guest. The test's cleanup ends it and checks the whole capture.
func newSession(t *testing.T, ctx context.Context, mode, suite string, bin binaries) *session {
	began := time.Now()
	k, err := lab.FetchKernel(ctx, suite)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{ctx: ctx, mode: mode, kernel: k, dir: filepath.Join(root(t), "build/interop", suite), port: 18515, ends: map[endKey]*end{}}
	os.RemoveAll(s.dir)
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	newer, err := lab.FetchNewerRoot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	guests := 1
	if mode == reference {
		guests = 2
	}
	if s.ns, err = lab.NewNetns(ctx, guests); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.ns.Close() })
	if s.capture, err = s.ns.StartCapture(lab.Tap(0), s.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.checkCapture(t) })
	boot := func(i int) *lab.Guest {
		g := bootGuest(t, ctx, lab.GuestConfig{Kernel: k, Netns: s.ns, Index: i, Agent: bin.agent, Root: newer, Log: t.Logf}, s.dir)
		if err := g.Put(verbsPath, 0o644, verbsScript); err != nil {
			t.Fatal(err)
		}
		return g
	}
	s.guest = boot(0)
	t.Cleanup(s.closePeers)
	s.rxe = guestSide(ctx, "rxe", s.guest)
	if mode == reference {
		s.us = guestSide(ctx, "rxe2", boot(1))
	} else {
		s.us = ourSide(s.ns, bin)
	}
	t.Logf("kernel %s is up after %.1f s", k.Release, time.Since(began).Seconds())
	return s
}

// bootGuest boots a guest for the time of the test. A kernel that complains fails the test, and the console of a failed test is kept in dir.
func bootGuest(t *testing.T, ctx context.Context, cfg lab.GuestConfig, dir string) *lab.Guest {
	t.Helper()
	g, err := lab.BootGuest(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Close()
		if bad := g.Trouble(); len(bad) > 0 {
			t.Errorf("the guest's kernel complains:\n%s", strings.Join(bad, "\n"))
		}
		if t.Failed() {
			os.WriteFile(filepath.Join(dir, fmt.Sprintf("console%d.txt", cfg.Index)), []byte(g.Console()), 0o644)
		}
	})
	return g
}

// oneGuest boots a guest with the kernel of a suite, in a network of its own, for a test that is a mode of its own.
func oneGuest(t *testing.T, ctx context.Context, suite, mode string, bin binaries) (*lab.Netns, *lab.Guest) {
	t.Helper()
	k, err := lab.FetchKernel(ctx, suite)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := lab.NewNetns(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	dir := filepath.Join(root(t), "build/interop", mode)
	os.MkdirAll(dir, 0o755)
	return ns, bootGuest(t, ctx, lab.GuestConfig{Kernel: k, Netns: ns, Agent: bin.agent, Log: t.Logf}, dir)
}

// checkCapture ends the capture and checks every RoCE packet in it.
func (s *session) checkCapture(t *testing.T) {
	frames, lost, err := s.capture.Close()
	if err != nil {
		t.Errorf("capture: %v", err)
		return
	}
	began := time.Now()
	v, err := lab.CheckICRC(s.capture.Path)
	if err != nil {
		t.Errorf("capture: %v", err)
		return
	}
	packets := 0
	for _, n := range v.Packets {
		packets += n
	}
	malformed, err := lab.CheckTshark(context.Background(), s.capture.Path, packets)
	if err != nil {
		t.Errorf("tshark: %v", err)
	}
	for _, p := range append(v.Problems, malformed...) {
		t.Errorf("%s: %s", s.capture.Path, p)
	}
	if v.More > 0 {
		t.Errorf("%s: %d more problems", s.capture.Path, v.More)
	}
	t.Logf("capture: %d frames (%d lost by the capture), RoCE packets by source %v: all checked for form (tshark and package ib) and ICRC in %.1f s",
		frames, lost, v.Packets, time.Since(began).Seconds())
	if !t.Failed() {
		os.Remove(s.capture.Path)
	}
}

// run runs one case with a capture of its own. The case's folder stays when the case fails.
func (s *session) run(t *testing.T, group, name string, f func(c *testCase)) {
	t.Run(name, func(t *testing.T) {
		if err := s.ctx.Err(); err != nil {
			t.Fatal("interrupted")
		}
		if !s.guest.Alive() {
			t.Fatalf("the guest has died in an earlier case")
		}
		c := &testCase{T: t, s: s, dir: filepath.Join(s.dir, group, fileName(name))}
		if err := os.MkdirAll(c.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := s.capture.BeginCase(c.dir); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		defer func() {
			took := time.Since(began)
			if c.captured == "" {
				s.capture.EndCase()
			}
			s.results = append(s.results, result{s.kernel.Release, group, name, !t.Failed(), took, c.note, c.uses})
			if !t.Failed() {
				os.RemoveAll(c.dir)
				os.Remove(filepath.Dir(c.dir)) // only if it is empty
				return
			}
			os.WriteFile(filepath.Join(c.dir, "console.txt"), []byte(s.guest.Console()), 0o644)
			t.Logf("kept in %s: capture, console and output", c.dir)
		}()
		f(c)
	})
}

// fileName makes a plain folder name of a case's name.
func fileName(name string) string { return notPlain.ReplaceAllString(name, "-") }

var notPlain = regexp.MustCompile(`[^A-Za-z0-9_]+`)

// testCase is a running case.
type testCase struct {
	*testing.T
	s        *session
	dir      string
	note     string // for the table
	captured string // the capture's path once it has been closed
	uses     []use
}

// packets ends the case's capture and returns its path.
func (c *testCase) packets() string {
	c.Helper()
	if c.captured == "" {
		path, err := c.s.capture.EndCase()
		if err != nil {
			c.Fatalf("capture: %v", err)
		}
		c.captured = path
	}
	return c.captured
}

// keep stores text in the case's folder, which stays only when the case fails.
func (c *testCase) keep(name, text string) {
	os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o644)
}

// syndromes counts the NAK and RNR NAK syndromes that a sender put on the wire in this case.
func (c *testCase) syndromes(src netip.Addr) (map[ib.Syndrome]int, error) {
	return lab.Syndromes(c.packets(), src)
}
