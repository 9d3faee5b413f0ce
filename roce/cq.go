package roce

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// CQ is a completion queue. Queue pairs push into it from inside the engine;
// any number of goroutines may poll it.
type CQ struct {
	dev  *Device
	refs atomic.Int32 // queue pairs that use it

	mu         sync.Mutex // leaf, taken below the engine lock
	ring       []WC
	head, tail uint32 // free-running: next to poll, next to push
	overflow   bool
	destroyed  bool

	waiters atomic.Int32
	notify  chan struct{} // one token: something was pushed while somebody waited
}

// CreateCQ creates a completion queue with room for at least n completions.
func (d *Device) CreateCQ(n int) (*CQ, error) {
	if n < 1 || n > maxCQE {
		return nil, &ConfigError{"cqe", n, fmt.Sprintf("allowed are 1 to %d", maxCQE)}
	}
	if d.closed.Load() {
		return nil, ErrClosed
	}
	return &CQ{dev: d, ring: make([]WC, depth(n)), notify: make(chan struct{}, 1)}, nil
}

// Cap returns the number of completions the queue has room for.
func (c *CQ) Cap() int { return len(c.ring) }

// Push implements transport.CQ. It is called with the engine lock held.
func (c *CQ) Push(wc *WC) {
	c.mu.Lock()
	if c.overflow || c.tail-c.head == uint32(len(c.ring)) {
		first := !c.overflow
		c.overflow = true
		c.mu.Unlock()
		c.dev.port.engine.count(dropCQOverflow)
		if first {
			c.dev.port.engine.overflowed(c)
		}
	} else {
		c.ring[c.tail&uint32(len(c.ring)-1)] = *wc
		c.tail++
		c.mu.Unlock()
	}
	if c.waiters.Load() > 0 {
		select {
		case c.notify <- struct{}{}:
		default:
		}
	}
}

// pop moves completions out of the queue. The error tells what an empty queue
// means.
func (c *CQ) pop(wc []WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(wc) && c.head != c.tail {
		wc[n] = c.ring[c.head&uint32(len(c.ring)-1)]
		c.head++
		n++
	}
	if n == 0 && len(wc) > 0 {
		switch {
		case c.overflow:
			return 0, ErrCQOverflow
		case c.destroyed, c.dev.closed.Load():
			return 0, ErrClosed
		}
	}
	return n, nil
}

// Poll moves up to len(wc) completions into wc and returns how many. It never
// blocks; when the queue is empty it drives the device for one batch of packets
// first (not with Config.Manual). After an overflow it returns what the queue
// holds, then ErrCQOverflow; after Close what is left, then ErrClosed.
func (c *CQ) Poll(wc []WC) (int, error) {
	n, err := c.pop(wc)
	if n > 0 || err != nil || len(wc) == 0 {
		return n, err
	}
	if !c.dev.port.engine.drive() {
		return 0, nil
	}
	if n, err = c.pop(wc); n == 0 {
		c.dev.port.engine.yield()
	}
	return n, err
}

// Wait is Poll that waits for at least one completion: it polls for Config.Spin,
// then blocks until one comes, ctx ends, or the device is closed. With
// Config.Manual it blocks until another goroutine's Progress delivers one.
func (c *CQ) Wait(ctx context.Context, wc []WC) (int, error) {
	if len(wc) == 0 {
		return 0, &ConfigError{"len(wc)", 0, "Wait needs room for one completion"}
	}
	e := c.dev.port.engine
	for deadline := e.clock() + c.dev.spin; ; {
		n, err := c.Poll(wc)
		if n > 0 || err != nil {
			return n, err
		}
		if e.clock() >= deadline {
			return c.block(ctx, wc)
		}
	}
}

// block waits without polling: the engine's goroutine works.
func (c *CQ) block(ctx context.Context, wc []WC) (int, error) {
	c.waiters.Add(1)
	defer c.waiters.Add(-1)
	c.dev.port.engine.handOver()
	for {
		// Armed above, polled here: a completion pushed in between left a token.
		n, err := c.pop(wc)
		if n > 0 || err != nil {
			c.passOn()
			return n, err
		}
		select {
		case <-c.notify:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-c.dev.done:
		}
	}
}

// passOn wakes the next waiter when completions are left for it: one token may
// stand for several completions.
func (c *CQ) passOn() {
	c.mu.Lock()
	left := c.head != c.tail || c.overflow || c.destroyed
	c.mu.Unlock()
	if left && c.waiters.Load() > 1 {
		select {
		case c.notify <- struct{}{}:
		default:
		}
	}
}

// Destroy frees the queue. It returns ErrBusy while a queue pair uses it. Those
// who wait on it get ErrClosed.
func (c *CQ) Destroy() error {
	if c.refs.Load() > 0 {
		return fmt.Errorf("completion queue: %w", ErrBusy)
	}
	c.mu.Lock()
	c.destroyed = true
	c.mu.Unlock()
	c.passOnAll()
	return nil
}

func (c *CQ) passOnAll() {
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

// spinDefault is how long Wait polls before it blocks. Waking a goroutine on an
// idle processor costs 15 to 40 us.
const spinDefault = 50 * time.Microsecond
