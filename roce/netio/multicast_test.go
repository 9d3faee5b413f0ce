package netio

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

// ownGroup returns a group of this process' own on loopback, of the IP version of b.
func ownGroup(b Backend, n int) netip.Addr {
	pid := os.Getpid()
	if b.LocalAddr().Addr().Is4() {
		return netip.AddrFrom4([4]byte{239, byte(pid >> 8), byte(pid), byte(n)})
	}
	return netip.AddrFrom16([16]byte{0xff, 0x15, 13: byte(pid >> 8), 14: byte(pid), 15: byte(n)})
}

// Rule: what is sent to a group arrives at those that have joined it, also at the
// sender, with the group as its destination and an ICRC that covers it; before and
// after nothing does, and what is sent to the backend itself still arrives.
func TestMulticast(t *testing.T) {
	eachKind(t, func(t *testing.T, p pair) {
		if a := p.a.LocalAddr().Addr(); a.IsLoopback() && a.Is6() {
			t.Skip("the loopback interface has no IPv6 multicast; see TestVethMulticast")
		}
		testMulticast(t, p)
	})
}

func testMulticast(t *testing.T, p pair) {
	t.Helper()
	group, other := ownGroup(p.b, 1), ownGroup(p.b, 2)
	if err := p.b.Join(group); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := p.b.Join(group); err != nil {
		t.Errorf("joined again: %v", err)
	}
	to := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, p.b.LocalAddr().Port()) }
	arrives := func(b Backend, dst netip.AddrPort, want int) {
		t.Helper()
		for _, segs := range []int{1, 5} {
			send(t, p.a, newRun(p.a.LocalAddr(), dst, segs, 512, 1))
			patience := 2 * time.Second
			if want == 0 {
				patience = 10 * time.Millisecond
			}
			got := collectFor(t, b, max(want*segs, 1), patience)
			if len(got) != want*segs {
				t.Fatalf("to %v: %d packets arrived, want %d", dst, len(got), want*segs)
			}
			for _, g := range got {
				if g.Dst != dst || g.Src != p.a.LocalAddr() || !g.ok {
					t.Errorf("to %v: from %v to %v, ICRC right %t", dst, g.Src, g.Dst, g.ok)
				}
			}
		}
	}
	arrives(p.b, to(group), 1)
	arrives(p.b, p.b.LocalAddr(), 1)
	arrives(p.b, to(other), 0)
	if err := p.b.Join(other); err != nil {
		t.Fatal(err)
	}
	if p.a.LocalAddr().Port() == p.b.LocalAddr().Port() {
		if err := p.a.Join(group); err != nil { // the same group, by another device
			t.Fatal(err)
		}
		arrives(p.a, to(group), 1)
		collect(t, p.b, 6)
		if err := p.a.Leave(group); err != nil {
			t.Error(err)
		}
	}
	arrives(p.b, to(group), 1)
	arrives(p.b, to(other), 1)
	// A wait ends for the group's packets, too.
	woken := make(chan error, 1)
	go func() { woken <- p.b.Wait(5*time.Second, false) }()
	time.Sleep(5 * time.Millisecond)
	start := time.Now()
	send(t, p.a, newRun(p.a.LocalAddr(), to(other), 1, 512, 1))
	if err := <-woken; err != nil || time.Since(start) > 3*time.Second {
		t.Errorf("Wait: %v after %v", err, time.Since(start))
	}
	collect(t, p.b, 1)
	if err := p.b.Leave(group); err != nil {
		t.Error(err)
	}
	if err := p.b.Leave(group); !errors.Is(err, ErrNotJoined) {
		t.Errorf("left again: %v", err)
	}
	arrives(p.b, to(group), 0)
	arrives(p.b, to(other), 1)

	var le *ListenError
	for _, bad := range []netip.Addr{p.a.LocalAddr().Addr(), {}, netip.MustParseAddr(map[bool]string{true: "ff15::1", false: "239.0.0.1"}[group.Is4()])} {
		if err := p.b.Join(bad); !errors.As(err, &le) {
			t.Errorf("joined %v: %v", bad, err)
		}
	}
	p.b.Close()
	if err := p.b.Join(group); !errors.Is(err, net.ErrClosed) {
		t.Errorf("joined after Close: %v", err)
	}
}
