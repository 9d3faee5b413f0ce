package sim

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/goroce/goroce/roce"
)

// Each node has words that the programs of all its peers, and its own, work on at
// the same time. What they find must be explained by one order of all operations,
// in which each was executed once, and none before one that had completed when it
// was posted: they are linearizable. To see that, one word is only incremented, so
// that each value is found once; the other only exchanged, each time for a value of
// its own, so that values form a chain. Behind them each connection has a word for
// its ATOMIC_WRITEs.
const (
	adderWord = iota
	chainWord
	privateWords
	numWords = privateWords + 64
)

// words are the words of a node and what is known of them.
type words struct {
	n     *node
	mr    *roce.MR
	added []addition // completed, in the order of completion
	floor uint64     // the adder is known to have reached it
	swaps []swap     // as added
	last  uint64     // of the chain, as far as somebody has seen it

	pending     int    // atomics that were posted and have not completed
	base, start uint64 // what was in the words before all that is listed
}

type addition struct{ found, floor uint64 }

// swap is a completed exchange; after were completed when it was posted.
type swap struct {
	found, compare, value uint64
	after                 int
}

// open registers the words.
func (w *words) open(n *node, pd *roce.PD) error {
	iova := n.w.rng.Uint64() >> 1 &^ 7
	mr, err := pd.RegisterMR(make([]byte, 8*numWords), roce.LocalWrite|roce.RemoteWrite|roce.RemoteAtomic|roce.FlushGlobal|roce.MWBind, roce.IOVA(iova))
	w.n, w.mr = n, mr
	return err
}

// isAtomic says whether a request works on the words of the peer.
func (r *request) isAtomic() bool {
	switch r.op {
	case roce.WRAtomicFetAdd, roce.WRAtomicCmpSwp, roce.WRAtomicWrite, roce.WRFlush:
		return true
	}
	return false
}

// finds says whether a request brings back what it found.
func (r *request) finds() bool { return r.op == roce.WRAtomicFetAdd || r.op == roce.WRAtomicCmpSwp }

// word is the number of the word that a request works on.
func (s *side) word(r *request) int {
	switch r.op {
	case roce.WRAtomicFetAdd:
		return adderWord
	case roce.WRAtomicCmpSwp:
		return chainWord
	}
	return privateWords + s.num%(numWords-privateWords)
}

// wordsOf are the words that a request works on.
func (s *side) wordsOf(r *request) *words {
	if s.typ == roce.XRCSend {
		return &r.pool.words
	}
	return &s.peer.n.words
}

// aim makes a request one on the words of the peer.
func (s *side) aim(r *request, wr *roce.SendWR) {
	w := s.wordsOf(r)
	w.pending++
	r.va, r.rkey = w.mr.Addr(), w.mr.RKey()
	if r.grant = s.borrow(r); r.grant != nil {
		r.va, r.rkey = r.grant.va, r.grant.key
	}
	wr.RemoteAddr, wr.RKey = r.va+uint64(8*s.word(r)), r.rkey
	switch r.op {
	case roce.WRAtomicFetAdd:
		wr.CompareAdd = 1
		r.floor = w.floor
	case roce.WRAtomicCmpSwp:
		wr.CompareAdd, wr.Swap = w.last, r.key
		if s.w.rng.IntN(8) == 0 {
			wr.CompareAdd = s.w.rng.Uint64()
		}
		r.compare, r.after = wr.CompareAdd, len(w.swaps)
	case roce.WRFlush:
		wr.SGE = nil
		wr.Flush = roce.Flush{Placement: roce.PlaceGlobal, Length: 8, Level: roce.FlushLevel(s.w.rng.IntN(2))}
	}
}

// found takes note of what a completed request found.
func (s *side) found(r *request) {
	w := s.wordsOf(r)
	w.pending--
	if r.grant != nil {
		r.grant.done()
	}
	switch r.op {
	case roce.WRAtomicFetAdd:
		w.note(addition{r.local.word(s), r.floor})
	case roce.WRAtomicCmpSwp:
		x := swap{r.local.word(s), r.compare, r.key, r.after}
		w.swaps = append(w.swaps, x)
		if w.last = x.found; x.found == x.compare {
			w.last = x.value
		}
	case roce.WRAtomicWrite:
		s.written(r)
	}
}

func (w *words) note(a addition) {
	w.added = append(w.added, a)
	w.floor = max(w.floor, a.found+1)
}

// written checks that an ATOMIC_WRITE, or one that was posted later, is in the
// memory of the peer.
func (s *side) written(r *request) {
	got := s.peer.n.words.mr.Bytes()[8*s.word(r):][:8]
	for _, later := range s.ops[slices.Index(s.ops, r):s.posted] {
		if later.op == roce.WRAtomicWrite && differs(got, later.key, 0) < 0 {
			return
		}
	}
	s.w.fail("%v: %v is not in the peer's memory", s, r)
}

// word returns the 8 bytes of a buffer that hold what an atomic found.
func (b scatter) word(s *side) uint64 {
	var v []byte
	for _, p := range b {
		v = append(v, p.bytes()...)
	}
	if len(v) != 8 {
		s.w.fail("%v: an atomic has a buffer of %d bytes", s, len(v))
		return 0
	}
	return binary.NativeEndian.Uint64(v)
}

// touch lets the program of a node increment the adder itself.
func (n *node) touch() {
	if w := &n.words; w.mr != nil && n.w.rng.IntN(16) == 0 {
		w.note(addition{w.mr.AddUint64(8*adderWord, 1) - 1, w.floor})
	}
}

// close checks the words, if there are any, and takes them down.
func (w *words) close() error {
	if w.mr == nil {
		return nil
	}
	if err := w.check(); err != nil {
		return err
	}
	return w.mr.Deregister()
}

// fold checks the words and forgets how they became what they are, if there is much to
// forget and nothing under way.
func (w *words) fold() error {
	if w.pending > 0 || len(w.added)+len(w.swaps) < 1000 {
		return nil
	}
	if err := w.check(); err != nil {
		return err
	}
	w.base += uint64(len(w.added))
	w.start = w.mr.LoadUint64(8 * chainWord)
	w.added, w.swaps = nil, nil
	return nil
}

// check looks for the order that explains everything.
func (w *words) check() error {
	seen := make([]bool, len(w.added))
	for _, a := range w.added {
		if a.found-w.base >= uint64(len(seen)) || seen[a.found-w.base] {
			return fmt.Errorf("of %d increments, from %d on, one found %d, which is too much or was found before", len(seen), w.base, a.found)
		}
		if a.found < a.floor {
			return fmt.Errorf("an increment found %d, when %d was known to be reached before it was posted", a.found, a.floor)
		}
		seen[a.found-w.base] = true
	}
	if got := w.mr.LoadUint64(8 * adderWord); got != w.base+uint64(len(seen)) {
		return fmt.Errorf("%d increments left %d, after %d", len(seen), got, w.base)
	}
	next := map[uint64]uint64{}
	for _, x := range w.swaps {
		if x.found == x.compare {
			if _, twice := next[x.found]; twice {
				return fmt.Errorf("the value %#x was exchanged twice", x.found)
			}
			next[x.found] = x.value
		}
	}
	v := w.start
	place := map[uint64]int{v: 0}
	for n, ok := next[v]; ok; n, ok = next[v] {
		v = n
		place[v] = len(place)
	}
	if got := w.mr.LoadUint64(8 * chainWord); got != v || len(place) != len(next)+1 {
		return fmt.Errorf("%d exchanges, of which %d form a chain, left %#x, the chain ends with %#x", len(next), len(place)-1, got, v)
	}
	reached := []int{0} // by the first so many completed exchanges
	for _, x := range w.swaps {
		at, ok := place[x.found]
		if !ok || at < reached[x.after] {
			return fmt.Errorf("an exchange found %#x (number %d), when number %d was known to be reached before it was posted", x.found, at, reached[x.after])
		}
		if x.found == x.compare {
			at++
		}
		reached = append(reached, max(reached[len(reached)-1], at))
	}
	w.n.w.res.Atomics += len(w.added) + len(w.swaps)
	return nil
}
