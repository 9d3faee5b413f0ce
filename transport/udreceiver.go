package transport

import (
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// udReceiver is the half of a UD queue pair that takes datagrams, from anybody
// who knows its Q_Key. It answers nothing: what a check refuses is dropped and
// counted (IBTA 9.8.3; Linux drivers/infiniband/sw/rxe/rxe_resp.c), except for a
// bad receive buffer of our own, which is an error of the queue pair.
type udReceiver struct {
	receives
	silent
	target mem.Cursor
	grh    [ib.GRHSize]byte
}

// maxDatagram is the most payload that any path carries, in bytes.
const maxDatagram = 4096

func (r *udReceiver) reset() {
	r.target.Reset()
	r.haveWQE = false
}

func (r *udReceiver) start(*Attr) {
	r.reset()
	r.grow()
}

func (r *udReceiver) flush() { r.flushReceives() }

// receive takes one datagram. PSNs mean nothing (IBTA 9.8.3.1).
func (r *udReceiver) receive(now time.Duration, in *Inbound) {
	d, p := in.DETH(), in.Payload()
	switch {
	case d.QKey != r.q.attr.QKey:
		r.q.count(DropQKey) // IBTA 10.2.5
		return
	case len(p) > maxDatagram:
		r.q.count(RespRemoteInvalid)
		return
	case !r.takeWQE():
		r.q.count(DropNoReceive)
		return
	}
	defer r.target.Reset()
	if r.target.Local(r.q.cfg.Mem, r.q.cfg.PD, r.wqe.SGE, mem.LocalWrite) != mem.OK {
		r.failBuffer(now)
		return
	}
	n := uint64(ib.GRHSize + len(p))
	if n > r.target.Len() {
		r.q.count(RespLocalLengthErr) // the receive waits for a datagram that fits
		return
	}
	ib.PutGRH(r.grh[:], in.Src, in.Dst, in.TOS, len(in.Bytes()))
	if r.target.CopyIn(0, r.grh[:]) != mem.OK || r.target.CopyIn(ib.GRHSize, p) != mem.OK {
		r.failBuffer(now)
		return
	}
	r.completeReceive(in, WCRecv, n, d.SrcQP, WCGRH)
}
