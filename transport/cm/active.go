package cm

import (
	"bytes"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

// ConnectOptions are what Connect wants to know besides the REQ.
type ConnectOptions struct {
	// PeerToPeer says that dst connects to us at the same time, for the same
	// service (IBTA 12.9): whose request counts is decided by their CA GUIDs
	// and queue pair numbers. The side that yields gets EventREQ for the
	// identifier that Connect returned, and answers it.
	PeerToPeer bool
}

// Connect asks dst for a connection. req says what to ask for; the agent fills in
// LocalCommID, LocalCAGUID, and of Primary the GIDs, LIDs and hop limit, and puts
// defaults in place of 0: PKey 0xffff, CM response timeouts of 4.3 s, 15 retries,
// a local ACK timeout of 0.54 s. Events tell what becomes of it: EventREP,
// EventRejected or EventUnreachable.
//
// It fails with a FieldError, or with ErrLimit.
func (a *Agent) Connect(now time.Duration, dst netip.Addr, req mad.REQ, o ConnectOptions) (ID, error) {
	if err := a.checkREQ(dst, &req); err != nil {
		return 0, err
	}
	c := a.newConn(dst, StateREQSent)
	if c == nil {
		return 0, ErrLimit
	}
	c.service, c.localQPN, c.peerToPeer = req.ServiceID, req.LocalQPN, o.PeerToPeer
	if o.PeerToPeer {
		if a.peering[c.peeringKey()] != nil {
			a.forget(c)
			return 0, ErrInUse
		}
		a.peering[c.peeringKey()] = c
	}
	a.localQPs[c.localQPN] = c

	orDefault(&req.PKey, ib.DefaultPKey)
	orDefault(&req.RemoteCMResponseTimeout, defaultResponseTimeout)
	orDefault(&req.LocalCMResponseTimeout, defaultResponseTimeout)
	orDefault(&req.MaxCMRetries, defaultRetries)
	orDefault(&req.Primary.LocalACKTimeout, defaultACKTimeout)
	orDefault(&req.Primary.HopLimit, 64)
	req.LocalCommID, req.LocalCAGUID = c.id, a.cfg.GUID
	p := &req.Primary
	p.LocalGID, p.RemoteGID = ib.GIDFromAddr(a.cfg.Addr), ib.GIDFromAddr(dst)
	p.LocalLID, p.RemoteLID = mad.PermissiveLID, mad.PermissiveLID
	c.roundTrip = roundTrip(p.LocalACKTimeout)
	c.timeout = c.roundTrip + wait(req.RemoteCMResponseTimeout)
	c.retries = req.MaxCMRetries
	a.repeat(now, c, &req)
	return ID(c.id), nil
}

// checkREQ says what is wrong with a REQ of ours.
func (a *Agent) checkREQ(dst netip.Addr, req *mad.REQ) error {
	if err := a.checkPeer(dst); err != nil {
		return err
	}
	if err := checkLen("PrivateData", req.PrivateData, mad.REQPrivateData); err != nil {
		return err
	}
	switch {
	case !req.PathMTU.Valid():
		return &FieldError{"PathMTU", uint8(req.PathMTU), "a code from 1 to 5"}
	case req.MaxCMRetries > 15:
		return &FieldError{"MaxCMRetries", req.MaxCMRetries, "at most 15"}
	case req.RetryCount > 7 || req.RNRRetryCount > 7:
		return &FieldError{"RetryCount or RNRRetryCount", max(req.RetryCount, req.RNRRetryCount), "at most 7"}
	case !supported(req):
		return &FieldError{"Transport", uint8(req.Transport), "RC, UC or extended with XRC"}
	}
	return a.checkQPN(req.LocalQPN)
}

// checkQPN says what is wrong with the number of a queue pair of ours (IBTA
// 12.9: it rests during time-wait).
func (a *Agent) checkQPN(n ib.QPN) error {
	if n <= ib.GSIQPN || n >= ib.MulticastQPN {
		return &FieldError{"LocalQPN", n, "from 2 to 0xfffffe"}
	}
	if c := a.localQPs[n]; c != nil {
		return &FieldError{"LocalQPN", n, "not one of a connection in state " + c.state.String()}
	}
	return nil
}

// supported says whether a REQ is for a transport that there is here.
func supported(req *mad.REQ) bool {
	switch req.Transport {
	case mad.TransportRC, mad.TransportUC:
		return true
	case mad.TransportExtended:
		return req.ExtendedTransport == mad.ExtendedXRC
	}
	return false
}

// receiveREP takes the answer to our REQ.
func (a *Agent) receiveREP(now time.Duration, src netip.Addr, tid uint64) {
	m := &a.rep
	c := a.ids[m.RemoteCommID]
	if c != nil && !c.from(src) {
		a.count(DropSource)
		return
	}
	if c == nil || c.state != StateREQSent && c.remote != m.LocalCommID {
		// We gave it up. The peer should do the same before its timer says so.
		a.count(DropUnknownID)
		a.answer(src, tid, &mad.REJ{
			LocalCommID: m.RemoteCommID, RemoteCommID: m.LocalCommID, Rejected: mad.MsgREP, Reason: mad.RejInvalidCommID,
		})
		return
	}
	if c.state != StateREQSent {
		a.duplicateREP(c)
		return
	}
	qpn := m.LocalQPN
	if qpn == 0 {
		qpn = ib.QPN(m.LocalEECN) // of an XRC target
	}
	old := a.remoteQPs[remote(src, m.LocalCAGUID, uint32(qpn))]
	if old == nil {
		old = a.remotes[remote(src, m.LocalCAGUID, m.LocalCommID)]
	}
	if old != nil && old.state != StateTimeWait {
		a.count(StaleConn)
		a.answer(src, tid, &mad.REJ{
			LocalCommID: c.id, RemoteCommID: m.LocalCommID, Rejected: mad.MsgREP, Reason: mad.RejStaleConn,
		})
		a.lost(now, old)
		return // and repeat the REQ
	}
	a.stop(c)
	remove(a.peering, c.peeringKey(), c)
	c.state, c.remote, c.guid, c.remoteQPN = StateREPReceived, m.LocalCommID, m.LocalCAGUID, qpn
	a.remotes[c.remoteKey()], a.remoteQPs[c.remoteQPKey()] = c, c
	rep := *m
	rep.PrivateData = bytes.Clone(m.PrivateData)
	a.event(c, Event{Kind: EventREP, Attr: mad.AttrREP, REP: &rep})
}

// duplicateREP answers a REP that came before: our RTU was lost, or the user has
// not sent it yet.
func (a *Agent) duplicateREP(c *conn) {
	a.count(Duplicates(mad.AttrREP))
	switch {
	case c.state == StateREPReceived:
		a.sendMRA(c, mad.MsgREP, c.tid)
	case c.state != StateEstablished:
		// Whoever disconnects has no use for it.
	case c.reply != nil && attrOf(c.reply) == mad.AttrRTU:
		a.count(Retries(mad.AttrRTU))
		a.cfg.Send(c.peer, c.reply)
	default:
		a.count(Retries(mad.AttrRTU))
		mad.EncodeCM(a.buf[:], c.tid, &mad.RTU{LocalCommID: c.id, RemoteCommID: c.remote})
		a.cfg.Send(c.peer, a.buf[:])
	}
}

// SendRTU says, after EventREP, that the queue pair is ready. The connection is
// established.
func (a *Agent) SendRTU(now time.Duration, id ID, private []byte) error {
	c, err := a.command(id)
	if err != nil {
		return err
	}
	if c.state != StateREPReceived {
		return &StateError{"SendRTU", c.state}
	}
	if err := checkLen("private data", private, mad.RTUPrivateData); err != nil {
		return err
	}
	c.state, c.out = StateEstablished, nil
	a.keep(c, c.tid, &mad.RTU{LocalCommID: c.id, RemoteCommID: c.remote, PrivateData: private})
	return nil
}
