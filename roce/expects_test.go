package roce

import (
	"testing"
	"time"
)

// The goroutine of an engine polls on while packets follow each other closely. What it
// sends meanwhile takes time in which its peers may have had to wait: that is no pause.
func TestExpects(t *testing.T) {
	const us = time.Microsecond
	e := &engine{spin: 50 * us}
	for _, c := range []struct {
		pause, heard, sending time.Duration
		now                   time.Duration
		want                  bool
	}{
		{pause: 10 * us, heard: 1000 * us, now: 1040 * us, want: true},
		{pause: 10 * us, heard: 1000 * us, now: 1060 * us},
		{pause: 10 * us, heard: 1000 * us, sending: 100 * us, now: 1140 * us, want: true},
		{pause: 10 * us, heard: 1000 * us, sending: 100 * us, now: 1160 * us},
		{pause: 190 * us, heard: 1000 * us, now: 1040 * us, want: true}, // it has slept, and woken late
		{pause: 210 * us, heard: 1000 * us, now: 1001 * us},
	} {
		e.pause, e.heard, e.sending = c.pause, c.heard, c.sending
		if got := e.expects(c.now); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	e.spin, e.pause, e.heard = 0, 0, 0 // Config.Spin below 0
	if e.expects(0) {
		t.Error("it polls though it was told not to")
	}
}
