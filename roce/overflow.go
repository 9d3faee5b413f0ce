package roce

import (
	"sync"
	"sync/atomic"
	"time"
)

// fullCQs are completion queues that have overflowed. Its lock is a leaf.
type fullCQs struct {
	mu   sync.Mutex
	list []*CQ
	n    atomic.Int32
}

func (f *fullCQs) some() bool { return f.n.Load() > 0 }

func (f *fullCQs) add(c *CQ) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, c)
	f.n.Add(1)
}

// take returns one, or nil.
func (f *fullCQs) take() (c *CQ) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.list); n > 0 {
		c, f.list = f.list[n-1], f.list[:n-1]
		f.n.Add(-1)
	}
	return c
}

// overflowed notes that c lost a completion: its queue pairs and those of other
// engines will be in error. The lock is held, of this engine alone.
func (e *engine) overflowed(c *CQ) {
	c.dev.report(AsyncEvent{Type: EventCQErr, CQ: c})
	for _, o := range e.port.engines {
		o.full.add(c)
		if o != e {
			o.be.Wake()
		}
	}
}

// failOverflowed puts the queue pairs of overflowed queues into error. A shared
// receive queue of XRC is cut off instead: its targets serve others as well.
func (e *engine) failOverflowed(now time.Duration) {
	for e.full.some() {
		c := e.full.take()
		for _, q := range e.qps {
			if q.sendCQ == c || q.recvCQ == c {
				q.t.Modify(now, &Attr{State: StateErr}, MaskState) // always allowed
				e.touch(q)
			}
		}
		for _, s := range e.xrc.srqs {
			if s.cq == c {
				s.cutOff()
				s.dev.report(AsyncEvent{Type: EventSRQErr, SRQ: s})
			}
		}
	}
}
