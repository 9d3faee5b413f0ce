package netio

import (
	"sync/atomic"
	"time"
)

// waiter blocks one goroutine until its condition holds or somebody wakes it, for
// backends that have no file descriptor to wait on.
type waiter struct {
	woken atomic.Bool
	ch    chan struct{}
	timer *time.Timer
}

func newWaiter() waiter {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return waiter{ch: make(chan struct{}, 1), timer: t}
}

// wake ends the running wait, or else the next one.
func (w *waiter) wake() {
	w.woken.Store(true)
	w.signal()
}

// signal makes a running wait look at its condition.
func (w *waiter) signal() {
	select {
	case w.ch <- struct{}{}:
	default:
	}
}

// condition is what a backend waits for.
type condition interface{ waitOver() bool }

// wait returns when the condition holds, when woken or after the timeout; a
// negative timeout is no limit.
func (w *waiter) wait(timeout time.Duration, c condition) {
	if timeout > 0 {
		w.timer.Reset(timeout)
		defer w.timer.Stop()
	}
	for !c.waitOver() && !w.woken.Swap(false) && timeout != 0 {
		select {
		case <-w.ch:
		case <-w.timer.C: // never fires without a timeout
			return
		}
	}
}
