package netio

import (
	"bytes"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
)

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
