package sim

import (
	"flag"
	"runtime"
	"testing"
	"time"
)

var (
	soakTime = flag.Duration("sim.soak", 0, "virtual time of TestSoak; 0 means two minutes, less under the race detector")
	lateOnly = flag.Duration("sim.tracefrom", 0, "virtual time from which -sim.trace logs in TestSoak")
)

// Connections that come and go for hours of virtual time, with traffic, pauses, faults
// and migrations, leave nothing: memory in use is the same at every hour.
func TestSoak(t *testing.T) {
	type memory struct {
		heap, objects uint64
		sides         int
	}
	var marks []memory
	d := 2 * time.Minute
	if raceEnabled {
		d = 20 * time.Second
	}
	if *soakTime > 0 {
		d = *soakTime
	}
	seed := uint64(1)
	if *oneSeed >= 0 {
		seed = uint64(*oneSeed)
	}
	cfg := Soak(seed, d)
	if *lines {
		cfg.hooks.trace = func(e event) {
			if e.at >= *lateOnly {
				t.Log(e)
			}
		}
	}
	cfg.hooks.mark = func(w *world) {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		marks = append(marks, memory{m.HeapAlloc, m.HeapObjects, len(w.sides)})
		t.Logf("after %v: %d connections, %d requests; heap %d KiB in %d objects, %d goroutines; %d sides known",
			w.now.Round(time.Second), w.res.Lives, w.res.Requests, m.HeapAlloc>>10, m.HeapObjects, runtime.NumGoroutine(), len(w.sides))
	}
	start := time.Now()
	r, err := Run(cfg)
	if err != nil {
		t.Fatalf("%v\nreplay with: go test ./test/sim -run TestSoak -timeout 0 -sim.soak=%v -sim.seed=%d -sim.trace -sim.tracefrom=%v",
			err, d, seed, max(0, r.Time-time.Second))
	}
	t.Logf("%v of virtual time in %v%v", d, time.Since(start).Round(time.Millisecond), &r)
	if r.Lives < int(d/time.Minute)*10 || r.Migrated == 0 || r.Retrans == 0 {
		t.Errorf("too little has happened: %+v", r)
	}
	// What is kept to be used again, as blocks of a stash, is complete after two hours.
	for i := 2; i < len(marks); i++ {
		if m, full := marks[i], marks[1]; m.heap > full.heap+full.heap/4 || m.objects > full.objects+full.objects/4 {
			t.Errorf("after hour %d: %+v, after the second %+v", i+1, m, full)
		}
	}
}
