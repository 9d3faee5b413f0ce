package sim

import (
	"flag"
	"runtime"
	"testing"
	"time"
)

var soakTime = flag.Duration("sim.soak", 0, "virtual time of TestSoak; 0 means two minutes, less under the race detector")

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
	cfg := Soak(1, d)
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
		t.Fatal(err)
	}
	t.Logf("%v of virtual time in %v%v", d, time.Since(start).Round(time.Millisecond), &r)
	if r.Lives < int(d/time.Minute)*10 || r.Migrated == 0 || r.Retrans == 0 {
		t.Errorf("too little has happened: %+v", r)
	}
	for i, m := range marks {
		if i > 0 && (m.heap > marks[0].heap+marks[0].heap/4 || m.objects > marks[0].objects+marks[0].objects/4) {
			t.Errorf("after hour %d: %+v, after the first %+v", i+1, m, marks[0])
		}
	}
}
