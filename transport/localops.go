package transport

import (
	"time"

	"github.com/goroce/goroce/mem"
)

// This file has the operations of a send queue that are done on this side alone:
// invalidating a key, binding a memory window, registering a region (IBTA 10.6.3,
// 10.6.7.2). They take their place in the order of the queue but no PSN.
//
// Order. A local operation is executed when its turn to begin has come, before
// anything behind it begins (IBTA 10.8.3.3); with the fence after earlier READs and
// atomics. An invalidation always waits until everything before it has completed:
// that is the local invalidate fence (IBTA 10.6.5.1), which this stack, as Linux
// rxe_req.c, does not leave to the poster, because a packet that has to be sent
// again would find its memory gone. All complete in the order of the queue; one
// that was executed but not completed when the queue pair fails is flushed. UC has
// nothing to wait for.

// local says whether an operation sends no packet.
func (op WROpcode) local() bool { return op < 64 && localOps>>op&1 != 0 }

// SetLocalInv makes w invalidate a key of the own side.
func (w *SendWQE) SetLocalInv(key uint32) { w.Opcode, w.Imm = WRLocalInv, key }

// SetBind makes w open the window that key names by its upper 24 bits, under key,
// for part of a region.
func (w *SendWQE) SetBind(key uint32, b *mem.Bind) {
	w.Opcode, w.RKey = WRBindMW, key
	w.Imm, w.RemoteAddr, w.CompareAdd, w.Swap = b.LKey, b.Addr, b.Length, uint64(b.Access)
}

// SetRegMR makes w register the region that key names by its upper 24 bits, under
// key, with the memory that it was told by [mem.Region.Map].
func (w *SendWQE) SetRegMR(key uint32, acc mem.Access) {
	w.Opcode, w.RKey, w.Swap = WRRegMR, key, uint64(acc)
}

// self names the queue pair to the checks of package mem.
func (q *QP) self() mem.QP { return mem.QP{PD: q.cfg.PD, Num: uint32(q.cfg.Num)} }

// execute does a local operation. All that can go wrong is one status, memory
// management operation error (IBTA 11.6.2), as with mlx5; rxe has it for binds only
// and ends the others with WCLocQPOpErr.
func (q *QP) execute(e *SendWQE) WCStatus {
	t := q.cfg.Mem
	var s mem.Status
	switch e.Opcode {
	case WRLocalInv:
		s = t.Invalidate(q.self(), e.Imm, false)
	case WRBindMW:
		s = t.Bind(q.self(), e.RKey, &mem.Bind{LKey: e.Imm, Addr: e.RemoteAddr, Length: e.CompareAdd, Access: mem.Access(e.Swap)})
	case WRRegMR:
		s = t.FastRegister(q.self(), e.RKey, mem.Access(e.Swap))
	}
	if s != mem.OK {
		return WCMWBindErr
	}
	return WCSuccess
}

// local takes up and executes a local operation, whose turn it is.
func (r *requester) local(now time.Duration, e *SendWQE) {
	*r.newRecord() = record{id: e.ID, op: e.Opcode, flags: e.Flags, first: r.end, end: r.end, cum: r.endCum}
	if s := r.q.execute(e); s != WCSuccess {
		r.condemn(now, r.begun, s)
		return
	}
	r.begun++
	r.cur = r.begun
	if r.una == r.end {
		r.progress(now, r.una) // nothing before it is left: it completes
	}
}

// skip passes the local operations at cur, which were executed: going back does
// not repeat them.
func (r *requester) skip() {
	for r.cur != r.begun && r.at(r.cur).op.local() {
		r.cur++
	}
}

// invalidate closes the key that the peer names in a SEND with invalidate. A key
// that it may not close ends the connection, but nothing was wrong with the
// message, which is acknowledged: the peer gets no NAK (IBTA 9.9.3.1, responder class
// J; Linux rxe_resp.c completes the receive with the same status).
func (r *responder) invalidate(now time.Duration, key uint32) bool {
	self := mem.QP{PD: r.srq.PD, Num: uint32(r.q.cfg.Num)}
	if r.srq.Mem.Invalidate(self, key, true) == mem.OK {
		return true
	}
	r.errorReceive(WCRemInvReqErr)
	r.q.count(RespCQEErr)
	r.q.fail(now, noEvent)
	return false
}
