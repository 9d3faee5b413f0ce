package cm

import (
	"bytes"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

// ResolveOptions are what Resolve wants to know besides the SIDR_REQ.
type ResolveOptions struct {
	Timeout time.Duration // until it is repeated; 0 means 4.3 s
	Retries uint8         // 0 means 15
}

// Resolve asks dst which datagram queue pair serves a service (IBTA 12.11). The
// agent fills in RequestID, and 0xffff for a PKey of 0. The answer is
// EventSIDRREP or EventUnreachable.
//
// It fails with a FieldError, or with ErrLimit.
func (a *Agent) Resolve(now time.Duration, dst netip.Addr, req mad.SIDRREQ, o ResolveOptions) (ID, error) {
	if err := a.checkPeer(dst); err != nil {
		return 0, err
	}
	if err := checkLen("PrivateData", req.PrivateData, mad.SIDRREQPrivateData); err != nil {
		return 0, err
	}
	if o.Timeout < 0 {
		return 0, &FieldError{"Timeout", o.Timeout, "at least 0"}
	}
	c := a.newConn(dst, StateSIDRREQSent)
	if c == nil {
		return 0, ErrLimit
	}
	orDefault(&o.Timeout, defaultResponseTimeout.Duration())
	orDefault(&o.Retries, defaultRetries)
	orDefault(&req.PKey, ib.DefaultPKey)
	req.RequestID = c.id
	c.timeout, c.retries = o.Timeout, o.Retries
	a.repeat(now, c, &req)
	return ID(c.id), nil
}

// receiveSIDRREQ takes a request for a datagram service.
func (a *Agent) receiveSIDRREQ(now time.Duration, src netip.Addr, tid uint64) {
	m := &a.sidrReq
	if c := a.resolving[remote(src, 0, m.RequestID)]; c != nil {
		a.count(Duplicates(mad.AttrSIDRREQ))
		return
	}
	l := a.match(m.ServiceID)
	if l == nil {
		a.answer(src, tid, &mad.SIDRREP{RequestID: m.RequestID, ServiceID: m.ServiceID, Status: mad.SIDRUnsupported})
		return
	}
	c := a.newConn(src, StateSIDRREQReceived)
	if c == nil {
		a.answer(src, tid, &mad.SIDRREP{RequestID: m.RequestID, ServiceID: m.ServiceID, Status: mad.SIDRNoQP})
		return
	}
	a.admit(c, l)
	c.remote, c.tid, c.service = m.RequestID, tid, m.ServiceID
	a.resolving[c.resolvingKey()] = c
	a.arm(c, now+patience*wait(a.cfg.ServiceTimeout))
	req := *m
	req.PrivateData = bytes.Clone(m.PrivateData)
	a.event(c, Event{Kind: EventSIDRREQ, Attr: mad.AttrSIDRREQ, SIDRREQ: &req, Context: l.Context})
}

// Answer answers, after EventSIDRREQ. rep says what; the agent fills in the
// request and the service. The identifier is gone. When the answer is lost, the
// peer asks again, which is a new request.
//
// It fails with ErrUnknownID, a StateError or a FieldError.
func (a *Agent) Answer(_ time.Duration, id ID, rep mad.SIDRREP) error {
	c, err := a.command(id)
	if err != nil {
		return err
	}
	if c.state != StateSIDRREQReceived {
		return &StateError{"Answer", c.state}
	}
	if err := checkLen("Info", rep.Info, mad.InfoSize); err != nil {
		return err
	}
	if err := checkLen("PrivateData", rep.PrivateData, mad.SIDRREPPrivateData); err != nil {
		return err
	}
	a.answerSIDR(c, &rep)
	return nil
}

func (a *Agent) answerSIDR(c *conn, rep *mad.SIDRREP) {
	rep.RequestID, rep.ServiceID = c.remote, c.service
	a.answer(c.peer, c.tid, rep)
	a.forget(c)
}

// receiveSIDRREP takes the answer to our request.
func (a *Agent) receiveSIDRREP(src netip.Addr) {
	c := a.find(src, a.sidrRep.RequestID, 0)
	if c == nil {
		return
	}
	if c.state != StateSIDRREQSent {
		a.count(DropState)
		return
	}
	rep := a.sidrRep
	rep.Info, rep.PrivateData = bytes.Clone(rep.Info), bytes.Clone(rep.PrivateData)
	a.event(c, Event{Kind: EventSIDRREP, Gone: true, Attr: mad.AttrSIDRREP, SIDRREP: &rep})
}
