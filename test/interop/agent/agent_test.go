//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/test/interop/wire"
)

// agent serves on loopback for the test.
func agent(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go serve(l)
	return l.Addr().String()
}

func command(t *testing.T, addr string, cmd wire.Command) net.Conn {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if err := wire.WriteJSON(c, wire.FrameCommand, cmd); err != nil {
		t.Fatal(err)
	}
	return c
}

// answer reads to the result and returns what came before by kind.
func answer(t *testing.T, c net.Conn) (map[wire.Kind]string, wire.Result) {
	t.Helper()
	got := map[wire.Kind]string{}
	for {
		k, b, err := wire.ReadFrame(c)
		if err != nil {
			t.Fatal(err)
		}
		if k == wire.FrameResult {
			var r wire.Result
			if err := json.Unmarshal(b, &r); err != nil {
				t.Fatal(err)
			}
			return got, r
		}
		got[k] += string(b)
	}
}

func TestExec(t *testing.T) {
	addr := agent(t)
	for _, c := range []struct {
		name, script     string
		stdout, stderr   string
		exit             int
		signalled, input string
	}{
		{name: "output and status", script: "echo out; echo err >&2; exit 3", stdout: "out\n", stderr: "err\n", exit: 3},
		{name: "a signal", script: "kill -TERM $$", exit: 128 + 15},
		{name: "input", script: "cat", input: "line\n", stdout: "line\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := command(t, addr, wire.Command{Op: "exec", Argv: []string{"sh", "-c", c.script}})
			wire.WriteFrame(conn, wire.FrameData, []byte(c.input))
			wire.WriteFrame(conn, wire.FrameEnd, nil)
			got, r := answer(t, conn)
			if got[wire.FrameStdout] != c.stdout || got[wire.FrameStderr] != c.stderr || r.Exit != c.exit || r.Err != "" {
				t.Errorf("got %v and %+v", got, r)
			}
		})
	}
}

func TestCommandsThatFailSayWhy(t *testing.T) {
	addr := agent(t)
	for _, c := range []struct {
		cmd  wire.Command
		want string
	}{
		{wire.Command{Op: "exec", Argv: []string{"/no/such/program"}}, "no such file"},
		{wire.Command{Op: "exec"}, "nothing to execute"},
		{wire.Command{Op: "get", Path: "/no/such/file"}, "no such file"},
		{wire.Command{Op: "put", Path: "/no/such/dir/file"}, "no such file"},
		{wire.Command{Op: "waitport", Port: 1, TimeoutMS: 1}, "nothing listens"},
		{wire.Command{Op: "dance"}, "unknown command"},
	} {
		if _, r := answer(t, command(t, addr, c.cmd)); !strings.Contains(r.Err, c.want) {
			t.Errorf("%+v: got %q, want %q", c.cmd, r.Err, c.want)
		}
	}
}

// The harness ends a program by closing the connection: its children must go too.
func TestClosingTheConnectionKills(t *testing.T) {
	c := command(t, agent(t), wire.Command{Op: "exec", Argv: []string{"sh", "-c", "sleep 1000 & echo $!; wait"}})
	_, b, err := wire.ReadFrame(c)
	if err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Sscan(string(b), &child); err != nil {
		t.Fatal(err)
	}
	c.Close()
	for range 500 {
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child)); len(b) == 0 || strings.Contains(string(b), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %d lives on", child)
}

func TestFilesTravelBothWays(t *testing.T) {
	addr := agent(t)
	path := filepath.Join(t.TempDir(), "f")
	content := strings.Repeat("0123456789", 300_000) // more than one frame
	c := command(t, addr, wire.Command{Op: "put", Path: path, Mode: 0o700})
	for rest := content; len(rest) > 0; {
		n := min(len(rest), wire.MaxFrame)
		wire.WriteFrame(c, wire.FrameData, []byte(rest[:n]))
		rest = rest[n:]
	}
	wire.WriteFrame(c, wire.FrameEnd, nil)
	if _, r := answer(t, c); r.Err != "" {
		t.Fatal(r.Err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm()&0o100 == 0 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	got, r := answer(t, command(t, addr, wire.Command{Op: "get", Path: path}))
	if r.Err != "" || got[wire.FrameData] != content {
		t.Errorf("got %d bytes of %d, %q", len(got[wire.FrameData]), len(content), r.Err)
	}
}

func TestWaitPortSeesAListenerWithoutConnecting(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if _, r := answer(t, command(t, agent(t), wire.Command{Op: "waitport", Port: port, TimeoutMS: 5000})); r.Err != "" {
		t.Fatal(r.Err)
	}
	l.(*net.TCPListener).SetDeadline(time.Now().Add(50 * time.Millisecond))
	if c, err := l.Accept(); err == nil {
		c.Close()
		t.Error("waitport connected")
	}
}
