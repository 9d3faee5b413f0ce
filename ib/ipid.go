package ib

import "math/bits"

// Recovering the IPv4 Identification. The ICRC covers it, but a UDP socket hides
// it. Let d be the difference between the ICRC computed with ID 0 and the one
// received. If the packet is intact, d is the ID's two bytes advanced by all
// bytes that follow them; multiplying by the inverse power of x moves the two
// bytes back to the bottom of the register and leaves nothing above them. Of
// 2^32 differences 2^16 do that, so random corruption passes with probability
// 2^-16.

// fromID is the number of bytes from the ID on to the end of the pseudo header.
const fromID = pseudo4Size - at4ID

// maxTabled is the largest packet, without its ICRC, that the table of inverse
// powers covers: every header and the largest MTU.
const maxTabled = MaxHeaderSize + 4096

// inverses[i] is x^-8(fromID+4i): 4 KiB.
var inverses = buildInverses()

// inverseSquares[i] is x^-8(2^i), for lengths that honest peers never send.
var inverseSquares = buildInverseSquares()

// one is x^0.
const one = 1 << 31

func buildInverses() (t [maxTabled/4 + 1]uint32) {
	s := uint32(one)
	for range fromID {
		s = retreat(s)
	}
	step := retreat(retreat(retreat(retreat(one))))
	for i := range t {
		t[i] = s
		s = multiply(s, step)
	}
	return t
}

func buildInverseSquares() (t [17]uint32) {
	s := retreat(one)
	for i := range t {
		t[i] = s
		s = multiply(s, s)
	}
	return t
}

// inverse returns x^-8(fromID+n).
func inverse(n int) uint32 {
	if n&3 == 0 && n <= maxTabled {
		return inverses[n>>2]
	}
	s := uint32(one)
	for i, m := 0, fromID+n; m != 0; i, m = i+1, m>>1 {
		if m&1 != 0 {
			s = multiply(s, inverseSquares[i])
		}
	}
	return s
}

// Recover reports whether some IPv4 Identification explains the ICRC of b (BTH
// to ICRC), and which: for a packet with DF set and without IP options there is
// at most one. Over IPv6 there is no Identification: Recover is an exact check
// and id is 0. Any length is safe. A packet damaged at random passes with
// probability 2^-16 over IPv4; IDTracker strengthens that.
func (f *Flow) Recover(b []byte) (id uint16, ok bool) { return f.RecoverNear(0, b) }

// RecoverNear is Recover for a packet that is likely to have a certain
// Identification: one that has is checked sooner.
func (f *Flow) RecoverNear(likely uint16, b []byte) (id uint16, ok bool) {
	if !f.accepts(b) {
		return 0, false
	}
	n := len(b) - ICRCSize
	s, has := f.sum(likely, b), le.Uint32(b[n:])
	id, ok = f.explain(s^has, n)
	if !ok && isFlush(b) {
		id, ok = f.explain(again(s, b)^has, 2*n)
	}
	if !ok || f.family == family6 {
		return 0, ok
	}
	return likely ^ id, true
}

// explain returns the difference of two Identifications that makes the difference d
// after n bytes behind the pseudo header.
func (f *Flow) explain(d uint32, n int) (id uint16, ok bool) {
	if d == 0 || f.family == family6 {
		return 0, d == 0
	}
	v := multiply(d, inverse(n))
	if v > 0xffff {
		return 0, false
	}
	return bits.ReverseBytes16(uint16(v)), true
}
