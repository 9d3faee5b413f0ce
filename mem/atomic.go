package mem

import (
	"sync/atomic"
	"unsafe"
)

// WordSize is the size in bytes, and the alignment, of what remote atomics
// work on (IBTA 9.4.5).
const WordSize = 8

// The operations below act on the one word that the cursor was opened on: 8
// bytes, aligned in memory. They answer OutOfRange when it has another length,
// Misaligned when it is not aligned, AccessDenied when the cursor was not opened
// for the operation, BadKey and Fault as CopyOut does. Each is atomic towards
// the accessors of [Region], sync/atomic and the atomics of all other cursors.
// Words are in the byte order of the host, as the program sees them.

// FetchAdd adds delta to the word and returns what it was before. The cursor
// was opened by Remote with RemoteAtomic.
func (c *Cursor) FetchAdd(delta uint64) (old uint64, status Status) {
	p, status := c.word(c.atomic)
	if status != OK {
		return 0, status
	}
	defer fault(&status)
	return atomic.AddUint64(p, delta) - delta, OK
}

// CompareSwap replaces the word by swap if it is compare, and returns what it
// was before. The cursor was opened by Remote with RemoteAtomic.
func (c *Cursor) CompareSwap(compare, swap uint64) (old uint64, status Status) {
	p, status := c.word(c.atomic)
	if status != OK {
		return 0, status
	}
	defer fault(&status)
	for {
		switch old = atomic.LoadUint64(p); {
		case old != compare:
			return old, OK
		case atomic.CompareAndSwapUint64(p, compare, swap):
			return old, OK
		}
	}
}

// StoreWord stores the 8 bytes of src as they lie, as one word: whoever looks
// sees all of it or nothing, and with it all earlier copies. The cursor was
// opened for writing.
func (c *Cursor) StoreWord(src []byte) (status Status) {
	if len(src) != WordSize {
		return OutOfRange
	}
	if _, s := c.word(c.write); s != OK {
		return s
	}
	defer fault(&status)
	store(c.first.buf, src)
	return OK
}

// word returns the word that the cursor is open on.
func (c *Cursor) word(allowed bool) (*uint64, Status) {
	if c.size != WordSize || c.n != 1 {
		return nil, OutOfRange
	}
	if !allowed {
		return nil, AccessDenied
	}
	b := c.seek(0)
	if b == nil {
		return nil, BadKey
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)&(WordSize-1) != 0 {
		return nil, Misaligned
	}
	return (*uint64)(p), OK
}
