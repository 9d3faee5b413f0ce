package transport

import "github.com/goroce/goroce/ib"

// This file keeps request packets that came before their turn, because one before
// them was lost or overtaken, until it has come. They are then given to the
// responder as if they had just arrived: every check, and the order in which memory
// changes and messages complete, is that of a network that keeps order. A standard
// requester, which repeats them all, sees an acknowledgement of more than it has
// repeated, as after ACKs that were lost (IBTA 9.7.5.1.2).

// stashSlots is how many PSNs ahead of the expected one are looked at. A READ
// request has as many PSNs as responses.
const stashSlots = 1024

// Stash is memory in which the queue pairs of a device keep packets. It belongs to
// the owner of their engine.
type Stash struct {
	limit int // bytes, of all and of one queue pair
	perQP int
	used  int // bytes, those of free blocks as well
	free  [ib.MTU4096 + 1][][]byte
}

// NewStash returns memory of at most limit bytes, of which one queue pair may have
// perQP. It is allocated when it is first needed, and then kept.
func NewStash(limit, perQP int) *Stash { return &Stash{limit: limit, perQP: perQP} }

// blockSize is enough for any request packet.
func blockSize(mtu ib.MTU) int { return ib.MaxHeaderSize + mtu.Bytes() + ib.ICRCSize }

// get returns a block, or nil when there is no memory left.
func (s *Stash) get(mtu ib.MTU) []byte {
	if l := s.free[mtu]; len(l) > 0 {
		s.free[mtu] = l[:len(l)-1]
		return l[len(l)-1]
	}
	n := blockSize(mtu)
	for m := range s.free { // what is free for another path MTU is in the way
		if s.used+n > s.limit {
			s.used -= len(s.free[m]) * blockSize(ib.MTU(m))
			s.free[m] = nil
		}
	}
	if s.used+n > s.limit {
		return nil
	}
	s.used += n
	return make([]byte, n)
}

func (s *Stash) put(mtu ib.MTU, b []byte) { s.free[mtu] = append(s.free[mtu], b[:cap(b)]) }

// early are the packets that one queue pair has in a stash.
type early struct {
	from  *Stash // nil: none are kept
	mtu   ib.MTU
	slots []ib.Packet // ring by sequence number, of stashSlots; made when first needed
	n     int         // packets in it
	high  uint64      // after the last that was kept
}

// has says whether packet seq is kept.
func (e *early) has(seq uint64) bool { return e.n > 0 && e.holds(seq) }

func (e *early) holds(seq uint64) bool {
	p := &e.slots[seq%stashSlots]
	return p.Info() != nil && p.PSN() == psnOf(seq)
}

// keep copies a packet. It reports false when there is no room for it.
func (e *early) keep(p *ib.Packet, seq, expected uint64) bool {
	n := len(p.Bytes())
	if e.from == nil || seq-expected >= stashSlots || n > blockSize(e.mtu) || (e.n+1)*blockSize(e.mtu) > e.from.perQP {
		return false
	}
	b := e.from.get(e.mtu)
	if b == nil {
		return false
	}
	if e.slots == nil {
		e.slots = make([]ib.Packet, stashSlots)
	}
	if e.n == 0 {
		e.high = 0
	}
	copy(b, p.Bytes())
	e.slots[seq%stashSlots], _ = ib.Parse(b[:n]) // as well-formed as p
	e.n++
	e.high = max(e.high, seq+1)
	return true
}

// take removes packet seq, which the caller gives back with release when it is
// executed.
func (e *early) take(seq uint64) (p ib.Packet, ok bool) {
	if !e.has(seq) {
		return p, false
	}
	slot := &e.slots[seq%stashSlots]
	p, *slot = *slot, ib.Packet{}
	e.n--
	return p, true
}

func (e *early) release(p ib.Packet) { e.from.put(e.mtu, p.Bytes()) }

// drop forgets the packets from one sequence number up to another.
func (e *early) drop(from, to uint64) {
	for seq := from; e.n > 0 && seq != min(to, from+stashSlots); seq++ {
		if p, ok := e.take(seq); ok {
			e.release(p)
		}
	}
}

// clear forgets all packets, and where they would be kept.
func (e *early) clear(expected uint64) {
	e.drop(expected, expected+stashSlots)
	e.slots = nil
}
