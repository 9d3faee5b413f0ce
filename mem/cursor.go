package mem

import "runtime"

// Cursor is random access to the bytes of a scatter/gather list, of one remote
// range, or of inline data, as if they lay in one piece. The zero value is an
// empty cursor. It is meant to be kept and opened again and again, by Local,
// Remote or Inline; it keeps its storage and allocates only when a list is
// longer than all before (see Grow).
//
// A cursor is not safe for concurrent use, must not be copied, and keeps the
// memory behind it reachable until it is opened again or Reset.
type Cursor struct {
	_ noCopy
	rights
	n     int       // segments in use
	at    int       // the segment of the last access
	size  uint64    // bytes
	first segment   // most cursors have one segment
	more  []segment // segments 1 to n-1; its length is the storage
	qpn   uint32    // the queue pair that uses it
}

// rights are what a cursor was opened for.
type rights struct {
	read    bool // CopyOut
	write   bool // CopyIn, StoreWord
	atomic  bool // FetchAdd, CompareSwap
	persist Sync // Persist
}

// segment is a piece of memory that follows the pieces before it.
type segment struct {
	start uint64  // offset of its first byte within the cursor
	buf   []byte  // never empty
	o     *object // whose memory it is, nil for inline data
	gen   uint64  // the generation of what it granted
}

// noCopy makes go vet complain about copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Serve says which queue pair uses the cursor, for windows that are open to one
// only. It needs to be said once.
func (c *Cursor) Serve(qpn uint32) { c.qpn = qpn }

// Grow makes room for n segments, so that opening up to so many does not
// allocate.
func (c *Cursor) Grow(n int) {
	if n = min(n, MaxSGE) - 1; n > len(c.more) {
		more := make([]segment, n)
		copy(more, c.more)
		c.more = more
	}
}

// Local opens a scatter/gather list of the own side. need is 0 for a list that
// is only read (the payload of a SEND) and LocalWrite for one that is written
// (a receive buffer, the target of a READ). Entries of length 0 are skipped
// unchecked. On any other answer than OK the cursor is empty.
func (c *Cursor) Local(t *Table, pd PD, sges []SGE, need Access) Status {
	c.Reset()
	if len(sges) > MaxSGE {
		return TooManySGE
	}
	for i := range sges {
		e := &sges[i]
		if e.Length == 0 {
			continue
		}
		if s := c.add(t, pd, e.LKey, e.Addr, uint64(e.Length), need); s != OK {
			c.Reset()
			return s
		}
	}
	c.read, c.write = true, need&LocalWrite != 0
	return OK
}

// Remote opens the range [va, va+length) that a peer named with rkey. need is
// RemoteRead, RemoteWrite, RemoteAtomic, FlushGlobal, FlushPersistent or several
// of them, and what the cursor then allows. A range of length 0 is not checked at
// all: key and address may be anything (IBTA C9-88, Linux rxe_resp.c). On any other answer than OK the cursor is empty.
func (c *Cursor) Remote(t *Table, pd PD, rkey uint32, va, length uint64, need Access) Status {
	c.Reset()
	if length > 0 {
		if s := c.add(t, pd, rkey, va, length, need); s != OK {
			return s
		}
	}
	c.rights = rights{read: need&RemoteRead != 0, write: need&RemoteWrite != 0, atomic: need&RemoteAtomic != 0}
	if need&FlushPersistent != 0 {
		c.persist = t.sync
	}
	return OK
}

// Inline opens b, which needs no key, for reading.
func (c *Cursor) Inline(b []byte) {
	c.Reset()
	if len(b) > 0 {
		c.push(b, nil, 0)
	}
	c.read = true
}

// Reset empties the cursor and drops its references to memory.
func (c *Cursor) Reset() {
	if c.n > 1 {
		clear(c.more[:c.n-1])
	}
	c.first = segment{}
	c.rights, c.n, c.at, c.size = rights{}, 0, 0, 0
}

// Len returns the number of bytes the cursor covers.
func (c *Cursor) Len() uint64 { return c.size }

// add checks an access and appends the memory it names. length is not 0.
func (c *Cursor) add(t *Table, pd PD, key uint32, addr, length uint64, need Access) Status {
	var g grant
	o, gen := t.lookup(key, &g)
	if o == nil || o.window != nil && need&remoteRights == 0 {
		return BadKey // the key of a window is a remote one only
	}
	if s := o.knows(&g, QP{pd, c.qpn}); s != OK {
		return s
	}
	if g.acc&need != need {
		return AccessDenied
	}
	if s := g.covers(addr, length); s != OK {
		return s
	}
	c.push(g.slice(addr, length), o, gen)
	return OK
}

// push appends a piece of memory that is not empty.
func (c *Cursor) push(b []byte, o *object, gen uint64) {
	s := &c.first
	if c.n > 0 {
		if c.n > len(c.more) {
			c.Grow(max(4, 2*(c.n+1)))
		}
		s = &c.more[c.n-1]
	}
	*s = segment{c.size, b, o, gen}
	c.n++
	c.size += uint64(len(b))
}

func (c *Cursor) segment(i int) *segment {
	if i == 0 {
		return &c.first
	}
	return &c.more[i-1]
}

// seek makes the segment that holds byte off the current one and returns its
// memory from there on, or nil if what the key granted is not in force any more. off is less than
// c.size. Going on where the last access ended costs one step.
func (c *Cursor) seek(off uint64) []byte {
	s := c.segment(c.at)
	if off < s.start {
		c.at = 0
		s = &c.first
	}
	for off-s.start >= uint64(len(s.buf)) {
		c.at++
		s = c.segment(c.at)
	}
	if s.o != nil && s.o.gen.Load() != s.gen {
		return nil
	}
	return s.buf[off-s.start:]
}

// CopyOut copies len(dst) bytes from offset off of the cursor to dst. It
// answers OutOfRange, with nothing copied, if the cursor does not have them,
// and BadKey if one of the regions was deregistered or changed, or a window
// closed or bound again, since the cursor was opened, or Fault if the memory is not there (memory of C that was unmapped, a
// mapped file that was truncated) and the goroutine runs with
// [runtime/debug.SetPanicOnFault]; dst is then partly written.
func (c *Cursor) CopyOut(dst []byte, off uint64) (status Status) {
	if s := c.check(c.read, off, len(dst)); s != OK {
		return s
	}
	defer fault(&status)
	for len(dst) > 0 {
		b := c.seek(off)
		if b == nil {
			return BadKey
		}
		n := min(len(b), len(dst))
		move(dst[:n], b)
		dst = dst[n:]
		off += uint64(n)
	}
	return OK
}

// CopyIn copies src to offset off of the cursor. It answers as CopyOut does,
// and AccessDenied if the cursor was not opened for writing.
//
// The end of src is stored last: its longest aligned word of 8, 4, 2 or 1 bytes
// that ends where src ends (aligned in memory, whatever the addresses on the
// wire). Whoever sees it sees all of src, and the sources of all earlier
// CopyIns of this goroutine. Words of 8 and 4 bytes are stored with sync/atomic.
//
// To the race detector only that last store is visible: like the writes of an
// adapter, the others may run beside anything.
func (c *Cursor) CopyIn(off uint64, src []byte) (status Status) {
	if s := c.check(c.write, off, len(src)); s != OK {
		return s
	}
	defer fault(&status)
	for len(src) > 0 {
		b := c.seek(off)
		if b == nil {
			return BadKey
		}
		if len(src) <= len(b) {
			store(b[:len(src)], src)
			return OK
		}
		move(b, src[:len(b)])
		src = src[len(b):]
		off += uint64(len(b))
	}
	return OK
}

// check says whether n bytes from off may be accessed.
func (c *Cursor) check(allowed bool, off uint64, n int) Status {
	switch {
	case off > c.size || uint64(n) > c.size-off:
		return OutOfRange
	case !allowed:
		return AccessDenied
	}
	return OK
}

// fault turns a memory fault into an answer. Any other panic goes on.
func fault(status *Status) {
	switch r := recover(); r.(type) {
	case nil:
	case interface {
		runtime.Error
		Addr() uintptr // only memory faults have it, see debug.SetPanicOnFault
	}:
		*status = Fault
	default:
		panic(r)
	}
}
