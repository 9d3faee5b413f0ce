package mem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

// seeded is a deterministic random source.
func seeded(seed byte) io.Reader { return rand.NewChaCha8([32]byte{seed}) }

// keys is a random source that gives out the keys listed, then io.EOF.
type keys []uint32

func (k *keys) Read(b []byte) (int, error) {
	if len(*k) == 0 {
		return 0, io.EOF
	}
	binary.LittleEndian.PutUint32(b, (*k)[0])
	*k = (*k)[1:]
	return 4, nil
}

// aligned returns n bytes whose address is off modulo 8.
func aligned(n, off int) []byte {
	b := make([]byte, n+16)
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return b[int(-at&7)+off:][:n:n]
}

func register(t testing.TB, tab *Table, buf []byte, pd PD, acc Access, iova uint64) *Region {
	t.Helper()
	r, err := tab.Register(buf, pd, acc, iova)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// region returns the region that a valid key names, or nil.
func (t *Table) region(key uint32) *Region {
	if o, _ := t.lookup(key, new(grant)); o != nil {
		return o.region
	}
	return nil
}

func TestRegisterChecks(t *testing.T) {
	buf := aligned(64, 0)
	odd := aligned(64, 3)
	for _, tt := range []struct {
		rule  string
		buf   []byte
		acc   Access
		iova  uint64
		field string // "" means accepted
	}{
		{"no rights: local read", buf, 0, 0x1000, ""},
		{"all rights", buf, known&^FlushPersistent | RelaxedOrdering, 0, ""},
		{"global flush needs nothing", buf, FlushGlobal, 0x1000, ""},
		{"persistent flush needs a way to do it", buf, FlushPersistent, 0x1000, "access"},
		{"remote read needs no local write", buf, RemoteRead, 0x1000, ""},
		{"remote write needs local write", buf, RemoteWrite | RemoteRead, 0x1000, "access"},
		{"remote atomic needs local write", buf, RemoteAtomic, 0x1000, "access"},
		{"an unknown right is refused", buf, 1 << 10, 0x1000, "access"},
		{"an unknown high right is refused", buf, 1 << 31, 0x1000, "access"},
		{"unknown rights of the optional range are ignored", buf, 1<<20 | 1<<29, 0x1000, ""},
		{"zero based means iova 0", buf, ZeroBased, 8, "iova"},
		{"zero based", buf, ZeroBased, 0, ""},
		{"the last byte may be the one before 2^64 - 1", buf, 0, math.MaxUint64 - 64, ""},
		{"iova + length is 2^64", buf, 0, math.MaxUint64 - 63, "iova"},
		{"iova + length wraps", buf, 0, math.MaxUint64, "iova"},
		{"an empty region anywhere", nil, LocalWrite | RemoteAtomic, math.MaxUint64, ""},
		{"remote atomic: aligned alike", buf, LocalWrite | RemoteAtomic, 0x1008, ""},
		{"remote atomic: aligned alike, oddly", odd, LocalWrite | RemoteAtomic, 0x1003, ""},
		{"remote atomic: iova off by 4", buf, LocalWrite | RemoteAtomic, 0x1004, "iova"},
		{"remote atomic: buffer off by 3", odd, LocalWrite | RemoteAtomic, 0x1000, "iova"},
		{"without remote atomic alignment is free", odd, LocalWrite | RemoteWrite, 0x1000, ""},
	} {
		tab := NewTable(seeded(1))
		r, err := tab.Register(tt.buf, 7, tt.acc, tt.iova)
		if tt.field == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.rule, err)
				continue
			}
			if r.Key() == 0 || r.Addr() != tt.iova || r.Len() != uint64(len(tt.buf)) || r.Access() != tt.acc || r.PD() != 7 ||
				unsafe.SliceData(r.Bytes()) != unsafe.SliceData(tt.buf) {
				t.Errorf("%s: region %+v", tt.rule, r)
			}
			if tab.region(r.Key()) != r {
				t.Errorf("%s: key not found", tt.rule)
			}
			continue
		}
		var re *RegisterError
		if !errors.As(err, &re) || re.Field != tt.field {
			t.Errorf("%s: error %v, want one that names %s", tt.rule, err, tt.field)
		} else if !strings.Contains(err.Error(), tt.field) {
			t.Errorf("%s: text %q does not name %s", tt.rule, err, tt.field)
		}
		if r != nil || tab.live != 0 {
			t.Errorf("%s: refused but registered", tt.rule)
		}
	}
}

// The upper 24 bits of a key, by which its object is found, are not zero and not
// those of another.
func TestKeysAreNonZeroAndUnique(t *testing.T) {
	k := keys{0x5aa, 0, 0x5aa, 0x5bb, 0xff, 0x900}
	tab := NewTable(&k)
	a := register(t, tab, nil, 1, 0, 0)
	b := register(t, tab, nil, 1, 0, 0)
	if a.Key() != 0x5aa || b.Key() != 0x900 {
		t.Errorf("keys %#x, %#x; want 0x5aa and, past 0 and the one in use, 0x900", a.Key(), b.Key())
	}
	if r, err := tab.Register(nil, 1, 0, 0); r != nil || !errors.Is(err, io.EOF) {
		t.Errorf("exhausted random source: %v, %v; want io.EOF", r, err)
	}
	if tab.region(0) != nil {
		t.Error("key 0 found")
	}
}

func TestKeysDifferByDefault(t *testing.T) {
	a := register(t, NewTable(nil), nil, 1, 0, 0)
	b := register(t, NewTable(nil), nil, 1, 0, 0)
	if a.Key() == b.Key() { // once in 2^32 runs
		t.Errorf("two tables gave out the same first key %#x", a.Key())
	}
}

// oneHome are indices that all hash to the lowest slots.
var oneHome = func() (list []uint32) {
	h := newSlots(1024)
	for i := uint32(1); len(list) < 300; i++ {
		if h.home(i) < 4 {
			list = append(list, i)
		}
	}
	return list
}()

// The table against a map, with keys of a small space so that they collide, are
// freed and given out again, and with keys that share one home slot.
func TestTableMatchesMap(t *testing.T) {
	for name, key := range map[string]func(*rand.Rand) uint32{
		"dense":    func(r *rand.Rand) uint32 { return r.Uint32N(300) << 8 },
		"one home": func(r *rand.Rand) uint32 { return 0x37 | oneHome[r.IntN(300)]<<8 },
		"random":   func(r *rand.Rand) uint32 { return r.Uint32() },
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			tab := NewTable(readerFunc(func(b []byte) (int, error) {
				binary.LittleEndian.PutUint32(b, key(rng))
				return 4, nil
			}))
			model := map[uint32]*Region{}
			var order []*Region
			for i := range 20000 {
				grow := i/2000%2 == 0
				if len(order) == 0 || len(order) < 200 && (rng.IntN(10) < 7) == grow {
					r := register(t, tab, nil, 1, 0, 0)
					if model[r.Key()] != nil {
						t.Fatalf("step %d: key %#x given out twice", i, r.Key())
					}
					model[r.Key()] = r
					order = append(order, r)
				} else {
					j := rng.IntN(len(order))
					r := order[j]
					order[j] = order[len(order)-1]
					order = order[:len(order)-1]
					delete(model, r.Key())
					if err := tab.Deregister(r); err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
					if tab.region(r.Key()) != nil {
						t.Fatalf("step %d: deregistered key %#x found", i, r.Key())
					}
				}
				probe := key(rng)
				if got := tab.region(probe); got != model[probe] {
					t.Fatalf("step %d: key %#x gives %v, want %v", i, probe, got, model[probe])
				}
				if i%500 == 0 {
					for k, r := range model {
						if tab.region(k) != r {
							t.Fatalf("step %d: key %#x lost", i, k)
						}
					}
				}
			}
			if n := len(tab.slots.Load().s); n > 4096 {
				t.Errorf("%d slots for %d regions", n, tab.live)
			}
		})
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestDeregister(t *testing.T) {
	tab, other := NewTable(seeded(1)), NewTable(seeded(2))
	r := register(t, tab, make([]byte, 8), 1, 0, 0)
	if err := other.Deregister(r); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("region of another table: %v", err)
	}
	if tab.region(r.Key()) != r {
		t.Error("a failed Deregister removed the key")
	}
	if err := tab.Deregister(nil); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("nil: %v", err)
	}
	if err := tab.Deregister(r); err != nil {
		t.Error(err)
	}
	if err := tab.Deregister(r); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("twice: %v", err)
	}
}

// Readers beside a writer always find what stays registered, never what was
// deregistered before they began, and never a region by another key.
func TestLookupBesideWriter(t *testing.T) {
	const fixed, churn = 100, 200
	tab := NewTable(seeded(3))
	var stay [fixed]*Region
	for i := range stay {
		stay[i] = register(t, tab, nil, 1, 0, uint64(i))
	}
	var gone atomic.Pointer[Region] // the last one deregistered
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			var c Cursor
			for i := 0; !stop.Load(); i++ {
				r := stay[i%fixed]
				if tab.region(r.Key()) != r {
					t.Errorf("registered key %#x not found", r.Key())
					return
				}
				if r := gone.Load(); r != nil {
					if s := c.Remote(tab, 1, r.Key(), 0, 1, 0); s != BadKey {
						t.Errorf("deregistered key: %v", s)
						return
					}
				}
			}
		})
	}
	rounds := 200
	if raceEnabled {
		rounds = 50
	}
	var moving [churn]*Region
	for range rounds {
		for i := range moving {
			moving[i] = register(t, tab, nil, 1, 0, 0)
		}
		for _, r := range moving {
			if err := tab.Deregister(r); err != nil {
				t.Error(err)
			}
			gone.Store(r)
		}
	}
	stop.Store(true)
	wg.Wait()
}

func TestAccessors(t *testing.T) {
	buf := aligned(24, 0)
	r := register(t, NewTable(seeded(1)), buf, 1, LocalWrite, 0x1000)
	r.StoreUint64(8, 0x0102030405060708)
	if got := binary.NativeEndian.Uint64(buf[8:]); got != 0x0102030405060708 {
		t.Errorf("StoreUint64 left %#x in memory", got)
	}
	if got := r.AddUint64(8, 1); got != 0x0102030405060709 || r.LoadUint64(8) != got {
		t.Errorf("AddUint64: %#x, then %#x", got, r.LoadUint64(8))
	}
	if r.CompareAndSwapUint64(8, 1, 2) || !r.CompareAndSwapUint64(8, 0x0102030405060709, 2) || r.LoadUint64(8) != 2 {
		t.Errorf("CompareAndSwapUint64 left %#x", r.LoadUint64(8))
	}
	r.StoreUint32(4, 0xa1a2a3a4)
	if got := binary.NativeEndian.Uint32(buf[4:]); got != 0xa1a2a3a4 {
		t.Errorf("StoreUint32 left %#x in memory", got)
	}
	if got := r.AddUint32(4, 2); got != 0xa1a2a3a6 || r.LoadUint32(4) != got {
		t.Errorf("AddUint32: %#x, then %#x", got, r.LoadUint32(4))
	}
	if r.CompareAndSwapUint32(4, 1, 2) || !r.CompareAndSwapUint32(4, 0xa1a2a3a6, 2) || r.LoadUint32(4) != 2 {
		t.Errorf("CompareAndSwapUint32 left %#x", r.LoadUint32(4))
	}
	if !bytes.Equal(buf[:4], make([]byte, 4)) || !bytes.Equal(buf[16:], make([]byte, 8)) {
		t.Errorf("neighbours touched: %x", buf)
	}

	for rule, f := range map[string]func(){
		"64 bits past the end":       func() { r.LoadUint64(24) },
		"64 bits across the end":     func() { r.StoreUint64(20, 0) },
		"64 bits before the start":   func() { r.LoadUint64(-8) },
		"64 bits off their boundary": func() { r.AddUint64(4, 1) },
		"32 bits past the end":       func() { r.LoadUint32(24) },
		"32 bits across the end":     func() { r.CompareAndSwapUint32(22, 0, 0) },
		"32 bits off their boundary": func() { r.LoadUint32(2) },
		"offset near the largest":    func() { r.LoadUint32(math.MaxInt - 2) },
	} {
		if !panics(f) {
			t.Errorf("%s: no panic", rule)
		}
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return
}

func TestStrings(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{Access(0).String(), "0"},
		{(LocalWrite | RemoteRead).String(), "LOCAL_WRITE|REMOTE_READ"},
		{(RelaxedOrdering | 1<<12).String(), "RELAXED_ORDERING|0x1000"},
		{OK.String(), "ok"},
		{TooManySGE.String(), "too many SGEs"},
		{Status(99).String(), "Status(99)"},
	} {
		if tt.got != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
}
