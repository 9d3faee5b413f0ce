package mem

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// Each check in its fixed order: every row fails all checks after the one it
// names as well, where that is possible.
func TestChecksInOrder(t *testing.T) {
	tab := NewTable(seeded(1))
	r := register(t, tab, make([]byte, 100), 1, LocalWrite|RemoteRead, 0x1000)
	high := register(t, tab, make([]byte, 100), 1, LocalWrite|RemoteRead, math.MaxUint64-100)
	empty := register(t, tab, nil, 1, LocalWrite|RemoteRead, 0x1000)
	dead := register(t, tab, make([]byte, 100), 1, LocalWrite|RemoteRead, 0x1000)
	if err := tab.Deregister(dead); err != nil {
		t.Fatal(err)
	}
	unknown := dead.Key() ^ 1
	for _, tt := range []struct {
		rule     string
		key      uint32
		pd       PD
		va, size uint64
		need     Access
		want     Status
	}{
		{"key first", unknown, 2, math.MaxUint64, 200, RemoteWrite, BadKey},
		{"key 0", 0, 2, math.MaxUint64, 200, RemoteWrite, BadKey},
		{"deregistered key", dead.Key(), 2, math.MaxUint64, 200, RemoteWrite, BadKey},
		{"then PD", r.Key(), 2, math.MaxUint64, 200, RemoteWrite, WrongPD},
		{"then access", r.Key(), 1, math.MaxUint64, 200, RemoteWrite, AccessDenied},
		{"all rights asked for are needed", r.Key(), 1, math.MaxUint64, 200, RemoteRead | RemoteWrite, AccessDenied},
		{"then overflow", r.Key(), 1, math.MaxUint64, 200, RemoteRead, Overflow},
		{"overflow to 2^64 exactly", r.Key(), 1, math.MaxUint64 - 199, 200, RemoteRead, Overflow},
		{"overflow inside a high region", high.Key(), 1, math.MaxUint64 - 10, 11, RemoteRead, Overflow},
		{"overflow by the largest length", r.Key(), 1, 0x1000, math.MaxUint64, RemoteRead, Overflow},
		{"then range: ends past the end", r.Key(), 1, 0x1000, 101, RemoteRead, OutOfRange},
		{"range: last byte past the end", r.Key(), 1, 0x1001, 100, RemoteRead, OutOfRange},
		{"range: begins before", r.Key(), 1, 0xfff, 2, RemoteRead, OutOfRange},
		{"range: wholly before", r.Key(), 1, 0, 1, RemoteRead, OutOfRange},
		{"range: begins at the end", r.Key(), 1, 0x1000 + 100, 1, RemoteRead, OutOfRange},
		{"range: far behind", r.Key(), 1, math.MaxUint64 - 1, 1, RemoteRead, OutOfRange},
		{"range: length just below the wrap", r.Key(), 1, 0x1000, math.MaxUint64 - 0x1000, RemoteRead, OutOfRange},
		{"range: before a high region", high.Key(), 1, math.MaxUint64 - 101, 2, RemoteRead, OutOfRange},
		{"range: an empty region has no byte", empty.Key(), 1, 0x1000, 1, RemoteRead, OutOfRange},
		{"whole region", r.Key(), 1, 0x1000, 100, RemoteRead, OK},
		{"first byte", r.Key(), 1, 0x1000, 1, RemoteRead, OK},
		{"last byte", r.Key(), 1, 0x1000 + 99, 1, RemoteRead, OK},
		{"whole high region", high.Key(), 1, math.MaxUint64 - 100, 100, RemoteRead, OK},
		{"last byte of a high region", high.Key(), 1, math.MaxUint64 - 1, 1, RemoteRead, OK},
		{"length 0 is not checked (C9-88)", unknown, 2, math.MaxUint64, 0, RemoteWrite, OK},
	} {
		var c Cursor
		c.Inline([]byte("leftover"))
		if got := c.Remote(tab, tt.pd, tt.key, tt.va, tt.size, tt.need); got != tt.want {
			t.Errorf("remote: %s: %v, want %v", tt.rule, got, tt.want)
		}
		if want := tt.size; tt.want == OK && c.Len() != want || tt.want != OK && c.Len() != 0 {
			t.Errorf("remote: %s: length %d afterwards", tt.rule, c.Len())
		}
		if tt.size > math.MaxUint32 {
			continue // an SGE cannot say it
		}
		for at := range 3 {
			list := make([]SGE, 3) // the others are empty, so not checked
			list[at] = SGE{tt.va, uint32(tt.size), tt.key}
			if got := c.Local(tab, tt.pd, list, tt.need); got != tt.want {
				t.Errorf("local, entry %d: %s: %v, want %v", at, tt.rule, got, tt.want)
			}
		}
	}
}

// All checks of one entry come before any of the next.
func TestFirstBadEntryDecides(t *testing.T) {
	tab := NewTable(seeded(1))
	r := register(t, tab, make([]byte, 100), 1, 0, 0x1000)
	good, bad, far := SGE{0x1000, 1, r.Key()}, SGE{0x1000, 1, r.Key() ^ 1}, SGE{0x2000, 1, r.Key()}
	var c Cursor
	for _, tt := range []struct {
		list []SGE
		want Status
	}{
		{[]SGE{good, bad, far}, BadKey},
		{[]SGE{good, far, bad}, OutOfRange},
		{[]SGE{good, good, good}, OK},
		{nil, OK},
	} {
		if got := c.Local(tab, 1, tt.list, 0); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.list, got, tt.want)
		}
		if tt.want != OK && c.Len() != 0 {
			t.Errorf("%v: refused, but length %d", tt.list, c.Len())
		}
	}
}

func TestNumberOfEntriesIsCheckedFirst(t *testing.T) {
	tab := NewTable(seeded(1))
	r := register(t, tab, make([]byte, 100), 1, 0, 0x1000)
	list := make([]SGE, MaxSGE+1)
	for i := range list {
		list[i] = SGE{0x1000 + uint64(i), 1, r.Key()}
	}
	var c Cursor
	if s := c.Local(tab, 1, list[:MaxSGE], 0); s != OK || c.Len() != MaxSGE {
		t.Errorf("%d entries: %v, length %d", MaxSGE, s, c.Len())
	}
	list[0].LKey = 0
	if s := c.Local(tab, 1, list, 0); s != TooManySGE || c.Len() != 0 {
		t.Errorf("%d entries: %v, length %d", len(list), s, c.Len())
	}
}

func TestLocalReadNeedsNoRight(t *testing.T) {
	tab := NewTable(seeded(1))
	r := register(t, tab, []byte("payload"), 1, 0, 0x1000)
	list := []SGE{{0x1000, 7, r.Key()}}
	var c Cursor
	if s := c.Local(tab, 1, list, LocalWrite); s != AccessDenied {
		t.Errorf("to be written: %v", s)
	}
	got := make([]byte, 7)
	if s := c.Local(tab, 1, list, 0); s != OK || c.CopyOut(got, 0) != OK || string(got) != "payload" {
		t.Errorf("to be read: %v, %q", s, got)
	}
}

// A cursor allows only what it was opened for, even where the region allows more.
func TestCursorRights(t *testing.T) {
	tab := NewTable(seeded(1))
	r := register(t, tab, make([]byte, 8), 1, LocalWrite|RemoteRead|RemoteWrite, 0x1000)
	list := []SGE{{0x1000, 8, r.Key()}}
	b := make([]byte, 8)
	var c Cursor
	for _, tt := range []struct {
		opened  string
		open    func() Status
		out, in Status
	}{
		{"local, to read", func() Status { return c.Local(tab, 1, list, 0) }, OK, AccessDenied},
		{"local, to write", func() Status { return c.Local(tab, 1, list, LocalWrite) }, OK, OK},
		{"remote read", func() Status { return c.Remote(tab, 1, r.Key(), 0x1000, 8, RemoteRead) }, OK, AccessDenied},
		{"remote write", func() Status { return c.Remote(tab, 1, r.Key(), 0x1000, 8, RemoteWrite) }, AccessDenied, OK},
		{"remote both", func() Status { return c.Remote(tab, 1, r.Key(), 0x1000, 8, RemoteRead|RemoteWrite) }, OK, OK},
		{"inline", func() Status { c.Inline(b); return OK }, OK, AccessDenied},
		{"reset", func() Status { c.Reset(); return OK }, OutOfRange, OutOfRange},
		{"refused", func() Status { c.Remote(tab, 2, r.Key(), 0x1000, 8, RemoteWrite); return OK }, OutOfRange, OutOfRange},
	} {
		if s := tt.open(); s != OK {
			t.Errorf("%s: %v", tt.opened, s)
		}
		if s := c.CopyOut(b, 0); s != tt.out {
			t.Errorf("%s: CopyOut %v, want %v", tt.opened, s, tt.out)
		}
		if s := c.CopyIn(0, b); s != tt.in {
			t.Errorf("%s: CopyIn %v, want %v", tt.opened, s, tt.in)
		}
	}
}

// world is a random scatter/gather list over regions with guard bytes around
// them, next to the same bytes in one piece.
type world struct {
	tab    *Table
	arenas [][]byte // each holds a region, and guard bytes on both sides
	used   [][]bool // the bytes of an arena that the list names
	sges   []SGE
	model  []byte
	place  [][2]int // byte i of the model is arenas[place[i][0]][place[i][1]]
}

const guard = 0xa5

// newWorld makes a list of len(sizes) entries, spread over up to three regions
// of any alignment; no two entries overlap.
func newWorld(t testing.TB, rng *rand.Rand, sizes []int) *world {
	w := &world{tab: NewTable(seeded(byte(rng.Uint32())))}
	n := 1 + rng.IntN(3)
	lists := make([][]int, n) // entries in each region
	where := make([]int, len(sizes))
	for i := range sizes {
		where[i] = rng.IntN(n)
		lists[where[i]] = append(lists[where[i]], i)
	}
	w.sges = make([]SGE, len(sizes))
	at := make([]int, len(sizes))
	for a := range n {
		rng.Shuffle(len(lists[a]), func(i, j int) { lists[a][i], lists[a][j] = lists[a][j], lists[a][i] })
		pos := 16 + rng.IntN(8)
		start := pos
		for _, i := range lists[a] {
			pos += rng.IntN(3)
			at[i] = pos
			pos += sizes[i]
		}
		arena := aligned(pos+16, rng.IntN(8))
		for i := range arena {
			arena[i] = guard
		}
		iova := rng.Uint64() >> 1 >> rng.IntN(40)
		r := register(t, w.tab, arena[start:pos], 1, LocalWrite|RemoteRead|RemoteWrite, iova)
		w.arenas = append(w.arenas, arena)
		w.used = append(w.used, make([]bool, len(arena)))
		for _, i := range lists[a] {
			w.sges[i] = SGE{iova + uint64(at[i]-start), uint32(sizes[i]), r.Key()}
		}
	}
	for i, size := range sizes {
		for k := range size {
			w.place = append(w.place, [2]int{where[i], at[i] + k})
			w.used[where[i]][at[i]+k] = true
		}
	}
	w.model = make([]byte, len(w.place))
	for i, p := range w.place {
		w.model[i] = byte(rng.Uint32())
		w.arenas[p[0]][p[1]] = w.model[i]
	}
	return w
}

// check compares every byte of all arenas, guards included.
func (w *world) check() error {
	for i, p := range w.place {
		if got := w.arenas[p[0]][p[1]]; got != w.model[i] {
			return fmt.Errorf("byte %d is %#x, want %#x", i, got, w.model[i])
		}
	}
	for a := range w.arenas {
		for i, b := range w.arenas[a] {
			if !w.used[a][i] && b != guard {
				return fmt.Errorf("guard byte %d of region %d was overwritten", i, a)
			}
		}
	}
	return nil
}

func randomSizes(rng *rand.Rand, n, most int) []int {
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = rng.IntN(most + 1)
	}
	return sizes
}

// Lists of 1 to 32 entries: every range of the list read, and a copy into every
// range, against the same bytes in one piece.
func TestCursorAllRanges(t *testing.T) {
	for n := 1; n <= MaxSGE; n++ {
		seed := uint64(n)
		rng := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(t, rng, randomSizes(rng, n, max(3, 60/n)))
		var c Cursor
		if s := c.Local(w.tab, 1, w.sges, LocalWrite); s != OK || c.Len() != uint64(len(w.model)) {
			t.Fatalf("%d entries: open: %v, length %d", n, s, c.Len())
		}
		for from := 0; from <= len(w.model); from++ {
			for to := from; to <= len(w.model); to++ {
				got := make([]byte, to-from)
				if s := c.CopyOut(got, uint64(from)); s != OK || !bytes.Equal(got, w.model[from:to]) {
					t.Fatalf("%d entries: CopyOut [%d,%d): %v\n got %x\nwant %x", n, from, to, s, got, w.model[from:to])
				}
				for i := range got {
					got[i] = byte(rng.Uint32())
				}
				copy(w.model[from:to], got)
				if s := c.CopyIn(uint64(from), got); s != OK {
					t.Fatalf("%d entries: CopyIn [%d,%d): %v", n, from, to, s)
				}
				if (to-from)%7 == from%7 {
					if err := w.check(); err != nil {
						t.Fatalf("%d entries: CopyIn [%d,%d): %v", n, from, to, err)
					}
				}
			}
		}
		if err := w.check(); err != nil {
			t.Fatalf("%d entries: %v", n, err)
		}
	}
}

// Every alignment of both ends in memory and in the packet: the last word is
// stored separately, so this is where bytes would be lost.
func TestCopyInAlignments(t *testing.T) {
	tab := NewTable(seeded(1))
	for at := range 8 {
		for n := range 40 {
			for skew := range 8 {
				arena := bytes.Repeat([]byte{guard}, 64)
				copy(aligned(1, 0), arena) // vary the heap a little
				mem := aligned(64, at)
				copy(mem, arena)
				src := aligned(n, skew)
				for i := range src {
					src[i] = byte(i + 1)
				}
				r := register(t, tab, mem[8:8+n], 1, LocalWrite|RemoteWrite, 0x1000)
				var c Cursor
				if s := c.Remote(tab, 1, r.Key(), 0x1000, uint64(n), RemoteWrite); s != OK {
					t.Fatal(s)
				}
				if s := c.CopyIn(0, src); s != OK {
					t.Fatal(s)
				}
				want := append(append(bytes.Repeat([]byte{guard}, 8), src...), arena[8+n:]...)
				if !bytes.Equal(mem, want) {
					t.Fatalf("memory at %d, packet at %d, %d bytes:\n got %x\nwant %x", at, skew, n, mem, want)
				}
				if err := tab.Deregister(r); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// Packets in order, as a message goes, then retransmissions from anywhere.
func TestCursorSequentialThenRandom(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, rng, randomSizes(rng, 1+rng.IntN(MaxSGE), 700))
		var c Cursor
		if s := c.Local(w.tab, 1, w.sges, LocalWrite); s != OK {
			t.Fatal(s)
		}
		got := make([]byte, len(w.model))
		packet := 1 + rng.IntN(300)
		for off := 0; off < len(got); off += packet {
			if s := c.CopyOut(got[off:min(off+packet, len(got))], uint64(off)); s != OK {
				t.Fatalf("seed %d: CopyOut at %d: %v", seed, off, s)
			}
		}
		if !bytes.Equal(got, w.model) {
			t.Fatalf("seed %d: read wrong in sequence", seed)
		}
		for range 200 {
			off := rng.IntN(len(w.model) + 1)
			b := make([]byte, rng.IntN(min(packet, len(w.model)-off)+1))
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			copy(w.model[off:], b)
			if s := c.CopyIn(uint64(off), b); s != OK {
				t.Fatalf("seed %d: CopyIn at %d: %v", seed, off, s)
			}
		}
		if err := w.check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func TestCopyOutsideOfCursor(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	w := newWorld(t, rng, []int{10, 0, 20, 7})
	var c Cursor
	if s := c.Local(w.tab, 1, w.sges, LocalWrite); s != OK {
		t.Fatal(s)
	}
	for _, tt := range []struct {
		off  uint64
		n    int
		want Status
	}{
		{37, 0, OK}, {0, 37, OK}, {36, 1, OK},
		{37, 1, OutOfRange}, {38, 0, OutOfRange}, {36, 2, OutOfRange}, {0, 38, OutOfRange},
		{math.MaxUint64, 1, OutOfRange}, {math.MaxUint64, 0, OutOfRange}, {math.MaxUint64 - 1, 3, OutOfRange},
	} {
		b := bytes.Repeat([]byte{7}, tt.n)
		if s := c.CopyOut(b, tt.off); s != tt.want {
			t.Errorf("CopyOut [%d,+%d): %v, want %v", tt.off, tt.n, s, tt.want)
		}
		if tt.want != OK && !bytes.Equal(b, bytes.Repeat([]byte{7}, tt.n)) {
			t.Errorf("CopyOut [%d,+%d) wrote something", tt.off, tt.n)
		}
		if tt.want == OK {
			copy(w.model[tt.off:], b)
		}
		if s := c.CopyIn(tt.off, b); s != tt.want {
			t.Errorf("CopyIn [%d,+%d): %v, want %v", tt.off, tt.n, s, tt.want)
		}
	}
	if err := w.check(); err != nil {
		t.Error(err)
	}
}

// Deregistering takes the memory away from cursors that are already open.
func TestDeregisterEndsOpenCursors(t *testing.T) {
	tab := NewTable(seeded(1))
	a := register(t, tab, bytes.Repeat([]byte{1}, 8), 1, LocalWrite|RemoteRead|RemoteWrite, 0x1000)
	b := register(t, tab, bytes.Repeat([]byte{2}, 8), 1, LocalWrite|RemoteRead|RemoteWrite, 0x2000)
	var list, remote Cursor
	if s := list.Local(tab, 1, []SGE{{0x1000, 8, a.Key()}, {0x2000, 8, b.Key()}}, LocalWrite); s != OK {
		t.Fatal(s)
	}
	if s := remote.Remote(tab, 1, b.Key(), 0x2000, 8, RemoteRead|RemoteWrite); s != OK {
		t.Fatal(s)
	}
	buf := make([]byte, 16)
	if s := list.CopyOut(buf, 0); s != OK {
		t.Fatal(s)
	}
	if err := tab.Deregister(b); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		rule string
		got  Status
		want Status
	}{
		{"read the segment that is left", list.CopyOut(buf[:8], 0), OK},
		{"write the segment that is left", list.CopyIn(0, buf[:8]), OK},
		{"read the other", list.CopyOut(buf[:1], 8), BadKey},
		{"write the other", list.CopyIn(15, []byte{9}), BadKey},
		{"read across", list.CopyOut(buf, 0), BadKey},
		{"write across", list.CopyIn(4, bytes.Repeat([]byte{9}, 8)), BadKey},
		{"remote read", remote.CopyOut(buf[:8], 0), BadKey},
		{"remote write", remote.CopyIn(0, buf[:8]), BadKey},
		{"nothing of it", remote.CopyIn(0, nil), OK},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %v, want %v", tt.rule, tt.got, tt.want)
		}
	}
	if !bytes.Equal(b.Bytes(), bytes.Repeat([]byte{2}, 8)) {
		t.Errorf("deregistered memory was written: %x", b.Bytes())
	}
	// The key is not given to the next region, and were it, the old cursor
	// would still not reach the new memory.
	if s := remote.Remote(tab, 1, b.Key(), 0x2000, 8, RemoteRead); s != BadKey {
		t.Errorf("opened again: %v", s)
	}
}

func TestResetDropsReferences(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	w := newWorld(t, rng, randomSizes(rng, MaxSGE, 9))
	var c Cursor
	c.Local(w.tab, 1, w.sges, 0)
	c.Local(w.tab, 1, w.sges[:2], 0) // shorter: the rest must be gone as well
	c.Reset()
	if c.first.buf != nil || c.first.o != nil {
		t.Error("first segment kept")
	}
	for i, s := range c.more {
		if s.buf != nil || s.o != nil {
			t.Errorf("segment %d kept", i+1)
		}
	}
	if len(c.more) < MaxSGE-2 {
		t.Errorf("storage for %d segments kept, want that of the longest list", len(c.more)+1)
	}
}

func TestInline(t *testing.T) {
	var c Cursor
	c.Inline([]byte("abc"))
	b := make([]byte, 2)
	if s := c.CopyOut(b, 1); s != OK || string(b) != "bc" || c.Len() != 3 {
		t.Errorf("%v %q length %d", s, b, c.Len())
	}
	c.Inline(nil)
	if s := c.CopyOut(nil, 0); s != OK || c.Len() != 0 {
		t.Errorf("empty: %v length %d", s, c.Len())
	}
}

func FuzzCursor(f *testing.F) {
	f.Add(uint64(1), []byte{3, 0, 9}, []byte{0, 0, 3, 1, 2, 12})
	f.Add(uint64(2), bytes.Repeat([]byte{1}, 32), []byte{1, 0, 32, 0, 5, 20})
	f.Add(uint64(3), []byte{255, 255}, []byte{1, 250, 255, 0, 255, 255})
	f.Fuzz(func(t *testing.T, seed uint64, entries, ops []byte) {
		if len(entries) > MaxSGE {
			entries = entries[:MaxSGE]
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		sizes := make([]int, len(entries))
		for i, e := range entries {
			sizes[i] = int(e)
		}
		w := newWorld(t, rng, sizes)
		var c Cursor
		if s := c.Local(w.tab, 1, w.sges, LocalWrite); s != OK || c.Len() != uint64(len(w.model)) {
			t.Fatalf("open: %v, length %d", s, c.Len())
		}
		for ; len(ops) >= 3; ops = ops[3:] {
			off, n := int(ops[1])*(1+int(ops[0]>>1)), int(ops[2])*(1+int(ops[0]>>5))
			want := OK
			if off+n > len(w.model) {
				want = OutOfRange
			}
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			if ops[0]&1 == 0 {
				if s := c.CopyOut(b, uint64(off)); s != want {
					t.Fatalf("CopyOut [%d,+%d) of %d: %v", off, n, len(w.model), s)
				} else if s == OK && !bytes.Equal(b, w.model[off:off+n]) {
					t.Fatalf("CopyOut [%d,+%d): wrong bytes", off, n)
				}
				continue
			}
			if s := c.CopyIn(uint64(off), b); s != want {
				t.Fatalf("CopyIn [%d,+%d) of %d: %v", off, n, len(w.model), s)
			} else if s == OK {
				copy(w.model[off:], b)
			}
		}
		if err := w.check(); err != nil {
			t.Fatal(err)
		}
	})
}
