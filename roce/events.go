package roce

import (
	"context"
	"sync"

	"github.com/goroce/goroce/transport"
)

// maxEvents is how many asynchronous events a device keeps for NextEvent.
const maxEvents = 4096

// AsyncEvent is an asynchronous event (ibv_async_event) and what it is about.
type AsyncEvent struct {
	Type EventType
	QP   *QP  // the queue pair, or nil
	CQ   *CQ  // the completion queue, or nil
	SRQ  *SRQ // the shared receive queue, or nil
}

// events is a device's queue of asynchronous events.
type events struct {
	lost func() // counts an event that found the queue full

	mu   sync.Mutex // leaf
	list []AsyncEvent
	more chan struct{} // one token: the list was empty and is not any more
}

func (ev *events) push(a AsyncEvent) {
	ev.mu.Lock()
	full := len(ev.list) >= maxEvents
	if !full {
		ev.list = append(ev.list, a)
	}
	ev.mu.Unlock()
	if full {
		ev.lost()
		return
	}
	select {
	case ev.more <- struct{}{}:
	default:
	}
}

func (ev *events) pop() (a AsyncEvent, ok bool) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	if len(ev.list) == 0 {
		return a, false
	}
	a = ev.list[0]
	ev.list = ev.list[1:]
	if len(ev.list) > 0 {
		select { // for the next one who waits
		case ev.more <- struct{}{}:
		default:
		}
	}
	return a, true
}

// NextEvent waits for the next asynchronous event (ibv_get_async_event). It
// returns the error of ctx when that ends, and ErrClosed when the device is
// closed and no event is left. Events that nobody fetches are kept up to a bound,
// then counted as drop_event.
func (d *Device) NextEvent(ctx context.Context) (AsyncEvent, error) {
	for {
		if a, ok := d.events.pop(); ok {
			return a, nil
		}
		if d.closed.Load() {
			return AsyncEvent{}, ErrClosed
		}
		select {
		case <-d.events.more:
		case <-d.done:
		case <-ctx.Done():
			return AsyncEvent{}, ctx.Err()
		}
	}
}

// event makes the function by which a queue pair reports its events.
func (q *QP) event(t transport.Event) {
	q.dev.events.push(AsyncEvent{Type: t, QP: q})
}
