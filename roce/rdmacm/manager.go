package rdmacm

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/transport/cm"
)

// maxQueue is how many events may wait to be handled before datagrams have to.
const maxQueue = 4096

// manager is the connection manager of a port: an agent of package cm with a lock
// and a clock, and the goroutine that handles its events. Devices on one address
// share it.
//
// Lock order: conn or listener, manager, engine. Events are handled without the
// manager's lock.
type manager struct {
	gsi    *roce.GSI
	start  time.Time
	maxIDs int           // of the agent
	bell   chan struct{} // one token: the queue is not empty

	mu     sync.Mutex
	agent  *cm.Agent
	owners map[cm.ID]owner
	bound  map[*binding]struct{} // listeners of the port
	queue  []cm.Event
	room   sync.Cond // the queue has been taken
	timer  *time.Timer
	due    time.Duration // when the timer fires
	dead   bool
}

// owner is who wants to know what happens to an id of the agent.
type owner interface {
	// handle is called by the manager's goroutine without locks.
	handle(ev *cm.Event)
	// portClosed says that nothing will happen any more.
	portClosed()
}

// noDeadline is that of an agent that waits for nothing.
const noDeadline = time.Duration(math.MaxInt64)

// managers are those of this process.
var managers = struct {
	sync.Mutex
	byGSI map[*roce.GSI]*manager
}{byGSI: map[*roce.GSI]*manager{}}

// managerOf returns the manager of a device's port.
func managerOf(d *roce.Device) (*manager, error) {
	gsi, err := d.GSI()
	if err != nil {
		return nil, err
	}
	managers.Lock()
	defer managers.Unlock()
	if m := managers.byGSI[gsi]; m != nil {
		return m, nil
	}
	m := &manager{gsi: gsi, start: time.Now(), bell: make(chan struct{}, 1), owners: map[cm.ID]owner{}, bound: map[*binding]struct{}{}, due: noDeadline}
	m.room.L = &m.mu
	limits := d.Query()
	m.maxIDs = limits.MaxCMID
	m.agent, err = cm.New(cm.Config{
		MaxIDs: limits.MaxCMID, MaxHalfOpen: limits.MaxCMHalfOpen, MaxTimeWait: limits.MaxCMTimeWait,
		Addr: d.Addr().WithZone(""), GUID: gsi.GUID(), Rand: rand.Uint32, Counters: &counters,
		Send: func(to netip.Addr, b []byte) {
			// What finds no room is counted there, and sent again like all that
			// is lost.
			gsi.Send(roce.MADAddr{Addr: to}, b)
		},
		Event: func(ev cm.Event) { m.queue = append(m.queue, ev) },
	})
	if err != nil {
		return nil, err
	}
	m.timer = time.AfterFunc(noDeadline, m.expire)
	if err := gsi.Handle(mad.ClassCM, m.receive); err != nil {
		return nil, err
	}
	managers.byGSI[gsi] = m
	go m.serve()
	return m, nil
}

func (m *manager) now() time.Duration { return time.Since(m.start) }

// receive takes a datagram. It waits while many events are not handled yet: what
// comes meanwhile waits in the queue pair, and is dropped there if it is too much.
func (m *manager) receive(from roce.MADAddr, b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.queue) >= maxQueue && !m.dead {
		m.room.Wait()
	}
	if m.dead {
		return
	}
	m.agent.Receive(m.now(), from.Addr, b)
	m.settle()
}

// expire does what is due.
func (m *manager) expire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return
	}
	m.due = noDeadline // the timer has fired
	m.agent.Expire(m.now())
	m.settle()
}

// do runs a command of the agent.
func (m *manager) do(command func(a *cm.Agent, now time.Duration) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return ErrClosed
	}
	err := command(m.agent, m.now())
	m.settle()
	return err
}

// settle sets the timer and wakes the goroutine after the agent has worked.
func (m *manager) settle() {
	if d := m.agent.Deadline(); d != m.due {
		m.due = d
		if d == noDeadline {
			m.timer.Stop()
		} else {
			m.timer.Reset(max(d-m.now(), 0))
		}
	}
	if len(m.queue) > 0 {
		select {
		case m.bell <- struct{}{}:
		default:
		}
	}
}

// serve handles events until the port is closed.
func (m *manager) serve() {
	var events []cm.Event
	for {
		select {
		case <-m.bell:
		case <-m.gsi.Done():
			m.end()
			return
		}
		m.mu.Lock()
		events, m.queue = m.queue, events[:0]
		m.room.Broadcast()
		m.mu.Unlock()
		for i := range events {
			m.hand(&events[i])
		}
		clear(events)
	}
}

// hand hands an event to the owner of its id. A request has none yet.
func (m *manager) hand(ev *cm.Event) {
	m.mu.Lock()
	o := m.owners[ev.ID]
	if ev.Gone {
		delete(m.owners, ev.ID)
	}
	m.mu.Unlock()
	switch {
	case ev.Kind == cm.EventREQ || ev.Kind == cm.EventSIDRREQ:
		ev.Context.(*binding).request(ev)
	case o != nil:
		o.handle(ev)
	}
}

// own makes o the owner of an id. The lock is held.
func (m *manager) own(id cm.ID, o owner) { m.owners[id] = o }

// end tells everybody that the port is closed.
func (m *manager) end() {
	managers.Lock()
	delete(managers.byGSI, m.gsi)
	managers.Unlock()
	m.mu.Lock()
	m.dead = true
	m.timer.Stop()
	owners, bound := m.owners, m.bound
	m.owners, m.bound, m.queue = nil, nil, nil
	m.room.Broadcast()
	m.mu.Unlock()
	for _, o := range owners {
		o.portClosed()
	}
	for b := range bound {
		b.l.portClosed()
	}
}
