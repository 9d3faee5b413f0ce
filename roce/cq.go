package roce

import (
	"context"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/ib"
)

// CQ is a completion queue. Queue pairs push into it from inside the engine;
// any number of goroutines may poll it.
type CQ struct {
	dev     *Device
	refs    atomic.Int32  // queue pairs and shared receive queues that use it
	engines atomic.Uint64 // the engines of these, as a set
	fromC   bool          // polled by threads from C, which do not yield

	mu         sync.Mutex // leaf, taken below the engine lock
	users      []int      // by engine
	ring       []WC
	head, tail uint32 // free-running: next to poll, next to push
	overflow   bool
	destroyed  bool
	notifier

	waiters atomic.Int32
	notify  chan struct{} // one token: something was pushed while somebody waited
}

// CQOption changes how a completion queue is made.
type CQOption func(*CQ)

// OnChannel lets a completion queue tell of completions on ch, a channel of the
// same device, when ReqNotify asks for it.
func OnChannel(ch *CompChannel) CQOption { return func(c *CQ) { c.channel = ch } }

// FromC says that the queue is polled by threads that come from C, as those of
// libraries that are built as c-shared. Their goroutine is bound to its thread: to let
// others run costs it two switches of threads, at each poll that finds nothing. The
// others have the other processors.
func FromC() CQOption { return func(c *CQ) { c.fromC = runtime.GOMAXPROCS(0) > 1 } }

// CreateCQ creates a completion queue with room for at least n completions
// (ibv_create_cq).
func (d *Device) CreateCQ(n int, opts ...CQOption) (*CQ, error) {
	if n < 1 || n > maxCQE {
		return nil, &ConfigError{"cqe", n, fmt.Sprintf("allowed are 1 to %d", maxCQE)}
	}
	if err := d.gone(); err != nil {
		return nil, err
	}
	if err := d.addCQ(); err != nil {
		return nil, err
	}
	c := &CQ{dev: d, ring: make([]WC, depth(n)), users: make([]int, len(d.port.engines)), notify: make(chan struct{}, 1)}
	for _, f := range opts {
		f(c)
	}
	if c.channel != nil {
		if c.channel.dev != d {
			d.removeCQ()
			return nil, &ConfigError{"OnChannel", c.channel, "a completion channel of the same device is needed"}
		}
		if !c.channel.use() {
			d.removeCQ()
			return nil, ErrClosed
		}
	}
	return c, nil
}

// Cap returns the number of completions the queue has room for.
func (c *CQ) Cap() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ring)
}

// Resize makes room for at least n completions (ibv_resize_cq), not fewer than
// the queue holds. Completions go on meanwhile.
func (c *CQ) Resize(n int) error {
	if n < 1 || n > maxCQE {
		return &ConfigError{"cqe", n, fmt.Sprintf("allowed are 1 to %d", maxCQE)}
	}
	if err := c.dev.gone(); err != nil {
		return err
	}
	ring := make([]WC, depth(n))
	c.mu.Lock()
	defer c.mu.Unlock()
	switch held := c.tail - c.head; {
	case c.destroyed:
		return ErrClosed
	case c.overflow:
		return ErrCQOverflow
	case int(held) > n:
		return &ConfigError{"cqe", n, fmt.Sprintf("the queue holds %d completions: poll them first, or keep room for them", held)}
	}
	for i := c.head; i != c.tail; i++ {
		ring[i&uint32(len(ring)-1)] = c.ring[i&uint32(len(c.ring)-1)]
	}
	c.ring = ring
	return nil
}

// use counts a queue pair or shared receive queue of an engine more.
func (c *CQ) use(e *engine) { c.add(e, 1) }

// letGo counts one less.
func (c *CQ) letGo(e *engine) { c.add(e, -1) }

func (c *CQ) add(e *engine, n int) {
	c.refs.Add(int32(n))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users[e.index] += n; c.users[e.index] > 0 {
		c.engines.Or(e.bit())
	} else {
		c.engines.And(^e.bit())
	}
}

// Push implements transport.CQ. It is called with the lock of the queue pair's engine
// held.
func (c *CQ) Push(wc *WC) {
	e := c.dev.port.engineOf(wc.QPN)
	if kept, first := c.put(e, wc); !kept {
		e.count(dropCQOverflow)
		if first {
			e.overflowed(c)
		}
	}
	if c.waiters.Load() > 0 {
		e.roused = true
		select {
		case c.notify <- struct{}{}:
		default:
		}
	}
}

// put appends a completion. If there is no room it reports whether it is the first
// that finds none.
func (c *CQ) put(e *engine, wc *WC) (kept, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.overflow || c.tail-c.head == uint32(len(c.ring)) {
		first = !c.overflow
		c.overflow = true
		c.raise(e, true)
		return false, first
	}
	c.ring[c.tail&uint32(len(c.ring)-1)] = *wc
	c.tail++
	c.raise(e, wc.Solicited || wc.Status != WCSuccess)
	return true, false
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
		case c.destroyed:
			return 0, ErrClosed
		case c.dev.over():
			return 0, c.dev.gone()
		}
	}
	return n, nil
}

// forget takes the completions of a queue pair out of the queue, which it has when it is
// reset, as with the queue pairs of NICs (rdma-core providers/mlx5/verbs.c,
// mlx5_modify_qp): they are not taken for those of what is posted next.
func (c *CQ) forget(n ib.QPN) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mask := uint32(len(c.ring) - 1)
	kept := c.head
	for i := c.head; i != c.tail; i++ {
		if wc := &c.ring[i&mask]; wc.QPN != n {
			c.ring[kept&mask] = *wc
			kept++
		}
	}
	c.tail = kept
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
	if c.dev.cfg.Manual {
		return 0, nil
	}
	// Who has asked for an event is going to wait for it.
	lease, busy := !c.armed(), false
	set := c.engines.Load()
	if set == 0 || c.dev.port.relays {
		set |= c.dev.port.first().bit()
	}
	for ; set != 0; set &= set - 1 {
		if !c.dev.port.engines[bits.TrailingZeros64(set)].drive(lease) {
			busy = true
			continue
		}
		if n, err = c.pop(wc); n > 0 || err != nil {
			return n, err
		}
	}
	if busy {
		// Whoever has it makes progress and is done soon, unless its thread has
		// lost its processor, as happens on a busy machine: offer it ours.
		c.dev.port.giveWay()
		if n, err = c.pop(wc); n > 0 || err != nil {
			return n, err
		}
	}
	c.dev.port.yield(c.fromC)
	return 0, nil
}

// Wait is Poll that waits for at least one completion: it polls for Config.Spin,
// then blocks until one comes, ctx ends, or the device is closed. With
// Config.Manual it blocks until another goroutine's Progress delivers one.
func (c *CQ) Wait(ctx context.Context, wc []WC) (int, error) {
	if len(wc) == 0 {
		return 0, &ConfigError{"len(wc)", 0, "Wait needs room for one completion"}
	}
	clock := c.dev.port.clock
	for deadline := clock() + c.dev.spin; ; {
		n, err := c.Poll(wc)
		if n > 0 || err != nil {
			return n, err
		}
		if clock() >= deadline {
			return c.block(ctx, wc)
		}
	}
}

// block waits without polling: the engine's goroutine works.
func (c *CQ) block(ctx context.Context, wc []WC) (int, error) {
	c.waiters.Add(1)
	defer c.waiters.Add(-1)
	c.handOver()
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

// handOver ends the leases of its engines: the poller is going to block.
func (c *CQ) handOver() {
	for set := c.engines.Load(); set != 0; set &= set - 1 {
		c.dev.port.engines[bits.TrailingZeros64(set)].handOver()
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

// Destroy frees the queue (ibv_destroy_cq). It returns ErrBusy while a queue pair
// uses it or events that GetEvent returned for it are not acknowledged. Those who
// wait on it get ErrClosed; events that nobody has fetched are taken back.
func (c *CQ) Destroy() error {
	if c.refs.Load() > 0 {
		return fmt.Errorf("completion queue: %w", ErrBusy)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.destroyed {
		return ErrClosed
	}
	if c.channel != nil && !c.channel.drop(c) {
		return fmt.Errorf("completion queue: %w: events are not acknowledged, see AckEvents", ErrBusy)
	}
	c.destroyed = true
	c.dev.removeCQ()
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
