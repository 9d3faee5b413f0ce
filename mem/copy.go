package mem

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// store copies src to dst, of the same length and not empty, such that the end
// of dst becomes visible after the rest, and before anything that this
// goroutine stores later. See [Cursor.CopyIn] for what the end is.
//
// Alignment is that of dst in memory: nothing outside of dst is ever touched,
// and a word is stored as it lies in src, whatever the byte order of the host.
// A plain copy of the last word beside an atomic load of it would be a race,
// and the race detector would be right to say so: the atomic store publishes
// what was copied before it.
//
//go:norace
func store(dst, src []byte) {
	n := len(dst)
	end := uintptr(unsafe.Pointer(unsafe.SliceData(dst))) + uintptr(n)
	switch {
	case end&7 == 0 && n >= 8:
		move(dst[:n-8], src)
		p := (*uint64)(unsafe.Pointer(&dst[n-8]))
		atomic.StoreUint64(p, binary.NativeEndian.Uint64(src[n-8:]))
		atomic.LoadUint64(p) // later stores stay behind this load
	case end&3 == 0 && n >= 4:
		move(dst[:n-4], src)
		p := (*uint32)(unsafe.Pointer(&dst[n-4]))
		atomic.StoreUint32(p, binary.NativeEndian.Uint32(src[n-4:]))
		atomic.LoadUint32(p)
	case end&1 == 0 && n >= 2:
		move(dst[:n-2], src)
		fence()
		*(*uint16)(unsafe.Pointer(&dst[n-2])) = binary.NativeEndian.Uint16(src[n-2:])
		fence()
	default:
		move(dst[:n-1], src)
		fence()
		dst[n-1] = src[n-1]
		fence()
	}
}

// fence orders the plain stores before it before those after it. A sequentially
// consistent store keeps what precedes it, such a load what follows it, and the
// two stay in order.
func fence() {
	var w uint32
	atomic.StoreUint32(&w, 0)
	atomic.LoadUint32(&w)
}
