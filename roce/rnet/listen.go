package rnet

import (
	"context"
	"net"
	"net/netip"

	"github.com/goroce/goroce/roce/rdmacm"
)

// backlog is how many connections a listener makes ahead of Accept.
const backlog = 128

// Listener is a net.Listener.
type Listener struct {
	cfg     Config
	network string
	addr    Addr
	cm      *rdmacm.Listener
	ctx     context.Context
	stop    context.CancelFunc
	slots   chan struct{} // as many as connections are being made, or wait for Accept
	ready   chan *Conn
}

// Listen is Config.Listen with the zero Config.
func Listen(network, address string) (*Listener, error) {
	return Config{}.Listen(context.Background(), network, address)
}

// Listen takes connections to an address of this host, "host:port", or without host to
// all that it has now. The port 0 is one that is free. network is as for Dial.
func (c Config) Listen(ctx context.Context, network, address string) (*Listener, error) {
	l, err := c.listen(ctx, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	return l, nil
}

func (c Config) listen(ctx context.Context, network, address string) (*Listener, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	at, err := resolve(ctx, "tcp", network, address)
	if err != nil {
		return nil, err
	}
	l := &Listener{cfg: c, network: network, slots: make(chan struct{}, backlog), ready: make(chan *Conn)}
	if l.cm, err = rdmacm.Listen(at.String(), rdmacm.ListenConfig{Device: c.Device}); err != nil {
		return nil, err
	}
	l.addr = Addr{l.cm.Addr()}
	if at.Addr().IsUnspecified() {
		l.addr = Addr{netip.AddrPortFrom(at.Addr(), l.cm.Addr().Port())}
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	go l.serve()
	return l, nil
}

// serve answers requests, several at a time: a peer that never confirms its connection
// keeps no other one waiting.
func (l *Listener) serve() {
	for {
		r, err := l.cm.Accept(l.ctx)
		if err != nil {
			l.stop() // it is closed, or the device is
			return
		}
		select {
		case l.slots <- struct{}{}:
			go l.answer(r)
		case <-l.ctx.Done():
			r.Reject(nil)
		}
	}
}

// answer makes the connection that is asked for, and keeps it for Accept.
func (l *Listener) answer(r *rdmacm.Request) {
	defer func() { <-l.slots }()
	c, err := l.cfg.accept(l.ctx, r)
	if err != nil {
		return // the peer is told, or has gone
	}
	select {
	case l.ready <- c:
	case <-l.ctx.Done():
		c.Close()
	}
}

// Accept makes a connection of a request to rdmacm, for programs that listen there. The
// request is refused if it is none of rsockets. Errors are those of
// rdmacm.Request.Accept, or a *roce.ConfigError for a field of c.
func (c Config) Accept(ctx context.Context, r *rdmacm.Request) (*Conn, error) {
	if err := c.fill(); err != nil {
		r.Reject(nil)
		return nil, err
	}
	return c.accept(ctx, r)
}

func (c Config) accept(ctx context.Context, r *rdmacm.Request) (*Conn, error) {
	peer, err := parseConnData(r.PrivateData())
	if err != nil {
		r.Reject(nil)
		return nil, err
	}
	// The connection below keeps the device.
	conn, err := newConn(r.Device(), func() {}, c)
	if err != nil {
		r.Reject(nil)
		return nil, err
	}
	cm, err := conn.connect(func(cfg rdmacm.Config) (*rdmacm.Conn, error) { return r.Accept(ctx, cfg) })
	if err != nil {
		return nil, err
	}
	conn.start(cm, peer, Addr{cm.LocalAddr()}, Addr{cm.RemoteAddr()})
	return conn, nil
}

// Accept waits for the next connection, a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptConn()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptConn is Accept.
func (l *Listener) AcceptConn() (*Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.ctx.Done():
		return nil, &net.OpError{Op: "accept", Net: l.network, Addr: l.addr, Err: net.ErrClosed}
	}
}

// Close ends listening. Connections that wait for Accept are closed, those that were
// accepted stay.
func (l *Listener) Close() error {
	l.stop()
	if err := l.cm.Close(); err != nil {
		return &net.OpError{Op: "close", Net: l.network, Addr: l.addr, Err: err}
	}
	return nil
}

// Addr returns the address that is listened at.
func (l *Listener) Addr() net.Addr { return l.addr }
