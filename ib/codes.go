package ib

import (
	"math/bits"
	"strconv"
	"time"
)

// MTU is a path MTU code: the payload bytes of one packet (enum ib_mtu of Linux
// include/rdma/ib_verbs.h). The zero value is not valid.
type MTU uint8

// The path MTU codes.
const (
	MTU256 MTU = 1 + iota
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Valid reports whether m is one of the five codes.
func (m MTU) Valid() bool { return m >= MTU256 && m <= MTU4096 }

// Bytes returns the payload size in bytes, 0 for an invalid code.
func (m MTU) Bytes() int {
	if !m.Valid() {
		return 0
	}
	return 128 << m
}

// String returns the size in bytes as text, "invalid MTU code n" for other codes.
func (m MTU) String() string {
	if !m.Valid() {
		return "invalid MTU code " + strconv.Itoa(int(m))
	}
	return strconv.Itoa(m.Bytes())
}

// MTUFromBytes returns the code for a payload of exactly n bytes; false when
// there is none.
func MTUFromBytes(n int) (MTU, bool) {
	m, ok := LargestMTU(n)
	if !ok || m.Bytes() != n {
		return 0, false
	}
	return m, true
}

// LargestMTU returns the largest code whose payload is not above maxBytes; false
// when maxBytes is below 256.
func LargestMTU(maxBytes int) (MTU, bool) {
	for m := MTU4096; m >= MTU256; m-- {
		if m.Bytes() <= maxBytes {
			return m, true
		}
	}
	return 0, false
}

// AckTimeout is the 5-bit code of a local ACK timeout (IBTA 9.7.6.1.3):
// 4.096 us * 2^code. 0 switches the timeout off.
type AckTimeout uint8

// ackTimeoutUnit is 4.096 us.
const ackTimeoutUnit = 4096 * time.Nanosecond

// Duration returns the timeout, from 8.192 us to about 2.4 hours. 0, for code
// 0, means that the timer never expires. Only the low 5 bits count.
func (t AckTimeout) Duration() time.Duration {
	if t&31 == 0 {
		return 0
	}
	return ackTimeoutUnit << (t & 31)
}

// AckTimeoutFor returns the smallest code that waits at least d: rounded up,
// never below 1 and at most 31. A d of 0 or less means never: code 0.
func AckTimeoutFor(d time.Duration) AckTimeout {
	if d <= 0 {
		return 0
	}
	units := uint64((d-1)/ackTimeoutUnit) + 1 // rounded up, at least 1
	code := bits.Len64(units - 1)             // smallest n with 2^n >= units
	return AckTimeout(min(max(code, 1), 31))
}

// RNRTimer is the 5-bit code of a receiver-not-ready wait (IBTA 9.7.5.2.8; enum
// ib_rnr_timeout of Linux include/rdma/ib_verbs.h). The codes are not in order
// of length: 0 is the longest wait.
type RNRTimer uint8

// rnrUnit is the unit of rnrWaits.
const rnrUnit = 10 * time.Microsecond

// rnrWaits holds the waits in units of 10 us, by code.
var rnrWaits = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12,
	16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072,
	4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// Duration returns the wait, 10 us (code 1) to 655.36 ms (code 0). Only the low
// 5 bits count.
func (t RNRTimer) Duration() time.Duration {
	return time.Duration(rnrWaits[t&31]) * rnrUnit
}

// RNRTimerFor returns the code of the shortest wait that is at least d: code
// 1 (10 us) for 0 and less, code 0 (655.36 ms) for everything above 491.52 ms.
func RNRTimerFor(d time.Duration) RNRTimer {
	for t := RNRTimer(1); t < 32; t++ {
		if t.Duration() >= d {
			return t
		}
	}
	return 0
}
