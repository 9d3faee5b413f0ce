package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/test/sim/network"
)

// Four senders share the port of a receiver that drops what does not fit its queue.
// A window that takes a few losses for noise must not let them collapse there: most
// of the link carries data that is delivered, and everybody gets a share.
func TestShare(t *testing.T) {
	const (
		senders  = 4
		rate     = 10e9 // bits per second
		size     = 256 << 10
		duration = 30 * time.Millisecond
	)
	for _, queue := range []int{96 << 10, 128 << 10, 256 << 10, 512 << 10} {
		t.Run(fmt.Sprintf("%d KiB", queue>>10), func(t *testing.T) {
			s := newStar(t, 1, senders, size, network.LinkConfig{Rate: rate, Delay: 5 * time.Microsecond, Queue: queue}, network.SwitchConfig{}, roce.Config{})
			s.run(duration)
			sum, again := 0, uint64(0)
			for i, k := range s.done {
				sum += k
				c := s.from[i].Dev.Counters()
				again += c["retransmitted_pkts"]
				if c["local_ack_timeout_err"] > 0 {
					t.Errorf("sender %d had %d timeouts", i, c["local_ack_timeout_err"])
				}
			}
			share := float64(sum*size*8) / (rate * duration.Seconds())
			t.Logf("%.0f %% of the link, messages of each sender: %v, %d packets again", 100*share, s.done, again)
			if share < 0.8 {
				t.Errorf("%.0f %% of the link carries data", 100*share)
			}
			for i, k := range s.done {
				if k*senders*3 < sum {
					t.Errorf("sender %d got %d messages of %d", i, k, sum)
				}
			}
		})
	}
}
