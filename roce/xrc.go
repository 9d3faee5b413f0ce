package roce

import (
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/transport"
)

// maxSRQN is the highest number of a shared receive queue, a field of 24 bits.
const maxSRQN = 1<<24 - 1

// xrc is what an engine knows of the extended reliable connection. All of it is
// below the engine lock.
type xrc struct {
	opens map[*XRCD]struct{}
	srqs  map[ib.QPN]*SRQ
}

func newXRC() xrc { return xrc{opens: map[*XRCD]struct{}{}, srqs: map[ib.QPN]*SRQ{}} }

// domain returns the domain with a name, or nil.
func (x *xrc) domain(name string) *xrcDomain {
	for o := range x.opens {
		if name != "" && o.dom.name == name {
			return o.dom
		}
	}
	return nil
}

// leave closes everything of a device that is being closed. Its targets are gone.
func (x *xrc) leave(d *Device) {
	for _, s := range x.srqs {
		if s.dev == d {
			s.cutOff()
		}
	}
	for o := range x.opens {
		if o.dev == d {
			o.close()
		}
	}
}

// xrcDomain is what the XRCDs of one name have in common. It finds the shared
// receive queues for its targets.
type xrcDomain struct {
	name string // empty: nobody else can open it
	e    *engine
}

// SRQ implements transport.SRQs.
func (d *xrcDomain) SRQ(num ib.QPN) *transport.SRQ {
	if s := d.e.xrc.srqs[num]; s != nil && s.xrcd.dom == d {
		return &s.t
	}
	return nil
}

// XRCD is an XRC domain as a device has it open (ibv_xrcd): its targets (queue
// pairs of type XRCRecv) receive for all of its shared receive queues. Devices of
// one process on one address can open one domain, by its name, as processes open one
// by a file with libibverbs: a connection to any of its targets then reaches the
// receive queues of all of them. A device with Backend, Wrap, Clock or Manual in its
// Config shares nothing. Closing a device takes its receive queues out of the domain;
// targets that others have open stay.
//
// A sender is a queue pair of type XRCSend, connected to a target; each of its
// requests names a receive queue of the domain in SendWR.RemoteSRQN. The peer that
// it is told is the target, the peer of the target is the sender.
type XRCD struct {
	dev    *Device
	dom    *xrcDomain
	refs   int  // shared receive queues and targets; below the engine lock, as is closed
	closed bool // ... or the device
}

// OpenXRCD opens the XRC domain with a name (ibv_open_xrcd). The flags are
// os.O_CREATE: make it if there is none; and with it os.O_EXCL: it must not be there.
// A domain lasts until the last who has opened it closes it. An empty name means a
// new domain that nobody else can open, which needs os.O_CREATE. The errors are
// those of opening a file: fs.ErrNotExist, fs.ErrExist; a *ConfigError for the flags.
func (d *Device) OpenXRCD(name string, flags int) (*XRCD, error) {
	if flags&^(os.O_CREATE|os.O_EXCL) != 0 || name == "" && flags&os.O_CREATE == 0 {
		return nil, &ConfigError{"flags", fmt.Sprintf("%#x", flags), "allowed are os.O_CREATE, which a domain without a name needs, and os.O_EXCL"}
	}
	e := d.port.domainEngine(name)
	e.lock()
	defer e.unlock()
	if err := d.gone(); err != nil {
		return nil, err
	}
	dom := e.xrc.domain(name)
	switch create := flags&os.O_CREATE != 0; {
	case dom == nil && !create:
		return nil, fmt.Errorf("roce: XRC domain %q: %w", name, fs.ErrNotExist)
	case dom == nil:
		dom = &xrcDomain{name: name, e: e}
	case create && flags&os.O_EXCL != 0:
		return nil, fmt.Errorf("roce: XRC domain %q: %w", name, fs.ErrExist)
	}
	x := &XRCD{dev: d, dom: dom}
	e.xrc.opens[x] = struct{}{}
	return x, nil
}

// domainEngine returns the engine of all targets and shared receive queues of a
// domain: the same for a name, or the least used one if it has none.
func (p *port) domainEngine(name string) *engine {
	if name == "" {
		return p.leastUsed()
	}
	h := fnv.New32a()
	io.WriteString(h, name) // which cannot fail
	return p.engines[h.Sum32()%uint32(len(p.engines))]
}

// Close closes the domain (ibv_close_xrcd). It returns ErrBusy while shared receive
// queues or targets that were made or opened with x exist.
func (x *XRCD) Close() error {
	e := x.dom.e
	e.lock()
	defer e.unlock()
	if x.closed {
		return ErrClosed
	}
	if x.refs > 0 {
		return fmt.Errorf("XRC domain: %w", ErrBusy)
	}
	x.close()
	return nil
}

func (x *XRCD) close() {
	x.closed = true
	delete(x.dom.e.xrc.opens, x)
}

// join makes the queue one of an XRC domain, with a random number, if it is to be.
func (s *SRQ) join(x *XRCD, cq *CQ) error {
	switch {
	case x == nil && cq == nil:
		return nil
	case x == nil || x.dev != s.dev:
		return &ConfigError{"XRCD", x, "an XRC domain of the same device goes with CQ"}
	case cq == nil || cq.dev != s.dev:
		return &ConfigError{"CQ", cq, "a completion queue of the same device goes with XRCD"}
	}
	return s.dev.number(x.dom.e, func(num ib.QPN) (bool, error) {
		if x.closed {
			return false, ErrClosed
		}
		srqs := x.dom.e.xrc.srqs
		if srqs[num] != nil {
			return false, nil
		}
		s.xrcd, s.cq = x, cq
		s.t = transport.SRQ{Num: num, RQ: s, CQ: cq, Mem: s.dev.mem, PD: s.pd.num}
		srqs[num] = s
		x.refs++
		cq.use(x.dom.e)
		return true, nil
	})
}

// Num returns the number by which senders name the queue (ibv_get_srq_num), 0 if it
// is not one of an XRC domain.
func (s *SRQ) Num() ib.QPN { return s.t.Num }

// cutOff takes the queue out of its XRC domain, once or again: no message finds it
// any more. The engine is locked.
func (s *SRQ) cutOff() {
	s.t.Closed = true
	delete(s.xrcd.dom.e.xrc.srqs, s.t.Num)
}

// CreateQP makes a target, a queue pair of type XRCRecv, in state RESET with a random
// number (ibv_create_qp_ex with an XRC domain). It has no queues and no protection
// domain of its own. Its receives complete on the completion queues of the domain's
// shared receive queues. Its events go to all who have it open.
func (x *XRCD) CreateQP() (*QP, error) {
	psn, err := x.dev.random64()
	if err != nil {
		return nil, err
	}
	ctl, err := controller(x.dev.cfg.Congestion)
	if err != nil {
		return nil, err
	}
	core := &QP{
		dev: x.dev, e: x.dom.e, typ: XRCRecv, xrcd: x, commEst: make(chan struct{}, 1),
		congestion: x.dev.cfg.Congestion, ecn: ctl != nil && !x.dev.cfg.NoECN,
	}
	core.SetPSN(ib.PSN(psn & 0xffffff))
	core.core = core
	var q *QP
	err = x.dev.number(x.dom.e, func(num ib.QPN) (bool, error) {
		if x.closed {
			return false, ErrClosed
		}
		done, err := core.take(num)
		if done {
			q = x.open(core)
		}
		return done, err
	})
	return q, err
}

// OpenQP opens the target of the domain that has a number, for one user more
// (ibv_open_qp): it lives until all have destroyed theirs. What was dropped of its
// packets is counted by the device that created it. The error is fs.ErrNotExist when
// the domain has no such target.
func (x *XRCD) OpenQP(num ib.QPN) (*QP, error) {
	e := x.dom.e
	e.lock()
	defer e.unlock()
	if x.closed {
		return nil, ErrClosed
	}
	core := e.qps[num]
	if core == nil || core.typ != XRCRecv || core.xrcd.dom != x.dom {
		return nil, fmt.Errorf("roce: XRC target %#x of the domain: %w", uint32(num), fs.ErrNotExist)
	}
	return x.open(core), nil
}

// open makes what a program holds of a target. The engine is locked.
func (x *XRCD) open(core *QP) *QP {
	q := &QP{dev: x.dev, e: core.e, num: core.num, typ: XRCRecv, core: core, xrcd: x, t: core.t}
	q.SetPSN(core.PSN())
	core.opens = append(core.opens, q)
	x.refs++
	return q
}

// letGo gives up one user's target; with the last one it ends. The engine is locked.
func (q *QP) letGo() {
	q.dead = true
	q.xrcd.refs--
	c := q.core
	c.opens = slices.DeleteFunc(c.opens, func(o *QP) bool { return o == q })
	if len(c.opens) == 0 {
		c.remove()
	}
}

// leaving returns the queue pairs that end with a device. Targets that others have
// open are let go.
func (e *engine) leaving(d *Device) (list []*QP) {
	others := func(o *QP) bool { return o.dev != d }
	for _, q := range e.qps {
		switch {
		case q.typ != XRCRecv && q.dev == d, q.typ == XRCRecv && !slices.ContainsFunc(q.opens, others):
			list = append(list, q)
		case q.typ == XRCRecv:
			for _, o := range slices.Clone(q.opens) {
				if !others(o) {
					o.letGo()
				}
			}
		}
	}
	return list
}
