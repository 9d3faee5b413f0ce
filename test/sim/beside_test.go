package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
	"github.com/goroce/goroce/test/sim/network"
)

// A queue pair that writes 8 bytes and waits for each, beside one that streams from the
// same device: the stream keeps no more in flight than the link holds without a queue, or
// 128 KiB, so that who waits does not wait for a whole window of it. That costs the
// stream nothing of the link, a long one least of all.
func TestBeside(t *testing.T) {
	const size, streams, words = 1 << 20, 4, 400
	far := fastLink
	far.Delay = 200 * time.Microsecond
	for _, c := range []struct {
		name string
		link network.LinkConfig
		op   roce.WROpcode
		most time.Duration // of 99 % of the words
	}{
		{"WRITE", fastLink, roce.WRWrite, 200 * time.Microsecond},
		{"READ", fastLink, roce.WRRead, 200 * time.Microsecond},
		{"WRITE, far", far, roce.WRWrite, 1500 * time.Microsecond},
		{"READ, far", far, roce.WRRead, 1500 * time.Microsecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLane(t, c.link, netio.Faults{}, size, false)
			a, b := rocetest.New(t, l.ends[0].Dev, rocetest.Options{Memory: 8}), rocetest.New(t, l.ends[1].Dev, rocetest.Options{Memory: 8})
			rocetest.Connect(t, a, b, roce.Conn{PathMTU: roce.MTU4096})
			l.move(c.op, 16, size) // the stream has filled its window
			post := func(from, to *rocetest.Endpoint, op roce.WROpcode, n int) {
				if err := from.QP.PostSend(roce.SendWR{Opcode: op, Flags: roce.Signaled, SGE: []roce.SGE{from.MR.SGE(0, n)}, RemoteAddr: to.MR.Addr(), RKey: to.MR.RKey()}); err != nil {
					t.Fatal(err)
				}
			}
			poll := func(e *rocetest.Endpoint) int {
				var wcs [streams]roce.WC
				n, err := e.CQ.Poll(wcs[:])
				for _, wc := range wcs[:n] {
					if err == nil && wc.Status != roce.WCSuccess {
						t.Fatal(wc.Status)
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			var waits []time.Duration
			moved, begin, posted := 0, l.now, l.now
			for range streams {
				post(l.ends[0], l.ends[1], c.op, size)
			}
			post(a, b, roce.WRWrite, 8)
			for len(waits) < words {
				for range poll(l.ends[0]) {
					moved += size
					post(l.ends[0], l.ends[1], c.op, size)
				}
				if poll(a) > 0 {
					waits = append(waits, l.now-posted)
					posted = l.now
					post(a, b, roce.WRWrite, 8)
				}
				l.turn()
			}
			slices.Sort(waits)
			share := float64(8*moved) / (l.now - begin).Seconds() / c.link.Rate
			t.Logf("8 bytes: median %v, 99 %% %v; %.1f %% of the link", waits[words/2], waits[words*99/100], 100*share)
			if p := waits[words*99/100]; p > c.most {
				t.Errorf("99 %% within %v, want %v", p, c.most)
			}
			if share < 0.9 {
				t.Errorf("the stream has %.1f %% of the link", 100*share)
			}
		})
	}
}
