package netio

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Rule: what arrives while nobody waits wakes nobody: Go's poller sees nothing happen,
// however the last wait has ended. The next wait sees it.
func TestNobodyWaits(t *testing.T) {
	p := udpPair(t, false, UDPConfig{})
	happened := func() bool {
		fds := []unix.PollFd{{Fd: int32(p.b.(*udp).p.ep), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
	for name, end := range map[string]func(){
		"never begun": func() {},
		"a packet":    func() { send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 64, 1)); p.b.Wait(-1, false) },
		"room":        func() { p.b.Wait(-1, true) },
		"the timeout": func() { p.b.Wait(time.Microsecond, false) },
		"Wake":        func() { p.b.Wake(); p.b.Wait(-1, false) },
		"both": func() {
			send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 64, 1))
			p.b.Wake()
			p.b.Wait(-1, false)
		},
	} {
		end()
		send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 64, 1))
		if happened() {
			t.Errorf("after %s: a packet makes Go's poller look", name)
		}
		start := time.Now()
		if err := p.b.Wait(10*time.Second, false); err != nil || time.Since(start) > 9*time.Second {
			t.Errorf("after %s: the next wait took %v: %v", name, time.Since(start), err)
		}
		for n := 1; n > 0; {
			n, _ = p.b.Recv(0, make([]Received, 8))
		}
	}
}
