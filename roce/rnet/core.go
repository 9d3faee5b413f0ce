package rnet

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/goroce/goroce/roce"
)

// core is what connections of both kinds share: a completion queue with those who
// wait for it, and the ways to make them stop. Its mutex guards the connection too.
type core struct {
	local, remote net.Addr
	release       func() // gives the device back
	pd            *roce.PD
	regions       []*roce.MR
	ch            *roce.CompChannel
	cq            *roce.CQ
	user          user
	ctx           context.Context // ends the pump
	stop          context.CancelFunc
	ended         chan struct{} // closed when nothing is left of the connection

	mu              sync.Mutex
	wake            *sync.Cond // something has changed that somebody may wait for
	watch           func()     // is told of that, or nil
	wc              [16]roce.WC
	closed          bool
	readBy, writeBy deadline
}

// user is what the completions are for. The mutex is held in all calls.
type user interface {
	complete(*roce.WC)
	settle()    // after some completions
	fail(error) // none will come any more
	idle() bool // after Close none is waited for
}

// init makes a protection domain and a completion queue of n entries. release is
// called when the device is not needed any more, which free does in any case.
func (c *core) init(dev *roce.Device, release func(), n int, u user) (err error) {
	c.release, c.user = release, u
	c.wake, c.ended = sync.NewCond(&c.mu), make(chan struct{})
	c.ctx, c.stop = context.WithCancel(context.Background())
	if c.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if c.ch, err = dev.CreateCompChannel(); err != nil {
		return err
	}
	c.cq, err = dev.CreateCQ(n, roce.OnChannel(c.ch))
	return err
}

// register makes a region of n bytes.
func (c *core) register(n int, access roce.Access) (*roce.MR, error) {
	mr, err := c.pd.RegisterMR(make([]byte, n), access)
	if err == nil {
		c.regions = append(c.regions, mr)
	}
	return mr, err
}

// free gives everything back; the queue pair is destroyed. What fails fails because the
// device is closed, which has done the same.
func (c *core) free() {
	c.stop()
	for _, m := range c.regions {
		m.Deregister()
	}
	if c.cq != nil {
		c.cq.Destroy()
	}
	if c.ch != nil {
		c.ch.Destroy()
	}
	if c.pd != nil {
		c.pd.Dealloc()
	}
	c.release()
}

// pump takes completions while nobody else does, so that the peer gets its credits,
// and what is written arrives after Close, with which it ends.
func (c *core) pump() {
	for {
		c.cq.ReqNotify(false) // fails when nothing more can come, which GetEvent says
		c.mu.Lock()
		more := c.poll()
		over := c.closed && c.user.idle()
		c.mu.Unlock()
		switch {
		case over:
			return
		case more:
			continue
		}
		if _, err := c.ch.GetEvent(c.ctx); err != nil {
			c.lose(net.ErrClosed) // the device is closed, or Close has waited long enough
			<-c.ctx.Done()
			return
		}
		c.cq.AckEvents(1)
	}
}

// lose takes what has arrived, and notes that nothing more will.
func (c *core) lose(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.poll() {
	}
	c.user.fail(err)
	c.changed()
	if c.closed {
		c.stop()
	}
}

// poll takes some completions and says whether there may be more.
func (c *core) poll() (more bool) {
	n, err := c.cq.Poll(c.wc[:])
	if err != nil {
		c.user.fail(err)
	}
	for i := range c.wc[:n] {
		c.user.complete(&c.wc[i])
	}
	if n > 0 || err != nil {
		c.user.settle()
		c.changed()
	}
	return n > 0
}

// changed tells who waits. The mutex is held.
func (c *core) changed() {
	c.wake.Broadcast()
	if c.watch != nil {
		c.watch()
	}
}

// spin is how long one who waits polls before it sleeps, as CQ.Wait does.
const spin = 50 * time.Microsecond

// await waits until ready says so, the deadline passes or the connection is closed.
// The mutex is held.
func (c *core) await(d *deadline, ready func() bool) error {
	var start time.Time
	for {
		switch {
		case c.closed:
			return net.ErrClosed
		case d.passed:
			return os.ErrDeadlineExceeded
		case ready():
			return nil
		}
		if c.poll() {
			continue
		}
		if start.IsZero() {
			start = time.Now()
		}
		if time.Since(start) < spin {
			c.mu.Unlock() // let others in
			c.mu.Lock()
			continue
		}
		c.wake.Wait()
	}
}

// shut is what every Close begins with. The mutex is held.
func (c *core) shut() error {
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	for _, d := range []*deadline{&c.readBy, &c.writeBy} {
		d.set(time.Time{}, c.wake)
	}
	return nil
}

// wait waits until nothing is left of the connection, or ctx ends.
func (c *core) wait(ctx context.Context) error {
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return c.opError("close", ctx.Err())
	}
}

// opError is err as package net tells it.
func (c *core) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: c.local.Network(), Source: c.local, Addr: c.remote, Err: err}
}

// LocalAddr returns our address.
func (c *core) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the peer's address.
func (c *core) RemoteAddr() net.Addr { return c.remote }

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (c *core) SetDeadline(t time.Time) error { return c.setDeadline(t, &c.readBy, &c.writeBy) }

// SetReadDeadline is when reading stops waiting, with os.ErrDeadlineExceeded.
func (c *core) SetReadDeadline(t time.Time) error { return c.setDeadline(t, &c.readBy) }

// SetWriteDeadline is when writing, and Map, stop waiting, with
// os.ErrDeadlineExceeded.
func (c *core) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, &c.writeBy) }

func (c *core) setDeadline(t time.Time, which ...*deadline) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range which {
		d.set(t, c.wake)
	}
	return nil
}
