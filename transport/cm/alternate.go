package cm

import (
	"bytes"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib/mad"
)

// LoadAlternate proposes an alternate path for an established connection (IBTA
// 12.8). lap.Alternate says which; the agent fills in identifiers, the queue pair
// and LIDs, and 4.3 s for a response timeout of 0. The answer is EventAPR,
// or EventUnreachable, after which the connection goes on.
//
// It fails with ErrUnknownID, a StateError (also while a proposal is unanswered) or
// a FieldError.
func (a *Agent) LoadAlternate(now time.Duration, id ID, lap mad.LAP) error {
	c, err := a.command(id)
	if err != nil {
		return err
	}
	if c.state != StateEstablished || c.lapOut {
		return &StateError{"LoadAlternate", c.state}
	}
	if err := checkLen("PrivateData", lap.PrivateData, mad.LAPPrivateData); err != nil {
		return err
	}
	if lap.Alternate.LocalGID.IsZero() || lap.Alternate.RemoteGID.IsZero() {
		return &FieldError{"Alternate", "without GIDs", "a path with both ends"}
	}
	orDefault(&lap.RemoteCMResponseTimeout, defaultResponseTimeout)
	lap.LocalCommID, lap.RemoteCommID, lap.RemoteQPN = c.id, c.remote, c.remoteQPN
	lap.Alternate.LocalLID, lap.Alternate.RemoteLID = mad.PermissiveLID, mad.PermissiveLID
	c.lapOut = true
	c.timeout = c.roundTrip + wait(lap.RemoteCMResponseTimeout)
	c.tid = a.newTID()
	a.repeat(now, c, &lap)
	return nil
}

// receiveLAP takes a proposal of the peer.
func (a *Agent) receiveLAP(src netip.Addr, tid uint64) {
	m := &a.lap
	c := a.find(src, m.RemoteCommID, m.LocalCommID)
	switch {
	case c == nil:
	case m.RemoteQPN != c.localQPN:
		a.count(DropQPN)
	case c.state != StateEstablished:
		a.count(DropState)
	case c.lapIn:
		a.count(Duplicates(mad.AttrLAP))
		a.sendMRA(c, mad.MsgOther, c.lapTID)
	case c.reply != nil && attrOf(c.reply) == mad.AttrAPR && c.lapTID == tid:
		a.count(Duplicates(mad.AttrLAP))
		a.count(Retries(mad.AttrAPR))
		a.cfg.Send(c.peer, c.reply)
	default:
		c.lapIn, c.lapTID = true, tid
		lap := *m
		lap.PrivateData = bytes.Clone(m.PrivateData)
		a.event(c, Event{Kind: EventLAP, Attr: mad.AttrLAP, LAP: &lap})
	}
}

// AnswerAlternate answers, after EventLAP. apr says what; the agent fills in the
// identifiers. When it accepts, the user has armed the path before.
//
// It fails with ErrUnknownID, a StateError or a FieldError.
func (a *Agent) AnswerAlternate(_ time.Duration, id ID, apr mad.APR) error {
	c, err := a.command(id)
	if err != nil {
		return err
	}
	if c.state != StateEstablished || !c.lapIn {
		return &StateError{"AnswerAlternate", c.state}
	}
	if err := checkLen("Info", apr.Info, mad.InfoSize); err != nil {
		return err
	}
	if err := checkLen("PrivateData", apr.PrivateData, mad.APRPrivateData); err != nil {
		return err
	}
	c.lapIn = false
	apr.LocalCommID, apr.RemoteCommID = c.id, c.remote
	a.keep(c, c.lapTID, &apr)
	return nil
}

// receiveAPR takes the answer to our proposal.
func (a *Agent) receiveAPR(src netip.Addr) {
	c := a.find(src, a.apr.RemoteCommID, a.apr.LocalCommID)
	if c == nil {
		return
	}
	if c.state != StateEstablished || !c.lapOut {
		a.count(DropState)
		return
	}
	a.stop(c)
	c.lapOut = false
	apr := a.apr
	apr.Info, apr.PrivateData = bytes.Clone(apr.Info), bytes.Clone(apr.PrivateData)
	a.event(c, Event{Kind: EventAPR, Attr: mad.AttrAPR, APR: &apr})
}
