package transport

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// talk is a requester and a responder with a wire between them that loses
// packets by number and looks at every packet: what a model of the connection
// allows. The same two queue pairs serve all conversations, through RESET.
type talk struct {
	t   testing.TB
	now time.Duration
	ask talkEnd // sends requests
	ans talkEnd // answers them

	lose  func(n int) bool // by number, both directions
	sent  int
	air   []talkPacket
	eager bool // transmit after each packet, not once per batch
	log   []talkLine

	ops       []talkOp
	completed int
	received  int
	messages  []int // ops that complete a receive, in order

	base     ib.PSN
	readPSN  map[uint64]bool // sequence numbers that READs have
	answerTo uint64          // the last READ request delivered, or the response expected next
}

// talkEnd is one end.
type talkEnd struct {
	q    *QP
	sq   reqSQ
	rq   []RecvWQE
	out  rspOutbox
	tab  *mem.Table
	mr   *mem.Region
	cnt  Counters
	addr netip.Addr
	push func(*WC)
}

func (e *talkEnd) Push(wc *WC) { e.push(wc) }

func (e *talkEnd) Pop(dst *RecvWQE) bool {
	if len(e.rq) == 0 {
		return false
	}
	dst.ID, dst.SGE = e.rq[0].ID, append(dst.SGE[:0], e.rq[0].SGE...)
	e.rq = e.rq[1:]
	return true
}

// talkOp is a request: its letter, and the bytes it moves.
type talkOp struct {
	op   WROpcode
	n    int
	data []byte
}

type talkPacket struct {
	at  time.Duration
	ask bool // to the requester
	b   []byte
}

const (
	talkSlot    = 1024 // memory of one request
	talkLatency = 5 * time.Microsecond
)

// talkSizes are the bytes of a request at path MTU 256, in packets: 2, 3, 1, 1, 2.
var talkLetters = map[byte]talkOp{
	'W': {op: WRWrite, n: 300}, 'R': {op: WRRead, n: 600}, 'S': {op: WRSend, n: 10},
	'r': {op: WRRead, n: 4}, 'I': {op: WRWriteWithImm, n: 257},
}

func newTalk(t testing.TB) *talk {
	k := &talk{t: t}
	for i, e := range []*talkEnd{&k.ask, &k.ans} {
		e.addr = []netip.Addr{rspSelf, rspPeer}[i]
		e.tab = mem.NewTable(rand.NewChaCha8([32]byte{byte(i)}))
		mr, err := e.tab.Register(make([]byte, 8*talkSlot), 1, mem.LocalWrite|mem.RemoteRead|mem.RemoteWrite, rspIOVA)
		if err != nil {
			t.Fatal(err)
		}
		e.mr = mr
		e.sq = newReqSQ(t, 8)
		e.out.room = -1
		e.q = NewQP(QPConfig{
			Num: ib.QPN(0x10 + i), Type: RC, PD: 1, Mem: e.tab, SQ: &e.sq, RQ: e, SendCQ: e, RecvCQ: e, SQDepth: 8,
			Counters: &e.cnt, Event: func(ev Event) {
				if ev != EventCommEst {
					k.fail("event %v", ev)
				}
			},
		})
	}
	k.ask.push = k.pushSend
	k.ans.push = k.pushRecv
	return k
}

func (k *talk) fail(format string, args ...any) {
	k.t.Helper()
	var b strings.Builder
	for n, l := range k.log {
		p, _ := ib.Parse(l.b)
		fmt.Fprintf(&b, "\t%v #%d %v %d %d", l.at, n, p.Info().Name, p.PSN().Sub(k.base), len(p.Payload()))
		if p.Info().AETH {
			fmt.Fprintf(&b, " %v", p.AETH().Syndrome)
		}
		if l.lost {
			b.WriteString(" LOST")
		}
		b.WriteString("\n")
	}
	k.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), b.String())
}

// talkLine is what one line of the log shows: a packet on the wire.
type talkLine struct {
	at   time.Duration
	b    []byte
	lost bool
}

// connect brings both ends from any state to RTS.
func (k *talk) connect(base ib.PSN) {
	k.base = base
	for i, e := range []*talkEnd{&k.ask, &k.ans} {
		a := Attr{
			PathMTU: ib.MTU256, DestQPN: ib.QPN(0x11 - i), SQPSN: base, RQPSN: base, PortNum: 1,
			AV:     AddressVector{DGID: ib.GIDFromAddr([]netip.Addr{rspPeer, rspSelf}[i])},
			Access: mem.RemoteRead | mem.RemoteWrite, MaxRdAtomic: 2, MaxDestRdAtomic: 2,
			MinRNRTimer: 2, Timeout: 6, RetryCnt: 7, RNRRetry: 7,
		}
		for _, s := range []struct {
			to   State
			mask AttrMask
		}{{Reset, 0}, {Init, initMask}, {RTR, rtrRCMask}, {RTS, rtsRCMask}} {
			a.State = s.to
			if err := e.q.Modify(k.now, &a, s.mask|MaskState); err != nil {
				k.t.Fatal(err)
			}
		}
		e.rq, e.out.pkts = nil, nil
		e.sq.consumed = e.sq.produced
	}
}

// hold has one conversation: the requests of ops, one letter each, while lose
// decides about every packet. recvAt is when the receives are posted.
func (k *talk) hold(ops string, lose func(int) bool, recvAt time.Duration) {
	k.lose, k.sent, k.air, k.log = lose, 0, nil, k.log[:0]
	k.ops, k.messages, k.completed, k.received = k.ops[:0], k.messages[:0], 0, 0
	k.readPSN, k.answerTo = map[uint64]bool{}, 0
	k.connect(ib.PSN(0xffffff - len(ops)))
	end := k.now + 50*time.Millisecond
	recvAt += k.now
	k.post(ops)
	posted := false
	for k.completed < len(ops) || len(k.air) > 0 {
		if !posted && k.now >= recvAt {
			posted = true
			for i := range k.messages {
				k.ans.rq = append(k.ans.rq, RecvWQE{ID: uint64(i), SGE: []mem.SGE{
					{Addr: rspIOVA + uint64(k.messages[i]*talkSlot), Length: talkSlot, LKey: k.ans.mr.Key()}}})
			}
			k.ans.q.Kick(k.now)
		}
		k.transmit(&k.ask)
		k.transmit(&k.ans)
		next := min(k.ask.q.Deadline(), k.ans.q.Deadline())
		if len(k.air) > 0 {
			next = min(next, k.air[0].at)
		}
		if !posted {
			next = min(next, recvAt)
		}
		if next >= end {
			k.fail("%s: not finished, next event at %v", ops, next)
		}
		k.now = max(k.now, next)
		k.deliver()
		k.ask.q.Expire(k.now)
		k.ans.q.Expire(k.now)
	}
	k.check(ops)
}

// post posts the requests and fills all memory.
func (k *talk) post(ops string) {
	ask, ans := k.ask.mr.Bytes(), k.ans.mr.Bytes()
	for i := range ask {
		ask[i], ans[i] = byte(i*7+i>>8), byte(i*11+i>>7+1)
	}
	psn := firstSeq(k.base)
	for i := range len(ops) {
		o := talkLetters[ops[i]]
		at := rspIOVA + uint64(i*talkSlot)
		e := SendWQE{ID: uint64(i), Opcode: o.op, Flags: Signaled, Imm: uint32(i), RKey: k.ans.mr.Key(), RemoteAddr: at}
		packets := uint64(max(1, (o.n+255)/256))
		if o.op == WRRead {
			o.data = slices.Clone(ans[i*talkSlot:][:o.n])
			for j := range packets {
				k.readPSN[psn+j] = true
			}
		} else {
			o.data = slices.Clone(ask[i*talkSlot:][:o.n])
		}
		if o.op == WRSend || o.op == WRWriteWithImm {
			k.messages = append(k.messages, i)
		}
		psn += packets
		k.ops = append(k.ops, o)
		k.ask.sq.post(e, []mem.SGE{{Addr: at, Length: uint32(o.n), LKey: k.ask.mr.Key()}}, nil)
	}
	k.ask.q.Kick(k.now)
}

// transmit puts on the wire what an end has.
func (k *talk) transmit(e *talkEnd) {
	for n := 0; e.q.Wants() != 0; n++ {
		before := len(e.out.pkts)
		e.q.TransmitControl(k.now, &e.out)
		e.q.Transmit(k.now, &e.out, 500)
		if len(e.out.pkts) == before && e.q.Wants() != 0 {
			k.fail("wants %v, but transmits nothing", e.q.Wants())
		}
	}
	for _, b := range e.out.pkts {
		p, bad := ib.Parse(b)
		if bad != ib.OK {
			k.fail("malformed packet: %v", bad)
		}
		lost := k.lose(k.sent)
		k.log = append(k.log, talkLine{k.now, b, lost})
		k.sent++
		if e == &k.ans {
			k.checkAnswer(p)
		}
		if !lost {
			k.air = append(k.air, talkPacket{k.now + talkLatency, e == &k.ans, b})
		}
	}
	e.out.pkts = nil
}

// deliver hands over what has arrived.
func (k *talk) deliver() {
	for len(k.air) > 0 && k.air[0].at <= k.now {
		x := k.air[0]
		k.air = k.air[1:]
		to, from := &k.ans, &k.ask
		if x.ask {
			to, from = from, to
		}
		p, _ := ib.Parse(x.b)
		to.q.Receive(k.now, &Inbound{Packet: p, Src: from.addr, Dst: to.addr})
		if k.eager {
			k.transmit(to)
		}
	}
}

// checkAnswer holds a response against the model.
func (k *talk) checkAnswer(p ib.Packet) {
	r := k.ans.q.rsp()
	seq := extend(p.PSN(), r.expected)
	isRead := k.readPSN[seq]
	if p.Info().Op == ib.KindReadResponse {
		// IBTA 9.4.4: an answer begins with FIRST or ONLY and goes on without a
		// gap; Linux rxe_comp.c takes nothing else.
		if !isRead {
			k.fail("READ response with the PSN of another request")
		}
		if !p.Info().Pos.Starts() && seq != k.answerTo {
			k.fail("READ response %v does not follow the one before", p.PSN())
		}
		k.answerTo = seq + 1
		return
	}
	switch s := p.AETH().Syndrome; s.Kind() {
	case ib.SynAck:
		// Linux rxe_comp.c completes a READ by an ACK of its PSN.
		if isRead {
			k.fail("ACK %v has the PSN of a READ", p.PSN())
		}
		if seq >= r.expected {
			k.fail("ACK %v of what has not come", p.PSN())
		}
	case ib.SynRNR:
		if seq != r.expected || len(k.ans.rq) > 0 {
			k.fail("RNR NAK %v, expected is %v", p.PSN(), psnOf(r.expected))
		}
	default:
		if s.NAK() != ib.NAKSequence || seq != r.expected {
			k.fail("NAK %v %v, expected is %v", p.PSN(), s.NAK(), psnOf(r.expected))
		}
	}
}

func (k *talk) pushSend(wc *WC) {
	if wc.Status != WCSuccess || wc.ID != uint64(k.completed) {
		k.fail("request %d completes with %v, want request %d", wc.ID, wc.Status, k.completed)
	}
	o := k.ops[wc.ID]
	got := k.ans.mr.Bytes()[wc.ID*talkSlot:][:o.n]
	if o.op == WRRead {
		got = k.ask.mr.Bytes()[wc.ID*talkSlot:][:o.n]
	}
	if !bytes.Equal(got, o.data) {
		k.fail("request %d completes before its data is there", wc.ID)
	}
	k.completed++
}

func (k *talk) pushRecv(wc *WC) {
	if wc.Status != WCSuccess || wc.ID != uint64(k.received) || k.received == len(k.messages) {
		k.fail("receive %d completes with %v, want %d", wc.ID, wc.Status, k.received)
	}
	i := k.messages[k.received]
	o := k.ops[i]
	if int(wc.ByteLen) != o.n || o.op == WRWriteWithImm && wc.Imm != uint32(i) {
		k.fail("receive %d has %d bytes, immediate %d", wc.ID, wc.ByteLen, wc.Imm)
	}
	k.received++
}

// check looks at everything in the end.
func (k *talk) check(ops string) {
	if k.received != len(k.messages) {
		k.fail("%s: %d messages received, want %d", ops, k.received, len(k.messages))
	}
	// A READ may be asked for in parts after losses, each a message of its own.
	msn, reads := int(k.ans.q.rsp().msn), strings.Contains(ops, "R")
	if msn < len(ops) || msn > len(ops) && !reads {
		k.fail("%s: MSN %d, want %d", ops, msn, len(ops))
	}
	for i, o := range k.ops {
		rest := k.ans.mr.Bytes()[i*talkSlot:][o.n:talkSlot]
		for j, c := range rest {
			if at := i*talkSlot + o.n + j; c != byte(at*11+at>>7+1) {
				k.fail("%s: byte %d was written", ops, at)
			}
		}
	}
}

// sequences calls f with all words of up to n letters of an alphabet.
func sequences(alphabet string, n int, f func(string)) {
	var grow func(string)
	grow = func(s string) {
		if len(s) > 0 {
			f(s)
		}
		for i := 0; len(s) < n && i < len(alphabet); i++ {
			grow(s + alphabet[i:i+1])
		}
	}
	grow("")
}

// clean returns how many packets a conversation has without a loss.
func (k *talk) clean(ops string, recvAt time.Duration) int {
	k.hold(ops, func(int) bool { return false }, recvAt)
	return k.sent
}

// talkDepth shortens the enumerations where they would be slow.
func talkDepth(n int) int {
	if raceEnabled || testing.Short() {
		return n - 2
	}
	return n
}

// TestConversationsOneLoss has all mixes of up to six WRITEs, READs and SENDs and
// loses each packet once, requests, ACKs and responses alike: IBTA 9.7, a
// reliable service delivers each request once and in order.
func TestConversationsOneLoss(t *testing.T) {
	k := newTalk(t)
	sequences("WRS", talkDepth(6), func(ops string) {
		k.eager = !k.eager
		for lost := range k.clean(ops, 0) {
			k.hold(ops, func(n int) bool { return n == lost }, 0)
		}
	})
}

// TestConversationsTwoLosses loses each two packets, retransmissions included.
func TestConversationsTwoLosses(t *testing.T) {
	k := newTalk(t)
	sequences("WRSrI", talkDepth(4)-1, func(ops string) {
		k.eager = !k.eager
		count := k.clean(ops, 0)
		for a := range count {
			for b := a + 1; b < count+6; b++ {
				k.hold(ops, func(n int) bool { return n == a || n == b }, 0)
			}
		}
	})
}

// TestConversationsPeriodicLoss loses every k-th packet for a while.
func TestConversationsPeriodicLoss(t *testing.T) {
	k := newTalk(t)
	sequences("WRS", talkDepth(6)-1, func(ops string) {
		k.eager = !k.eager
		for every := 2; every <= 7; every++ {
			for phase := range every {
				k.hold(ops, func(n int) bool { return n%every == phase && n < 14 }, 0)
			}
		}
	})
}

// TestConversationsNotReady posts the receives late and loses each packet once,
// RNR NAKs included (IBTA 9.7.5.2.8).
func TestConversationsNotReady(t *testing.T) {
	k := newTalk(t)
	sequences("RSI", talkDepth(5), func(ops string) {
		k.eager = !k.eager
		const recvAt = 37 * time.Microsecond
		for lost := range k.clean(ops, recvAt) {
			k.hold(ops, func(n int) bool { return n == lost }, recvAt)
		}
	})
}
