package main

import (
	"context"
	"fmt"
	"time"
)

// quietError says that nothing has come from the peer for a while.
type quietError struct{ limit time.Duration }

func (e *quietError) Error() string {
	return fmt.Sprintf("nothing came from the peer for %v", e.limit)
}

// watch returns a context that ends with a *quietError as its cause when the
// number that activity returns has not changed for limit. stop ends the watch.
func watch(ctx context.Context, limit time.Duration, activity func() uint64) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(limit / 10)
		defer tick.Stop()
		last, since := activity(), time.Now()
		for {
			select {
			case <-watched.Done():
				return
			case now := <-tick.C:
				if n := activity(); n != last {
					last, since = n, now
				} else if now.Sub(since) >= limit {
					cancel(&quietError{limit})
					return
				}
			}
		}
	}()
	return watched, func() { cancel(context.Canceled) }
}
