package netio

import "time"

// waiter blocks one goroutine until somebody wakes it, for backends that have no
// file descriptor to wait on. A wake that nobody waits for ends the next wait.
type waiter struct {
	ch    chan struct{}
	timer *time.Timer
}

func newWaiter() waiter {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return waiter{ch: make(chan struct{}, 1), timer: t}
}

func (w *waiter) wake() {
	select {
	case w.ch <- struct{}{}:
	default:
	}
}

// wait returns when woken or after the timeout; a negative timeout is no limit.
func (w *waiter) wait(timeout time.Duration) {
	switch {
	case timeout < 0:
		<-w.ch
	case timeout == 0:
		select {
		case <-w.ch:
		default:
		}
	default:
		w.timer.Reset(timeout)
		select {
		case <-w.ch:
			w.timer.Stop()
		case <-w.timer.C:
		}
	}
}
