package netio

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
)

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

// Rule: a run that is delivered is received as if its source had sent it, which is no
// end of the fabric here; nobody at the address is told.
func TestFabricDeliver(t *testing.T) {
	f := NewFabric()
	p := fabricPair(t, f, "10.0.0.1:1", "10.0.0.2:1")
	src := netip.MustParseAddrPort("10.9.9.9:77")
	r := newRun(src, p.b.LocalAddr(), 2, 100, 5)
	r.TOS = 3
	if !f.Deliver(p.b.LocalAddr(), src, &r) || f.Deliver(src, src, &r) {
		t.Error("Deliver is wrong about who there is")
	}
	var dst [2]Received
	n, err := p.b.Recv(0, dst[:])
	if n != 1 || err != nil || dst[0].Src != src || dst[0].TOS != 3 || dst[0].Segments() != 2 || !bytes.Equal(dst[0].Buf, r.Buf) {
		t.Errorf("received %d runs, %v: %+v", n, err, dst[0])
	}
}
