package transport

import (
	"slices"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// readResource remembers one READ, atomic or ATOMIC_WRITE request, so that its
// responses can be written piece by piece, and again when the requester asks
// again (IBTA 9.7.5.1, responder resources). Those of an atomic are in
// responder_atomic.go.
type readResource struct {
	kind        ib.OpKind
	first, last uint64 // sequence numbers of its responses
	answer             // the present one
	va          uint64
	length      uint32
	rkey        uint32
	msn         uint32   // shown in all its responses (IBTA C9-148)
	before      ackPoint // the last SEND or WRITE packet before it
	result      uint64   // what an atomic found
	srq         *SRQ     // whose memory it uses
}

// answer is a run of responses to one request.
type answer struct {
	start uint64 // where it began
	next  uint64 // next response to write
	stop  uint64 // after the last
}

func (a *answer) answered() bool { return a.next == a.stop }

// amid says whether a response was written last that others of the answer follow.
func (a *answer) amid() bool { return a.next > a.start && !a.answered() }

// opcode returns the opcode of the next response. Every answer, also one that begins
// within the READ, begins with FIRST or ONLY (IBTA 9.4.4; Linux rxe_comp.c accepts
// nothing else).
func (a *answer) opcode() ib.Opcode {
	switch first, last := a.next == a.start, a.next+1 == a.stop; {
	case first && last:
		return ib.OpRCReadResponseOnly
	case first:
		return ib.OpRCReadResponseFirst
	case last:
		return ib.OpRCReadResponseLast
	}
	return ib.OpRCReadResponseMiddle
}

// maxParts is how many parts of READs may wait to be written again.
const maxParts = 16

// readQueue is a ring of the last MaxDestRdAtomic READs and atomics in PSN order.
// Both are called READs below: they differ in what is written as response.
type readQueue struct {
	ring   []readResource // of length most, once there was one: most of the memory of an idle queue pair
	most   int
	tail   uint64     // index of the oldest; free-running, modulo the ring's length
	head   uint64     // index after the youngest
	at     uint64     // the oldest that has responses due, or head
	fresh  uint64     // the oldest that was never answered in full, or head; at or later
	parts  []part     // asked for again; they go before all others
	source mem.Cursor // the memory of the READ that is opened
	opened uint64     // its index plus 1, 0 for none
}

// part is a part of READ of, asked for again by a peer that takes parts.
type part struct {
	of uint64
	answer
}

func (rq *readQueue) slot(i uint64) *readResource { return &rq.ring[i%uint64(len(rq.ring))] }

// due reports whether responses are due besides parts, and pending whether any are.
func (rq *readQueue) due() bool     { return rq.at < rq.head }
func (rq *readQueue) pending() bool { return rq.due() || len(rq.parts) > 0 }

// current returns the oldest READ that is not answered; one is due.
func (rq *readQueue) current() *readResource { return rq.slot(rq.at) }

// barrier is the first PSN of the oldest READ of which responses are pending.
func (rq *readQueue) barrier() uint64 {
	i := rq.at
	for _, p := range rq.parts {
		i = min(i, p.of)
	}
	return rq.slot(i).first
}

// amid says whether any READ was left in the middle of an answer, by another that was
// asked for again.
func (rq *readQueue) amid() bool {
	if len(rq.parts) > 0 && rq.parts[0].amid() {
		return true
	}
	for i := rq.at; i < rq.head; i++ {
		if rq.slot(i).amid() {
			return true
		}
	}
	return false
}

// full reports whether another READ would need the resource of one that was
// never answered in full, or there are no resources at all.
func (rq *readQueue) full() bool { return rq.head-rq.fresh >= uint64(rq.most) }

// add appends a READ, in place of the oldest if need be. If that was being
// answered again, because a late duplicate of it came, this stops: the new READ
// proves that the requester has completed it.
func (rq *readQueue) add(res readResource) {
	if rq.ring == nil {
		rq.ring, rq.parts = make([]readResource, rq.most), make([]part, 0, maxParts)
	}
	if rq.head-rq.tail == uint64(len(rq.ring)) {
		rq.tail++
		rq.parts = slices.DeleteFunc(rq.parts, func(p part) bool { return p.of < rq.tail })
		if rq.at < rq.tail {
			rq.at = rq.tail
			rq.advance()
		}
	}
	*rq.slot(rq.head) = res
	rq.head++
}

// search returns the index of the first READ whose last response is not before
// seq, or head.
func (rq *readQueue) search(seq uint64) uint64 {
	lo, hi := rq.tail, rq.head
	for lo < hi {
		if mid := (lo + hi) / 2; rq.slot(mid).last < seq {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// find returns the READ that has a response seq, or nil.
func (rq *readQueue) find(seq uint64) *readResource {
	if i := rq.search(seq); i < rq.head && rq.slot(i).first <= seq {
		return rq.slot(i)
	}
	return nil
}

// after returns the first READ after seq, or nil. No READ has a response seq.
func (rq *readQueue) after(seq uint64) *readResource {
	if i := rq.search(seq); i < rq.head {
		return rq.slot(i)
	}
	return nil
}

// restart makes the responses from seq on due again, seq being one of the responses of a
// READ in the ring.
func (rq *readQueue) restart(seq uint64) {
	i := rq.search(seq)
	res := rq.slot(i)
	res.start, res.next = seq, seq
	if i < rq.at {
		rq.at = i
		rq.close()
	}
}

// repeat makes the responses from seq up to stop due again, a part of a READ in the ring:
// before what is due, which then goes on where it was. A part that begins with what is
// still to be written comes anyway; so do all that follow seq when too many parts wait
// already.
func (rq *readQueue) repeat(seq, stop uint64) {
	i := rq.search(seq)
	switch {
	case seq >= rq.slot(i).next:
	case len(rq.parts) == cap(rq.parts):
		rq.restart(seq)
	default:
		rq.parts = append(rq.parts, part{i, answer{seq, seq, stop}})
	}
}

// advance goes on to the next READ that has responses due.
func (rq *readQueue) advance() {
	rq.close()
	for rq.due() && rq.current().answered() {
		rq.at++
	}
	rq.fresh = max(rq.fresh, rq.at)
}

// written goes on when the last response of the answer at work was written.
func (rq *readQueue) written() {
	if len(rq.parts) == 0 {
		rq.advance()
		return
	}
	rq.close()
	rq.parts = slices.Delete(rq.parts, 0, 1)
}

// close drops the reference to the memory of a READ.
func (rq *readQueue) close() {
	rq.source.Reset()
	rq.opened = 0
}

// reset forgets all READs.
func (rq *readQueue) reset() {
	rq.close()
	rq.tail, rq.head, rq.at, rq.fresh, rq.parts = 0, 0, 0, 0, rq.parts[:0]
}

// resize makes room for n READs and keeps the youngest of those there are.
func (rq *readQueue) resize(n int) {
	if rq.ring == nil || n == rq.most {
		rq.most = n
		return
	}
	keep := min(rq.head-rq.tail, uint64(n))
	var kept []readResource
	for i := rq.head - keep; i < rq.head; i++ {
		kept = append(kept, *rq.slot(i))
	}
	rq.reset()
	rq.ring, rq.most = slices.Grow(kept, n-len(kept))[:n], n
	rq.head = keep
	rq.advance()
}

// read takes a new READ request. Its memory is checked now and read later (see
// responder).
func (r *responder) read(now time.Duration, in *Inbound) {
	h := in.RETH()
	// More READs at a time than agreed on: IBTA 9.7.5.2, invalid request.
	if r.q.attr.Access&mem.RemoteRead == 0 || r.reads.full() || h.Length > maxMessage {
		r.invalid(now)
		return
	}
	s := r.target.Remote(r.srq.Mem, r.srq.PD, h.RKey, h.VA, uint64(h.Length), mem.RemoteRead)
	r.target.Reset()
	if s != mem.OK {
		r.denied(now, s, r.expected)
		return
	}
	r.countMessage()
	packets := max(1, (uint64(h.Length)+uint64(r.mtu)-1)/uint64(r.mtu))
	r.reads.add(readResource{
		kind: ib.KindReadRequest, first: r.expected, last: r.expected + packets - 1,
		answer: answer{r.expected, r.expected, r.expected + packets},
		va:     h.VA, length: h.Length, rkey: h.RKey, msn: r.msn, before: r.last, srq: r.srq,
	})
	r.expected += packets
}

// replay takes a duplicate READ request: the requester has not got the
// responses from seq on. It must name exactly the rest of the original, and
// does not go back behind an earlier repetition (IBTA 9.4.4, 9.7.5.1; Linux
// hw/hfi1/rc.c, rxe_resp.c); anything else, and a READ whose resource has been
// recycled, is dropped (IBTA 9.9.3 class D). The memory is checked and read
// anew. A duplicate atomic gets what the first execution found.
func (r *responder) replay(in *Inbound, seq uint64) {
	res := r.reads.find(seq)
	if res == nil || r.q.attr.Access&res.right() == 0 {
		r.q.count(DropNoResource)
		return
	}
	stop, ok := res.repeats(in, seq, r.mtu, r.q.kin)
	if in.Info().Op != res.kind || !ok {
		r.q.count(DropDuplicate)
		return
	}
	if stop > res.last {
		r.reads.restart(seq)
	} else {
		r.reads.repeat(seq, stop)
	}
}

// right is what the queue pair must allow for the request.
func (res *readResource) right() mem.Access {
	switch res.kind {
	case ib.KindReadRequest:
		return mem.RemoteRead
	case ib.KindAtomicWrite:
		return mem.RemoteWrite
	}
	return mem.RemoteAtomic
}

// repeats says whether a request of the same kind asks for the responses of res
// from seq on, and up to where. One of our kin may ask for any of them.
func (res *readResource) repeats(in *Inbound, seq uint64, mtu int, kin bool) (stop uint64, ok bool) {
	if in.XRCSRQ() != res.srq.Num {
		return 0, false
	}
	if in.Info().AtomicETH {
		h := in.AtomicETH()
		return seq + 1, h.RKey == res.rkey && h.VA == res.va
	}
	h := in.RETH()
	done := (seq - res.first) * uint64(mtu)
	if h.RKey != res.rkey || h.VA != res.va+done {
		return 0, false
	}
	switch end := done + uint64(h.Length); {
	case end == uint64(res.length):
		return res.last + 1, kin || seq >= res.start
	case kin && end > done && end < uint64(res.length) && h.Length%uint32(mtu) == 0:
		return seq + uint64(h.Length)/uint64(mtu), true
	}
	return 0, false
}

// transmit writes READ responses and the answers to atomics and FLUSHes in PSN
// order, about budget bytes at most, and returns the bytes written. A READ of any
// length is only a position that moves.
func (r *responder) transmit(now time.Duration, out Outbox, budget int) (n int) {
	for n < budget && r.pending() {
		var size int
		switch f := r.nextFlush(); {
		case len(r.reads.parts) > 0:
			p := &r.reads.parts[0]
			size = r.putResponse(now, out, p.of, &p.answer)
		case f != nil:
			size = r.putFlush(now, out, f)
		case r.reads.current().kind != ib.KindReadRequest:
			size = r.putAtomic(out, r.reads.current())
		default:
			size = r.putResponse(now, out, r.reads.at, &r.reads.current().answer)
		}
		if size == 0 {
			break
		}
		n += size
	}
	return n
}

// pending reports whether answers are due.
func (r *responder) pending() bool { return r.reads.pending() || len(r.flushes) > 0 }

// putResponse writes the next response of an answer to READ i, and returns its size. It
// returns 0 when there was no room or the memory has gone.
func (r *responder) putResponse(now time.Duration, out Outbox, i uint64, a *answer) int {
	rq, res := &r.reads, r.reads.slot(i)
	if res.srq.Closed {
		r.failRead(now, mem.BadKey, i, a)
		return 0
	}
	if rq.opened != i+1 {
		rq.close()
		s := rq.source.Remote(res.srq.Mem, res.srq.PD, res.rkey, res.va, uint64(res.length), mem.RemoteRead)
		if s != mem.OK {
			r.failRead(now, s, i, a)
			return 0
		}
		rq.opened = i + 1
	}
	offset := (a.next - res.first) * uint64(r.mtu)
	payload := int(min(uint64(r.mtu), uint64(res.length)-offset))
	op := a.opcode()
	b := r.q.newPacket(out, op, payload, a.next, false, false)
	if b == nil {
		return 0
	}
	if op != ib.OpRCReadResponseMiddle {
		ackHeader(res.msn).Put(b[ib.BTHSize:])
	}
	if s := rq.source.CopyOut(b[op.Info().HeaderLen:][:payload], offset); s != mem.OK {
		r.failRead(now, s, i, a)
		return 0
	}
	r.q.commit(out)
	if a.next++; a.answered() {
		rq.written()
	}
	return len(b)
}

// failRead ends the connection because the memory of a READ cannot be read any
// more. The NAK has the PSN of the response that could not be written.
//
// If the READ was answered in full before, what asks for it again may be a late
// duplicate, of which a requester that has told us since to close the key knows
// nothing: that alone is dropped.
func (r *responder) failRead(now time.Duration, s mem.Status, i uint64, a *answer) {
	if i < r.reads.fresh {
		r.q.count(DropNoResource)
		a.next = a.stop
		r.reads.written()
		return
	}
	seq := a.next
	r.forget()
	r.denied(now, s, seq)
}

// forget drops all answers that are due: an ACK past them never leaves, as a NAK
// is written instead or the queue pair is in error.
func (r *responder) forget() {
	r.reads.reset()
	r.flushes = r.flushes[:0]
}
