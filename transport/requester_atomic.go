package transport

import (
	"encoding/binary"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// This file sends the requests of one packet that complete only with an answer of
// their own, as READs do: atomics, ATOMIC_WRITE and FLUSH (IBTA 9.4.5, A19). They
// stand in the same ring of outstanding requests, are asked for again in the same
// way, and a fence waits for them.

// opTraits are properties of an operation.
type opTraits uint8

const (
	opAnswered opTraits = 1 << iota // completes with an answer of its own, not with an ACK
	opDepth                         // is counted against the initiator depth (IBTA 9.7.3.1)
	opFetches                       // its answer goes to the local segments
	opWord                          // has exactly one word
	opEmpty                         // has no payload
)

var traits = [16]opTraits{
	WRRead:         opAnswered | opDepth | opFetches,
	WRAtomicCmpSwp: opAnswered | opDepth | opFetches | opWord,
	WRAtomicFetAdd: opAnswered | opDepth | opFetches | opWord,
	WRAtomicWrite:  opAnswered | opDepth | opWord,
	WRFlush:        opAnswered | opEmpty, // Linux rxe_req.c counts no FLUSH
}

func (o WROpcode) is(t opTraits) bool { return int(o) < len(traits) && traits[o]&t != 0 }

// fits says whether the operation may have n bytes.
func (o WROpcode) fits(n uint64) bool {
	switch {
	case o.is(opWord):
		return n == mem.WordSize
	case o.is(opEmpty):
		return n == 0
	}
	return n <= maxMessage
}

// answer is the kind of packet that answers the operation.
func (o WROpcode) answer() ib.OpKind {
	if o == WRAtomicCmpSwp || o == WRAtomicFetAdd {
		return ib.KindAtomicAck
	}
	return ib.KindReadResponse
}

// depth is how many requests may be outstanding when one more is to be sent.
func (r *requester) depth(o WROpcode) int {
	n := int(r.q.attr.MaxRdAtomic)
	if !o.is(opDepth) {
		n = max(n, 1)
	}
	return n
}

// sendAtomic writes an atomic, an ATOMIC_WRITE or a FLUSH.
func (r *requester) sendAtomic(now time.Duration, out Outbox, c *record) (sent int, more bool) {
	again := r.readNext < r.numReads
	if !again && r.numReads >= r.depth(c.op) {
		return 0, false // IBTA 9.7.3.1: initiator depth
	}
	cost := charge(c.length)
	if !r.fits(cost) {
		return 0, false
	}
	var req readRequest
	if again {
		req = *r.read(r.readNext)
	} else {
		req = readRequest{first: c.first, end: c.end, rec: r.cur}
	}
	op, n := ib.OpRCFetchAdd, 0
	switch c.op {
	case WRAtomicCmpSwp:
		op = ib.OpRCCmpSwap
	case WRAtomicWrite:
		op, n = ib.OpRCAtomicWrite, mem.WordSize
	case WRFlush:
		op = ib.OpRCFlush
		req.sealed = r.form.choose(req.sealed, again)
	}
	b, at := r.newPacket(out, op, c, n, true, false)
	if b == nil {
		return 0, true
	}
	at += r.putOperands(b[at:], c)
	if s := r.copyOut(b[at:at+n], 0, c); s != WCSuccess {
		r.condemn(now, r.cur, s)
		return 0, false
	}
	r.q.commit(out)
	if again {
		*r.read(r.readNext) = req
	} else {
		r.addRead(req)
	}
	r.readNext++
	r.sent(now, c, 1, cost, cost, true)
	return len(b), true
}

// putOperands writes the operands of request cur and returns their size. The operands are read
// from the queue's entry each time: nothing but the peer's memory depends on them.
func (r *requester) putOperands(b []byte, c *record) int {
	e := r.q.cfg.SQ.Entry(r.cur)
	switch c.op {
	case WRAtomicFetAdd:
		return ib.AtomicETH{VA: c.raddr, RKey: c.rkey, SwapAdd: e.CompareAdd}.Put(b)
	case WRAtomicCmpSwp:
		return ib.AtomicETH{VA: c.raddr, RKey: c.rkey, SwapAdd: e.Swap, Compare: e.CompareAdd}.Put(b)
	case WRFlush:
		n := ib.FETH{
			Global: c.imm&uint32(PlaceGlobal) != 0, Persistent: c.imm&uint32(PlacePersistent) != 0, Level: uint8(c.imm >> 4 & 3),
		}.Put(b)
		return n + ib.RETH{VA: c.raddr, RKey: c.rkey, Length: uint32(e.CompareAdd)}.Put(b[n:])
	default: // ATOMIC_WRITE
		return ib.RETH{VA: c.raddr, RKey: c.rkey, Length: mem.WordSize}.Put(b)
	}
}

// takeAnswer takes the answer to req, which is no READ: for an
// atomic the word that it found, which the program gets in the byte order of the
// host (IBTA 9.4.5: on the wire it is a number, most significant byte first).
func (r *requester) takeAnswer(in *Inbound, req *readRequest) WCStatus {
	if len(in.Payload()) > 0 {
		return WCLocLenErr // IBTA 9.9.2.4.3
	}
	switch op := r.at(req.rec).op; {
	case op == WRFlush:
		r.form.learn(req.sealed)
		return WCSuccess
	case !op.is(opFetches):
		return WCSuccess
	}
	binary.NativeEndian.PutUint64(r.found[:], uint64(in.AtomicAck()))
	return r.land(req.rec, 0, r.found[:])
}

// sealed says how a FLUSH was sealed when it was sent last.
type sealed struct {
	twice bool // as Linux rxe wants it, see ib.Flow.SealFlushTwice
	again bool // it was sent more than once
}

// flushForm is how FLUSHes to the peer are sealed. rxe drops those that are sealed
// by the rule, so one that has to be repeated is sealed the other way than before,
// until one was answered that had been sent only once.
type flushForm struct {
	twice bool
	sure  bool
	next  bool // of the packet being written
	path  Path // scratch
}

// choose says how a FLUSH is sealed that is sent next.
func (f *flushForm) choose(s sealed, again bool) sealed {
	f.next = f.twice
	if again && !f.sure {
		f.next = !s.twice
	}
	return sealed{f.next, again}
}

// learn takes note that a FLUSH was answered.
func (f *flushForm) learn(s sealed) {
	if !f.sure {
		f.twice, f.sure = s.twice, !s.again
	}
}

// pathOf is the path of a request of the operation.
func (r *requester) pathOf(o WROpcode) *Path {
	if o != WRFlush || !r.form.next {
		return &r.q.path
	}
	r.form.path = r.q.path
	r.form.path.FlushTwice = true
	return &r.form.path
}
