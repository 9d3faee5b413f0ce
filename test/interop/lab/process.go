//go:build linux

package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/goroce/goroce/test/interop/wire"
)

// Process is a running program on this machine. It dies with this process, whatever ends it.
type Process struct {
	Argv  []string
	Stdin io.WriteCloser
	cmd   *exec.Cmd
	out   syncBuffer // standard output, if the caller gave no writer
	err   syncBuffer
	done  chan struct{}
	exit  int
	fail  error
}

// syncBuffer is a buffer that one side writes while another reads. It keeps the first 4 MiB.
type syncBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b = append(s.b, p[:min(len(p), max(0, 4<<20-len(s.b)))]...)
	return len(p), nil
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.b)
}

// StartProcess starts argv in a process group of its own. stdout may be nil: then Stdout returns what was written.
func StartProcess(stdout io.Writer, argv ...string) (*Process, error) {
	path, err := lookPath(argv[0])
	if err != nil {
		return nil, err
	}
	p := &Process{Argv: argv, cmd: exec.Command(path, argv[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.cmd.WaitDelay = 2 * time.Second
	if p.Stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	started := make(chan error)
	go func() {
		// The parent-death signal belongs to the thread that forks, so this one stays as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.exit, p.fail = exitStatus(p.cmd.Wait())
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// exitStatus turns the result of Wait into an exit status, 128+n for signal n.
func exitStatus(err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return 0, nil
	case errors.As(err, &exit):
		if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
			return 128 + int(ws.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return -1, err
}

// Pid is the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Stdout is what the program has written so far.
func (p *Process) Stdout() string { return p.out.String() }

// Stderr is what the program has written so far.
func (p *Process) Stderr() string { return p.err.String() }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits until the process has ended and returns its exit status; after the timeout it kills it and returns an error.
func (p *Process) Wait(timeout time.Duration) (int, error) {
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-p.done:
		return p.exit, p.fail
	case <-t.C:
		p.Kill()
		return -1, fmt.Errorf("%s did not end within %v and was killed", p.Argv[0], timeout)
	}
}

// Kill ends the process group and waits for it. It may be called on a process that has ended.
func (p *Process) Kill() {
	select {
	case <-p.done:
		return
	default:
	}
	syscall.Kill(-p.Pid(), syscall.SIGKILL)
	<-p.done
}

// exists says whether a process with this number lives.
func exists(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}

// WaitPort waits until something listens on a TCP port in the process's network namespace.
func (p *Process) WaitPort(port int, timeout time.Duration) error {
	end := time.Now().Add(timeout)
	for {
		for _, table := range []string{"tcp", "tcp6"} {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p.Pid(), table))
			if wire.Listening(string(b), port) {
				return nil
			}
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it listened on TCP port %d: %s", p.Argv[0], port, lastLines(p.Stderr()+p.Stdout(), 5))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			return fmt.Errorf("nothing listens on TCP port %d after %v", port, timeout)
		}
	}
}
