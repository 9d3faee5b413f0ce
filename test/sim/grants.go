package sim

import (
	"fmt"
	"math/rand/v2"

	"github.com/goroce/goroce/roce"
)

// A grant is a key that a program, the owner, gives its peer for a part of its
// memory, again and again another part: a memory window, a fast registration, or a
// region that is registered anew. The peer's requests go through it now and then,
// until it says that no more will come; then either side closes it. Every bind,
// registration, access and invalidation of such programs succeeds.
type grant struct {
	kind  grantKind
	owner *side
	mw    *roce.MW
	mr    *roce.MR
	state grantState
	words bool // it is for the atomics on the owner's words

	p       piece  // of the owner's memory, unless for words
	used    int    // bytes of p that were given to requests
	pending int    // requests through it that have not completed
	reads   bool   // one of them is a READ
	va      uint64 // by which peers name the first byte
	key     uint32
}

type grantKind uint8

const (
	window1 grantKind = iota
	window2A
	window2B
	fastMR
	reregMR
	numGrantKinds
)

type grantState uint8

const (
	shut    grantState = iota
	opening            // its request is in the owner's send queue
	open
	spent   // nobody will use it any more
	closing // its request is in the send queue of the owner or of the peer
)

// grantMax is the most bytes of a grant.
const grantMax = 16 << 10

// newGrants decides on the grants of a side.
func (s *side) newGrants() error {
	if s.doomed || s.typ != roce.RC {
		return nil
	}
	for range 1 + s.w.rng.IntN(3) {
		g := &grant{kind: grantKind(s.w.rng.IntN(int(numGrantKinds))), owner: s}
		var err error
		switch g.kind {
		case fastMR:
			g.mr, err = s.n.pd.AllocMR(grantMax)
		case reregMR:
			g.mr, err = s.n.pd.RegisterMR(nil, roce.LocalWrite)
		default:
			g.mw, err = s.n.pd.AllocMW([]roce.MWType{roce.MWType1, roce.MWType2A, roce.MWType2B}[g.kind])
		}
		if err != nil {
			return err
		}
		s.grants = append(s.grants, g)
	}
	return nil
}

// manage opens and closes the grants of a side, now and then.
func (s *side) manage() (busy bool) {
	for _, g := range s.grants {
		switch {
		case g.state == shut && g.pending == 0 && !s.peer.allPosted() && s.w.rng.IntN(2) == 0:
			busy = g.open() || busy
		case g.state == spent && g.pending == 0 && s.w.rng.IntN(4) == 0:
			g.close()
			busy = true
		}
	}
	return busy
}

// open begins to open a grant, if there is memory for it.
func (g *grant) open() bool {
	s, rng := g.owner, g.owner.w.rng
	acc := roce.RemoteRead | roce.RemoteWrite
	if g.words = g.mw != nil && rng.IntN(4) == 0; g.words {
		acc, g.va = roce.RemoteWrite|roce.RemoteAtomic, s.n.words.mr.Addr()
	} else {
		var ok bool
		if g.p, ok = s.arenas[rng.IntN(len(s.arenas))].alloc(rng, 1+rng.IntN(grantMax)); !ok {
			return false
		}
		g.va, g.used = g.p.addr(), 0
	}
	g.reads, g.state = false, opening
	switch g.kind {
	case window1:
		s.insert(&request{op: roce.WRBindMW, grant: g, access: acc})
	case window2A, window2B:
		if rng.IntN(2) == 0 {
			acc, g.va = acc|roce.ZeroBased, 0
		}
		s.insert(&request{op: roce.WRBindMW, grant: g, access: acc})
	case fastMR:
		g.va = rng.Uint64() >> 1
		if err := g.mr.Map(g.p.bytes(), roce.IOVA(g.va)); err != nil {
			s.w.fail("%v: map: %v", s, err)
		}
		s.insert(&request{op: roce.WRRegMR, grant: g, access: acc | roce.LocalWrite})
	case reregMR:
		g.register(acc | roce.LocalWrite)
	}
	return true
}

// register opens a grant of the kind reregMR; the protection domain goes to and fro.
func (g *grant) register(acc roce.Access) {
	s := g.owner
	g.va = s.w.rng.Uint64() >> 1
	if err := g.mr.Reregister(roce.ReregPD, s.n.pd2, nil, 0); err != nil {
		s.w.fail("%v: reregister: %v", s, err)
	}
	flags := roce.ReregTranslation | roce.ReregAccess | roce.ReregPD
	if err := g.mr.Reregister(flags, s.n.pd, g.p.bytes(), acc, roce.IOVA(g.va)); err != nil {
		s.w.fail("%v: reregister: %v", s, err)
	}
	g.key, g.state = g.mr.RKey(), open
}

// region is the region that a window opens, and where in it.
func (g *grant) region() (mr *roce.MR, addr, n uint64) {
	if g.words {
		mr = g.owner.n.words.mr
		return mr, mr.Addr(), uint64(len(mr.Bytes()))
	}
	return g.p.a.mr, g.p.addr(), uint64(g.p.n)
}

// close begins to close a grant that is not used any more.
func (g *grant) close() {
	g.state = closing
	switch g.kind {
	case reregMR:
		if err := g.mr.Reregister(roce.ReregAccess, nil, nil, roce.LocalWrite); err != nil {
			g.owner.w.fail("%v: reregister: %v", g.owner, err)
		}
		g.closed()
	case window1:
		g.owner.insert(&request{op: roce.WRBindMW, grant: g})
	default:
		g.owner.insert(&request{op: roce.WRLocalInv, grant: g})
	}
}

// insert makes a local operation the next request of a side.
func (s *side) insert(r *request) {
	r.id = s.newID()
	if s.allPosted() || s.sigAll || s.w.rng.IntN(2) == 0 {
		r.flags |= roce.Signaled
	}
	s.ops = append(s.ops[:s.posted], append([]*request{r}, s.ops[s.posted:]...)...)
}

// postLocal fills in a local operation.
func (r *request) postLocal(wr *roce.SendWR) {
	g := r.grant
	switch wr.Access = r.access; r.op {
	case roce.WRLocalInv:
		wr.InvalidateRKey = g.key
	case roce.WRRegMR:
		g.key = roce.IncRKey(g.mr.RKey())
		wr.MR, wr.RKey = g.mr, g.key
	case roce.WRBindMW:
		wr.MR, wr.Addr, wr.Length = g.region()
		wr.MW, wr.RKey = g.mw, roce.IncRKey(g.mw.RKey())
		g.key = wr.RKey
	}
}

// bindType1 posts a bind of a window of type 1, which PostSend does not take.
func (s *side) bindType1(r *request, wr *roce.SendWR) error {
	b := roce.BindWR{ID: wr.ID, Flags: wr.Flags, MR: wr.MR, Addr: wr.Addr, Length: wr.Length, Access: wr.Access}
	if r.grant.state == closing {
		b = roce.BindWR{ID: wr.ID, Flags: wr.Flags}
	}
	err := s.qp.BindMW(wr.MW, b)
	r.grant.key = wr.MW.RKey()
	return err
}

// executed takes note of the end of a local operation at its own side.
func (g *grant) executed(r *request) {
	if g.state == opening {
		g.state = open
		if g.mw != nil && !g.mw.Bound() {
			g.owner.w.fail("%v: %v: the window is not open", g.owner, r)
		}
		return
	}
	g.closed()
}

// closed takes note that the key opens nothing any more.
func (g *grant) closed() {
	if g.mw != nil && g.mw.Bound() {
		g.owner.w.fail("%v: a window is still open: key %#x", g.owner, g.key)
	}
	g.state = shut
	g.settle()
}

// settle gives the memory of a grant back when nobody needs it any more.
func (g *grant) settle() {
	if g.state == shut && g.pending == 0 && g.p.a != nil {
		g.p.release()
		g.p = piece{}
	}
}

// borrow returns a grant of the peer through which request r may go, or nil.
func (s *side) borrow(r *request) *grant {
	if len(s.peer.grants) == 0 || s.w.rng.IntN(3) == 0 {
		return nil
	}
	g := s.peer.grants[s.w.rng.IntN(len(s.peer.grants))]
	if g.state != open || g.words != r.isAtomic() || r.op == roce.WRFlush {
		return nil
	}
	if s.w.rng.IntN(6) == 0 || !g.words && g.p.n-g.used < r.size {
		g.state = spent
		return nil
	}
	g.pending++
	g.reads = g.reads || r.op == roce.WRRead
	s.w.res.Granted++
	return g
}

// cut takes n bytes of the grant for a request, and returns their address.
func (g *grant) cut(rng *rand.Rand, n int) (p piece, va uint64) {
	p, va = piece{a: g.p.a, off: g.p.off + g.used, n: n}, g.va+uint64(g.used)
	g.used = min(g.p.n, g.used+n+rng.IntN(40))
	return p, va
}

// giveBack gives the remote memory of a request back.
func (r *request) giveBack() {
	r.held = false
	if r.grant == nil {
		r.remote.release()
		return
	}
	r.remote.restoreGuard()
	r.grant.done()
}

// done takes note that a request through the grant has completed.
func (g *grant) done() {
	g.pending--
	g.settle()
}

// invalidates makes a SEND one that closes a grant of the peer, or any SEND if there
// is none. A fence lets READs through it end first (IBTA 10.8.3.3).
func (s *side) invalidates(r *request) {
	for _, g := range s.peer.grants {
		if (g.state == open || g.state == spent) && g.kind != window1 && g.kind != reregMR {
			if g.state, r.rkey = closing, g.key; g.reads {
				r.flags |= roce.Fence
			}
			return
		}
	}
	r.op = roce.WRSend
}

// invalidated takes note of the message by which the peer has closed a grant.
func (s *side) invalidated(wc *roce.WC) {
	for _, g := range s.grants {
		if g.state == closing && g.key == wc.Imm {
			g.closed()
			return
		}
	}
	s.w.fail("%v: the peer has closed the unknown key %#x", s, wc.Imm)
}

// revoke takes the grants of a side down, whose requests have completed.
func (s *side) revoke() error {
	for _, g := range s.grants {
		if g.pending != 0 || g.state == opening {
			return fmt.Errorf("%v: key %#x has %d requests at the end, state %d", s, g.key, g.pending, g.state)
		}
		free := g.mw.Dealloc
		if g.mr != nil {
			free = g.mr.Deregister
		}
		if err := free(); err != nil {
			return err
		}
		g.state = shut
		g.settle()
	}
	return nil
}
