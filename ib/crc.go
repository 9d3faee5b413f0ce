package ib

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"time"
)

// This file is the arithmetic below the ICRC: CRC-32 registers (IEEE polynomial,
// reflected, not inverted) as elements of GF(2)[x] modulo the polynomial. Bit 31
// is the coefficient of x^0. Passing n zero bytes through the register
// multiplies it by x^(8n), so everything here is linear in the register.

var le = binary.LittleEndian

// crcStart is the register before the first byte.
const crcStart = 1<<32 - 1

// crcTables[k] maps the register's byte k to what it becomes four bytes later,
// crcTables8[k] to what it becomes eight bytes later.
var (
	crcTables  = buildCRCTables()
	crcTables8 = buildCRCTables8()
)

func buildCRCTables() (t [4][256]uint32) {
	for i := range t[3] {
		s := crc32.IEEETable[i]
		t[3][i] = s
		for k := 2; k >= 0; k-- {
			s = advance(s, 1)
			t[k][i] = s
		}
	}
	return t
}

func buildCRCTables8() (t [4][256]uint32) {
	for k := range t {
		for i := range t[k] {
			t[k][i] = advance4(crcTables[k][i])
		}
	}
	return t
}

// advance passes n zero bytes through the register, one at a time.
func advance(s uint32, n int) uint32 {
	for ; n > 0; n-- {
		s = crc32.IEEETable[byte(s)] ^ s>>8
	}
	return s
}

// advance4 passes four zero bytes through the register. The four bytes of w, read
// as little endian, are processed by advance4(s ^ w).
func advance4(s uint32) uint32 {
	return crcTables[0][byte(s)] ^ crcTables[1][byte(s>>8)] ^ crcTables[2][byte(s>>16)] ^ crcTables[3][s>>24]
}

// advance8 passes eight zero bytes through the register.
func advance8(s uint32) uint32 {
	return crcTables8[0][byte(s)] ^ crcTables8[1][byte(s>>8)] ^ crcTables8[2][byte(s>>16)] ^ crcTables8[3][s>>24]
}

// crcByShifts says that shifts are faster than hash/crc32, see TuneICRC.
var crcByShifts bool

// TuneICRC chooses how ICRCs are computed, by what is faster with clock: on amd64 hash/crc32
// multiplies without carry (PCLMULQDQ), which is slow where software emulates the processor,
// as in a guest of QEMU without KVM. It takes some microseconds and is called before any
// ICRC is computed, as package roce does when it is loaded.
func TuneICRC(clock func() time.Duration) {
	var p [4096]byte
	least := [2]time.Duration{math.MaxInt64, math.MaxInt64}
	for range 5 {
		for i, f := range [2]func(uint32, []byte) uint32{updateLong, updateShifts} {
			begin := clock()
			f(0, p[:])
			least[i] = min(least[i], clock()-begin)
		}
	}
	crcByShifts = least[1] < least[0]*3/4
}

// update passes p through the register. On amd64 hash/crc32 uses SIMD from 64
// bytes on, for multiples of 16, and below that 8 bytes at a time; what is left
// over it takes byte by byte, where words are quicker.
func update(s uint32, p []byte) uint32 {
	whole := len(p) &^ 15
	if whole < 64 {
		whole = len(p) &^ 7
	}
	switch {
	case crcByShifts:
		s, p = updateShifts(s, p[:whole]), p[whole:]
	case whole >= 32:
		s, p = updateLong(s, p[:whole]), p[whole:]
	}
	return updateShort(s, p)
}

func updateLong(s uint32, p []byte) uint32 { return ^crc32.Update(^s, crc32.IEEETable, p) }

// updateShifts is update for multiples of 8 bytes, out of what is fast everywhere.
// x^300 + x^155 + x^117 + x^89 + 1 is a multiple of the polynomial, of those of five
// terms that begin far enough apart the shortest. So the register becomes the same when
// a word is added 145, 183, 211 and 300 bits further on instead: to the second to fifth
// word after it, until six are left at most.
func updateShifts(s uint32, p []byte) uint32 {
	if len(p) == 0 {
		return s
	}
	var n [6]uint64 // is to be added to the next words
	n[0] = uint64(s)
	for ; len(p) >= 56; p = p[16:] {
		a, b := le.Uint64(p)^n[0], le.Uint64(p[8:])^n[1]
		n[0] = n[2] ^ a<<17 ^ a<<55
		n[1] = n[3] ^ a>>47 ^ a>>9 ^ a<<19 ^ b<<17 ^ b<<55
		n[2] = n[4] ^ a>>45 ^ a<<44 ^ b>>47 ^ b>>9 ^ b<<19
		n[3] = a>>20 ^ b>>45 ^ b<<44
		n[4] = b >> 20
	}
	s = 0
	for i := 0; len(p) >= 8; i, p = i+1, p[8:] {
		w := le.Uint64(p) ^ n[i]
		s = advance8(s^uint32(w)) ^ advance4(uint32(w>>32))
	}
	return s
}

// updateShort is update word by word. Unlike hash/crc32, which is called through
// a variable, it does not make p escape.
func updateShort(s uint32, p []byte) uint32 {
	for len(p) >= 4 {
		s = advance4(s ^ le.Uint32(p))
		p = p[4:]
	}
	for _, c := range p {
		s = crc32.IEEETable[byte(s)^c] ^ s>>8
	}
	return s
}

// multiply returns the product of two registers.
func multiply(a, b uint32) uint32 {
	r := carryless(a, b) << 1 // bit 63 is x^0, the low half x^32 and above
	return uint32(r>>32) ^ advance4(uint32(r))
}

// carryless is a 32 by 32 bit multiplication without carries, out of integer
// multiplications: with only every fourth bit set, at most 8 partial products
// meet in one place, and their sum stays inside the three bits above it.
func carryless(a, b uint32) uint64 {
	const m = 0x11111111
	a0, a1, a2, a3 := uint64(a&m), uint64(a&(m<<1)), uint64(a&(m<<2)), uint64(a&(m<<3))
	b0, b1, b2, b3 := uint64(b&m), uint64(b&(m<<1)), uint64(b&(m<<2)), uint64(b&(m<<3))
	r0 := a0*b0 ^ a1*b3 ^ a2*b2 ^ a3*b1
	r1 := a0*b1 ^ a1*b0 ^ a2*b3 ^ a3*b2
	r2 := a0*b2 ^ a1*b1 ^ a2*b0 ^ a3*b3
	r3 := a0*b3 ^ a1*b2 ^ a2*b1 ^ a3*b0
	const w = 0x1111111111111111
	return r0&w | r1&(w<<1) | r2&(w<<2) | r3&(w<<3)
}

// retreat takes one zero byte back out of the register: it multiplies by x^-8.
func retreat(s uint32) uint32 {
	// The upper byte of a table entry is different for each index.
	for i, t := range crc32.IEEETable {
		if t>>24 == s>>24 {
			return (s^t)<<8 | uint32(i)
		}
	}
	panic("ib: the CRC table is not a permutation in its upper byte")
}

// field16 maps a 16-bit big-endian field to its share of a register some bytes
// later: upper byte, lower byte.
type field16 [2][256]uint32

// newField16 makes the map for a field with n bytes from its first one on.
func newField16(n int) (f field16) {
	for bit := 1; bit < 256; bit <<= 1 {
		f[0][bit] = advance(uint32(bit), n)
		f[1][bit] = advance(uint32(bit), n-1)
	}
	for i := range 256 { // the map is linear: the rest are sums
		low := i & -i
		f[0][i] = f[0][i^low] ^ f[0][low]
		f[1][i] = f[1][i^low] ^ f[1][low]
	}
	return f
}

func (f *field16) of(v uint16) uint32 { return f[0][v>>8] ^ f[1][v&255] }
