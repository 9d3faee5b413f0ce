package sim

import (
	"math"
	"testing"

	"github.com/goroce/goroce/roce"
)

// TestPoolChecksCatch: the checks of shared receive queues notice what they are
// there for.
func TestPoolChecksCatch(t *testing.T) {
	cfg := adjacent(6)
	cfg.Services, cfg.Shared = []roce.QPType{roce.RC}, true
	shared := func(x wcRef) bool {
		s := x.n.w.byQPN[x.n.i][x.wc.QPN]
		return x.wc.ID&recvID != 0 && s.pool != nil
	}
	catches(t, cfg, []injected{
		{"a receive completes twice", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef {
				for _, x := range l {
					if shared(x) {
						return append(l, x)
					}
				}
				return l
			}
		}, "is not posted|none is due"},
		{"a receive completes with the ID of another", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef {
				for i := range l {
					for id := range l[i].n.pool.posted {
						if shared(l[i]) && id != l[i].wc.ID {
							l[i].wc.ID = id
							break
						}
					}
				}
				return l
			}
		}, "of the receive buffer is wrong|after a later one"},
		{"receives of a queue pair complete out of order", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef {
				for i := 1; i < len(l); i++ {
					if a, b := &l[i-1], &l[i]; shared(*a) && a.wc.QPN == b.wc.QPN && shared(*b) {
						a.wc.ID, b.wc.ID = b.wc.ID, a.wc.ID
					}
				}
				return l
			}
		}, "of the receive buffer is wrong|after a later one"},
		{"a limit event comes unasked", func(h *hooks) {
			h.step = once(30, func(w *world) { w.nodes[0].pool.limited = false; w.nodes[0].pool.limitReached() })
		}, "not armed"},
		{"a receive is written to that nobody took", func(h *hooks) {
			n := 0
			h.step = func(w *world) {
				posted := w.nodes[0].pool.posted
				if n++; n < 100 || len(posted) == 0 { // the first time that there is one
					return
				}
				n = math.MinInt
				for _, buf := range posted { // the byte before one may be in another, to be overwritten
					buf[0].a.buf[buf[0].off-1] ^= 1
				}
			}
		}, "was overwritten|is wrong"},
	})
}

// TestSharedFailures: a connection that ends in the middle of a message from a
// shared queue gives its receive back, flushed, and the others go on.
func TestSharedFailures(t *testing.T) {
	flushed := 0
	for seed := range uint64(60) {
		cfg := adjacent(9000 + seed)
		cfg.Shared, cfg.Failure = true, []Failure{ToError, Cut, BadRKey, Destroy}[seed%4]
		cfg.Window = 8 << 10 // messages take their time
		cfg.hooks.completions = func(l []wcRef) []wcRef {
			for _, x := range l {
				if s := x.n.w.byQPN[x.n.i][x.wc.QPN]; s.pool != nil && x.wc.ID&recvID != 0 && x.wc.Status == roce.WCWRFlushErr {
					flushed++
				}
			}
			return l
		}
		if _, err := Run(cfg); err != nil {
			t.Error(err)
		}
	}
	if flushed == 0 {
		t.Error("no connection ended in the middle of a message")
	}
}
