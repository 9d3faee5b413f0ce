//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/goroce/goroce/test/interop/wire"
)

// serve answers commands, one connection each, until a "poweroff" closes the listener.
func serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors: they come back
			continue
		}
		go func() {
			defer c.Close()
			handle(l, c)
		}()
	}
}

// handle serves one connection.
func handle(l net.Listener, c net.Conn) {
	kind, b, err := wire.ReadFrame(c)
	if err != nil {
		return
	}
	var cmd wire.Command
	if err = json.Unmarshal(b, &cmd); err == nil && kind != wire.FrameCommand {
		err = fmt.Errorf("the first frame has kind %q", kind)
	}
	var res wire.Result
	if err == nil {
		switch cmd.Op {
		case "ping":
		case "exec":
			res.Exit, err = run(c, cmd.Argv)
		case "put":
			err = put(c, cmd.Path, os.FileMode(cmd.Mode))
		case "get":
			err = get(c, cmd.Path)
		case "waitport":
			err = waitPort(cmd.Port, time.Duration(cmd.TimeoutMS)*time.Millisecond)
		case "poweroff":
			defer l.Close()
		default:
			err = fmt.Errorf("unknown command %q", cmd.Op)
		}
	}
	if err != nil {
		res.Err = err.Error()
	}
	wire.WriteJSON(c, wire.FrameResult, res)
}

// frameWriter sends what is written to it as frames of one kind.
type frameWriter struct {
	mu   *sync.Mutex
	w    io.Writer
	kind wire.Kind
}

func (f frameWriter) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := wire.WriteFrame(f.w, f.kind, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// run executes argv in a process group of its own, which is killed when the connection goes first.
func run(c net.Conn, argv []string) (int, error) {
	if len(argv) == 0 {
		return 0, errors.New("nothing to execute")
	}
	var mu sync.Mutex
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout = frameWriter{&mu, c, wire.FrameStdout}
	cmd.Stderr = frameWriter{&mu, c, wire.FrameStderr}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 2 * time.Second // a grandchild that holds the output open
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() {
		for {
			kind, b, err := wire.ReadFrame(c)
			if err != nil {
				syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				return
			}
			if kind == wire.FrameEnd {
				stdin.Close()
			} else {
				stdin.Write(b)
			}
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return cmd.ProcessState.ExitCode(), nil
	case errors.As(err, &exit):
		if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
			return 128 + int(ws.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

func put(c net.Conn, path string, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		kind, b, err := wire.ReadFrame(c)
		if err != nil {
			return err
		}
		if kind == wire.FrameEnd {
			return f.Close()
		}
		if _, err := f.Write(b); err != nil {
			return err
		}
	}
}

func get(c net.Conn, path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for len(b) > 0 {
		n := min(len(b), wire.MaxFrame)
		if err := wire.WriteFrame(c, wire.FrameData, b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// waitPort looks at the kernel's socket tables instead of connecting, because a connection would be taken for the real client.
func waitPort(port int, timeout time.Duration) error {
	end := time.Now().Add(timeout)
	for {
		for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			b, _ := os.ReadFile(table) // a kernel without IPv6 has no tcp6
			if wire.Listening(string(b), port) {
				return nil
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("nothing listens on TCP port %d after %v", port, timeout)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
