package sim

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/goroce/goroce/roce"
)

// Contents are a function of a key and a position: byte i of pattern key is byte
// i%8 of word i/8. A run is one goroutine, and most of its work in race builds
// would be the bookkeeping of these functions: they go without.

//go:norace
func word(key uint64, i int) uint64 {
	x := key + uint64(i)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fill writes bytes off to off+len(b) of a pattern to b.
//
//go:norace
func fill(b []byte, key uint64, off int) {
	for len(b) > 0 && (off&7 != 0 || len(b) < 8) {
		b[0] = byte(word(key, off>>3) >> (off & 7 * 8))
		b = b[1:]
		off++
	}
	for ; len(b) >= 8; b, off = b[8:], off+8 {
		binary.LittleEndian.PutUint64(b, word(key, off>>3))
	}
	if len(b) > 0 {
		fill(b, key, off)
	}
}

// differs returns the index of the first byte of b that is not byte off+index of
// the pattern, or -1.
//
//go:norace
func differs(b []byte, key uint64, off int) int {
	for i := 0; i < len(b); {
		if at := off + i; at&7 == 0 && len(b)-i >= 8 {
			if binary.LittleEndian.Uint64(b[i:]) == word(key, at>>3) {
				i += 8
				continue
			}
		}
		if b[i] != byte(word(key, (off+i)>>3)>>((off+i)&7*8)) {
			return i
		}
		i++
	}
	return -1
}

// tail is left free at the end of an arena: guard bytes.
const tail = 64

// arena is a memory region in which programs keep their buffers. What no buffer
// occupies holds the pattern guard; there are such bytes between any two buffers.
type arena struct {
	mr    *roce.MR
	buf   []byte
	guard uint64
	free  []span // in order, none empty, no two adjacent
}

type span struct{ off, n int }

// piece is a part of an arena. The guard bytes before it, lead of them, belong to
// it.
type piece struct {
	a            *arena
	off, n, lead int
}

func (p piece) bytes() []byte { return p.a.buf[p.off:][:p.n] }
func (p piece) sge() roce.SGE { return p.a.mr.SGE(p.off, p.n) }
func (p piece) addr() uint64  { return p.a.mr.Addr() + uint64(p.off) }
func (p piece) restoreGuard() { fill(p.bytes(), p.a.guard, p.off) }

func newArena(buf []byte, guard uint64) *arena {
	fill(buf, guard, 0)
	return &arena{buf: buf, guard: guard, free: []span{{0, len(buf) - tail}}}
}

// alloc takes a piece of n bytes at a random place, if there is one.
func (a *arena) alloc(rng *rand.Rand, n int) (piece, bool) {
	lead := 1 + rng.IntN(40)
	if len(a.free) == 0 {
		return piece{}, false
	}
	for k, i := 0, rng.IntN(len(a.free)); k < len(a.free); k, i = k+1, (i+1)%len(a.free) {
		s := &a.free[i]
		if s.n <= n+lead {
			continue
		}
		p := piece{a, s.off + lead, n, lead}
		s.off += lead + n
		s.n -= lead + n
		return p, true
	}
	return piece{}, false
}

// release gives a piece back and makes it guard bytes again.
func (p piece) release() {
	p.restoreGuard()
	a := p.a
	s := span{p.off - p.lead, p.n + p.lead}
	i := 0
	for i < len(a.free) && a.free[i].off < s.off {
		i++
	}
	switch before, after := i > 0 && a.free[i-1].off+a.free[i-1].n == s.off, i < len(a.free) && s.off+s.n == a.free[i].off; {
	case before && after:
		a.free[i-1].n += s.n + a.free[i].n
		a.free = append(a.free[:i], a.free[i+1:]...)
	case before:
		a.free[i-1].n += s.n
	case after:
		a.free[i] = span{s.off, s.n + a.free[i].n}
	default:
		a.free = append(a.free, span{})
		copy(a.free[i+1:], a.free[i:])
		a.free[i] = s
	}
}

// intact returns the first byte that should hold the guard pattern and does not,
// or -1; no piece may be in use.
func (a *arena) intact() int { return differs(a.buf, a.guard, 0) }

// scatter is a buffer in pieces.
type scatter []piece

// allocScatter takes n bytes in the given number of pieces, some of them empty.
func allocScatter(rng *rand.Rand, arenas []*arena, n, pieces int) (scatter, bool) {
	var s scatter
	for i := range pieces {
		part := n
		if i < pieces-1 {
			switch rng.IntN(6) {
			case 0:
				part = 0
			case 1:
				part = min(n, rng.IntN(9))
			default:
				part = rng.IntN(n/(pieces-i)*2 + 1)
				part = min(part, n)
			}
		}
		p, ok := arenas[rng.IntN(len(arenas))].alloc(rng, part)
		if !ok {
			s.release()
			return nil, false
		}
		s = append(s, p)
		n -= part
	}
	return s, true
}

func (s scatter) release() {
	for _, p := range s {
		p.release()
	}
}

func (s scatter) sges() []roce.SGE {
	var l []roce.SGE
	for _, p := range s {
		l = append(l, p.sge())
	}
	return l
}

func (s scatter) fill(key uint64) {
	off := 0
	for _, p := range s {
		fill(p.bytes(), key, off)
		off += p.n
	}
}

// holds returns the first byte that is wrong if the buffer should hold, behind its
// first head bytes, n bytes of the pattern key, and guard bytes behind them; -1 if it
// is so.
func (s scatter) holds(key uint64, head, n int) int {
	off := -head
	for _, p := range s {
		b := p.bytes()
		from := min(len(b), max(0, -off))
		to := min(len(b), max(from, n-off))
		if i := differs(b[from:to], key, off+from); i >= 0 {
			return off + from + i
		}
		if i := differs(b[to:], p.a.guard, p.off+to); i >= 0 {
			return off + to + i
		}
		off += p.n
	}
	return -1
}
