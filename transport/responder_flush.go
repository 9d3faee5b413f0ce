package transport

import (
	"cmp"
	"slices"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// This file answers FLUSHes (IBTA A19). All WRITEs before one are in memory when
// it arrives, where everybody sees them: that is what "global" asks for. For
// "persistent" the memory is handed to the region's mem.Sync, in pieces, as the
// engine must not stand still for long; the answer follows the last piece.
//
// FLUSHes are not counted against the responder resources, and need none: a
// duplicate says all that is needed to execute it again.

const (
	// maxFlushes is how many FLUSHes may wait for their answers; more are
	// dropped as if lost on the way.
	maxFlushes = 16
	// flushPiece is how many bytes are made persistent in one turn.
	flushPiece = 1 << 20
)

// flushRequest is a FLUSH whose answer is due.
type flushRequest struct {
	seq       uint64
	va        uint64
	done      uint64 // bytes that are persistent
	length    uint32
	rkey      uint32
	msn       uint32
	need      mem.Access // FlushGlobal, FlushPersistent
	whole     bool       // the whole region, whatever va and length say
	duplicate bool       // what fails is dropped
}

// newFlush reads the request. It reports false when it asks for nothing or for
// something unknown.
func newFlush(in *Inbound, seq uint64, msn uint32) (f flushRequest, ok bool) {
	t, h := in.FETH(), in.RETH()
	f = flushRequest{seq: seq, va: h.VA, length: h.Length, rkey: h.RKey, msn: msn, whole: t.Level == ib.FlushMR}
	if t.Global {
		f.need |= mem.FlushGlobal
	}
	if t.Persistent {
		f.need |= mem.FlushPersistent
	}
	return f, f.need != 0 && t.Level <= ib.FlushMR
}

// open opens the memory of the FLUSH.
func (f *flushRequest) open(r *responder, c *mem.Cursor) mem.Status {
	if f.whole {
		return c.RemoteRegion(r.srq.Mem, r.srq.PD, f.rkey, f.need)
	}
	return c.Remote(r.srq.Mem, r.srq.PD, f.rkey, f.va, uint64(f.length), f.need)
}

// takeFlush takes a new FLUSH. Its memory is checked now and flushed later.
func (r *responder) takeFlush(now time.Duration, in *Inbound) {
	f, ok := newFlush(in, r.expected, (r.msn+1)&0xffffff)
	if !ok || r.q.attr.Access&f.need != f.need {
		r.invalid(now)
		return
	}
	s := f.open(r, &r.target)
	r.target.Reset()
	if s != mem.OK {
		r.denied(now, s, r.expected)
		return
	}
	if !r.queueFlush(f) {
		return
	}
	r.countMessage()
	r.expected++
}

// replayFlush takes a duplicate FLUSH, whose answer may have been lost. One that
// is not allowed (any more) is dropped.
func (r *responder) replayFlush(in *Inbound, seq uint64) {
	f, ok := newFlush(in, seq, r.msn)
	f.duplicate = true
	if !ok || r.q.attr.Access&f.need != f.need || r.reads.find(seq) != nil {
		r.q.count(DropDuplicate)
		return
	}
	r.queueFlush(f)
}

// queueFlush makes the answer of f due, in PSN order. It reports false when there
// is no room for it.
func (r *responder) queueFlush(f flushRequest) bool {
	i, due := slices.BinarySearchFunc(r.flushes, f.seq, func(x flushRequest, seq uint64) int { return cmp.Compare(x.seq, seq) })
	if due {
		r.q.count(DropDuplicate)
		return true
	}
	if len(r.flushes) == maxFlushes {
		r.q.count(DropNoResource)
		return false
	}
	if r.flushes == nil {
		r.flushes = make([]flushRequest, 0, maxFlushes)
	}
	r.flushes = slices.Insert(r.flushes, i, f)
	return true
}

// nextFlush returns the FLUSH whose answer is due before those of all READs, or
// nil.
func (r *responder) nextFlush() *flushRequest {
	if len(r.flushes) == 0 || r.reads.due() && r.reads.current().first < r.flushes[0].seq {
		return nil
	}
	return &r.flushes[0]
}

// putFlush goes on with f, the first FLUSH: one piece, or its answer. It returns
// what that costs of a turn; 0 when there was no room, or f has ended.
func (r *responder) putFlush(now time.Duration, out Outbox, f *flushRequest) int {
	left, s := r.persist(f)
	switch {
	case s != mem.OK && f.duplicate:
		r.q.count(DropDuplicate)
		r.flushes = slices.Delete(r.flushes, 0, 1)
		return 1 // nothing was written, but others may be due
	case s != mem.OK:
		seq := f.seq
		r.forget()
		r.denied(now, s, seq)
		return 0
	case left:
		return flushPiece
	}
	n := r.putAnswer(out, ib.OpRCReadResponseOnly, f.seq, ackHeader(f.msn), 0)
	if n > 0 {
		r.flushes = slices.Delete(r.flushes, 0, 1)
	}
	return n
}

// persist makes the next piece of f persistent, if that is asked for, and reports
// whether some is left.
func (r *responder) persist(f *flushRequest) (left bool, s mem.Status) {
	if f.need&mem.FlushPersistent == 0 {
		return false, mem.OK
	}
	r.reads.close() // a READ in mid-answer opens its memory again
	c := &r.reads.source
	if s = f.open(r, c); s != mem.OK {
		return false, s
	}
	n := min(flushPiece, c.Len()-min(f.done, c.Len()))
	if n > 0 {
		s = c.Persist(f.done, n)
		f.done += n
	}
	left = f.done < c.Len()
	c.Reset()
	return left, s
}
