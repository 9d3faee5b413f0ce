package perftest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// Control is what the conversation goes over with -R: an RC queue pair that rdma_cm
// connects, where each record is one SEND into the one receive that the other side has
// posted. It is for one goroutine at a time, but for SetDeadline.
//
// Source: create_comm_struct, rdma_client_connect and ctx_xchg_data_rdma of
// perftest_communication.c.
type Control struct {
	conn    *rdmacm.Conn
	in, out *roce.MR
	message []byte // what has come and was not read
	sending bool
	ended   error // what ended the connection

	mu     sync.Mutex
	limit  context.Context
	cancel context.CancelFunc
}

// Config returns how to make the connection, by rdmacm.Dial or Request.Accept.
func (c *Control) Config(ackTimeout time.Duration) rdmacm.Config {
	return rdmacm.Config{
		QP: roce.QPConfig{MaxSendWR: 1, MaxRecvWR: 1}, ResponderResources: -1, InitiatorDepth: -1,
		AckTimeout: ackTimeout, Prepare: c.prepare,
	}
}

// prepare registers memory and posts the receive.
func (c *Control) prepare(conn *rdmacm.Conn) (err error) {
	c.conn = conn
	c.SetDeadline(time.Time{})
	if c.in, err = conn.PD().RegisterMR(make([]byte, binaryLen), roce.LocalWrite); err != nil {
		return err
	}
	if c.out, err = conn.PD().RegisterMR(make([]byte, binaryLen), 0); err != nil {
		return err
	}
	return c.receive()
}

func (c *Control) receive() error {
	return c.conn.QP().PostRecv(roce.RecvWR{SGE: []roce.SGE{c.in.SGE(0, binaryLen)}})
}

// Read returns what is left of a message, or waits for the next one. The error is
// io.EOF when the peer has disconnected.
func (c *Control) Read(p []byte) (int, error) {
	for len(c.message) == 0 {
		if err := c.wait(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.message)
	c.message = c.message[n:]
	return n, nil
}

// Write sends a message, of up to the length of an address record, and waits until it
// has arrived.
func (c *Control) Write(p []byte) (int, error) {
	if len(p) > binaryLen {
		return 0, fmt.Errorf("a record of %d bytes, allowed are up to %d", len(p), binaryLen)
	}
	copy(c.out.Bytes(), p)
	if err := c.conn.QP().PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{c.out.SGE(0, len(p))}}); err != nil {
		return 0, err
	}
	for c.sending = true; c.sending; {
		if err := c.wait(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// wait takes one completion.
func (c *Control) wait() error {
	if c.ended != nil {
		return c.ended
	}
	wc, err := c.completion()
	if err != nil {
		return err
	}
	switch {
	case wc.Status == roce.WCWRFlushErr:
		c.ended = io.EOF
		return c.ended
	case wc.Status != roce.WCSuccess:
		c.ended = fmt.Errorf("a request failed: %v (%d)", wc.Status, wc.Status)
		return c.ended
	case wc.Opcode == roce.WCRecv:
		c.message = append(c.message, c.in.Bytes()[:wc.ByteLen]...)
		return c.receive()
	}
	c.sending = false
	return nil
}

// completion waits until the deadline, which may be changed meanwhile.
func (c *Control) completion() (roce.WC, error) {
	var wc [1]roce.WC
	for {
		limit := c.bound()
		_, err := c.conn.CQ().Wait(limit, wc[:])
		switch {
		case err == nil || limit.Err() == nil:
			return wc[0], err
		case limit == c.bound():
			return wc[0], os.ErrDeadlineExceeded
		}
	}
}

func (c *Control) bound() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limit
}

// SetDeadline bounds Read and Write, those that wait already included; the zero time
// means that they wait for ever.
func (c *Control) SetDeadline(t time.Time) error {
	limit, cancel := context.WithCancel(context.Background())
	if !t.IsZero() {
		cancel()
		limit, cancel = context.WithDeadline(context.Background(), t)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
	c.limit, c.cancel = limit, cancel
	return nil
}

// cmAddr is an address and port of rdma_cm.
type cmAddr struct{ netip.AddrPort }

func (cmAddr) Network() string { return "rdma_cm" }

// RemoteAddr returns the peer's address and port.
func (c *Control) RemoteAddr() net.Addr { return cmAddr{c.conn.RemoteAddr()} }

// Peer returns the same.
func (c *Control) Peer() netip.AddrPort { return c.conn.RemoteAddr() }

// Close disconnects. It does not wait for long for a peer that has gone.
func (c *Control) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	c.conn.Disconnect(ctx, nil) // a peer that has done so already is what we want, too
	c.SetDeadline(time.Unix(1, 0))
	return c.conn.Close()
}

// closeTimeout is how long Close waits for the peer.
const closeTimeout = 2 * time.Second
