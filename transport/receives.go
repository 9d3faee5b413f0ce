package transport

import (
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// receives is what the receivers of all services have in common: the receive
// request that a message fills, and how it completes.
type receives struct {
	q       *QP
	srq     *SRQ    // where the message goes: but for XRC the QP's own
	wqe     RecvWQE // the receive that was taken for the message
	haveWQE bool
	wc      WC // scratch, so that a completion needs no allocation
}

// grow makes room, so that taking a receive seldom allocates.
func (r *receives) grow() {
	if cap(r.wqe.SGE) == 0 {
		r.wqe.SGE = make([]mem.SGE, 0, 4) // grows at most log2(MaxSGE) times
	}
}

// takeWQE takes a receive for the message, once. It reports false when there is
// none.
func (r *receives) takeWQE() bool {
	if !r.haveWQE {
		r.haveWQE = r.srq.RQ.Pop(&r.wqe)
	}
	return r.haveWQE
}

// completeReceive completes the receive of a message of n bytes that ended; src
// is its sender, flags say what else the completion has.
func (r *receives) completeReceive(in *Inbound, op WCOpcode, n uint64, src ib.QPN, flags WCFlags) {
	r.wc = WC{
		ID: r.wqe.ID, Opcode: op, ByteLen: uint32(n), Flags: flags,
		Solicited: in.Solicited(), QPN: r.q.cfg.Num, SrcQP: src,
	}
	switch info := in.Info(); {
	case info.Imm:
		r.wc.Flags |= WCWithImm
		r.wc.Imm = uint32(in.Imm())
	case info.IETH:
		r.wc.Flags |= WCWithInv
		r.wc.Imm = uint32(in.IETH())
	}
	r.q.count(RDMARecvs)
	r.pushReceive()
}

// errorReceive completes the receive of the message with an error, which the
// caller lets end the queue pair.
func (r *receives) errorReceive(s WCStatus) {
	r.q.announce(Err)
	r.wc = WC{ID: r.wqe.ID, Status: s, Opcode: WCRecv, QPN: r.q.cfg.Num}
	r.pushReceive()
}

// failBuffer completes the receive of a message of an unreliable service because
// its buffers cannot be written, and puts the queue pair into ERR (IBTA 9.9.3).
func (r *receives) failBuffer(now time.Duration) {
	r.errorReceive(WCLocProtErr)
	r.q.count(RespCQEErr)
	r.q.fail(now, noEvent)
}

// flushReceives completes all receives with WCWRFlushErr. Of a shared receive
// queue, as all of XRC are, only the one taken for a message that is not whole is the QP's to flush
// (IBTA 10.2.9.3).
func (r *receives) flushReceives() {
	for r.haveWQE || !r.q.sharesRQ() && r.takeWQE() {
		r.errorReceive(WCWRFlushErr)
		r.q.count(RespCQEFlush)
	}
}

// pushReceive delivers the completion in r.wc. What was posted to a receive queue
// that is destroyed never completes.
func (r *receives) pushReceive() {
	r.haveWQE = false
	if !r.srq.Closed {
		r.srq.CQ.Push(&r.wc)
	}
}

// fitsMTU judges a payload by its position: FIRST and MIDDLE are full, LAST is
// not empty, none is longer than the path MTU (IBTA 9.7.4.1.6; Linux rxe_resp.c,
// check_length).
func fitsMTU(pos ib.Position, n, mtu int) bool {
	switch pos {
	case ib.PosFirst, ib.PosMiddle:
		return n == mtu
	case ib.PosLast:
		return n > 0 && n <= mtu
	}
	return n <= mtu
}
