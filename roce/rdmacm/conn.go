package rdmacm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/transport/cm"
)

// Conn is a queue pair with a way to its peer (rdma_cm_id).
type Conn struct {
	m       *manager
	dev     *roce.Device
	release func() // gives the device back
	cfg     Config
	local   netip.AddrPort
	remote  netip.AddrPort
	pd      *roce.PD
	qp      *roce.QP // nil with Config.QPN
	qpn     ib.QPN   // of the queue pair
	psn     ib.PSN   // which the peer begins with
	cq      *roce.CQ // of our own, or nil
	began   time.Time

	ready chan struct{} // closed when it is established, or never will be
	done  chan struct{} // closed when it has ended, or never was
	freed chan struct{} // closed when nothing is left of it

	mu      sync.Mutex
	state   connState
	id      cm.ID
	known   bool // the agent knows the id
	closing bool // Close has been called
	err     error
	params  Params
	private []byte
	ah      *roce.AH // UDP: of the peer
	destQPN ib.QPN
	theirs  ib.PSN     // which we begin with
	early   bool       // the queue pair was in RTS before the peer was answered
	qkey    uint32     // UDP
	group   netip.Addr // joined, or the zero value
}

// connState is how far a connection is.
type connState uint8

const (
	connecting connState = iota
	answered             // the peer has, and waits for Establish
	established
	disconnecting // a DREQ is on its way
	ended
)

// newConn makes a queue pair in INIT for a connection; cfg is filled.
func newConn(dev *roce.Device, release func(), cfg Config, local, remote netip.AddrPort) (c *Conn, err error) {
	c = &Conn{
		dev: dev, release: release, cfg: cfg, local: local, remote: remote, began: time.Now(),
		ready: make(chan struct{}), done: make(chan struct{}), freed: make(chan struct{}), qkey: cfg.QKey,
	}
	if c.m, err = managerOf(dev); err == nil {
		err = c.makeQP()
	}
	if err == nil && cfg.Prepare != nil {
		err = cfg.Prepare(c)
	}
	if err != nil {
		c.free()
		return nil, err
	}
	return c, nil
}

// makeQP takes the queue pair that is given, or makes one.
func (c *Conn) makeQP() (err error) {
	if c.qpn = c.cfg.QPN; c.qpn != 0 {
		c.psn = randomPSN()
		return nil
	}
	if c.qp = c.cfg.UseQP; c.qp == nil {
		err = c.newQP()
	}
	if err == nil {
		c.qpn, c.psn = c.qp.Num(), c.qp.PSN()
	}
	return err
}

// newQP makes a queue pair in INIT, or of datagrams in RTS, and what it needs.
func (c *Conn) newQP() (err error) {
	if c.pd = c.cfg.PD; c.pd == nil {
		if c.pd, err = c.dev.AllocPD(); err != nil {
			return err
		}
	}
	q := c.cfg.QP
	if q.SendCQ == nil {
		room := func(n int) int { return cmp.Or(n, 128) } // as the queues of the queue pair
		if c.cq, err = c.dev.CreateCQ(room(q.MaxSendWR) + room(q.MaxRecvWR)); err != nil {
			return err
		}
		q.SendCQ = c.cq
	}
	if c.qp, err = c.pd.CreateQP(q); err != nil {
		return err
	}
	if q.Type == roce.UD {
		return c.qp.Activate(c.qkey)
	}
	return c.qp.Init(c.cfg.Access)
}

// QP returns the queue pair, which belongs to the connection: Close destroys it. It is
// nil with Config.QPN.
func (c *Conn) QP() *roce.QP { return c.qp }

// PD returns the protection domain: that of Config, or one of the connection's
// own; nil with Config.UseQP and without Config.PD.
func (c *Conn) PD() *roce.PD { return c.pd }

// CQ returns the completion queue of the connection's own; nil with
// Config.QP.SendCQ and Config.UseQP.
func (c *Conn) CQ() *roce.CQ { return c.cq }

// Device returns the device.
func (c *Conn) Device() *roce.Device { return c.dev }

// LocalAddr returns our address and port.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr returns the peer's address and port, or those of the multicast group.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// PrivateData returns what the peer's program has sent: with its request, or with
// its answer to ours. There are zeros behind it.
func (c *Conn) PrivateData() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.private
}

// Params returns the parameters as agreed.
func (c *Conn) Params() Params {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.params
}

// AH returns the address handle of the peer (port space UDP, after Dial and
// JoinMulticast); nil otherwise.
func (c *Conn) AH() *roce.AH {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ah
}

// RemoteQPN returns the peer's queue pair number.
func (c *Conn) RemoteQPN() ib.QPN {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.destQPN
}

// QKey returns the Q_Key of datagrams to the peer (port space UDP).
func (c *Conn) QKey() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.qkey
}

// Done is closed when the connection has ended, whoever has ended it: its queue
// pair is in the error state then.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err says why the connection has ended: ErrDisconnected when the peer has
// disconnected, ErrClosed after Disconnect and Close, or why it never was. It is
// nil before.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// tell hands an event to who wants it.
func (c *Conn) tell(t EventType, err error, private []byte) {
	tell(c.cfg.Events, Event{Type: t, Conn: c, Err: err, PrivateData: private})
	c.note(t, err)
}

// do runs a command of the agent for the connection's id.
func (c *Conn) do(command func(a *cm.Agent, now time.Duration, id cm.ID) error) error {
	return c.m.do(func(a *cm.Agent, now time.Duration) error { return command(a, now, c.id) })
}

// handle follows the connection.
func (c *Conn) handle(ev *cm.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ev.Gone {
		c.known = false
	}
	switch ev.Kind {
	case cm.EventREP:
		c.replied(ev)
	case cm.EventSIDRREP:
		c.resolved(ev)
	case cm.EventEstablished:
		c.establish(nil, ev.Private)
	case cm.EventRejected:
		c.rejected(&RejectedError{Addr: c.remote, Reason: ev.REJ.Reason, ARI: ev.REJ.ARI, PrivateData: ev.REJ.PrivateData})
	case cm.EventUnreachable:
		if ev.Gone {
			err := &UnreachableError{Addr: c.remote, After: time.Since(c.began), What: ev.Attr}
			c.tell(EventUnreachable, err, nil)
			c.end(err)
		}
	case cm.EventDropped:
		c.end(ErrGone)
	case cm.EventDisconnected:
		c.disconnected(ev)
	case cm.EventTimeWaitExit:
		c.tell(EventTimewaitExit, nil, nil)
	}
	c.settle()
}

// rejected ends the attempt.
func (c *Conn) rejected(err *RejectedError) {
	c.tell(EventRejected, err, err.PrivateData)
	c.end(err)
}

// disconnected ends the connection: the peer has asked for it, or has answered us.
func (c *Conn) disconnected(ev *cm.Event) {
	err := ErrClosed
	if c.state != disconnecting {
		err = ErrDisconnected
	}
	c.tell(EventDisconnected, nil, ev.Private)
	c.end(err)
}

// conn returns how the queue pair is connected.
func (c *Conn) conn() roce.Conn {
	count := func(n int) int {
		if n == 0 {
			return -1
		}
		return n
	}
	p := &c.params
	timeout := p.AckTimeout
	if timeout == 0 {
		timeout = -1
	}
	return roce.Conn{
		Access: c.cfg.Access, PathMTU: p.PathMTU, MaxDestRdAtomic: count(p.ResponderResources), MaxRdAtomic: count(p.InitiatorDepth),
		MinRNRTimer: c.cfg.MinRNRTimer, AckTimeout: timeout, RetryCount: count(p.RetryCount), RNRRetry: count(p.RNRRetryCount),
		TrafficClass: p.TrafficClass,
	}
}

// establish makes the connection established: the queue pair is in RTR.
// confirm, if not nil, tells the peer.
func (c *Conn) establish(confirm func() error, private []byte) {
	if c.state != connecting {
		return
	}
	err := c.rts()
	if err == nil && confirm != nil {
		err = confirm()
	}
	if err != nil {
		c.abandon(err)
		return
	}
	c.state = established
	close(c.ready)
	c.tell(EventEstablished, nil, private)
}

// rts brings the queue pair to RTS if that is not the program's business, or leaves it
// in the error state: a peer that begins
// to send before its RTU has come may have ended it already. The peer has a connection
// then, which the program learns from, and ends, as it would a moment later.
func (c *Conn) rts() error {
	if c.qp == nil || c.early {
		return nil
	}
	err := c.qp.RTS(c.conn())
	if err != nil && !errors.Is(err, ErrClosed) && c.qp.State() == roce.StateErr {
		return nil
	}
	return err
}

// abandon gives up an attempt; the peer is told.
func (c *Conn) abandon(err error) {
	if c.state != connecting && c.state != answered {
		return
	}
	c.do(func(a *cm.Agent, now time.Duration, id cm.ID) error {
		a.Cancel(now, id) // if it still is one
		c.known = a.State(id) != cm.StateNone
		return nil
	})
	c.tell(EventConnectError, err, nil)
	c.end(err)
}

// end puts the queue pair into the error state, so that all requests complete, and
// wakes all who wait.
func (c *Conn) end(err error) {
	if c.state == ended {
		return
	}
	if c.state == connecting {
		close(c.ready)
	}
	c.state, c.err = ended, err
	if c.qp != nil && c.cfg.UseQP == nil {
		c.qp.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState) // it fails on a closed device only
	}
	close(c.done)
}

// portClosed ends the connection with its port.
func (c *Conn) portClosed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = false
	c.tell(EventDeviceRemoval, nil, nil)
	c.end(ErrClosed)
	c.settle()
}

// Disconnect ends the connection (rdma_disconnect): the peer is told, with private
// data. It returns when the peer has answered, or could not be reached, or ctx
// ends; the queue pair is in the error state then. What the peer has sent and not
// seen acknowledged may be repeated before, not after: Close waits for that.
func (c *Conn) Disconnect(ctx context.Context, private []byte) error {
	if err := c.ask(private); err != nil {
		return err
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ask sends a DREQ.
func (c *Conn) ask(private []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.state == ended:
		return c.err
	case c.state == connecting || c.state == answered:
		return fmt.Errorf("rdmacm: the connection is not established")
	case c.cfg.PortSpace == UDP:
		c.end(ErrClosed)
		return nil
	}
	err := c.do(func(a *cm.Agent, now time.Duration, id cm.ID) error {
		err := a.Disconnect(now, id, private)
		c.known = a.State(id) != cm.StateNone
		return err
	})
	if err != nil {
		return err
	}
	c.state = disconnecting
	return nil
}

// Close ends the connection and frees what belongs to it: queue pair, completion
// queue, protection domain, device. It returns at once; until the peer has been
// told, and for the time-wait after it, the queue pair stays and answers what the
// peer repeats (Config.Linger). Shutdown waits for all that. With a negative Linger
// the peer has been sent the message that tells it when Close returns.
func (c *Conn) Close() error {
	if lingers, err := c.closes(); lingers || err != nil {
		return err
	}
	c.leave()
	return nil
}

// closes begins Close, and says whether its end comes later.
func (c *Conn) closes() (lingers bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return false, ErrClosed
	}
	c.closing = true
	if c.state == established && (c.qp == nil || c.qp.State() == roce.StateRTS) {
		if linger := c.cfg.linger(c.params.AckTimeout); linger > 0 {
			time.AfterFunc(linger, c.leave)
			return true, nil
		}
	}
	return false, nil
}

// leave is the end of Close.
func (c *Conn) leave() {
	err := c.ask(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandon(ErrClosed)
	if err != nil {
		c.end(ErrClosed) // there is nobody to be asked
	}
	c.settle()
}

// Shutdown is Close that waits until nothing is left of the connection, or ctx
// ends: programs that end call it, so that the peer learns of it.
func (c *Conn) Shutdown(ctx context.Context) error {
	c.Close() // twice does not matter
	select {
	case <-c.freed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle frees what is no longer needed. The lock is held.
func (c *Conn) settle() {
	if c.closing && c.state == ended && !c.known {
		c.free()
	}
}

// free frees what belongs to the connection.
func (c *Conn) free() {
	select {
	case <-c.freed:
		return
	default:
	}
	if c.group.IsValid() {
		c.qp.DetachMulticast(c.group)
	}
	// Each of these fails only on a closed device, or because the program still
	// uses the object: then it is the program's.
	if c.ah != nil {
		c.ah.Destroy()
	}
	if c.qp != nil && c.cfg.UseQP == nil {
		c.qp.Destroy()
	}
	if c.cq != nil {
		c.cq.Destroy()
	}
	if c.pd != nil && c.cfg.PD == nil {
		c.pd.Dealloc()
	}
	c.release()
	close(c.freed)
}

// Wait waits until the connection is established, and gives it up when ctx ends
// before. The error, after which there is no connection, is as that of Dial. Who has
// the connection from Dial or Accept has waited.
func (c *Conn) Wait(ctx context.Context) error {
	for waiting := true; waiting; {
		select {
		case <-c.ready:
			waiting = false
		case <-c.commEst():
			// The peer has begun to send: its RTU is late, or lost.
			c.do(func(a *cm.Agent, now time.Duration, id cm.ID) error { return a.Established(now, id) })
		case <-ctx.Done():
			c.mu.Lock()
			c.abandon(fmt.Errorf("rdmacm: %v: %w", c.remote, ctx.Err()))
			c.mu.Unlock()
		}
	}
	c.mu.Lock()
	err := c.err
	c.mu.Unlock()
	if err == nil || errors.Is(err, ErrDisconnected) {
		return nil // it was established, whatever has become of it
	}
	c.Close()
	return err
}
