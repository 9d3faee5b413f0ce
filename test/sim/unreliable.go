package sim

import (
	"fmt"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
)

// UC and UD lose messages without a word. What is left to check: each request
// completes in order and with success; what is received is whole, was sent by its
// sender to this queue pair or to a group that it is attached to, and comes no more
// often than the network delivered the packet that completes it; a WRITE changes
// whole packets of its range, and nothing else; what was never taken is flushed.

// qkey is the Q_Key of all UD queue pairs of a run.
const qkey = 0x5eed

// lossyMax is the most bytes of a message of UC: of longer ones hardly any arrives.
const lossyMax = 6 << 10

// lossy says whether messages of the side may get lost.
func (s *side) lossy() bool { return s.typ == roce.UC || s.typ == roce.UD }

// delivery is a place where a packet of a side arrives.
type delivery struct {
	node int
	psn  ib.PSN
}

// joinUnreliable readies the queue pair of a side of UC or UD.
func (s *side) joinUnreliable() error {
	p, qp := s.peer, s.qp
	s.flow.next, s.attachAt = qp.PSN(), roce.Never
	if s.typ == roce.UC {
		return qp.Connect(roce.Remote{Addr: p.n.addr, QPN: p.qp.Num(), PSN: p.qp.PSN()}, roce.Conn{Access: roce.RemoteWrite, PathMTU: s.mtu})
	}
	if s.w.rng.IntN(3) > 0 {
		s.attachAt = s.w.now + time.Duration(s.w.rng.IntN(500_000))
	}
	var err error
	if s.ah, err = s.n.pd.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(p.n.addr)}); err != nil {
		return err
	}
	if s.groupAH, err = s.n.pd.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(s.w.group)}); err != nil {
		return err
	}
	return qp.Activate(qkey)
}

// attaches lets a side of UD join the group when it is time.
func (s *side) attaches() bool {
	if s.typ != roce.UD || s.attached || s.w.now < s.attachAt {
		return false
	}
	if err := s.qp.AttachMulticast(s.w.group); err != nil {
		s.w.fail("%v: attach: %v", s, err)
	}
	s.attached = true
	return true
}

// address makes a request a datagram to the peer or to the group.
func (s *side) address(r *request, wr *roce.SendWR) {
	wr.AH, wr.RemoteQPN, wr.QKey = s.ah, s.peer.qp.Num(), qkey
	if r.group {
		wr.AH, wr.RemoteQPN = s.groupAH, ib.MulticastQPN
	}
}

// heard takes the completion of a receive.
func (s *side) heard(wc *roce.WC) {
	buf, ok := s.pool.take(s, wc)
	if !ok {
		return
	}
	defer buf.release()
	from, head := s.peer, 0
	if s.typ == roce.UD {
		from, head = s.author(wc, buf), ib.GRHSize
	}
	if from == nil {
		s.w.fail("%v: receive %#x has an unknown sender: %+v", s, wc.ID, *wc)
		return
	}
	often := false
	for _, r := range from.ops[:from.posted] {
		if !s.isMessage(wc, from, r, buf, head) {
			continue
		}
		if r.heard[s] < from.flow.arrived[delivery{s.n.i, r.last}] {
			r.heard[s]++
			s.w.res.Heard++
			return
		}
		often = true
	}
	if often {
		s.w.fail("%v: receive %#x: a message is received more often than its packets were: %+v", s, wc.ID, *wc)
	} else {
		s.w.fail("%v: receive %#x is none of the messages of %v: %+v", s, wc.ID, from, *wc)
	}
}

// author is the side that sent a datagram, or nil.
func (s *side) author(wc *roce.WC, buf scatter) *side {
	var grh []byte
	for _, p := range buf {
		grh = append(grh, p.bytes()...)
	}
	av, err := s.n.dev.AddressFromWC(wc, grh[:ib.GRHSize])
	if err != nil {
		s.w.fail("%v: %v", s, err)
		return nil
	}
	for _, n := range s.w.nodes {
		if n.addr == av.DGID.Addr() {
			return s.w.byQPN[n.i][wc.SrcQP]
		}
	}
	return nil
}

// isMessage says whether the completion of a receive, and its memory behind the
// first head bytes, are what message r of a side must give.
func (s *side) isMessage(wc *roce.WC, from *side, r *request, buf scatter, head int) bool {
	if r.group && !s.attached || !r.group && from.peer != s || !r.consumes() {
		return false
	}
	want := s.completionOf(wc.ID, r)
	want.ByteLen += uint32(head)
	if s.typ == roce.UD {
		want.Flags |= roce.WCGRH
	}
	got := *wc
	got.SrcQP, got.VendorErr = 0, 0
	if got != want {
		return false
	}
	if r.writes() {
		return differs(r.remote.bytes(), r.key, 0) < 0
	}
	at := buf.holds(r.key, head, r.size)
	return at < 0 || s.typ == roce.UC && at >= r.size // what a lost message left there
}

// silence ends the work of a side of UC or UD: the receives that nothing came for are
// flushed.
func (s *side) silence() error {
	if s.silenced {
		return nil
	}
	s.silenced = true
	if err := s.qp.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState); err != nil {
		return err
	}
	for s.n.poll() {
	}
	if len(s.pool.posted) > 0 {
		return fmt.Errorf("%v: %d receives were not flushed", s, len(s.pool.posted))
	}
	return nil
}

// forget gives back what a side of UC or UD holds, when its peer is silenced, too.
func (s *side) forget() error {
	for _, r := range s.ops {
		if err := s.checkParts(r); err != nil {
			return fmt.Errorf("%v: %v: %w", s, r, err)
		}
		if r.consumes() && len(r.heard) == 0 {
			s.w.res.Unheard++
		}
	}
	if s.typ == roce.UC {
		return nil
	}
	if err := s.ah.Destroy(); err != nil {
		return err
	}
	return s.groupAH.Destroy()
}

// checkParts looks at the target of a WRITE, each packet of which may have come or
// not, and gives it back.
func (s *side) checkParts(r *request) error {
	if !r.held {
		return nil
	}
	b, mtu := r.remote.bytes(), s.mtu.Bytes()
	for off := 0; off < r.size; off += mtu {
		part := b[off:min(off+mtu, r.size)]
		if differs(part, r.key, off) >= 0 && differs(part, r.remote.a.guard, r.remote.off+off) >= 0 {
			return fmt.Errorf("the packet at byte %d is in memory neither whole nor not at all", off)
		}
	}
	r.remote.release()
	r.held = false
	return nil
}

// flushed takes a receive of a side that is silenced.
func (s *side) flushed(wc *roce.WC) {
	if buf, ok := s.pool.take(s, wc); ok {
		if at := buf.holds(0, 0, 0); at >= 0 && s.typ == roce.UD {
			s.w.fail("%v: byte %d of flushed receive %#x was written", s, at, wc.ID)
		}
		buf.release()
	}
}
