package sim

import (
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goroce/goroce/roce/netio"
)

var (
	oneSeed = flag.Int64("sim.seed", -1, "run this seed only")
	seeds   = flag.Int("sim.seeds", 0, "how many seeds to run; 0 means 1000 (10 of each failure), fewer under the race detector")
	from    = flag.Uint64("sim.from", 0, "the first seed")
	lines   = flag.Bool("sim.trace", false, "log every packet, request and completion")
)

// 1000 seeds of a random mix of all operations over all services under 5 % loss,
// duplication and reordering, in virtual time.
func TestSeeds(t *testing.T) {
	first, n := *from, 1000
	if raceEnabled {
		n = 10
	}
	if *seeds > 0 {
		n = *seeds
	}
	if *oneSeed >= 0 {
		first, n = uint64(*oneSeed), 1
	}
	var mu sync.Mutex
	var sum Result
	start := time.Now()
	each(n, func(i int) {
		seed := first + uint64(i)
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
		mu.Lock()
		defer mu.Unlock()
		sum.add(r)
	})
	if n >= 100 {
		for what, n := range sum.shown() {
			if n == 0 {
				t.Errorf("the seeds have no %s: %+v", what, sum)
			}
		}
	}
	t.Logf("%d seeds in %v: %+v", n, time.Since(start).Round(time.Millisecond), sum)
}

// each calls f for 0 to n-1, on all processors. Runs have nothing in common.
func each(n int, f func(i int)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	workers.Wait()
}

// shown is what a number of seeds is to show, each at least once.
func (r *Result) shown() map[string]int {
	return map[string]int{
		"packet sent again": int(r.Retrans), "timeout": int(r.Timeouts), "probe": int(r.Probes), "RNR NAK": int(r.RNRs), "full socket": r.Blocked,
		"drained send queue": r.Drains, "limit event": r.Limits, "unreliable message that came": r.Heard,
		"unreliable message that got lost": r.Unheard, "migration": r.Migrated, "request through a grant": r.Granted,
		"READ that came too late": int(r.Late), "request over XRC": r.XRC,
	}
}

func (r *Result) add(s Result) {
	r.Packets += s.Packets
	r.Delivered += s.Delivered
	r.Requests += s.Requests
	r.Bytes += s.Bytes
	r.Time += s.Time
	r.Retrans += s.Retrans
	r.Timeouts += s.Timeouts
	r.Probes += s.Probes
	r.RNRs += s.RNRs
	r.Blocked += s.Blocked
	r.Drains += s.Drains
	r.Limits += s.Limits
	r.XRC += s.XRC
	r.Migrated += s.Migrated
	r.Granted += s.Granted
	r.Late += s.Late
	r.Heard += s.Heard
	r.Unheard += s.Unheard
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
		cfg.Faults, cfg.Block, cfg.Fabric, cfg.Roam = netio.Faults{}, 0, 16<<20, false
		r, err := Run(cfg)
		if err != nil {
			t.Error(err)
		}
		if r.Timeouts+r.Probes != 0 {
			t.Errorf("seed %d: %d timeouts, %d probes", cfg.Seed, r.Timeouts, r.Probes)
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
