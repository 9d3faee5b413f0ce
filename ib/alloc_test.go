package ib

import (
	"testing"
	"time"
)

// Nothing on the packet path allocates.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	b := sendOnly(1024)
	atomic := make([]byte, BTHSize+AtomicETHSize+ICRCSize)
	var tracker IDTracker
	var now time.Duration
	var sum int
	for name, f := range map[string]func(){
		"NewFlow, Seal, Verify": func() {
			f4, f6 := NewFlow(testSrc4, testDst4), NewFlow(testSrc6, testDst6)
			f6.Seal(1, b)
			f4.Seal(1, b)
			if !f4.Verify(1, b) || f6.Verify(1, b) {
				t.Error("wrong verdict")
			}
		},
		"Recover": func() {
			flow4.Seal(77, b)
			if id, ok := flow4.Recover(b); id != 77 || !ok {
				t.Error("ID not found")
			}
		},
		"Parse and accessors": func() {
			p, m := Parse(b)
			if m != OK {
				t.Error(m)
			}
			sum += len(p.Payload()) + int(p.PSN()) + int(p.BTH().DestQP) + int(p.RETH().Length) + int(p.AETH().MSN) + p.Info().HeaderLen
		},
		"Put": func() {
			n := BTH{Opcode: OpRCCmpSwap, DestQP: 3}.Put(atomic)
			n += AtomicETH{VA: 1}.Put(atomic[n:])
			RETH{}.Put(atomic)
			AETH{}.Put(atomic)
			PutCNP(atomic, 5)
			sum += n
		},
		"IDTracker": func() {
			now += time.Microsecond
			tracker.Accept(now, uint16(now))
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
