package mad

import "github.com/goroce/goroce/ib"

// layout walks over the fields of a message and either reads or writes them, so
// that each message says once where its fields are. When it writes, b is zero
// before. Offsets are in bytes from the first one behind the header, as in the
// specification's tables.
type layout struct {
	b   []byte
	put bool
}

// bits is a field of width bits inside one byte, shift bits above its lowest.
func bits[T ~uint8](l layout, off, shift, width int, v *T) {
	mask := byte(1<<width - 1)
	if l.put {
		l.b[off] |= byte(*v) & mask << shift
		return
	}
	*v = T(l.b[off] >> shift & mask)
}

// flag is one bit.
func flag(l layout, off, bit int, v *bool) {
	if !l.put {
		*v = l.b[off]>>bit&1 != 0
	} else if *v {
		l.b[off] |= 1 << bit
	}
}

func u8[T ~uint8](l layout, off int, v *T) { bits(l, off, 0, 8, v) }

func u16[T ~uint16](l layout, off int, v *T) {
	if l.put {
		be.PutUint16(l.b[off:], uint16(*v))
		return
	}
	*v = T(be.Uint16(l.b[off:]))
}

// bits32 is a field of width bits inside 32, shift bits above their lowest; the
// others are others' fields.
func bits32[T ~uint32](l layout, off, shift, width int, v *T) {
	mask := uint32(1<<width - 1)
	w := be.Uint32(l.b[off:])
	if l.put {
		be.PutUint32(l.b[off:], w|uint32(*v)&mask<<shift)
		return
	}
	*v = T(w >> shift & mask)
}

func u24[T ~uint32](l layout, off int, v *T) { bits32(l, off, 8, 24, v) }

func u32[T ~uint32](l layout, off int, v *T) { bits32(l, off, 0, 32, v) }

func u64[T ~uint64](l layout, off int, v *T) {
	if l.put {
		be.PutUint64(l.b[off:], uint64(*v))
		return
	}
	*v = T(be.Uint64(l.b[off:]))
}

func gid(l layout, off int, v *ib.GID) {
	if l.put {
		copy(l.b[off:], v[:])
		return
	}
	copy(v[:], l.b[off:])
}

// data is n bytes of which a sender may fill fewer.
func data(l layout, off, n int, v *[]byte) {
	field := l.b[off : off+n : off+n]
	if l.put {
		copy(field, *v)
		return
	}
	*v = field
}

// info is a field of n bytes and the number of them that are used, which stands
// in the upper bits of another byte. A number above n counts as n.
func info(l layout, lenOff, lenShift, off, n int, v *[]byte) {
	used := uint8(min(len(*v), n))
	bits(l, lenOff, lenShift, 8-lenShift, &used)
	data(l, off, min(int(used), n), v)
}
