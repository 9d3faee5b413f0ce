package transport

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// pair is two queue pairs and the network between them, in virtual time. What
// the network does to packets, and what the programs at both ends do, comes from
// one seed.
type pair struct {
	t     *testing.T
	rng   *rand.Rand
	bytes *rand.ChaCha8
	now   time.Duration
	end   [2]*pairEnd
	air   []pairPacket // in flight, in order of arrival
	sent  int

	fate  func(n int) []time.Duration // delays of each copy of packet n
	trace func(format string, args ...any)
	route func(from int, via Path) (src netip.Addr, cut bool)
	also  func() // what the programs do besides
}

type pairPacket struct {
	at  time.Duration
	to  int
	src netip.Addr
	b   []byte
}

const (
	pairLatency = 5 * time.Microsecond
	pairDepth   = 32 // of the send queues
	pairIOVA    = 1 << 40
	pairWords   = 3
)

// pairEnd is one end: a queue pair and its program.
type pairEnd struct {
	p    *pair
	side int
	addr netip.Addr
	q    *QP
	sq   reqSQ
	out  reqOutbox
	tab  *mem.Table
	srq  SRQ

	source, sink, open, recv *mem.Region // of sends; of READs; to the peer; of receives
	words                    *mem.Region // for atomics of the peer
	model                    []uint64    // what they hold when all that was posted is done

	rq     []RecvWQE
	recvs  int // receives posted
	counts Counters

	open0   []byte // what the peer should have written
	next    uint64 // id of the next request
	issued  map[uint64]*pairOp
	order   []uint64 // requests not completed, in order
	inbox   []*pairOp
	left    int // requests still to post
	maxSize int
	events  []Event
}

// pairOp is a request on its way.
type pairOp struct {
	op        WROpcode
	data      []byte // expected at the other end, or here after a READ
	off       int    // in source or sink
	roff      int
	word      bool // roff is in words
	imm       uint32
	unsignal  bool
	solicited bool
}

var bothRC = [2]QPType{RC, RC}

func newPair(t *testing.T, seed uint64, mtu ib.MTU, window int) *pair {
	return newPairOf(t, bothRC, seed, mtu, window)
}

func newPairOf(t *testing.T, types [2]QPType, seed uint64, mtu ib.MTU, window int) *pair {
	p := &pair{t: t, rng: rand.New(rand.NewPCG(seed, 1)), bytes: rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}), trace: func(string, ...any) {}}
	addrs := [2]netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")}
	var psn [2]ib.PSN
	for i := range psn {
		psn[i] = ib.PSN(0xffffff - p.rng.IntN(300)) // wraps soon
	}
	for i := range p.end {
		e := &pairEnd{p: p, side: i, addr: addrs[i], issued: map[uint64]*pairOp{}, maxSize: 3 * mtu.Bytes(),
			tab: mem.NewTable(rand.NewChaCha8([32]byte{byte(i)})), out: reqOutbox{room: -1}}
		e.sq = newReqSQ(t, pairDepth)
		e.srq = SRQ{Num: pairSRQN, RQ: e, CQ: e, Mem: e.tab, PD: 1}
		region := func(acc mem.Access) *mem.Region {
			r, err := e.tab.Register(make([]byte, 4*pairDepth*e.maxSize), 1, acc, pairIOVA)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		e.source, e.sink = region(0), region(mem.LocalWrite)
		e.open, e.recv = region(mem.LocalWrite|mem.RemoteWrite|mem.RemoteRead), region(mem.LocalWrite)
		e.words = region(mem.LocalWrite | mem.RemoteWrite | mem.RemoteAtomic | mem.FlushGlobal)
		e.model = make([]uint64, pairWords)
		p.bytes.Read(e.open.Bytes())
		e.open0 = slices.Clone(e.open.Bytes())
		e.q = NewQP(QPConfig{
			Num: ib.QPN(0x100 + i), Type: types[i], PD: 1, Mem: e.tab, SQ: &e.sq, RQ: e, SendCQ: e, RecvCQ: e, SQDepth: pairDepth,
			Counters: &e.counts, Window: window, SRQs: pairSRQs{e},
			Event: func(ev Event) {
				e.events = append(e.events, ev)
				if ev != EventCommEst && ev != EventPathMig && ev != EventPathMigErr {
					t.Fatalf("end %d: event %v", i, ev)
				}
			},
		})
		p.end[i] = e
	}
	for i, e := range p.end {
		a := Attr{
			PathMTU: mtu, DestQPN: ib.QPN(0x100 + 1 - i), SQPSN: psn[i], RQPSN: psn[1-i], PortNum: 1,
			AV:     AddressVector{DGID: ib.GIDFromAddr(addrs[1-i])},
			Access: mem.RemoteRead | mem.RemoteWrite | mem.RemoteAtomic | mem.FlushGlobal, MaxRdAtomic: 4, MaxDestRdAtomic: 4,
			MinRNRTimer: 2, Timeout: 6, RetryCnt: 7, RNRRetry: 7,
		}
		for to := Init; to <= RTS; to++ {
			a.State = to
			mask, _, _ := findTransition(types[i], to-1, to)
			if err := e.q.Modify(0, &a, mask|MaskState); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.fate = p.random(0, 0, 0)
	p.route = func(from int, _ Path) (netip.Addr, bool) { return p.end[from].addr, false }
	p.also = func() {}
	return p
}

func (e *pairEnd) peer() *pairEnd { return e.p.end[1-e.side] }

// Pop makes the end its receive queue.
func (e *pairEnd) Pop(dst *RecvWQE) bool {
	if len(e.rq) == 0 {
		return false
	}
	dst.ID, dst.SGE = e.rq[0].ID, append(dst.SGE[:0], e.rq[0].SGE...)
	e.rq = e.rq[1:]
	return true
}

// pairSRQs makes the end an XRC domain, with one receive queue.
type pairSRQs struct{ e *pairEnd }

const pairSRQN = 0x51

func (s pairSRQs) SRQ(num ib.QPN) *SRQ {
	if num != pairSRQN {
		return nil
	}
	return &s.e.srq
}

// postRecv posts a receive of the largest size in two segments.
func (e *pairEnd) postRecv() {
	slot := uint64(e.recvs % 16)
	at, cut := pairIOVA+slot*uint64(e.maxSize), uint32(e.p.rng.IntN(e.maxSize+1))
	e.rq = append(e.rq, RecvWQE{ID: uint64(e.recvs), SGE: []mem.SGE{
		{Addr: at, Length: cut, LKey: e.recv.Key()},
		{Addr: at + uint64(cut), Length: uint32(e.maxSize) - cut, LKey: e.recv.Key()},
	}})
	e.recvs++
}

// postRandom posts a random request; it reports false when the queue is full.
func (e *pairEnd) postRandom() bool {
	if e.sq.produced-e.sq.consumed == uint32(len(e.sq.wqe)) {
		return false
	}
	rng := e.p.rng
	op := []WROpcode{WRSend, WRSendWithImm, WRWrite, WRWriteWithImm, WRRead, WRAtomicFetAdd, WRAtomicCmpSwp, WRAtomicWrite, WRFlush}[rng.IntN(9)]
	n := rng.IntN(e.maxSize + 1)
	if rng.IntN(4) == 0 {
		n = []int{0, 1, e.maxSize / 3, e.maxSize}[rng.IntN(4)]
	}
	flags := SendFlags(0)
	if rng.IntN(3) != 0 {
		flags |= Signaled
	}
	if rng.IntN(6) == 0 {
		flags |= Fence
	}
	if rng.IntN(2) == 0 {
		flags |= Solicited
	}
	switch {
	case !e.q.cfg.Type.Sends(op): // another time
	case op > WRRead:
		e.postAtomic(op, flags)
	default:
		e.post(op, n, flags)
	}
	return true
}

// post posts a request. READs read the upper half of the peer's memory, which
// nobody writes; WRITEs have places of their own in the lower half.
func (e *pairEnd) post(op WROpcode, n int, flags SendFlags) {
	rng := e.p.rng
	slot, half := int(e.next%(2*pairDepth)), 2*pairDepth*e.maxSize
	o := &pairOp{op: op, imm: rng.Uint32(), off: slot * e.maxSize, unsignal: flags&Signaled == 0, solicited: flags&Solicited != 0}
	sge := mem.SGE{Addr: pairIOVA + uint64(o.off), Length: uint32(n), LKey: e.source.Key()}
	if op == WRRead {
		o.roff = half + rng.IntN(half-n+1)
		o.data = e.peer().open0[o.roff:][:n]
		sge.LKey = e.sink.Key()
	} else {
		o.roff = slot * e.maxSize
		src := e.source.Bytes()[o.off:][:n]
		e.p.bytes.Read(src)
		o.data = slices.Clone(src)
	}
	e.issued[e.next] = o
	e.order = append(e.order, e.next)
	if op != WRRead && op != WRWrite {
		p := e.peer()
		p.inbox = append(p.inbox, o)
	}
	e.sq.post(SendWQE{
		ID: e.next, Opcode: op, Flags: flags, Imm: o.imm, RKey: e.peer().open.Key(), RemoteAddr: pairIOVA + uint64(o.roff), SRQN: pairSRQN,
	}, []mem.SGE{sge}, nil)
	e.next++
	e.sq.tell(e.p.now, e.q)
}

// Push makes the end its completion queues, and checks what completes.
func (e *pairEnd) Push(wc *WC) {
	t := e.p.t
	e.p.trace("%v end %d: %v %d %v %d", e.p.now, e.side, wc.Opcode, wc.ID, wc.Status, wc.ByteLen)
	if wc.Status != WCSuccess {
		t.Fatalf("end %d at %v: %v %d: %v", e.side, e.p.now, wc.Opcode, wc.ID, wc.Status)
	}
	if wc.Opcode >= WCRecv {
		e.received(wc)
		return
	}
	for e.order[0] != wc.ID {
		if !e.issued[e.order[0]].unsignal {
			t.Fatalf("end %d: request %d completes before %d", e.side, wc.ID, e.order[0])
		}
		e.finish(e.order[0])
	}
	if e.issued[wc.ID].unsignal {
		t.Fatalf("end %d: unsignaled request %d completes", e.side, wc.ID)
	}
	e.finish(wc.ID)
}

// finish checks what a completed request must have done.
func (e *pairEnd) finish(id uint64) {
	o := e.issued[id]
	delete(e.issued, id)
	e.order = e.order[1:]
	got := e.peer().open.Bytes()[o.roff:][:len(o.data)]
	if o.op == WRRead || o.word {
		got = e.sink.Bytes()[o.off:][:len(o.data)]
	}
	if (o.op == WRRead || o.word || o.op == WRWrite || o.op == WRWriteWithImm) && !bytes.Equal(got, o.data) {
		e.p.t.Fatalf("end %d: data of request %d (%v) is wrong", e.side, id, o.op)
	}
}

// received checks a message.
func (e *pairEnd) received(wc *WC) {
	t := e.p.t
	if len(e.inbox) == 0 {
		t.Fatalf("end %d: a message that nobody sent", e.side)
	}
	o := e.inbox[0]
	e.inbox = e.inbox[1:]
	if int(wc.ByteLen) != len(o.data) || wc.Solicited != o.solicited {
		t.Fatalf("end %d: message of %d bytes solicited=%v, want %d %v", e.side, wc.ByteLen, wc.Solicited, len(o.data), o.solicited)
	}
	if imm := o.op != WRSend; imm != (wc.Flags&WCWithImm != 0) || imm && wc.Imm != o.imm {
		t.Fatalf("end %d: immediate data %v %d, want %v %d", e.side, wc.Flags, wc.Imm, imm, o.imm)
	}
	if o.op == WRWriteWithImm {
		return // checked by the other end
	}
	if got := e.recv.Bytes()[int(wc.ID%16)*e.maxSize:][:len(o.data)]; !bytes.Equal(got, o.data) {
		t.Fatalf("end %d: data of message %d is wrong", e.side, wc.ID)
	}
}

// transmit lets an end write what it wants and gives it to the network.
func (e *pairEnd) transmit() {
	for e.q.Wants() != 0 {
		before := len(e.out.sent)
		e.q.TransmitControl(e.p.now, &e.out)
		e.q.Transmit(e.p.now, &e.out, 4096)
		if len(e.out.sent) == before && e.q.Wants() != 0 {
			e.p.t.Fatalf("end %d wants to transmit, but does not", e.side)
		}
	}
	for i, b := range e.out.sent {
		src, cut := e.p.route(e.side, e.out.via[i])
		e.p.carry(1-e.side, src, cut, b)
	}
	e.out.sent = e.out.sent[:0]
}

// carry takes a packet into the network.
func (p *pair) carry(to int, src netip.Addr, cut bool, b []byte) {
	delays := p.fate(p.sent)
	p.sent++
	if cut {
		delays = nil
	}
	if len(delays) == 0 {
		p.trace("%v to %d LOST %s", p.now, to, pairShow(b))
	}
	for _, d := range delays {
		at := p.now + d
		i := len(p.air)
		for i > 0 && p.air[i-1].at > at {
			i--
		}
		p.air = slices.Insert(p.air, i, pairPacket{at, to, src, b})
	}
}

// random returns a fate that loses, repeats and delays packets with the given
// probabilities.
func (p *pair) random(loss, duplicate, reorder float64) func(int) []time.Duration {
	return func(int) (delays []time.Duration) {
		if p.rng.Float64() < loss {
			return nil
		}
		for {
			d := pairLatency
			if p.rng.Float64() < reorder {
				d += time.Duration(p.rng.IntN(20)) * time.Microsecond
			}
			delays = append(delays, d)
			if p.rng.Float64() >= duplicate {
				return delays
			}
		}
	}
}

func pairShow(b []byte) string {
	p, _ := ib.Parse(b)
	return fmt.Sprint(p.Info().Name, " ", p.PSN(), " ", p.AETH().Syndrome, " ", p.RETH(), " ", len(p.Payload()), " ", p.AckReq())
}

// run goes on until both ends have nothing left to do.
func (p *pair) run(limit time.Duration) {
	for p.now < limit {
		busy := false
		p.also()
		for _, e := range p.end {
			for len(e.rq) < 8 && p.rng.IntN(3) != 0 { // sometimes late
				e.postRecv()
				e.q.Kick(p.now)
			}
			for e.left > 0 && p.rng.IntN(4) != 0 && e.postRandom() {
				e.left--
			}
			e.transmit()
			busy = busy || e.left > 0 || e.sq.consumed != e.sq.produced
		}
		if !busy && len(p.air) == 0 {
			return
		}
		p.step()
	}
	p.t.Fatalf("not finished at %v", limit)
}

// step goes to the next point in time at which something happens.
func (p *pair) step() {
	next := p.now + 50*time.Microsecond // the programs look again
	for _, e := range p.end {
		next = min(next, e.q.Deadline())
	}
	if len(p.air) > 0 {
		next = min(next, p.air[0].at)
	}
	p.now = max(p.now, next)
	for len(p.air) > 0 && p.air[0].at <= p.now {
		x := p.air[0]
		p.air = p.air[1:]
		e := p.end[x.to]
		in, bad := ib.Parse(x.b)
		if bad != ib.OK {
			p.t.Fatalf("malformed packet: %v", bad)
		}
		p.trace("%v to %d %s", p.now, x.to, pairShow(x.b))
		e.q.Receive(p.now, &Inbound{Packet: in, Src: x.src, Dst: e.addr})
	}
	for _, e := range p.end {
		e.q.Expire(p.now)
	}
}

// finish checks that all is done.
func (p *pair) finish() {
	for _, e := range p.end {
		for len(e.order) > 0 {
			if !e.issued[e.order[0]].unsignal {
				p.t.Fatalf("end %d: request %d never completed", e.side, e.order[0])
			}
			e.finish(e.order[0])
		}
		for i, want := range e.model {
			if got := e.words.LoadUint64(8 * i); got != want {
				p.t.Fatalf("end %d: word %d is %#x in the end, want %#x", e.side, i, got, want)
			}
		}
		if len(e.inbox) > 0 {
			p.t.Fatalf("end %d: %d messages never came", e.side, len(e.inbox))
		}
	}
}

// Every request completes exactly once and in order, and every byte is right,
// whatever the network does to packets (IBTA 9.7: reliable service).
func TestPairRandom(t *testing.T) {
	faults := []struct{ loss, duplicate, reorder float64 }{
		{0, 0, 0}, {0.05, 0, 0}, {0, 0.1, 0}, {0, 0, 0.1}, {0.05, 0.05, 0.05},
	}
	seeds := 20
	if testing.Short() {
		seeds = 5
	}
	for i, f := range faults {
		for seed := range uint64(seeds) {
			mtu := ib.MTU256 + ib.MTU(seed%5)
			t.Run(fmt.Sprintf("loss %v duplicate %v reorder %v seed %d", f.loss, f.duplicate, f.reorder, seed), func(t *testing.T) {
				p := newPair(t, seed<<8|uint64(i), mtu, []int{0, 2000, 20000}[seed%3])
				p.fate = p.random(f.loss, f.duplicate, f.reorder)
				if os.Getenv("PAIR_TRACE") != "" {
					p.trace = t.Logf
				}
				for _, e := range p.end {
					e.left = 150
				}
				p.run(10 * time.Second)
				p.finish()
				if f.loss == 0 && f.reorder == 0 {
					for _, e := range p.end {
						if n := e.counts.Load(CompleterRetry); n != 0 {
							t.Errorf("end %d: %d retries without a loss", e.side, n)
						}
					}
				}
			})
		}
	}
}

// Each single packet of an exchange, in either direction, lost, repeated at once
// or late, or overtaken: all requests complete all the same, and so they do with
// any two packets lost (IBTA 9.7, 9.9.2). The exchanges have all kinds of request
// packets and responses; with the small window the READs come in parts.
func TestPairEveryFault(t *testing.T) {
	pairEveryFault(t, bothRC, []int{0, 700}, func(e *pairEnd) {
		e.post(WRWrite, 600, Signaled)
		e.post(WRRead, 700, Signaled)
		e.post(WRSend, 300, 0)
		e.post(WRRead, 100, Signaled)
		e.post(WRWriteWithImm, 0, Signaled|Fence)
		e.post(WRSendWithImm, 256, Signaled)
	})
}

func pairEveryFault(t *testing.T, types [2]QPType, windows []int, post func(*pairEnd)) {
	exchange := func(t *testing.T, window int, fate func(n int) []time.Duration) *pair {
		p := newPairOf(t, types, 7, ib.MTU256, window)
		if fate != nil {
			p.fate = fate
		}
		for _, e := range p.end {
			for range 8 {
				e.postRecv()
			}
			if e.q.cfg.Type.Sends(WRSend) {
				post(e)
			}
		}
		p.run(time.Second)
		p.finish()
		return p
	}
	const late = 40 * time.Microsecond
	fates := map[string][]time.Duration{
		"lost": nil, "twice": {pairLatency, pairLatency}, "again late": {pairLatency, late},
		"again very late": {pairLatency, time.Millisecond}, "overtaken": {pairLatency + 1}, "late": {late},
	}
	for _, window := range windows {
		count := exchange(t, window, nil).sent
		for name, delays := range fates {
			for n := range count {
				t.Run(fmt.Sprintf("window %d packet %d %s", window, n, name), func(t *testing.T) {
					exchange(t, window, func(i int) []time.Duration {
						if i == n {
							return delays
						}
						return []time.Duration{pairLatency}
					})
				})
			}
		}
		for n := range count {
			t.Run(fmt.Sprintf("window %d packets %d and each other lost", window, n), func(t *testing.T) {
				for m := n + 1; m < count+5; m++ {
					exchange(t, window, func(i int) []time.Duration {
						if i == n || i == m {
							return nil
						}
						return []time.Duration{pairLatency}
					})
				}
			})
		}
	}
}
