//go:build linux && !race

package dropin

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/goroce/goroce/roce/rdmacm" // what the libraries are made of: a change there runs the tests again
	_ "github.com/goroce/goroce/roce/rnet"
)

var (
	all      = flag.Bool("dropin.all", false, "all cases, which takes minutes")
	sanitize = flag.Bool("dropin.sanitize", false, "the C side, and our programs, built with the address and undefined behaviour sanitizers")
)

// sanitizers are flags of gcc.
var sanitizers = []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"}

// needAll skips a case that is not of the core.
func needAll(t *testing.T) {
	if !*all {
		t.Skip("not of the core: make dropintest runs it")
	}
}

func TestMain(m *testing.M) {
	flag.Parse()
	status := m.Run()
	if built.dir != "" && built.ours {
		os.RemoveAll(built.dir)
	}
	os.Exit(status)
}

// built are the libraries.
var built struct {
	once sync.Once
	dir  string
	ours bool
	err  error
	why  string // they cannot be built here
}

const source = "../../cmd/dropin"

// libraries returns the folder of the libraries.
func libraries(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if *sanitize {
			built.why, built.err = build(sanitizers...)
		} else if built.dir = os.Getenv("ROCE_DROPIN"); built.dir == "" {
			built.why, built.err = build()
		}
	})
	switch {
	case built.err != nil:
		t.Fatal(built.err)
	case built.why != "":
		t.Skip(built.why)
	}
	return built.dir
}

// build builds the libraries, with more flags for C, or says why not.
func build(flags ...string) (why string, err error) {
	// go test repeats a cached result until what the test has read changes.
	if err := filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			_, err = os.ReadFile(path)
		}
		return err
	}); err != nil {
		return "", err
	}
	if why := missing(); why != "" {
		return why, nil
	}
	if built.dir, err = os.MkdirTemp("", "dropin"); err != nil {
		return "", err
	}
	built.ours = true
	if err := os.Chmod(built.dir, 0o755); err != nil { // for TestUnprivileged
		return "", err
	}
	if out, err := exec.Command(source+"/build.sh", append([]string{built.dir}, flags...)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build.sh: %w\n%s", err, out)
	}
	return "", nil
}

// missing says what this machine lacks to build the libraries.
func missing() string {
	if _, err := exec.LookPath("gcc"); err != nil {
		return "no C compiler: on Debian install gcc and libc6-dev"
	}
	for _, header := range []string{"infiniband/verbs.h", "rdma/rdma_cma.h"} {
		c := exec.Command("gcc", "-E", "-")
		c.Stdin = strings.NewReader("#include <" + header + ">\n")
		if c.Run() != nil {
			return "no " + header + ": on Debian install libibverbs-dev and librdmacm-dev"
		}
	}
	return ""
}

// patience ends what hangs, on a busy machine too.
const patience = 5 * time.Minute

// side is a host of the test: an address of its own, and variables for its programs.
type side struct {
	addr string
	env  []string
}

// pair are two numbers of this process, so that these tests may run more than once at a
// time on a host.
var pair = [2]int{64 + os.Getpid()>>8&63, os.Getpid() & 255}

var (
	network        = fmt.Sprintf("127.%d.%d.", pair[0], pair[1])
	ranks          = network + "128/25" // of programs that get any free address
	group          = fmt.Sprintf("239.%d.%d.81", pair[0], pair[1])
	server, client = side{addr: network + "1"}, side{addr: network + "2"}
)

// with returns the side with more variables.
func (s side) with(env ...string) side {
	return side{s.addr, append(s.env[:len(s.env):len(s.env)], env...)}
}

// command returns a program on the libraries, in the environment of roce exec.
func (s side) command(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	dir := libraries(t)
	path, err := exec.LookPath(args[0])
	if err != nil {
		t.Skipf("no %s: test/dropin/setup.sh installs the packages", args[0])
	}
	c := exec.CommandContext(ctx, path, args[1:]...)
	preload := filepath.Join(dir, "libibverbs.so.1")
	if *sanitize {
		preload = sanitizerRuntimes(t) + " " + preload
		// Faults of memory are Go's, and so are most pointers to it: leaks cannot be told.
		c.Env = []string{"ASAN_OPTIONS=handle_segv=0:detect_leaks=0", "UBSAN_OPTIONS=print_stacktrace=1"}
	}
	c.Env = append(c.Env, os.Environ()...)
	c.Env = append(c.Env, "LD_LIBRARY_PATH="+dir, "LD_PRELOAD="+preload, "ROCE_ADDR="+s.addr)
	c.Env = append(c.Env, s.env...)
	c.WaitDelay = time.Second
	return c
}

// sanitizerRuntimes are the libraries that have to be loaded before all others.
func sanitizerRuntimes(t *testing.T) string {
	t.Helper()
	var paths []string
	for _, name := range []string{"libasan.so", "libubsan.so"} {
		out, err := exec.Command("gcc", "-print-file-name="+name).Output()
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, strings.TrimSpace(string(out)))
	}
	return strings.Join(paths, " ")
}

// run runs a program to its good end and returns its output, standard error included.
func (s side) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.try(t, args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// try is run to any end.
func (s side) try(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := s.command(ctx, t, args...).CombinedOutput()
	return string(out), err
}

// started is a program that runs.
type started struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan error
}

func (s side) start(t *testing.T, args ...string) *started {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	p := &started{t: t, name: strings.Join(args, " "), cmd: s.command(ctx, t, args...), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() { cancel() })
	return p
}

// wait waits for the end of the program, which must be a good one.
func (p *started) wait() string {
	p.t.Helper()
	out, err := p.end()
	if err != nil {
		p.t.Fatalf("%s: %v\n%s", p.name, err, out)
	}
	return out
}

// end waits for the end of the program.
func (p *started) end() (string, error) {
	err := <-p.done
	return p.out.String(), err
}

// kill ends the program.
func (p *started) kill() {
	p.cmd.Process.Kill() // it fails when the program has ended
	p.end()
}

// freePort returns a TCP port that nobody listens on.
func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// awaits waits until the kernel's tables of sockets have an entry, or the program has
// ended. It does not try to take the port, which the program would then not get.
func (p *started) awaits(entry string, tables ...string) {
	p.t.Helper()
	want := regexp.MustCompile(entry)
	for {
		for _, table := range tables {
			sockets, err := os.ReadFile("/proc/net/" + table)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				p.t.Fatal(err)
			}
			if want.Match(sockets) {
				return
			}
		}
		p.alive()
		time.Sleep(10 * time.Millisecond) // a poll: start has set the deadline
	}
}

// listening waits until somebody listens on a TCP port.
func (p *started) listening(port string) {
	p.t.Helper()
	n, err := strconv.Atoi(port)
	if err != nil {
		p.t.Fatal(err)
	}
	p.awaits(fmt.Sprintf(`: [0-9A-F]+:%04X [0-9A-F]+:0000 0A `, n), "tcp", "tcp6")
}

// bound waits until the program has a device at an address, or is in a group.
func (p *started) bound(addr string) {
	p.t.Helper()
	ip := netip.MustParseAddr(addr).As4()
	p.awaits(fmt.Sprintf(": %08X:%04X ", binary.NativeEndian.Uint32(ip[:]), 4791), "udp")
}

// alive ends the test when the program has ended.
func (p *started) alive() {
	p.t.Helper()
	select {
	case err := <-p.done:
		p.t.Fatalf("%s has ended: %v\n%s", p.name, err, &p.out)
	default:
	}
}

// both plays a program against itself, on a TCP port of its own, and returns the
// output of both ends.
func both(t *testing.T, args ...string) (atServer, atClient string) {
	t.Helper()
	port := freePort(t)
	args = append(args, "-p", port)
	s := server.start(t, args...)
	s.listening(port)
	atClient = client.run(t, append(args, server.addr)...)
	return s.wait(), atClient
}
