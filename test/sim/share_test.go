package sim

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/test/sim/network"
)

var shareRuns = flag.Int("sim.shares", 0, "runs of TestShares with each queue")

// Senders share the port of a receiver that drops what does not fit its queue. A window
// that takes losses for noise must not let them collapse there: most of the link carries
// data that is delivered, and everybody gets a share, also who comes when the others have
// filled the queue, and has never seen the path without it.
func TestShare(t *testing.T) {
	const (
		rate     = 10e9 // bits per second
		size     = 256 << 10
		near     = 5 * time.Microsecond
		far      = 100 * time.Microsecond
		apart    = 7 * time.Microsecond
		later    = 5 * time.Millisecond
		duration = 30 * time.Millisecond
	)
	for _, c := range []struct {
		senders, queue int
		delay, join    time.Duration // of each link; between the beginnings of two senders
	}{
		{4, 96 << 10, near, 0}, {4, 128 << 10, near, 0}, {4, 256 << 10, near, 0}, {4, 512 << 10, near, 0},
		{4, 256 << 10, near, apart}, {4, 512 << 10, near, apart},
		{2, 256 << 10, far, later}, {2, 512 << 10, far, later},
	} {
		t.Run(fmt.Sprintf("%d senders %v apart, %v, %d KiB", c.senders, c.join, c.delay, c.queue>>10), func(t *testing.T) {
			s := newStar(t, 1, c.senders, size, network.LinkConfig{Rate: rate, Delay: c.delay, Queue: c.queue}, network.SwitchConfig{}, roce.Config{})
			for i := range c.senders {
				s.begin = append(s.begin, time.Duration(i)*c.join)
			}
			begin := s.begin[c.senders-1]
			s.run(begin)
			before := slices.Clone(s.done)
			s.run(begin + duration)
			sum, again := 0, uint64(0)
			for i := range s.done {
				s.done[i] -= before[i]
				sum += s.done[i]
				n := s.from[i].Dev.Counters()
				again += n["retransmitted_pkts"]
				if n["local_ack_timeout_err"] > 0 {
					t.Errorf("sender %d had %d timeouts", i, n["local_ack_timeout_err"])
				}
			}
			share := float64(sum*size*8) / (rate * duration.Seconds())
			t.Logf("%.0f %% of the link, messages of each sender: %v, %d packets again", 100*share, s.done, again)
			if share < 0.8 {
				t.Errorf("%.0f %% of the link carries data", 100*share)
			}
			for i, k := range s.done {
				if k*c.senders*3 < sum {
					t.Errorf("sender %d got %d messages of %d", i, k, sum)
				}
			}
		})
	}
}

// TestShares counts how often four senders share a port as TestShare wants it, when their
// beginnings are some microseconds apart: without jitter, who gets what of a short queue
// depends on them. It is there to be read.
func TestShares(t *testing.T) {
	if *shareRuns == 0 {
		t.Skip("-sim.shares is 0")
	}
	const senders, size = 4, 256 << 10
	for _, queue := range []int{96 << 10, 128 << 10, 256 << 10, 512 << 10} {
		fair := 0
		for run := range *shareRuns {
			s := newStar(t, 1, senders, size, network.LinkConfig{Rate: 10e9, Delay: 5 * time.Microsecond, Queue: queue}, network.SwitchConfig{}, roce.Config{})
			sum := 0
			for i := range senders {
				s.begin = append(s.begin, time.Duration(i*run)*time.Microsecond)
			}
			s.run(30 * time.Millisecond)
			for _, k := range s.done {
				sum += k
			}
			if slices.Min(s.done)*senders*3 >= sum {
				fair++
			}
		}
		t.Logf("queue of %d KiB: everybody has a third of his share in %d of %d runs", queue>>10, fair, *shareRuns)
	}
}
