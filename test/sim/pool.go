package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
)

// pool is a receive queue of which nobody knows which message takes which receive,
// and the program that keeps it filled: a shared one of a node, or that of a side of
// UC or UD, where messages get lost. So each receive has room for the longest.
type pool struct {
	n       *node
	srq     *roce.SRQ // nil if it is the receive queue of one side
	post    func(...roce.RecvWR) error
	room    int // bytes of a receive, about
	pd      *roce.PD
	arenas  []*arena
	far     []*arena           // of XRC: the memory that requests name with the queue
	words   words              // ... and the words
	gone    bool               // the queue was destroyed in the midst of things
	sge     int                // segments of a receive
	target  int                // receives to keep posted
	posted  map[uint64]scatter // by ID: not completed
	next    uint64             // ID of the next
	at      time.Duration      // when to look again
	limited bool               // the limit is armed
	least   map[*side]uint64   // the least ID that may complete next for a side
}

// newPool makes a shared queue of a node, in an XRC domain, with a protection domain of
// its own, or in none.
func (n *node) newPool(x *roce.XRCD) (*pool, error) {
	rng := n.w.rng
	p := &pool{n: n, pd: n.pd, sge: 1 + rng.IntN(4), target: 2 + rng.IntN(6), posted: map[uint64]scatter{}, least: map[*side]uint64{}, room: n.w.cfg.MaxSize}
	var err error
	cfg := roce.SRQConfig{MaxWR: 8, MaxSGE: p.sge}
	if x != nil {
		cfg.XRCD, cfg.CQ = x, n.cq
		if err := p.ownMemory(); err != nil {
			return nil, err
		}
	}
	if p.arenas, err = n.newArenas(p.pd, n.w.cfg.Arena); err != nil {
		return nil, err
	}
	if p.srq, err = p.pd.CreateSRQ(cfg); err != nil {
		return nil, err
	}
	p.post = p.srq.PostRecv
	n.pools = append(n.pools, p)
	return p, nil
}

// ownMemory gives a queue of XRC a protection domain and what requests may name in it.
func (p *pool) ownMemory() (err error) {
	if p.pd, err = p.n.dev.AllocPD(); err != nil {
		return err
	}
	if p.far, err = p.n.newArenas(p.pd, p.n.w.cfg.Arena); err != nil {
		return err
	}
	return p.words.open(p.n, p.pd)
}

// newPool makes the receives of a side of UC or UD. Some are too short, and wait for
// a message that fits.
func (s *side) newPool() {
	rng := s.w.rng
	room := lossyMax
	if s.typ == roce.UD {
		room = ib.GRHSize + s.mtu.Bytes()
	}
	if rng.IntN(4) == 0 {
		room = max(ib.GRHSize, room/2)
	}
	s.pool = &pool{
		n: s.n, post: s.qp.PostRecv, room: room, arenas: s.arenas, posted: map[uint64]scatter{}, least: map[*side]uint64{},
		sge: 1 + rng.IntN(s.qpCap.MaxRecvSGE), target: min(1+rng.IntN(8), s.qpCap.MaxRecvWR),
	}
}

// queue returns the queue, nil for no pool.
func (p *pool) queue() *roce.SRQ {
	if p == nil {
		return nil
	}
	return p.srq
}

// due returns when the program wants to do something by itself.
func (p *pool) due() time.Duration {
	if !p.gone && p.at > p.n.w.now && len(p.posted) < p.target {
		return p.at
	}
	return roce.Never
}

// act posts receives, sizes the queue and arms its limit, now and then.
func (p *pool) act() (busy bool) {
	if p.gone || p.n.w.now < p.at || len(p.posted) >= p.target {
		return false
	}
	w, rng := p.n.w, p.n.w.rng
	if p.srq != nil && rng.IntN(4) == 0 {
		a := roce.SRQAttr{MaxWR: 8 << rng.IntN(3), Limit: rng.IntN(p.target + 1)}
		if err := p.srq.Modify(a, roce.SRQMaxWR|roce.SRQLimit); err != nil {
			w.fail("node %d: shared queue: %v", p.n.i, err)
		}
		p.limited = a.Limit > 0
	}
	for n := 1 + rng.IntN(p.target); n > 0 && len(p.posted) < p.target; n-- {
		buf, ok := allocScatter(rng, p.arenas, p.room+rng.IntN(100), 1+rng.IntN(p.sge))
		if !ok {
			break
		}
		id := recvID | p.next
		p.next++
		p.posted[id] = buf
		w.trace.add(event{at: w.now, node: p.n.i, what: "pool", n: len(p.posted), sum: id})
		if err := p.post(roce.RecvWR{ID: id, SGE: buf.sges()}); err != nil {
			w.fail("node %d: post receive %#x: %v", p.n.i, id, err)
		}
		busy = true
	}
	p.at = w.now + 1
	if rng.IntN(3) == 0 {
		p.at = w.now + time.Duration(rng.Int64N(int64(2*time.Millisecond)))
	}
	return busy
}

// take returns the buffer of a receive that completed for s. Each completes once,
// and those of one queue pair in the order in which they were posted.
func (p *pool) take(s *side, wc *roce.WC) (buf scatter, ok bool) {
	buf, ok = p.posted[wc.ID]
	switch {
	case !ok:
		p.n.w.fail("%v: receive %#x of the pool completed, but is not posted", s, wc.ID)
	case wc.ID < p.least[s]:
		p.n.w.fail("%v: receive %#x of the shared queue completed after a later one", s, wc.ID)
	case p.srq == nil && wc.ID != max(recvID, p.least[s]):
		p.n.w.fail("%v: receive %#x completed, but next is %#x", s, wc.ID, p.least[s])
	}
	delete(p.posted, wc.ID)
	p.least[s] = wc.ID + 1
	return buf, ok
}

// limitReached takes the event.
func (p *pool) limitReached() {
	if !p.limited {
		p.n.w.fail("node %d: limit event of a shared queue that is not armed", p.n.i)
	}
	p.limited = false
	p.n.w.res.Limits++
}

// close destroys the queue, whose queue pairs are gone: what is posted has not
// been touched, unless a queue pair was destroyed in the middle of a message.
func (p *pool) close() error {
	if !p.gone {
		if err := p.srq.Destroy(); err != nil {
			return err
		}
	}
	for _, buf := range p.posted {
		buf.release()
	}
	if err := closeArenas(p.arenas, false); err != nil {
		return fmt.Errorf("shared queue: %w", err)
	}
	if p.pd == p.n.pd {
		return nil
	}
	if err := errors.Join(closeArenas(p.far, false), p.words.close()); err != nil {
		return fmt.Errorf("memory of a shared queue of XRC: %w", err)
	}
	return p.pd.Dealloc()
}
