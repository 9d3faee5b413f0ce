package sim

import (
	"fmt"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// Failure is something that ends one connection, the first, in the middle of its
// work. Nothing else may notice, and every request of that connection completes
// all the same: those before the error successfully, the others flushed, in queue
// order.
type Failure uint8

const (
	NoFailure  Failure = iota
	Cut                // its packets get lost from some time on
	Destroy            // one side destroys its queue pair
	ToError            // one side moves its queue pair to ERR
	BadRKey            // a request has a remote key that does not exist
	OutOfRange         // a request names memory behind the peer's region
	BadLKey            // a request has a local key that does not exist
	ShortRecv          // a receive request is too small for its message
	Deregister         // one side takes its memory away
	NoRecv             // one side posts no receive requests any more
	DestroySRQ         // of XRC: the receive queue is destroyed
	Restart            // the device of one side, which has no other connection, is closed and opened anew
	NumFailures
)

var failureNames = [...]string{
	"none", "cut", "destroy", "to error", "bad rkey", "out of range", "bad lkey", "short receive", "deregister", "no receive", "destroy SRQ", "restart",
}

func (f Failure) String() string { return failureNames[f] }

// ownReceives says whether the failing sides post receive requests for themselves.
func (f Failure) ownReceives() bool { return f == ShortRecv || f == NoRecv || f == Restart }

// service is that of the connection that fails.
func (f Failure) service() roce.QPType {
	if f == DestroySRQ {
		return roce.XRCSend
	}
	return roce.RC
}

// statuses are what the requests of the connection may complete with, besides
// success and flushed. A NAK that ends a connection may itself get lost; its
// sender is silent afterwards, so that retries run out.
var statuses = [NumFailures][]roce.WCStatus{
	Cut:        {roce.WCRetryExcErr},
	Destroy:    {roce.WCRetryExcErr},
	ToError:    {roce.WCRetryExcErr},
	BadRKey:    {roce.WCRemAccessErr, roce.WCRetryExcErr},
	OutOfRange: {roce.WCRemAccessErr, roce.WCRetryExcErr},
	BadLKey:    {roce.WCLocProtErr, roce.WCRetryExcErr},
	ShortRecv:  {roce.WCRemInvReqErr, roce.WCLocLenErr, roce.WCRetryExcErr},
	Deregister: {roce.WCLocProtErr, roce.WCRemAccessErr, roce.WCRemOpErr, roce.WCRetryExcErr},
	NoRecv:     {roce.WCRNRRetryExcErr, roce.WCRetryExcErr},
	DestroySRQ: {roce.WCRemInvReqErr, roce.WCRetryExcErr},
	Restart:    {roce.WCRetryExcErr},
}

// patience is how long the sides of a broken connection go on before the one that
// has not noticed is put into error.
const patience = 2 * time.Second

// failing is the state of the failure of a run.
type failing struct {
	a, b  *side // a is the one that acts
	when  int   // ... when so many requests of both have completed
	fired bool
	seen  map[roce.WCStatus]int
}

// planFailure chooses who fails, and when.
func (w *world) planFailure() {
	f := &w.failing
	f.a, f.b = w.sides[0], w.sides[1]
	if second := w.rng.IntN(2) == 0; second && w.cfg.Failure != Restart || w.cfg.Failure == DestroySRQ { // the target is the second
		f.a, f.b = f.b, f.a
	}
	f.when = w.rng.IntN(max(1, len(f.a.ops)+len(f.b.ops)))
	f.seen = map[roce.WCStatus]int{}
}

// misbehave makes the failure happen when its time has come.
func (w *world) misbehave() {
	f := &w.failing
	if w.cfg.Failure == NoFailure || f.fired || f.a.completed+f.b.completed < f.when {
		return
	}
	f.fired = true
	switch w.cfg.Failure {
	case Destroy:
		if err := f.a.qp.Destroy(); err != nil {
			w.fail("%v: destroy: %v", f.a, err)
		}
		f.a.closed, f.a.destroyed = true, true
		f.b.forceAt = w.now + patience // without requests it would not notice
	case Restart:
		if err := w.restart(f.a); err != nil {
			w.fail("%v: restart: %v", f.a, err)
		}
	case ToError:
		f.a.toError()
	case DestroySRQ:
		if err := f.a.pool.srq.Destroy(); err != nil {
			w.fail("%v: destroy its receive queue: %v", f.a, err)
		}
		f.a.pool.gone = true
	case Deregister:
		for _, m := range f.a.arenas {
			if err := m.mr.Deregister(); err != nil {
				w.fail("%v: deregister: %v", f.a, err)
			}
		}
	default:
		f.a.misbehaves = w.cfg.Failure
	}
}

// restart closes the device of a side and opens another at its address, which gets a
// connection to the same peer while packets for the old one are still under way.
func (w *world) restart(a *side) error {
	old := a.n
	old.tally()
	if err := old.dev.Close(); err != nil {
		return err
	}
	w.refused += uint64(old.be.refused)
	a.closed, a.destroyed = true, true
	a.peer.forceAt = w.now + patience // without requests it would not notice
	n := &node{w: w, i: old.i, addr: old.addr, again: old.again + 1}
	w.nodes[n.i], w.byQPN[n.i] = n, map[ib.QPN]*side{}
	if err := n.open(); err != nil {
		return err
	}
	return w.connection(n, a.peer.n, 0)
}

// isCut reports whether a packet for this queue pair, by this path, gets lost.
func (w *world) isCut(to ib.QPN, srcPort uint16) bool {
	if s := w.senders[to]; s != nil && s.cut && s.cutPort == port(srcPort) {
		return true
	}
	f := &w.failing
	return w.cfg.Failure == Cut && f.fired && (to == f.a.qp.Num() || to == f.b.qp.Num())
}

// drop removes from runs those that are cut off; a run is of one queue pair.
func (w *world) drop(runs []netio.Run) (kept []netio.Run) {
	for _, r := range runs {
		if p, why := ib.Parse(r.Segment(0)); why != ib.OK || !w.isCut(p.DestQP(), r.SrcPort) {
			kept = append(kept, r)
		}
	}
	return kept
}

// spoilSend makes a request wrong, if it is the one that is to fail.
func (s *side) spoilSend(r *request, wr *roce.SendWR) {
	switch {
	case s.misbehaves == BadRKey && !r.sends() && r.size > 0:
		wr.RKey ^= 1 << s.w.rng.IntN(32)
	case s.misbehaves == OutOfRange && !r.sends() && r.size > 0:
		wr.RemoteAddr += uint64(s.w.cfg.Arena)
	case s.misbehaves == BadLKey && r.flags&roce.Inline == 0 && r.size > 0:
		for i := range wr.SGE {
			wr.SGE[i].LKey ^= 1
		}
	default:
		return
	}
	s.misbehaves = NoFailure
}

// spoilRecv returns how large a receive request should be.
func (s *side) spoilRecv(r *request, size int) int {
	if s.misbehaves == ShortRecv && r.sends() && r.size > 0 {
		s.misbehaves = NoFailure
		return s.w.rng.IntN(r.size)
	}
	return size
}

func (s *side) toError() {
	if err := s.qp.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState); err != nil {
		s.w.fail("%v: to ERR: %v", s, err)
	}
	s.broke()
}

// broke notes that the connection is broken at this side.
func (s *side) broke() {
	if p := s.peer; !p.closed && p.forceAt == 0 {
		p.forceAt = s.w.now + patience
	}
}

// failed takes the completion of a request that did not succeed.
func (s *side) failed(wc *roce.WC) {
	s.broke()
	if wc.Status != roce.WCWRFlushErr {
		s.w.failing.seen[wc.Status]++
		ok := false
		for _, x := range statuses[s.w.cfg.Failure] {
			ok = ok || x == wc.Status
		}
		if !ok || wc.ID&recvID == 0 && s.broken || wc.ID&recvID != 0 && s.recvBroken {
			s.w.fail("%v: request %#x: status %v after %v", s, wc.ID, wc.Status, s.w.cfg.Failure)
		}
	}
	if wc.ID&recvID != 0 {
		s.receiveFailed(wc)
		return
	}
	for s.completed < s.posted {
		r := s.ops[s.completed]
		s.completed++
		if r.id == wc.ID {
			s.broken = true
			r.local.release() // nobody touches it from here on
			r.local = nil
			return
		}
		if s.broken || r.flags&roce.Signaled != 0 {
			s.w.fail("%v: failed completion of %#x, but next is %v", s, wc.ID, r)
			return
		}
		s.finished(r) // unsignaled, so it was a success
	}
	s.w.fail("%v: failed completion of %#x, which is not outstanding", s, wc.ID)
}

func (s *side) receiveFailed(wc *roce.WC) {
	r := s.claim(wc)
	if r == nil {
		return
	}
	if s.pool != nil && s.recvBroken {
		s.w.fail("%v: receive %#x of the shared queue failed after another", s, wc.ID)
	}
	s.recvBroken = true
	s.freeReceive(r)
}

// bury gives back what the requests of a broken connection still hold, when no
// packet is under way any more. It returns an error if a message was acknowledged
// that was not received.
func (s *side) bury() error {
	for _, r := range s.ops {
		if r.done && r.consumes() && !r.received && !s.peer.destroyed {
			return fmt.Errorf("%v: %v succeeded, but was not received", s, r)
		}
		r.local.release()
		if r.held {
			r.giveBack()
		}
		r.recv.release()
		r.local, r.recv = nil, nil
	}
	return nil
}
