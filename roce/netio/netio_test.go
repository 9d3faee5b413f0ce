package netio

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
)

// pair is two backends of one kind that reach each other.
type pair struct{ a, b Backend }

// kind is a way to make a pair.
type kind struct {
	name string
	open func(t *testing.T) pair
}

// kinds returns every kind of backend that this machine has.
func kinds() []kind {
	ks := []kind{{"fabric", openFabricPair}, {"fabric6", func(t *testing.T) pair {
		return fabricPair(t, NewFabric(), "[fd00::1]:4791", "[fd00::2]:4791")
	}}, {"faulty-fabric", func(t *testing.T) pair {
		p := openFabricPair(t)
		return pair{
			WithFaults(p.a, FaultConfig{Script: []Fault{{Nth: 1 << 30}, {Direction: Rx, Nth: 1 << 30}}}),
			WithFaults(p.b, FaultConfig{Script: []Fault{{Nth: 1 << 30}, {Direction: Rx, Nth: 1 << 30}}}),
		}
	}}, {"tapped-fabric", func(t *testing.T) pair {
		p := openFabricPair(t)
		return pair{Tap(p.a, new(bytes.Buffer)), Tap(p.b, new(bytes.Buffer))}
	}}}
	for _, v6 := range []bool{false, true} {
		for _, c := range []UDPConfig{{}, {NoGSO: true}, {NoGRO: true}, {NoGSO: true, NoGRO: true}, {Portable: true}} {
			name := "udp4"
			if v6 {
				name = "udp6"
			}
			name += fmt.Sprintf("-gso=%t-gro=%t", !c.NoGSO, !c.NoGRO)
			if c.Portable {
				name = name[:4] + "-portable"
			}
			ks = append(ks, kind{name, func(t *testing.T) pair { return udpPair(t, v6, c) }})
		}
	}
	return ks
}

func openFabricPair(t *testing.T) pair {
	return fabricPair(t, NewFabric(), "10.0.0.1:4791", "10.0.0.2:4791")
}

func fabricPair(t *testing.T, f *Fabric, a, b string) pair {
	t.Helper()
	return closing(t, pair{open(t, f, a), open(t, f, b)})
}

func open(t *testing.T, f *Fabric, addr string) Backend {
	t.Helper()
	b, err := f.Open(netip.MustParseAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// udpPair opens two sockets: on two loopback addresses of this process' own with
// the port 4791 where every such address is local, or on two ports of ::1.
func udpPair(t *testing.T, v6 bool, cfg UDPConfig) pair {
	t.Helper()
	var p pair
	for i, b := range []*Backend{&p.a, &p.b} {
		for try := 0; *b == nil; try++ {
			cfg.Addr = ownAddr(t, i)
			if v6 {
				cfg.Addr = freePort(t, "::1")
			}
			var err error
			// A free port may be taken before we have it.
			if *b, err = ListenUDP(cfg); err != nil && (!v6 || try == 10) {
				t.Fatal(err)
			}
		}
	}
	return closing(t, p)
}

// ownAddr returns loopback address i of this process, so that tests that run at the
// same time do not meet.
func ownAddr(t *testing.T, i int) netip.AddrPort {
	t.Helper()
	if runtime.GOOS != "linux" {
		return freePort(t, "127.0.0.1")
	}
	pid := os.Getpid()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(64 + pid>>8&63), byte(pid), byte(i + 1)}), Port)
}

// freePort returns the address with a port that nobody uses.
func freePort(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)))
	if err != nil {
		t.Skipf("no UDP socket on %s: %v", addr, err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func closing(t *testing.T, p pair) pair {
	t.Cleanup(func() { p.a.Close(); p.b.Close() })
	return p
}

// newPacket returns an unsealed RoCE packet with a recognisable payload.
func newPacket(op ib.Opcode, psn ib.PSN, payload int) []byte {
	n := op.Info().HeaderLen
	b := make([]byte, n+payload+ib.ICRCSize)
	ib.BTH{Opcode: op, PKey: ib.DefaultPKey, DestQP: 0x123456, PSN: psn}.Put(b)
	for i := range payload {
		b[n+i] = byte(int(psn)*7 + i)
	}
	return b
}

// newRun returns a run of segs sealed packets, the last one shorter if there is
// more than one.
func newRun(src, dst netip.AddrPort, segs, payload int, psn ib.PSN) Run {
	r := Run{Dst: dst}
	flow := ib.NewFlow(src, dst)
	for i := range segs {
		n := payload
		if i > 0 && i == segs-1 {
			n = payload / 8 * 4
		}
		p := newPacket(ib.OpRCSendOnly, psn.Add(i), n)
		flow.Seal(uint16(i), p)
		r.Buf = append(r.Buf, p...)
		if i == 0 && segs > 1 {
			r.SegSize = len(p)
		}
	}
	return r
}

// arrived is one received packet.
type arrived struct {
	Received
	id uint16
	ok bool // the ICRC is right, with that ID
}

// collect receives until n packets have come or nothing comes for a while.
func collect(t *testing.T, b Backend, n int) []arrived {
	t.Helper()
	return collectFor(t, b, n, 2*time.Second)
}

func collectFor(t *testing.T, b Backend, n int, patience time.Duration) (out []arrived) {
	t.Helper()
	var dst [8]Received
	for len(out) < n {
		k, err := b.Recv(0, dst[:])
		if err != nil {
			t.Fatal(err)
		}
		for i := range k {
			out = append(out, unpack(&dst[i])...)
		}
		if k == 0 {
			start := time.Now()
			if err := b.Wait(patience, false); err != nil {
				t.Fatal(err)
			}
			if time.Since(start) >= patience {
				break
			}
		}
	}
	return out
}

func unpack(r *Received) (out []arrived) {
	flow := ib.NewFlow(r.Src, r.Dst)
	for i := range r.Segments() {
		p := arrived{Received: *r}
		p.Buf = bytes.Clone(r.Segment(i))
		p.id, p.ok = flow.Recover(p.Buf)
		if r.IDKnown {
			p.id, p.ok = r.ID+uint16(i), flow.Verify(r.ID+uint16(i), p.Buf)
		}
		out = append(out, p)
	}
	return out
}

func eachKind(t *testing.T, f func(t *testing.T, p pair)) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) { f(t, k.open(t)) })
	}
}

// send sends runs, waiting where it has to.
func send(t *testing.T, b Backend, runs ...Run) {
	t.Helper()
	for len(runs) > 0 {
		n, err := b.Send(0, runs)
		runs = runs[n:]
		if err == ErrWouldBlock {
			err = b.Wait(time.Second, true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Rule: segment i of a run travels with the Identification i, a packet alone with
// 0 (wire.md, "The IPv4 Identification"); contents and order stay.
func TestRunsArriveWithTheirIDs(t *testing.T) {
	eachKind(t, func(t *testing.T, p pair) {
		most := p.a.Caps().MaxSegments
		whole := most > 1 // a run stays a run
		if _, faulty := p.a.(*Faulty); faulty {
			whole = false
		}
		for _, segs := range []int{1, 2, 3, 7, 16, 33, 62, 64} {
			for _, payload := range []int{16, 1024, 4096} {
				if payload*segs > 60000 {
					continue
				}
				src, dst := p.a.LocalAddr(), p.b.LocalAddr()
				r := newRun(src, dst, segs, payload, 1000)
				want := bytes.Clone(r.Buf)
				send(t, p.a, r)
				got := collect(t, p.b, segs)
				if len(got) != segs {
					t.Fatalf("%d segments of %d: %d arrived", segs, payload, len(got))
				}
				for i, g := range got {
					w := segment(want, r.SegSize, i)
					id := uint16(0)
					if whole && src.Addr().Is4() || g.IDKnown && whole {
						id = uint16(i)
					}
					if g.Src != src || g.Dst != dst || !g.ok || g.id != id {
						t.Fatalf("%d of %d segments of %d bytes: from %v to %v, ICRC right %t, ID %d, want %d", i, segs, payload, g.Src, g.Dst, g.ok, g.id, id)
					}
					if n := len(w) - ib.ICRCSize; len(g.Buf) != len(w) || !bytes.Equal(g.Buf[:n], w[:n]) {
						t.Fatalf("%d of %d segments of %d bytes: contents differ", i, segs, payload)
					}
				}
			}
		}
	})
}

// Rule: several runs of one Send arrive in order, runs and single packets mixed.
func TestManyRuns(t *testing.T) {
	eachKind(t, func(t *testing.T, p pair) {
		var runs []Run
		psn := ib.PSN(5)
		for i := range 40 {
			segs := 1 + i%5
			runs = append(runs, newRun(p.a.LocalAddr(), p.b.LocalAddr(), segs, 256, psn))
			psn = psn.Add(segs)
		}
		send(t, p.a, runs...)
		want := psn.Sub(5)
		got := collect(t, p.b, want)
		if len(got) != want {
			t.Fatalf("%d packets arrived, want %d", len(got), want)
		}
		for i, g := range got {
			k, bad := ib.Parse(g.Buf)
			if bad != ib.OK || !g.ok || k.PSN() != ib.PSN(5).Add(i) {
				t.Fatalf("packet %d: %v, ICRC right %t, PSN %d", i, bad, g.ok, k.PSN())
			}
		}
		s := p.a.Stats()
		if s[TxPackets] != uint64(want) {
			t.Errorf("tx_packets %d, want %d", s[TxPackets], want)
		}
		if s := p.b.Stats(); s[RxPackets] != uint64(want) || s[RxBytes] == 0 {
			t.Errorf("rx_packets %d, want %d; rx_bytes %d", s[RxPackets], want, s[RxBytes])
		}
	})
}

// Rule: the whole TOS or traffic class, ECN bits included, goes out with each run
// and is told on receipt (RFC 3168; IBTA A17.9.1 for the CNP's own DSCP).
func TestTOS(t *testing.T) {
	eachKind(t, func(t *testing.T, p pair) {
		if !p.b.Caps().ECN {
			t.Skip("this system does not tell the TOS")
		}
		for _, segs := range []int{1, 3} {
			var runs []Run
			tos := []uint8{0, 1, 2, 3, 0xc2, 0x68, 0, 0xff}
			for i, v := range tos {
				r := newRun(p.a.LocalAddr(), p.b.LocalAddr(), segs, 64, ib.PSN(i))
				r.TOS = v
				runs = append(runs, r)
			}
			send(t, p.a, runs...)
			got := collect(t, p.b, segs*len(tos))
			if len(got) != segs*len(tos) {
				t.Fatalf("%d packets", len(got))
			}
			for i, g := range got {
				if g.TOS != tos[i/segs] || !g.ok {
					t.Errorf("sent TOS %#x, received %#x, ICRC right %t", tos[i/segs], g.TOS, g.ok)
				}
			}
		}
	})
}

// Rule: a run leaves from the source port that it was sealed with; when that port
// cannot be had it leaves from the own one with an ICRC that is right for it.
func TestSourcePort(t *testing.T) {
	eachKind(t, func(t *testing.T, p pair) {
		own := p.a.LocalAddr()
		other := netip.AddrPortFrom(own.Addr(), 0xc123)
		cases := []struct {
			name         string
			port         uint16
			sealed, from netip.AddrPort
		}{
			{"own by default", 0, own, own},
			{"own by number", own.Port(), own, own},
			{"another one", other.Port(), other, other},
		}
		if !p.a.Caps().IDKnown { // a real network, where ports are in use
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(own.Addr(), 0)))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			taken := c.LocalAddr().(*net.UDPAddr).AddrPort()
			cases = append(cases, struct {
				name         string
				port         uint16
				sealed, from netip.AddrPort
			}{"one in use", taken.Port(), taken, own})
		}
		for _, c := range cases {
			for _, segs := range []int{1, 4, 1} {
				r := newRun(c.sealed, p.b.LocalAddr(), segs, 64, 1)
				r.SrcPort = c.port
				send(t, p.a, r)
				got := collect(t, p.b, segs)
				if len(got) != segs {
					t.Fatalf("%s: %d packets of %d", c.name, len(got), segs)
				}
				for _, g := range got {
					if g.Src != c.from || !g.ok {
						t.Errorf("%s: from %v, want %v; ICRC right %t", c.name, g.Src, c.from, g.ok)
					}
				}
			}
		}
	})
}

// Rule: Wait returns at its timeout and not before, at once for what is there,
// and for whatever happens while it waits.
func TestWait(t *testing.T) {
	eachKind(t, func(t *testing.T, p pair) {
		wait := func(d time.Duration, write bool) time.Duration {
			t.Helper()
			start := time.Now()
			if err := p.b.Wait(d, write); err != nil {
				t.Fatal(err)
			}
			return time.Since(start)
		}
		for _, d := range []time.Duration{0, time.Nanosecond, 200 * time.Microsecond, 3 * time.Millisecond} {
			if got := wait(d, false); got < d {
				t.Errorf("a wait of %v ended after %v", d, got)
			}
		}
		wait(-1, true) // there is room
		if got := wait(time.Millisecond, false); got < time.Millisecond {
			t.Errorf("after a wait for room, a wait of 1ms ended after %v", got)
		}
		p.b.Wake()
		p.b.Wake()
		wait(-1, false) // or the test hangs
		p.b.Wake()
		wait(Never, false)
		send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 3, 64, 1))
		wait(-1, false)
		wait(-1, false) // it consumes nothing
		if got := collect(t, p.b, 3); len(got) != 3 {
			t.Fatalf("%d packets", len(got))
		}
		// What Recv handed out does not hide what comes after it.
		send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 64, 1))
		var one [1]Received
		for n := 0; n == 0; n, _ = p.b.Recv(0, one[:]) {
			wait(time.Second, false)
		}
		var done sync.WaitGroup
		done.Go(func() {
			time.Sleep(2 * time.Millisecond) // most often the other waits by now; it need not
			send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 64, 1))
		})
		if got := wait(5*time.Second, false); got > 4*time.Second {
			t.Error("a packet that came while another was handed out did not end the wait")
		}
		done.Wait()
		if got := collect(t, p.b, 1); len(got) != 1 {
			t.Fatalf("%d packets", len(got))
		}
		for name, happen := range map[string]func(){
			"wake":   p.b.Wake,
			"packet": func() { send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 64, 1)) },
		} {
			start := make(chan struct{})
			done.Go(func() {
				<-start
				time.Sleep(2 * time.Millisecond) // most often the other waits by now; it need not
				happen()
			})
			close(start)
			if got := wait(5*time.Second, false); got > 4*time.Second {
				t.Errorf("%s: did not end the wait", name)
			}
			done.Wait()
			collectFor(t, p.b, 1, time.Millisecond)
		}
	})
}

// Rule: Close ends a running wait, and afterwards everything says net.ErrClosed.
func TestClose(t *testing.T) {
	eachKind(t, func(t *testing.T, p pair) {
		ended := make(chan error)
		go func() { ended <- p.b.Wait(-1, false) }()
		time.Sleep(2 * time.Millisecond)
		if err := p.b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		_, sendErr := p.b.Send(0, []Run{newRun(p.b.LocalAddr(), p.a.LocalAddr(), 1, 64, 1)})
		_, recvErr := p.b.Recv(0, make([]Received, 1))
		for name, err := range map[string]error{
			"running wait": <-ended, "Wait": p.b.Wait(-1, false), "Wait for room": p.b.Wait(-1, true),
			"Send": sendErr, "Recv": recvErr, "second Close": p.b.Close(),
		} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s after Close: %v", name, err)
			}
		}
		p.b.Wake() // does no harm
		p.b.Stats()
		p.b.Caps()
		// The other one is not disturbed, and the address is free again.
		send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 2, 64, 1))
		if err := p.a.Wait(0, false); err != nil {
			t.Error(err)
		}
	})
}

// Rule: Close may race with everything else.
func TestCloseRaces(t *testing.T) {
	eachKind(t, func(t *testing.T, p pair) {
		var all sync.WaitGroup
		all.Go(func() {
			for p.b.Wait(time.Millisecond, false) == nil {
			}
		})
		all.Go(func() {
			dst := make([]Received, 4)
			for {
				if _, err := p.b.Recv(0, dst); err != nil {
					return
				}
				runs := []Run{newRun(p.b.LocalAddr(), p.a.LocalAddr(), 2, 64, 1), newRun(p.b.LocalAddr(), p.a.LocalAddr(), 2, 64, 1)}
				runs[1].SrcPort = 0xc111
				if _, err := p.b.Send(0, runs); err != nil && err != ErrWouldBlock {
					return
				}
			}
		})
		all.Go(func() {
			for range 100 {
				p.b.Wake()
				p.b.Stats()
			}
		})
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
		p.b.Close()
		all.Wait()
	})
}

// Rule: two devices may use their backends at the same time, each waiting as it
// goes; nothing is lost while receive buffers have room.
func TestTwoDevices(t *testing.T) {
	eachKind(t, func(t *testing.T, p pair) {
		const messages, window = 500, 8
		var failed atomic.Bool
		device := func(own, peer Backend) {
			var dst [8]Received
			sent, got := 0, 0
			for !failed.Load() && (got < messages || sent < messages) {
				if sent < messages && sent < got+window {
					run := []Run{newRun(own.LocalAddr(), peer.LocalAddr(), 1+sent%4, 256, ib.PSN(4*sent))}
					n, err := own.Send(0, run)
					if err != nil && err != ErrWouldBlock {
						t.Error(err)
						failed.Store(true)
					}
					sent += n
					continue
				}
				n, err := own.Recv(0, dst[:])
				if err != nil {
					t.Error(err)
					failed.Store(true)
				}
				for i := range n {
					for _, g := range unpack(&dst[i]) {
						if !g.ok {
							t.Error("a packet is damaged")
						}
						if psns1(g) == 4*got { // the first of message got
							got++
						}
					}
				}
				if n == 0 {
					start := time.Now()
					own.Wait(5*time.Second, false)
					if time.Since(start) > 4*time.Second {
						t.Errorf("stuck: %d sent, %d received", sent, got)
						failed.Store(true)
					}
				}
			}
		}
		var both sync.WaitGroup
		both.Go(func() { device(p.a, p.b) })
		both.Go(func() { device(p.b, p.a) })
		both.Wait()
	})
}

// Rule: the addresses and the port that users take work.
func TestWellKnownPort(t *testing.T) {
	var p pair
	for i, b := range []*Backend{&p.a, &p.b} {
		var err error
		if *b, err = ListenUDP(UDPConfig{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}), 0)}); err != nil {
			t.Skip(err) // in use, or no such address on this system
		}
		defer (*b).Close()
	}
	if p.a.LocalAddr().String() != "127.0.0.1:4791" {
		t.Error(p.a.LocalAddr())
	}
	send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 3, 64, 77))
	// Strangers may send to that address too.
	for got := 0; got < 3; {
		packets := collect(t, p.b, 1)
		if len(packets) == 0 {
			t.Fatalf("%d arrived", got)
		}
		for _, g := range packets {
			if g.Src == p.a.LocalAddr() && g.ok {
				got++
			}
		}
	}
}

// Rule: a full receive buffer drops, and says how much.
func TestReceiveOverflow(t *testing.T) {
	f := NewFabric()
	f.RecvBuffer = 64 << 10
	for name, open := range map[string]func(t *testing.T) pair{
		"fabric":   func(t *testing.T) pair { return fabricPair(t, f, "10.0.0.1:1", "10.0.0.2:1") },
		"udp":      func(t *testing.T) pair { return udpPair(t, false, UDPConfig{RecvBuffer: 1}) },
		"portable": func(t *testing.T) pair { return udpPair(t, false, UDPConfig{RecvBuffer: 1, Portable: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t)
			const n = 2000
			collected := uint64(0)
			for round := range uint64(2) {
				for i := range n {
					send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 1024, ib.PSN(i)))
				}
				got := collectFor(t, p.b, n, 20*time.Millisecond)
				if len(got) == 0 || len(got) == n {
					t.Fatalf("%d of %d arrived", len(got), n)
				}
				// Linux tells with the next packet that arrives.
				send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 1024, 0))
				got = append(got, collect(t, p.b, 1)...)
				for _, g := range got {
					if !g.ok {
						t.Fatal("a packet is damaged")
					}
				}
				collected += uint64(len(got))
				s := p.b.Stats()
				if s[RxPackets] != collected {
					t.Errorf("%d collected, rx_packets %d", collected, s[RxPackets])
				}
				// What the kernel dropped, package net does not tell.
				if want := (round + 1) * (n + 1); collected+s[RxOverflow] != want && name != "portable" {
					t.Errorf("rx_packets %d + rx_overflow %d, sent %d", collected, s[RxOverflow], want)
				}
			}
		})
	}
}

// Rule: what cannot be sent from here is lost and counted by its reason.
func TestLostHere(t *testing.T) {
	f := NewFabric()
	f.MTU = 1500
	p := fabricPair(t, f, "10.0.0.1:1", "10.0.0.2:1")
	far := netip.MustParseAddrPort("10.0.0.9:1")
	six := netip.MustParseAddrPort("[fd00::1]:1")
	send(t, p.a,
		newRun(p.a.LocalAddr(), far, 3, 64, 1), newRun(p.a.LocalAddr(), six, 2, 64, 1),
		newRun(p.a.LocalAddr(), p.b.LocalAddr(), 2, 2048, 1),
		newRun(p.a.LocalAddr(), p.b.LocalAddr(), 65, 64, 1),
		newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 1500-28-16, 1))
	s := p.a.Stats()
	if s[TxUnreachable] != 5 || s[TxTooBig] != 2 || s[TxError] != 65 || s[TxPackets] != 1 {
		t.Errorf("unreachable %d, too big %d, error %d, sent %d", s[TxUnreachable], s[TxTooBig], s[TxError], s[TxPackets])
	}
	if got := collect(t, p.b, 1); len(got) != 1 || !got[0].ok {
		t.Errorf("%d packets arrived", len(got))
	}
}

// Rule: nothing allocates for a packet.
func TestAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	eachKind(t, func(t *testing.T, p pair) {
		runs := []Run{
			newRun(p.a.LocalAddr(), p.b.LocalAddr(), 16, 1024, 1),
			newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 0, 1),
			newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 0, 1),
		}
		runs[0].TOS = 2
		dst := make([]Received, 16)
		each := func() {
			if n, err := p.a.Send(0, runs); n != 3 || err != nil {
				t.Fatal(n, err)
			}
			for got := 0; got < 18; {
				n, err := p.b.Recv(0, dst)
				if err != nil {
					t.Fatal(err)
				}
				for i := range n {
					got += dst[i].Segments()
				}
				if n == 0 {
					p.b.Wait(time.Second, false)
				}
			}
			p.b.Wait(0, false)
			p.b.Wake()
			p.b.Wait(time.Second, false)
			p.b.Wait(10*time.Microsecond, false)
			p.a.Deadline()
			p.a.Caps()
			p.a.Stats()
		}
		for range 20 { // buffers grow to their size
			each()
		}
		limit := 0.0
		if _, tapped := p.a.(*Tapped); tapped {
			limit = 1 // the writer's bytes.Buffer grows beside it
		}
		if n := testing.AllocsPerRun(50, each); n > limit {
			t.Errorf("%v allocations", n)
		}
	})
}

// Rule: an address that cannot be used is refused with the reason.
func TestUnusableAddress(t *testing.T) {
	for addr, want := range map[string]string{
		"0.0.0.0:1": "concrete", "[::]:1": "concrete", "224.0.0.1:1": "unicast", "[ff02::1]:1": "unicast", "255.255.255.255:1": "unicast",
	} {
		for name, open := range map[string]func(netip.AddrPort) (Backend, error){
			"udp":      func(a netip.AddrPort) (Backend, error) { return ListenUDP(UDPConfig{Addr: a}) },
			"portable": func(a netip.AddrPort) (Backend, error) { return ListenUDP(UDPConfig{Addr: a, Portable: true}) },
			"fabric":   NewFabric().Open,
		} {
			wantListenError(t, name+" "+addr, open, addr, want)
		}
	}
	if _, err := ListenUDP(UDPConfig{}); err == nil {
		t.Error("no address: no error")
	}
	f := NewFabric()
	fabricPair(t, f, "10.0.0.1:1", "10.0.0.1:2")
	wantListenError(t, "fabric", f.Open, "10.0.0.1:1", "in use")
}

func wantListenError(t *testing.T, name string, open func(netip.AddrPort) (Backend, error), addr, want string) {
	t.Helper()
	b, err := open(netip.MustParseAddrPort(addr))
	if err == nil {
		b.Close()
	}
	var le *ListenError
	if !errors.As(err, &le) || !bytes.Contains([]byte(err.Error()), []byte(want)) {
		t.Errorf("%s: %v, want a ListenError with %q", name, err, want)
	}
}

// Rule: port 0 is 4791.
func TestDefaultPort(t *testing.T) {
	b := open(t, NewFabric(), "10.0.0.1:0")
	if b.LocalAddr().Port() != 4791 {
		t.Error(b.LocalAddr())
	}
}

// Rule: a fabric gives back what it lent only with the next Recv, and its ring
// neither loses nor damages anything however it is used.
func TestFabricRing(t *testing.T) {
	f := NewFabric()
	f.RecvBuffer = 20000
	p := fabricPair(t, f, "10.0.0.1:1", "10.0.0.2:1")
	rng := rand.New(rand.NewPCG(1, 2))
	sent, received := 0, 0
	var waiting []ib.PSN
	sendSome := func() {
		r := newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1+rng.IntN(4), 4*rng.IntN(600), ib.PSN(sent))
		before := p.b.Stats()[RxOverflow]
		send(t, p.a, r)
		if p.b.Stats()[RxOverflow] == before {
			for i := range r.Segments() {
				waiting = append(waiting, ib.PSN(sent).Add(i))
			}
		}
		sent += r.Segments()
	}
	var dst [5]Received
	for range 20000 {
		if rng.IntN(2) == 0 {
			sendSome()
			continue
		}
		n, err := p.b.Recv(0, dst[:rng.IntN(len(dst)+1)])
		if err != nil {
			t.Fatal(err)
		}
		sendSome() // arrives while the reader still reads
		for i := range n {
			for _, g := range unpack(&dst[i]) {
				k, bad := ib.Parse(g.Buf)
				if bad != ib.OK || !g.ok || k.PSN() != waiting[0] {
					t.Fatalf("packet %d: %v, ICRC right %t, PSN %d, want %d", received, bad, g.ok, k.PSN(), waiting[0])
				}
				waiting = waiting[1:]
				received++
			}
		}
	}
	dropped := int(p.b.Stats()[RxOverflow])
	if received+len(waiting)+dropped != sent || dropped == 0 {
		t.Errorf("sent %d, received %d, waiting %d, dropped %d", sent, received, len(waiting), dropped)
	}
}

// Rule: two runs of the same calls on a fabric give the same.
func TestFabricDeterministic(t *testing.T) {
	run := func() (trace []byte) {
		p := openFabricPair(t)
		p.a = WithFaults(p.a, FaultConfig{Seed: 3, Tx: Faults{Loss: .1, Reorder: .1, Duplicate: .1, Jitter: time.Millisecond}})
		now := time.Duration(0)
		var dst [8]Received
		for i := range 500 {
			p.a.Send(now, []Run{newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1+i%3, 64, ib.PSN(3*i))})
			n, _ := p.b.Recv(now, dst[:])
			for j := range n {
				trace = append(trace, dst[j].Buf...)
			}
			trace = fmt.Appendf(trace, "%d %d;", n, p.a.Deadline())
			now += 100 * time.Microsecond
		}
		return trace
	}
	a, b := run(), run()
	if !bytes.Equal(a, b) {
		t.Error("traces differ")
	}
}
