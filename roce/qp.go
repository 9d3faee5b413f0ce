package roce

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/transport"
	"github.com/goroce/goroce/transport/cc"
)

// QPConfig is what a queue pair is made of (ibv_qp_init_attr). Zero values other
// than the queues' mean defaults.
type QPConfig struct {
	Type           QPType // 0 means RC; those of XRCRecv are made by XRCD.CreateQP
	SendCQ, RecvCQ *CQ    // RecvCQ nil means SendCQ
	SRQ            *SRQ   // where receive requests come from; nil means a queue of its own, which XRCSend has not
	MaxSendWR      int    // requests in the send queue, 0 means 128
	MaxRecvWR      int    // requests in the receive queue, 0 means 128; without meaning with an SRQ and for XRCSend
	MaxSendSGE     int    // segments of a send request, 0 means 4
	MaxRecvSGE     int    // segments of a receive request, 0 means 4; without meaning like MaxRecvWR
	MaxInline      int    // bytes of inline data, up to 1024
	SigAll         bool   // every send request is signaled
	// Memory, if set, is where the work queues lie, for a library of another
	// language that posts without calls: see QP.Layout.
	Memory QueueMemory

	// Engine is which of the device's engines (Config.Engines) has it, counted from 1;
	// 0 means the one that has fewest. Queue pairs of different engines do not wait for
	// each other.
	Engine int

	Congestion cc.Algorithm // how the rate adapts; nil means what Config.Congestion says
	NoECN      bool         // as Config.NoECN
}

// QP is a queue pair (ibv_qp).
type QP struct {
	dev            *Device
	pd             *PD
	e              *engine
	num            ib.QPN
	typ            QPType
	sendCQ, recvCQ *CQ
	sigAll         bool
	maxLen         int            // bytes of the longest message
	seen           *atomic.Uint32 // the state, where the program sees it too; or nil
	layout         QueueLayout
	congestion     cc.Algorithm
	ecn, noECN     bool          // packets are ECT(0); that is not wanted
	psn            atomic.Uint32 // ib.PSN

	sendMu, recvMu sync.Mutex // leaves: one poster at a time
	retired        bool       // under both: nothing more can be posted
	sq             *sendRing  // nil for XRCRecv
	rq             *recvRing  // nil with an SRQ and for XRC
	srq            *SRQ       // or nil

	core *QP   // what the engine works with: the queue pair itself, but for XRCRecv
	xrcd *XRCD // by which a queue pair of XRCRecv was opened

	commEst  chan struct{} // one token: EventCommEst was told
	rung     atomic.Bool   // in the engine's list of bells
	nextBell *QP

	// Under the engine lock:
	t        *transport.QP
	links    [numQueues]link
	timer    timer
	peers    [3]*peer // the addresses that the peer may have, see transport.QP.Peers
	inFlight uint64   // its part of what is in flight to the first of them
	rx       inflow
	in       transport.Inbound // the packet at work
	dead     bool
	opens    []*QP // of a core of XRCRecv: what programs hold

	resources int // MaxDestRdAtomic, as counted for Limits
}

// CreateQP makes a queue pair in state RESET, with a random number. The longest
// datagram of one of type UD is what the port's active MTU is now.
func (p *PD) CreateQP(cfg QPConfig) (*QP, error) {
	e, err := p.dev.port.choose(cfg.Engine)
	if err != nil {
		return nil, err
	}
	q, err := p.newQP(cfg, e)
	if err != nil {
		return nil, err
	}
	if err := q.add(); err != nil {
		return nil, err
	}
	return q, nil
}

// newQP makes a queue pair of an engine that has no number yet.
func (p *PD) newQP(cfg QPConfig, e *engine) (*QP, error) {
	d := p.dev
	if err := cfg.fill(p); err != nil {
		return nil, err
	}
	if err := d.gone(); err != nil {
		return nil, err
	}
	psn, err := d.random64()
	if err != nil {
		return nil, err
	}
	ctl, err := controller(cfg.Congestion)
	if err != nil {
		return nil, err
	}
	q := &QP{
		dev: d, pd: p, e: e, typ: cfg.Type, sendCQ: cfg.SendCQ, recvCQ: cfg.RecvCQ, sigAll: cfg.SigAll,
		congestion: cfg.Congestion, noECN: cfg.NoECN || d.cfg.NoECN,
		sq:  newSendRing(cfg.MaxSendWR, cfg.MaxSendSGE, cfg.MaxInline),
		srq: cfg.SRQ, maxLen: maxMsg, commEst: make(chan struct{}, 1),
	}
	q.core, q.ecn = q, ctl != nil && !q.noECN
	q.SetPSN(ib.PSN(psn & 0xffffff))
	if q.typ == UD {
		port, err := d.QueryPort()
		if err != nil {
			return nil, err
		}
		q.maxLen = port.ActiveMTU.Bytes()
	}
	if q.srq == nil && q.typ != XRCSend {
		q.rq = newRecvRing(cfg.MaxRecvWR, cfg.MaxRecvSGE)
	}
	if cfg.Memory != nil {
		q.layOut(cfg.Memory)
	}
	return q, nil
}

// fill puts defaults in place and checks.
func (c *QPConfig) fill(p *PD) error {
	d := p.dev
	if c.Type == 0 {
		c.Type = RC
	}
	switch c.Type {
	case RC, UC, UD:
		if c.RecvCQ == nil {
			c.RecvCQ = c.SendCQ
		}
	case XRCSend: // receives nothing
		c.RecvCQ, c.SRQ, c.MaxRecvWR, c.MaxRecvSGE = nil, nil, 0, 0
	default:
		return &ConfigError{"Type", c.Type, "allowed are RC, UC, UD and XRCSend; XRCD.CreateQP makes those of XRCRecv"}
	}
	if c.SendCQ == nil || c.SendCQ.dev != d {
		return &ConfigError{"SendCQ", c.SendCQ, "a completion queue of the same device is needed"}
	}
	if c.RecvCQ != nil && c.RecvCQ.dev != d {
		return &ConfigError{"RecvCQ", c.RecvCQ, "a completion queue of the same device is needed"}
	}
	if c.SRQ != nil {
		if c.SRQ.pd != p || c.SRQ.xrcd != nil {
			return &ConfigError{"SRQ", c.SRQ, "a shared receive queue of the same protection domain and of no XRC domain is needed"}
		}
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	}
	if c.Congestion == nil {
		c.Congestion = d.cfg.Congestion
	}
	return fillLimits([]limit{
		{"MaxSendWR", &c.MaxSendWR, 128, maxQPWR},
		{"MaxRecvWR", &c.MaxRecvWR, 128, maxQPWR},
		{"MaxSendSGE", &c.MaxSendSGE, 4, maxSGE},
		{"MaxRecvSGE", &c.MaxRecvSGE, 4, maxSGE},
		{"MaxInline", &c.MaxInline, 0, maxInline},
	})
}

// limit is a number of a configuration, its default and the most it may be.
type limit struct {
	name       string
	v          *int
	zero, most int
}

// fillLimits puts defaults in place and checks.
func fillLimits(limits []limit) error {
	for _, f := range limits {
		if *f.v < 0 || *f.v > f.most {
			return &ConfigError{f.name, *f.v, fmt.Sprintf("allowed are 0 to %d", f.most)}
		}
		if *f.v == 0 {
			*f.v = f.zero
		}
	}
	return nil
}

// add gives the queue pair a free number and makes it known to the engine.
func (q *QP) add() error { return q.dev.number(q.e, q.take) }

// number lets take have a random number of an engine: whoever does not know the numbers
// cannot reach a queue pair. 0 and 1 are the management queue pairs, the highest is the
// multicast one. take is called with the engine locked, and again with another
// number when it reports false.
func (d *Device) number(e *engine, take func(num ib.QPN) (bool, error)) error {
	engines := uint64(len(d.port.engines))
	for done := false; !done; {
		n, err := d.random64()
		if err != nil {
			return err
		}
		n &= 0xffffff
		num := ib.QPN(n - n%engines + uint64(e.index))
		if num < 2 || num >= ib.MulticastQPN {
			continue
		}
		e.lock()
		if e.dead || d.closed.Load() {
			err = ErrClosed
		} else {
			done, err = take(num)
		}
		e.unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// take makes the queue pair known under a number, unless that is taken. The engine
// is locked.
func (q *QP) take(num ib.QPN) (bool, error) {
	if q.e.qps[num] != nil {
		return false, nil
	}
	if err := q.dev.addQP(q.e); err != nil {
		return false, err
	}
	err := q.addAs(num)
	if err != nil {
		q.dev.removeQP(q.e)
	}
	return true, err
}

// addAs makes the queue pair known under a free number. The engine is locked.
func (q *QP) addAs(num ib.QPN) error {
	if q.typ == XRCRecv {
		q.start(transport.QPConfig{Num: num, Type: XRCRecv, SRQs: q.xrcd.dom, Counters: &q.dev.counters, Event: q.event, Stash: q.dev.stashes[q.e.index], NoSelective: q.dev.cfg.NoSelective, Became: q.becomes()})
		return nil
	}
	if q.srq != nil && !q.srq.use() {
		return ErrClosed
	}
	cfg := transport.QPConfig{
		Num: num, Type: q.typ, PD: q.pd.num, Mem: q.dev.mem, SQ: q.sq, RQ: q.rq,
		SendCQ: q.sendCQ, RecvCQ: q.recvCQ, SQDepth: q.sq.mask + 1, SigAll: q.sigAll,
		Counters: &q.dev.counters, Event: q.event, Window: q.dev.cfg.Window, Stash: q.dev.stashes[q.e.index], NoSelective: q.dev.cfg.NoSelective,
		AHs: &q.dev.ahs, MTU: q.maxLen, Seen: q.seen, Became: q.becomes(),
	}
	if q.srq != nil {
		cfg.RQ, cfg.SharedRQ = q.srq, true
	}
	q.start(cfg)
	if q.typ == UD && q.e.strangers == nil {
		q.e.strangers = newStrangers()
	}
	q.pd.refs.Add(1)
	q.sendCQ.use(q.e)
	if q.recvCQ != nil {
		q.recvCQ.use(q.e)
	}
	return nil
}

// start makes the queue pair known under the number of cfg. The engine is locked.
func (q *QP) start(cfg transport.QPConfig) {
	q.num = cfg.Num
	cfg.Congestion, cfg.Traced, cfg.Notifier, cfg.ECN = q.congestion, q.trace(), q.dev.notifier, q.ecn
	q.t = transport.NewQP(cfg)
	q.e.qps[cfg.Num] = q
}

// Num returns the queue pair number.
func (q *QP) Num() ib.QPN { return q.num }

// PSN returns the PSN that RTS uses for the first request, a random one.
func (q *QP) PSN() ib.PSN { return ib.PSN(q.psn.Load()) }

// SetPSN sets the PSN that RTS uses for the first request: the connection manager
// lets the peer choose it (IBTA chapter 12, starting PSN).
func (q *QP) SetPSN(psn ib.PSN) { q.psn.Store(uint32(psn)) }

// CommEst receives once when a queue pair in RTR has got its first packet, as
// EventCommEst tells everybody: for who sets up the connection, if the peer's last
// word is late.
func (q *QP) CommEst() <-chan struct{} { return q.core.commEst }

// State returns the state of the queue pair.
func (q *QP) State() State { return q.t.State() }

// Query returns the attributes, and what the queue pair was made of with the real
// sizes of its queues, at least those asked for (ibv_query_qp). The receive queue
// of one with an SRQ has size 0, as has all that a queue pair of XRC lacks.
func (q *QP) Query() (Attr, QPConfig) {
	q.e.lock()
	a := q.t.Query()
	q.e.unlock()
	c := QPConfig{Type: q.typ, SendCQ: q.sendCQ, RecvCQ: q.recvCQ, SRQ: q.srq, SigAll: q.sigAll, Congestion: q.congestion, NoECN: q.noECN}
	if q.sq != nil {
		c.Engine = q.e.index + 1
		c.MaxSendWR, c.MaxSendSGE, c.MaxInline = int(q.sq.mask+1), int(q.sq.maxSGE), int(q.sq.maxInline)
	}
	if q.rq != nil {
		c.MaxRecvWR, c.MaxRecvSGE = q.rq.size(), int(q.rq.maxSGE)
	}
	return a, c
}

// Modify changes attributes and state as ibv_modify_qp does: the mask says which
// fields of a are meant. The error is an *AttrError that names the field and what
// is allowed. In RESET there are no requests and, in its completion queues, no
// completions of the queue pair any more.
func (q *QP) Modify(a *Attr, mask AttrMask) error {
	if err := q.checkPath(a, mask); err != nil {
		return err
	}
	now := q.e.lock()
	defer q.e.unlock()
	if q.dead {
		return ErrClosed
	}
	q.e.settle(now)
	c := q.core
	if err := c.takeResources(a, mask); err != nil {
		return err
	}
	err := c.t.Modify(now, a, mask)
	c.setResources(int(c.t.Query().MaxDestRdAtomic))
	if err != nil {
		return err
	}
	if mask&MaskState != 0 && a.State == StateReset {
		q.e.wheel.remove(c)
		for _, cq := range []*CQ{q.sendCQ, q.recvCQ} {
			if cq != nil {
				cq.forget(q.Num())
			}
		}
	}
	c.setPeers(c.t.Peers())
	q.e.touch(c)
	q.e.transmit(now)
	return nil
}

// setPeers notes where packets of the peer may come from. The engine is locked.
func (q *QP) setPeers(addrs [3]netip.Addr) {
	old := q.peers
	if p := old[0]; p != nil && p.addr != addrs[0] {
		q.e.depart(q, p)
	}
	for i, a := range addrs {
		q.peers[i] = nil
		if a.IsValid() {
			q.peers[i] = q.e.peers.get(a)
		}
	}
	for _, p := range old {
		q.e.peers.put(p)
	}
}

// from returns the peer at an address, or nil.
func (q *QP) from(a netip.Addr) *peer {
	for _, p := range q.peers {
		if p != nil && p.addr == a {
			return p
		}
	}
	return nil
}

// checkAV checks an address vector against the device's own address. The error is a
// *ConfigError for the field of that name.
func (d *Device) checkAV(field string, av *AddressVector) error {
	if peer := av.DGID.Addr(); peer.Is4() != d.addr.Is4() {
		return &ConfigError{field + ".DGID", peer, fmt.Sprintf("an address of the IP version of %v is needed", d.addr)}
	}
	if err := d.checkPeer(field+".DGID", av.DGID.Addr()); err != nil {
		return err
	}
	if av.SGIDIndex != 0 {
		return &ConfigError{field + ".SGIDIndex", av.SGIDIndex, "allowed is 0: a device has one address"}
	}
	return nil
}

// checkPath checks what only the device knows: the port's MTU and its addresses.
func (q *QP) checkPath(a *Attr, mask AttrMask) error {
	if mask&MaskAV != 0 {
		if err := q.dev.checkAV("AV", &a.AV); err != nil {
			return err
		}
	}
	if mask&MaskAltPath != 0 {
		if err := q.dev.checkAV("AltAV", &a.AltAV); err != nil {
			return err
		}
	}
	if mask&MaskPathMTU == 0 {
		return nil
	}
	port, err := q.dev.QueryPort()
	if err != nil {
		return err
	}
	if a.PathMTU > port.ActiveMTU {
		return &ConfigError{"PathMTU", a.PathMTU, fmt.Sprintf(
			"at most %v fits the MTU %d of interface %s: use that, or raise the interface's MTU to %d",
			port.ActiveMTU, port.LinkMTU, port.Interface, a.PathMTU.Bytes()+headers(q.dev.addr))}
	}
	return nil
}

// Destroy frees the queue pair (ibv_destroy_qp). Requests that are still posted
// never complete: to see them flushed, move it to the error state first and poll.
// One of XRCRecv lives on while others have it open.
func (q *QP) Destroy() error {
	now := q.e.lock()
	defer q.e.unlock()
	if q.dead {
		return ErrClosed
	}
	q.e.settle(now)
	if q.xrcd != nil {
		q.letGo()
		return nil
	}
	q.retire()
	q.remove()
	return nil
}

// retire lets nothing more be posted. Who removes a queue pair and flushes it first
// has flushed all that was taken then. The engine's lock is held.
func (q *QP) retire() {
	q.sendMu.Lock()
	q.recvMu.Lock()
	q.retired = true
	q.recvMu.Unlock()
	q.sendMu.Unlock()
}

// remove takes the queue pair out of the engine, whose lock is held.
func (q *QP) remove() {
	q.dead = true
	q.t.Destroy()
	q.in = transport.Inbound{} // it points into a buffer of the backend
	delete(q.e.qps, q.num)
	q.dev.removeQP(q.e)
	q.setResources(0)
	q.e.detachAll(q)
	q.e.wheel.remove(q)
	q.setPeers([3]netip.Addr{})
	if q.typ == XRCRecv {
		for _, o := range q.opens {
			o.dead = true
			o.xrcd.refs--
		}
		return
	}
	q.pd.refs.Add(-1)
	q.sendCQ.letGo(q.e)
	if q.recvCQ != nil {
		q.recvCQ.letGo(q.e)
	}
	if q.srq != nil {
		q.srq.refs.Add(-1)
	}
}
