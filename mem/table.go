package mem

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// RegisterError says why a region cannot be registered. ibv_reg_mr reports the
// same cases as EINVAL.
type RegisterError struct {
	Field  string // the argument: "access", "iova"
	Reason string
}

func (e *RegisterError) Error() string { return "mem: register: " + e.Field + ": " + e.Reason }

// ErrNotRegistered is returned by Deregister for a region that the table does
// not hold (any more).
var ErrNotRegistered = errors.New("mem: region is not registered")

// Table maps keys to regions. One device has one.
//
// It is a hash table with linear probing whose slots are read and written
// atomically: a lookup costs the same among ten thousand regions as among ten
// and never waits for a writer. When it has to grow, or has collected too many
// traces of deregistered regions, the writer fills a new set of slots and
// publishes it as a whole.
type Table struct {
	slots atomic.Pointer[slots]
	rand  io.Reader
	live  int // registered regions
	used  int // slots not empty: live ones and tombstones
}

type slots struct {
	shift uint // 32 - log2(len(s))
	s     []atomic.Pointer[Region]
}

// tombstone marks the slot of a deregistered region. No lookup finds it: its
// key, 0, is never given out.
var tombstone = new(Region)

const minSlots = 16

// NewTable returns an empty table. Keys are read from random, crypto/rand if it
// is nil; they are only as hard to guess as its output.
func NewTable(random io.Reader) *Table {
	if random == nil {
		random = rand.Reader
	}
	t := &Table{rand: random}
	t.slots.Store(newSlots(minSlots))
	return t
}

// newSlots returns n empty slots; n is a power of two.
func newSlots(n int) *slots {
	return &slots{shift: uint(32 - bits.TrailingZeros(uint(n))), s: make([]atomic.Pointer[Region], n)}
}

// home returns the slot where the search for a key starts. The keys are random,
// but those of windows and fast registration are partly chosen by users: mix.
func (h *slots) home(key uint32) int { return int(key * 0x9e3779b1 >> h.shift) }

// lookup returns the registered region with this key, or nil.
func (t *Table) lookup(key uint32) *Region {
	if key == 0 {
		return nil
	}
	h := t.slots.Load()
	for i := h.home(key); ; i = (i + 1) & (len(h.s) - 1) {
		r := h.s[i].Load()
		if r == nil {
			return nil
		}
		if r.key == key {
			if r.dead.Load() {
				return nil
			}
			return r
		}
	}
}

// Register makes buf accessible under a new random key. iova is the address of
// its first byte as requests will name it. The memory stays the caller's, who
// may use it meanwhile; buf may be empty.
//
// The error is a *[RegisterError] that names what is wrong, or that of the
// random source. It must not run beside another Register or Deregister.
func (t *Table) Register(buf []byte, pd PD, acc Access, iova uint64) (*Region, error) {
	if err := checkRegister(buf, acc, iova); err != nil {
		return nil, err
	}
	key, err := t.newKey()
	if err != nil {
		return nil, err
	}
	r := &Region{key: key, pd: pd, acc: acc, iova: iova, buf: buf}
	t.reserve()
	t.slots.Load().insert(r)
	t.live++
	t.used++
	return r, nil
}

func checkRegister(buf []byte, acc Access, iova uint64) error {
	if bad := acc &^ (known | optional); bad != 0 {
		return &RegisterError{"access", fmt.Sprintf("unknown right %#x", uint32(bad))}
	}
	// ibv_reg_mr(3); Linux ib_verbs.h, ib_check_mr_access.
	for _, right := range [...]Access{RemoteWrite, RemoteAtomic} {
		if acc&right != 0 && acc&LocalWrite == 0 {
			return &RegisterError{"access", right.String() + " needs LOCAL_WRITE"}
		}
	}
	if acc&ZeroBased != 0 && iova != 0 {
		return &RegisterError{"iova", fmt.Sprintf("%#x: a ZERO_BASED region starts at 0", iova)}
	}
	if iova+uint64(len(buf)) < iova {
		return &RegisterError{"iova", fmt.Sprintf("%#x + length %d exceeds 2^64 - 1", iova, len(buf))}
	}
	// A remote atomic is aligned by its address on the wire (IBTA 9.4.5); the
	// instruction that executes it needs the same alignment in memory.
	if acc&RemoteAtomic != 0 && len(buf) > 0 {
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(buf))); (uint64(at)-iova)&7 != 0 {
			return &RegisterError{"iova", fmt.Sprintf("%#x: with REMOTE_ATOMIC it must be equal to the buffer's address %#x modulo 8", iova, at)}
		}
	}
	return nil
}

// newKey draws a key that is not in use.
func (t *Table) newKey() (uint32, error) {
	var b [4]byte
	for {
		if _, err := io.ReadFull(t.rand, b[:]); err != nil {
			return 0, fmt.Errorf("mem: register: random source: %w", err)
		}
		key := binary.LittleEndian.Uint32(b[:])
		if key != 0 && t.lookup(key) == nil {
			return key, nil
		}
	}
}

// reserve makes room for one more region: at most half of the slots are used,
// so that every search ends soon at an empty one.
func (t *Table) reserve() {
	old := t.slots.Load()
	if 2*(t.used+1) <= len(old.s) {
		return
	}
	n := minSlots
	for n < 4*(t.live+1) {
		n *= 2
	}
	h := newSlots(n)
	for i := range old.s {
		if r := old.s[i].Load(); r != nil && r != tombstone {
			h.insert(r)
		}
	}
	t.used = t.live
	t.slots.Store(h)
}

// insert puts r into the first empty slot of its sequence.
func (h *slots) insert(r *Region) {
	for i := h.home(r.key); ; i = (i + 1) & (len(h.s) - 1) {
		if h.s[i].Load() == nil {
			h.s[i].Store(r)
			return
		}
	}
}

// Deregister removes the key of r. Every access that begins afterwards, through
// whatever cursor, answers BadKey. Accesses that have begun may still be in
// progress: the caller gets past them by taking each lock under which cursors
// are used once, and only then gives the memory away.
//
// It must not run beside another Register or Deregister.
func (t *Table) Deregister(r *Region) error {
	if r == nil || r.dead.Load() {
		return ErrNotRegistered
	}
	h := t.slots.Load()
	for i := h.home(r.key); ; i = (i + 1) & (len(h.s) - 1) {
		switch h.s[i].Load() {
		case nil:
			return ErrNotRegistered // of another table
		case r:
			r.dead.Store(true)
			h.s[i].Store(tombstone)
			t.live--
			return nil
		}
	}
}
