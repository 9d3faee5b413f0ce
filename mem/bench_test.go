package mem

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// No call on the packet path allocates, opening a cursor included, once a
// cursor has seen a list as long or was told to Grow.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	rng := rand.New(rand.NewPCG(1, 1))
	w := newWorld(t, rng, randomSizes(rng, MaxSGE, 200))
	e := w.sges[MaxSGE-1]
	e.Length = 0
	for i := range w.sges {
		if w.sges[i].Length > e.Length {
			e = w.sges[i]
		}
	}
	b := make([]byte, len(w.model))
	r := w.tab.region(e.LKey)
	w.tab.SetSync(func([]byte) error { return nil }, nil)
	atomics := register(t, w.tab, aligned(64, 0), 1, LocalWrite|RemoteAtomic|RemoteWrite|FlushPersistent, 0x1000)
	var c Cursor
	c.Grow(MaxSGE)
	for name, f := range map[string]func(){
		"local":   func() { c.Local(w.tab, 1, w.sges, LocalWrite); c.CopyOut(b, 0); c.CopyIn(0, b) },
		"odd end": func() { c.Local(w.tab, 1, w.sges, LocalWrite); c.CopyIn(1, b[:11]); c.CopyIn(2, b[:17]) },
		"remote": func() {
			c.Remote(w.tab, 1, e.LKey, e.Addr, uint64(e.Length), RemoteRead|RemoteWrite)
			c.CopyIn(0, b[:e.Length])
		},
		"refused": func() { c.Remote(w.tab, 2, e.LKey, e.Addr, 1, 0); c.Local(w.tab, 2, w.sges, 0) },
		"inline":  func() { c.Inline(b); c.CopyOut(b[:10], 3); c.Reset() },
		"loads":   func() { r.Key(); r.Addr(); r.Len() },
		"atomics": func() {
			c.Remote(w.tab, 1, atomics.Key(), 0x1000, 8, RemoteAtomic|RemoteWrite|FlushPersistent)
			c.FetchAdd(1)
			c.CompareSwap(1, 2)
			c.StoreWord(b[:8])
			c.RemoteRegion(w.tab, 1, atomics.Key(), FlushPersistent)
			c.Persist(0, 64)
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	var small Cursor
	if n := testing.AllocsPerRun(100, func() { small.Local(w.tab, 1, w.sges[:1], 0) }); n != 0 {
		t.Errorf("one entry, without Grow: %v allocations", n)
	}
}

func benchCopy(b *testing.B, segments int, copy func(c *Cursor, off uint64, p []byte) Status) {
	const packet, message = 4096, 64 << 10
	tab := NewTable(seeded(1))
	r := register(b, tab, make([]byte, message), 1, LocalWrite, 0x1000)
	var sges []SGE
	for i := range segments {
		n := message / segments
		sges = append(sges, SGE{0x1000 + uint64(i*n), uint32(n), r.Key()})
	}
	var c Cursor
	if s := c.Local(tab, 1, sges, LocalWrite); s != OK {
		b.Fatal(s)
	}
	p := make([]byte, packet)
	b.SetBytes(packet)
	b.ReportAllocs()
	off := uint64(0)
	for b.Loop() {
		if s := copy(&c, off, p); s != OK {
			b.Fatal(s)
		}
		off = (off + packet) % message
	}
}

func BenchmarkCopyIn(b *testing.B) {
	for _, n := range []int{1, 32} {
		b.Run(fmt.Sprintf("sges=%d", n), func(b *testing.B) {
			benchCopy(b, n, func(c *Cursor, off uint64, p []byte) Status { return c.CopyIn(off, p) })
		})
	}
}

func BenchmarkCopyOut(b *testing.B) {
	for _, n := range []int{1, 32} {
		b.Run(fmt.Sprintf("sges=%d", n), func(b *testing.B) {
			benchCopy(b, n, func(c *Cursor, off uint64, p []byte) Status { return c.CopyOut(p, off) })
		})
	}
}

// BenchmarkRemote opens a cursor: key lookup and all checks.
func BenchmarkRemote(b *testing.B) {
	for _, n := range []int{1, 100, 10000} {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			tab := NewTable(seeded(1))
			keys := make([]uint32, n)
			buf := make([]byte, 64)
			for i := range keys {
				keys[i] = register(b, tab, buf, 1, RemoteRead, 0x1000).Key()
			}
			rand.Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			var c Cursor
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if s := c.Remote(tab, 1, keys[i], 0x1000, 64, RemoteRead); s != OK {
					b.Fatal(s)
				}
				if i++; i == n {
					i = 0
				}
			}
		})
	}
}
