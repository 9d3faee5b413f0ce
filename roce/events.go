package roce

import (
	"context"

	"github.com/goroce/goroce/transport"
)

// maxEvents is how many asynchronous events a device keeps for NextEvent.
const maxEvents = 4096

// AsyncEvent is an asynchronous event (ibv_async_event) and what it is about. One
// that is about none of these is about the device or its port, number 1.
type AsyncEvent struct {
	Type EventType
	QP   *QP  // the queue pair, or nil
	CQ   *CQ  // the completion queue, or nil
	SRQ  *SRQ // the shared receive queue, or nil
}

// report queues an asynchronous event. Any locks may be held.
func (d *Device) report(a AsyncEvent) {
	d.recent.add(a)
	d.noteEvent(a)
	if !d.events.push(a, maxEvents) {
		d.port.first().count(dropEvent)
	}
}

// NextEvent waits for the next asynchronous event (ibv_get_async_event). It
// returns the error of ctx when that ends, and ErrClosed when the device is
// closed and no event is left; an event that is there is returned in any case, so
// with a ctx that has ended NextEvent only looks. Events that nobody fetches are
// kept up to a bound, then counted as drop_event.
func (d *Device) NextEvent(ctx context.Context) (AsyncEvent, error) {
	return d.events.next(ctx, d.done, nil)
}

// EventFD returns a descriptor that is readable while NextEvent has an event
// (async_fd of ibv_context), for programs with a poll loop of their own; on Linux
// only, elsewhere the error is errors.ErrUnsupported. It may be watched, but is
// not to be read, written or closed: Close closes it.
func (d *Device) EventFD() (int, error) { return d.events.fd() }

// event is how a queue pair reports its events, one of XRCRecv to all who have it
// open.
func (q *QP) event(t transport.Event) {
	if t == EventCommEst {
		select {
		case q.commEst <- struct{}{}:
		default:
		}
	}
	if q.typ != XRCRecv {
		q.dev.report(AsyncEvent{Type: t, QP: q})
		return
	}
	for _, o := range q.opens {
		o.dev.report(AsyncEvent{Type: t, QP: o})
	}
}
