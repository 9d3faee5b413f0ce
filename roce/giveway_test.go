package roce

import (
	"testing"
	"time"
)

// A poller that has lost its turn by yielding does not yield again for a while, and then
// tries again; one that has lost nothing yields each time. The clock is read around each
// yield.
func TestGiveWay(t *testing.T) {
	var now, step time.Duration
	reads := 0
	p := &port{clock: func() time.Duration {
		reads++
		now += step
		return now
	}}
	yields := func(polls int) int {
		reads = 0
		for range polls {
			p.giveWay()
		}
		return reads / 2
	}
	if n := yields(100); n != 100 {
		t.Errorf("%d yields of 100 polls on an idle machine", n)
	}
	step = 2 * turnTime
	if n := yields(1); n != 1 {
		t.Errorf("%d yields of the poll that loses its turn", n)
	}
	step = 0
	if n := yields(pauses * looks); n != 0 {
		t.Errorf("%d yields after a lost turn", n)
	}
	if n := yields(100); n != 100 {
		t.Errorf("%d yields of 100 polls, when others are tried again", n)
	}
}
