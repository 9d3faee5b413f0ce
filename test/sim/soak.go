package sim

import (
	"slices"
	"time"

	"github.com/goroce/goroce/roce"
)

// A soak is a long run: connections follow each other in each place, with pauses of
// seconds, and what the checks know of old ones is forgotten, so that memory that
// grows is memory of the devices.

const (
	soakPause = 10 * time.Second // the longest pause of a program
	soakMark  = time.Hour        // between two calls of hooks.mark
	late      = time.Second      // no packet of a closed connection is under way so long
)

// Soak makes the soak of a seed: all operations over all services, with migration,
// over links of 10 Gb/s with a switch, under the faults of Scenario.
func Soak(seed uint64, d time.Duration) Config {
	c := Scenario(seed)
	c.Nodes, c.Conns, c.Requests, c.MaxSize, c.Arena = 3, 4, 16, 16<<10, 1<<20
	c.Link.Rate, c.Link.Delay, c.Link.Queue = 10e9, 5*time.Microsecond, 128<<10
	c.Cuts, c.Roam, c.Drain, c.Shared, c.Plain, c.Soak = nil, true, true, true, 1, d
	c.Services = []roce.QPType{roce.RC, roce.RC, roce.RC, roce.XRCSend, roce.UC, roce.UD}
	return c
}

// continues says whether another connection follows that of the side.
func (s *side) continues() bool {
	if d := s.w.cfg.Soak; d > 0 {
		return s.w.now < d
	}
	return s.life > 0
}

// delay makes the program of a side of a soak wait before it begins, and cuts its link
// when it does, now and then.
func (s *side) delay() {
	rng := s.w.rng
	s.sendAt = s.w.now + time.Duration(rng.Int64N(int64(soakPause)))
	if rng.IntN(3) == 0 {
		s.w.cut(cutOf(rng, s.n.i, s.sendAt+time.Duration(rng.IntN(10_000_000))))
	}
}

// retire forgets sides that were closed long ago, and atomics that are explained.
func (w *world) retire() error {
	w.sides = slices.DeleteFunc(w.sides, func(s *side) bool {
		old := s.closed && w.now > s.closedAt+late
		if old {
			s.forgotten()
		}
		return old
	})
	for _, n := range w.nodes {
		if err := n.words.fold(); err != nil {
			return err
		}
		for _, p := range n.pools {
			if err := p.words.fold(); err != nil {
				return err
			}
		}
	}
	return nil
}

// forgotten takes a side out of everything that knows it.
func (s *side) forgotten() {
	w, num := s.w, s.qp.Num()
	s.account()
	if w.byQPN[s.n.i][num] == s {
		delete(w.byQPN[s.n.i], num)
	}
	if w.senders[num] == s.peer {
		delete(w.senders, num)
		delete(w.mtu, num)
	}
	for _, p := range s.n.pools {
		delete(p.least, s)
	}
}

// account adds up what a side has done.
func (s *side) account() {
	r := &s.w.res
	r.Requests += len(s.ops)
	if s.typ == roce.XRCSend {
		r.XRC += len(s.ops)
	}
	s.w.again += s.flow.retrans
}
