package main

import (
	"fmt"
	"time"
)

// progressEvery is how often the line of progress changes.
const progressEvery = 500 * time.Millisecond

// showProgress shows on a terminal, until hide is called, how long the measurement of a
// size takes and how much the device sends and receives meanwhile.
func (r *perfRun) showProgress(size int) (hide func()) {
	if !r.app.progress {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		began, last, before := time.Now(), time.Now(), r.bytesMoved()
		r.app.status("%s, %d bytes", r.o.test.name, size)
		for {
			select {
			case <-quit:
				return
			case now := <-tick.C:
				bytes := r.bytesMoved()
				r.app.status("%s, %d bytes: %s, %.2f Gbit/s on the wire", r.o.test.name, size, r.o.elapsed(now.Sub(began)), float64(bytes-before)*8/float64(now.Sub(last).Nanoseconds()))
				last, before = now, bytes
			}
		}
	}()
	return func() {
		close(quit)
		<-done
		r.app.status("")
	}
}

// bytesMoved is what the device has sent and received.
func (r *perfRun) bytesMoved() uint64 {
	c := r.ep.dev.Counters()
	return c["tx_bytes"] + c["rx_bytes"]
}

// elapsed is a time in words, with -D of how much.
func (o *perfOptions) elapsed(t time.Duration) string {
	if o.duration > 0 {
		return fmt.Sprintf("%.1f of %.0f s", t.Seconds(), o.duration.Seconds())
	}
	return fmt.Sprintf("%.1f s", t.Seconds())
}
