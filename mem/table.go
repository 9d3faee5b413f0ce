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

// RegisterError says why a region or window cannot be made or changed. libibverbs
// reports the same cases as EINVAL.
type RegisterError struct {
	Field  string // the argument: "access", "iova", "buf", "region", "type"
	Reason string
}

func (e *RegisterError) Error() string { return "mem: register: " + e.Field + ": " + e.Reason }

var (
	// ErrNotRegistered is returned for a region or window that the table does
	// not hold (any more).
	ErrNotRegistered = errors.New("mem: region is not registered")
	// ErrInUse is returned for a region to which windows are bound.
	ErrInUse = errors.New("mem: memory windows are bound to the region")
	// ErrFull is returned when a table has as many objects as it can tell apart.
	ErrFull = errors.New("mem: too many regions and windows")
)

// MaxObjects is the most regions and windows that a table can have. It leaves half of the 2^24 indices free, so that random ones are found.
const MaxObjects = 1 << 23

// Table maps keys to regions and windows. One device has one.
//
// It is a hash table with linear probing whose slots are read and written
// atomically: a lookup costs the same among ten thousand regions as among ten
// and never waits for a writer. When it has to grow, or has collected too many
// traces of deregistered regions, the writer fills a new set of slots and
// publishes it as a whole. What is hashed is the upper 24 bits of the key, which
// an object keeps for life.
type Table struct {
	slots     atomic.Pointer[slots]
	rand      io.Reader
	sync      Sync                 // makes memory persistent, or nil
	checkSync func(b []byte) error // whether it can, or nil
	live      int                  // objects
	used      int                  // slots not empty: live ones and tombstones
}

type slots struct {
	shift uint // 32 - log2(len(s))
	s     []atomic.Pointer[object]
}

// tombstone marks the slot of an object that was removed. No lookup finds it: its
// index, 0, is never given out.
var tombstone = new(object)

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
	return &slots{shift: uint(32 - bits.TrailingZeros(uint(n))), s: make([]atomic.Pointer[object], n)}
}

// home returns the slot where the search for an index starts. They are random,
// unless Config.Rand is not: mix.
func (h *slots) home(index uint32) int { return int(index * 0x9e3779b1 >> h.shift) }

// Len returns the number of regions and windows. It must not run beside a method
// that makes or removes something.
func (t *Table) Len() int { return t.live }

// find returns the object that a key names by its upper 24 bits, or nil.
func (t *Table) find(key uint32) *object {
	index := key >> 8
	if index == 0 {
		return nil
	}
	h := t.slots.Load()
	for i := h.home(index); ; i = (i + 1) & (len(h.s) - 1) {
		o := h.s[i].Load()
		if o == nil || o.index == index {
			return o
		}
	}
}

// lookup returns the object with this key if it is valid, or nil; in g what it
// grants, and the generation of that.
func (t *Table) lookup(key uint32, g *grant) (o *object, gen uint64) {
	if o = t.find(key); o != nil {
		if gen = o.read(g); g.key == key && g.valid {
			return o, gen
		}
	}
	return nil, 0
}

// Register makes buf accessible under a new random key. iova is the address of
// its first byte as requests will name it. The memory stays the caller's, who
// may use it meanwhile; buf may be empty.
//
// The error is a *[RegisterError] that names what is wrong, [ErrFull], or that of
// the random source. It must not run beside another method that makes or removes
// something.
func (t *Table) Register(buf []byte, pd PD, acc Access, iova uint64) (*Region, error) {
	if err := t.checkRegister(buf, acc, iova); err != nil {
		return nil, err
	}
	r := &Region{}
	r.o.region = r
	if err := t.add(&r.o, grantOf(buf, pd, acc, iova)); err != nil {
		return nil, err
	}
	return r, nil
}

// AllocRegion makes a region of up to limit bytes for fast registration, with a
// new random key and without memory (ib_alloc_mr): it gets that by [Region.Map]
// and [Table.FastRegister]. It must not run beside another method that makes or
// removes something.
func (t *Table) AllocRegion(limit uint64, pd PD) (*Region, error) {
	r := &Region{fast: true, limit: limit}
	r.o.region = r
	if err := t.add(&r.o, grant{pd: pd}); err != nil {
		return nil, err
	}
	return r, nil
}

// Reregister changes what a region is; its key stays (ibv_rereg_mr). Accesses
// through cursors that were opened before answer BadKey. Accesses that have begun
// may still be in progress, as with Deregister, and touch the former memory. On
// an error nothing has changed: a *[RegisterError], [ErrInUse] while windows are
// bound to the region, [ErrNotRegistered]. It must not run beside another method
// that makes or removes something.
func (t *Table) Reregister(r *Region, buf []byte, pd PD, acc Access, iova uint64) error {
	if r == nil || t.find(r.Key()) != &r.o {
		return ErrNotRegistered
	}
	if r.fast {
		return &RegisterError{"region", "it is for fast registration: a request changes it"}
	}
	if err := t.checkRegister(buf, acc, iova); err != nil {
		return err
	}
	if !r.o.seize() {
		return ErrInUse
	}
	g := grantOf(buf, pd, acc, iova)
	g.key = r.Key()
	r.o.publish(g)
	r.o.release()
	return nil
}

func grantOf(buf []byte, pd PD, acc Access, iova uint64) grant {
	return grant{valid: true, pd: pd, acc: acc, iova: iova, size: uint64(len(buf)), base: unsafe.SliceData(buf)}
}

func (t *Table) checkRegister(buf []byte, acc Access, iova uint64) error {
	if bad := acc &^ (known | optional); bad != 0 {
		return &RegisterError{"access", fmt.Sprintf("unknown right %#x", uint32(bad))}
	}
	// ibv_reg_mr(3); Linux ib_verbs.h, ib_check_mr_access.
	for _, right := range [...]Access{RemoteWrite, RemoteAtomic} {
		if acc&right != 0 && acc&LocalWrite == 0 {
			return &RegisterError{"access", right.String() + " needs LOCAL_WRITE"}
		}
	}
	if acc&FlushPersistent != 0 {
		if err := t.checkPersistent(buf); err != nil {
			return err
		}
	}
	if acc&ZeroBased != 0 && iova != 0 {
		return &RegisterError{"iova", fmt.Sprintf("%#x: a ZERO_BASED region starts at 0", iova)}
	}
	if iova+uint64(len(buf)) < iova {
		return &RegisterError{"iova", fmt.Sprintf("%#x + length %d exceeds 2^64 - 1", iova, len(buf))}
	}
	if g := grantOf(buf, 0, acc, iova); acc&RemoteAtomic != 0 && len(buf) > 0 && !g.aligned() {
		return &RegisterError{"iova", fmt.Sprintf("%#x: with REMOTE_ATOMIC it must be equal to the buffer's address %p modulo 8", iova, g.base)}
	}
	return nil
}

// aligned says whether a remote atomic can be executed: it is aligned by its
// address on the wire (IBTA 9.4.5), and the instruction that executes it needs the
// same alignment in memory.
func (g *grant) aligned() bool { return (uint64(uintptr(unsafe.Pointer(g.base)))-g.iova)&7 == 0 }

// add gives an object a new key and puts g in force.
func (t *Table) add(o *object, g grant) (err error) {
	if t.live >= MaxObjects {
		return ErrFull
	}
	if g.key, err = t.newKey(); err != nil {
		return err
	}
	o.index = g.key >> 8
	o.publish(g)
	t.reserve()
	t.slots.Load().insert(o)
	t.live++
	t.used++
	return nil
}

// newKey draws a key whose index is not in use.
func (t *Table) newKey() (uint32, error) {
	var b [4]byte
	for {
		if _, err := io.ReadFull(t.rand, b[:]); err != nil {
			return 0, fmt.Errorf("mem: register: random source: %w", err)
		}
		key := binary.LittleEndian.Uint32(b[:])
		if key>>8 != 0 && t.find(key) == nil {
			return key, nil
		}
	}
}

// reserve makes room for one more object: at most half of the slots are used,
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
		if o := old.s[i].Load(); o != nil && o != tombstone {
			h.insert(o)
		}
	}
	t.used = t.live
	t.slots.Store(h)
}

// insert puts o into the first empty slot of its sequence.
func (h *slots) insert(o *object) {
	for i := h.home(o.index); ; i = (i + 1) & (len(h.s) - 1) {
		if h.s[i].Load() == nil {
			h.s[i].Store(o)
			return
		}
	}
}

// Deregister removes the key of r. Every access that begins afterwards, through
// whatever cursor, answers BadKey. Accesses that have begun may still be in
// progress: the caller gets past them by taking each lock under which cursors
// are used once, and only then gives the memory away.
//
// It returns [ErrInUse], and has done nothing, while windows are bound to r (IBTA
// 10.6.7.2.6; EBUSY of ibv_dereg_mr). It must not run beside another method that
// makes or removes something.
func (t *Table) Deregister(r *Region) error {
	if r == nil {
		return ErrNotRegistered
	}
	return t.remove(&r.o)
}

// remove takes an object out of the table, for good.
func (t *Table) remove(o *object) error {
	h := t.slots.Load()
	for i := h.home(o.index); ; i = (i + 1) & (len(h.s) - 1) {
		switch h.s[i].Load() {
		case nil:
			return ErrNotRegistered // removed before, or of another table
		case o:
			if !o.seize() {
				return ErrInUse
			}
			o.withdraw()
			h.s[i].Store(tombstone)
			t.live--
			return nil
		}
	}
}
