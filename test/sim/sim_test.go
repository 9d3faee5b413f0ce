package sim

import (
	"flag"
	"testing"
	"time"

	"github.com/goroce/goroce/roce/netio"
)

var (
	oneSeed = flag.Int64("sim.seed", -1, "run this seed only")
	seeds   = flag.Int("sim.seeds", 0, "how many seeds to run; 0 means 200 (10 of each failure), fewer under the race detector")
	from    = flag.Uint64("sim.from", 0, "the first seed")
	lines   = flag.Bool("sim.trace", false, "log every packet, request and completion")
)

// Issue 2, "How we know": 200 seeds of a random mix of operations under 5 % loss,
// duplication and reordering, in virtual time, in under 30 s.
func TestSeeds(t *testing.T) {
	first, n := *from, 200
	if raceEnabled {
		n = 10
	}
	if *seeds > 0 {
		n = *seeds
	}
	if *oneSeed >= 0 {
		first, n = uint64(*oneSeed), 1
	}
	var sum Result
	start := time.Now()
	for seed := first; seed < first+uint64(n); seed++ {
		cfg := Scenario(seed)
		if *lines {
			cfg.hooks.trace = func(line string) { t.Log(line) }
		}
		r, err := Run(cfg)
		if err != nil {
			t.Errorf("%v\nreplay with: go test ./test/sim -run TestSeeds -sim.seed=%d -sim.trace", err, seed)
		}
		if testing.Verbose() && *seeds > 0 || *oneSeed >= 0 {
			t.Logf("seed %d: %+v", seed, r)
		}
		sum.add(r)
	}
	if *oneSeed < 0 && (sum.Retrans == 0 || sum.Timeouts == 0 || sum.RNRs == 0 || sum.Blocked == 0 || sum.Drains == 0 || sum.Limits == 0) {
		t.Errorf("the seeds leave something out: %+v", sum)
	}
	t.Logf("%d seeds in %v: %+v", n, time.Since(start).Round(time.Millisecond), sum)
}

func (r *Result) add(s Result) {
	r.Packets += s.Packets
	r.Delivered += s.Delivered
	r.Requests += s.Requests
	r.Bytes += s.Bytes
	r.Time += s.Time
	r.Retrans += s.Retrans
	r.Timeouts += s.Timeouts
	r.RNRs += s.RNRs
	r.Blocked += s.Blocked
	r.Drains += s.Drains
	r.Limits += s.Limits
}

// On a network without faults nothing is sent twice: no timer runs out, and only a
// receiver that is not ready causes a repetition (field lesson: spurious retries).
func TestCleanNetwork(t *testing.T) {
	first, n := uint64(5000), uint64(40)
	if raceEnabled {
		first, n = 5007, 4 // one of them has no RNR NAKs
	}
	quiet := 0
	for seed := range n {
		cfg := Scenario(first + seed)
		cfg.Faults, cfg.Block, cfg.Fabric = netio.Faults{}, 0, 16<<20
		r, err := Run(cfg)
		if err != nil {
			t.Error(err)
		}
		if r.Timeouts != 0 {
			t.Errorf("seed %d: %d timeouts", cfg.Seed, r.Timeouts)
		}
		if r.RNRs == 0 {
			quiet++
			if r.Retrans != 0 {
				t.Errorf("seed %d: %d packets sent again", cfg.Seed, r.Retrans)
			}
		}
	}
	if quiet == 0 {
		t.Error("no run without RNR NAKs: they would hide repetitions")
	}
}
