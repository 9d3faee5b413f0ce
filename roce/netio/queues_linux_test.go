//go:build linux

package netio

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
)

// queueKinds are the ways to have several queues.
func queueKinds(t *testing.T, f func(t *testing.T, from Backend, to []Backend)) {
	const n = 4
	for _, c := range []struct {
		name string
		open func(t *testing.T) (Backend, []Backend)
	}{
		{"shared", func(t *testing.T) (Backend, []Backend) {
			p := openFabricPair(t)
			return p.a, Queues(p.b, n)
		}},
		{"udp4", func(t *testing.T) (Backend, []Backend) {
			return listenPair(t, ownAddr(t, 0), ownAddr(t, 1), UDPConfig{}, n)
		}},
		{"udp6", func(t *testing.T) (Backend, []Backend) {
			return listenPair(t, freePort(t, "::1"), freePort(t, "::1"), UDPConfig{}, n)
		}},
		{"portable", func(t *testing.T) (Backend, []Backend) {
			return listenPair(t, ownAddr(t, 0), ownAddr(t, 1), UDPConfig{Portable: true}, n)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			from, to := c.open(t)
			f(t, from, to)
			for i, q := range to {
				if err := q.Close(); err != nil {
					t.Errorf("queue %d: %v", i, err)
				}
				if err := q.Close(); !errors.Is(err, net.ErrClosed) {
					t.Errorf("queue %d, closed again: %v", i, err)
				}
				if _, err := q.Recv(0, make([]Received, 1)); !errors.Is(err, net.ErrClosed) {
					t.Errorf("queue %d, Recv after Close: %v", i, err)
				}
				if err := q.Wait(-1, false); !errors.Is(err, net.ErrClosed) {
					t.Errorf("queue %d, Wait after Close: %v", i, err)
				}
			}
		})
	}
}

func listenPair(t *testing.T, a, b netip.AddrPort, cfg UDPConfig, n int) (Backend, []Backend) {
	t.Helper()
	cfg.Addr = a
	from, err := ListenUDP(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { from.Close() })
	cfg.Addr = b
	to, err := ListenQueues(cfg, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, q := range to {
			q.Close()
		}
	})
	return from, to
}

// newRunTo returns a run with a packet for each of some queue pairs, in order.
func newRunTo(src, dst netip.AddrPort, psn int, qpns ...ib.QPN) Run {
	r := Run{Dst: dst}
	flow := ib.NewFlow(src, dst)
	for i, qpn := range qpns {
		p := newPacket(ib.OpRCSendOnly, ib.PSN(psn+i), 64)
		ib.BTH{Opcode: ib.OpRCSendOnly, PKey: ib.DefaultPKey, DestQP: qpn, PSN: ib.PSN(psn + i)}.Put(p)
		flow.Seal(uint16(i), p)
		r.Buf = append(r.Buf, p...)
		r.SegSize = len(p)
	}
	return r
}

// collectQueues polls all queues until n packets have come, or nothing comes for a while.
func collectQueues(t *testing.T, all []Backend, n int) [][]arrived {
	t.Helper()
	got := make([][]arrived, len(all))
	var dst [3]Received
	for end := time.Now().Add(5 * time.Second); n > 0 && time.Now().Before(end); {
		for i, q := range all {
			k, err := q.Recv(0, dst[:])
			if err != nil {
				t.Fatal(err)
			}
			for j := range k {
				got[i] = append(got[i], unpack(&dst[j])...)
				n -= dst[j].Segments()
			}
		}
	}
	return got
}

// Rule: each queue gets the packets to its queue pairs and no others, in order, however
// they were put together on their way. Between what came directly and what another socket
// has received there is no order.
func TestQueues(t *testing.T) {
	queueKinds(t, func(t *testing.T, from Backend, to []Backend) {
		qpns := []ib.QPN{1, 2, 3, 7, 7, 7, 4, 5, 0xfffffe, 6, 6, 10, 11, 0x800001}
		psn, want := 0, make([]int, len(to))
		for first := range qpns { // a run that begins with each of them, and each by itself
			run := append(append([]ib.QPN{}, qpns[first:]...), qpns[:first]...)
			send(t, from, newRunTo(from.LocalAddr(), to[0].LocalAddr(), psn, run...))
			psn += len(run)
			send(t, from, newRunTo(from.LocalAddr(), to[0].LocalAddr(), psn, qpns[first]))
			psn++
			for _, qpn := range append(run, qpns[first]) {
				want[QueueOf(qpn, len(to))]++
			}
		}
		passed := uint64(0)
		for i, got := range collectQueues(t, to, psn) {
			if len(got) != want[i] {
				t.Errorf("queue %d got %d packets, not %d", i, len(got), want[i])
			}
			last := map[ib.QPN]ib.PSN{}
			for _, g := range got {
				p, bad := ib.Parse(g.Buf)
				if bad != ib.OK || !g.ok || g.Src != from.LocalAddr() || g.Dst != to[0].LocalAddr() {
					t.Fatalf("queue %d: %v, ICRC right %t, from %v to %v", i, bad, g.ok, g.Src, g.Dst)
				}
				if QueueOf(p.DestQP(), len(to)) != i {
					t.Fatalf("queue %d got a packet to %v", i, p.DestQP())
				}
				before, ok := last[p.DestQP()]
				if another := int(before)/(len(qpns)+1) != int(p.PSN())/(len(qpns)+1); another && to[0].(*queue).set.shared == nil {
					ok = false
				}
				if ok && p.PSN() <= before {
					t.Fatalf("queue %d: PSN %v to %v after %v", i, p.PSN(), p.DestQP(), before)
				}
				last[p.DestQP()] = p.PSN()
			}
			passed += to[i].Stats()[RxPassed]
		}
		if passed == 0 {
			t.Error("no packet was passed on")
		}
	})
}

// Rule: the kernel chooses the queue by queue pair number (ListenQueues).
func TestQueuesSteer(t *testing.T) {
	from, to := listenPair(t, ownAddr(t, 0), ownAddr(t, 1), UDPConfig{}, 3)
	if steer(to[0].(*queue).be.(*udp).fd, 3) != nil {
		t.Skip("this kernel has no SO_ATTACH_REUSEPORT_CBPF")
	}
	const n = 300
	for i := range n {
		send(t, from, newRunTo(from.LocalAddr(), to[0].LocalAddr(), i, ib.QPN(i*7919)))
	}
	for i, got := range collectQueues(t, to, n) {
		if len(got) < n/4 {
			t.Errorf("queue %d got %d packets of %d", i, len(got), n)
		}
		if s := to[i].Stats(); s[RxPassed] != 0 || s[RxPackets] != uint64(len(got)) {
			t.Errorf("queue %d: %d packets came, %d were passed on", i, s[RxPackets], s[RxPassed])
		}
	}
}

// Rule: a queue that nobody polls costs its own packets, and they are counted; those
// of others arrive.
func TestQueuesOverflow(t *testing.T) {
	queueKinds(t, func(t *testing.T, from Backend, to []Backend) {
		const rounds, run = 800, 32
		mixed := make([]ib.QPN, run)
		for i := range mixed {
			mixed[i] = ib.QPN(4 + i%2*3) // of queue 0, which receives, and 3, where none looks
		}
		mine := 0
		for i := range rounds {
			send(t, from, newRunTo(from.LocalAddr(), to[0].LocalAddr(), i*run, mixed...))
			mine += len(collectQueues(t, to[:1], run/2)[0])
		}
		s := to[3].Stats()
		for end := time.Now().Add(5 * time.Second); s[RxPassed]+s[RxPassDropped] < rounds*run/2 && time.Now().Before(end); s = to[3].Stats() {
			to[0].Recv(0, make([]Received, 1)) // the last packets of the last run
		}
		if mine != rounds*run/2 || s[RxPassDropped] == 0 || s[RxPassed]+s[RxPassDropped] != rounds*run/2 {
			t.Errorf("%d packets of %d came to the first queue; %d were passed on, %d dropped", mine, rounds*run/2, s[RxPassed], s[RxPassDropped])
		}
	})
}

// Rule: whoever waits for a queue is woken by what another has received for it; the
// time of what waits is now.
func TestQueuesWake(t *testing.T) {
	queueKinds(t, func(t *testing.T, from Backend, to []Backend) {
		woken := make(chan error)
		go func() { woken <- to[2].Wait(10*time.Second, false) }()
		send(t, from, newRunTo(from.LocalAddr(), to[0].LocalAddr(), 0, 4, 6))
		for start, waits := time.Now(), true; waits; {
			to[0].Recv(0, make([]Received, 1))
			select {
			case err := <-woken:
				if waits = false; err != nil || time.Since(start) > 9*time.Second {
					t.Errorf("%v after %v", err, time.Since(start))
				}
			default:
			}
		}
		if d := to[2].Deadline(); d != 0 {
			t.Errorf("deadline %v", d)
		}
		if got := collectQueues(t, to[2:3], 1)[0]; len(got) != 1 {
			t.Errorf("%d packets", len(got))
		}
		if d := to[2].Deadline(); d != Never {
			t.Errorf("deadline %v afterwards", d)
		}
	})
}

// Rule: the packets of a group come to the queues that have joined it, to each once.
func TestQueuesMulticast(t *testing.T) {
	f := NewFabric()
	p := fabricPair(t, f, "10.0.0.1:4791", "10.0.0.2:4791")
	to, group := Queues(p.b, 3), netip.MustParseAddr("239.1.2.3")
	r := newRunTo(p.a.LocalAddr(), netip.AddrPortFrom(group, Port), 0, ib.MulticastQPN)
	got := func() string {
		send(t, p.a, r)
		n := [3]int{}
		for range 2 {
			for i, q := range to {
				k, err := q.Recv(0, make([]Received, 8))
				if err != nil {
					t.Fatal(err)
				}
				n[i] += k
			}
		}
		return fmt.Sprint(n)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, "[0 0 0]"},
		{func() { must(to[1].Join(group)); must(to[2].Join(group)); must(to[1].Join(group)) }, "[0 1 1]"},
		{func() { must(to[0].Join(group)) }, "[1 1 1]"},
		{func() { must(to[1].Leave(group)) }, "[1 0 1]"},
		{func() { must(to[0].Leave(group)); must(to[2].Leave(group)) }, "[0 0 0]"},
	} {
		step.do()
		if n := got(); n != step.want {
			t.Errorf("received %s, not %s", n, step.want)
		}
	}
	if err := to[1].Leave(group); !errors.Is(err, ErrNotJoined) {
		t.Errorf("Leave of what was left: %v", err)
	}
}

// Rule: the address of several sockets is taken for all others, like that of one.
func TestQueuesKeepTheAddress(t *testing.T) {
	_, to := listenPair(t, ownAddr(t, 0), ownAddr(t, 1), UDPConfig{}, 2)
	cfg := UDPConfig{Addr: to[0].LocalAddr()}
	var taken *ListenError
	if _, err := ListenQueues(cfg, 2); !errors.As(err, &taken) {
		t.Errorf("two sockets more: %v", err)
	}
	if _, err := ListenUDP(cfg); !errors.As(err, &taken) {
		t.Errorf("one socket more: %v", err)
	}
	for _, q := range to {
		q.Close()
	}
	again, err := ListenQueues(cfg, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range again {
		q.Close()
	}
}

// Rule: two queues may send from one source port.
func TestQueuesSourcePort(t *testing.T) {
	sink, to := listenPair(t, ownAddr(t, 0), ownAddr(t, 1), UDPConfig{}, 2)
	port := freePort(t, "127.0.0.1").Port()
	for _, q := range to {
		r := newRunTo(netip.AddrPortFrom(q.LocalAddr().Addr(), port), sink.LocalAddr(), 0, 7)
		r.SrcPort = port
		send(t, q, r)
		if got := collect(t, sink, 1); len(got) != 1 || got[0].Src.Port() != port || !got[0].ok {
			t.Errorf("received %+v", got)
		}
		if n := q.Stats()[TxPortFailed]; n != 0 {
			t.Errorf("tx_port_failed %d", n)
		}
	}
}
