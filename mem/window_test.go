package mem

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

const (
	theQP    = 0x111
	otherQP  = 0x222
	thePD    = PD(1)
	otherPD  = PD(2)
	bindable = LocalWrite | MWBind
)

var me = QP{thePD, theQP}

// shop is a table with an object of each kind.
type shop struct {
	*Table
	buf    []byte
	mr, ro *Region // bindable and local only; without LOCAL_WRITE
	fast   *Region
	w      map[WindowType]*Window
}

func newShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{Table: NewTable(seeded(7)), buf: aligned(4096, 0), w: map[WindowType]*Window{}}
	s.mr = register(t, s.Table, s.buf, thePD, bindable, 0x10000)
	s.ro = register(t, s.Table, s.buf, thePD, MWBind, 0x20000)
	var err error
	if s.fast, err = s.AllocRegion(4096, thePD); err != nil {
		t.Fatal(err)
	}
	if err := s.fast.Map(s.buf, 0x30000); err != nil {
		t.Fatal(err)
	}
	for _, typ := range []WindowType{WindowType1, WindowType2A, WindowType2B} {
		if s.w[typ], err = s.AllocWindow(thePD, typ); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// open binds a window to 64 bytes at 0x10100 and returns its key.
func (s *shop) open(t testing.TB, typ WindowType, acc Access) uint32 {
	t.Helper()
	key := NextKey(s.w[typ].Key())
	if st := s.Bind(me, key, &Bind{s.mr.Key(), 0x10100, 64, acc}); st != OK {
		t.Fatalf("bind of type %v: %v", typ, st)
	}
	return key
}

func TestNextKeyChangesTheUsersBitsOnly(t *testing.T) {
	for k, want := range map[uint32]uint32{0x12345678: 0x12345679, 0x123456ff: 0x12345600, 0xffffffff: 0xffffff00} {
		if got := NextKey(k); got != want {
			t.Errorf("NextKey(%#x) is %#x, want %#x", k, got, want)
		}
	}
}

// Each rule of IBTA 10.6.7.2 for a bind, by its compliance statement where it has
// one. Whatever is refused changes nothing.
func TestBindRules(t *testing.T) {
	foreign := func(s *shop, acc Access) uint32 {
		return register(t, s.Table, s.buf, otherPD, acc, 0x40000).Key()
	}
	type bind struct {
		who QP
		key uint32
		Bind
	}
	for _, tt := range []struct {
		rule  string
		types string // the window types that it is about
		f     func(s *shop, b *bind)
		want  Status
	}{
		{"a part of a region", "1 2A 2B", func(*shop, *bind) {}, OK},
		{"the whole region", "1 2A 2B", func(s *shop, b *bind) { b.Addr, b.Length = 0x10000, 4096 }, OK},
		{"the window's rights need not be the region's", "1 2A 2B", func(s *shop, b *bind) { b.Access = RemoteRead | RemoteWrite | RemoteAtomic }, OK},
		{"no rights", "1 2A 2B", func(s *shop, b *bind) { b.Access = 0 }, OK},
		{"C10-72: a window of another domain", "1 2A 2B", func(s *shop, b *bind) { b.who.PD = otherPD }, WrongPD},
		{"C10-72: a region of another domain", "1 2A 2B", func(s *shop, b *bind) { b.LKey, b.Addr = foreign(s, bindable), 0x40000 }, WrongPD},
		{"C10-73: the region without MW_BIND", "1 2A 2B", func(s *shop, b *bind) {
			b.LKey, b.Addr = register(t, s.Table, s.buf, thePD, LocalWrite|RemoteWrite|RemoteRead, 0x50000).Key(), 0x50000
		}, AccessDenied},
		{"C10-74: remote write needs local write", "1 2A 2B", func(s *shop, b *bind) { b.LKey, b.Addr, b.Access = s.ro.Key(), 0x20000, RemoteWrite }, AccessDenied},
		{"C10-74: remote atomic needs local write", "1 2A 2B", func(s *shop, b *bind) { b.LKey, b.Addr, b.Access = s.ro.Key(), 0x20000, RemoteAtomic }, AccessDenied},
		{"C10-74: remote read does not", "1 2A 2B", func(s *shop, b *bind) { b.LKey, b.Addr, b.Access = s.ro.Key(), 0x20000, RemoteRead }, OK},
		{"C10-75: from before the region", "1 2A 2B", func(s *shop, b *bind) { b.Addr = 0xffff }, OutOfRange},
		{"C10-75: one byte past the region", "1 2A 2B", func(s *shop, b *bind) { b.Addr = 0x11000 - 63 }, OutOfRange},
		{"C10-75: address and length wrap", "1 2A 2B", func(s *shop, b *bind) { b.Addr = math.MaxUint64 - 10 }, Overflow},
		{"C10-75: the longest length", "1 2A 2B", func(s *shop, b *bind) { b.Addr, b.Length = 0x10000, math.MaxUint64-0x10000 }, OutOfRange},
		{"o10-36.2.2: a type 1 window is not zero based", "1", func(s *shop, b *bind) { b.Access |= ZeroBased }, AccessDenied},
		{"a type 2 window may be", "2A 2B", func(s *shop, b *bind) { b.Access |= ZeroBased }, OK},
		{"o10-37.2.30: a type 2 window that is not free", "2A 2B", func(s *shop, b *bind) { b.key = NextKey(s.open(t, s.find(b.key).window.t, RemoteRead)) }, NotFree},
		{"a type 1 window that is bound is bound anew", "1", func(s *shop, b *bind) { b.key = NextKey(s.open(t, WindowType1, RemoteRead)) }, OK},
		{"o10-37.2.40: a type 2 window is not closed by a bind", "2A 2B", func(s *shop, b *bind) { b.Length = 0 }, OutOfRange},
		{"a right that windows cannot have", "1 2A 2B", func(s *shop, b *bind) { b.Access = LocalWrite }, AccessDenied},
		{"a window cannot be made bindable", "1 2A 2B", func(s *shop, b *bind) { b.Access = MWBind }, AccessDenied},
		{"an unknown right", "1 2A 2B", func(s *shop, b *bind) { b.Access = 1 << 15 }, AccessDenied},
		{"an unknown optional right", "1 2A 2B", func(s *shop, b *bind) { b.Access |= 1 << 29 }, OK},
		{"FLUSH only as the region allows it", "1 2A 2B", func(s *shop, b *bind) { b.Access = FlushGlobal }, AccessDenied},
		{"FLUSH to persistence only as the region allows it", "1 2A 2B", func(s *shop, b *bind) {
			b.LKey, b.Addr, b.Access = register(t, s.Table, s.buf, thePD, MWBind|FlushGlobal, 0x50000).Key(), 0x50000, FlushGlobal|FlushPersistent
		}, AccessDenied},
		{"FLUSH that the region allows", "1 2A 2B", func(s *shop, b *bind) {
			b.LKey, b.Addr, b.Access = register(t, s.Table, s.buf, thePD, MWBind|FlushGlobal, 0x50000).Key(), 0x50000, FlushGlobal
		}, OK},
		{"an atomic would not be aligned in memory", "2A 2B", func(s *shop, b *bind) { b.Addr, b.Access = 0x10104, RemoteAtomic|ZeroBased }, Misaligned},
		{"no such window", "1 2A 2B", func(s *shop, b *bind) { b.key ^= 1 << 8 }, BadKey},
		{"a region instead of a window", "1 2A 2B", func(s *shop, b *bind) { b.key = s.mr.Key() }, WrongKind},
		{"no such region", "1 2A 2B", func(s *shop, b *bind) { b.LKey ^= 1 << 8 }, BadKey},
		{"the region by an outdated key", "1 2A 2B", func(s *shop, b *bind) { b.LKey ^= 1 }, BadKey},
		{"a window instead of a region", "1 2A 2B", func(s *shop, b *bind) { b.LKey = s.w[WindowType1].Key() }, BadKey},
		{"a region that is not registered yet", "1 2A 2B", func(s *shop, b *bind) { b.LKey = s.fast.Key() }, BadKey},
		{"a window that another bind is changing", "1 2A 2B", func(s *shop, b *bind) { s.find(b.key).seize() }, Busy},
		{"a region that is being changed", "1 2A 2B", func(s *shop, b *bind) { s.mr.o.seize() }, Busy},
	} {
		for _, typ := range []WindowType{WindowType1, WindowType2A, WindowType2B} {
			if !contains(tt.types, typ) {
				continue
			}
			s := newShop(t)
			w := s.w[typ]
			b := bind{me, NextKey(w.Key()), Bind{s.mr.Key(), 0x10100, 64, RemoteRead}}
			tt.f(s, &b)
			before := w.o.grant()
			windows := s.mr.Windows()
			if got := s.Bind(b.who, b.key, &b.Bind); got != tt.want {
				t.Errorf("type %v, %s: %v, want %v", typ, tt.rule, got, tt.want)
				continue
			}
			if tt.want != OK {
				if after := w.o.grant(); after != before || s.mr.Windows() != windows {
					t.Errorf("type %v, %s: refused but changed", typ, tt.rule)
				}
				continue
			}
			if !w.Bound() || w.Key() != b.key {
				t.Errorf("type %v, %s: bound %v under %#x, want %#x", typ, tt.rule, w.Bound(), w.Key(), b.key)
			}
		}
	}
}

func contains(types string, typ WindowType) bool {
	for f := range strings.FieldsSeq(types) {
		if f == typ.String() {
			return true
		}
	}
	return false
}

// Who may use a window, and for what.
func TestWindowAccessRules(t *testing.T) {
	all := RemoteRead | RemoteWrite
	for _, tt := range []struct {
		rule       string
		pd         PD
		qpn        uint32
		va, size   uint64
		need       Access
		t1, ta, tb Status // by type: 1, 2A, 2B
	}{
		{"as bound", thePD, theQP, 0x10100, 64, all, OK, OK, OK},
		{"a part", thePD, theQP, 0x10120, 32, all, OK, OK, OK},
		{"the region before the window", thePD, theQP, 0x100ff, 8, all, OutOfRange, OutOfRange, OutOfRange},
		{"the region past the window", thePD, theQP, 0x10101, 64, all, OutOfRange, OutOfRange, OutOfRange},
		{"a wrap", thePD, theQP, math.MaxUint64 - 3, 64, all, Overflow, Overflow, Overflow},
		{"a right it does not have", thePD, theQP, 0x10100, 8, RemoteAtomic, AccessDenied, AccessDenied, AccessDenied},
		{"another queue pair of the domain", thePD, otherQP, 0x10100, 64, all, OK, WrongQP, WrongQP},
		{"another domain", otherPD, otherQP, 0x10100, 64, all, WrongPD, WrongQP, WrongQP},
		{"the number of the queue pair in another domain", otherPD, theQP, 0x10100, 64, all, WrongPD, OK, WrongPD},
		{"nobody's key is checked for nothing", otherPD, otherQP, 1, 0, all, OK, OK, OK},
	} {
		for typ, want := range map[WindowType]Status{WindowType1: tt.t1, WindowType2A: tt.ta, WindowType2B: tt.tb} {
			s := newShop(t)
			key := s.open(t, typ, all)
			var c Cursor
			c.Serve(tt.qpn)
			if got := c.Remote(s.Table, tt.pd, key, tt.va, tt.size, tt.need); got != want {
				t.Errorf("type %v, %s: %v, want %v", typ, tt.rule, got, want)
			}
			if got := c.Remote(s.Table, thePD, key^1, 0x10100, 8, RemoteRead); got != BadKey {
				t.Errorf("type %v, by another key of the user's: %v", typ, got)
			}
			if got := c.Local(s.Table, thePD, []SGE{{0x10100, 8, key}}, 0); got != BadKey {
				t.Errorf("type %v, as a local key: %v", typ, got)
			}
		}
	}
}

// A window shows the bytes it was bound to; a zero based one from address 0.
func TestWindowsReachTheirBytes(t *testing.T) {
	for _, zero := range []bool{false, true} {
		s := newShop(t)
		acc, va := RemoteWrite, uint64(0x10100)
		if zero {
			acc, va = RemoteWrite|ZeroBased, 0
		}
		key := s.open(t, WindowType2B, acc)
		var c Cursor
		c.Serve(theQP)
		if st := c.Remote(s.Table, thePD, key, va+3, 5, RemoteWrite); st != OK {
			t.Fatal(st)
		}
		if st := c.CopyIn(0, []byte("hello")); st != OK {
			t.Fatal(st)
		}
		if got := string(s.buf[0x103:0x108]); got != "hello" {
			t.Errorf("zero based %v: %q in memory", zero, got)
		}
		if st := c.Remote(s.Table, thePD, key, va+60, 5, RemoteWrite); st != OutOfRange {
			t.Errorf("zero based %v: past the end: %v", zero, st)
		}
	}
}

// Atomics go through a window as it was bound.
func TestAtomicThroughWindow(t *testing.T) {
	s := newShop(t)
	key := s.open(t, WindowType2B, RemoteAtomic|ZeroBased)
	var c Cursor
	c.Serve(theQP)
	if st := c.Remote(s.Table, thePD, key, 8, 8, RemoteAtomic); st != OK {
		t.Fatal(st)
	}
	if old, st := c.FetchAdd(5); old != 0 || st != OK || s.mr.LoadUint64(0x108) != 5 {
		t.Errorf("FetchAdd: %d, %v, then %d in memory", old, st, s.mr.LoadUint64(0x108))
	}
	s.Invalidate(me, key, true)
	if _, st := c.FetchAdd(5); st != BadKey {
		t.Errorf("after the invalidation: %v", st)
	}
}

// Which keys may be invalidated, and by whom.
func TestInvalidateRules(t *testing.T) {
	fast := func(acc Access) func(s *shop) uint32 {
		return func(s *shop) uint32 {
			key := NextKey(s.fast.Key())
			if st := s.FastRegister(me, key, acc); st != OK {
				t.Fatal(st)
			}
			return key
		}
	}
	window := func(typ WindowType) func(s *shop) uint32 {
		return func(s *shop) uint32 { return s.open(t, typ, RemoteRead) }
	}
	from := func(pd PD, qpn uint32) QP { return QP{pd, qpn} }
	for _, tt := range []struct {
		rule          string
		key           func(s *shop) uint32
		who           QP
		local, remote Status
	}{
		{"2A by its queue pair", window(WindowType2A), me, OK, OK},
		{"2B by its queue pair", window(WindowType2B), me, OK, OK},
		{"2A by another queue pair", window(WindowType2A), from(thePD, otherQP), WrongQP, WrongQP},
		{"2B by another queue pair", window(WindowType2B), from(thePD, otherQP), WrongQP, WrongQP},
		{"2A by the number in another domain", window(WindowType2A), from(otherPD, theQP), OK, OK},
		{"2B by the number in another domain", window(WindowType2B), from(otherPD, theQP), WrongPD, WrongPD},
		{"o10-37.2.26: type 1", window(WindowType1), me, WrongKind, WrongKind},
		{"2A that is free", func(s *shop) uint32 { return s.w[WindowType2A].Key() }, from(thePD, otherQP), OK, OK},
		{"2B that is free", func(s *shop) uint32 { return s.w[WindowType2B].Key() }, from(thePD, otherQP), OK, OK},
		{"2B that is free, of another domain", func(s *shop) uint32 { return s.w[WindowType2B].Key() }, from(otherPD, theQP), WrongPD, WrongPD},
		{"2B by an outdated key", func(s *shop) uint32 { return s.open(t, WindowType2B, RemoteRead) ^ 1 }, me, BadKey, BadKey},
		{"fast registration, remote rights", fast(RemoteRead), me, OK, OK},
		{"fast registration, by any queue pair of the domain", fast(RemoteRead), from(thePD, otherQP), OK, OK},
		{"fast registration, another domain", fast(RemoteRead), from(otherPD, theQP), WrongPD, WrongPD},
		{"fast registration, local rights only", fast(LocalWrite), me, OK, AccessDenied},
		{"fast registration, by an outdated key", func(s *shop) uint32 { return fast(RemoteRead)(s) ^ 1 }, me, BadKey, BadKey},
		{"a region", func(s *shop) uint32 { return s.mr.Key() }, me, WrongKind, WrongKind},
		{"nothing", func(s *shop) uint32 { return s.mr.Key() ^ 1<<8 }, me, BadKey, BadKey},
		{"0", func(s *shop) uint32 { return 0 }, me, BadKey, BadKey},
		{"a region with windows", func(s *shop) uint32 {
			key := fast(bindable | RemoteRead)(s)
			if st := s.Bind(me, s.w[WindowType2B].Key(), &Bind{key, 0x30000, 1, RemoteRead}); st != OK {
				t.Fatal(st)
			}
			return key
		}, me, Busy, Busy},
	} {
		for _, remote := range []bool{false, true} {
			s := newShop(t)
			key := tt.key(s)
			want := tt.local
			if remote {
				want = tt.remote
			}
			var before, after grant
			s.lookup(key, &before)
			if got := s.Invalidate(tt.who, key, remote); got != want {
				t.Errorf("%s, remote %v: %v, want %v", tt.rule, remote, got, want)
			}
			if s.lookup(key, &after); want == OK && after.valid || want != OK && after != before {
				t.Errorf("%s, remote %v: %v, and the key grants %+v, before %+v", tt.rule, remote, want, after, before)
			}
		}
	}
}

func TestFastRegisterRules(t *testing.T) {
	for _, tt := range []struct {
		rule string
		f    func(s *shop, who *QP, key *uint32, acc *Access)
		want Status
	}{
		{"its memory", func(*shop, *QP, *uint32, *Access) {}, OK},
		{"the same key again", func(s *shop, _ *QP, key *uint32, _ *Access) { *key = s.fast.Key() }, OK},
		{"any low 8 bits", func(_ *shop, _ *QP, key *uint32, _ *Access) { *key ^= 0xa5 }, OK},
		{"another queue pair of the domain", func(_ *shop, who *QP, _ *uint32, _ *Access) { who.Num = otherQP }, OK},
		{"another domain", func(_ *shop, who *QP, _ *uint32, _ *Access) { who.PD = otherPD }, WrongPD},
		{"not free", func(s *shop, _ *QP, key *uint32, _ *Access) { s.FastRegister(me, *key, 0) }, NotFree},
		{"free again", func(s *shop, _ *QP, key *uint32, _ *Access) {
			s.FastRegister(me, *key, 0)
			s.Invalidate(me, *key, false)
		}, OK},
		{"a key of nothing", func(_ *shop, _ *QP, key *uint32, _ *Access) { *key ^= 1 << 8 }, BadKey},
		{"an ordinary region", func(s *shop, _ *QP, key *uint32, _ *Access) { *key = s.mr.Key() }, WrongKind},
		{"a window", func(s *shop, _ *QP, key *uint32, _ *Access) { *key = s.w[WindowType2B].Key() }, WrongKind},
		{"rights that no region can have", func(_ *shop, _ *QP, _ *uint32, acc *Access) { *acc = RemoteWrite }, AccessDenied},
		{"an unknown right", func(_ *shop, _ *QP, _ *uint32, acc *Access) { *acc = 1 << 12 }, AccessDenied},
		{"no memory", func(s *shop, _ *QP, key *uint32, _ *Access) {
			r, err := s.AllocRegion(10, thePD)
			if err != nil {
				t.Fatal(err)
			}
			*key = r.Key()
		}, OutOfRange},
		{"it is being changed", func(s *shop, _ *QP, _ *uint32, _ *Access) { s.fast.o.seize() }, Busy},
	} {
		s := newShop(t)
		who, key, acc := me, NextKey(s.fast.Key()), LocalWrite|RemoteWrite
		tt.f(s, &who, &key, &acc)
		if got := s.FastRegister(who, key, acc); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.rule, got, tt.want)
			continue
		}
		if tt.want == OK {
			r := s.fast
			if r.Key() != key || !r.Valid() || r.Addr() != 0x30000 || r.Len() != 4096 || r.Access() != acc || &r.Bytes()[0] != &s.buf[0] {
				t.Errorf("%s: region %#x %v at %#x, %d bytes, %v", tt.rule, r.Key(), r.Valid(), r.Addr(), r.Len(), r.Access())
			}
		}
	}
}

func TestMapChecks(t *testing.T) {
	s := newShop(t)
	var re *RegisterError
	if err := s.fast.Map(make([]byte, 4097), 0); !errors.As(err, &re) || re.Field != "buf" {
		t.Errorf("longer than allocated: %v", err)
	}
	if err := s.mr.Map(make([]byte, 1), 0); !errors.As(err, &re) || re.Field != "region" {
		t.Errorf("an ordinary region: %v", err)
	}
	if _, err := s.AllocWindow(thePD, 7); !errors.As(err, &re) || re.Field != "type" {
		t.Errorf("a window of type 7: %v", err)
	}
}

// A cursor that was opened before a key was withdrawn, or given another meaning,
// is of no use afterwards, in whatever way that was done.
func TestOldCursorsSeeTheEnd(t *testing.T) {
	for name, f := range map[string]func(s *shop, key uint32){
		"invalidated":        func(s *shop, key uint32) { s.Invalidate(me, key, true) },
		"freed":              func(s *shop, key uint32) { s.FreeWindow(s.find(key).window) },
		"bound again":        func(s *shop, key uint32) { s.Invalidate(me, key, false); s.open(t, s.find(key).window.t, RemoteRead) },
		"under the same key": func(s *shop, key uint32) { s.rebind(t, key) },
	} {
		s := newShop(t)
		key := s.open(t, WindowType2B, RemoteRead|RemoteWrite)
		var c Cursor
		c.Serve(theQP)
		if st := c.Remote(s.Table, thePD, key, 0x10100, 64, RemoteRead|RemoteWrite); st != OK {
			t.Fatal(st)
		}
		var b [8]byte
		if st := c.CopyOut(b[:], 0); st != OK {
			t.Fatalf("%s: before: %v", name, st)
		}
		f(s, key)
		if st := c.CopyOut(b[:], 8); st != BadKey {
			t.Errorf("%s: read: %v", name, st)
		}
		if st := c.CopyIn(8, b[:]); st != BadKey {
			t.Errorf("%s: write: %v", name, st)
		}
	}

	t.Run("type 1 bound anew", func(t *testing.T) {
		s := newShop(t)
		old := s.open(t, WindowType1, RemoteRead)
		var c Cursor
		if st := c.Remote(s.Table, thePD, old, 0x10100, 8, RemoteRead); st != OK {
			t.Fatal(st)
		}
		if s.open(t, WindowType1, RemoteRead); c.CopyOut(make([]byte, 8), 0) != BadKey || c.Remote(s.Table, thePD, old, 0x10100, 8, RemoteRead) != BadKey {
			t.Error("the key before still works")
		}
		if st := s.Bind(me, NextKey(s.w[WindowType1].Key()), &Bind{}); st != OK || s.w[WindowType1].Bound() || s.mr.Windows() != 0 {
			t.Errorf("closed by a bind of length 0: %v, bound %v, %d windows", st, s.w[WindowType1].Bound(), s.mr.Windows())
		}
	})

	t.Run("region changed", func(t *testing.T) {
		s := newShop(t)
		var c Cursor
		sges := []SGE{{0x10000, 8, s.mr.Key()}}
		if st := c.Local(s.Table, thePD, sges, 0); st != OK {
			t.Fatal(st)
		}
		if err := s.Reregister(s.mr, s.buf, otherPD, 0, 0x10000); err != nil {
			t.Fatal(err)
		}
		if st := c.CopyOut(make([]byte, 8), 0); st != BadKey {
			t.Errorf("through an old cursor: %v", st)
		}
		if st := c.Local(s.Table, thePD, sges, 0); st != WrongPD {
			t.Errorf("in the former domain: %v", st)
		}
		if st := c.Local(s.Table, otherPD, sges, 0); st != OK {
			t.Errorf("in the new domain: %v", st)
		}
	})
}

func (s *shop) rebind(t *testing.T, key uint32) {
	s.Invalidate(me, key, false)
	if st := s.Bind(me, key, &Bind{s.mr.Key(), 0x10100, 64, RemoteRead | RemoteWrite}); st != OK {
		t.Fatal(st)
	}
}

// While windows are bound to a region it stays as it is (IBTA 10.6.7.2.6).
func TestRegionWithWindowsIsBusy(t *testing.T) {
	s := newShop(t)
	a, b := s.open(t, WindowType1, RemoteRead), s.open(t, WindowType2B, RemoteRead)
	for _, left := range []int{2, 1} {
		if n := s.mr.Windows(); n != left {
			t.Errorf("%d windows, want %d", n, left)
		}
		if err := s.Deregister(s.mr); !errors.Is(err, ErrInUse) {
			t.Errorf("deregister with %d windows: %v", left, err)
		}
		if err := s.Reregister(s.mr, s.buf, thePD, 0, 0); !errors.Is(err, ErrInUse) {
			t.Errorf("change with %d windows: %v", left, err)
		}
		if left == 2 {
			s.Invalidate(me, b, false)
		}
	}
	if err := s.FreeWindow(s.find(a).window); err != nil {
		t.Fatal(err)
	}
	if err := s.Deregister(s.mr); err != nil {
		t.Errorf("without windows: %v", err)
	}
	if st := s.Bind(me, b, &Bind{s.mr.Key(), 0x10100, 64, RemoteRead}); st != BadKey {
		t.Errorf("bind to a region that is gone: %v", st)
	}
	if err := s.FreeWindow(s.w[WindowType1]); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("window freed twice: %v", err)
	}
	if err := s.FreeWindow(nil); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("no window: %v", err)
	}
	if err := s.Reregister(s.mr, s.buf, thePD, 0, 0); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("change of a region that is gone: %v", err)
	}
}

func TestReregisterChecksAsRegister(t *testing.T) {
	s := newShop(t)
	key := s.mr.Key()
	var re *RegisterError
	if err := s.Reregister(s.mr, s.buf, thePD, RemoteWrite, 0); !errors.As(err, &re) || re.Field != "access" {
		t.Errorf("REMOTE_WRITE alone: %v", err)
	}
	if err := s.Reregister(s.fast, s.buf, thePD, 0, 0); !errors.As(err, &re) || re.Field != "region" {
		t.Errorf("fast registration: %v", err)
	}
	if s.mr.Access() != bindable || s.mr.Addr() != 0x10000 {
		t.Error("refused but changed")
	}
	half := s.buf[:2048]
	if err := s.Reregister(s.mr, half, otherPD, RemoteRead, 0x70000); err != nil {
		t.Fatal(err)
	}
	if r := s.mr; r.Key() != key || r.PD() != otherPD || r.Access() != RemoteRead || r.Addr() != 0x70000 || r.Len() != 2048 {
		t.Errorf("region %#x in %v, %v, at %#x, %d bytes", r.Key(), r.PD(), r.Access(), r.Addr(), r.Len())
	}
}

// What queue pairs execute does not allocate.
func TestLocalOperationsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	s := newShop(t)
	key, fast := s.w[WindowType2B].Key(), s.fast.Key()
	b := &Bind{s.mr.Key(), 0x10100, 64, RemoteRead}
	var c Cursor
	c.Serve(theQP)
	if n := testing.AllocsPerRun(1000, func() {
		if s.Bind(me, key, b) != OK || c.Remote(s.Table, thePD, key, 0x10100, 64, RemoteRead) != OK || s.Invalidate(me, key, true) != OK ||
			s.FastRegister(me, fast, 0) != OK || s.Invalidate(me, fast, false) != OK {
			t.Fatal("refused")
		}
		key, fast = NextKey(key), NextKey(fast)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Readers beside binds see one of the windows that there were, whole: its range
// is the one that belongs to its key. Of the first byte of each 64 the value is its
// number, as is the key's.
func TestReadersBesideBindsSeeWholeWindows(t *testing.T) {
	s := newShop(t)
	for i := range s.buf {
		s.buf[i] = byte(i / 16)
	}
	const windows = 200 // such that each is as long as its number says
	base := s.w[WindowType2B].Key() &^ 0xff
	var stop atomic.Bool
	var seen atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			var c Cursor
			c.Serve(theQP)
			var b [1]byte
			for i := 0; !stop.Load(); i++ {
				n := uint64(i % windows)
				switch st := c.Remote(s.Table, thePD, base|uint32(n), 0, n+1, RemoteRead); st {
				case BadKey:
				case OK:
					if c.CopyOut(b[:], 0) == OK {
						if seen.Add(1); b[0] != byte(n) {
							t.Errorf("key %d shows window %d", n, b[0])
							return
						}
					}
				default:
					t.Errorf("key %d: %v", n, st)
					return
				}
			}
		})
	}
	rounds := 100000
	if raceEnabled {
		rounds = 5000
	}
	for i := 0; i < rounds || seen.Load() == 0 && i < 100*rounds && !t.Failed(); i++ {
		n := uint64(i*7) % windows
		key := base | uint32(n)
		if st := s.Bind(me, key, &Bind{s.mr.Key(), 0x10000 + 16*n, n + 1, RemoteRead | ZeroBased}); st != OK {
			t.Fatal(st)
		}
		if st := s.Invalidate(me, key, false); st != OK {
			t.Fatal(st)
		}
	}
	stop.Store(true)
	wg.Wait()
	if seen.Load() == 0 {
		t.Error("no reader ever saw a window")
	}
}

// Of two queue pairs that change one object at the same time one may be refused;
// the books are right in the end.
func TestChangesBesideEachOther(t *testing.T) {
	s := newShop(t)
	key := s.w[WindowType2A].Key()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 5000 {
				switch st := s.Bind(me, key, &Bind{s.mr.Key(), 0x10000, 8, RemoteRead}); st {
				case OK, Busy, NotFree:
				default:
					t.Errorf("bind: %v", st)
				}
				switch st := s.Invalidate(me, key, false); st {
				case OK, Busy:
				default:
					t.Errorf("invalidate: %v", st)
				}
			}
		})
	}
	wg.Wait()
	if st := s.Invalidate(me, key, false); st != OK || s.mr.Windows() != 0 {
		t.Errorf("in the end: %v, %d windows bound", st, s.mr.Windows())
	}
	if err := s.Deregister(s.mr); err != nil {
		t.Error(err)
	}
}

func ExampleTable_Bind() {
	table := NewTable(nil)
	region, _ := table.Register(make([]byte, 4096), 1, LocalWrite|MWBind, 0x1000)
	window, _ := table.AllocWindow(1, WindowType2B)
	qp := QP{PD: 1, Num: 0x17}
	key := NextKey(window.Key())
	fmt.Println(table.Bind(qp, key, &Bind{LKey: region.Key(), Addr: 0x1100, Length: 16, Access: RemoteWrite}))

	var c Cursor
	c.Serve(0x17)
	fmt.Println(c.Remote(table, 1, key, 0x1100, 16, RemoteWrite))
	fmt.Println(table.Deregister(region))
	fmt.Println(table.Invalidate(qp, key, true))
	fmt.Println(c.Remote(table, 1, key, 0x1100, 16, RemoteWrite))
	// Output:
	// ok
	// ok
	// mem: memory windows are bound to the region
	// ok
	// bad key
}
