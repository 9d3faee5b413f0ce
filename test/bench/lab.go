//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// pathMTU4096 is an interface MTU that carries a path MTU of 4096.
const pathMTU4096 = 4200

// An end is where a process runs: a network namespace, and its address there.
type end struct {
	netns string
	addr  string
}

// A network connects a server and a client.
type network struct {
	name           string
	server, client end
}

// A testLab has two namespaces, joined by a veth pair. Loopback is that of the first one.
type testLab struct {
	roce           string // the program
	veth, loopback network
}

// newLab makes the namespaces. Call close even when it fails.
func newLab(ctx context.Context, roce string) (*testLab, error) {
	a, b := fmt.Sprintf("bench-a-%d", os.Getpid()), fmt.Sprintf("bench-b-%d", os.Getpid())
	l := &testLab{
		roce:     roce,
		veth:     network{"veth", end{b, "10.97.0.2"}, end{a, "10.97.0.1"}},
		loopback: network{"loopback", end{a, "127.0.0.1"}, end{a, "127.0.0.2"}},
	}
	mtu := strconv.Itoa(pathMTU4096)
	for _, args := range []string{
		"netns add " + a, "netns add " + b,
		"-n " + a + " link add v0 mtu " + mtu + " type veth peer name v0 mtu " + mtu + " netns " + b,
		"-n " + a + " addr add 10.97.0.1/24 dev v0", "-n " + b + " addr add 10.97.0.2/24 dev v0",
		"-n " + a + " link set v0 up", "-n " + b + " link set v0 up",
		"-n " + a + " link set lo up", "-n " + b + " link set lo up",
	} {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return l, fmt.Errorf("ip %s: %w: %s", args, err, bytes.TrimSpace(out))
		}
	}
	return l, nil
}

func (l *testLab) close() {
	for _, ns := range []string{l.veth.client.netns, l.veth.server.netns} {
		exec.Command("ip", "netns", "del", ns).Run() // it may not be there
	}
}

// A proc is a process in a namespace.
type proc struct {
	*exec.Cmd
	out, err bytes.Buffer
}

func (e end) start(ctx context.Context, argv []string) (*proc, error) {
	p := &proc{Cmd: exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", e.netns}, argv...)...)}
	p.Stdout, p.Stderr = &p.out, &p.err
	return p, p.Start()
}

// end waits for the process and returns what it has printed.
func (p *proc) end() ([]byte, error) {
	if err := p.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(p.Args[4:], " "), err, bytes.TrimSpace(p.err.Bytes()))
	}
	return p.out.Bytes(), nil
}

// cpu is the processor time that the process has taken, its beginning and end included.
func (p *proc) cpu() time.Duration { return p.ProcessState.UserTime() + p.ProcessState.SystemTime() }

// outcome is what both ends of a run have printed, and the processor time they took.
type outcome struct {
	server, client       []byte
	serverCPU, clientCPU time.Duration
}

// runTimeout bounds a run; none takes more than a few seconds.
const runTimeout = 60 * time.Second

// play runs a server and, when it listens on its TCP port, a client.
func (n *network) play(ctx context.Context, port int, server, client []string) (o outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	s, err := n.server.start(ctx, server)
	if err != nil {
		return o, err
	}
	var serverErr error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if o.server, serverErr = s.end(); serverErr != nil {
			cancel() // the client would wait in vain
		}
	}()
	var c *proc
	if err = listens(ctx, s.Process.Pid, port); err == nil {
		if c, err = n.client.start(ctx, client); err == nil {
			o.client, err = c.end()
		}
	}
	if err != nil {
		cancel()
	}
	<-ended
	if err := errors.Join(serverErr, err); err != nil {
		return o, err
	}
	o.serverCPU, o.clientCPU = s.cpu(), c.cpu()
	return o, nil
}

// listens waits until a process has entered its namespace and somebody listens there
// on a TCP port.
func listens(ctx context.Context, pid, port int) error {
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	want := fmt.Sprintf(":%04X ", port)
	for ; ; time.Sleep(2 * time.Millisecond) {
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			return fmt.Errorf("the server has ended: %w", err)
		}
		if theirs != ours && (hasListener(pid, "tcp", want) || hasListener(pid, "tcp6", want)) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the server does not listen on TCP port %d: %w", port, ctx.Err())
		}
	}
}

// hasListener looks for a listening socket in a table of /proc/PID/net.
func hasListener(pid int, table, port string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1]+" ", port) && f[3] == "0A" {
			return true
		}
	}
	return false
}
