package network

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }

// end is a host with its backend, and what it has received when.
type end struct {
	*Host
	netio.Backend
	log []string
}

func (e *end) Close() error { return e.Backend.Close() }

// star is a number of hosts around one switch.
type star struct {
	t    *testing.T
	n    *Network
	sw   *Switch
	link []*Link
	ends []*end
}

func newStar(t *testing.T, hosts int, sc SwitchConfig, lc LinkConfig) *star {
	s := &star{t: t, n: New(1, netio.NewFabric())}
	s.sw = s.n.Switch(sc)
	for i := range hosts {
		h := s.n.Host(addr(i + 1))
		s.link = append(s.link, s.n.Link(h, s.sw, lc))
		be, err := h.Open()
		must(t, err)
		s.ends = append(s.ends, &end{Host: h, Backend: be})
	}
	return s
}

// frame is a packet that is a frame of n bytes; its first byte is what log has of it.
func frame(n int, first byte) []byte {
	b := make([]byte, n-46)
	b[0] = first
	return b
}

// send sends packets from one host to another.
func (s *star) send(from, to int, tos uint8, packets ...[]byte) error {
	var runs []netio.Run
	for _, b := range packets {
		runs = append(runs, netio.Run{Dst: netip.AddrPortFrom(addr(to+1), netio.Port), TOS: tos, Buf: b})
	}
	_, err := s.ends[from].Send(s.n.Now(), runs)
	return err
}

// run lets time pass until nothing is due, and notes what arrives.
func (s *star) run() {
	var got [8]netio.Received
	for s.n.Next() != netio.Never {
		s.n.Advance(s.n.Next())
		for _, e := range s.ends {
			k, err := e.Recv(s.n.Now(), got[:])
			must(s.t, err)
			for _, r := range got[:k] {
				e.log = append(e.log, fmt.Sprintf("%v %d from %d tos %d", s.n.Now(), r.Buf[0], r.Src.Addr().As4()[3], r.TOS))
			}
		}
	}
	must(s.t, s.n.Idle())
}

func (s *star) want(host int, lines ...string) {
	s.t.Helper()
	if got := strings.Join(s.ends[host].log, "\n"); got != strings.Join(lines, "\n") {
		s.t.Errorf("host %d received\n%s\nwant\n%s", host, got, strings.Join(lines, "\n"))
	}
}

// A packet takes its length over the rate, with 20 bytes of preamble and gap, and the
// delay, on each link; the next follows when it has left.
func TestTimes(t *testing.T) {
	s := newStar(t, 2, SwitchConfig{}, LinkConfig{Rate: 10e9, Delay: 5 * time.Microsecond})
	must(t, s.send(0, 1, 0, frame(980, 1), frame(980, 2), frame(105, 3)))
	s.run()
	// 1000 bytes are 800 ns at 10 Gb/s, 125 bytes 100 ns.
	s.want(1, "11.6µs 1 from 1 tos 0", "12.4µs 2 from 1 tos 0", "12.5µs 3 from 1 tos 0")
	if p := s.link[0].Ports[0]; p.Packets != 3 || p.Bytes != 2125 || p.Longest != 2*980+105 {
		t.Errorf("the port has counted %+v", p.PortStats)
	}
}

// Fractions of a nanosecond are not lost: 1000 packets of 84 bytes at 100 Gb/s take
// 6.72 us, not 1000 times 7 ns.
func TestFractions(t *testing.T) {
	s := newStar(t, 2, SwitchConfig{}, LinkConfig{Rate: 100e9})
	for range 1000 {
		must(t, s.send(0, 1, 0, frame(64, 1)))
	}
	s.run()
	if log := s.ends[1].log; len(log) != 1000 || !strings.HasPrefix(log[999], "6.727µs") { // and 6.72 ns of the second link
		t.Errorf("%d packets, the last: %s", len(log), log[len(log)-1])
	}
}

// Two senders share the port of a receiver; what finds no room in its queue is lost.
func TestQueue(t *testing.T) {
	s := newStar(t, 3, SwitchConfig{}, LinkConfig{Rate: 10e9, Queue: 3000})
	for i := range 2 {
		must(t, s.send(i, 2, 0, frame(980, 1), frame(980, 2), frame(980, 3)))
	}
	s.run()
	if out := s.link[2].Ports[1]; out.Packets+out.Dropped != 6 || out.Dropped != 1 || out.Longest > 3000 {
		t.Errorf("%+v", out.PortStats)
	}
	if err := s.send(0, 2, 0, frame(980, 1), frame(980, 2), frame(980, 3), frame(980, 4)); err != netio.ErrWouldBlock {
		t.Errorf("a host with a full queue: %v", err)
	}
	s.ends[0].Ready()
	s.n.Advance(s.n.Next())
	if s.ends[0].Ready() {
		t.Error("the host shall go on, with two of three packets in its queue")
	}
	s.n.Advance(s.n.Next())
	s.n.Advance(s.n.Next())
	if !s.ends[0].Ready() || s.ends[0].Ready() {
		t.Error("the host is not told once that there is room")
	}
	s.run()
}

// RED marks nothing below Kmin, everything above Kmax, a share between them, and only
// what is ECN-capable.
func TestRED(t *testing.T) {
	for _, c := range []struct {
		waiting   int // packets in the queue before
		tos       uint8
		low, high int // of 1000 packets
	}{
		{0, 2, 0, 0}, {10, 2, 0, 0}, {15, 2, 60, 140}, {21, 2, 1000, 1000}, {21, 1, 1000, 1000}, {21, 0, 0, 0}, {21, 3, 0, 0},
	} {
		s := newStar(t, 1, SwitchConfig{RED: RED{Kmin: 10_000, Kmax: 20_000, Pmax: 0.2}}, LinkConfig{})
		out := s.link[0].Ports[1]
		out.busy = true // nothing leaves
		for range c.waiting {
			out.push(s.n.newPacket(s.ends[0].addr, s.ends[0].addr, c.tos, frame(1000, 1)))
		}
		for range 1000 {
			s.sw.forward(out, out, s.n.newPacket(s.ends[0].addr, s.ends[0].addr, c.tos, frame(1000, 1)))
			q := &out.queues[data]
			q.bytes -= q.k[len(q.k)-1].size
			q.k = q.k[:len(q.k)-1]
		}
		if out.Marked < c.low || out.Marked > c.high {
			t.Errorf("%d bytes wait, ECN %d: %d of 1000 are marked, want %d to %d", 1000*c.waiting, c.tos, out.Marked, c.low, c.high)
		}
	}
}

// With PFC a sender is told to stop before the switch would have to drop, and to go on.
// Another that goes elsewhere is not.
func TestPFC(t *testing.T) {
	s := newStar(t, 4, SwitchConfig{Buffer: 40_000, Pause: 10_000, Resume: 5_000}, LinkConfig{Rate: 10e9, Delay: time.Microsecond})
	for range 100 {
		must(t, s.send(0, 3, 0, frame(980, 1)))
		must(t, s.send(1, 3, 0, frame(980, 2)))
		must(t, s.send(2, 1, 0, frame(980, 3)))
	}
	s.run()
	if n := len(s.ends[3].log); n != 200 {
		t.Errorf("%d of 200 packets came", n)
	}
	for i, pauses := range []bool{true, true, false} {
		if p := s.link[i].Ports[0]; (p.Pauses > 0) != pauses || (p.Paused > 0) != pauses {
			t.Errorf("host %d was told to pause %d times, for %v", i, p.Pauses, p.Paused)
		}
	}
	if out := s.link[3].Ports[1]; out.Dropped > 0 || s.sw.Longest > 30_000 {
		t.Errorf("%d dropped, at most %d bytes held", out.Dropped, s.sw.Longest)
	}
	// Without, the shared buffer overflows.
	s = newStar(t, 3, SwitchConfig{Buffer: 40_000}, LinkConfig{Rate: 10e9, Delay: time.Microsecond})
	for range 100 {
		must(t, s.send(0, 2, 0, frame(980, 1)))
		must(t, s.send(1, 2, 0, frame(980, 2)))
	}
	s.run()
	if out := s.link[2].Ports[1]; out.Dropped < 50 || s.sw.Longest > 40_000 {
		t.Errorf("%d dropped, at most %d bytes held", out.Dropped, s.sw.Longest)
	}
}

// CNPs overtake data that waits, find room when there is none, and are not held back
// by PFC.
func TestCNPsGoFirst(t *testing.T) {
	cnp := frame(106, byte(ib.OpCNP))
	full := newStar(t, 1, SwitchConfig{Buffer: 50}, LinkConfig{Queue: 50})
	out := full.link[0].Ports[1]
	for _, tos := range []uint8{0, cnpDSCP << 2} {
		full.sw.forward(out, out, full.n.newPacket(full.ends[0].addr, full.ends[0].addr, tos, cnp))
	}
	if out.Dropped != 1 || out.Queue() != 106 {
		t.Errorf("in a full switch: %d dropped, %d bytes wait", out.Dropped, out.Queue())
	}
	s := newStar(t, 2, SwitchConfig{}, LinkConfig{Rate: 10e9})
	for range 5 {
		must(t, s.send(0, 1, 2, frame(980, 1)))
	}
	must(t, s.send(0, 1, cnpDSCP<<2|2, cnp))
	s.run()
	if got := s.ends[1].log[1]; !strings.Contains(got, fmt.Sprint(" ", byte(ib.OpCNP), " from")) {
		t.Errorf("behind the first data packet comes %q, want the CNP", got)
	}
	s.link[0].Ports[0].pause(true)
	must(t, s.send(0, 1, cnpDSCP<<2|2, cnp))
	must(t, s.send(0, 1, 0, frame(980, 7)))
	for s.n.Next() != netio.Never {
		s.n.Advance(s.n.Next())
	}
	if p := s.link[0].Ports[0]; p.Packets != 7 || p.Queue() != 980 {
		t.Errorf("while it is paused: %d packets sent, %d bytes wait", p.Packets, p.Queue())
	}
}

// A cut link loses what is on it and what comes; one way if only one way is cut.
func TestCut(t *testing.T) {
	s := newStar(t, 2, SwitchConfig{}, LinkConfig{Rate: 10e9, Delay: 10 * time.Microsecond})
	must(t, s.send(0, 1, 0, frame(980, 1)))
	s.n.At(5*time.Microsecond, func() { s.link[0].Cut(true, false) })
	s.n.At(20*time.Microsecond, func() { must(t, s.send(0, 1, 0, frame(980, 2))) })
	s.n.At(20*time.Microsecond, func() { must(t, s.send(1, 0, 0, frame(980, 3))) })
	s.n.At(50*time.Microsecond, func() { s.link[0].Cut(false, false) })
	s.n.At(60*time.Microsecond, func() { must(t, s.send(0, 1, 0, frame(980, 4))) })
	s.run()
	s.want(1, "81.6µs 4 from 1 tos 0")
	s.want(0, "41.6µs 3 from 2 tos 0")
	if p := s.link[0].Ports[0]; p.PortStats.Cut != 2 {
		t.Errorf("%d packets lost by the cut", p.PortStats.Cut)
	}
}

// A chain of switches finds its way; a packet for nobody is counted.
func TestRoutes(t *testing.T) {
	n := New(1, netio.NewFabric())
	a, b := n.Host(addr(1)), n.Host(addr(2))
	var sw [4]*Switch
	for i := range sw {
		sw[i] = n.Switch(SwitchConfig{})
	}
	lc := LinkConfig{Delay: time.Microsecond}
	n.Link(a, sw[0], lc)
	n.Link(sw[0], sw[1], lc)
	n.Link(sw[1], sw[2], lc)
	n.Link(sw[0], sw[3], lc) // the shorter way
	n.Link(sw[3], b, lc)
	n.Link(sw[2], sw[3], lc)
	ba, err := a.Open()
	must(t, err)
	bb, err := b.Open()
	must(t, err)
	ba.Send(0, []netio.Run{{Dst: netip.AddrPortFrom(addr(2), netio.Port), Buf: frame(100, 1)}})
	var got [1]netio.Received
	for _, c := range []struct {
		at   time.Duration
		want int
	}{{3*time.Microsecond - 1, 0}, {3 * time.Microsecond, 1}} {
		n.Advance(c.at)
		if k, err := bb.Recv(c.at, got[:]); k != c.want || err != nil {
			t.Errorf("at %v: %d packets, %v", c.at, k, err)
		}
	}
	k, err := ba.Send(0, []netio.Run{{Dst: netip.AddrPortFrom(addr(9), netio.Port), Buf: frame(100, 1)}})
	if k != 1 || err != nil || ba.Stats()[netio.TxUnreachable] != 1 {
		t.Errorf("to nobody: %d, %v, %d unreachable", k, err, ba.Stats()[netio.TxUnreachable])
	}
}

// Who has joined a group receives what is sent to it, once, the sender too; until it
// has left, or its backend is closed.
func TestMulticast(t *testing.T) {
	s := newStar(t, 4, SwitchConfig{}, LinkConfig{})
	group := netip.MustParseAddr("239.1.2.3")
	for _, i := range []int{0, 1, 2} {
		must(t, s.ends[i].Join(group))
		must(t, s.ends[i].Join(group))
	}
	must(t, s.ends[2].Leave(group))
	_, err := s.ends[0].Send(0, []netio.Run{{Dst: netip.AddrPortFrom(group, netio.Port), Buf: frame(100, 5)}})
	must(t, err)
	s.run()
	for i, want := range []int{1, 1, 0, 0} {
		if got := len(s.ends[i].log); got != want {
			t.Errorf("host %d received it %d times, want %d", i, got, want)
		}
	}
	must(t, s.ends[1].Close())
	if n := len(s.n.groups[group]); n != 1 {
		t.Errorf("%d members when one is left", n)
	}
}

// A host that is opened anew receives what was under way to the one before.
func TestReopen(t *testing.T) {
	s := newStar(t, 2, SwitchConfig{}, LinkConfig{Delay: time.Microsecond})
	must(t, s.send(0, 1, 0, frame(100, 1)))
	must(t, s.ends[1].Close())
	be, err := s.ends[1].Host.Open()
	must(t, err)
	s.ends[1].Backend = be
	s.run()
	s.want(1, "2µs 1 from 1 tos 0")
}

// Runs are taken apart, and each packet is sealed to travel alone.
func TestRuns(t *testing.T) {
	s := newStar(t, 2, SwitchConfig{}, LinkConfig{})
	buf, dst := make([]byte, 2*64), netip.AddrPortFrom(addr(2), netio.Port)
	flow := ib.NewFlow(s.ends[0].LocalAddr(), dst)
	for i := range 2 {
		ib.BTH{Opcode: ib.OpRCSendOnly, PKey: ib.DefaultPKey, DestQP: 5, PSN: ib.PSN(i)}.Put(buf[64*i:])
		flow.Seal(uint16(i), buf[64*i:][:64])
	}
	_, err := s.ends[0].Send(0, []netio.Run{{Dst: dst, SegSize: 64, Buf: buf}})
	must(t, err)
	s.n.Advance(0)
	var got [4]netio.Received
	k, err := s.ends[1].Recv(0, got[:])
	must(t, err)
	if k != 2 {
		t.Fatalf("%d packets, want 2", k)
	}
	for i := range 2 {
		alone := append([]byte(nil), got[i].Buf...)
		if flow.Seal(0, alone); string(alone) != string(got[i].Buf) {
			t.Errorf("packet %d is not sealed for itself", i)
		}
	}
}
