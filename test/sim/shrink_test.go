package sim

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
)

// forgetful damages the last byte of payload of packets of RC that are sent once more.
type forgetful struct {
	netio.Backend
	sent map[[2]uint32]bool
}

func (f *forgetful) Send(now time.Duration, runs []netio.Run) (int, error) {
	for i := range runs {
		for k := range runs[i].Segments() {
			seg := runs[i].Segment(k)
			p, why := ib.Parse(seg)
			if why != ib.OK || !p.Info().Request || len(p.Payload()) == 0 || p.Info().Transport != ib.TransportRC {
				continue
			}
			id := [2]uint32{uint32(p.DestQP()), uint32(p.PSN())}
			if f.sent[id] {
				p.Payload()[len(p.Payload())-1] ^= 1
				flow := ib.NewFlow(f.LocalAddr(), netip.AddrPortFrom(runs[i].Dst.Addr(), runs[i].Dst.Port()))
				flow.Seal(uint16(k), seg)
			}
			f.sent[id] = true
		}
	}
	return f.Backend.Send(now, runs)
}

// A run that fails by the loss of one packet is reduced to little more than that, and
// the text of it fails alike.
func TestShrink(t *testing.T) {
	bug := func(h *hooks) {
		h.backend = func(_ int, b netio.Backend) netio.Backend { return &forgetful{b, map[[2]uint32]bool{}} }
	}
	run := func(s Schedule) error {
		cfg := s.Config()
		bug(&cfg.hooks)
		_, err := Run(cfg)
		return err
	}
	cfg := Scenario(11)
	bug(&cfg.hooks)
	s, err := Record(cfg)
	if err == nil {
		t.Fatal("the bug was not noticed")
	}
	if run(s) == nil {
		t.Fatal("what was recorded does not fail")
	}
	tries, faults, requests := 200, 3, 4
	if raceEnabled {
		tries, faults, requests = 20, 1000, 1000
	}
	small := Shrink(s, tries, func(s Schedule) bool { return run(s) != nil })
	t.Logf("%d faults and %d requests, reduced to %v", len(s.Faults), len(s.Requests), small)
	if len(small.Faults) > faults || len(small.Requests) > requests {
		t.Errorf("%d faults and %d requests are left", len(small.Faults), len(small.Requests))
	}
	parsed, err := ParseSchedule(small.String())
	if err != nil || parsed.String() != small.String() {
		t.Errorf("%v is read as %v, %v", small, parsed, err)
	}
	a, b := run(small), run(parsed)
	if a == nil || b == nil || a.Error() != b.Error() {
		t.Errorf("the small schedule fails with\n%v\nread from its text with\n%v", a, b)
	}
	small.Faults = nil
	if err := run(small); err != nil {
		t.Errorf("without any fault it fails as well: %v", err)
	}
}

// A recorded schedule repeats the run, packet by packet.
func TestRecordReplays(t *testing.T) {
	seeds := []uint64{1, 4} // over a network, and next to each other
	if raceEnabled {
		seeds = seeds[:1]
	}
	for _, seed := range seeds {
		cfg := Scenario(seed)
		want, err := Run(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Record(cfg)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Run(s.Config())
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("seed %d: the schedule gives\n%+v, the seed\n%+v", seed, got, want)
		}
	}
}

// Delta debugging finds the items that matter, whichever they are.
func TestReduce(t *testing.T) {
	for _, needed := range [][]int{{}, {0}, {99}, {3, 50}, {0, 1, 2, 97, 98, 99}} {
		var all, last []int
		for i := range 100 {
			all = append(all, i)
		}
		last = all
		reduce(all, func(l []int) bool {
			for _, n := range needed {
				if !slices.Contains(l, n) {
					return false
				}
			}
			last = slices.Clone(l)
			return true
		})
		if !slices.Equal(last, needed) {
			t.Errorf("of %v there is left %v", needed, last)
		}
	}
}

// What cannot be read is refused.
func TestParseSchedule(t *testing.T) {
	for _, text := range []string{"seed=x", "failure=99", "what=1", "without=everything", "faults=1.drop.3", "faults=1.miss.3.0", "requests=3"} {
		if s, err := ParseSchedule(text); err == nil {
			t.Errorf("%q is read as %v", text, s)
		}
	}
}
