package cm

import (
	"bytes"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib/mad"
)

// Disconnect ends an established connection. EventDisconnected tells when the
// peer has agreed, or has not answered; EventTimeWaitExit ends it. It does nothing
// for a connection that is being disconnected already.
//
// It fails with ErrUnknownID, a StateError or a FieldError.
func (a *Agent) Disconnect(now time.Duration, id ID, private []byte) error {
	c, err := a.command(id)
	if err != nil {
		return err
	}
	if err := checkLen("private data", private, mad.DREQPrivateData); err != nil {
		return err
	}
	switch c.state {
	case StateEstablished:
		a.startDREQ(now, c, private)
	case StateDREQSent, StateTimeWait:
	default:
		return &StateError{"Disconnect", c.state}
	}
	return nil
}

// startDREQ asks the peer to disconnect. The request has a transaction of its
// own.
func (a *Agent) startDREQ(now time.Duration, c *conn, private []byte) {
	c.state = StateDREQSent
	c.tid = a.newTID()
	a.repeat(now, c, &mad.DREQ{LocalCommID: c.id, RemoteCommID: c.remote, RemoteQPN: c.remoteQPN, PrivateData: private})
}

// receiveDREQ takes the end of a connection and agrees to it. One of a connection
// that is not known is agreed to as well: our DREP was lost.
func (a *Agent) receiveDREQ(now time.Duration, src netip.Addr, tid uint64) {
	m := &a.dreq
	c := a.ids[m.RemoteCommID]
	drep := mad.DREP{LocalCommID: m.RemoteCommID, RemoteCommID: m.LocalCommID}
	if c == nil || c.remote != m.LocalCommID {
		a.count(DropUnknownID)
		a.answer(src, tid, &drep)
		return
	}
	if !c.from(src) {
		a.count(DropSource)
		return
	}
	if m.RemoteQPN != c.localQPN {
		a.count(DropQPN)
		return
	}
	switch c.state {
	case StateREPSent, StateEstablished, StateDREQSent: // REP sent: the RTU was lost
		a.answer(c.peer, tid, &drep)
		a.enterTimeWait(now, c)
		a.event(c, Event{Kind: EventDisconnected, Attr: mad.AttrDREQ, Private: bytes.Clone(m.PrivateData)})
	case StateTimeWait:
		a.count(Duplicates(mad.AttrDREQ))
		a.answer(c.peer, tid, &drep)
	default:
		a.count(DropState)
	}
}

// receiveDREP takes the peer's agreement.
func (a *Agent) receiveDREP(now time.Duration, src netip.Addr) {
	c := a.find(src, a.drep.RemoteCommID, a.drep.LocalCommID)
	switch {
	case c == nil:
	case c.state == StateDREQSent:
		a.enterTimeWait(now, c)
		a.event(c, Event{Kind: EventDisconnected, Attr: mad.AttrDREP, Private: bytes.Clone(a.drep.PrivateData)})
	case c.state == StateTimeWait:
		a.count(Duplicates(mad.AttrDREP))
	default:
		a.count(DropState)
	}
}

// enterTimeWait lets c's queue pair number rest until no packet of the connection
// can be on its way (IBTA 12.9), for the local ACK timeout of its path as Linux
// does it. The peer's queue pair may be used in a new REQ at once, because its
// owner knows best when it has rested.
func (a *Agent) enterTimeWait(now time.Duration, c *conn) {
	a.settled(c)
	remove(a.peering, c.peeringKey(), c)
	remove(a.remoteQPs, c.remoteQPKey(), c)
	c.state, c.out, c.reply = StateTimeWait, nil, nil
	a.arm(c, now+c.roundTrip)
	if a.timeWait.Len() >= a.cfg.MaxTimeWait {
		a.count(TimeWaitCut)
		a.event(a.timeWait.Front().Value.(*conn), Event{Kind: EventTimeWaitExit, Gone: true})
	}
	c.waiting = a.timeWait.PushBack(c)
}
