package ib

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// The register is that of hash/crc32, by tables as well.
func TestUpdate(t *testing.T) {
	defer func(was bool) { crcByTables = was }(crcByTables)
	p := make([]byte, 5000)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	for _, crcByTables = range []bool{false, true} {
		for n := range 400 {
			for _, p := range [][]byte{p[:n], p[n : n+4096]} {
				if got, want := ^update(crcStart, p), crc32.ChecksumIEEE(p); got != want {
					t.Fatalf("by tables: %v, %d bytes: %#x, want %#x", crcByTables, len(p), got, want)
				}
			}
		}
	}
}
