package cm

import (
	"bytes"
	"container/list"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

// Listener is who takes requests for a service.
type Listener struct {
	// Service and Mask say for which: those that equal Service in the bits of
	// Mask. Mask 0 means all bits. An exact listener goes before one with a
	// mask, and of those the one that came first.
	Service, Mask mad.ServiceID
	// Backlog is how many requests may wait for the user's answer; 0 means 1024.
	// Beyond it, the oldest is dropped without a word to its sender, who asks
	// again.
	Backlog int
	// Context comes back in events.
	Context any

	pending list.List // *conn, oldest first
}

// Listen takes requests for a service from now on. It fails with a FieldError, or
// with ErrInUse when there is a listener with the same service and mask.
func (a *Agent) Listen(l Listener) error {
	if l.Backlog < 0 {
		return &FieldError{"Backlog", l.Backlog, "at least 0"}
	}
	orDefault(&l.Backlog, defaultBacklog)
	orDefault(&l.Mask, ^mad.ServiceID(0))
	l.Service &= l.Mask
	if a.listener(l.Service, l.Mask) != nil {
		return ErrInUse
	}
	l.pending.Init()
	if ^l.Mask == 0 {
		a.exact[l.Service] = &l
	} else {
		a.masked = append(a.masked, &l)
	}
	return nil
}

// listener returns the listener with exactly this service and mask.
func (a *Agent) listener(s, mask mad.ServiceID) *Listener {
	if ^mask == 0 {
		return a.exact[s]
	}
	for _, l := range a.masked {
		if l.Mask == mask && l.Service == s {
			return l
		}
	}
	return nil
}

// Unlisten ends what Listen began. Requests that wait for an answer are rejected;
// no event tells of them. It is harmless when nobody listens.
func (a *Agent) Unlisten(now time.Duration, s, mask mad.ServiceID) {
	orDefault(&mask, ^mad.ServiceID(0))
	s &= mask
	l := a.listener(s, mask)
	if l == nil {
		return
	}
	delete(a.exact, s)
	for i, m := range a.masked {
		if m == l {
			a.masked = append(a.masked[:i:i], a.masked[i+1:]...)
			break
		}
	}
	for l.pending.Len() > 0 {
		a.cancel(now, l.pending.Front().Value.(*conn))
	}
}

// match returns who listens for a service.
func (a *Agent) match(s mad.ServiceID) *Listener {
	if l := a.exact[s]; l != nil {
		return l
	}
	for _, l := range a.masked {
		if s&l.Mask == l.Service {
			return l
		}
	}
	return nil
}

// admit puts a request of a peer into the backlog. When it is full, or when
// there are too many requests in all, the oldest gives way.
func (a *Agent) admit(c *conn, l *Listener) {
	if l.pending.Len() >= l.Backlog {
		a.evict(l.pending.Front().Value.(*conn))
	}
	if a.halfOpen.Len() >= a.cfg.MaxHalfOpen {
		a.evict(a.halfOpen.Front().Value.(*conn))
	}
	c.listener, c.pending, c.half = l, l.pending.PushBack(c), a.halfOpen.PushBack(c)
}

// evict drops a request. Its sender is told only if it has had an answer:
// otherwise it asks again, and is in time if the flood is over.
func (a *Agent) evict(c *conn) {
	a.count(BacklogOverflow)
	if c.state == StateREPSent {
		a.sendREJ(c, mad.RejNoResources, nil, nil)
	}
	a.event(c, Event{Kind: EventDropped, Gone: true})
}

// answered takes c out of the backlog: the user has decided.
func (a *Agent) answered(c *conn) {
	if c.pending != nil {
		c.listener.pending.Remove(c.pending)
		c.pending, c.listener = nil, nil
	}
}

// settled says that c is half open no longer.
func (a *Agent) settled(c *conn) {
	a.answered(c)
	if c.half != nil {
		a.halfOpen.Remove(c.half)
		c.half = nil
	}
}

// receiveREQ takes a request for a connection.
func (a *Agent) receiveREQ(now time.Duration, src netip.Addr, tid uint64) {
	m := &a.req
	if m.LocalQPN <= ib.GSIQPN || m.LocalQPN >= ib.MulticastQPN {
		a.count(DropQPN)
		return
	}
	if old := a.remotes[remote(src, m.LocalCAGUID, m.LocalCommID)]; old != nil {
		if old.peerToPeer || old.remoteQPN == m.LocalQPN && old.remotePSN == m.StartingPSN && old.service == m.ServiceID {
			a.duplicateREQ(now, old)
			return
		}
		// Its peer has started again. While it rests nothing is in the way of that.
		if old.state != StateTimeWait {
			a.stale(now, src, tid, old)
			return
		}
	}
	if old := a.remoteQPs[remote(src, m.LocalCAGUID, uint32(m.LocalQPN))]; old != nil {
		a.stale(now, src, tid, old)
		return
	}
	if reason, ari := a.refuses(m); reason != 0 {
		a.refuse(src, tid, reason, ari)
		return
	}
	c := a.peering[service{plain(src), m.ServiceID}]
	switch {
	case c != nil && a.wins(c, m):
		a.count(DropPeer) // the other side answers
		return
	case c != nil:
		remove(a.peering, c.peeringKey(), c)
		c.state = StateREQReceived
	default:
		if c = a.admitREQ(src, tid, m); c == nil {
			return
		}
	}
	a.requested(now, c, tid)
}

// admitREQ returns a new connection for a REQ of a listener's service, nil when
// it had to be rejected.
func (a *Agent) admitREQ(src netip.Addr, tid uint64, m *mad.REQ) *conn {
	l := a.match(m.ServiceID)
	if l == nil {
		a.refuse(src, tid, mad.RejInvalidServiceID, nil)
		return nil
	}
	c := a.newConn(src, StateREQReceived)
	if c == nil {
		a.refuse(src, tid, mad.RejNoResources, nil)
		return nil
	}
	a.admit(c, l)
	return c
}

// requested notes what the REQ says and tells the user.
func (a *Agent) requested(now time.Duration, c *conn, tid uint64) {
	m := &a.req
	c.remote, c.guid, c.tid, c.service = m.LocalCommID, m.LocalCAGUID, tid, m.ServiceID
	c.remoteQPN, c.remotePSN = m.LocalQPN, m.StartingPSN
	c.roundTrip = roundTrip(m.Primary.LocalACKTimeout)
	c.timeout = c.roundTrip + wait(m.LocalCMResponseTimeout)
	c.retries = m.MaxCMRetries
	a.remotes[c.remoteKey()], a.remoteQPs[c.remoteQPKey()] = c, c
	c.patience = patience * (c.roundTrip + wait(m.RemoteCMResponseTimeout) + wait(a.cfg.ServiceTimeout))
	a.arm(c, now+c.patience)
	req := *m
	req.PrivateData = bytes.Clone(m.PrivateData)
	e := Event{Kind: EventREQ, Attr: mad.AttrREQ, REQ: &req}
	if c.listener != nil {
		e.Context = c.listener.Context
	}
	a.event(c, e)
}

// patience is how many times longer than the pause between a peer's requests it
// may be silent before a request that the user has not answered is forgotten.
const patience = 4

// wins says whether our REQ counts and not that of the other side of a
// peer-to-peer connection: the larger CA GUID is the active side, the larger
// queue pair number when they are equal (IBTA 12.9; cm_is_active_peer of older
// Linux drivers/infiniband/core/cm.c).
func (a *Agent) wins(c *conn, m *mad.REQ) bool {
	if a.cfg.GUID != m.LocalCAGUID {
		return a.cfg.GUID > m.LocalCAGUID
	}
	return c.localQPN >= m.LocalQPN
}

// refuses says why a REQ cannot be served, with what goes into the ARI; 0 when
// it can (IBTA 12.6.7.2; Linux looks for the P_Key and the GID in cm_req_handler).
func (a *Agent) refuses(m *mad.REQ) (mad.Reason, []byte) {
	own := ib.GIDFromAddr(a.cfg.Addr)
	from := m.Primary.LocalGID.Addr()
	switch {
	case !supported(m):
		return mad.RejInvalidTransport, nil
	case !m.PathMTU.Valid():
		return mad.RejInvalidMTU, []byte{byte(ib.MTU4096)}
	case m.Primary.RemoteGID != own || !m.PKey.Matches(ib.DefaultPKey),
		from.IsUnspecified() || from.IsMulticast() || from.Is4() != own.Addr().Is4():
		return mad.RejInvalidGID, own[:]
	}
	return 0, nil
}

// refuse rejects the REQ that was just received and keeps nothing of it.
func (a *Agent) refuse(src netip.Addr, tid uint64, reason mad.Reason, ari []byte) {
	a.count(RejectedREQ)
	a.answer(src, tid, &mad.REJ{RemoteCommID: a.req.LocalCommID, Rejected: mad.MsgREQ, Reason: reason, ARI: ari})
}

// stale rejects the REQ that was just received, because it uses identifiers of
// old, whose peer therefore must have started again (IBTA 12.9.8.3.1).
func (a *Agent) stale(now time.Duration, src netip.Addr, tid uint64, old *conn) {
	a.count(StaleConn)
	a.refuse(src, tid, mad.RejStaleConn, nil)
	a.lost(now, old)
}

// lost ends a connection whose peer knows nothing of it any more.
func (a *Agent) lost(now time.Duration, c *conn) {
	switch c.state {
	case StateEstablished:
		a.startDREQ(now, c, nil)
	case StateREQReceived, StateREPSent, StateREPReceived:
		a.event(c, Event{Kind: EventDropped, Gone: true})
	}
}

// duplicateREQ answers a REQ that came before.
func (a *Agent) duplicateREQ(now time.Duration, c *conn) {
	a.count(Duplicates(mad.AttrREQ))
	switch c.state {
	case StateREQReceived:
		a.arm(c, now+c.patience)
		a.sendMRA(c, mad.MsgREQ, c.tid)
	case StateREPSent:
		a.count(Retries(mad.AttrREP))
		a.cfg.Send(c.peer, c.out)
	case StateTimeWait:
		a.refuse(c.peer, c.tid, mad.RejStaleConn, nil)
	}
}

// SendREP accepts, after EventREQ. rep says with what; the agent fills in the
// identifiers and the CA GUID. Events tell what becomes of it: EventEstablished,
// EventDisconnected, EventRejected, EventUnreachable or EventDropped.
//
// It fails with ErrUnknownID, a StateError or a FieldError.
func (a *Agent) SendREP(now time.Duration, id ID, rep mad.REP) error {
	c, err := a.command(id)
	if err != nil {
		return err
	}
	if c.state != StateREQReceived {
		return &StateError{"SendREP", c.state}
	}
	if err := checkLen("PrivateData", rep.PrivateData, mad.REPPrivateData); err != nil {
		return err
	}
	if rep.RNRRetryCount > 7 {
		return &FieldError{"RNRRetryCount", rep.RNRRetryCount, "at most 7"}
	}
	qpn := rep.LocalQPN
	if qpn == 0 {
		qpn = ib.QPN(rep.LocalEECN) // an XRC target
	}
	if c.localQPN == 0 || qpn != c.localQPN { // which a peer-to-peer connection has already
		if err := a.checkQPN(qpn); err != nil {
			return err
		}
		remove(a.localQPs, c.localQPN, c)
	}
	a.answered(c)
	c.state, c.localQPN = StateREPSent, qpn
	a.localQPs[qpn] = c
	rep.LocalCommID, rep.RemoteCommID, rep.LocalCAGUID = c.id, c.remote, a.cfg.GUID
	a.repeat(now, c, &rep)
	return nil
}

// receiveRTU takes the last message of the making of a connection.
func (a *Agent) receiveRTU(src netip.Addr) {
	c := a.find(src, a.rtu.RemoteCommID, a.rtu.LocalCommID)
	switch {
	case c == nil:
	case c.state == StateREPSent:
		a.establish(c, bytes.Clone(a.rtu.PrivateData))
	default:
		a.count(Duplicates(mad.AttrRTU))
	}
}

// Established says that a packet came on the queue pair of a connection whose
// RTU has not come: it counts as the RTU (IBTA 12.9; ib_cm_notify of Linux). It
// does nothing for a connection that is established already.
func (a *Agent) Established(_ time.Duration, id ID) error {
	c, err := a.command(id)
	switch {
	case err != nil:
		return err
	case c.state == StateREPSent:
		a.establish(c, nil)
	case c.state != StateEstablished:
		return &StateError{"Established", c.state}
	}
	return nil
}

func (a *Agent) establish(c *conn, private []byte) {
	a.stop(c)
	a.settled(c)
	c.state, c.out = StateEstablished, nil
	a.event(c, Event{Kind: EventEstablished, Attr: mad.AttrRTU, Private: private})
}
