package ib

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
	"time"
)

// The register is that of hash/crc32, by shifts as well.
func TestUpdate(t *testing.T) {
	defer func(was bool) { crcByShifts = was }(crcByShifts)
	p := make([]byte, 5000)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	for _, crcByShifts = range []bool{false, true} {
		for n := range 400 {
			for _, p := range [][]byte{p[:n], p[n : n+4096]} {
				if got, want := ^update(crcStart, p), crc32.ChecksumIEEE(p); got != want {
					t.Fatalf("by shifts: %v, %d bytes: %#x, want %#x", crcByShifts, len(p), got, want)
				}
			}
		}
	}
}

// What a clock says to be faster is chosen, by a quarter at the least.
func TestTuneICRC(t *testing.T) {
	defer func(was bool) { crcByShifts = was }(crcByShifts)
	for _, tt := range []struct {
		whole, shifts time.Duration
		want          bool
	}{{20, 10, true}, {20, 15, false}, {20, 14, true}, {10, 20, false}, {0, 0, false}} {
		now, calls := time.Duration(0), 0
		TuneICRC(func() time.Duration {
			switch calls++; calls % 4 {
			case 2:
				now += tt.whole
			case 0:
				now += tt.shifts
			}
			return now
		})
		if crcByShifts != tt.want {
			t.Errorf("%d and %d ns: shifts: %v", tt.whole, tt.shifts, crcByShifts)
		}
	}
}
