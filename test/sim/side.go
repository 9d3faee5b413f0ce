package sim

import (
	"fmt"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/transport"
)

// request is a send request and, if it consumes one, the receive request of the
// other side.
type request struct {
	id    uint64
	op    roce.WROpcode
	size  int
	key   uint64 // of its contents
	imm   uint32
	flags roce.SendFlags

	local    scatter // payload, or where a READ puts it; nil with Inline
	remote   piece   // of WRITE and READ
	held     bool    // remote is allocated
	done     bool    // known to have completed at its own side
	recv     scatter // of the receive request
	received bool
	arrived  bool // contents at the other side were compared

	floor, compare uint64 // of an atomic, see words
	after          int
}

// index is the place of the request among those of its side.
func (r *request) index() int { return int(uint32(r.id)) }

func (r *request) consumes() bool { return r.sends() || r.op == roce.WRWriteWithImm }
func (r *request) writes() bool   { return r.op == roce.WRWrite || r.op == roce.WRWriteWithImm }
func (r *request) sends() bool    { return r.op == roce.WRSend || r.op == roce.WRSendWithImm }

func (r *request) String() string {
	return fmt.Sprintf("request %#x (opcode %d, %d bytes, flags %#x)", r.id, r.op, r.size, r.flags)
}

// recvID marks the IDs of receive requests.
const recvID = 1 << 63

// side is one end of a connection and the program that uses it.
type side struct {
	w      *world
	n      *node
	num    int
	peer   *side
	qp     *roce.QP
	qpCap  roce.QPConfig
	mtu    ib.MTU
	inline int  // the most bytes sent inline
	sigAll bool // every request is signaled

	ops       []*request // in the order in which they are posted
	posted    int        // those before it were posted
	completed int        // those before it have completed
	unsig     int        // unsignaled ones since the last signaled
	sendAt    time.Duration

	recvs    []*request // requests of the peer that consume a receive request
	recvNext int        // receive requests before it were posted
	recvDone int        // ... have completed
	held     int        // bytes in posted receive requests
	recvAt   time.Duration

	pool       *pool  // where it receives from instead, or nil
	nextShared uint64 // the least ID of a receive from there that may come next
	lastWQE    bool   // no receive from there will come any more

	arenas  []*arena // the memory it uses
	life    int      // connections to come after this one
	drain   drainState
	drainAt time.Duration
	// resumeAt is when to go on after draining.
	resumeAt time.Duration
	flow     flow

	doomed             bool // its connection is the one that may fail
	broken, recvBroken bool // a request, a receive has failed
	closed             bool // the queue pair was destroyed
	destroyed          bool // ... in the middle of its work
	misbehaves         Failure
	forceAt            time.Duration // when to go to ERR by itself
}

// drainState is how far the program has come with draining its send queue.
type drainState uint8

const (
	running drainState = iota
	draining
	drained
)

func (s *side) String() string {
	return fmt.Sprintf("side %d (node %d, qp %06x, mtu %v): %d of %d requests posted, %d completed; %d of %d receives posted, %d completed; %v%s",
		s.num, s.n.i, uint32(s.qp.Num()), s.mtu, s.posted, len(s.ops), s.completed, s.recvNext, len(s.recvs), s.recvDone,
		s.qp.State(), [...]string{"", ", draining", ", drained"}[s.drain])
}

// connect makes the connections and decides what their programs will do.
func (w *world) connect() error {
	for range w.cfg.Conns {
		i := w.rng.IntN(len(w.nodes))
		j := (i + 1 + w.rng.IntN(len(w.nodes)-1)) % len(w.nodes)
		if err := w.connection(w.nodes[i], w.nodes[j], w.cfg.Lives-1); err != nil {
			return err
		}
	}
	if w.cfg.Failure != NoFailure {
		w.planFailure()
	}
	return nil
}

// connection makes one connection, to be followed by others between the same nodes.
func (w *world) connection(na, nb *node, life int) error {
	mtu := ib.MTU(1 + w.rng.IntN(5))
	doomed := len(w.sides) == 0 && w.cfg.Failure != NoFailure
	a, err := w.newSide(na, mtu, doomed)
	if err != nil {
		return err
	}
	b, err := w.newSide(nb, mtu, doomed)
	if err != nil {
		return err
	}
	a.peer, b.peer = b, a
	for _, s := range []*side{a, b} {
		s.life, s.doomed, s.arenas = life, doomed, s.n.arenas
		w.senders[s.peer.qp.Num()] = s
		if doomed { // it has memory of its own
			s.life = 0
			if s.arenas, err = s.n.newArenas(); err != nil {
				return err
			}
		}
		s.drainAt = roce.Never
		if w.cfg.Drain && !doomed && w.rng.IntN(2) == 0 {
			s.drainAt = w.now + time.Duration(w.rng.Int64N(int64(4*time.Millisecond)))
		}
	}
	if err := w.join(a, b); err != nil {
		return err
	}
	a.plan()
	b.plan()
	return nil
}

// succeed replaces connections whose work is done by new ones: packets of the old
// ones may still be under way.
func (w *world) succeed() error {
	for _, s := range w.sides {
		if p := s.peer; s.num < p.num && s.life > 0 && !s.closed && s.done() && p.done() {
			for _, x := range []*side{s, p} {
				if err := x.close(); err != nil {
					return err
				}
			}
			if err := w.connection(s.n, p.n, s.life-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// close checks the end of a side and destroys its queue pair.
func (s *side) close() error {
	if s.doomed {
		if err := s.bury(); err != nil {
			return err
		}
	} else if st := s.qp.State(); st != roce.StateRTS && !s.closed {
		return fmt.Errorf("%v: state %v at the end", s, st)
	}
	if s.closed {
		return nil
	}
	s.closed = true
	return s.qp.Destroy()
}

func (w *world) newSide(n *node, mtu ib.MTU, doomed bool) (*side, error) {
	s := &side{w: w, n: n, num: len(w.sides), mtu: mtu, inline: []int{0, 64, 512}[w.rng.IntN(3)], sigAll: w.rng.IntN(5) == 0}
	var err error
	if n.pool != nil && !(doomed && n.w.cfg.Failure.ownReceives()) && w.rng.IntN(2) == 0 {
		s.pool = n.pool
	}
	s.qp, err = n.pd.CreateQP(roce.QPConfig{
		SRQ: s.pool.queue(), SendCQ: n.cq, MaxSendWR: 1 << w.rng.IntN(7), MaxRecvWR: 1 << w.rng.IntN(6),
		MaxSendSGE: 1 + w.rng.IntN(32), MaxRecvSGE: 1 + w.rng.IntN(32), MaxInline: s.inline, SigAll: s.sigAll,
	})
	if err != nil {
		return nil, err
	}
	_, s.qpCap = s.qp.Query()
	w.sides = append(w.sides, s)
	w.byQPN[n.i][s.qp.Num()] = s
	w.mtu[s.qp.Num()] = mtu.Bytes()
	return s, nil
}

// join connects two sides. Some first PSNs are close to the wrap.
func (w *world) join(a, b *side) error {
	var psn [2]ib.PSN
	var depth, timer [2]int
	for i := range psn {
		psn[i] = ib.PSN(w.rng.Uint32N(1 << 24))
		if w.rng.IntN(2) == 0 {
			psn[i] = ib.PSN(1<<24 - 1 - w.rng.Uint32N(100))
		}
		depth[i] = 1 + w.rng.IntN(transport.MaxRdAtomic)
		timer[i] = w.rng.IntN(16)
	}
	for i, s := range []*side{a, b} {
		p := s.peer
		s.flow.next = psn[i]
		if err := s.qp.Init(roce.RemoteRead | roce.RemoteWrite | roce.RemoteAtomic | roce.FlushGlobal); err != nil {
			return err
		}
		err := s.qp.RTR(roce.Remote{Addr: p.n.addr, QPN: p.qp.Num(), PSN: psn[1-i]}, roce.Conn{
			PathMTU: s.mtu, MaxDestRdAtomic: depth[i], MinRNRTimer: ib.RNRTimer(1 + timer[i]).Duration(),
		})
		if err != nil {
			return err
		}
		err = s.qp.Modify(&roce.Attr{
			State: roce.StateRTS, SQPSN: psn[i], Timeout: ib.AckTimeout(8 + w.rng.IntN(7)), RetryCnt: 7, RNRRetry: s.rnrRetry(),
			MaxRdAtomic: uint8(1 + w.rng.IntN(depth[1-i])),
		}, roce.MaskState|roce.MaskSQPSN|roce.MaskTimeout|roce.MaskRetryCnt|roce.MaskRNRRetry|roce.MaskMaxRdAtomic)
		if err != nil {
			return err
		}
	}
	return nil
}

// rnrRetry is for ever, unless it is to run out.
func (s *side) rnrRetry() uint8 {
	if s.doomed && s.w.cfg.Failure == NoRecv {
		return 3
	}
	return 7
}

// plan decides on the requests of a side.
func (s *side) plan() {
	rng := s.w.rng
	mix := []roce.WROpcode{roce.WRSend, roce.WRSendWithImm, roce.WRWrite, roce.WRWriteWithImm, roce.WRRead}
	if !s.doomed && s.n.words.mr != nil { // of a doomed one nobody would know which were executed
		mix = append(mix, roce.WRAtomicFetAdd, roce.WRAtomicCmpSwp, roce.WRAtomicWrite, roce.WRFlush)
	}
	if rng.IntN(4) == 0 { // a program that does few kinds of things
		mix = []roce.WROpcode{mix[rng.IntN(len(mix))], mix[rng.IntN(len(mix))]}
	}
	for i := range s.w.cfg.Requests {
		r := &request{
			id: uint64(s.num)<<32 | uint64(i), op: mix[rng.IntN(len(mix))], size: s.w.cfg.size(rng, s.mtu),
			key: rng.Uint64(), imm: rng.Uint32(),
		}
		if r.isAtomic() {
			r.size = 8
		}
		if r.op == roce.WRFlush {
			r.size = 0
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
		if i == s.w.cfg.Requests-1 {
			r.flags |= roce.Signaled // or nobody would know of its end
		}
		s.ops = append(s.ops, r)
		if r.consumes() {
			s.peer.recvs = append(s.peer.recvs, r)
		}
		s.w.res.Bytes += r.size
	}
}

func (s *side) done() bool {
	return s.closed || s.completed == len(s.ops) && (s.recvDone == len(s.recvs) || s.lastWQE) && s.drain == running
}

// due returns when the program wants to do something by itself.
func (s *side) due() time.Duration {
	t := roce.Never
	if s.closed {
		return t
	}
	for _, at := range []time.Duration{s.drainAt, s.resumeAt, s.forceAt} {
		if at > s.w.now {
			t = min(t, at)
		}
	}
	if s.sendAt > s.w.now && s.posted < len(s.ops) {
		t = min(t, s.sendAt)
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
	if s.drains() {
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
		if !s.allocate(r) {
			break
		}
		if s.unsig++; r.flags&roce.Signaled != 0 || s.unsig >= s.qpCap.MaxSendWR {
			r.flags |= roce.Signaled // the queue must not fill with unsignaled requests
			s.unsig = 0
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
		case r.isAtomic():
			s.aim(r, &wr)
		case !r.sends():
			wr.RemoteAddr, wr.RKey = r.remote.addr(), r.remote.a.mr.RKey()
		}
		s.spoilSend(r, &wr)
		s.posted++
		list = append(list, wr)
		s.w.trace.add(event{at: s.w.now, node: s.n.i, what: "send", qpn: s.qp.Num(), n: r.size, sum: r.id})
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

// allocate finds the memory of a request and fills its source.
func (s *side) allocate(r *request) bool {
	rng := s.w.rng
	if r.flags&roce.Inline == 0 {
		var ok bool
		if r.local, ok = allocScatter(rng, s.arenas, r.size, rng.IntN(s.qpCap.MaxSendSGE)+1); !ok {
			return false
		}
	}
	if !r.sends() && !r.isAtomic() {
		far := s.peer.arenas
		p, ok := far[rng.IntN(len(far))].alloc(rng, r.size)
		if !ok {
			r.local.release()
			r.local = nil
			return false
		}
		r.remote, r.held = p, true
	}
	if r.op == roce.WRRead {
		fill(r.remote.bytes(), r.key, 0)
	} else {
		r.local.fill(r.key)
	}
	return true
}
