package sim

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goroce/goroce/roce/netio"
)

var (
	oneSeed = flag.Int64("sim.seed", -1, "run this seed only")
	seeds   = flag.Int("sim.seeds", 0, "how many seeds to run; 0 means 600 (10 of each failure), fewer under the race detector")
	from    = flag.Uint64("sim.from", 0, "the first seed")
	lines   = flag.Bool("sim.trace", false, "log every packet, request and completion")
	replay  = flag.String("sim.schedule", "", "run this schedule only, as a failing run prints it")
	tries   = flag.Int("sim.tries", 300, "how many runs may be made to find a small schedule for a run that fails")
)

// 600 seeds of a random mix of all operations over all services, half of them next to
// each other and half over links and a switch, under loss, bursts of it, duplication,
// reordering, damage and partitions, in virtual time.
func TestSeeds(t *testing.T) {
	if *replay != "" {
		again(t)
		return
	}
	first, n := *from, 600
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
	var failed []uint64
	start := time.Now()
	each(n, func(i int) {
		cfg := Scenario(first + uint64(i))
		if *lines {
			cfg.hooks.trace = func(e event) { t.Log(e) }
		}
		r, err := Run(cfg)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			t.Errorf("%v\nreplay with: go test ./test/sim -run TestSeeds -sim.seed=%d -sim.trace", err, cfg.Seed)
			if failed = append(failed, cfg.Seed); len(failed) == 1 {
				t.Error(smaller(cfg))
			}
		}
		sum.add(r)
	})
	if n >= 100 {
		for what, n := range sum.shown() {
			if n == 0 {
				t.Errorf("the seeds have no %s: %+v", what, sum)
			}
		}
	}
	took := time.Since(start)
	t.Logf("%d seeds in %v, %.0f per second; they failed: %v%v", n, took.Round(time.Millisecond), float64(n)/took.Seconds(), failed, &sum)
}

// again runs the schedule of the command line.
func again(t *testing.T) {
	s, err := ParseSchedule(*replay)
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.Config()
	if *lines {
		cfg.hooks.trace = func(e event) { t.Log(e) }
	}
	if _, err = Run(cfg); err != nil {
		t.Error(err)
	}
}

// smaller says what a run that fails can be reduced to. With -sim.trace it is not.
func smaller(cfg Config) string {
	if *lines {
		return ""
	}
	cfg.hooks = hooks{}
	s, err := Record(cfg)
	if err == nil {
		return "the run does not fail again: something but the seed decides"
	}
	fails := func(s Schedule) bool { _, err := Run(s.Config()); return err != nil }
	if !fails(s) {
		return "its schedule does not fail: it takes a full socket at a certain time"
	}
	small := Shrink(s, *tries, fails)
	return fmt.Sprintf("of %d faults and %d requests these are enough: go test ./test/sim -run TestSeeds -sim.trace -sim.schedule='%v'",
		len(s.Faults), len(s.Requests), small)
}

// String lists what the runs had, for people.
func (r *Result) String() string {
	var b strings.Builder
	line := func(name string, format string, args ...any) {
		fmt.Fprintf(&b, "\n  %-12s "+format, append([]any{name}, args...)...)
	}
	line("packets", "%d sent, %d received; %d sent again, %d timeouts, %d probes, %d RNR NAKs, %d CNPs", r.Packets, r.Delivered, r.Retrans, r.Timeouts, r.Probes, r.RNRs, r.CNPs)
	line("programs", "%d requests on %d connections, %d migrations, %d through windows and fast registrations, %d over XRC, %d drained queues",
		r.Requests, r.Lives, r.Migrated, r.Granted, r.XRC, r.Drains)
	var faults []string
	for _, what := range slices.Sorted(maps.Keys(r.Suffered)) {
		faults = append(faults, fmt.Sprintf("%s %d", what, r.Suffered[what]))
	}
	line("faults", "%s; sends refused %d", strings.Join(faults, ", "), r.Blocked)
	line("checked", "%d packets sent, for the rules of the wire; %d completions, once, in order, right; %d bytes of messages, on both sides; %d atomics, explained by one order; %d unreliable messages",
		r.Packets, r.Completions, r.Bytes, r.Atomics, r.Heard)
	line("virtual time", "%v", r.Time.Round(time.Second))
	return b.String()
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
	shown := map[string]int{
		"packet sent again": int(r.Retrans), "timeout": int(r.Timeouts), "probe": int(r.Probes), "RNR NAK": int(r.RNRs), "full socket": r.Blocked,
		"drained send queue": r.Drains, "limit event": r.Limits, "unreliable message that came": r.Heard,
		"unreliable message that got lost": r.Unheard, "migration": r.Migrated, "request through a grant": r.Granted,
		"READ that came too late": int(r.Late), "request over XRC": r.XRC,
	}
	maps.Copy(shown, r.Suffered)
	return shown
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
	r.Completions += s.Completions
	r.Atomics += s.Atomics
	r.Lives += s.Lives
	r.CNPs += s.CNPs
	for what, n := range s.Suffered {
		r.suffer(what, n)
	}
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
		cfg := adjacent(first + seed)
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
