package roce

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestWheelAgainstModel compares the wheel with a plain list of deadlines: nothing
// is ever late, and next never sleeps past a deadline.
func TestWheelAgainstModel(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		now := time.Duration(rnd.Int64N(int64(time.Hour)))
		w := newWheel(now)
		due := map[*QP]time.Duration{}
		qps := make([]*QP, 40)
		for i := range qps {
			qps[i] = new(QP)
		}
		random := func() time.Duration {
			return now + []time.Duration{
				time.Duration(rnd.Int64N(int64(200 * time.Microsecond))),
				time.Duration(rnd.Int64N(int64(100 * time.Millisecond))),
				time.Duration(rnd.Int64N(int64(20 * time.Second))), // beyond the horizon
			}[rnd.IntN(3)]
		}
		for range 2000 {
			switch q := qps[rnd.IntN(len(qps))]; rnd.IntN(4) {
			case 0, 1:
				due[q] = random()
				w.schedule(q, due[q])
			case 2:
				delete(due, q)
				w.remove(q)
			case 3:
				earliest := Never
				for _, d := range due {
					earliest = min(earliest, d)
				}
				if w.earliest > earliest {
					t.Fatalf("seed %d: the wheel sleeps until %v, a timer runs out at %v", seed, w.earliest, earliest)
				}
				// Sometimes exactly to the deadline, sometimes well past it.
				if to := []time.Duration{w.earliest, earliest, random(), now + 10*time.Millisecond}[rnd.IntN(4)]; to != Never {
					now = max(now, to)
				}
				var fired []*QP
				w.advance(now, func(q *QP) {
					fired = append(fired, q)
					if d, ok := due[q]; ok && d > now {
						w.schedule(q, d) // looked at before its time
					} else if rnd.IntN(3) == 0 {
						due[q] = random()
						w.schedule(q, due[q])
					} else {
						delete(due, q)
					}
				})
				for q, d := range due {
					if d < now && !slices.Contains(fired, q) {
						t.Fatalf("seed %d: timer of %v not fired at %v", seed, d, now)
					}
				}
			}
		}
	}
}

// TestWheelLazyRearm: a deadline that moves back leaves the entry where it is, one
// that moves forward moves it.
func TestWheelLazyRearm(t *testing.T) {
	w, q := newWheel(0), new(QP)
	w.schedule(q, 10*time.Millisecond)
	w.schedule(q, 20*time.Millisecond)
	if w.earliest != 10*time.Millisecond {
		t.Errorf("after moving back: looks at %v, want 10ms", w.earliest)
	}
	w.schedule(q, 5*time.Millisecond)
	if w.earliest != 5*time.Millisecond {
		t.Errorf("after moving forward: looks at %v, want 5ms", w.earliest)
	}
	n := 0
	w.advance(5*time.Millisecond, func(*QP) { n++ })
	if n != 1 || w.earliest != Never {
		t.Errorf("fired %d times, next %v; want once, never", n, w.earliest)
	}
}

func BenchmarkWheelRearm(b *testing.B) {
	w, q := newWheel(0), new(QP)
	for i := range b.N {
		w.schedule(q, time.Duration(i))
	}
}
