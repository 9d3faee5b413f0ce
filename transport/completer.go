package transport

import (
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
	"github.com/goroce/goroce/transport/cc"
)

// receive takes a response of the peer.
func (r *requester) receive(now time.Duration, in *Inbound) {
	r.parked = false
	defer r.q.pace.heard(now, &r.rtt)
	switch in.Info().Op {
	case ib.KindAck:
		r.acknowledge(now, in)
	case ib.KindAtomicAck:
		if r.isSelective(in) {
			r.acknowledge(now, in)
			return
		}
		r.readResponse(now, in)
	case ib.KindReadResponse:
		r.readResponse(now, in)
	default:
		r.q.count(DropBadResponse)
	}
}

// acknowledge takes an ACK, NAK or RNR NAK. Each acknowledges everything before
// its PSN, an ACK its PSN as well (IBTA 9.7.5.1.1); the MSN and credits of which
// nobody agreed are ignored.
func (r *requester) acknowledge(now time.Duration, in *Inbound) {
	seq := extend(in.PSN(), r.una)
	syn := in.AETH().Syndrome
	oldest := r.una
	if syn.Kind() != ib.SynAck && r.done != r.begun && r.at(r.done).op == WRRead {
		// An error in the middle of a READ names the PSN of its request, which
		// is older than the responses that came (Linux rxe_resp.c).
		oldest = r.at(r.done).first
	}
	if r.q.kin && in.Resv7()&bitTwice != 0 {
		r.inVain()
	}
	if seq < oldest || seq >= r.top {
		r.q.count(DropGhost)
		return
	}
	to := seq
	if syn.Kind() == ib.SynAck {
		to++
	}
	r.q.listens(in)
	if r.advance(now, to); !r.live() {
		return
	}
	if in.Info().Op == ib.KindAtomicAck {
		r.hear(now, in, seq)
		return
	}
	if r.una < to {
		r.impliedNAK(now, syn, to)
		return
	}
	switch syn.Kind() {
	case ib.SynNAK:
		r.nak(now, syn.NAK(), seq)
	case ib.SynRNR:
		r.rnr(now, syn.RNRTimer())
	case ib.SynReserved:
		r.q.count(DropBadResponse)
	}
}

// impliedNAK acts on an acknowledgement of what is behind a READ whose responses are
// missing: the responder has sent them before (IBTA 9.7.5.2.9). An ACK has nothing
// repeated but them. What a NAK or RNR NAK refuses has to come again as well.
func (r *requester) impliedNAK(now time.Duration, syn ib.Syndrome, to uint64) {
	if syn.Kind() == ib.SynAck {
		r.behind(now, to, ImpliedNAK)
		return
	}
	r.q.count(ImpliedNAK)
	r.lost(now)
}

// nak acts on a NAK for packet seq (IBTA 9.9.2.1, 9.9.2.4.2).
func (r *requester) nak(now time.Duration, code ib.NAKCode, seq uint64) {
	switch code {
	case ib.NAKSequence:
		r.q.count(RcvdSeqErr)
		if seq == r.una {
			r.lost(now)
		}
	case ib.NAKInvalidRequest:
		r.q.count(ReqRemoteInvalid)
		r.fail(now, WCRemInvReqErr)
	case ib.NAKRemoteAccess:
		r.q.count(ReqRemoteAccessErr)
		r.fail(now, WCRemAccessErr)
	case ib.NAKRemoteOperational:
		r.q.count(ReqRemoteOpErr)
		r.fail(now, WCRemOpErr)
	default:
		r.fail(now, WCBadRespErr)
	}
}

// lost goes back to una, on a hint of the peer. Everything sent before the hint
// arrived may give the same hint, so it counts once until there is progress or
// a timeout. In an RNR wait una has not been sent yet, so nothing cuts the wait
// short: rxe answers what was in flight behind a refused packet with a sequence
// NAK (Linux rxe_resp.c).
func (r *requester) lost(now time.Duration) {
	if r.wentBack || r.nxt == r.una {
		return
	}
	r.wentBack = true
	r.try()
	r.win.lost(r.win.step, r.una, r.top, r.rtt.crowded(now))
	r.retry(now)
}

// rnr starts the wait that an RNR NAK asks for (IBTA 9.7.5.2.8). Of the two
// retry counts only this one knows "for ever", 7. The other begins anew: it is there
// for a peer that does not answer (IBTA 9.9.2.1), and this one has. Otherwise a peer
// that is slow to post receives would use it up by what a lossy network takes of the
// repetitions.
func (r *requester) rnr(now time.Duration, t ib.RNRTimer) {
	if r.waiting {
		return // the same, twice
	}
	r.q.count(RcvdRNR)
	switch r.rnrLeft {
	case 0:
		r.q.count(RNRRetryExceeded)
		r.fail(now, WCRNRRetryExcErr)
		return
	case 7:
	default:
		r.rnrLeft--
	}
	r.waiting, r.until = true, now+t.Duration()
	r.retries = r.q.attr.RetryCnt
	r.goBack()
}

// retry sends everything from una on again, if a retry is left.
func (r *requester) retry(now time.Duration) {
	if r.spend(now) {
		r.goBack()
	}
}

// spend takes one of the retries. Without one the other path is the last resort,
// from which everything starts anew.
func (r *requester) spend(now time.Duration) bool {
	switch {
	case r.retries > 0:
		r.q.count(CompleterRetry)
		r.retries--
		return true
	case r.q.escape(now):
		r.goBack()
	default:
		r.q.count(RetryExceeded)
		r.fail(now, WCRetryExcErr)
	}
	return false
}

// left lets the ack timer begin anew.
func (r *requester) left(now time.Duration) {
	if r.armed {
		r.since = now
	}
	r.rtt.again(r.una)
}

func (r *requester) inFlight() uint64 { return r.nxtCum - r.unaCum }
func (r *requester) repeats() bool    { return r.nxt < r.top }

// moved gives the new path all retries and a whole timeout (IBTA 17.2.8).
func (r *requester) moved(now time.Duration) {
	r.retries, r.wentBack, r.since = r.q.attr.RetryCnt, false, now
}

// deadline is when expire has something to do.
func (r *requester) deadline() time.Duration {
	switch t := r.q.attr.Timeout.Duration(); {
	case !r.live():
		return Never
	case r.waiting:
		return r.until
	case r.armed && t != 0:
		return min(r.since+t, r.probeAt())
	}
	return Never
}

// expire ends an RNR wait or runs the ack timer (IBTA 9.7.6.1.3), if due.
func (r *requester) expire(now time.Duration) {
	if t := r.deadline(); now < t || t == Never {
		return
	}
	if r.waiting {
		r.waiting, r.parked = false, false
		return
	}
	if now < r.since+r.q.attr.Timeout.Duration() {
		r.probe(now)
		return
	}
	r.q.count(LocalAckTimeout)
	r.q.pace.signal(now, cc.Signal{Kind: cc.Timeout})
	r.doubt()
	r.probing = false
	r.tried = attempt{}
	r.try()
	r.wentBack = false
	r.win.silent(r.top)
	r.retry(now)
}

// readResponse takes a packet of a READ response, or the answer to an atomic or a
// FLUSH. It acknowledges everything before the READ (IBTA 9.7.5.1.2). The answer to
// a repeated request may begin with a MIDDLE, as that of rxe does, or with a FIRST.
//
// One that others should have come before is placed at once: what a READ or an atomic
// brings is the program's to look at with the completion alone (IBTA 10.8.3.3 gives
// responses no order in memory). If something is wrong with it, it is dropped: it
// will come again, in its turn.
func (r *requester) readResponse(now time.Duration, in *Inbound) {
	seq := extend(in.PSN(), r.una)
	req := r.readOf(seq)
	if r.q.kin && (seq < r.una || req != nil && r.board.has(seq)) {
		r.inVain() // of our kin only responses that were missing are asked for again
	}
	switch {
	case r.numReads > 0 && seq < max(r.una, r.read(0).first), req != nil && r.board.has(seq):
		r.q.count(DropDuplicate)
		return
	case req == nil, seq-r.una >= boardSize:
		r.q.count(DropBadResponse)
		return
	}
	if r.advance(now, req.first); !r.live() {
		return
	}
	switch s := r.takeResponse(in, req, seq); {
	case s == WCSuccess:
		r.q.listens(in)
		req.fate = fateUnknown
		r.board.mark(seq)
		r.rtt.arrived(now, seq, r.delivered())
	case seq == r.una:
		r.fail(now, s)
		return
	default:
		r.q.count(DropBadResponse)
	}
	if r.advance(now, r.acked); r.una <= seq && r.live() {
		r.behind(now, seq+1, ImpliedNAK) // one was lost on the way
	}
}

// readOf returns the READ REQUEST that has a response seq, or nil.
func (r *requester) readOf(seq uint64) *readRequest {
	for i := range r.numReads {
		if req := r.read(i); seq >= req.first && seq < req.end {
			return req
		}
	}
	return nil
}

// takeResponse checks response seq of req and copies its payload to memory.
func (r *requester) takeResponse(in *Inbound, req *readRequest, seq uint64) WCStatus {
	info, c := in.Info(), r.at(req.rec)
	last := seq+1 == req.end
	if info.Op != c.op.answer() || info.Pos.Ends() != last && !(req.split && !last) || info.AETH && in.AETH().Syndrome.Kind() != ib.SynAck {
		return WCBadRespErr // IBTA 9.9.2.4.3
	}
	if c.op != WRRead {
		return r.takeAnswer(in, req)
	}
	off := c.offset(seq, r.mtu)
	data := in.Payload()
	if uint64(len(data)) != min(uint64(r.mtu), uint64(c.length)-off) {
		return WCLocLenErr // IBTA 9.9.2.4.3: too much or too little READ data
	}
	return r.land(req.rec, off, data)
}

// land copies what a response brings to the memory of request i.
func (r *requester) land(i uint32, off uint64, data []byte) WCStatus {
	if len(data) == 0 {
		return WCSuccess
	}
	if !r.rxOn || r.rxAt != i {
		r.rxOn = false
		if s := r.open(&r.rx, i, r.at(i)); s != WCSuccess {
			return s
		}
		r.rxAt, r.rxOn = i, true
	}
	if r.rx.CopyIn(off, data) != mem.OK {
		return WCLocProtErr
	}
	return WCSuccess
}

// advance takes note that the peer has everything before to; but a READ is only
// complete with its last response.
func (r *requester) advance(now time.Duration, to uint64) {
	r.acked = max(r.acked, to)
	if to = r.reach(); to > r.una {
		r.progress(now, to)
	}
}

// progress moves una to to and completes what ends before it.
func (r *requester) progress(now time.Duration, to uint64) {
	for r.done != r.begun && r.at(r.done).end <= to {
		r.complete(r.at(r.done))
	}
	r.free()
	if r.doomed && r.done == r.doomedAt+1 {
		r.doomed = false // its first transmission had arrived before the repetition failed
	}
	before := r.unaCum
	r.board.clear(r.una, to+1) // were to kept by the peer, it would be acknowledged
	r.una, r.unaCum = to, r.endCum
	if r.done != r.begun {
		r.unaCum = r.at(r.done).cumAt(to, r.mtu)
	}
	r.judgeProbe(now, to)
	if r.nxt < r.una {
		// What was to be sent again has arrived after all.
		r.cur = r.done
		r.moveTo(to)
	}
	r.rtt.passed(now, to, r.delivered())
	r.judge(now, to)
	if r.q.kin {
		r.win.kin = true
	}
	r.win.grow(r.unaCum-before, r.rtt.crowded(now))
	r.armed, r.since, r.again = r.nxt > r.una, now, 0
	r.retries, r.rnrLeft, r.wentBack = r.q.attr.RetryCnt, r.q.attr.RNRRetry, false
	r.settle(now)
	r.drained()
}

// complete ends the oldest request with success.
func (r *requester) complete(c *record) {
	r.done++
	wc := WC{ID: c.id, Opcode: c.op.completion()}
	if wc.Opcode == WCSend {
		r.q.count(RDMASends)
	}
	if c.flags&Signaled == 0 && !r.q.cfg.SigAll {
		return
	}
	if c.op.is(opFetches) {
		wc.ByteLen = c.length
	}
	r.push(wc)
}

// push delivers a completion, for all requests before done.
func (r *requester) push(wc WC) {
	r.free()
	r.wc = wc
	r.wc.QPN = r.q.cfg.Num
	r.q.cfg.SendCQ.Push(&r.wc)
}

// free returns the entries of completed requests to the poster: before the
// completion is pushed, whose reader may post at once.
func (r *requester) free() {
	if r.freed != r.done {
		r.freed = r.done
		r.q.cfg.SQ.Consume(r.done)
	}
}

// settle completes a request that failed locally, when its turn has come.
func (r *requester) settle(now time.Duration) {
	if r.doomed && r.done == r.doomedAt {
		r.fail(now, r.doom)
	}
}

// drained tells that a queue pair in SQD has finished what it had begun.
func (r *requester) drained() {
	if r.draining && r.done == r.begun {
		r.draining = false
		if r.q.attr.SQDrainNotify {
			r.q.event(EventSQDrained)
		}
	}
}

// fail ends the oldest request with an error and with it the queue pair. An
// error completes whether it was asked to be signaled or not (IBTA 10.7.3.1).
func (r *requester) fail(now time.Duration, s WCStatus) {
	wc := WC{ID: r.at(r.done).id, Status: s}
	r.done++
	r.q.count(ReqCQEErr)
	r.q.announce(Err)
	r.push(wc)
	r.q.fail(now, noEvent)
}

// flush completes all requests that are left with WCWRFlushErr, in state Err.
func (r *requester) flush() {
	sq := r.q.cfg.SQ
	for produced := sq.Produced(); r.done != produced; {
		wc := WC{ID: sq.Entry(r.done).ID, Status: WCWRFlushErr}
		r.done++
		r.q.count(ReqCQEFlush)
		r.push(wc)
	}
	r.clear()
}
