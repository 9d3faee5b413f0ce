package sim

import (
	"slices"

	"github.com/goroce/goroce/roce"
)

// wcRef is a completion and the node where it was found.
type wcRef struct {
	n  *node
	wc roce.WC
}

// poll looks at some completions of a node. It reports whether there were any.
func (n *node) poll() bool {
	var buf [16]roce.WC
	k, err := n.cq.Poll(buf[:1+n.w.rng.IntN(len(buf))])
	if err != nil {
		n.w.fail("node %d: poll: %v", n.i, err)
	}
	list := make([]wcRef, 0, k)
	for _, wc := range buf[:k] {
		list = append(list, wcRef{n, wc})
	}
	if f := n.w.cfg.hooks.completions; f != nil && k > 0 {
		list = f(list)
	}
	for _, x := range list {
		n.complete(&x.wc)
	}
	return k > 0
}

// complete takes one completion and checks all that follows from it.
func (n *node) complete(wc *roce.WC) {
	w := n.w
	w.res.Completions++
	w.trace.add(event{at: w.now, node: n.i, what: "wc", qpn: wc.QPN, wc: *wc})
	s := w.byQPN[n.i][wc.QPN]
	switch {
	case s == nil:
		w.fail("node %d: completion of an unknown queue pair: %+v", n.i, *wc)
	case wc.Status == roce.WCWRFlushErr && wc.ID&recvID != 0 && s.silenced:
		s.flushed(wc)
	case wc.Status != roce.WCSuccess && s.doomed:
		s.failed(wc)
	case wc.Status != roce.WCSuccess:
		w.fail("%v: request %#x: status %v", s, wc.ID, wc.Status)
	case wc.ID&recvID != 0 && s.lossy():
		s.heard(wc)
	case wc.ID&recvID != 0:
		s.receiveCompleted(wc)
	default:
		s.sendCompleted(wc)
	}
}

var opcodes = map[roce.WROpcode]roce.WCOpcode{
	roce.WRSend: roce.WCSend, roce.WRSendWithImm: roce.WCSend, roce.WRSendWithInv: roce.WCSend,
	roce.WRBindMW: roce.WCBindMW, roce.WRRegMR: roce.WCRegMR, roce.WRLocalInv: roce.WCLocalInv,
	roce.WRWrite: roce.WCWrite, roce.WRWriteWithImm: roce.WCWrite, roce.WRRead: roce.WCRead,
	roce.WRAtomicFetAdd: roce.WCFetchAdd, roce.WRAtomicCmpSwp: roce.WCCompSwap, roce.WRAtomicWrite: roce.WCAtomicWrite, roce.WRFlush: roce.WCFlush,
}

// sendCompleted takes the completion of a signaled request; unsignaled ones before
// it have completed as well.
func (s *side) sendCompleted(wc *roce.WC) {
	w := s.w
	if s.broken {
		w.fail("%v: %#x succeeded after an error", s, wc.ID)
	}
	for s.completed < s.posted {
		r := s.ops[s.completed]
		last := r.id == wc.ID
		if signaled := r.flags&roce.Signaled != 0; last != signaled {
			w.fail("%v: completion of %#x, but next is %v", s, wc.ID, r)
			return
		}
		s.completed++
		s.finished(r)
		if !last {
			continue
		}
		if want := opcodes[r.op]; wc.Opcode != want {
			w.fail("%v: %v completed as %v, want %v", s, r, wc.Opcode, want)
		}
		if r.op == roce.WRRead && int(wc.ByteLen) != r.size {
			w.fail("%v: %v read %d bytes", s, r, wc.ByteLen)
		}
		return
	}
	w.fail("%v: completion of %#x, which is not outstanding", s, wc.ID)
}

// finished checks the memory of a request that has completed at its own side, and
// gives the buffers back.
func (s *side) finished(r *request) {
	r.done = true
	if r.isLocal() {
		r.grant.executed(r)
		return
	}
	if r.isAtomic() {
		s.found(r)
	}
	if at := r.local.holds(r.key, 0, r.size); at >= 0 && !r.finds() {
		s.w.fail("%v: %v: byte %d of the local buffer is wrong", s, r, at)
	}
	r.local.release() // scribbled over at once
	r.local = nil
	switch {
	case s.lossy(): // see forget
	case r.writes():
		s.arrived(r)
		s.freeRemote(r)
	case r.op == roce.WRRead:
		if at := differs(r.remote.bytes(), r.key, 0); at >= 0 {
			s.w.fail("%v: %v: byte %d of its source has changed", s, r, at)
		}
		r.giveBack()
	}
}

// arrived checks that the payload of a WRITE is in the memory of the peer.
func (s *side) arrived(r *request) {
	if r.arrived {
		return
	}
	r.arrived = true
	if at := differs(r.remote.bytes(), r.key, 0); at >= 0 {
		s.w.fail("%v: %v: byte %d is not in the peer's memory", s, r, at)
	}
}

// freeRemote gives back the target of a WRITE once both sides have looked at it.
func (s *side) freeRemote(r *request) {
	if r.done && (r.op == roce.WRWrite || r.received) {
		if at := differs(r.remote.bytes(), r.key, 0); at >= 0 {
			s.w.fail("%v: %v: byte %d was changed later", s, r, at)
		}
		r.giveBack()
	}
}

// claim returns the request of the peer that the next receive request is for, whose
// completion wc is, or nil if there is none.
func (s *side) claim(wc *roce.WC) *request {
	posted := s.recvNext
	if s.pool != nil {
		posted = len(s.recvs)
	}
	if s.recvDone == posted {
		s.w.fail("%v: receive %#x completed, but none is due: %v", s, wc.ID, wc.Status)
		return nil
	}
	r := s.recvs[s.recvDone]
	switch {
	case s.pool != nil:
		var ok bool
		if r.recv, ok = r.pool.take(s, wc); !ok {
			return nil
		}
	case wc.ID != r.id|recvID:
		s.w.fail("%v: receive %#x completed, but next is that of %v: %v", s, wc.ID, r, wc.Status)
		return nil
	}
	s.recvDone++
	return r
}

// completionOf is how the receive of a message completes.
func (s *side) completionOf(id uint64, r *request) roce.WC {
	wc := roce.WC{ID: id, Opcode: roce.WCRecv, QPN: s.qp.Num(), ByteLen: uint32(r.size), Solicited: r.flags&roce.Solicited != 0}
	if r.writes() {
		wc.Opcode = roce.WCRecvRDMAWithImm
	}
	if r.op == roce.WRSendWithImm || r.op == roce.WRWriteWithImm {
		wc.Flags, wc.Imm = roce.WCWithImm, r.imm
	}
	if r.op == roce.WRSendWithInv {
		wc.Flags, wc.Imm = roce.WCWithInv, r.rkey
	}
	return wc
}

// receiveCompleted takes the completion of a receive request.
func (s *side) receiveCompleted(wc *roce.WC) {
	r := s.claim(wc)
	if r == nil {
		return
	}
	if s.recvBroken {
		s.w.fail("%v: receive %#x succeeded after an error", s, wc.ID)
	}
	r.received = true
	want, n := s.completionOf(wc.ID, r), r.size
	if r.writes() {
		n = 0
	}
	got := *wc
	got.SrcQP, got.VendorErr = 0, 0
	if got != want {
		s.w.fail("%v: %v was received as %+v, want %+v", s, r, *wc, want)
	}
	if at := r.recv.holds(r.key, 0, n); at >= 0 {
		s.w.fail("%v: %v: byte %d of the receive buffer is wrong", s, r, at)
	}
	s.freeReceive(r)
	// IBTA 10.8.3.3: what was posted before it has been executed, READs apart.
	for _, before := range s.peer.ops[s.peer.completed:max(s.peer.completed, slices.Index(s.peer.ops, r)+1)] {
		switch {
		case before.writes():
			s.peer.arrived(before)
		case before.op == roce.WRAtomicWrite:
			s.peer.written(before)
		}
	}
	switch {
	case r.writes():
		s.peer.freeRemote(r)
	case r.op == roce.WRSendWithInv:
		s.invalidated(wc)
	}
}

// freeReceive gives the buffer of a receive request back.
func (s *side) freeReceive(r *request) {
	if s.pool == nil {
		for _, p := range r.recv {
			s.held -= p.n
		}
	}
	r.recv.release()
	r.recv = nil
}
