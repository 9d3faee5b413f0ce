package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/transport/cm"
)

// Dial connects a new queue pair to the service at addr, "host:port", where the
// host is an address or a name and a link-local address has its zone
// ("[fe80::1%eth0]:7471"). Of several addresses of a name the first that can be
// connected to is used. It returns when the connection is established; the queue
// pair is in RTS then. In the port space UDP it returns when the peer's queue pair
// is known.
//
// Errors: a *roce.ConfigError for a field of cfg, a *RejectedError when the peer
// refuses (nobody listens, the program does not want us), an *UnreachableError when
// nobody answers, the error of ctx when that ends before.
func Dial(ctx context.Context, addr string, cfg Config) (*Conn, error) {
	addrs, err := resolve(ctx, addr)
	if err != nil {
		return nil, err
	}
	var first error
	for _, a := range addrs {
		c, err := dial(ctx, a, cfg)
		if mtu := smallerMTU(err); mtu != 0 && cfg.PathMTU == 0 {
			smaller := cfg
			smaller.PathMTU = mtu
			c, err = dial(ctx, a, smaller)
		}
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// smallerMTU returns the path MTU that the peer has refused a larger one for, or 0.
func smallerMTU(err error) ib.MTU {
	var rej *RejectedError
	if !errors.As(err, &rej) || rej.Reason != mad.RejInvalidMTU || len(rej.ARI) == 0 || !ib.MTU(rej.ARI[0]).Valid() {
		return 0
	}
	return ib.MTU(rej.ARI[0])
}

func dial(ctx context.Context, to netip.AddrPort, cfg Config) (*Conn, error) {
	room, _, _, _ := MaxPrivateData(cfg.PortSpace)
	if err := cfg.fill(Params{ResponderResources: defaultRdAtomic, InitiatorDepth: defaultRdAtomic}, room); err != nil {
		return nil, err
	}
	dev, release, err := cfg.deviceFor(to.Addr())
	if err != nil {
		return nil, err
	}
	port := cfg.LocalAddr.Port()
	if port == 0 {
		port = ephemeral()
	}
	c, err := newConn(dev, release, cfg, netip.AddrPortFrom(dev.Addr(), port), to)
	if err != nil {
		return nil, err
	}
	if cfg.PortSpace == UDP {
		err = c.inquire()
	} else {
		err = c.request()
	}
	if err != nil {
		c.mu.Lock()
		c.end(err)
		c.mu.Unlock()
	}
	return c.result(c.Wait(ctx))
}

// result is what Dial and Accept return.
func (c *Conn) result(err error) (*Conn, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// withHeader returns private data behind the header of rdma_cm.
func (c *Conn) withHeader() []byte {
	b := make([]byte, mad.IPHeaderSize, mad.IPHeaderSize+len(c.cfg.PrivateData))
	mad.IPHeader{SrcPort: c.local.Port(), Src: c.local.Addr().WithZone(""), Dst: c.remote.Addr().WithZone("")}.Put(b)
	return append(b, c.cfg.PrivateData...)
}

// request sends the REQ.
func (c *Conn) request() error {
	cfg := &c.cfg
	mtu := cfg.PathMTU
	if mtu == 0 {
		port, err := c.dev.QueryPort()
		if err != nil {
			return err
		}
		mtu = port.ActiveMTU
	}
	ackTimeout, response := ib.AckTimeoutFor(cfg.AckTimeout), ib.AckTimeoutFor(cfg.ResponseTimeout)
	c.params = Params{
		ResponderResources: cfg.ResponderResources, InitiatorDepth: cfg.InitiatorDepth, FlowControl: cfg.FlowControl,
		RetryCount: cfg.RetryCount, RNRRetryCount: cfg.RNRRetryCount, SRQ: cfg.QP.SRQ != nil, PathMTU: mtu,
		AckTimeout: ackTimeout.Duration(), TrafficClass: cfg.TrafficClass,
	}
	req := mad.REQ{
		ServiceID: cfg.PortSpace.ServiceID(c.remote.Port()), LocalQPN: c.qpn, StartingPSN: c.psn,
		ResponderResources: uint8(cfg.ResponderResources), InitiatorDepth: uint8(cfg.InitiatorDepth), FlowControl: cfg.FlowControl,
		Transport: transports[cfg.QP.Type], RetryCount: uint8(cfg.RetryCount), RNRRetryCount: uint8(cfg.RNRRetryCount), SRQ: c.params.SRQ,
		RemoteCMResponseTimeout: response, LocalCMResponseTimeout: response, MaxCMRetries: uint8(cfg.Retries), PathMTU: mtu,
		Primary:     mad.Path{TrafficClass: cfg.TrafficClass, LocalACKTimeout: ackTimeout},
		PrivateData: c.withHeader(),
	}
	return c.launch(func(a *cm.Agent, now time.Duration) (cm.ID, error) {
		return a.Connect(now, c.remote.Addr().WithZone(""), req, cm.ConnectOptions{})
	})
}

// launch gives the connection the id that a command makes.
func (c *Conn) launch(command func(*cm.Agent, time.Duration) (cm.ID, error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m.do(func(a *cm.Agent, now time.Duration) error {
		id, err := command(a, now)
		switch {
		case errors.Is(err, cm.ErrLimit):
			return &roce.LimitError{Limit: "MaxCMID", Most: c.m.maxIDs, What: "connections and resolutions"}
		case err != nil:
			return err
		}
		c.id, c.known = id, true
		c.m.own(id, c)
		return nil
	})
}

// replied takes the answer of the peer and confirms it.
func (c *Conn) replied(ev *cm.Event) {
	if c.state != connecting {
		return
	}
	rep, p := ev.REP, &c.params
	// What the peer says of itself bounds what we asked for (Linux
	// drivers/infiniband/core/cm.c, cm_rep_handler).
	p.InitiatorDepth = min(p.InitiatorDepth, int(rep.ResponderResources))
	p.RNRRetryCount, p.FlowControl, p.SRQ = int(rep.RNRRetryCount), rep.FlowControl, rep.SRQ
	c.destQPN, c.private = rep.LocalQPN, rep.PrivateData
	if err := c.rtr(rep.StartingPSN); err != nil {
		c.abandon(err)
		return
	}
	p.ResponderResources = min(p.ResponderResources, int(rep.InitiatorDepth))
	if c.qp == nil {
		c.state = answered
		close(c.ready)
		c.tell(EventConnectResponse, nil, rep.PrivateData)
		return
	}
	c.establish(func() error {
		return c.do(func(a *cm.Agent, now time.Duration, id cm.ID) error { return a.SendRTU(now, id, nil) })
	}, rep.PrivateData)
}

// rtr brings the queue pair to RTR. Each side says with which PSN the other one has
// to begin (IBTA chapter 12, starting PSN): ours is that of QP.PSN until we know what the peer wants.
func (c *Conn) rtr(theirs ib.PSN) error {
	c.theirs = theirs
	if c.qp == nil {
		return nil
	}
	c.qp.SetPSN(theirs)
	return c.qp.RTR(c.peer(), c.conn())
}
