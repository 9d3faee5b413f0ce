package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/transport/cm"
)

// ListenConfig says how requests are taken. Its zero value works.
type ListenConfig struct {
	// PortSpace is that of the port; 0 means TCP.
	PortSpace PortSpace
	// Device is where requests come in. Nil means the devices of the addresses that
	// are listened on, which connections of this process share.
	Device *roce.Device
	// Backlog is how many requests of each address may wait to be answered; of
	// more, the oldest are forgotten, and their senders ask again. 0 means 1024.
	Backlog int
	// Events, if set, is told of each request, as with Config.Events.
	Events chan<- Event
}

// Listener takes requests for connections to a port (rdma_listen).
type Listener struct {
	cfg      ListenConfig
	port     uint16
	bindings []*binding
	done     chan struct{}
	more     chan struct{} // one token: there is a request

	mu     sync.Mutex
	queue  []*Request
	lost   int // bindings whose ports are closed
	closed bool
}

// binding is a listener's place at one address.
type binding struct {
	l       *Listener
	m       *manager
	dev     *roce.Device
	release func()
}

// Listen listens at addr, "host:port". Without a host, or with the address ::, it
// listens at all addresses that this host has now, with 0.0.0.0 at those of IPv4;
// addresses that another process has a device on are left out (Addrs says which
// there are). Port 0 means one that is free.
//
// Errors: a *roce.ConfigError for a field of cfg, a *netio.ListenError for an
// address, ErrAddrInUse.
func Listen(addr string, cfg ListenConfig) (*Listener, error) {
	if cfg.PortSpace == 0 {
		cfg.PortSpace = TCP
	}
	if cfg.PortSpace != TCP && cfg.PortSpace != UDP && cfg.PortSpace != IB {
		return nil, &roce.ConfigError{Field: "PortSpace", Value: cfg.PortSpace, Allowed: "allowed are TCP, UDP and IB"}
	}
	at, err := resolve(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	l := &Listener{cfg: cfg, done: make(chan struct{}), more: make(chan struct{}, 1)}
	if err := l.open(at[0].Addr()); err != nil {
		return nil, err
	}
	if err := l.bind(at[0].Port()); err != nil {
		l.release()
		return nil, err
	}
	return l, nil
}

// open opens the devices.
func (l *Listener) open(host netip.Addr) error {
	addrs := []netip.Addr{host}
	switch {
	case l.cfg.Device != nil:
		if concrete(host) && host != l.cfg.Device.Addr() {
			return &roce.ConfigError{Field: "addr", Value: host, Allowed: fmt.Sprintf("the device has the address %v", l.cfg.Device.Addr())}
		}
		return l.add(l.cfg.Device, func() {})
	case !concrete(host):
		all, err := netio.LocalAddrs()
		if err != nil {
			return err
		}
		addrs = slices.DeleteFunc(all, func(a netip.Addr) bool { return host.Is4() && !a.Is4() })
	}
	var first error
	for _, a := range addrs {
		dev, release, err := OpenDevice(a, a)
		if err == nil {
			err = l.add(dev, release)
		}
		if err != nil && first == nil {
			first = err
		}
	}
	if len(l.bindings) == 0 {
		if first == nil {
			first = fmt.Errorf("rdmacm: this host has no address to listen at")
		}
		return first
	}
	return nil
}

func (l *Listener) add(dev *roce.Device, release func()) error {
	m, err := managerOf(dev)
	if err != nil {
		release()
		return err
	}
	l.bindings = append(l.bindings, &binding{l: l, m: m, dev: dev, release: release})
	return nil
}

// bind takes the port at all addresses; a port of 0 is replaced by a free one.
func (l *Listener) bind(port uint16) error {
	const tries = 1000
	for range tries {
		l.port = port
		if port == 0 {
			l.port = ephemeral()
		}
		err := l.bindAll()
		if err == nil || port != 0 || !errors.Is(err, ErrAddrInUse) {
			return err
		}
	}
	return ErrAddrInUse
}

// bindAll takes the port at all addresses, or at none.
func (l *Listener) bindAll() error {
	service := l.cfg.PortSpace.ServiceID(l.port)
	for i, b := range l.bindings {
		err := b.m.do(func(a *cm.Agent, _ time.Duration) error {
			err := a.Listen(cm.Listener{Service: service, Backlog: l.cfg.Backlog, Context: b})
			if err == nil {
				b.m.bound[b] = struct{}{}
			}
			return err
		})
		if err == nil {
			continue
		}
		for _, b := range l.bindings[:i] {
			b.unbind()
		}
		if errors.Is(err, cm.ErrInUse) {
			err = ErrAddrInUse
		}
		return err
	}
	return nil
}

// unbind gives the port back. Its requests are rejected.
func (b *binding) unbind() {
	b.m.do(func(a *cm.Agent, now time.Duration) error { // it fails on a closed port only
		delete(b.m.bound, b)
		a.Unlisten(now, b.l.cfg.PortSpace.ServiceID(b.l.port), 0)
		for id, o := range b.m.owners {
			if r, ok := o.(*Request); ok && r.b == b {
				delete(b.m.owners, id)
			}
		}
		return nil
	})
}

func (l *Listener) release() {
	for _, b := range l.bindings {
		b.release()
	}
}

// Addr returns the first address and the port.
func (l *Listener) Addr() netip.AddrPort { return l.Addrs()[0] }

// Addrs returns the addresses that are listened at.
func (l *Listener) Addrs() []netip.AddrPort {
	var list []netip.AddrPort
	for _, b := range l.bindings {
		list = append(list, netip.AddrPortFrom(b.dev.Addr(), l.port))
	}
	return list
}

// Accept waits for the next request. It returns the error of ctx when that ends,
// and ErrClosed after Close. The request has to be answered: Request.Accept or
// Request.Reject.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	for {
		if r, err := l.next(); r != nil || err != nil {
			return r, err
		}
		select {
		case <-l.more:
		case <-l.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// next returns the first request in the queue.
func (l *Listener) next() (*Request, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	if len(l.queue) == 0 {
		return nil, nil
	}
	r := l.queue[0]
	l.queue = l.queue[1:]
	if len(l.queue) > 0 {
		l.wake() // another one who waits
	}
	return r, nil
}

func (l *Listener) wake() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// request takes a request of the port's manager.
func (b *binding) request(ev *cm.Event) {
	l := b.l
	r := newRequest(b, ev)
	if r == nil {
		return
	}
	b.m.mu.Lock()
	if !b.m.dead {
		b.m.own(ev.ID, r)
	}
	b.m.mu.Unlock()
	tell(l.cfg.Events, Event{Type: EventConnectRequest, Request: r, PrivateData: r.private})
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.queue = append(l.queue, r)
		l.wake()
	}
}

// forget takes a request out of the queue.
func (l *Listener) forget(r *Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.queue, r); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
}

// portClosed hears that a port is closed; with the last one listening ends.
func (l *Listener) portClosed() {
	l.mu.Lock()
	l.lost++
	last := l.lost == len(l.bindings)
	l.mu.Unlock()
	if last {
		l.Close() // if it is not yet
	}
}

// Close ends listening. Requests that wait to be answered are rejected;
// connections stay.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	l.closed, l.queue = true, nil
	l.mu.Unlock()
	close(l.done)
	for _, b := range l.bindings {
		b.unbind()
	}
	l.release()
	return nil
}
