//go:build linux

package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/goroce/goroce/test/interop/wire"
)

// Remote is a program running in a guest. Killing it ends the program's process group.
type Remote struct {
	Argv   []string
	conn   net.Conn
	wmu    sync.Mutex
	out    syncBuffer
	err    syncBuffer
	stdout io.Writer
	done   chan struct{}
	result wire.Result
	fail   error
}

// Start starts a program in the guest. stdout may be nil: then Stdout returns what was written.
func (g *Guest) Start(stdout io.Writer, argv ...string) (*Remote, error) {
	c, err := g.dial()
	if err != nil {
		return nil, err
	}
	if err := wire.WriteJSON(c, wire.FrameCommand, wire.Command{Op: "exec", Argv: argv}); err != nil {
		c.Close()
		return nil, err
	}
	r := &Remote{Argv: argv, conn: c, done: make(chan struct{}), stdout: stdout}
	if stdout == nil {
		r.stdout = &r.out
	}
	go r.receive()
	return r, nil
}

func (r *Remote) receive() {
	defer close(r.done)
	defer r.conn.Close()
	for {
		kind, b, err := wire.ReadFrame(r.conn)
		if err != nil {
			r.fail = fmt.Errorf("the connection to the guest's agent ended: %w", err)
			return
		}
		switch kind {
		case wire.FrameStdout:
			r.stdout.Write(b)
		case wire.FrameStderr:
			r.err.Write(b)
		case wire.FrameResult:
			if r.fail = json.Unmarshal(b, &r.result); r.fail == nil && r.result.Err != "" {
				r.fail = errors.New(r.result.Err)
			}
			return
		}
	}
}

// Write sends b to the program's standard input.
func (r *Remote) Write(b []byte) (int, error) {
	r.wmu.Lock()
	defer r.wmu.Unlock()
	return len(b), wire.WriteFrame(r.conn, wire.FrameData, b)
}

// CloseInput ends the program's standard input.
func (r *Remote) CloseInput() error {
	r.wmu.Lock()
	defer r.wmu.Unlock()
	return wire.WriteFrame(r.conn, wire.FrameEnd, nil)
}

// Stdout is what the program has written so far.
func (r *Remote) Stdout() string { return r.out.String() }

// Stderr is what the program has written so far.
func (r *Remote) Stderr() string { return r.err.String() }

// Done is closed when the program has ended or the agent is gone.
func (r *Remote) Done() <-chan struct{} { return r.done }

// Wait waits for the program's exit status; after the timeout it kills it and returns an error.
func (r *Remote) Wait(timeout time.Duration) (int, error) {
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-r.done:
		return r.result.Exit, r.fail
	case <-t.C:
		r.Kill()
		return -1, fmt.Errorf("%s in the guest did not end within %v and was killed", r.Argv[0], timeout)
	}
}

// Kill kills the program if it still runs.
func (r *Remote) Kill() {
	r.conn.Close()
	<-r.done
}

// Run runs a program in the guest to its end and returns its standard output; an exit status other than 0 is an error.
func (g *Guest) Run(ctx context.Context, argv ...string) (string, error) {
	r, err := g.Start(nil, argv...)
	if err != nil {
		return "", err
	}
	defer r.Kill()
	select {
	case <-r.Done():
	case <-ctx.Done():
		return r.Stdout(), ctx.Err()
	}
	if r.fail != nil {
		return r.Stdout(), fmt.Errorf("%s: %w", strings.Join(argv, " "), r.fail)
	}
	if r.result.Exit != 0 {
		return r.Stdout(), fmt.Errorf("%s: exit status %d: %s", strings.Join(argv, " "), r.result.Exit, lastLines(r.Stderr()+r.Stdout(), 5))
	}
	return r.Stdout(), nil
}

// call runs one command that carries data in one direction at most and returns the data that came.
func (g *Guest) call(cmd wire.Command, input []byte, timeout time.Duration) ([]byte, error) {
	c, err := g.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeout))
	if err := wire.WriteJSON(c, wire.FrameCommand, cmd); err != nil {
		return nil, err
	}
	if cmd.Op == "put" {
		for len(input) > 0 {
			n := min(len(input), wire.MaxFrame)
			if err := wire.WriteFrame(c, wire.FrameData, input[:n]); err != nil {
				return nil, err
			}
			input = input[n:]
		}
		if err := wire.WriteFrame(c, wire.FrameEnd, nil); err != nil {
			return nil, err
		}
	}
	var data []byte
	for {
		kind, b, err := wire.ReadFrame(c)
		if err != nil {
			return nil, err
		}
		if kind == wire.FrameData {
			data = append(data, b...)
			continue
		}
		var res wire.Result
		if err := json.Unmarshal(b, &res); err != nil {
			return nil, err
		}
		if res.Err != "" {
			return nil, errors.New(res.Err)
		}
		return data, nil
	}
}

// Ping asks the agent for an answer.
func (g *Guest) Ping() error {
	_, err := g.call(wire.Command{Op: "ping"}, nil, 10*time.Second)
	return err
}

// Put writes a file in the guest.
func (g *Guest) Put(path string, mode uint32, content []byte) error {
	_, err := g.call(wire.Command{Op: "put", Path: path, Mode: mode}, content, time.Minute)
	return err
}

// Get reads a file in the guest.
func (g *Guest) Get(path string) ([]byte, error) {
	return g.call(wire.Command{Op: "get", Path: path}, nil, time.Minute)
}

// WaitPort waits until something in the guest listens on a TCP port.
func (g *Guest) WaitPort(port int, timeout time.Duration) error {
	_, err := g.call(wire.Command{Op: "waitport", Port: port, TimeoutMS: int(timeout.Milliseconds())}, nil, timeout+10*time.Second)
	return err
}

// GIDIndex looks up the index of an address in rxe0's GID table.
func (g *Guest) GIDIndex(ctx context.Context, addr string) (int, error) {
	out, err := g.Run(ctx, "sh", "-c", "cd /sys/class/infiniband/rxe0/ports/1/gids && grep -H . ?")
	if err != nil {
		return 0, err
	}
	return gidIndex(out, addr)
}

// gidIndex finds an address in lines of the form INDEX:GID, the GID as 8 groups of 4 hexadecimal digits.
func gidIndex(table, addr string) (int, error) {
	want := net.ParseIP(addr).To16()
	sc := bufio.NewScanner(strings.NewReader(table))
	for sc.Scan() {
		index, gid, ok := strings.Cut(sc.Text(), ":")
		if ip := net.ParseIP(gid); ok && ip != nil && ip.Equal(want) {
			var i int
			_, err := fmt.Sscan(index, &i)
			return i, err
		}
	}
	return 0, fmt.Errorf("rxe0 has no GID for %s in:\n%s", addr, table)
}
