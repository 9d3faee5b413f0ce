package transport

import (
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// This file decides what the responder answers: ACKs, NAKs, RNR NAKs and what
// duplicates get. All of them are opcode ACKNOWLEDGE (IBTA 9.7.5.1). They are
// only noted while packets come in, and written once per batch by control, so
// that one ACK stands for all packets before it (IBTA 9.7.5.1, coalesced
// acknowledges).

// wants reports what is due.
func (r *responder) wants() (w Want) {
	if r.pending() {
		w |= WantData
	}
	if r.nakReady() || r.ackReady() {
		w |= WantControl
	}
	return w
}

// control writes the NAK or the ACK that is due. What the outbox has no room
// for stays due.
func (r *responder) control(_ time.Duration, out Outbox) {
	switch {
	case r.nakReady():
		// A NAK acknowledges everything before it (IBTA 9.7.5.1).
		if r.putNAK(out) {
			r.nakDue, r.ackDue = false, false
		}
	case r.ackReady():
		if r.putAck(out, ib.AckSyndrome(ib.CreditsInvalid), r.ack.seq, r.ack.msn) {
			r.ackDue = false
		}
	}
}

func (r *responder) nakReady() bool { return r.nakDue && !r.blocked(r.nak.seq) }
func (r *responder) ackReady() bool { return r.ackDue && !r.blocked(r.ack.seq) }

// blocked reports whether an acknowledgement of seq has to wait for READ
// responses or other answers. An ACK past a READ whose data has not come is an
// implied NAK of it (IBTA 9.7.5.1); an ACK with its PSN even completes it without
// data, and one amid its responses may be taken for a fault (Linux
// drivers/infiniband/sw/rxe/rxe_comp.c).
func (r *responder) blocked(seq uint64) bool {
	return r.reads.pending() && (seq >= r.reads.barrier() || r.reads.amid()) || len(r.flushes) > 0 && seq >= r.flushes[0].seq
}

// noteAck makes an ACK of p due. Of two the later one stands for both.
func (r *responder) noteAck(p ackPoint) {
	if !r.ackDue || p.seq > r.ack.seq {
		r.ack = p
	}
	r.ackDue = true
	if r.blocked(r.ack.seq) {
		r.q.count(AckDeferred)
	}
}

// noteNAK makes a NAK due.
func (r *responder) noteNAK(s ib.Syndrome, seq uint64) {
	r.nak = nakPoint{s, seq, r.msn}
	r.nakDue = true
}

// gap takes a packet beyond the expected one and keeps it for its turn, if there is
// room. The first gets a sequence NAK, the others nothing until the expected packet
// has come (IBTA 9.7.5.2; Linux rxe_resp.c, check_psn), unless the peer takes selective
// ones; after an RNR NAK not even the first, because the requester is only going on
// with what it had queued.
func (r *responder) gap(in *Inbound, seq uint64) {
	switch {
	case r.early.has(seq):
		r.q.count(DuplicateRequest)
		r.twice = true
	case r.early.keep(&in.Packet, seq, r.expected):
		r.q.count(OutOfSequenceKept)
	case r.refused:
		r.q.count(DropAfterNAK)
	}
	if !r.refused || r.tells() {
		r.missed()
	}
}

// missed makes a NAK for the expected packet due.
func (r *responder) missed() {
	if !r.refused {
		r.refused = true
		r.q.count(OutOfSequence)
	}
	r.noteNAK(ib.NAKSyndrome(ib.NAKSequence), r.expected)
}

// notReady refuses a packet that needs a receive where none is posted: the
// requester comes back with it after MinRNRTimer (IBTA 9.7.5.2.8).
func (r *responder) notReady() {
	r.refused = true
	r.q.count(SendRNR)
	r.noteNAK(ib.RNRSyndrome(r.q.attr.MinRNRTimer), r.expected)
}

// duplicate takes a packet from before the expected one.
func (r *responder) duplicate(in *Inbound, seq uint64) {
	r.q.count(DuplicateRequest)
	switch in.Info().Op {
	case ib.KindSend, ib.KindWrite:
		r.ackDuplicate(seq)
	case ib.KindReadRequest, ib.KindFetchAdd, ib.KindCmpSwap, ib.KindAtomicWrite:
		r.replay(in, seq)
	case ib.KindFlush:
		r.replayFlush(in, seq)
	default:
		r.q.count(DropNoResource)
	}
}

// ackDuplicate acknowledges a duplicate SEND or WRITE, always: its first ACK
// may be what was lost (IBTA C9-105). The ACK covers everything executed since,
// but stops before the next READ: the requester that came back to seq will come
// to that READ too, and an ACK past it would be an implied NAK (Linux
// hw/hfi1/rc.c does the same).
func (r *responder) ackDuplicate(seq uint64) {
	if r.reads.find(seq) != nil {
		r.q.count(DropDuplicate) // it was a READ that had this PSN
		return
	}
	p := r.last
	r.twice = true
	if res := r.reads.after(seq); res != nil {
		p = res.before
	}
	r.noteAck(p)
}

// invalid ends the connection because the expected packet breaks the protocol
// or asks for what the QP does not allow (IBTA 9.7.5.2, 9.9.3 class C).
func (r *responder) invalid(now time.Duration) {
	r.fail(now, ib.NAKInvalidRequest, r.expected, EventQPReqErr)
}

// denied ends the connection because memory cannot be accessed at the packet
// seq (IBTA 9.7.5.2). When memory that the peer may use is not there, that is
// our failure and not its (IBTA 9.7.5.2).
func (r *responder) denied(now time.Duration, s mem.Status, seq uint64) {
	if s == mem.Fault {
		r.fail(now, ib.NAKRemoteOperational, seq, EventQPFatal)
		return
	}
	r.fail(now, ib.NAKRemoteAccess, seq, EventQPAccessErr)
}

// fail issues a NAK that ends the connection and puts the QP into ERR. The NAK
// leaves after the READ responses that are still due.
func (r *responder) fail(now time.Duration, code ib.NAKCode, seq uint64, ev Event) {
	switch code {
	case ib.NAKInvalidRequest:
		r.q.count(RespRemoteInvalid)
	case ib.NAKRemoteAccess:
		r.q.count(RespRemoteAccessErr)
	case ib.NAKRemoteOperational:
		r.q.count(RespRemoteOpErr)
	}
	r.noteNAK(ib.NAKSyndrome(code), seq)
	r.failed = true
	r.q.fail(now, ev)
}

// putAck writes one ACKNOWLEDGE, or reports that there was no room.
func (r *responder) putAck(out Outbox, s ib.Syndrome, seq uint64, msn uint32) bool {
	if r.twice && r.q.kin {
		r.q.resv |= bitTwice
	}
	b := r.q.newPacket(out, ib.OpRCAck, 0, seq, false, false)
	r.q.resv &^= bitTwice
	if b == nil {
		return false
	}
	r.twice = false
	ib.AETH{Syndrome: s, MSN: msn}.Put(b[ib.BTHSize:])
	r.q.commit(out)
	return true
}
