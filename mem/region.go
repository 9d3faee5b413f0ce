package mem

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Region is a registered memory region. It is made by [Table.Register], or by
// [Table.AllocRegion] for fast registration. What it is may change: by
// [Table.Reregister], or by fast registration and invalidation.
type Region struct {
	o      object
	fast   bool                  // for fast registration
	limit  uint64                // ... of so many bytes at most
	mapped atomic.Pointer[grant] // ... of this memory
}

// Key returns the key of the region, both its local and its remote one.
func (r *Region) Key() uint32 { return r.o.grant().key }

// Addr returns the address of the region's first byte as requests name it.
func (r *Region) Addr() uint64 { return r.o.grant().iova }

// Len returns the length of the region in bytes.
func (r *Region) Len() uint64 { return r.o.grant().size }

// Access returns the rights of the region.
func (r *Region) Access() Access { return r.o.grant().acc }

// PD returns the protection domain of the region.
func (r *Region) PD() PD { return r.o.grant().pd }

// Bytes returns the memory that was registered.
func (r *Region) Bytes() []byte { g := r.o.grant(); return g.bytes() }

// Valid says whether the key can be used. A region of fast registration is
// invalid before it is registered and after it was invalidated.
func (r *Region) Valid() bool { return r.o.grant().valid }

// Windows returns how many windows are bound to the region now.
func (r *Region) Windows() int { return int(max(r.o.uses.Load(), 0)) }

// Map says which memory the next [Table.FastRegister] gives to the region, and by
// which address requests will name its first byte (ib_map_mr_sg). It must not
// run beside that. The error is a *[RegisterError] when the region is not for
// fast registration, or when buf is longer than it was allocated for.
func (r *Region) Map(buf []byte, iova uint64) error {
	switch {
	case !r.fast:
		return &RegisterError{"region", "it is not for fast registration: it has its memory"}
	case uint64(len(buf)) > r.limit:
		return &RegisterError{"buf", fmt.Sprintf("%d bytes, the region was allocated for %d", len(buf), r.limit)}
	}
	r.mapped.Store(&grant{iova: iova, size: uint64(len(buf)), base: unsafe.SliceData(buf)})
	return nil
}

// The accessors below read and write words of the region, in the byte order of
// the host, with sync/atomic. off is in bytes from the start of the region.
// They panic when the word is not wholly within the region, or does not lie on
// a multiple of its size in memory. They work on a deregistered region too.

// LoadUint64 returns the word at off. All memory that was written before it by
// the peer of a reliable connection is visible afterwards.
func (r *Region) LoadUint64(off int) uint64 { return atomic.LoadUint64(r.word64(off)) }

// StoreUint64 stores v at off.
func (r *Region) StoreUint64(off int, v uint64) { atomic.StoreUint64(r.word64(off), v) }

// AddUint64 adds delta to the word at off and returns the sum.
func (r *Region) AddUint64(off int, delta uint64) uint64 {
	return atomic.AddUint64(r.word64(off), delta)
}

// CompareAndSwapUint64 replaces the word at off by swap if it is compare, and
// says whether it was.
func (r *Region) CompareAndSwapUint64(off int, compare, swap uint64) bool {
	return atomic.CompareAndSwapUint64(r.word64(off), compare, swap)
}

// LoadUint32 returns the word at off, as LoadUint64 does.
func (r *Region) LoadUint32(off int) uint32 { return atomic.LoadUint32(r.word32(off)) }

// StoreUint32 stores v at off.
func (r *Region) StoreUint32(off int, v uint32) { atomic.StoreUint32(r.word32(off), v) }

// AddUint32 adds delta to the word at off and returns the sum.
func (r *Region) AddUint32(off int, delta uint32) uint32 {
	return atomic.AddUint32(r.word32(off), delta)
}

// CompareAndSwapUint32 replaces the word at off by swap if it is compare, and
// says whether it was.
func (r *Region) CompareAndSwapUint32(off int, compare, swap uint32) bool {
	return atomic.CompareAndSwapUint32(r.word32(off), compare, swap)
}

func (r *Region) word64(off int) *uint64 {
	p := unsafe.Pointer(unsafe.SliceData(r.Bytes()[off:][:8:8]))
	if uintptr(p)&7 != 0 {
		panic("mem: 64-bit word not aligned in memory")
	}
	return (*uint64)(p)
}

func (r *Region) word32(off int) *uint32 {
	p := unsafe.Pointer(unsafe.SliceData(r.Bytes()[off:][:4:4]))
	if uintptr(p)&3 != 0 {
		panic("mem: 32-bit word not aligned in memory")
	}
	return (*uint32)(p)
}
