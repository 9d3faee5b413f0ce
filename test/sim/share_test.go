package sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
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
			fabric := netio.NewFabric()
			n := network.New(1, fabric)
			sw := n.Switch(network.SwitchConfig{})
			open := func(i int) *rocetest.Endpoint {
				addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
				h := n.Host(addr)
				n.Link(h, sw, network.LinkConfig{Rate: rate, Delay: 5 * time.Microsecond, Queue: queue})
				be, err := h.Open()
				if err != nil {
					t.Fatal(err)
				}
				d, err := roce.Open(roce.Config{Backend: be, Manual: true, Clock: n.Now, Rand: rand.NewChaCha8([32]byte{byte(i)})})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { d.Close() })
				return rocetest.New(t, d, rocetest.Options{Memory: size})
			}
			var from, to [senders]*rocetest.Endpoint
			for i := range senders {
				from[i] = open(i)
			}
			to[0] = open(senders)
			for i := range senders {
				if i > 0 {
					to[i] = rocetest.New(t, to[0].Dev, rocetest.Options{Memory: size})
				}
				rocetest.Connect(t, from[i], to[i], roce.Conn{PathMTU: roce.MTU4096})
			}
			var posted, done [senders]int
			wcs := make([]roce.WC, 16)
			for n.Now() < duration {
				next := n.Next()
				for i, e := range from {
					k, err := e.CQ.Poll(wcs)
					for _, wc := range wcs[:k] {
						if wc.Status != roce.WCSuccess {
							err = fmt.Errorf("sender %d: status %v", i, wc.Status)
						}
					}
					if err != nil {
						t.Fatal(err)
					}
					for done[i] += k; posted[i]-done[i] < 16; posted[i]++ {
						if err := e.QP.PostSend(roce.SendWR{
							Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{e.MR.SGE(0, size)},
							RemoteAddr: to[i].MR.Addr(), RKey: to[i].MR.RKey(),
						}); err != nil {
							t.Fatal(err)
						}
					}
					next = min(next, e.Dev.Progress(n.Now()))
				}
				next = min(next, to[0].Dev.Progress(n.Now()))
				n.Advance(max(min(next, n.Next()), n.Now()))
			}
			sum, again := 0, uint64(0)
			for i, k := range done {
				sum += k
				c := from[i].Dev.Counters()
				again += c["retransmitted_pkts"]
				if c["local_ack_timeout_err"] > 0 {
					t.Errorf("sender %d had %d timeouts", i, c["local_ack_timeout_err"])
				}
			}
			share := float64(sum*size*8) / (rate * duration.Seconds())
			t.Logf("%.0f %% of the link, messages of each sender: %v, %d packets again", 100*share, done, again)
			if share < 0.8 {
				t.Errorf("%.0f %% of the link carries data", 100*share)
			}
			for i, k := range done {
				if k*senders*3 < sum {
					t.Errorf("sender %d got %d messages of %d", i, k, sum)
				}
			}
		})
	}
}
