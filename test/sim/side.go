package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/transport"
)

// side is one end of a connection and the program that uses it.
type side struct {
	w      *world
	n      *node
	num    int
	typ    roce.QPType
	peer   *side
	qp     *roce.QP
	qpCap  roce.QPConfig
	mtu    ib.MTU
	inline int  // the most bytes sent inline
	sigAll bool // every request is signaled

	ops       []*request // in the order in which they are posted
	ids       uint32     // of them were given away
	sent      []*request // posted, and no local operations
	grants    []*grant   // that it owns
	posted    int        // those before it were posted
	completed int        // those before it have completed
	unsig     int        // unsignaled ones since the last signaled
	sendAt    time.Duration

	recvs    []*request // requests of the peer that consume a receive request
	recvNext int        // receive requests before it were posted
	recvDone int        // ... have completed
	held     int        // bytes in posted receive requests
	recvAt   time.Duration

	pool    *pool // where it receives from instead: one of its node, of its own or nil
	lastWQE bool  // no receive from there will come any more

	arenas  []*arena // the memory it uses
	life    int      // connections to come after this one
	drain   drainState
	drainAt time.Duration
	// resumeAt is when to go on after draining.
	resumeAt time.Duration
	flow     flow

	ah, groupAH *roce.AH // of UD, see unreliable.go
	attachAt    time.Duration
	attached    bool
	silenced    bool

	roams   bool // it migrates, see paths.go
	cut     bool // its packets from cutPort get lost
	cutPort uint16

	doomed             bool // its connection is the one that may fail
	broken, recvBroken bool // a request, a receive has failed
	closed             bool // the queue pair was destroyed
	closedAt           time.Duration
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
	for k := range w.cfg.Conns {
		i := w.rng.IntN(w.cfg.Nodes)
		j := (i + 1 + w.rng.IntN(w.cfg.Nodes-1)) % w.cfg.Nodes
		if k == 0 && w.cfg.Failure == Restart {
			i = w.cfg.Nodes
		}
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
	w.res.Lives++
	doomed := w.made == 0 && w.cfg.Failure != NoFailure
	typ := w.cfg.Services[w.rng.IntN(len(w.cfg.Services))]
	if doomed {
		typ = w.cfg.Failure.service()
	}
	a, err := w.newSide(na, typ, mtu, doomed)
	if err != nil {
		return err
	}
	far := typ
	if typ == roce.XRCSend {
		far = roce.XRCRecv
	}
	b, err := w.newSide(nb, far, mtu, doomed)
	if err != nil {
		return err
	}
	a.peer, b.peer = b, a
	for _, s := range []*side{a, b} {
		s.life, s.doomed, s.drainAt = life, doomed, roce.Never
		if typ != roce.UD {
			w.senders[s.peer.qp.Num()] = s
		}
		s.roams = w.cfg.Roam && !doomed && typ != roce.UD
		if doomed {
			s.life = 0
		}
		if w.cfg.Drain && !doomed && w.rng.IntN(2) == 0 {
			s.drainAt = w.now + time.Duration(w.rng.Int64N(int64(4*time.Millisecond)))
		}
	}
	if err := w.join(a, b); err != nil {
		return err
	}
	if w.cfg.Soak > 0 {
		a.delay()
		b.delay()
	}
	a.plan()
	b.plan()
	return errors.Join(a.newGrants(), b.newGrants())
}

// succeed replaces connections whose work is done by new ones: packets of the old
// ones may still be under way.
func (w *world) succeed() error {
	for _, s := range w.sides {
		if p := s.peer; s.num < p.num && s.continues() && !s.closed && s.done() && p.done() {
			for _, x := range []*side{s, p} {
				if err := x.close(); err != nil {
					return err
				}
			}
			if w.cfg.Soak > 0 {
				if err := w.retire(); err != nil {
					return err
				}
			}
			if err := w.connection(s.n, p.n, s.life-1); err != nil {
				return err
			}
			return w.succeed() // the list is another now
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
	} else if st := s.qp.State(); st != roce.StateRTS && !s.closed && !s.silenced {
		return fmt.Errorf("%v: state %v at the end", s, st)
	}
	if s.closed {
		return nil
	}
	if s.lossy() {
		if err := errors.Join(s.silence(), s.peer.silence()); err != nil {
			return err
		}
		if err := s.forget(); err != nil {
			return err
		}
	}
	if err := s.revoke(); err != nil {
		return err
	}
	s.closed, s.closedAt = true, s.w.now
	if err := s.qp.Destroy(); err != nil || !s.lossy() || !s.peer.closed {
		return err
	}
	return errors.Join(closeArenas(s.arenas, false), closeArenas(s.peer.arenas, false))
}

func (w *world) newSide(n *node, typ roce.QPType, mtu ib.MTU, doomed bool) (*side, error) {
	s := &side{w: w, n: n, num: w.made, typ: typ, mtu: mtu, inline: []int{0, 64, 512}[w.rng.IntN(3)], sigAll: w.rng.IntN(5) == 0}
	s.flow.broken = map[ib.PSN]bool{}
	var err error
	if typ == roce.XRCRecv {
		err = s.newTarget(doomed)
	} else {
		if n.pool != nil && typ == roce.RC && !(doomed && w.cfg.Failure.ownReceives()) && w.rng.IntN(2) == 0 {
			s.pool = n.pool
		}
		s.qp, err = n.pd.CreateQP(roce.QPConfig{
			Type: typ, SRQ: s.pool.queue(), SendCQ: n.cq, MaxSendWR: 1 << w.rng.IntN(7), MaxRecvWR: 1 << w.rng.IntN(6),
			MaxSendSGE: 1 + w.rng.IntN(32), MaxRecvSGE: 1 + w.rng.IntN(32), MaxInline: s.inline, SigAll: s.sigAll,
		})
	}
	if err != nil {
		return nil, err
	}
	_, s.qpCap = s.qp.Query()
	w.made++
	w.sides = append(w.sides, s)
	w.byQPN[n.i][s.qp.Num()] = s
	w.mtu[s.qp.Num()] = mtu.Bytes()
	s.arenas = n.arenas
	if doomed || s.lossy() { // it has memory of its own
		if s.arenas, err = n.newArenas(n.pd, w.cfg.Arena); err != nil {
			return nil, err
		}
	}
	if s.lossy() {
		s.newPool()
	}
	return s, nil
}

// newTarget makes the queue pair of an XRC target. Each request says which receive
// queue it is for: any, but of a connection that is to fail the one that nobody else
// uses.
func (s *side) newTarget(doomed bool) (err error) {
	if err = s.n.openXRC(); err != nil {
		return err
	}
	if s.pool = s.n.xrc[0]; doomed {
		if s.pool, err = s.n.newPool(s.n.xrcd); err != nil {
			return err
		}
	}
	s.qp, err = s.n.xrcd.CreateQP()
	return err
}

// ect0 marks packets as ECN-capable (RFC 3168).
const ect0 = 2

// join connects two sides. Some first PSNs are close to the wrap.
func (w *world) join(a, b *side) error {
	if a.lossy() {
		return errors.Join(a.joinUnreliable(), b.joinUnreliable())
	}
	var psn [2]ib.PSN
	var depth, timer [2]int
	for i := range psn {
		psn[i] = ib.PSN(w.rng.Uint32N(1 << 24))
		if w.rng.IntN(2) == 0 {
			psn[i] = ib.PSN(1<<24 - 1 - w.rng.Uint32N(100))
		}
		depth[i] = 1 + w.rng.IntN(transport.MaxDestRdAtomic)
		timer[i] = w.rng.IntN(16)
	}
	for i, s := range []*side{a, b} {
		p := s.peer
		s.flow.next = psn[i]
		if err := s.qp.Init(roce.RemoteRead | roce.RemoteWrite | roce.RemoteAtomic | roce.FlushGlobal); err != nil {
			return err
		}
		err := s.qp.RTR(roce.Remote{Addr: p.n.addr, QPN: p.qp.Num(), PSN: psn[1-i]}, roce.Conn{
			PathMTU: s.mtu, MaxDestRdAtomic: depth[i], MinRNRTimer: ib.RNRTimer(1 + timer[i]).Duration(), TrafficClass: ect0,
		})
		if err != nil {
			return err
		}
		mask := roce.MaskState | roce.MaskSQPSN | roce.MaskTimeout
		if s.typ != roce.XRCRecv {
			mask |= roce.MaskRetryCnt | roce.MaskRNRRetry | roce.MaskMaxRdAtomic
		}
		err = s.qp.Modify(&roce.Attr{
			State: roce.StateRTS, SQPSN: psn[i], Timeout: w.timeout(), RetryCnt: 7, RNRRetry: s.rnrRetry(),
			MaxRdAtomic: uint8(1 + w.rng.IntN(depth[1-i])),
		}, mask)
		if err != nil {
			return err
		}
	}
	return nil
}

// timeout draws an ack timeout.
func (w *world) timeout() ib.AckTimeout {
	least := w.cfg.timer()
	return min(least+ib.AckTimeout(w.rng.IntN(7)), max(least, 14))
}

// rnrRetry is for ever, unless it is to run out.
func (s *side) rnrRetry() uint8 {
	if s.doomed && s.w.cfg.Failure == NoRecv {
		return 3
	}
	return 7
}
