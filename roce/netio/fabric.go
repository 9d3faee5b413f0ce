package netio

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Defaults of a Fabric.
const (
	fabricSegments = 64
	fabricRecv     = 1 << 20
	fabricMTU      = 9000
)

// Fabric is a network in memory. It delivers at once and in order, keeps the IPv4
// Identification of every packet, and loses only what overflows a receive buffer
// or has no receiver; [WithFaults] makes it worse. Its backends may be used by
// concurrent devices; used by one goroutine, they do the same in each run.
//
// The fields may be changed before the first Open.
type Fabric struct {
	// MaxSegments is the most packets of a run; 0 means 64, 1 forbids runs.
	MaxSegments int
	// RecvBuffer is the size of each receive buffer in bytes; 0 means 1 MiB. Each
	// run is charged some bytes more than it is long.
	RecvBuffer int
	// MTU is the most bytes of a packet with IP and UDP headers; 0 means 9000.
	MTU int

	mu     sync.RWMutex
	ends   map[netip.AddrPort]*fabricEnd
	groups map[netip.AddrPort][]*fabricEnd // who has joined, in order
}

// NewFabric returns an empty network.
func NewFabric() *Fabric {
	return &Fabric{ends: make(map[netip.AddrPort]*fabricEnd), groups: make(map[netip.AddrPort][]*fabricEnd)}
}

// Open returns a backend with the given address, which must be concrete and not
// in use on this fabric (*ListenError). Port 0 means 4791.
func (f *Fabric) Open(addr netip.AddrPort) (Backend, error) {
	addr = concrete(addr)
	if why := unusable(addr); why != "" {
		return nil, &ListenError{Addr: addr, Why: why}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.ends[addr]; ok {
		return nil, &ListenError{Addr: addr, Why: "the address is in use on this fabric"}
	}
	e := &fabricEnd{
		f: f, addr: addr, w: newWaiter(),
		caps: Caps{
			MaxSegments: orDefault(f.MaxSegments, fabricSegments),
			MaxRun:      maxRun,
			IDKnown:     true,
			ECN:         true,
			RecvBuffer:  orDefault(f.RecvBuffer, fabricRecv),
			MTU:         orDefault(f.MTU, fabricMTU),
			Name:        "fabric " + addr.String(),
		},
	}
	e.in.room = e.caps.RecvBuffer
	f.ends[addr] = e
	return e, nil
}

func orDefault(v, def int) int {
	if v <= 0 {
		return def
	}
	return v
}

// fabricEnd is one backend on a fabric.
type fabricEnd struct {
	f    *Fabric
	addr netip.AddrPort
	caps Caps
	c    counters
	w    waiter

	mu     sync.Mutex
	closed bool
	in     inbox // the receive buffer
}

func (e *fabricEnd) Caps() Caps                { return e.caps }
func (e *fabricEnd) LocalAddr() netip.AddrPort { return e.addr }
func (e *fabricEnd) Deadline() time.Duration   { return Never }
func (e *fabricEnd) Wake()                     { e.w.wake() }

func (e *fabricEnd) Stats() (s Stats) {
	e.c.addTo(&s)
	return s
}

func (e *fabricEnd) Send(_ time.Duration, runs []Run) (int, error) {
	if e.isClosed() {
		return 0, errClosed(e.addr)
	}
	for i := range runs {
		r := &runs[i]
		n := r.Segments()
		group := r.Dst.Addr().IsMulticast()
		dst := e.f.find(r.Dst)
		switch {
		case dst == nil && !group || r.Dst.Addr().Is4() != e.addr.Addr().Is4():
			e.c.add(TxUnreachable, n)
			continue
		case n > e.caps.MaxSegments || len(r.Buf) > e.caps.MaxRun:
			e.c.add(TxError, n)
			continue
		case len(r.Segment(0))+ipUDPHeaders(e.addr.Addr()) > e.caps.MTU:
			e.c.add(TxTooBig, n)
			continue
		}
		src := e.addr
		if r.SrcPort != 0 {
			src = netip.AddrPortFrom(src.Addr(), r.SrcPort)
		}
		if group {
			e.f.multicast(src, r, n)
		} else {
			dst.deliver(src, r, n)
		}
		e.c.add(TxCalls, 1)
		e.c.add(TxRuns, 1)
		e.c.add(TxPackets, n)
		e.c.add(TxBytes, len(r.Buf))
	}
	return len(runs), nil
}

// Deliver puts a run at once into the receive buffer of the backend with the address
// to, as if src had sent it, which need not exist. The receiver sees it sent to r.Dst,
// which may be a group, joined or not. It reports whether there is such a backend. It
// is for what stands between ends: simulated links, forged packets.
func (f *Fabric) Deliver(to, src netip.AddrPort, r *Run) bool {
	e := f.find(to)
	if e != nil {
		e.deliver(src, r, r.Segments())
	}
	return e != nil
}

func (f *Fabric) find(a netip.AddrPort) *fabricEnd {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.ends[a]
}

// multicast delivers a run to all that have joined its group, the sender as well.
func (f *Fabric) multicast(src netip.AddrPort, r *Run, n int) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, e := range f.groups[r.Dst] {
		e.deliver(src, r, n)
	}
}

func (e *fabricEnd) Join(group netip.Addr) error {
	if err := checkGroup(e.addr.Addr(), group); err != nil {
		return err
	}
	if e.isClosed() {
		return errClosed(e.addr)
	}
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	at := netip.AddrPortFrom(group, e.addr.Port())
	if !slices.Contains(e.f.groups[at], e) {
		e.f.groups[at] = append(e.f.groups[at], e)
	}
	return nil
}

func (e *fabricEnd) Leave(group netip.Addr) error {
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	if !e.f.leave(e, netip.AddrPortFrom(group, e.addr.Port())) {
		return errNotJoined(group)
	}
	return nil
}

// leave takes an end out of a group. The fabric is locked.
func (f *Fabric) leave(e *fabricEnd, group netip.AddrPort) bool {
	i := slices.Index(f.groups[group], e)
	if i < 0 {
		return false
	}
	f.groups[group] = slices.Delete(f.groups[group], i, i+1)
	return true
}

// deliver copies a run of n packets into the receive buffer, or drops it.
func (e *fabricEnd) deliver(src netip.AddrPort, r *Run, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	seg := r.SegSize
	if n == 1 {
		seg = 0
	}
	// The Identifications of a run count from 0.
	if !e.in.put(&Received{Src: src, Dst: r.Dst, TOS: r.TOS, SegSize: seg, IDKnown: true, Buf: r.Buf}) {
		e.c.add(RxOverflow, n)
		return
	}
	if e.in.waiting() == 1 {
		e.w.signal()
	}
}

func (e *fabricEnd) Recv(_ time.Duration, dst []Received) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return 0, errClosed(e.addr)
	}
	n := e.in.take(dst)
	for i := range dst[:n] {
		e.c.add(RxPackets, dst[i].Segments())
		e.c.add(RxBytes, len(dst[i].Buf))
	}
	if n > 0 {
		e.c.add(RxCalls, 1)
	}
	return n, nil
}

// Wait never has to wait for room: a fabric takes or drops everything.
func (e *fabricEnd) Wait(timeout time.Duration, write bool) error {
	if write {
		timeout = 0
	}
	e.w.wait(timeout, e)
	if e.isClosed() {
		return errClosed(e.addr)
	}
	return nil
}

func (e *fabricEnd) waitOver() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed || e.in.waiting() > 0
}

func (e *fabricEnd) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

func (e *fabricEnd) Close() error {
	e.mu.Lock()
	closed := e.closed
	e.closed = true
	e.in = inbox{}
	e.mu.Unlock()
	if closed {
		return errClosed(e.addr)
	}
	e.f.mu.Lock()
	delete(e.f.ends, e.addr)
	for g := range e.f.groups {
		e.f.leave(e, g)
	}
	e.f.mu.Unlock()
	e.w.wake()
	return nil
}

func errClosed(a netip.AddrPort) error {
	return fmt.Errorf("netio %v: %w", a, net.ErrClosed)
}
