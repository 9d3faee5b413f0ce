package sim

import (
	"testing"

	"github.com/goroce/goroce/roce"
)

// A connection that ends in the middle of its work completes every request exactly
// once and in order, tells why, and disturbs no other connection.
func TestFailures(t *testing.T) {
	n := uint64(10)
	if raceEnabled {
		n = 1
	}
	if *seeds > 0 {
		n = uint64(*seeds)
	}
	for kind := NoFailure + 1; kind < NumFailures; kind++ {
		t.Run(kind.String(), func(t *testing.T) {
			seen := map[roce.WCStatus]int{}
			for seed := range n {
				cfg := Scenario(*from + 100_000*uint64(kind) + seed)
				if *oneSeed >= 0 {
					cfg = Scenario(uint64(*oneSeed))
				}
				cfg.Failure = kind
				if *lines {
					cfg.hooks.trace = func(e event) { t.Log(e) }
				}
				r, err := Run(cfg)
				if err != nil {
					t.Errorf("%v\nreplay with: go test ./test/sim -run 'TestFailures/%v$' -sim.seed=%d -sim.trace", err, kind, cfg.Seed)
				}
				for s, k := range r.Statuses {
					seen[s] += k
				}
				if *oneSeed >= 0 {
					break
				}
			}
			t.Log(seen)
			// The first of the list is what this failure is known by.
			if want := statuses[kind][0]; seen[want] == 0 && !raceEnabled && *oneSeed < 0 {
				t.Errorf("no request completed as %v, only %v", want, seen)
			}
		})
	}
}
