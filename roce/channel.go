package roce

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// CompChannel tells of completions on any number of completion queues
// (ibv_comp_channel), each made with OnChannel and armed with CQ.ReqNotify. It is
// for programs that wait for several queues at a time, or with a poll loop of
// their own; CQ.Wait needs no channel.
type CompChannel struct {
	dev  *Device
	box  *mailbox[*CQ]
	gone chan struct{} // destroyed

	refs      int // completion queues; below dev.mu
	destroyed bool
}

// CreateCompChannel makes a completion channel (ibv_create_comp_channel).
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	ch := &CompChannel{dev: d, box: newMailbox[*CQ](), gone: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.gone(); err != nil {
		return nil, err
	}
	d.channels[ch] = struct{}{}
	return ch, nil
}

// GetEvent waits for the next event and returns its completion queue
// (ibv_get_cq_event). The event is used up: the queue is silent until ReqNotify
// arms it again, after which it has to be polled once more, for what came before.
// Each event must be acknowledged with CQ.AckEvents before the queue can be
// destroyed. With a ctx that has ended GetEvent only looks. It returns ErrClosed
// when the device is closed or the channel destroyed and no event is left.
func (ch *CompChannel) GetEvent(ctx context.Context) (*CQ, error) {
	ch.dev.port.handOver()
	return ch.box.next(ctx, ch.dev.done, ch.gone)
}

// FD returns a descriptor that is readable while GetEvent has an event, and for
// ever once the device is closed (fd of ibv_comp_channel); on Linux only,
// elsewhere the error is errors.ErrUnsupported. It may be watched with poll or
// epoll, but is not to be read, written or closed: Destroy closes it.
func (ch *CompChannel) FD() (int, error) { return ch.box.fd() }

// Destroy frees the channel (ibv_destroy_comp_channel). It returns ErrBusy while a
// completion queue uses it, unless the device is closed. Those who wait on it get
// ErrClosed.
func (ch *CompChannel) Destroy() error {
	ch.dev.mu.Lock()
	defer ch.dev.mu.Unlock()
	if ch.destroyed {
		return ErrClosed
	}
	if ch.refs > 0 && !ch.dev.closed.Load() {
		return fmt.Errorf("completion channel: %w", ErrBusy)
	}
	ch.destroyed = true
	delete(ch.dev.channels, ch)
	close(ch.gone)
	ch.box.closeFD()
	return nil
}

// use counts one completion queue more, unless the channel is destroyed.
func (ch *CompChannel) use() bool {
	ch.dev.mu.Lock()
	defer ch.dev.mu.Unlock()
	if !ch.destroyed {
		ch.refs++
	}
	return !ch.destroyed
}

// drop ends the use by c, unless events of it that were fetched are not
// acknowledged.
func (ch *CompChannel) drop(c *CQ) bool {
	if !ch.box.removeIf(func(o *CQ) bool { return o == c }, int(c.events.Load())) {
		return false
	}
	ch.dev.mu.Lock()
	ch.refs--
	ch.dev.mu.Unlock()
	return true
}

// The states of a completion queue that may raise an event.
const (
	notArmed uint32 = iota
	armedSolicited
	armedAny
)

// notifier is what a completion queue knows about its channel. Its fields are
// guarded by the queue's lock unless they say otherwise.
type notifier struct {
	channel *CompChannel // or nil; never changed
	events  atomic.Int64 // raised and not acknowledged
	arm     atomic.Uint32

	// Moderation (see Moderate).
	count   int
	period  time.Duration
	waiting int           // completions that the event stands for and waits with
	due     time.Duration // when it waits no longer; valid while waiting
	listed  uint64        // in the heldEvents of these engines
}

func (n *notifier) armed() bool { return n.arm.Load() != notArmed }

// ReqNotify asks for one event on the channel, at the next completion
// (ibv_req_notify_cq) or, with solicitedOnly, at the next that is a receive whose
// sender has set Solicited, or an error. What is in the queue already counts for
// nothing: poll after ReqNotify, then wait. Asking for any completion replaces
// asking for solicited ones, not the other way round (IBTA 11.4.2.2).
func (c *CQ) ReqNotify(solicitedOnly bool) error {
	if err := c.dev.gone(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.destroyed:
		return ErrClosed
	case c.overflow:
		return ErrCQOverflow // no completion will come
	case c.channel == nil:
		return &ConfigError{"OnChannel", nil, "the completion queue was made without a channel"}
	case !solicitedOnly:
		c.arm.Store(armedAny)
	case !c.armed():
		c.arm.Store(armedSolicited)
	}
	c.handOver() // the caller is going to wait
	return nil
}

// AckEvents acknowledges n events that GetEvent returned for this queue
// (ibv_ack_cq_events).
func (c *CQ) AckEvents(n int) error {
	if left := c.events.Add(-int64(n)); n < 0 || left < 0 {
		c.events.Add(int64(n))
		return &ConfigError{"n", n, fmt.Sprintf("%d events are not acknowledged", left+int64(n))}
	}
	return nil
}

// Moderate lets an event wait for more completions, to save wake-ups
// (ibv_modify_cq): it is raised at the countth completion that could raise it, or
// period after the first, whichever is earlier. count 0 or 1 is no moderation;
// more needs a period of 1 us to 65535 us, as the last completions of a program
// are followed by no others. Poll and Wait are not affected.
func (c *CQ) Moderate(count int, period time.Duration) error {
	const most = 65535
	if count < 0 || count > most {
		return &ConfigError{"count", count, fmt.Sprintf("allowed are 0 to %d completions", most)}
	}
	if count > 1 && (period < time.Microsecond || period > most*time.Microsecond) {
		return &ConfigError{"period", period, "allowed are 1us to 65.535ms"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.destroyed || c.dev.closed.Load() {
		return ErrClosed
	}
	c.count, c.period = count, period
	if c.waiting > 0 && c.waiting >= count {
		c.fire()
	}
	return nil
}

// raise takes note of a completion. The locks of the queue and of e are held.
func (c *CQ) raise(e *engine, solicited bool) {
	if a := c.arm.Load(); a == notArmed || a == armedSolicited && !solicited {
		return
	}
	c.waiting++
	if c.waiting >= c.count || c.overflow {
		e.roused = true
		c.fire()
		return
	}
	if c.waiting == 1 {
		c.due = e.clock() + c.period
		e.held.add(c, e.bit())
	}
}

// fire puts an event on the channel. The queue's lock is held.
func (c *CQ) fire() {
	c.waiting = 0
	c.arm.Store(notArmed)
	c.events.Add(1)
	c.channel.box.push(c, math.MaxInt)
}

// heldEvents are the completion queues that hold an event back, and some that did,
// listed by the engine that the first completion came from. Its lock guards it.
type heldEvents struct {
	list     []*CQ
	earliest time.Duration // not later than the first that is due
}

func (h *heldEvents) due() time.Duration {
	if len(h.list) == 0 {
		return Never
	}
	return h.earliest
}

// add lists c, whose lock is held as well. self is the engine, as a set.
func (h *heldEvents) add(c *CQ, self uint64) {
	h.earliest = min(h.due(), c.due)
	if c.listed&self == 0 {
		c.listed |= self
		h.list = append(h.list, c)
	}
}

// release raises the events that are due. self is the engine, as a set.
func (h *heldEvents) release(now time.Duration, self uint64) {
	if h.due() > now {
		return
	}
	h.earliest = Never
	kept := h.list[:0]
	for _, c := range h.list {
		c.mu.Lock()
		if c.waiting > 0 && c.due <= now {
			c.fire()
		}
		if c.waiting > 0 {
			kept = append(kept, c)
			h.earliest = min(h.earliest, c.due)
		} else {
			c.listed &^= self
		}
		c.mu.Unlock()
	}
	clear(h.list[len(kept):])
	h.list = kept
}
