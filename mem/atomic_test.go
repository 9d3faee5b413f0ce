package mem

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

// What an atomic does and answers (IBTA 9.4.5).
func TestAtomics(t *testing.T) {
	tab := NewTable(seeded(1))
	r := register(t, tab, aligned(24, 0), 1, LocalWrite|RemoteAtomic|RemoteWrite, 0x1000)
	var c Cursor
	open := func() {
		t.Helper()
		if s := c.Remote(tab, 1, r.Key(), 0x1008, 8, RemoteAtomic|RemoteWrite); s != OK {
			t.Fatal(s)
		}
	}
	check := func(what string, old, wantOld uint64, s Status, now uint64) {
		t.Helper()
		if old != wantOld || s != OK || r.LoadUint64(8) != now {
			t.Errorf("%s: found %#x, %v, leaves %#x; want %#x and %#x", what, old, s, r.LoadUint64(8), wantOld, now)
		}
	}
	r.StoreUint64(8, 10)
	open()
	old, s := c.FetchAdd(3)
	check("add", old, 10, s, 13)
	old, s = c.FetchAdd(^uint64(0) - 13)
	check("add up to the largest", old, 13, s, ^uint64(0))
	old, s = c.FetchAdd(5)
	check("the sum wraps", old, ^uint64(0), s, 4)
	old, s = c.CompareSwap(5, 7)
	check("not equal", old, 4, s, 4)
	old, s = c.CompareSwap(4, 7)
	check("equal", old, 4, s, 7)
	s = c.StoreWord([]byte{1, 2, 3, 4, 5, 6, 7, 8})
	check("store", 0, 0, s, binary.NativeEndian.Uint64([]byte{1, 2, 3, 4, 5, 6, 7, 8}))
	if r.LoadUint64(0) != 0 || r.LoadUint64(16) != 0 {
		t.Error("a word beside it has changed")
	}
}

// Each check of an atomic; nothing is changed by one that fails.
func TestAtomicChecks(t *testing.T) {
	tab := NewTable(seeded(1))
	all := LocalWrite | RemoteAtomic | RemoteWrite | RemoteRead
	r := register(t, tab, aligned(64, 0), 1, all, 0x1000)
	odd := register(t, tab, aligned(64, 4), 1, LocalWrite|RemoteWrite, 0x1000)
	word := make([]byte, 8)
	for _, tt := range []struct {
		rule          string
		r             *Region
		va, n         uint64
		need          Access
		atomic, store Status
	}{
		{"one aligned word", r, 0x1000, 8, RemoteAtomic | RemoteWrite, OK, OK},
		{"the last word", r, 0x1038, 8, RemoteAtomic | RemoteWrite, OK, OK},
		{"not aligned", r, 0x1004, 8, RemoteAtomic | RemoteWrite, Misaligned, Misaligned},
		{"aligned on the wire only", odd, 0x1000, 8, RemoteWrite, AccessDenied, Misaligned},
		{"shorter", r, 0x1000, 4, RemoteAtomic | RemoteWrite, OutOfRange, OutOfRange},
		{"longer", r, 0x1000, 16, RemoteAtomic | RemoteWrite, OutOfRange, OutOfRange},
		{"empty", r, 0x1000, 0, RemoteAtomic | RemoteWrite, OutOfRange, OutOfRange},
		{"opened to write", r, 0x1000, 8, RemoteWrite, AccessDenied, OK},
		{"opened for atomics", r, 0x1000, 8, RemoteAtomic, OK, AccessDenied},
		{"opened to read", r, 0x1000, 8, RemoteRead, AccessDenied, AccessDenied},
	} {
		var c Cursor
		if s := c.Remote(tab, 1, tt.r.Key(), tt.va, tt.n, tt.need); s != OK {
			t.Errorf("%s: %v", tt.rule, s)
		}
		if _, s := c.FetchAdd(1); s != tt.atomic {
			t.Errorf("%s: FetchAdd %v, want %v", tt.rule, s, tt.atomic)
		}
		if _, s := c.CompareSwap(0, 1); s != tt.atomic {
			t.Errorf("%s: CompareSwap %v, want %v", tt.rule, s, tt.atomic)
		}
		if s := c.StoreWord(word); s != tt.store {
			t.Errorf("%s: StoreWord %v, want %v", tt.rule, s, tt.store)
		}
		if tt.atomic == OK {
			continue
		}
		for i, b := range tt.r.Bytes() {
			if b != 0 && (tt.r != r || i/8 != 0 && i/8 != 0x38/8) { // in the order of bytes of this machine
				t.Fatalf("%s: byte %d was written", tt.rule, i)
			}
		}
	}
	var c Cursor
	c.Remote(tab, 1, r.Key(), 0x1000, 8, RemoteAtomic|RemoteWrite)
	r.StoreUint64(0, 5)
	if s := c.StoreWord(word[:7]); s != OutOfRange {
		t.Errorf("a short word: %v", s)
	}
	if err := tab.Deregister(r); err != nil {
		t.Fatal(err)
	}
	if _, s := c.FetchAdd(1); s != BadKey {
		t.Errorf("deregistered: FetchAdd %v", s)
	}
	if s := c.StoreWord(word); s != BadKey {
		t.Errorf("deregistered: StoreWord %v", s)
	}
	if r.LoadUint64(0) != 5 {
		t.Error("a word of a deregistered region was changed")
	}
	two := register(t, tab, aligned(64, 0), 1, all, 0x1000)
	c.Local(tab, 1, []SGE{{0x1000, 4, two.Key()}, {0x1004, 4, two.Key()}}, LocalWrite)
	if s := c.StoreWord(word); s != OutOfRange {
		t.Errorf("a word in two segments: %v", s)
	}
}

// Atomics of several cursors and of the program add up: none is lost, and none
// sees what another has seen.
func TestAtomicsAreAtomic(t *testing.T) {
	const each = 5000
	tab := NewTable(seeded(1))
	r := register(t, tab, aligned(16, 0), 1, LocalWrite|RemoteAtomic, 0x1000)
	seen := make([]atomic.Bool, 4*each)
	var wg sync.WaitGroup
	var swaps atomic.Uint64
	for i := range 4 {
		wg.Go(func() {
			var c, other Cursor
			c.Remote(tab, 1, r.Key(), 0x1000, 8, RemoteAtomic)
			other.Remote(tab, 1, r.Key(), 0x1008, 8, RemoteAtomic)
			for n := range each {
				old := uint64(0)
				if i == 0 {
					old = r.AddUint64(0, 1) - 1
				} else {
					old, _ = c.FetchAdd(1)
				}
				if seen[old].Swap(true) {
					t.Errorf("%d was found twice", old)
				}
				guess := r.LoadUint64(8)
				if i == 1 {
					if r.CompareAndSwapUint64(8, guess, guess+1) {
						swaps.Add(1)
					}
				} else if found, s := other.CompareSwap(guess, guess+1); s == OK && found == guess {
					swaps.Add(1)
				}
				if n%64 == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	wg.Wait()
	if r.LoadUint64(0) != 4*each || r.LoadUint64(8) != swaps.Load() || swaps.Load() == 0 {
		t.Errorf("sum %d, want %d; %d swapped, want %d", r.LoadUint64(0), 4*each, r.LoadUint64(8), swaps.Load())
	}
}

// Memory is made persistent piece by piece, by the function of its region, and
// only with the right (IBTA A19).
func TestPersist(t *testing.T) {
	tab := NewTable(seeded(1))
	var got []byte
	var fail error
	tab.SetSync(func(b []byte) error { got = b; return fail }, nil)
	buf := make([]byte, 100)
	r := register(t, tab, buf, 1, FlushGlobal|FlushPersistent, 0x1000)
	global := register(t, tab, buf, 1, FlushGlobal, 0x2000)
	other := register(t, tab, buf, 2, FlushGlobal|FlushPersistent, 0x3000)
	var c Cursor
	at := func(off, n int) bool {
		return len(got) == n && unsafe.SliceData(got) == &buf[off]
	}
	if s := c.Remote(tab, 1, r.Key(), 0x1010, 50, FlushPersistent); s != OK {
		t.Fatal(s)
	}
	if s := c.Persist(3, 47); s != OK || !at(19, 47) {
		t.Errorf("rest of a range: %v, %d bytes", s, len(got))
	}
	if s := c.Persist(3, 48); s != OutOfRange {
		t.Errorf("past the range: %v", s)
	}
	if s := c.Persist(1<<63, 1<<63); s != OutOfRange {
		t.Errorf("far past the range: %v", s)
	}
	if s := c.RemoteRegion(tab, 1, r.Key(), FlushGlobal|FlushPersistent); s != OK || c.Len() != 100 {
		t.Errorf("whole region: %v, %d bytes", s, c.Len())
	}
	if s := c.Persist(0, 100); s != OK || !at(0, 100) {
		t.Errorf("whole region: %v, %d bytes", s, len(got))
	}
	fail = errors.New("disk is gone")
	if s := c.Persist(0, 1); s != Fault {
		t.Errorf("what fails: %v", s)
	}
	if c.Remote(tab, 1, r.Key(), 0x1000, 8, FlushGlobal); c.Persist(0, 8) != AccessDenied {
		t.Error("a cursor for a global flush made memory persistent")
	}
	for _, tt := range []struct {
		rule string
		key  uint32
		need Access
		want Status
	}{
		{"unknown key", r.Key() ^ 1, FlushGlobal, BadKey},
		{"another domain", other.Key(), FlushGlobal, WrongPD},
		{"no right", global.Key(), FlushPersistent, AccessDenied},
	} {
		if s := c.RemoteRegion(tab, 1, tt.key, tt.need); s != tt.want || c.Len() != 0 {
			t.Errorf("%s: %v, %d bytes, want %v", tt.rule, s, c.Len(), tt.want)
		}
	}
	tab.SetSync(func([]byte) error { return nil }, func(b []byte) error {
		if len(b) == 100 {
			return errors.New("volatile")
		}
		return nil
	})
	var re *RegisterError
	if _, err := tab.Register(buf, 1, FlushPersistent, 0); !errors.As(err, &re) || re.Field != "access" {
		t.Errorf("volatile memory: %v", err)
	}
	register(t, tab, buf[1:], 1, FlushPersistent, 0)
	c.RemoteRegion(tab, 1, r.Key(), FlushPersistent)
	if err := tab.Deregister(r); err != nil {
		t.Fatal(err)
	}
	if s := c.Persist(0, 1); s != BadKey {
		t.Errorf("deregistered: %v", s)
	}
}
