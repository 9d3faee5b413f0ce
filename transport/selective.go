package transport

import (
	"math/bits"
	"time"

	"github.com/goroce/goroce/ib"
)

// This file is what two queue pairs of this package tell each other beyond the
// standard, so that only packets that were lost are sent again. docs/selective-repeat.md
// has the formats, and why no other peer is disturbed.
//
// The bits stand in the reserved field of the base header that the ICRC covers
// (resv7, IBTA 9.2: sent as 0, ignored when received).
const (
	// bitSelective: the sender of this packet takes selective NAKs, and repetitions of
	// a part of a READ.
	bitSelective = 0x40
	// bitTwice, in an acknowledgement: a request has come a second time.
	bitTwice = 0x20
)

// listens takes note of what a packet of the peer says about it. It has passed all
// checks of its PSN: what somebody forges is not believed sooner than that.
func (q *QP) listens(in *Inbound) {
	if in.Resv7()&bitSelective != 0 && q.resv != 0 {
		q.kin = true
	}
}

// selectiveBits is how many packets one selective NAK tells of.
const selectiveBits = 64

// putNAK writes the NAK that is due. If the peer understands it, a sequence NAK says
// which packets behind the missing one have come: it then is an ATOMIC ACKNOWLEDGE, in
// whose place for the original data bit i stands for the packet at PSN + 1 + MSN + i.
func (r *responder) putNAK(out Outbox) bool {
	n := &r.nak
	if !r.q.kin || r.early.n == 0 || n.syndrome != ib.NAKSyndrome(ib.NAKSequence) {
		return r.putAck(out, n.syndrome, n.seq, n.msn)
	}
	for from := n.seq + 1; from < r.early.high; from += selectiveBits {
		var kept uint64
		for i := range uint64(selectiveBits) {
			if r.early.has(from + i) {
				kept |= 1 << i
			}
		}
		h := ib.AETH{Syndrome: n.syndrome, MSN: uint32(from - n.seq - 1)}
		if kept != 0 && r.putAnswer(out, ib.OpRCAtomicAck, n.seq, h, kept) == 0 {
			return false
		}
	}
	return true
}

// tells says whether a gap is worth a NAK though one was sent for it: a selective
// one has news. After an RNR NAK it would only cut the wait short.
func (r *responder) tells() bool { return r.q.kin && r.nak.syndrome.Kind() != ib.SynRNR }

// isSelective says whether a response is a selective NAK. From others than our like an
// ATOMIC ACKNOWLEDGE with a NAK is an error of the peer. It may be the first that is
// heard of the peer.
func (r *requester) isSelective(in *Inbound) bool {
	return r.q.resv != 0 && in.Resv7()&bitSelective != 0 && in.AETH().Syndrome == ib.NAKSyndrome(ib.NAKSequence)
}

// hear takes a selective NAK for packet seq.
func (r *requester) hear(now time.Duration, in *Inbound, seq uint64) {
	from, high := seq+1+uint64(in.AETH().MSN), uint64(0)
	for kept := uint64(in.AtomicAck()); kept != 0; kept &= kept - 1 {
		if s := from + uint64(bits.TrailingZeros64(kept)); s > r.una && s < min(r.top, r.una+boardSize) {
			r.isKept(now, s)
			high = s + 1
		}
	}
	if high > 0 {
		for i := range r.numReads {
			if req := r.read(i); req.first >= seq && req.first < high && req.fate != fateKept {
				req.fate = fateLost
			}
		}
		r.behind(now, high, RcvdSeqErr)
	}
}

// isKept notes that the peer has packet seq, a request, for later.
func (r *requester) isKept(now time.Duration, seq uint64) {
	req := r.readOf(seq)
	switch {
	case req == nil:
		r.board.mark(seq)
		r.rtt.arrived(now, seq, r.delivered())
	case req.first == seq:
		req.fate = fateKept
	}
}

// doubt forgets what the peer is said to keep: after a timeout nothing is sure but
// what was acknowledged.
func (r *requester) doubt() {
	for i := range r.numReads {
		r.read(i).fate = fateUnknown
	}
	for seq := r.una; r.board.n > 0 && seq < min(r.top, r.una+boardSize); seq++ {
		if r.readOf(seq) == nil {
			r.board.clear(seq, seq+1)
		}
	}
}
