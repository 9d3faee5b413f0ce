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
	start       uint64 // where the present answer began
	next        uint64 // next response to write
	stop        uint64 // after the last of the present answer
	va          uint64
	length      uint32
	rkey        uint32
	msn         uint32   // shown in all its responses (IBTA C9-148)
	before      ackPoint // the last SEND or WRITE packet before it
	result      uint64   // what an atomic found
	srq         *SRQ     // whose memory it uses
}

func (res *readResource) answered() bool { return res.next == res.stop }

// amid says whether a response was written last that others of the answer follow.
func (res *readResource) amid() bool { return res.next > res.start && !res.answered() }

// readQueue is a ring of the last MaxDestRdAtomic READs and atomics in PSN order.
// Both are called READs below: they differ in what is written as response.
type readQueue struct {
	ring   []readResource // of length most, once there was one: most of the memory of an idle queue pair
	most   int
	tail   uint64     // index of the oldest; free-running, modulo the ring's length
	head   uint64     // index after the youngest
	at     uint64     // the oldest that has responses due, or head
	fresh  uint64     // the oldest that was never answered in full, or head; at or later
	source mem.Cursor // the memory of READ at
	open   bool       // source is open
}

func (rq *readQueue) slot(i uint64) *readResource { return &rq.ring[i%uint64(len(rq.ring))] }

// pending reports whether responses are due.
func (rq *readQueue) pending() bool { return rq.at < rq.head }

// current returns the oldest READ that is not answered; there is one.
func (rq *readQueue) current() *readResource { return rq.slot(rq.at) }

// amid reports whether an answer was begun and not ended, be it that another
// interrupts it.
func (rq *readQueue) amid() bool {
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
		rq.ring = make([]readResource, rq.most)
	}
	if rq.head-rq.tail == uint64(len(rq.ring)) {
		rq.tail++
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

// restart makes the responses from seq up to stop due again, seq being one of the
// responses of a READ in the ring. A part that is asked for while another answer is
// written, that of the whole READ maybe, becomes part of that.
func (rq *readQueue) restart(seq, stop uint64) {
	i := rq.search(seq)
	res := rq.slot(i)
	switch whole := stop > res.last; {
	case whole || res.answered():
		res.start, res.next, res.stop = seq, seq, stop
	case seq < res.next:
		res.start, res.next, res.stop = seq, seq, max(res.stop, stop)
	default:
		res.stop = max(res.stop, stop)
	}
	if i < rq.at {
		rq.at = i
		rq.close()
	}
}

// advance goes on to the next READ that has responses due.
func (rq *readQueue) advance() {
	rq.close()
	for rq.pending() && rq.current().answered() {
		rq.at++
	}
	rq.fresh = max(rq.fresh, rq.at)
}

// close drops the reference to the memory of the current READ.
func (rq *readQueue) close() {
	rq.source.Reset()
	rq.open = false
}

// reset forgets all READs.
func (rq *readQueue) reset() {
	rq.close()
	rq.tail, rq.head, rq.at, rq.fresh = 0, 0, 0, 0
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
		start: r.expected, next: r.expected, stop: r.expected + packets,
		va: h.VA, length: h.Length, rkey: h.RKey, msn: r.msn, before: r.last, srq: r.srq,
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
	r.reads.restart(seq, stop)
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
		case f != nil:
			size = r.putFlush(now, out, f)
		case r.reads.current().kind != ib.KindReadRequest:
			size = r.putAtomic(out, r.reads.current())
		default:
			size = r.putResponse(now, out, r.reads.current())
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

// putResponse writes the next response of res, the current READ, and returns its
// size. It returns 0 when there was no room or the memory has gone.
func (r *responder) putResponse(now time.Duration, out Outbox, res *readResource) int {
	if res.srq.Closed {
		r.failRead(now, mem.BadKey, res)
		return 0
	}
	if !r.reads.open {
		s := r.reads.source.Remote(res.srq.Mem, res.srq.PD, res.rkey, res.va, uint64(res.length), mem.RemoteRead)
		if s != mem.OK {
			r.failRead(now, s, res)
			return 0
		}
		r.reads.open = true
	}
	offset := (res.next - res.first) * uint64(r.mtu)
	payload := int(min(uint64(r.mtu), uint64(res.length)-offset))
	op := responseOpcode(res)
	b := r.q.newPacket(out, op, payload, res.next, false, false)
	if b == nil {
		return 0
	}
	if op != ib.OpRCReadResponseMiddle {
		ackHeader(res.msn).Put(b[ib.BTHSize:])
	}
	if s := r.reads.source.CopyOut(b[op.Info().HeaderLen:][:payload], offset); s != mem.OK {
		r.failRead(now, s, res)
		return 0
	}
	r.q.commit(out)
	if res.next++; res.answered() {
		r.reads.advance()
	}
	return len(b)
}

// responseOpcode returns the opcode of the next response. Every answer, also one
// that begins within the READ, begins with FIRST or ONLY (IBTA 9.4.4; Linux
// rxe_comp.c accepts nothing else).
func responseOpcode(res *readResource) ib.Opcode {
	switch first, last := res.next == res.start, res.next+1 == res.stop; {
	case first && last:
		return ib.OpRCReadResponseOnly
	case first:
		return ib.OpRCReadResponseFirst
	case last:
		return ib.OpRCReadResponseLast
	}
	return ib.OpRCReadResponseMiddle
}

// failRead ends the connection because the memory of a READ cannot be read any
// more. The NAK has the PSN of the response that could not be written.
//
// If the READ was answered in full before, what asks for it again may be a late
// duplicate, of which a requester that has told us since to close the key knows
// nothing: that alone is dropped.
func (r *responder) failRead(now time.Duration, s mem.Status, res *readResource) {
	if r.reads.at < r.reads.fresh {
		r.q.count(DropNoResource)
		res.next = res.stop
		r.reads.advance()
		return
	}
	seq := res.next
	r.forget()
	r.denied(now, s, seq)
}

// forget drops all answers that are due: an ACK past them never leaves, as a NAK
// is written instead or the queue pair is in error.
func (r *responder) forget() {
	r.reads.reset()
	r.flushes = r.flushes[:0]
}
