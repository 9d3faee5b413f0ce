package rnet

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/goroce/goroce/roce"
)

// link is the connection below, a *rdmacm.Conn: it owns the queue pair.
type link interface {
	Disconnect(ctx context.Context, private []byte) error
	Shutdown(context.Context) error
	Done() <-chan struct{}
}

// Conn is a connection. It is a net.Conn and an io.WriterAt.
type Conn struct {
	core
	cfg  Config
	link link

	reading, writing sync.Mutex // one Read, one Write at a time; taken before the core's mutex

	// Under the core's mutex:
	s             *stream
	offered       []*roce.MR // memory of ours that is mapped, by entry of the peer's table
	linger        *time.Timer
	keep          *time.Timer // or nil
	keepAliveTime time.Duration
}

// newConn makes the part of a connection that is there before the queue pair. release
// is called when the device is not needed any more. cfg is filled.
func newConn(dev *roce.Device, release func(), cfg Config) (c *Conn, err error) {
	c = &Conn{cfg: cfg, keepAliveTime: keepAliveDefault}
	defer func() {
		if err != nil {
			c.free()
		}
	}()
	if err = c.init(dev, release, cfg.SendQueue+cfg.RecvQueue+ctrlSlots, c); err != nil {
		return nil, err
	}
	private, err := c.register(cfg.SendBuffer, 0)
	if err != nil {
		return nil, err
	}
	shared, err := c.register(sharedSize(&cfg), roce.LocalWrite|roce.RemoteWrite)
	if err != nil {
		return nil, err
	}
	c.s = newStream(&cfg, regionOf(private), regionOf(shared))
	return c, nil
}

// regionOf returns what stream has to know of a registered region.
func regionOf(m *roce.MR) region { return region{buf: m.Bytes(), addr: m.Addr(), key: m.RKey()} }

// qpConfig is what the queue pair is made of.
func (c *Conn) qpConfig() roce.QPConfig {
	return roce.QPConfig{
		SendCQ: c.cq, MaxSendWR: c.cfg.SendQueue, MaxRecvWR: c.cfg.RecvQueue + ctrlSlots,
		MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: inline, SigAll: true,
	}
}

// start begins with what the peer has told. The queue pair is connected.
func (c *Conn) start(l link, peer connData, local, remote net.Addr) {
	c.link, c.local, c.remote = l, local, remote
	c.offered = make([]*roce.MR, peer.maps)
	c.mu.Lock()
	c.s.start(peer)
	c.mu.Unlock()
	go func() {
		c.pump()
		c.end()
	}()
	go func() {
		select {
		case <-l.Done():
			c.lose(syscall.ECONNRESET)
		case <-c.ended:
		}
	}()
}

// The stream is what the completions are for.
func (c *Conn) complete(wc *roce.WC) { c.s.complete(wc) }
func (c *Conn) settle()              { c.s.settle() }
func (c *Conn) fail(err error)       { c.s.fail(err) }
func (c *Conn) idle() bool           { return c.s.idle() }

// end gives back what the connection had. Whoever has said goodbye disconnects; one who
// only got the peer's waits a while for that, so that its last acknowledgement can be
// repeated.
func (c *Conn) end() {
	c.mu.Lock()
	c.linger.Stop()
	said := c.s.said
	for _, mr := range c.offered {
		if mr != nil {
			c.regions = append(c.regions, mr)
		}
	}
	c.offered = nil
	c.mu.Unlock()
	// Both end, at the latest when the peer does not answer. What they say was to be
	// expected of a connection that is over.
	if said {
		c.link.Disconnect(context.Background(), nil)
	}
	c.link.Shutdown(context.Background())
	c.free()
	close(c.ended)
}

// Read reads what has arrived, waiting for the first byte. After the last one it
// returns io.EOF if the peer has ended its side, or why the connection failed.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.await(&c.readBy, c.s.readable); err != nil {
		return 0, c.opError("read", err)
	}
	n, err := c.s.read(p)
	return n, c.opError("read", err)
}

// Write writes all of p, waiting for the peer to read as far as that is needed. It
// returns when the last byte is in the send buffer.
func (c *Conn) Write(p []byte) (int, error) {
	return c.writeAll(p, func(p []byte) (int, error) { return c.s.write(p), nil }, c.s.writable)
}

// writeAll gives p to put, which takes some of it when ready says so.
func (c *Conn) writeAll(p []byte, put func([]byte) (int, error), ready func(int) bool) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		err = c.await(&c.writeBy, func() bool { return c.s.sendEnd || c.s.gone || n == len(p) || ready(len(p)-n) })
		switch {
		case err != nil:
		case c.s.sendEnd || c.s.gone:
			err = c.s.lost()
		case n < len(p):
			var m int
			m, err = put(p[n:])
			n += m
		}
		if err != nil || n == len(p) {
			return n, c.opError("write", err)
		}
	}
}

// CloseWrite ends what we send: the peer's Read returns io.EOF behind it.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.opError("close", net.ErrClosed)
	case c.s.err != nil:
		return c.opError("close", c.s.err)
	}
	c.s.closeWrite()
	c.changed() // a Write that waits ends
	return nil
}

// Close ends the connection, and every method that waits. What was written is
// delivered in the background, as long as the peer takes it and Config.Linger has
// not passed.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.shut(); err != nil {
		return err
	}
	c.setKeepAlive(0)
	c.s.close()
	c.linger = time.AfterFunc(c.cfg.Linger, c.stop)
	if c.s.idle() {
		c.stop()
	}
	return nil
}

// Shutdown is Close, if that has not been called, and waits until the peer has what
// was written and nothing is left of the connection, or ctx ends: programs that end
// call it.
func (c *Conn) Shutdown(ctx context.Context) error {
	c.Close() // twice does not matter
	return c.wait(ctx)
}
