//go:build unix

package roce

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// msync makes memory of a mapped file persistent; it is the mem.Sync of devices.
func msync(b []byte) error {
	// The first page has to be named from its start, which is mapped too.
	p := unsafe.Pointer(unsafe.SliceData(b))
	off := int(uintptr(p)) & (unix.Getpagesize() - 1)
	return unix.Msync(unsafe.Slice((*byte)(unsafe.Add(p, -off)), off+len(b)), unix.MS_SYNC)
}
