package netio

import "net/netip"

// inboxCharge is how many bytes of bookkeeping each entry of an inbox is charged.
const inboxCharge = 128

// inbox is a receive buffer of a bounded size: a ring of bytes and a ring of entries
// that describe pieces of it. The user locks it.
type inbox struct {
	room  int // bytes it may hold; the memory is taken when it is first needed
	ring  []byte
	head  uint64 // position after the last byte in use; modulo len(ring)
	tail  uint64 // position of the first byte in use
	q     []inboxEntry
	first int // index of the oldest entry
	n     int // entries in use
	lent  int // of these, handed out by the last take
}

type inboxEntry struct {
	src, dst netip.AddrPort
	tos      uint8
	seg      int
	id       uint16
	idKnown  bool
	off      int    // of the bytes in the ring
	size     int    // bytes
	end      uint64 // position up to which the ring is free once this entry is
}

// waiting is how many entries have not been handed out.
func (b *inbox) waiting() int { return b.n - b.lent }

// put copies r, or reports that there is no room.
func (b *inbox) put(r *Received) bool {
	off, ok := b.reserve(len(r.Buf))
	if !ok {
		return false
	}
	copy(b.ring[off:], r.Buf)
	if b.n == len(b.q) {
		b.growQueue()
	}
	b.q[(b.first+b.n)%len(b.q)] = inboxEntry{
		src: r.Src, dst: r.Dst, tos: r.TOS, seg: r.SegSize, id: r.ID, idKnown: r.IDKnown, off: off, size: len(r.Buf), end: b.head,
	}
	b.n++
	return true
}

// reserve takes size contiguous bytes of the ring and moves head behind them.
func (b *inbox) reserve(size int) (off int, ok bool) {
	if b.ring == nil {
		b.ring = make([]byte, b.room)
	}
	total := uint64(len(b.ring))
	pos := b.head % total
	need := uint64(size + inboxCharge)
	if pos+need > total { // does not fit before the end: start over
		need += total - pos
		pos = 0
	}
	if b.head-b.tail+need > total {
		return 0, false
	}
	b.head += need
	return int(pos), true
}

func (b *inbox) growQueue() {
	q := make([]inboxEntry, max(64, 2*len(b.q)))
	for i := range b.n {
		q[i] = b.q[(b.first+i)%len(b.q)]
	}
	b.q, b.first = q, 0
}

// take hands out the oldest entries, until the next take.
func (b *inbox) take(dst []Received) int {
	b.release()
	n := min(len(dst), b.n)
	for i := range n {
		it := &b.q[(b.first+i)%len(b.q)]
		dst[i] = Received{
			Src: it.src, Dst: it.dst, TOS: it.tos, SegSize: it.seg, ID: it.id, IDKnown: it.idKnown,
			Buf: b.ring[it.off : it.off+it.size : it.off+it.size],
		}
	}
	b.lent = n
	return n
}

// release frees what the last take handed out.
func (b *inbox) release() {
	if b.lent == 0 {
		return
	}
	b.tail = b.q[(b.first+b.lent-1)%len(b.q)].end
	b.first = (b.first + b.lent) % len(b.q)
	b.n -= b.lent
	b.lent = 0
}
