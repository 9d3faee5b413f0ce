package transport

import (
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// This file executes atomics and ATOMIC_WRITEs, once: they take a resource as
// READs do, in which their answer stays until MaxDestRdAtomic later ones have
// come (IBTA 9.4.5, 9.7.5.1, A19). So they are bounded by the same limit.

// atomic takes a new FETCH_ADD or CMP_SWAP. The order of the checks is that of
// Linux rxe_resp.c: the right of the queue pair, resources, key and range,
// alignment.
func (r *responder) atomic(now time.Duration, in *Inbound) {
	h := in.AtomicETH()
	if r.q.attr.Access&mem.RemoteAtomic == 0 || r.reads.full() {
		r.invalid(now)
		return
	}
	s := r.openWord(h.RKey, h.VA, mem.RemoteAtomic)
	var found uint64
	switch {
	case s != mem.OK:
	case in.Info().Op == ib.KindFetchAdd:
		found, s = r.target.FetchAdd(h.SwapAdd)
	default:
		found, s = r.target.CompareSwap(h.Compare, h.SwapAdd)
	}
	r.executed(now, s, readResource{kind: in.Info().Op, va: h.VA, rkey: h.RKey, result: found})
}

// atomicWrite takes a new ATOMIC_WRITE: it needs the right to write (Linux
// rxe_resp.c, check_op_valid) and has 8 bytes (IBTA A19).
func (r *responder) atomicWrite(now time.Duration, in *Inbound) {
	h := in.RETH()
	if r.q.attr.Access&mem.RemoteWrite == 0 || r.reads.full() || h.Length != mem.WordSize {
		r.invalid(now)
		return
	}
	s := r.openWord(h.RKey, h.VA, mem.RemoteWrite)
	if s == mem.OK {
		s = r.target.StoreWord(in.Payload())
	}
	r.executed(now, s, readResource{kind: ib.KindAtomicWrite, va: h.VA, rkey: h.RKey, length: h.Length})
}

// openWord makes a word the target.
func (r *responder) openWord(rkey uint32, va uint64, need mem.Access) mem.Status {
	s := r.target.Remote(r.srq.Mem, r.srq.PD, rkey, va, mem.WordSize, need)
	if s == mem.OK && va%mem.WordSize != 0 {
		return mem.Misaligned
	}
	return s
}

// executed answers the expected packet, an atomic that gave s: it keeps the
// resource for the answer. A word that is not aligned is an invalid request
// (IBTA 9.7.5.2; Linux rxe_resp.c), unlike all else that memory can refuse.
func (r *responder) executed(now time.Duration, s mem.Status, res readResource) {
	r.target.Reset()
	switch s {
	case mem.OK:
	case mem.Misaligned:
		r.invalid(now)
		return
	default:
		r.denied(now, s, r.expected)
		return
	}
	r.countMessage()
	res.first, res.last, res.answer = r.expected, r.expected, answer{r.expected, r.expected, r.expected + 1}
	res.msn, res.before, res.srq = r.msn, r.last, r.srq
	r.reads.add(res)
	r.expected++
}

// putAtomic writes the answer of res, the current resource: ATOMIC ACKNOWLEDGE
// with what was found, or for an ATOMIC_WRITE a READ response without payload
// (IBTA A19). It returns its size, 0 when there was no room.
func (r *responder) putAtomic(out Outbox, res *readResource) int {
	op := ib.OpRCAtomicAck
	if res.kind == ib.KindAtomicWrite {
		op = ib.OpRCReadResponseOnly
	}
	b := r.putAnswer(out, op, res.first, ackHeader(res.msn), res.result)
	if b > 0 {
		res.next++
		r.reads.advance()
	}
	return b
}

// ackHeader is the header of a response that is no NAK.
func ackHeader(msn uint32) ib.AETH {
	return ib.AETH{Syndrome: ib.AckSyndrome(ib.CreditsInvalid), MSN: msn}
}

// putAnswer writes a response of one packet without payload.
func (r *responder) putAnswer(out Outbox, op ib.Opcode, seq uint64, h ib.AETH, found uint64) int {
	b := r.q.newPacket(out, op, 0, seq, false, false)
	if b == nil {
		return 0
	}
	n := ib.BTHSize + h.Put(b[ib.BTHSize:])
	if op.Info().AtomicAckETH {
		ib.AtomicAckETH(found).Put(b[n:])
	}
	r.q.commit(out)
	return len(b)
}
