package roce

import (
	"os"
	"strconv"
	"time"
)

// GOROCE_ENGINES=2 lets all tests of the package run with so many engines, where they
// do not say how many.
func init() {
	if n, err := strconv.Atoi(os.Getenv("GOROCE_ENGINES")); err == nil {
		defaultEngines = n
	}
}

// Serve is one batch of the engine's goroutine.
func (d *Device) Serve(now time.Duration) {
	e := d.port.first()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.run(now, goroutine)
}

// Sleep makes the queue one on which somebody waits.
func (c *CQ) Sleep() { c.waiters.Add(1) }
