package netio

import (
	"errors"
	"testing"
	"time"
)

// Rule: a backend holds maxPorts sockets for other source ports at most. When all
// are in use another port cannot be had; one that was idle gives way.
func TestPortSet(t *testing.T) {
	open := map[uint16]bool{}
	taken := uint16(7)
	p := portSet[uint16]{
		open: func(port uint16) (uint16, error) {
			if port == taken || open[port] {
				return 0, errors.New("taken")
			}
			open[port] = true
			return port, nil
		},
		close: func(port uint16) error { delete(open, port); return nil },
	}
	get := func(now time.Duration, port uint16, want bool) {
		t.Helper()
		if s, ok := p.get(now, port); ok != want || ok && s != port {
			t.Errorf("port %d at %v: socket %d, %t; want %t", port, now, s, ok, want)
		}
	}
	get(0, taken, false)
	taken = 0
	get(portIdle-1, 7, false) // not tried again yet
	get(portIdle, 7, true)
	for i := range maxPorts - 1 {
		get(portIdle, uint16(1000+i), true)
	}
	now := 2*portIdle - 1
	get(now, 2000, false) // none is idle
	for i := range maxPorts - 1 {
		if i != 5 {
			get(now, uint16(1000+i), true)
		}
	}
	get(now, 7, true)
	get(now, 2000, false)
	get(now+1, 2000, true) // in place of 1005
	if open[1005] || len(open) != maxPorts {
		t.Errorf("%d sockets are open; that of the idle port: %t", len(open), open[1005])
	}
	get(now+1, 1005, false)
	if n := testing.AllocsPerRun(100, func() { p.get(now+1, 2000); p.get(now+1, 1005) }); n > 0 {
		t.Errorf("%v allocations per packet", n)
	}
	if err := p.closeAll(); err != nil || len(open) > 0 {
		t.Errorf("closed: %v, %d sockets left", err, len(open))
	}
}
