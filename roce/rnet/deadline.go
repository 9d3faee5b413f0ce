package rnet

import (
	"sync"
	"time"
)

// deadline is that of one direction. The connection's mutex guards it.
type deadline struct {
	passed bool
	timer  *time.Timer
}

// set makes the deadline t, never if t is zero. When it passes, wake is broadcast.
func (d *deadline) set(t time.Time, wake *sync.Cond) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.passed = !t.IsZero() && !time.Now().Before(t)
	if t.IsZero() || d.passed {
		wake.Broadcast()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(time.Until(t), func() {
		wake.L.Lock()
		defer wake.L.Unlock()
		if d.timer == timer {
			d.passed = true
			wake.Broadcast()
		}
	})
	d.timer = timer
}
