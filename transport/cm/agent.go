package cm

import (
	"container/list"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

// Config is what an agent is made of.
type Config struct {
	// Addr is the address of the port. A REQ must name it as its primary remote
	// GID.
	Addr netip.Addr
	// GUID is the CA GUID: not 0, and another one for each device. Peers tell
	// connections apart by it.
	GUID uint64
	// Rand gives random numbers. Identifiers start at one, so that those of a
	// program that starts again are not those of its last life.
	Rand func() uint32
	// Send transmits the datagram b from QP1 of the port to QP1 of to. b is
	// valid during the call. A datagram may be lost.
	Send func(to netip.Addr, b []byte)
	// Event is told what happened. It must only queue.
	Event func(Event)
	// Counters are those to count with; nil for the agent's own.
	Counters *Counters

	// MaxIDs limits connections and resolutions in any state, those in
	// time-wait included; 0 means 65536. Beyond it, requests of peers are
	// rejected with RejNoResources, and commands fail with ErrLimit.
	MaxIDs int
	// MaxHalfOpen limits requests of peers that have not become connections,
	// over all listeners; 0 means 4096. Beyond it, the oldest is dropped.
	MaxHalfOpen int
	// MaxTimeWait limits connections in time-wait; 0 means 16384. Beyond it, the
	// oldest leaves early.
	MaxTimeWait int
	// ServiceTimeout is the time that the agent's MRAs ask for when a peer
	// repeats a message that the user has not answered yet; 0 means code 20,
	// 4.3 s.
	ServiceTimeout ib.AckTimeout
}

// Defaults of Config and of messages. Linux's rdma_cm asks for the same response
// timeout and retries.
const (
	defaultMaxIDs          = 65536
	defaultMaxHalfOpen     = 4096
	defaultMaxTimeWait     = 16384
	defaultBacklog         = 1024
	defaultResponseTimeout = ib.AckTimeout(20)
	defaultRetries         = 15
	defaultACKTimeout      = ib.AckTimeout(17)
)

// Agent is the connection manager of one port. Its methods are called by one
// goroutine at a time, and never from inside Config.Send or Config.Event.
type Agent struct {
	cfg     Config
	nextID  uint32
	nextTID uint64

	ids       map[uint32]*conn   // by local identifier
	remotes   map[remoteID]*conn // by the peer's identifier
	remoteQPs map[remoteID]*conn // by the peer's queue pair, until time-wait
	localQPs  map[ib.QPN]*conn   // by our queue pair, until the end of time-wait
	peering   map[service]*conn  // peer-to-peer, while the REQ is unanswered
	resolving map[remoteID]*conn // datagram requests of peers that wait for Answer
	exact     map[mad.ServiceID]*Listener
	masked    []*Listener
	halfOpen  list.List // *conn, oldest first
	timeWait  list.List // *conn, oldest first
	timers    timers
	buf       [mad.Size]byte // a datagram that is not kept

	// What Receive decodes into.
	req     mad.REQ
	mra     mad.MRA
	rej     mad.REJ
	rep     mad.REP
	rtu     mad.RTU
	dreq    mad.DREQ
	drep    mad.DREP
	sidrReq mad.SIDRREQ
	sidrRep mad.SIDRREP
	lap     mad.LAP
	apr     mad.APR
}

// remoteID is a number that a peer gave away, with who it was. The address is
// part of it: a CA GUID is no secret.
type remoteID struct {
	peer netip.Addr
	guid uint64
	num  uint32
}

func remote(peer netip.Addr, guid uint64, num uint32) remoteID {
	return remoteID{plain(peer), guid, num}
}

// service is what a peer wants.
type service struct {
	peer netip.Addr
	id   mad.ServiceID
}

// plain returns an address as it compares: a port has one zone, which not
// everybody names.
func plain(a netip.Addr) netip.Addr { return a.WithZone("").Unmap() }

// New returns an agent. It fails with a FieldError.
func New(cfg Config) (*Agent, error) {
	switch {
	case !cfg.Addr.IsValid() || cfg.Addr.IsUnspecified() || cfg.Addr.IsMulticast():
		return nil, &FieldError{"Addr", cfg.Addr, "a unicast address"}
	case cfg.GUID == 0:
		return nil, &FieldError{"GUID", cfg.GUID, "not 0"}
	case cfg.Rand == nil || cfg.Send == nil || cfg.Event == nil:
		return nil, &FieldError{"Rand, Send or Event", nil, "a function"}
	case cfg.MaxIDs < 0 || cfg.MaxHalfOpen < 0 || cfg.MaxTimeWait < 0:
		return nil, &FieldError{"MaxIDs, MaxHalfOpen or MaxTimeWait", "negative", "at least 0"}
	case cfg.ServiceTimeout > 31:
		return nil, &FieldError{"ServiceTimeout", uint8(cfg.ServiceTimeout), "a code of 5 bits"}
	}
	orDefault(&cfg.MaxIDs, defaultMaxIDs)
	orDefault(&cfg.MaxHalfOpen, defaultMaxHalfOpen)
	orDefault(&cfg.MaxTimeWait, defaultMaxTimeWait)
	orDefault(&cfg.ServiceTimeout, defaultResponseTimeout)
	if cfg.Counters == nil {
		cfg.Counters = new(Counters)
	}
	return &Agent{
		cfg: cfg, nextID: cfg.Rand(), nextTID: uint64(cfg.Rand())<<32 | 1,
		ids: map[uint32]*conn{}, remotes: map[remoteID]*conn{}, remoteQPs: map[remoteID]*conn{},
		localQPs: map[ib.QPN]*conn{}, peering: map[service]*conn{}, resolving: map[remoteID]*conn{},
		exact: map[mad.ServiceID]*Listener{},
	}, nil
}

// orDefault replaces 0.
func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// State returns where id stands, StateNone when it is unknown.
func (a *Agent) State(id ID) State {
	if c := a.ids[uint32(id)]; c != nil {
		return c.state
	}
	return StateNone
}

// Len returns how many identifiers there are, and how many of them are in
// time-wait.
func (a *Agent) Len() (all, timeWait int) { return len(a.ids), a.timeWait.Len() }

// Counters returns the counters.
func (a *Agent) Counters() *Counters { return a.cfg.Counters }

func (a *Agent) count(c Counter) { a.cfg.Counters.inc(c) }

// Receive takes the datagram b that came to QP1 from src. Datagrams of other
// classes are dropped and counted.
func (a *Agent) Receive(now time.Duration, src netip.Addr, b []byte) {
	h, bad := mad.Parse(b)
	if bad != mad.OK || h.Class != mad.ClassCM || h.ClassVersion != mad.ClassCM.Version() {
		a.count(DropFormat)
		return
	}
	if h.Method == mad.MethodGet {
		a.receiveGet(src, h)
		return
	}
	if h.Method != mad.MethodSend || h.Attr < mad.AttrREQ || h.Attr > mad.AttrAPR {
		a.count(DropMethod)
		return
	}
	a.count(Rx(h.Attr))
	a.dispatch(now, src, h, b)
}

// dispatch decodes a message of the connection manager and hands it to whoever
// acts on it.
func (a *Agent) dispatch(now time.Duration, src netip.Addr, h mad.Header, b []byte) {
	switch h.Attr {
	case mad.AttrREQ:
		mad.Decode(b, &a.req)
		a.receiveREQ(now, src, h.TID)
	case mad.AttrMRA:
		mad.Decode(b, &a.mra)
		a.receiveMRA(now, src)
	case mad.AttrREJ:
		mad.Decode(b, &a.rej)
		a.receiveREJ(now, src)
	case mad.AttrREP:
		mad.Decode(b, &a.rep)
		a.receiveREP(now, src, h.TID)
	case mad.AttrRTU:
		mad.Decode(b, &a.rtu)
		a.receiveRTU(src)
	case mad.AttrDREQ:
		mad.Decode(b, &a.dreq)
		a.receiveDREQ(now, src, h.TID)
	case mad.AttrDREP:
		mad.Decode(b, &a.drep)
		a.receiveDREP(now, src)
	case mad.AttrSIDRREQ:
		mad.Decode(b, &a.sidrReq)
		a.receiveSIDRREQ(now, src, h.TID)
	case mad.AttrSIDRREP:
		mad.Decode(b, &a.sidrRep)
		a.receiveSIDRREP(src)
	case mad.AttrLAP:
		mad.Decode(b, &a.lap)
		a.receiveLAP(src, h.TID)
	case mad.AttrAPR:
		mad.Decode(b, &a.apr)
		a.receiveAPR(src)
	}
}

// receiveGet answers questions about the agent itself (IBTA 13.4.8.1).
func (a *Agent) receiveGet(src netip.Addr, h mad.Header) {
	h.Method = mad.MethodGetResp
	if h.Attr == mad.AttrClassPortInfo {
		mad.Put(a.buf[:], &mad.ClassPortInfo{
			Class: mad.ClassCM, ClassVersion: mad.ClassCM.Version(), RespTime: defaultResponseTimeout,
			CapabilityMask: mad.CMCapRC | mad.CMCapUC | mad.CMCapUD,
		})
	} else {
		a.count(DropMethod)
		h.Status = mad.StatusBadMethodAttr
		clear(a.buf[mad.HeaderSize:])
	}
	h.Put(a.buf[:])
	a.cfg.Send(src, a.buf[:])
}

// find returns the connection that a message from src names by our identifier
// and by the peer's, nil when there is none.
func (a *Agent) find(src netip.Addr, local, remote uint32) *conn {
	c := a.ids[local]
	if c == nil || c.remote != remote {
		a.count(DropUnknownID)
		return nil
	}
	if !c.from(src) {
		a.count(DropSource)
		return nil
	}
	return c
}

// command returns the connection that a command is about.
func (a *Agent) command(id ID) (*conn, error) {
	c := a.ids[uint32(id)]
	if c == nil {
		return nil, ErrUnknownID
	}
	return c, nil
}

// newConn returns a connection with a new identifier, nil when there are too
// many.
func (a *Agent) newConn(peer netip.Addr, s State) *conn {
	if len(a.ids) >= a.cfg.MaxIDs {
		return nil
	}
	for a.nextID++; a.nextID == 0 || a.ids[a.nextID] != nil; {
		a.nextID++
	}
	c := &conn{id: a.nextID, tid: a.newTID(), peer: peer, state: s, timer: unarmed}
	a.ids[c.id] = c
	return c
}

// newTID returns a transaction identifier for a request and its repetitions.
func (a *Agent) newTID() uint64 {
	a.nextTID++
	return a.nextTID
}

// checkPeer says what is wrong with the address of a peer.
func (a *Agent) checkPeer(dst netip.Addr) error {
	switch {
	case !dst.IsValid() || dst.IsUnspecified() || dst.IsMulticast():
		return &FieldError{"address", dst, "a unicast address"}
	case dst.Unmap().Is4() != a.cfg.Addr.Unmap().Is4():
		return &FieldError{"address", dst, "of the IP version of " + a.cfg.Addr.String()}
	}
	return nil
}

// answer sends a message that nobody repeats and whose connection, if any, needs
// no copy.
func (a *Agent) answer(to netip.Addr, tid uint64, m mad.Message) {
	mad.EncodeCM(a.buf[:], tid, m)
	a.count(Tx(m.Attr()))
	a.cfg.Send(to, a.buf[:])
}

// event tells the user about c.
func (a *Agent) event(c *conn, e Event) {
	e.ID, e.Peer = ID(c.id), c.peer
	if e.Gone {
		a.forget(c)
	}
	a.cfg.Event(e)
}

// forget removes every trace of c.
func (a *Agent) forget(c *conn) {
	a.stop(c)
	a.settled(c)
	if c.waiting != nil {
		a.timeWait.Remove(c.waiting)
		c.waiting = nil
	}
	remove(a.ids, c.id, c)
	remove(a.remotes, c.remoteKey(), c)
	remove(a.remoteQPs, c.remoteQPKey(), c)
	remove(a.localQPs, c.localQPN, c)
	remove(a.peering, c.peeringKey(), c)
	remove(a.resolving, c.resolvingKey(), c)
	c.state = StateNone
}

// remove deletes an entry if it is c's: another connection may have taken it.
func remove[K comparable](m map[K]*conn, k K, c *conn) {
	if m[k] == c {
		delete(m, k)
	}
}
