package sim

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// A seed decides everything: two runs of it have the same packets at the same
// times, and the same completions.
func TestSeedReplays(t *testing.T) {
	seeds := []uint64{3, 5, 10}
	if raceEnabled {
		seeds = seeds[:1]
	}
	for _, seed := range seeds {
		a, err := Run(Scenario(seed))
		if err != nil {
			t.Error(err)
		}
		b, err := Run(Scenario(seed))
		if err != nil {
			t.Error(err)
		}
		if !reflect.DeepEqual(a, b) {
			t.Errorf("seed %d: two runs differ:\n%+v\n%+v", seed, a, b)
		}
		cfg := Scenario(seed)
		cfg.Faults.Loss += 0.01
		if c, err := Run(cfg); err != nil {
			t.Error(err)
		} else if c.Hash == a.Hash {
			t.Errorf("seed %d: another network gives the same hash: the hash sees nothing", seed)
		}
	}
}

// A run of a failing seed fails in the same way again, and says how to repeat it.
func TestFailureReplays(t *testing.T) {
	run := func() (Result, error) {
		cfg := adjacent(3)
		cfg.hooks.backend = func(_ int, b netio.Backend) netio.Backend { return &flipper{Backend: b, at: 30} }
		return Run(cfg)
	}
	a, err := run()
	if err == nil {
		t.Fatal("a wrong byte was not noticed")
	}
	if !strings.Contains(err.Error(), "seed 3") {
		t.Errorf("the error does not name the seed: %v", err)
	}
	b, again := run()
	if again == nil || again.Error() != err.Error() || !reflect.DeepEqual(a, b) {
		t.Errorf("not the same failure again:\n%v\n%v", err, again)
	}
}

// Each check catches the fault that it is there for.
func TestChecksCatch(t *testing.T) {
	cfg := adjacent(3)
	cfg.Services, cfg.Shared = []roce.QPType{roce.RC}, false
	catches(t, cfg, []injected{
		{"a byte of a packet changes, with a right ICRC", func(h *hooks) {
			h.backend = func(_ int, b netio.Backend) netio.Backend { return &flipper{Backend: b, at: 100} }
		}, "byte"},
		{"one byte outside of all buffers changes", func(h *hooks) {
			h.step = once(200, func(w *world) { w.nodes[1].arenas[0].buf[0] ^= 1 })
		}, "was overwritten"},
		{"a byte of a buffer in use changes", func(h *hooks) {
			h.step = func(w *world) {
				for _, s := range w.sides {
					for i := s.completed; i < s.posted; i++ {
						if r := s.ops[i]; r.writes() && r.size > 0 && !r.arrived {
							return
						}
						if r := s.ops[i]; r.op == roce.WRRead && r.size > 0 {
							r.remote.bytes()[r.size-1] ^= 0x80
							return
						}
					}
				}
			}
		}, "byte"},
		{"an increment is executed twice", func(h *hooks) {
			h.step = once(300, func(w *world) { w.nodes[0].words.mr.AddUint64(8*adderWord, 1) })
		}, "increment"},
		{"an exchange is undone", func(h *hooks) {
			h.step = func(w *world) {
				for _, n := range w.nodes {
					if x := &n.words; len(x.swaps) == 2 && x.last != 0 {
						x.mr.StoreUint64(8*chainWord, 0)
					}
				}
			}
		}, "exchange"},
		{"an ATOMIC_WRITE is lost", func(h *hooks) {
			h.step = func(w *world) {
				for _, n := range w.nodes {
					clear(n.words.mr.Bytes()[8*privateWords:])
				}
			}
		}, "is not in the peer's memory"},
		{"a completion gets lost", func(h *hooks) {
			n := 0
			h.completions = func(l []wcRef) []wcRef {
				if n += len(l); n >= 30 && n-len(l) < 30 {
					return l[1:]
				}
				return l
			}
		}, "but next is|not all is done"},
		{"the last completions get lost", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef {
				if w := l[0].n.w; w.now > 0 && w.left() < 10 { // one stands for several, if those were not signaled
					return nil
				}
				return l
			}
		}, "not all is done"},
		{"a completion comes twice", func(h *hooks) {
			n := 0
			h.completions = func(l []wcRef) []wcRef {
				if n++; n == 12 {
					l = append(l, l[len(l)-1])
				}
				return l
			}
		}, "completed, but|is not outstanding|but next is|buffer is wrong"}, // one that was not signaled is taken for complete
		{"two completions of a queue pair change places", func(h *hooks) {
			done := false
			h.completions = func(l []wcRef) []wcRef {
				for i := 1; i < len(l) && !done; i++ {
					if a, b := &l[i-1], &l[i]; a.wc.QPN == b.wc.QPN && a.wc.ID>>63 == b.wc.ID>>63 {
						*a, *b, done = *b, *a, true
					}
				}
				return l
			}
		}, "but next is"},
		{"immediate data is wrong", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef {
				for i := range l {
					if l[i].wc.Flags&roce.WCWithImm != 0 {
						l[i].wc.Imm++
					}
				}
				return l
			}
		}, "was received as"},
		{"a completion has an error status", func(h *hooks) {
			h.completions = func(l []wcRef) []wcRef { l[0].wc.Status = roce.WCRemOpErr; return l }
		}, "remote operation error"},
		{"all packets get lost from some time on", func(h *hooks) {
			h.backend = func(_ int, b netio.Backend) netio.Backend { return &cutter{Backend: b} }
		}, "retry counter exceeded"},
	})
}

// injected is a fault that a check is there for.
type injected struct {
	fault string
	hook  func(h *hooks)
	want  string // in the error, one of these
}

// catches runs cfg, which has no fault, with each of the faults.
func catches(t *testing.T, cfg Config, faults []injected) {
	t.Helper()
	if _, err := Run(cfg); err != nil {
		t.Fatal(err)
	}
	for _, tt := range faults {
		cfg.hooks = hooks{}
		tt.hook(&cfg.hooks)
		_, err := Run(cfg)
		if err == nil {
			t.Errorf("%s: not noticed", tt.fault)
			continue
		}
		first, _, _ := strings.Cut(err.Error(), "configuration")
		ok := false
		for want := range strings.SplitSeq(tt.want, "|") {
			ok = ok || strings.Contains(first, want)
		}
		if !ok {
			t.Errorf("%s: noticed as %q, want %q", tt.fault, first, tt.want)
		}
	}
}

// once makes a hook that acts in one step only.
func once(step int, f func(w *world)) func(w *world) {
	return func(w *world) {
		if step--; step == 0 {
			f(w)
		}
	}
}

// flipper changes the last byte of payload of one packet, number at of those with
// at least 64 bytes of payload, and seals it again.
type flipper struct {
	netio.Backend
	at int
}

func (f *flipper) Send(now time.Duration, runs []netio.Run) (int, error) {
	for i := range runs {
		for k := range runs[i].Segments() {
			seg := runs[i].Segment(k)
			p, why := ib.Parse(seg)
			if why != ib.OK || len(p.Payload()) < 64 {
				continue
			}
			// Retransmissions of the packet are hit as well: all from at on.
			if f.at--; f.at > 0 {
				continue
			}
			p.Payload()[len(p.Payload())-1] ^= 0x10
			flow := ib.NewFlow(f.LocalAddr(), netip.AddrPortFrom(runs[i].Dst.Addr(), runs[i].Dst.Port()))
			flow.Seal(uint16(k), seg)
		}
	}
	return f.Backend.Send(now, runs)
}

// cutter drops everything after the first 100 sends.
type cutter struct {
	netio.Backend
	n int
}

func (c *cutter) Send(now time.Duration, runs []netio.Run) (int, error) {
	if c.n++; c.n > 100 {
		_, err := c.Backend.Send(now, nil)
		return len(runs), err
	}
	return c.Backend.Send(now, runs)
}

// The memory of the programs is itself put to the test: pieces never overlap, are
// given back, and keep their distance.
func TestArena(t *testing.T) {
	rng := newRand(1)
	a := newArena(make([]byte, 1<<16), 7)
	var held []piece
	for i := range 5000 {
		if len(held) > 0 && rng.IntN(2) == 0 {
			k := rng.IntN(len(held))
			p := held[k]
			if at := differs(p.bytes(), uint64(p.off), 0); at >= 0 {
				t.Fatalf("step %d: byte %d of a piece was overwritten by another", i, at)
			}
			p.release()
			held = append(held[:k], held[k+1:]...)
			continue
		}
		p, ok := a.alloc(rng, rng.IntN(2000))
		if !ok {
			continue
		}
		if at := differs(p.bytes(), a.guard, p.off); at >= 0 {
			t.Fatalf("step %d: byte %d of a new piece is no guard byte", i, at)
		}
		for _, q := range held {
			if p.off <= q.off+q.n && q.off <= p.off+p.n {
				t.Fatalf("step %d: pieces %d+%d and %d+%d touch", i, p.off, p.n, q.off, q.n)
			}
		}
		fill(p.bytes(), uint64(p.off), 0)
		held = append(held, p)
	}
	for _, p := range held {
		p.release()
	}
	if at := a.intact(); at >= 0 || len(a.free) != 1 {
		t.Errorf("afterwards byte %d is wrong, free %v", at, a.free)
	}
}

func TestPattern(t *testing.T) {
	whole := make([]byte, 100)
	fill(whole, 5, 0)
	for from := range whole {
		for to := from; to <= len(whole); to++ {
			b := make([]byte, to-from)
			fill(b, 5, from)
			if string(b) != string(whole[from:to]) {
				t.Fatalf("bytes %d to %d differ from those of the whole", from, to)
			}
			if at := differs(b, 5, from); at >= 0 {
				t.Fatalf("bytes %d to %d: differs says %d", from, to, at)
			}
			for i := range b {
				b[i] ^= 4
				if at := differs(b, 5, from); at != i {
					t.Fatalf("bytes %d to %d: byte %d is wrong, differs says %d", from, to, i, at)
				}
				b[i] ^= 4
			}
		}
	}
	if differs(whole, 6, 0) < 0 || differs(whole[1:], 5, 0) < 0 {
		t.Error("contents do not depend on key and position")
	}
}

// The seeds contain what they are said to.
func TestScenariosCoverTheMix(t *testing.T) {
	v6, big, wired, cuts := 0, 0, 0, 0
	for seed := range uint64(200) {
		cfg := Scenario(seed)
		if cfg.IPv6 {
			v6++
		}
		if cfg.MaxSize == 1<<20 {
			big++
		}
		if cfg.Link.Rate > 0 {
			wired++
		}
		cuts += len(cfg.Cuts)
		if cfg.Faults.Burst == 0 || cfg.Faults.Loss < 0.05 || cfg.Faults.Duplicate < 0.05 || cfg.Faults.Reorder < 0.05 || cfg.Faults.Corrupt == 0 {
			t.Errorf("seed %d: faults %+v, want 5 %% each", seed, cfg.Faults)
		}
	}
	if v6 < 20 || big < 5 || wired < 80 || cuts < 80 {
		t.Errorf("%d seeds with IPv6, %d with 1 MiB, %d over links with %d partitions", v6, big, wired, cuts)
	}
}
