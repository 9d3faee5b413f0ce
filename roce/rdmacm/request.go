package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/transport/cm"
)

// Request is a peer's request for a connection, to be answered once.
type Request struct {
	b        *binding
	id       cm.ID
	req      *mad.REQ // nil in port space UDP
	local    netip.AddrPort
	remote   netip.AddrPort
	private  []byte
	params   Params
	psn      ib.PSN // which the peer begins with, if the program connects its queue pair
	answered atomic.Bool
}

// newRequest reads a request. One that no rdma_cm would send is refused here: nil.
func newRequest(b *binding, ev *cm.Event) *Request {
	r := &Request{b: b, id: ev.ID, req: ev.REQ, local: netip.AddrPortFrom(b.dev.Addr(), b.l.port), psn: randomPSN()}
	if r.req != nil {
		r.private = r.req.PrivateData
		r.params = Params{
			// The peer's depth is what we have to answer, and the reverse.
			ResponderResources: int(r.req.InitiatorDepth), InitiatorDepth: int(r.req.ResponderResources),
			FlowControl: r.req.FlowControl, RetryCount: int(r.req.RetryCount), RNRRetryCount: int(r.req.RNRRetryCount),
			SRQ: r.req.SRQ, PathMTU: r.req.PathMTU, AckTimeout: r.req.Primary.LocalACKTimeout.Duration(),
			TrafficClass: r.req.Primary.TrafficClass,
		}
		if t := r.req.Transport; t != mad.TransportRC && t != mad.TransportUC {
			r.refuse(mad.RejInvalidTransport, nil, nil)
			return nil
		}
	} else {
		r.private = ev.SIDRREQ.PrivateData
	}
	h, ok := mad.ParseIPHeader(r.private)
	switch {
	case ok && h.Dst == b.dev.Addr().WithZone(""):
		r.private = r.private[mad.IPHeaderSize:]
	case ok || b.l.cfg.PortSpace != IB: // a program with native addresses sends no header
		r.refuse(mad.RejConsumer, nil, nil)
		return nil
	}
	peer := ev.Peer
	if peer.Is6() && peer.IsLinkLocalUnicast() {
		peer = peer.WithZone(b.dev.Addr().Zone())
	}
	r.remote = netip.AddrPortFrom(peer, h.SrcPort)
	return r
}

// Device returns the device that the request has come to: what Accept is given (a
// protection domain, completion queues) has to be of this one.
func (r *Request) Device() *roce.Device { return r.b.dev }

// LocalAddr returns the address and port that are asked for.
func (r *Request) LocalAddr() netip.AddrPort { return r.local }

// RemoteAddr returns the address and port of the peer.
func (r *Request) RemoteAddr() netip.AddrPort { return r.remote }

// PrivateData returns what the peer's program has sent with the request. There are
// zeros behind it.
func (r *Request) PrivateData() []byte { return r.private }

// Params returns what the peer asks for, as seen from here: ResponderResources is
// how many READs it wants to send. It says nothing in port space UDP.
func (r *Request) Params() Params { return r.params }

// handle hears that the request is no more.
func (r *Request) handle(ev *cm.Event) {
	if ev.Gone {
		r.b.l.forget(r)
	}
}

func (r *Request) portClosed() { r.b.l.forget(r) }

// errAnswered says that a request is answered twice.
var errAnswered = errors.New("rdmacm: the request has been answered already")

// Reject refuses the request, with private data for the peer's program.
func (r *Request) Reject(private []byte) error {
	if _, _, room, _ := MaxPrivateData(r.b.l.cfg.PortSpace); len(private) > room {
		return &roce.ConfigError{Field: "private", Value: fmt.Sprintf("%d bytes", len(private)), Allowed: fmt.Sprintf("allowed are up to %d", room)}
	}
	if r.answered.Swap(true) {
		return errAnswered
	}
	return r.refuse(mad.RejConsumer, nil, private)
}

// refuse answers with a REJ, or a SIDR_REP that says the same.
func (r *Request) refuse(reason mad.Reason, ari, private []byte) error {
	return r.answer(func(a *cm.Agent, now time.Duration) error {
		delete(r.b.m.owners, r.id)
		if r.req == nil {
			return a.Answer(now, r.id, mad.SIDRREP{Status: mad.SIDRRejected, PrivateData: private})
		}
		return a.Reject(now, r.id, reason, ari, private)
	})
}

// answer runs a command of the agent for the request.
func (r *Request) answer(command func(*cm.Agent, time.Duration) error) error {
	err := r.b.m.do(command)
	if errors.Is(err, cm.ErrUnknownID) {
		return ErrGone
	}
	return err
}

// Accept connects a new queue pair to the peer, on the device of the request. It
// returns when the connection is established: the peer has confirmed it, or has
// begun to send. In port space UDP it returns at once.
//
// Of cfg, what both sides have in common (PortSpace, PathMTU, RetryCount,
// AckTimeout, TrafficClass) is what the peer has asked for. An error ends the
// request: the peer is told. ErrGone says that it was no more.
func (r *Request) Accept(ctx context.Context, cfg Config) (*Conn, error) {
	c, err := r.Answer(cfg)
	if err != nil {
		return nil, err
	}
	return c.result(c.Wait(ctx))
}

// Answer is Accept that returns as soon as the peer has been answered: Conn.Wait
// waits until the connection is established.
func (r *Request) Answer(cfg Config) (*Conn, error) {
	if r.answered.Swap(true) {
		return nil, errAnswered
	}
	if err := r.checkMTU(); err != nil {
		return nil, err
	}
	c, err := r.prepare(cfg)
	if err != nil {
		r.refuse(mad.RejConsumer, nil, nil)
		return nil, err
	}
	if r.req == nil {
		err = c.announce(r)
	} else {
		err = c.reply(r)
	}
	if err != nil {
		r.refuse(mad.RejNoQP, nil, nil) // no harm if there is nothing to refuse
		c.mu.Lock()
		c.end(err)
		c.mu.Unlock()
		c.Close()
		return nil, err
	}
	return c, nil
}

// checkMTU refuses a request with a path MTU that does not fit our interface; the
// peer is told what does.
func (r *Request) checkMTU() error {
	port, err := r.b.dev.QueryPort()
	if err == nil && r.params.PathMTU > port.ActiveMTU {
		r.refuse(mad.RejInvalidMTU, []byte{byte(port.ActiveMTU)}, nil)
		err = &roce.ConfigError{Field: "path MTU", Value: r.params.PathMTU, Allowed: fmt.Sprintf("at most %v fits our interface %s", port.ActiveMTU, port.Interface)}
	}
	return err
}

// prepare makes the connection.
func (r *Request) prepare(cfg Config) (*Conn, error) {
	cfg.PortSpace = r.b.l.cfg.PortSpace
	if cfg.Device != nil && cfg.Device != r.b.dev {
		return nil, &roce.ConfigError{Field: "Device", Value: cfg.Device.Addr(), Allowed: fmt.Sprintf("the request has come to the device of %v", r.b.dev.Addr())}
	}
	if r.req != nil && cfg.QP.Type == 0 && r.req.Transport == mad.TransportUC {
		cfg.QP.Type = roce.UC
	}
	_, room, _, _ := MaxPrivateData(cfg.PortSpace)
	if err := cfg.fill(r.params, room); err != nil {
		return nil, err
	}
	if r.req != nil && transports[cfg.QP.Type] != r.req.Transport {
		return nil, &roce.ConfigError{Field: "QP.Type", Value: cfg.QP.Type, Allowed: "the peer asks for another service"}
	}
	release := func() {}
	if r.b.l.cfg.Device == nil {
		var err error
		if _, release, err = OpenDevice(r.b.dev.Addr(), netip.Addr{}); err != nil {
			return nil, err
		}
	}
	return newConn(r.b.dev, release, cfg, r.local, r.remote)
}

// reply brings the queue pair to RTR and sends the REP.
func (c *Conn) reply(r *Request) error {
	c.params = r.params
	c.params.ResponderResources, c.params.InitiatorDepth = c.cfg.ResponderResources, min(c.cfg.InitiatorDepth, r.params.InitiatorDepth)
	c.destQPN, c.private = r.req.LocalQPN, r.private
	if c.qp == nil {
		c.psn = r.psn // which Attr has told
	}
	if err := c.rtr(r.req.StartingPSN); err != nil {
		return err
	}
	if c.cfg.UseQP != nil { // programs of librdmacm send when they have received: its rdma_accept does so
		if err := c.rts(); err != nil {
			return err
		}
		c.early = true
	}
	rep := mad.REP{
		LocalQPN: c.qpn, StartingPSN: c.psn, ResponderResources: uint8(c.params.ResponderResources),
		InitiatorDepth: uint8(c.params.InitiatorDepth), FlowControl: c.cfg.FlowControl, RNRRetryCount: uint8(c.cfg.RNRRetryCount),
		SRQ: c.cfg.QP.SRQ != nil, PrivateData: c.cfg.PrivateData,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.answer(func(a *cm.Agent, now time.Duration) error {
		if err := a.SendREP(now, r.id, rep); err != nil {
			return err
		}
		c.id, c.known = r.id, true
		c.m.own(r.id, c)
		return nil
	})
}
