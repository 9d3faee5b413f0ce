package sim

import (
	"time"

	"github.com/goroce/goroce/roce"
)

// mix is the operations that a side may use.
func (s *side) mix() []roce.WROpcode {
	mix := []roce.WROpcode{roce.WRSend, roce.WRSendWithImm}
	if s.typ == roce.UD {
		return mix
	}
	mix = append(mix, roce.WRWrite, roce.WRWriteWithImm)
	if s.typ == roce.UC {
		return mix
	}
	mix = append(mix, roce.WRRead)
	if s.typ == roce.XRCSend && !s.doomed {
		return append(mix, roce.WRAtomicFetAdd, roce.WRAtomicCmpSwp)
	}
	if s.typ == roce.XRCSend {
		return mix
	}
	if mix = append(mix, roce.WRSendWithInv); !s.doomed { // of a doomed one nobody would know which were executed
		mix = append(mix, roce.WRAtomicFetAdd, roce.WRAtomicCmpSwp, roce.WRAtomicWrite, roce.WRFlush)
	}
	return mix
}

// plan decides on the requests of a side.
func (s *side) plan() {
	rng, mix := s.w.rng, s.mix()
	if rng.IntN(4) == 0 { // a program that does few kinds of things
		mix = []roce.WROpcode{mix[rng.IntN(len(mix))], mix[rng.IntN(len(mix))]}
	}
	if s.typ == roce.XRCRecv {
		return // it has no send queue
	}
	for i := range s.w.cfg.Requests {
		r := &request{
			id: s.newID(), op: mix[rng.IntN(len(mix))], size: s.w.cfg.size(rng, s.mtu),
			key: rng.Uint64(), imm: rng.Uint32(),
		}
		if r.isAtomic() {
			r.size = 8
		}
		switch {
		case r.op == roce.WRFlush:
			r.size = 0
		case s.typ == roce.UC:
			r.size = min(r.size, lossyMax)
		case s.typ == roce.UD:
			r.size, r.group = min(r.size, s.mtu.Bytes()), rng.IntN(3) == 0
		}
		if s.sigAll || rng.IntN(2) == 0 {
			r.flags |= roce.Signaled
		}
		if rng.IntN(4) == 0 {
			r.flags |= roce.Solicited
		}
		if rng.IntN(10) == 0 {
			r.flags |= roce.Fence
		}
		if r.op != roce.WRRead && !r.finds() && r.op != roce.WRFlush && r.size <= s.inline && rng.IntN(2) == 0 {
			r.flags |= roce.Inline
		}
		switch {
		case s.typ == roce.XRCSend:
			r.pool = s.peer.n.xrc[rng.IntN(2)]
			if s.doomed {
				r.pool = s.peer.pool
			}
		case s.typ == roce.RC:
			r.pool = s.peer.pool
		}
		if ref := (requestRef{s.num, i}); s.w.cfg.Only != nil && !s.w.cfg.Only[ref] {
			continue
		} else if s.w.cfg.hooks.plan != nil {
			s.w.cfg.hooks.plan(ref)
		}
		s.ops = append(s.ops, r)
		if s.lossy() {
			r.heard = map[*side]int{}
		} else if r.consumes() {
			s.peer.recvs = append(s.peer.recvs, r)
		}
		s.w.res.Bytes += r.size
	}
	if n := len(s.ops); n > 0 {
		s.ops[n-1].flags |= roce.Signaled // or nobody would know of its end
	}
}

// newID returns the ID of one more request.
func (s *side) newID() uint64 {
	s.ids++
	return uint64(s.num)<<32 | uint64(s.ids-1)
}

// allPosted says whether the program has nothing left to post.
func (s *side) allPosted() bool { return s.posted == len(s.ops) }

func (s *side) done() bool {
	return s.closed || s.completed == len(s.ops) && (s.recvDone == len(s.recvs) || s.lastWQE) && s.drain == running
}

// due returns when the program wants to do something by itself.
func (s *side) due() time.Duration {
	t := roce.Never
	if s.closed {
		return t
	}
	for _, at := range []time.Duration{s.drainAt, s.resumeAt, s.forceAt, s.attachAt} {
		if at > s.w.now {
			t = min(t, at)
		}
	}
	if s.sendAt > s.w.now && s.posted < len(s.ops) {
		t = min(t, s.sendAt)
	}
	if s.lossy() {
		t = min(t, s.pool.due())
	}
	if s.recvAt > s.w.now && s.pool == nil && s.recvNext < len(s.recvs) {
		t = min(t, s.recvAt)
	}
	return t
}

// pause is how long a program does something else: mostly not at all.
func (s *side) pause(most time.Duration) time.Duration {
	if s.w.rng.IntN(3) > 0 {
		return s.w.now
	}
	if s.w.cfg.Soak > 0 && s.w.rng.IntN(20) == 0 {
		most = soakPause
	}
	return s.w.now + time.Duration(s.w.rng.Int64N(int64(most)))
}

// act posts what the program wants to post now.
func (s *side) act() (busy bool) {
	if s.closed {
		return false
	}
	if s.forceAt > 0 && s.w.now >= s.forceAt {
		s.forceAt = roce.Never
		s.toError()
		busy = true
	}
	if s.manage() {
		busy = true
	}
	if s.roam() || s.drains() || s.attaches() || s.lossy() && s.pool.act() {
		busy = true
	}
	if s.w.now >= s.recvAt && s.pool == nil && s.recvNext < len(s.recvs) {
		if s.postRecv() {
			busy = true
			s.recvAt = s.pause(4 * time.Millisecond)
		}
	}
	if s.w.now >= s.sendAt && s.posted < len(s.ops) {
		if s.postSend() {
			busy = true
			s.sendAt = s.pause(time.Millisecond)
		}
	}
	return busy
}

// drains takes the send queue to SQD and, some time after it was drained, back.
func (s *side) drains() bool {
	switch {
	case s.drain == running && s.w.now >= s.drainAt && s.posted > 0 && !s.done():
		s.drainAt = roce.Never
		s.drain = draining
		s.w.res.Drains++
		if err := s.qp.Modify(&roce.Attr{State: roce.StateSQD, SQDrainNotify: true}, roce.MaskState|roce.MaskSQDNotify); err != nil {
			s.w.fail("%v: to SQD: %v", s, err)
		}
	case s.drain == drained && s.w.now >= s.resumeAt:
		s.drain, s.resumeAt = running, 0
		if err := s.qp.Modify(&roce.Attr{State: roce.StateRTS}, roce.MaskState); err != nil {
			s.w.fail("%v: from SQD to RTS: %v", s, err)
		}
	default:
		return false
	}
	return true
}

func (s *side) postRecv() bool {
	if s.misbehaves == NoRecv && s.qp.State() != roce.StateErr {
		return false
	}
	rng := s.w.rng
	var list []roce.RecvWR
	for n := 1 + rng.IntN(8); n > 0 && s.recvNext < len(s.recvs) && s.recvNext-s.recvDone < s.qpCap.MaxRecvWR; n-- {
		r := s.recvs[s.recvNext]
		size := r.size + rng.IntN(100)
		if r.writes() {
			size = rng.IntN(100) // not touched
		}
		size = s.spoilRecv(r, size)
		if s.held > 0 && s.held+size > s.w.cfg.Arena/8 {
			break // leave room for what makes progress
		}
		buf, ok := allocScatter(rng, s.arenas, size, 1+rng.IntN(s.qpCap.MaxRecvSGE))
		if !ok {
			break
		}
		r.recv = buf
		s.held += size
		s.recvNext++
		list = append(list, roce.RecvWR{ID: r.id | recvID, SGE: buf.sges()})
		s.w.trace.add(event{at: s.w.now, node: s.n.i, what: "recv", qpn: s.qp.Num(), n: size, sum: r.id | recvID})
	}
	if len(list) == 0 {
		return false
	}
	if err := s.qp.PostRecv(list...); err != nil {
		s.w.fail("%v: post receive: %v", s, err)
	}
	return true
}

func (s *side) postSend() bool {
	rng := s.w.rng
	var list []roce.SendWR
	for n := 1 + rng.IntN(8); n > 0 && s.posted < len(s.ops) && s.posted-s.completed < s.qpCap.MaxSendWR; n-- {
		r := s.ops[s.posted]
		if r.isBind1() && len(list) > 0 || !s.allocate(r) {
			break
		}
		if s.unsig++; r.flags&roce.Signaled != 0 || s.unsig >= s.qpCap.MaxSendWR {
			r.flags |= roce.Signaled // the queue must not fill with unsignaled requests
			s.unsig = 0
		}
		wr := s.workRequest(r)
		s.posted++
		s.w.trace.add(event{at: s.w.now, node: s.n.i, what: "send", qpn: s.qp.Num(), n: r.size, sum: r.id})
		if r.isBind1() {
			if err := s.bindType1(r, &wr); err != nil {
				s.w.fail("%v: bind: %v", s, err)
			}
			return true
		}
		if !r.isLocal() {
			s.sent = append(s.sent, r)
		}
		list = append(list, wr)
	}
	if len(list) == 0 {
		return false
	}
	if err := s.qp.PostSend(list...); err != nil {
		s.w.fail("%v: post send: %v", s, err)
	}
	for i := range list {
		clear(list[i].Data) // inline data was copied
	}
	return true
}

// workRequest makes the work request of r, whose memory is allocated.
func (s *side) workRequest(r *request) roce.SendWR {
	if r.op == roce.WRSendWithInv {
		s.invalidates(r)
	}
	wr := roce.SendWR{ID: r.id, Opcode: r.op, Flags: r.flags, Imm: r.imm}
	switch {
	case r.flags&roce.Inline != 0:
		wr.Data = make([]byte, r.size)
		fill(wr.Data, r.key, 0)
	default:
		wr.SGE = r.local.sges()
	}
	switch {
	case r.isLocal():
		r.postLocal(&wr)
	case r.isAtomic():
		s.aim(r, &wr)
	case s.typ == roce.UD:
		s.address(r, &wr)
	case r.op == roce.WRSendWithInv:
		wr.InvalidateRKey = r.rkey
	case !r.sends():
		wr.RemoteAddr, wr.RKey = r.va, r.rkey
	}
	if s.typ == roce.XRCSend {
		wr.RemoteSRQN = r.pool.srq.Num()
	}
	s.spoilSend(r, &wr)
	return wr
}

// allocate finds the memory of a request and fills its source.
func (s *side) allocate(r *request) bool {
	if r.isLocal() {
		return true
	}
	rng := s.w.rng
	if r.flags&roce.Inline == 0 {
		var ok bool
		if r.local, ok = allocScatter(rng, s.arenas, r.size, rng.IntN(s.qpCap.MaxSendSGE)+1); !ok {
			return false
		}
	}
	if !r.sends() && !r.isAtomic() && !s.allocateRemote(r) {
		r.local.release()
		r.local = nil
		return false
	}
	if r.op == roce.WRRead {
		fill(r.remote.bytes(), r.key, 0)
	} else {
		r.local.fill(r.key)
	}
	return true
}

// allocateRemote finds the memory of the peer that a request is about.
func (s *side) allocateRemote(r *request) bool {
	if r.grant = s.borrow(r); r.grant != nil {
		r.remote, r.va = r.grant.cut(s.w.rng, r.size)
		r.rkey, r.held = r.grant.key, true
		return true
	}
	far := s.peer.arenas
	if s.typ == roce.XRCSend {
		far = r.pool.far
	}
	p, ok := far[s.w.rng.IntN(len(far))].alloc(s.w.rng, r.size)
	if ok {
		r.remote, r.va, r.rkey, r.held = p, p.addr(), p.a.mr.RKey(), true
	}
	return ok
}
