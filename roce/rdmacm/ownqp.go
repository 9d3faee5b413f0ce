package rdmacm

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/transport/cm"
)

// randomPSN returns a first PSN.
func randomPSN() ib.PSN { return ib.PSN(rand.N(uint32(1 << 24))) }

// commEst receives when the peer has begun to send: never for a queue pair that the
// program connects.
func (c *Conn) commEst() <-chan struct{} {
	if c.qp == nil {
		return nil
	}
	return c.qp.CommEst()
}

// peer is the other end, and with which PSN it begins.
func (c *Conn) peer() roce.Remote {
	return roce.Remote{Addr: c.remote.Addr(), QPN: c.destQPN, PSN: c.psn}
}

// attr returns how a queue pair is moved to a state.
func attr(s roce.State, typ roce.QPType, c roce.Conn, peer roce.Remote, psn ib.PSN) (*roce.Attr, roce.AttrMask, error) {
	switch s {
	case roce.StateRTR:
		return c.AttrRTR(typ, peer)
	case roce.StateRTS:
		return c.AttrRTS(typ, psn)
	}
	return nil, 0, &roce.ConfigError{Field: "state", Value: s, Allowed: "allowed are RTR and RTS"}
}

// Attr returns the attributes that move a queue pair of the program's (Config.QPN) to
// RTR or RTS (rdma_init_qp_attr), when the peer has answered or was answered. It fails
// before, and in port space UDP, where queue pairs are not connected.
func (c *Conn) Attr(s roce.State) (*roce.Attr, roce.AttrMask, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.destQPN == 0 || c.cfg.PortSpace == UDP {
		return nil, 0, fmt.Errorf("rdmacm: the queue pair of the peer is not known")
	}
	return attr(s, c.cfg.QP.Type, c.conn(), c.peer(), c.theirs)
}

// Attr is Conn.Attr before the request is answered with Config.QPN: a queue pair of
// the program's may be in RTS before the peer hears of it. Of type only RC and UC are
// asked for.
func (r *Request) Attr(s roce.State) (*roce.Attr, roce.AttrMask, error) {
	if r.req == nil {
		return nil, 0, fmt.Errorf("rdmacm: datagrams have no connection")
	}
	c := Conn{params: r.params, destQPN: r.req.LocalQPN, remote: r.remote, psn: r.psn}
	typ := roce.RC
	if r.req.Transport == transports[roce.UC] {
		typ = roce.UC
	}
	return attr(s, typ, c.conn(), c.peer(), r.req.StartingPSN)
}

// Establish tells the peer, after Dial with Config.QPN, that the queue pair is ready
// (rdma_establish): the connection is established. It fails if it is already, or has
// ended.
func (c *Conn) Establish() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != answered {
		return fmt.Errorf("rdmacm: there is no answer of the peer to confirm")
	}
	err := c.do(func(a *cm.Agent, now time.Duration, id cm.ID) error { return a.SendRTU(now, id, nil) })
	if err == nil {
		c.state = established
		c.tell(EventEstablished, nil, nil)
	}
	return err
}

// Notify says that the peer has begun to send on a queue pair of the program's, whose
// EventCommEst says so (rdma_notify): its confirmation is late, or lost. It changes
// nothing when the connection is established.
func (c *Conn) Notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == connecting {
		// It fails when the confirmation has come meanwhile.
		c.do(func(a *cm.Agent, now time.Duration, id cm.ID) error { return a.Established(now, id) })
	}
}
