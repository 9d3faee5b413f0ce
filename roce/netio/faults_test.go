package netio

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
)

// sink is a backend that keeps what is sent and delivers what it is given.
type sink struct {
	Backend           // of a fabric, for what is not interesting here
	sent    []arrived // Src is where the run said it came from
	times   []time.Duration
	deliver []Received
	refuse  int // Sends to answer with ErrWouldBlock
}

func newSink(t *testing.T) *sink {
	return &sink{Backend: open(t, NewFabric(), "10.0.0.1:4791")}
}

func (s *sink) Send(now time.Duration, runs []Run) (int, error) {
	for i := range runs {
		if s.refuse > 0 && i == len(runs)/2 {
			s.refuse--
			return i, ErrWouldBlock
		}
		r := &runs[i]
		rcv := Received{Src: s.LocalAddr(), Dst: r.Dst, TOS: r.TOS, SegSize: r.SegSize, Buf: r.Buf, IDKnown: true}
		for _, a := range unpack(&rcv) {
			s.sent = append(s.sent, a)
			s.times = append(s.times, now)
		}
	}
	return len(runs), nil
}

func (s *sink) Recv(_ time.Duration, dst []Received) (int, error) {
	n := copy(dst, s.deliver)
	s.deliver = s.deliver[n:]
	return n, nil
}

var sinkPeer = netip.MustParseAddrPort("10.0.0.2:4791")

func (s *sink) run(segs, payload int, psn ib.PSN) Run {
	return newRun(s.LocalAddr(), sinkPeer, segs, payload, psn)
}

// psns lists the PSNs in what was sent.
func psns(packets []arrived) (out []int) {
	for i := range packets {
		out = append(out, int(binary.BigEndian.Uint32(packets[i].Buf[8:])&0xffffff))
	}
	return out
}

// pump sends n packets numbered from 0, one per call, step apart, then lets all
// held ones out.
func pump(t *testing.T, f *Faulty, s *sink, n int, step time.Duration) {
	t.Helper()
	now := time.Duration(0)
	for i := range n {
		if _, err := f.Send(now, []Run{s.run(1, 16, ib.PSN(i))}); err != nil {
			t.Fatal(err)
		}
		now += step
	}
	drain(t, f, now)
}

// drain goes from deadline to deadline until nothing is held.
func drain(t *testing.T, f *Faulty, now time.Duration) {
	t.Helper()
	for d := f.Deadline(); d != Never; d = f.Deadline() {
		if d <= now && d != 0 {
			d = now
		}
		now = max(now, d)
		if _, err := f.Recv(now, nil); err != nil {
			t.Fatal(err)
		}
		if f.Deadline() <= now {
			t.Fatalf("at %v the deadline is still %v", now, f.Deadline())
		}
	}
}

// within checks a count against a binomial distribution, five sigma.
func within(t *testing.T, name string, got uint64, n int, p float64) {
	t.Helper()
	mean := float64(n) * p
	if sigma := math.Sqrt(mean * (1 - p)); math.Abs(float64(got)-mean) > 5*sigma {
		t.Errorf("%s: %d of %d, want about %.0f", name, got, n, mean)
	}
}

// Rule: each fault hits each packet with its probability, independently, and what
// comes out is what went in less the lost and plus the duplicated.
func TestFaultStatistics(t *testing.T) {
	n := 100_000
	if raceEnabled {
		n = 20_000
	}
	s := newSink(t)
	f := WithFaults(s, FaultConfig{Seed: 42, Tx: Faults{
		Loss: .02, Duplicate: .03, Reorder: .05, Corrupt: .01, CE: .1, Delay: time.Microsecond, Jitter: 30 * time.Microsecond,
	}})
	pump(t, f, s, n, time.Microsecond)
	st := f.Stats()
	kept := n - int(st[FaultDrop])
	within(t, "dropped", st[FaultDrop], n, .02)
	within(t, "duplicated", st[FaultDuplicate], kept, .03)
	within(t, "reordered", st[FaultReorder], kept+int(st[FaultDuplicate]), .05)
	within(t, "damaged", st[FaultCorrupt], kept, .01)
	within(t, "CE", st[FaultCE], kept, .1)
	if got, want := len(s.sent), kept+int(st[FaultDuplicate]); got != want {
		t.Errorf("%d came out, want %d", got, want)
	}
	bad, ce, wrong := 0, 0, uint64(0)
	for _, p := range s.sent {
		if !p.ok {
			bad++
		}
		if p.TOS&3 == 3 {
			ce++
		}
	}
	for i, p := range psns(s.sent) {
		if i > 0 && p < psns1(s.sent[i-1]) && s.sent[i].ok && s.sent[i-1].ok {
			wrong++
		}
	}
	if bad < int(st[FaultCorrupt]) || bad > int(st[FaultCorrupt]+st[FaultDuplicate]) {
		t.Errorf("%d with a wrong ICRC, %d damaged", bad, st[FaultCorrupt])
	}
	if ce < int(st[FaultCE]) || ce > int(st[FaultCE]+st[FaultDuplicate]) {
		t.Errorf("%d with CE, %d marked", ce, st[FaultCE])
	}
	if wrong == 0 {
		t.Error("jitter and reordering changed no order")
	}
	if st[FaultOverflow] != 0 {
		t.Errorf("%d too many were held", st[FaultOverflow])
	}
}

func psns1(p arrived) int { return psns([]arrived{p})[0] }

// Rule: the same seed gives the same faults, another one others, also when packets
// come in other batches; the random faults of one kind do not depend on another's.
func TestFaultReplay(t *testing.T) {
	all := Faults{Loss: .05, Duplicate: .05, Reorder: .05, Corrupt: .05, CE: .05, Jitter: 20 * time.Microsecond}
	trace := func(seed uint64, faults Faults, batch int) uint64 {
		s := newSink(t)
		f := WithFaults(s, FaultConfig{Seed: seed, Tx: faults})
		for i := 0; i < 2400; i += batch {
			f.Send(time.Duration(i)*time.Microsecond, []Run{s.run(batch, 64, ib.PSN(i))})
		}
		drain(t, f, 2400*time.Microsecond)
		h := fnv.New64a()
		for i, p := range s.sent {
			h.Write(p.Buf)
			fmt.Fprint(h, p.TOS, s.times[i])
		}
		return h.Sum64()
	}
	first, second := trace(1, all, 1), trace(1, all, 1)
	if first != second {
		t.Error("the same seed, but not the same packets")
	}
	if first == trace(2, all, 1) {
		t.Error("another seed, but the same packets")
	}
	lost := func(faults Faults, batch int) (out []int) {
		s := newSink(t)
		f := WithFaults(s, FaultConfig{Seed: 7, Tx: faults})
		for i := 0; i < 2400; i += batch {
			f.Send(0, []Run{s.run(batch, 64, ib.PSN(i))})
		}
		drain(t, f, 0)
		here := make(map[int]bool)
		for _, p := range psns(s.sent) {
			here[p] = true
		}
		for i := range 2400 {
			if !here[i] {
				out = append(out, i)
			}
		}
		return out
	}
	want := lost(Faults{Loss: .05}, 1)
	if len(want) == 0 {
		t.Fatal("nothing lost")
	}
	for name, got := range map[string][]int{
		"batches of 12": lost(Faults{Loss: .05}, 12), "with duplication": lost(Faults{Loss: .05, Duplicate: .3, Jitter: 5}, 1),
	} {
		if !slices.Equal(got, want) {
			t.Errorf("%s: lost others: %v, want %v", name, got, want)
		}
	}
}

// Rule: a scripted fault hits the k-th packet that matches, and only that.
func TestFaultScript(t *testing.T) {
	acks := OfKind(ib.KindAck, ib.KindAtomicAck)
	for _, c := range []struct {
		name  string
		fault Fault
		want  []int // PSNs in the order they come out
	}{
		{"drop the 2nd", Fault{Nth: 2}, []int{0, 2, 3, 4, 5}},
		{"drop two from the 2nd", Fault{Nth: 2, Count: 2}, []int{0, 3, 4, 5}},
		{"drop every one", Fault{}, nil},
		{"drop the 1st ACK", Fault{Match: acks, Nth: 1}, []int{0, 2, 3, 4, 5}},
		{"drop the 2nd ACK", Fault{Match: acks, Nth: 2}, []int{0, 1, 2, 4, 5}},
		{"drop every ACK", Fault{Match: acks}, []int{0, 2, 4}},
		{"drop the 4th ACK, there is none", Fault{Match: acks, Nth: 4}, []int{0, 1, 2, 3, 4, 5}},
		{"drop a READ request, there is none", Fault{Match: OfKind(ib.KindReadRequest)}, []int{0, 1, 2, 3, 4, 5}},
		{"duplicate the 3rd", Fault{Nth: 3, Action: Duplicate}, []int{0, 1, 2, 2, 3, 4, 5}},
		{"delay the 1st beyond two others", Fault{Nth: 1, Action: Delay, Delay: 25 * time.Microsecond}, []int{1, 2, 0, 3, 4, 5}},
		{"delay the last", Fault{Nth: 6, Action: Delay, Delay: time.Second}, []int{0, 1, 2, 3, 4, 5}},
	} {
		for _, dir := range []Direction{Tx, Rx} {
			t.Run(fmt.Sprintf("%s-%d", c.name, dir), func(t *testing.T) {
				c.fault.Direction = dir
				got := scriptRun(t, c.fault)
				if !slices.Equal(psns(got), c.want) {
					t.Errorf("came out: %v, want %v", psns(got), c.want)
				}
				for _, p := range got {
					if !p.ok || p.TOS != 0 {
						t.Errorf("PSN %d: ICRC right %t, TOS %d", psns1(p), p.ok, p.TOS)
					}
				}
			})
		}
	}
	for _, dir := range []Direction{Tx, Rx} {
		for i, p := range scriptRun(t, Fault{Direction: dir, Nth: 3, Action: Corrupt}) {
			if p.ok == (i == 2) {
				t.Errorf("direction %d: packet %d, the 3rd damaged: ICRC right %t", dir, i, p.ok)
			}
		}
		for i, p := range scriptRun(t, Fault{Direction: dir, Nth: 3, Action: MarkCE}) {
			if (p.TOS == 3) != (i == 2) || !p.ok {
				t.Errorf("direction %d: packet %d, the 3rd marked: TOS %d, ICRC right %t", dir, i, p.TOS, p.ok)
			}
		}
		edit := func(b []byte) { b[10] = 1 } // PSN + 256
		for i, p := range scriptRun(t, Fault{Direction: dir, Nth: 3, Action: Edit, Edit: edit}) {
			want := i
			if i == 2 {
				want += 256
			}
			if got := psns1(p); got != want || !p.ok {
				t.Errorf("direction %d: packet %d, the 3rd changed: PSN %d, ICRC right %t", dir, i, got, p.ok)
			}
		}
	}
}

// scriptRun passes six packets, 10 us apart, through one fault; those with odd PSNs
// are ACKs.
func scriptRun(t *testing.T, fault Fault) []arrived {
	s := newSink(t)
	f := WithFaults(s, FaultConfig{Script: []Fault{fault}})
	now := time.Duration(0)
	var got []arrived
	var dst [4]Received
	recv := func() {
		n, _ := f.Recv(now, dst[:])
		for i := range n {
			got = append(got, unpack(&dst[i])...)
		}
	}
	for i := range 6 {
		op := ib.OpRCSendOnly
		if i%2 == 1 {
			op = ib.OpRCAck
		}
		p := newPacket(op, ib.PSN(i), 0)
		src, dst := s.LocalAddr(), sinkPeer
		if fault.Direction == Rx {
			src, dst = dst, src
		}
		flow := ib.NewFlow(src, dst)
		flow.Seal(0, p)
		if fault.Direction == Rx {
			s.deliver = append(s.deliver, Received{Src: src, Dst: dst, Buf: p, IDKnown: true})
			recv()
		} else {
			f.Send(now, []Run{{Dst: dst, Buf: p}})
		}
		now += 10 * time.Microsecond
	}
	for f.Deadline() != Never {
		now = max(now, f.Deadline())
		recv()
	}
	if fault.Direction == Tx {
		return s.sent
	}
	return got
}

// overtakings counts of all packets by how many later ones each was overtaken.
func overtakings(psns []int) map[int]int {
	at, counts := make(map[int]int), make(map[int]int)
	for i, p := range psns {
		at[p] = i
	}
	for p, i := range at {
		n := 0
		for q := p + 1; q < p+40; q++ {
			if j, ok := at[q]; ok && j < i {
				n++
			}
		}
		counts[n]++
	}
	return counts
}

// Rule: with ReorderTo it is any number from ReorderBy on.
func TestReorderRange(t *testing.T) {
	s := newSink(t)
	f := WithFaults(s, FaultConfig{Seed: 5, Tx: Faults{Reorder: .005, ReorderBy: 3, ReorderTo: 6}})
	pump(t, f, s, 6000, 0)
	got := overtakings(psns(s.sent))
	for n, count := range got {
		if n != 0 && (n < 3 || n > 6) {
			t.Errorf("%d packets were overtaken by %d", count, n)
		}
	}
	for n := 3; n <= 6; n++ {
		if got[n] == 0 {
			t.Errorf("no packet was overtaken by %d: %v", n, got)
		}
	}
}

// Rule: a reordered packet is overtaken by ReorderBy others, or comes when
// ReorderMax has passed.
func TestReorder(t *testing.T) {
	for _, by := range []int{0, 1, 2, 7} {
		s := newSink(t)
		f := WithFaults(s, FaultConfig{Seed: 5, Tx: Faults{Reorder: .02, ReorderBy: by}})
		pump(t, f, s, 3000, 0)
		if by == 0 {
			by = defReorderBy
		}
		out := psns(s.sent)
		got := overtakings(out)
		for n, count := range got {
			if n > by {
				t.Errorf("ReorderBy %d: %d packets were overtaken by %d", by, count, n)
			}
		}
		if len(out) != 3000 || got[by] < 20 {
			t.Errorf("ReorderBy %d: %d came out, %d of them overtaken by so many", by, len(out), got[by])
		}
	}
	s := newSink(t)
	f := WithFaults(s, FaultConfig{Tx: Faults{Reorder: 1, ReorderMax: 300 * time.Microsecond}})
	f.Send(time.Millisecond, []Run{s.run(1, 64, 9)})
	if d := f.Deadline(); d != 1300*time.Microsecond {
		t.Fatalf("deadline %v", d)
	}
	f.Recv(1299*time.Microsecond, nil)
	if len(s.sent) != 0 {
		t.Error("came too early")
	}
	f.Recv(1300*time.Microsecond, nil)
	if len(s.sent) != 1 || f.Deadline() != Never {
		t.Errorf("at its deadline: %d sent, next deadline %v", len(s.sent), f.Deadline())
	}
	f = WithFaults(newSink(t), FaultConfig{Tx: Faults{Reorder: 1}})
	f.Send(0, []Run{s.run(1, 64, 9)})
	if d := f.Deadline(); d != time.Millisecond {
		t.Errorf("by default held for %v", d)
	}
}

// Rule: Delay holds each packet exactly so long, Jitter up to so much longer; the
// Send that comes at the deadline lets it out as well as Recv.
func TestDelay(t *testing.T) {
	s := newSink(t)
	f := WithFaults(s, FaultConfig{Tx: Faults{Delay: 5 * time.Millisecond}})
	for i := range 10 {
		f.Send(time.Duration(i)*time.Millisecond, []Run{s.run(1, 64, ib.PSN(i))})
	}
	for now := 10 * time.Millisecond; f.Deadline() != Never; now = f.Deadline() {
		f.Send(now, nil)
	}
	for i, at := range s.times {
		if want := time.Duration(i+5) * time.Millisecond; at != want {
			t.Errorf("packet %d came at %v, want %v", i, at, want)
		}
	}
	if len(s.times) != 10 {
		t.Errorf("%d came", len(s.times))
	}
	s = newSink(t)
	f = WithFaults(s, FaultConfig{Tx: Faults{Delay: time.Millisecond}})
	f.Send(0, []Run{s.run(40, 64, 0)})
	drain(t, f, 0)
	for i, p := range psns(s.sent) {
		if p != i {
			t.Fatalf("packets of the same time came in another order: %v", psns(s.sent))
		}
	}
	s = newSink(t)
	f = WithFaults(s, FaultConfig{Seed: 1, Tx: Faults{Delay: time.Millisecond, Jitter: 2 * time.Millisecond}})
	for i := range 1000 {
		f.Send(0, []Run{s.run(1, 64, ib.PSN(i))})
	}
	drain(t, f, 0)
	early, late := Never, time.Duration(0)
	for _, at := range s.times {
		early, late = min(early, at), max(late, at)
	}
	if len(s.times) != 1000 || early < time.Millisecond || early > 1100*time.Microsecond || late > 3*time.Millisecond || late < 2900*time.Microsecond {
		t.Errorf("%d came between %v and %v", len(s.times), early, late)
	}
}

// Rule: a run is taken apart, and each packet sealed for the Identification 0 that
// it has when it is sent alone, also from another source port.
func TestFaultyReseals(t *testing.T) {
	p := openFabricPair(t)
	f := WithFaults(p.a, FaultConfig{Tx: Faults{Delay: time.Nanosecond}})
	src := netip.AddrPortFrom(p.a.LocalAddr().Addr(), 50000)
	r := newRun(src, p.b.LocalAddr(), 10, 128, 1)
	r.SrcPort = 50000
	f.Send(0, []Run{r})
	f.Send(1, nil)
	got := collect(t, p.b, 10)
	for i, g := range got {
		if !g.ok || g.id != 0 || g.SegSize != 0 || g.Src != src {
			t.Errorf("packet %d: ICRC right %t, ID %d, in a run of %d, from %v", i, g.ok, g.id, g.SegSize, g.Src)
		}
	}
	if len(got) != 10 {
		t.Errorf("%d came", len(got))
	}
}

// Rule: received runs are taken apart with the right Identification each, also when
// the caller takes few at a time, and nothing waits while something is ready.
func TestFaultyReceivesRuns(t *testing.T) {
	p := openFabricPair(t)
	f := WithFaults(p.b, FaultConfig{Rx: Faults{CE: 1}})
	send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 10, 128, 1))
	var dst [3]Received
	total := 0
	for total < 10 {
		n, err := f.Recv(0, dst[:])
		if n == 0 || err != nil {
			t.Fatal(n, err, total)
		}
		for i := range n {
			for _, g := range unpack(&dst[i]) {
				if !g.ok || g.id != uint16(total) || g.TOS != 3 {
					t.Errorf("packet %d: ICRC right %t, ID %d, TOS %d", total, g.ok, g.id, g.TOS)
				}
				total++
			}
		}
		if left := total < 10; left != (f.Deadline() == 0) {
			t.Errorf("%d received: deadline %v", total, f.Deadline())
		}
		if total < 10 {
			f.Wait(-1, false) // hangs when it does not see what is ready
		}
	}
}

// Rule: what the wrapped backend has no room for is kept, in order, and the caller
// is made to wait before anything new.
func TestFaultyBackPressure(t *testing.T) {
	s := newSink(t)
	f := WithFaults(s, FaultConfig{Tx: Faults{CE: 1}})
	now := time.Duration(0)
	s.refuse = 3
	blocked := 0
	for i := 0; i < 100; {
		n, err := f.Send(now, []Run{s.run(5, 64, ib.PSN(i))})
		if err == ErrWouldBlock && n == 0 {
			blocked++
		} else if err != nil || n != 1 {
			t.Fatal(n, err)
		} else {
			i += 5
		}
		if s.refuse > 0 && f.Deadline() == Never {
			t.Error("something waits, but there is no deadline")
		}
		if blocked > 50 {
			t.Fatal("blocked for ever")
		}
	}
	if blocked == 0 {
		t.Error("never told to wait")
	}
	drain(t, f, now)
	for i, p := range psns(s.sent) {
		if p != i {
			t.Fatalf("packet %d has PSN %d", i, p)
		}
	}
	if len(s.sent) != 100 {
		t.Errorf("%d sent", len(s.sent))
	}
}

// Rule: faults can be changed on the way; without any, nothing is touched.
func TestSetFaults(t *testing.T) {
	s := newSink(t)
	f := WithFaults(s, FaultConfig{})
	r := s.run(4, 64, 1)
	before := bytes.Clone(r.Buf)
	f.Send(0, []Run{r})
	if len(s.sent) != 4 || s.sent[3].SegSize == 0 || !bytes.Equal(before, r.Buf) {
		t.Error("a run was taken apart without need")
	}
	f.SetFaults(Faults{Loss: 1}, Faults{})
	f.Send(0, []Run{s.run(4, 64, 1)})
	if len(s.sent) != 4 || f.Stats()[FaultDrop] != 4 {
		t.Errorf("link cut: %d sent, %d dropped", len(s.sent), f.Stats()[FaultDrop])
	}
	f.SetFaults(Faults{}, Faults{})
	f.Send(0, []Run{s.run(4, 64, 1)})
	if len(s.sent) != 8 {
		t.Errorf("link healed: %d sent", len(s.sent))
	}
}

// Rule: damage never stays hidden in the byte that the ICRC leaves out.
func TestDamageIsVisible(t *testing.T) {
	s := newSink(t)
	f := WithFaults(s, FaultConfig{Seed: 9, Tx: Faults{Corrupt: 1}})
	pump(t, f, s, 5000, 0)
	touched := make(map[int]bool)
	for i, p := range s.sent {
		w := s.run(1, 16, ib.PSN(i))
		for j := range w.Buf {
			if w.Buf[j] != p.Buf[j] {
				touched[j] = true
			}
		}
		if p.ok {
			t.Fatalf("packet %d is as it was", i)
		}
	}
	if want := 12 + 16 + 4 - 1; len(touched) != want || touched[4] {
		t.Errorf("%d of %d bytes were ever changed; byte 4: %t", len(touched), want, touched[4])
	}
}

// Rule: what is held is bounded.
func TestHeldIsBounded(t *testing.T) {
	s := newSink(t)
	f := WithFaults(s, FaultConfig{Tx: Faults{Delay: time.Hour}})
	f.pipes[Tx].limit = 6400
	r := s.run(64, 0, 1)
	for range 102 {
		f.Send(0, []Run{r})
	}
	if got := f.Stats()[FaultOverflow]; got != 128 {
		t.Errorf("fault_overflow %d", got)
	}
	drain(t, f, 0)
	if len(s.sent) != 6400 {
		t.Errorf("%d came out", len(s.sent))
	}
}

// Rule: bursts begin with their probability, lose the share they are said to, last as
// long on average as they are said to, and leave the other faults as they were.
func TestBursts(t *testing.T) {
	const n = 60_000
	lost := func(burst, loss float64) (lost []int, f *Faulty) {
		s := newSink(t)
		f = WithFaults(s, FaultConfig{Seed: 3, Tx: Faults{Burst: burst, BurstLoss: loss, BurstTime: 20 * time.Microsecond, CE: 0.1}})
		pump(t, f, s, n, time.Microsecond)
		next := 0
		for _, psn := range psns(s.sent) {
			for ; next < psn; next++ {
				lost = append(lost, next)
			}
			next++
		}
		return lost, f
	}
	all, f := lost(0.002, 0)
	bursts, last := 0, -2
	for _, i := range all {
		if i != last+1 {
			bursts++
		}
		last = i
	}
	// A burst of an exponential time with mean 20 us hits each packet that comes in
	// it, 20.5 on average; between two there are 500 packets on average.
	if mean := float64(len(all)) / float64(bursts); mean < 18 || mean > 23 {
		t.Errorf("a burst loses %.1f packets on average, want 20.5", mean)
	}
	if want := n / 520.5; float64(bursts) < 0.8*want || float64(bursts) > 1.2*want {
		t.Errorf("%d bursts, want %.0f", bursts, want)
	}
	half, _ := lost(0.002, 0.5)
	if share := float64(len(half)) / float64(len(all)); share < 0.4 || share > 0.6 {
		t.Errorf("with a loss of one half %.2f of the packets are lost", share)
	}
	if st := f.Stats(); st[FaultDrop] != uint64(len(all)) {
		t.Errorf("%d counted as lost, %d are", st[FaultDrop], len(all))
	} else {
		within(t, "CE", st[FaultCE], n-len(all), .1)
	}
}

// Rule: what Record is told repeats the run as a script.
func TestFaultRecord(t *testing.T) {
	faults := Faults{
		Loss: .05, Burst: .01, Duplicate: .05, Reorder: .05, ReorderBy: 2, ReorderTo: 9, Corrupt: .05, CE: .05,
		Delay: time.Microsecond, Jitter: 5 * time.Microsecond,
	}
	run := func(cfg FaultConfig) (*sink, Stats) {
		s := newSink(t)
		f := WithFaults(s, cfg)
		pump(t, f, s, 2000, time.Microsecond)
		return s, f.Stats()
	}
	var script []Fault
	want, stats := run(FaultConfig{Seed: 7, Tx: faults, Record: func(f Fault) { script = append(script, f) }})
	quiet := faults
	quiet.Loss, quiet.Burst, quiet.Duplicate, quiet.Reorder, quiet.Corrupt, quiet.CE = 0, 0, 0, 0, 0, 0
	got, again := run(FaultConfig{Seed: 7, Tx: quiet, Script: script})
	if len(got.sent) != len(want.sent) || again != stats {
		t.Fatalf("%d packets and %v, by the script %d and %v", len(want.sent), stats, len(got.sent), again)
	}
	for i := range want.sent {
		if !bytes.Equal(got.sent[i].Buf, want.sent[i].Buf) || got.times[i] != want.times[i] || got.sent[i].TOS != want.sent[i].TOS {
			t.Fatalf("packet %d differs", i)
		}
	}
}
