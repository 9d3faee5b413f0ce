package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/transport"
)

// Limits of a device, as Query reports them.
const (
	maxQP     = 1 << 20
	maxQPWR   = 1 << 15
	maxSRQWR  = 1 << 15
	maxSGE    = mem.MaxSGE
	maxCQE    = 1 << 22
	maxMRSize = 1 << 62
	maxMR     = mem.MaxObjects // memory regions and windows together
	maxInline = 1024
	maxMsg    = 1 << 31

	maxCQ        = 1 << 20
	maxCM        = 1 << 20 // of each kind
	maxResRdAtom = maxQP * transport.MaxDestRdAtomic
)

// Device is a RoCEv2 channel adapter at one local address (ibv_context). It has
// one port, number 1.
type Device struct {
	cfg      Config
	addr     netip.Addr
	port     *port
	guid     uint64
	spin     time.Duration
	mem      *mem.Table
	ahs      ahTable
	counters transport.Counters
	stashes  []*transport.Stash // of the engines, under their locks
	notifier *transport.Notifier
	events   *mailbox[AsyncEvent]
	recent   recentEvents
	stat     *statSocket // or nil
	finished sync.Once
	done     chan struct{} // closed by finish
	allow    allowList
	unwatch  func() // ends the watch of the port
	closed   atomic.Bool
	manual   atomic.Int64 // time of the last Progress

	mu       sync.Mutex // guards what follows, the writers of mem and Rand; never held with an engine lock wanted
	used     usage
	nextPD   uint32
	pds      int
	channels map[*CompChannel]struct{}

	journal journal
}

// Open opens a device. It needs no privileges. The errors say what to do: a
// *ConfigError for a field of cfg, a *netio.ListenError for an address that is not
// local or taken.
func Open(cfg Config) (*Device, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	addr, err := cfg.address()
	if err != nil {
		return nil, err
	}
	d, err := newDevice(cfg, addr)
	if err != nil {
		return nil, err
	}
	if cfg.Manual && cfg.Clock == nil {
		d.cfg.Clock = func() time.Duration { return time.Duration(d.manual.Load()) }
	}
	if d.port, err = openPort(d.cfg, d.allow, netip.AddrPortFrom(addr, cfg.Port)); err != nil {
		return nil, err
	}
	d.makeStashes()
	d.startJournal()
	if err := d.port.join(d); err != nil {
		d.journal.close()
		d.port.release()
		return nil, err
	}
	d.watch()
	if err := d.openStats(); err != nil {
		d.Close()
		return nil, err
	}
	cfg.Logger.Info("device open", "name", cfg.Name, "addr", addr, "backend", d.port.first().be.Caps().Name, "engines", len(d.port.engines))
	return d, nil
}

// newDevice makes a device that has no port yet. cfg has its defaults in place.
func newDevice(cfg Config, addr netip.Addr) (d *Device, err error) {
	d = &Device{cfg: cfg, addr: addr, spin: cfg.Spin, mem: mem.NewTable(cfg.Rand), done: make(chan struct{})}
	d.notifier = cfg.CNP.notifier()
	d.mem.SetSync(msync, checkPersistent)
	d.events, d.channels = newMailbox[AsyncEvent](), map[*CompChannel]struct{}{}
	if d.allow, err = newAllowList(cfg.AllowPeers); err != nil {
		return nil, err
	}
	d.guid, err = d.random64()
	return d, err
}

// makeStashes makes a stash for each engine.
func (d *Device) makeStashes() {
	n := len(d.port.engines)
	for range n {
		d.stashes = append(d.stashes, transport.NewStash(share(d.cfg.Stash, n), d.cfg.StashQP))
	}
}

// random64 reads a random number from Config.Rand.
func (d *Device) random64() (uint64, error) {
	var b [8]byte
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := io.ReadFull(d.cfg.Rand, b[:]); err != nil {
		return 0, fmt.Errorf("roce: Config.Rand: %w", err)
	}
	return binary.BigEndian.Uint64(b[:]), nil
}

// Addr returns the local address.
func (d *Device) Addr() netip.Addr { return d.addr }

// Name returns the device's name.
func (d *Device) Name() string { return d.cfg.Name }

// Progress runs one bounded batch of a manual device at time now, which must not
// go back, and returns when it has to be called again if nothing happens before:
// now when there is more to do at once, Never when nothing is due. One goroutine
// at a time may call it. On a device that is not manual it does nothing and
// returns Never.
func (d *Device) Progress(now time.Duration) (next time.Duration) {
	if !d.cfg.Manual {
		return Never
	}
	d.manual.Store(int64(now))
	return d.port.progress(now)
}

// Close closes the device: requests that are still posted complete as flushed, and
// remain to be polled; everything waiting returns ErrClosed. It does not wait for
// any peer. Objects of the device need not be destroyed before.
//
// It returns within Config.CloseTimeout whatever the network does. A backend that
// does not return from one of its methods is the one thing that can hold it up so
// long: then the error is ErrCloseTimeout, and what is left ends when the backend
// returns. With Config.Manual, Close has no goroutine to wait in and no bound.
//
// A device whose engine has panicked (see FatalError and EventDeviceFatal) has
// flushed its requests by then, and waits for Close only.
func (d *Device) Close() error {
	if d.closed.Swap(true) {
		return ErrClosed
	}
	if d.cfg.Manual {
		return d.shut()
	}
	timer := time.NewTimer(d.cfg.CloseTimeout)
	defer timer.Stop()
	done := make(chan error, 1)
	go func() { done <- d.shut() }()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		d.finish()
		return fmt.Errorf("%w: the backend has not returned within %v", ErrCloseTimeout, d.cfg.CloseTimeout)
	}
}

// shut does the work of Close.
func (d *Device) shut() error {
	d.stat.close()
	for _, e := range d.port.engines {
		e.evict(d)
	}
	d.port.leave(d)
	d.port.mourn() // if nobody has yet
	d.unwatch()
	d.finish()
	d.events.closeFD()
	d.closeChannels()
	err := d.port.release()
	d.journal.close()
	d.cfg.Logger.Info("device closed", "name", d.cfg.Name, "addr", d.addr)
	if errors.Is(err, ErrClosed) {
		return nil // the backend was closed under us
	}
	return err
}

// evict ends everything that a device has on an engine.
func (e *engine) evict(d *Device) {
	now := e.lock()
	defer e.unlock()
	e.settle(now)
	leaving := e.leaving(d)
	for _, q := range leaving {
		q.retire()
		q.t.Modify(now, &Attr{State: StateErr}, MaskState) // always allowed
		e.touch(q)
	}
	e.transmit(now) // a last NAK, if one was due
	for _, q := range leaving {
		q.remove()
	}
	*d.stashes[e.index] = transport.Stash{} // frees what was kept for them
	e.xrc.leave(d)
	e.held.release(Never, e.bit()) // nothing more will come to wait for
}

// over says that Close has flushed all requests: no completion comes any more.
func (d *Device) over() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// closeChannels lets the descriptors of completion channels, which loops of the
// program's own may watch, be readable until the channel is destroyed.
func (d *Device) closeChannels() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for ch := range d.channels {
		ch.box.close()
	}
}

// DeviceAttr describes a device (ibv_device_attr).
type DeviceAttr struct {
	Name             string
	NodeGUID         uint64
	MaxQP            int
	MaxCQ            int
	MaxQPWR          int // entries of a work queue
	MaxSGE           int
	MaxCQE           int
	MaxSRQWR         int // entries of a shared receive queue
	MaxAH            int
	MaxMcastGrp      int // multicast groups
	MaxMcastQPAttach int // queue pairs of a group
	MaxMR, MaxMW     int // together
	MaxMRSize        uint64
	MaxInline        int // bytes
	MaxQPRdAtom      int // responder resources of a queue pair
	MaxResRdAtom     int // of all queue pairs together
	MaxCMID          int // of the connection manager, see Limits
	MaxCMHalfOpen    int
	MaxCMTimeWait    int
	MaxQPInitRdAt    int // initiator depth of a queue pair
	AtomicCap        AtomicCap
	PhysPortCount    int
}

// AtomicCap says what remote atomics are atomic towards, numbered as
// ibv_atomic_cap.
type AtomicCap uint8

const (
	AtomicNone AtomicCap = 0 // there are none
	AtomicHCA  AtomicCap = 1 // other queue pairs of the device
	AtomicGlob AtomicCap = 2 // those and the processors of the machine
)

// String names the capability as ibv_devinfo does.
func (c AtomicCap) String() string {
	switch c {
	case AtomicNone:
		return "ATOMIC_NONE"
	case AtomicHCA:
		return "ATOMIC_HCA"
	case AtomicGlob:
		return "ATOMIC_GLOB"
	}
	return fmt.Sprintf("AtomicCap(%d)", uint8(c))
}

// Query returns what the device can do (ibv_query_device).
func (d *Device) Query() DeviceAttr {
	l := &d.cfg.Limits
	return DeviceAttr{
		Name: d.cfg.Name, NodeGUID: d.guid, MaxQP: l.MaxQP, MaxQPWR: maxQPWR, MaxSGE: maxSGE, MaxCQ: l.MaxCQ, MaxCQE: maxCQE, MaxSRQWR: maxSRQWR, MaxAH: l.MaxAH,
		MaxMcastGrp: maxMcastGrp, MaxMcastQPAttach: maxMcastQP,
		MaxMR: l.MaxMR, MaxMW: l.MaxMR, MaxMRSize: maxMRSize, MaxInline: maxInline, MaxQPRdAtom: transport.MaxDestRdAtomic, MaxResRdAtom: l.MaxResRdAtom,
		MaxCMID: l.MaxCMID, MaxCMHalfOpen: l.MaxCMHalfOpen, MaxCMTimeWait: l.MaxCMTimeWait,
		MaxQPInitRdAt: transport.MaxRdAtomic, AtomicCap: AtomicGlob, PhysPortCount: 1,
	}
}

// PortState is the state of a port, numbered as ibv_port_state.
type PortState uint8

const (
	PortDown   PortState = 1
	PortActive PortState = 4
)

func (s PortState) String() string {
	switch s {
	case PortDown:
		return "PORT_DOWN"
	case PortActive:
		return "PORT_ACTIVE"
	}
	return fmt.Sprintf("PortState(%d)", uint8(s))
}

// PortAttr describes the port (ibv_port_attr).
type PortAttr struct {
	State     PortState
	MaxMTU    ib.MTU
	ActiveMTU ib.MTU // the largest path MTU that fits the interface
	GIDTblLen int
	MaxMsg    uint64 // bytes of one message
	Interface string // name of the network interface, empty without one
	LinkMTU   int    // bytes of an IP packet on that interface, 0 if unknown
}

// QueryPort returns the state of the port now (ibv_query_port).
func (d *Device) QueryPort() (PortAttr, error) {
	a := PortAttr{State: PortActive, MaxMTU: MTU4096, ActiveMTU: MTU4096, GIDTblLen: 1, MaxMsg: maxMsg}
	if d.cfg.Backend != nil {
		a.LinkMTU = d.cfg.Backend.Caps().MTU
	} else {
		name, _, mtu, up, err := netio.PortOf(d.addr)
		if err != nil {
			return PortAttr{}, err
		}
		a.Interface, a.LinkMTU = name, mtu
		if !up {
			a.State = PortDown
		}
	}
	if a.LinkMTU > 0 {
		m, ok := ib.LargestMTU(a.LinkMTU - headers(d.addr))
		if !ok {
			return PortAttr{}, fmt.Errorf("roce: interface %s has MTU %d: a path MTU of 256 needs %d", a.Interface, a.LinkMTU, 256+headers(d.addr))
		}
		a.ActiveMTU = m
	}
	return a, nil
}

// headers returns the most bytes that a packet with a full payload has around it:
// IP, UDP, BTH, RETH, immediate data and ICRC.
func headers(a netip.Addr) int {
	n := 8 + ib.BTHSize + ib.RETHSize + ib.ImmDtSize + ib.ICRCSize
	if a.Is4() {
		return n + 20
	}
	return n + 40
}

// GIDs returns the GID table: index 0 is the device's own address.
func (d *Device) GIDs() []ib.GID { return []ib.GID{ib.GIDFromAddr(d.addr.WithZone(""))} }
