package mem

import (
	"sync/atomic"
	"unsafe"
)

// object is what a key names: a region or a window. The upper 24 bits of a key
// are the object's for life and what the table finds it by; the lower 8 belong to
// the user and may change with each bind or fast registration (IBTA 10.6.3.3).
// So such an operation changes an object and never the table.
//
// What the object grants is kept twice. A change writes the copy that is not in
// force and then increments gen, whose parity names the one that is: readers take
// no lock, never wait for a writer, and read again only if a change was made
// meanwhile. gen is also what makes cursors stale that were opened before.
type object struct {
	index uint32 // the upper bits of its keys
	// uses counts the windows that are bound to a region. An object that is
	// being changed, or gone for good, has changing.
	uses   atomic.Int32
	gen    atomic.Uint64
	copies [2]grantCopy
	region *Region // the region, or nil if it is
	window *Window // a window
}

const changing = -1

// grant is what an object gives access to at one moment.
type grant struct {
	key   uint32
	valid bool // accesses may use the key
	pd    PD
	acc   Access
	qpn   uint32 // the queue pair that a type 2 window is bound on
	iova  uint64
	size  uint64
	base  *byte
}

// grantCopy is a grant of which each field is read and written atomically.
type grantCopy struct {
	key, pd, qpn atomic.Uint32
	acc          atomic.Uint32 // with validBit
	iova, size   atomic.Uint64
	base         atomic.Pointer[byte]
}

const validBit = 1 << 31 // no right has it

func (c *grantCopy) store(g *grant) {
	acc := uint32(g.acc) &^ validBit
	if g.valid {
		acc |= validBit
	}
	c.key.Store(g.key)
	c.pd.Store(uint32(g.pd))
	c.qpn.Store(g.qpn)
	c.acc.Store(acc)
	c.iova.Store(g.iova)
	c.size.Store(g.size)
	c.base.Store(g.base)
}

func (c *grantCopy) load(g *grant) {
	g.key = c.key.Load()
	g.pd = PD(c.pd.Load())
	g.qpn = c.qpn.Load()
	acc := c.acc.Load()
	g.acc, g.valid = Access(acc&^validBit), acc&validBit != 0
	g.iova = c.iova.Load()
	g.size = c.size.Load()
	g.base = c.base.Load()
}

// read stores in g what is in force and returns its generation.
func (o *object) read(g *grant) (gen uint64) {
	for {
		gen = o.gen.Load()
		o.copies[gen&1].load(g)
		if o.gen.Load() == gen {
			return gen
		}
	}
}

// grant returns what is in force.
func (o *object) grant() (g grant) {
	o.read(&g)
	return g
}

// publish puts g in force. The caller has seized the object, or nobody else
// knows it yet.
func (o *object) publish(g grant) {
	gen := o.gen.Load() + 1
	o.copies[gen&1].store(&g)
	o.gen.Store(gen)
}

// withdraw makes the key invalid; everything else stays as it was.
func (o *object) withdraw() {
	g := o.grant()
	g.valid = false
	o.publish(g)
}

// seize begins a change: no window is bound to the object and nobody else
// changes it, until release.
func (o *object) seize() bool { return o.uses.CompareAndSwap(0, changing) }

func (o *object) release() { o.uses.Store(0) }

// hold keeps a region as it is while a window is bound to it.
func (o *object) hold() bool {
	for {
		n := o.uses.Load()
		if n == changing {
			return false
		}
		if o.uses.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (o *object) drop() { o.uses.Add(-1) }

// bytes returns the memory.
func (g *grant) bytes() []byte { return unsafe.Slice(g.base, g.size) }

// covers says whether the grant has the range, and why not.
func (g *grant) covers(addr, length uint64) Status {
	switch {
	case addr+length < addr:
		return Overflow
	case addr < g.iova || addr-g.iova > g.size || length > g.size-(addr-g.iova):
		return OutOfRange
	}
	return OK
}

// slice returns a range that the grant covers and that is not empty.
func (g *grant) slice(addr, length uint64) []byte { return g.bytes()[addr-g.iova:][:length:length] }

// NextKey returns the key with its lower 8 bits, which are the user's, one
// higher (ibv_inc_rkey).
func NextKey(key uint32) uint32 { return key&^0xff | (key+1)&0xff }
