package roce

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/goroce/goroce/mem"
	"github.com/goroce/goroce/transport"
)

// Work queues are rings of fixed entries without pointers, with free-running
// indices (docs/decisions/0005-post-rings.md). The poster writes produced, under
// the QP's leaf lock; the engine writes consumed. Entries are allocated at the
// first post, so that an idle queue pair stays small.

// index is a ring index on a cache line of its own.
type index struct {
	atomic.Uint32
	_ [60]byte
}

// depth returns the number of entries of a queue of at least n.
func depth(n int) uint32 {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len32(uint32(n-1))
}

// ends are the indices of a ring.
type ends struct {
	produced index
	consumed atomic.Uint32
	idle     atomic.Uint32 // of a send queue: before it all was taken up when the engine last found no more
	_        [56]byte
}

// sendRing is the send queue of a QP; it implements transport.SQ.
type sendRing struct {
	*ends
	mask              uint32
	maxSGE, maxInline uint32
	entries           []transport.SendWQE
	sges              []mem.SGE
	inline            []byte
}

func newSendRing(entries, maxSGE, maxInline int) *sendRing {
	return &sendRing{ends: new(ends), mask: depth(entries) - 1, maxSGE: uint32(maxSGE), maxInline: uint32(maxInline)}
}

func (r *sendRing) room() bool {
	return r.produced.Load()-r.consumed.Load() <= r.mask
}

// slot returns the entry that the poster fills next.
func (r *sendRing) slot() (w *transport.SendWQE, sges []mem.SGE, inline []byte) {
	if r.entries == nil {
		n := r.mask + 1
		r.sges = make([]mem.SGE, n*r.maxSGE)
		r.inline = make([]byte, n*r.maxInline)
		r.entries = make([]transport.SendWQE, n)
	}
	i := r.produced.Load() & r.mask
	return &r.entries[i], r.sges[i*r.maxSGE:][:r.maxSGE], r.inline[i*r.maxInline:][:r.maxInline]
}

func (r *sendRing) publish() { r.produced.Add(1) }

// found says whether the engine may have found the queue without entries since that of
// index first was to be posted: then it wants to be told of them. It takes up others in
// their turn, behind those before them. Either it sees them when it looks once more after
// it has said so, or who posts sees what it has said.
func (r *sendRing) found(first uint32) bool { return r.idle.Load()-first < r.produced.Load()-first }

// Produced implements transport.SQ.
func (r *sendRing) Produced() uint32 { return r.produced.Load() }

// Posted implements transport.SQ.
func (r *sendRing) Posted(taken uint32) bool {
	if r.produced.Load() != taken {
		return true
	}
	if r.idle.Load() == taken {
		return false
	}
	r.idle.Store(taken)
	return r.produced.Load() != taken
}

// Entry implements transport.SQ.
func (r *sendRing) Entry(i uint32) *transport.SendWQE { return &r.entries[i&r.mask] }

// SGEs implements transport.SQ.
func (r *sendRing) SGEs(i uint32) []mem.SGE {
	i &= r.mask
	return r.sges[i*r.maxSGE:][:min(uint32(r.entries[i].NumSGE), r.maxSGE)]
}

// Inline implements transport.SQ.
func (r *sendRing) Inline(i uint32) []byte {
	i &= r.mask
	return r.inline[i*r.maxInline:][:min(r.entries[i].InlineLen, r.maxInline)]
}

// Consume implements transport.SQ.
func (r *sendRing) Consume(upTo uint32) { r.consumed.Store(upTo) }

// recvRing is the receive queue of a QP; it implements transport.RQ.
type recvRing struct {
	*ends
	mask    uint32
	maxSGE  uint32
	entries []recvEntry
	sges    []mem.SGE
}

type recvEntry struct {
	id     uint64
	numSGE uint32
}

func newRecvRing(entries, maxSGE int) *recvRing {
	return &recvRing{ends: new(ends), mask: depth(entries) - 1, maxSGE: uint32(maxSGE)}
}

// push copies one request in; it reports false when there is no room.
func (r *recvRing) push(wr *RecvWR) bool {
	p := r.produced.Load()
	if p-r.consumed.Load() > r.mask {
		return false
	}
	if r.entries == nil {
		r.sges = make([]mem.SGE, (r.mask+1)*r.maxSGE)
		r.entries = make([]recvEntry, r.mask+1)
	}
	i := p & r.mask
	r.entries[i] = recvEntry{id: wr.ID, numSGE: uint32(len(wr.SGE))}
	copy(r.sges[i*r.maxSGE:][:r.maxSGE], wr.SGE)
	r.produced.Store(p + 1)
	return true
}

// post copies requests in, in order; the error is a *PostError.
func (r *recvRing) post(wrs []RecvWR, what string) error {
	for i := range wrs {
		if field, err := checkSGE(wrs[i].SGE, r.maxSGE, maxMsg); err != nil {
			return &PostError{i, field, err}
		}
		if !r.push(&wrs[i]) {
			return &PostError{i, "", fmt.Errorf("%s of %d: %w", what, r.size(), ErrQueueFull)}
		}
	}
	return nil
}

// size is how many requests there is room for, len how many are posted.
func (r *recvRing) size() int { return int(r.mask + 1) }
func (r *recvRing) len() int  { return int(r.produced.Load() - r.consumed.Load()) }

// moveTo moves all requests to another ring, which has room for them. Nobody else
// may be at work on either.
func (r *recvRing) moveTo(to *recvRing) {
	var w transport.RecvWQE
	for r.Pop(&w) {
		to.push(&RecvWR{ID: w.ID, SGE: w.SGE})
	}
}

// Pop implements transport.RQ.
func (r *recvRing) Pop(dst *transport.RecvWQE) bool {
	c := r.consumed.Load()
	if c == r.produced.Load() {
		return false
	}
	i := c & r.mask
	e := &r.entries[i]
	dst.ID = e.id
	dst.SGE = append(dst.SGE[:0], r.sges[i*r.maxSGE:][:min(e.numSGE, r.maxSGE)]...)
	r.consumed.Store(c + 1)
	return true
}
