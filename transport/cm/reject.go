package cm

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

// Reject refuses a connection that is not established: the REQ after EventREQ,
// the REP after EventREP, or takes back what SendREP said. It is forgotten, and
// no event tells of it, except after SendREP: then it goes through time-wait.
//
// It fails with ErrUnknownID, a StateError or a FieldError.
func (a *Agent) Reject(now time.Duration, id ID, reason mad.Reason, ari, private []byte) error {
	c, err := a.command(id)
	if err != nil {
		return err
	}
	if err := checkLen("ARI", ari, mad.InfoSize); err != nil {
		return err
	}
	if err := checkLen("private data", private, mad.REJPrivateData); err != nil {
		return err
	}
	switch c.state {
	case StateREQReceived, StateREPReceived:
		a.sendREJ(c, reason, ari, private)
		a.forget(c)
	case StateREPSent:
		a.sendREJ(c, reason, ari, private)
		a.enterTimeWait(now, c)
	default:
		return &StateError{"Reject", c.state}
	}
	return nil
}

// sendREJ sends a REJ that fits the state. One for a timeout carries our CA GUID:
// its receiver may know our identifier only by that (Linux cm_acquire_rejected_id).
func (a *Agent) sendREJ(c *conn, reason mad.Reason, ari, private []byte) {
	m := mad.REJ{LocalCommID: c.id, RemoteCommID: c.remote, Reason: reason, ARI: ari, PrivateData: private}
	switch c.state {
	case StateREQReceived:
		m.LocalCommID, m.Rejected = 0, mad.MsgREQ
	case StateREPReceived:
		m.Rejected = mad.MsgREP
	default:
		m.Rejected = mad.MsgOther
	}
	if reason == mad.RejTimeout {
		m.ARI = binary.BigEndian.AppendUint64(nil, a.cfg.GUID)
	}
	a.answer(c.peer, c.tid, &m)
}

// Cancel gives up whatever id is, at whatever stage: a request is withdrawn or
// rejected, a connection disconnected. It is forgotten, and no more events tell
// of it, but where a queue pair was in use: then it goes through time-wait.
func (a *Agent) Cancel(now time.Duration, id ID) error {
	c, err := a.command(id)
	if err != nil {
		return err
	}
	a.cancel(now, c)
	return nil
}

func (a *Agent) cancel(now time.Duration, c *conn) {
	switch c.state {
	case StateREQSent:
		a.sendREJ(c, mad.RejTimeout, nil, nil)
		a.forget(c)
	case StateREQReceived, StateREPReceived:
		a.sendREJ(c, mad.RejConsumer, nil, nil)
		a.forget(c)
	case StateREPSent:
		a.sendREJ(c, mad.RejConsumer, nil, nil)
		a.enterTimeWait(now, c)
	case StateEstablished:
		a.startDREQ(now, c, nil)
	case StateSIDRREQReceived:
		a.answerSIDR(c, &mad.SIDRREP{Status: mad.SIDRRejected})
	case StateSIDRREQSent:
		a.forget(c)
	}
}

// rejected returns the connection that a REJ is about, nil when there is none.
// One that answers a REQ need not know the peer's identifier yet, and one for a
// timeout need not know ours.
func (a *Agent) rejected(src netip.Addr) *conn {
	m := &a.rej
	if c := a.ids[m.RemoteCommID]; c != nil && c.from(src) && (c.state == StateREQSent || c.remote == m.LocalCommID) {
		return c
	}
	if m.Reason != mad.RejTimeout || len(m.ARI) < 8 {
		return nil
	}
	return a.remotes[remote(src, binary.BigEndian.Uint64(m.ARI), m.LocalCommID)]
}

// receiveREJ takes the end of a connection that is being made; Linux also ends
// established ones so.
func (a *Agent) receiveREJ(now time.Duration, src netip.Addr) {
	c := a.rejected(src)
	if c == nil {
		a.count(DropUnknownID)
		return
	}
	rej := a.rej
	rej.ARI, rej.PrivateData = bytes.Clone(rej.ARI), bytes.Clone(rej.PrivateData)
	e := Event{Kind: EventRejected, Attr: mad.AttrREJ, REJ: &rej}
	switch c.state {
	case StateREQReceived:
		e.Gone = true
	case StateREQSent, StateREPSent:
		e.Gone = rej.Reason != mad.RejStaleConn // the peer thinks that our queue pair is in use
	case StateREPReceived:
	case StateEstablished, StateDREQSent:
		e.Kind = EventDisconnected
	default:
		a.count(DropState)
		return
	}
	if !e.Gone {
		a.enterTimeWait(now, c)
	}
	a.event(c, e)
}

// SendMRA asks the peer for time, when it is known that the answer to a REQ, REP
// or LAP will be late: service is how late. Without it, the agent asks for
// Config.ServiceTimeout when the peer repeats itself.
//
// It fails with ErrUnknownID, a StateError or a FieldError.
func (a *Agent) SendMRA(_ time.Duration, id ID, service ib.AckTimeout, private []byte) error {
	c, err := a.command(id)
	if err != nil {
		return err
	}
	if service > 31 {
		return &FieldError{"service timeout", uint8(service), "a code of 5 bits"}
	}
	if err := checkLen("private data", private, mad.MRAPrivateData); err != nil {
		return err
	}
	m := mad.MRA{LocalCommID: c.id, RemoteCommID: c.remote, ServiceTimeout: service, PrivateData: private}
	tid := c.tid
	switch {
	case c.state == StateREQReceived:
		m.MRAed = mad.MsgREQ
	case c.state == StateREPReceived:
		m.MRAed = mad.MsgREP
	case c.state == StateEstablished && c.lapIn:
		m.MRAed, tid = mad.MsgOther, c.lapTID
	default:
		return &StateError{"SendMRA", c.state}
	}
	a.answer(c.peer, tid, &m)
	return nil
}

// sendMRA asks for time because the peer has repeated itself.
func (a *Agent) sendMRA(c *conn, what mad.Msg, tid uint64) {
	a.answer(c.peer, tid, &mad.MRA{
		LocalCommID: c.id, RemoteCommID: c.remote, MRAed: what, ServiceTimeout: a.cfg.ServiceTimeout,
	})
}

// receiveMRA waits longer for the answer to what was sent last (IBTA 12.9).
// That is granted once for each time it is sent.
func (a *Agent) receiveMRA(now time.Duration, src netip.Addr) {
	m := &a.mra
	c := a.ids[m.RemoteCommID]
	if c == nil || c.state != StateREQSent && c.remote != m.LocalCommID {
		a.count(DropUnknownID)
		return
	}
	if !c.from(src) {
		a.count(DropSource)
		return
	}
	switch {
	case c.state == StateREQSent && m.MRAed == mad.MsgREQ,
		c.state == StateREPSent && m.MRAed == mad.MsgREP,
		c.state == StateEstablished && c.lapOut && m.MRAed == mad.MsgOther:
	default:
		a.count(DropState)
		return
	}
	if c.extended {
		a.count(Duplicates(mad.AttrMRA))
		return
	}
	c.extended = true
	a.arm(c, max(c.due, now+wait(m.ServiceTimeout)+c.roundTrip))
	mra := *m
	mra.PrivateData = bytes.Clone(m.PrivateData)
	a.event(c, Event{Kind: EventMRA, Attr: attrOf(c.out), MRA: &mra})
}
