package network

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/goroce/goroce/roce/netio"
)

// Host is a place for a device.
type Host struct {
	n       *Network
	addr    netip.AddrPort
	port    *Port
	open    *backend
	waiting bool // a send found no room
	ready   bool // see Ready
}

// Host adds a host. The port is that of RoCEv2.
func (n *Network) Host(addr netip.Addr) *Host {
	h := &Host{n: n, addr: netip.AddrPortFrom(addr, netio.Port)}
	n.nodes = append(n.nodes, h)
	n.hosts[addr] = h
	n.routed = false
	return h
}

// Open returns a backend at the host's address. When that is closed, another may be
// opened: what is under way to the one reaches the other.
func (h *Host) Open() (netio.Backend, error) {
	be, err := h.n.fabric.Open(h.addr)
	if err != nil {
		return nil, err
	}
	h.open = &backend{Backend: be, h: h}
	return h.open, nil
}

// Ready reports whether the host's device has something to do since the last call:
// something has arrived, or there is room again for what it could not send.
func (h *Host) Ready() bool {
	was := h.ready
	h.ready = false
	return was
}

func (h *Host) String() string { return "host " + h.addr.Addr().String() }
func (h *Host) ports() []*Port { return []*Port{h.port} }

func (h *Host) attach(p *Port) {
	if h.port != nil {
		panic(fmt.Sprintf("network: %v has a link", h))
	}
	h.port = p
}

func (h *Host) arrive(in *Port, k *packet) {
	if !in.landed(k) {
		return
	}
	h.deliver(k.src, &netio.Run{Dst: k.dst, TOS: k.tos, Buf: k.buf})
	h.n.recycle(k)
}

// deliver puts a run into the receive buffer of whoever is open.
func (h *Host) deliver(src netip.AddrPort, r *netio.Run) {
	if group := r.Dst.Addr(); group.IsMulticast() && !slices.Contains(h.n.groups[group], h) {
		return
	}
	if h.n.fabric.Deliver(h.addr, src, r) {
		h.ready = true
	}
}

func (h *Host) left(*Port, *packet) {
	if h.waiting && h.port.Queue() <= h.port.limit/2 {
		h.waiting, h.ready = false, true
	}
}

// backend is what a device uses. What it receives is what the backend on the fabric
// does.
type backend struct {
	netio.Backend
	h  *Host
	tx netio.Stats
}

// Caps has no segmentation: every packet is on its own.
func (b *backend) Caps() netio.Caps {
	c := b.Backend.Caps()
	c.Name = "network " + b.h.addr.String()
	return c
}

func (b *backend) Stats() netio.Stats {
	s := b.Backend.Stats()
	for i, n := range b.tx {
		s[i] += n
	}
	return s
}

func (b *backend) Send(now time.Duration, runs []netio.Run) (int, error) {
	if n, err := b.Backend.Send(now, nil); err != nil {
		return n, err // it is closed
	}
	for i := range runs {
		if err := b.send(&runs[i]); err != nil {
			b.tx[netio.TxWouldBlock]++
			return i, err
		}
	}
	return len(runs), nil
}

// send puts the packets of a run into the queue of the host.
func (b *backend) send(r *netio.Run) error {
	h, caps, dst := b.h, b.Backend.Caps(), r.Dst.Addr()
	_, known := h.n.hosts[dst]
	segments := r.Segments()
	switch {
	case !known && !dst.IsMulticast() || dst.Is4() != h.addr.Addr().Is4():
		b.tx[netio.TxUnreachable] += uint64(segments)
		return nil
	case frameSize(len(r.Segment(0)), dst)-18 > caps.MTU:
		b.tx[netio.TxTooBig] += uint64(segments)
		return nil
	case !h.port.room(frameSize(len(r.Buf), dst)):
		h.waiting = true
		return netio.ErrWouldBlock
	}
	b.tx[netio.TxCalls]++
	b.tx[netio.TxRuns]++
	b.tx[netio.TxPackets] += uint64(segments)
	b.tx[netio.TxBytes] += uint64(len(r.Buf))
	src := h.addr
	if r.SrcPort != 0 {
		src = netip.AddrPortFrom(src.Addr(), r.SrcPort)
	}
	flow := r.Flow(src)
	for k := range segments {
		seg := r.Segment(k)
		if k > 0 {
			flow.Seal(0, seg) // it travels alone
		}
		if dst == h.addr.Addr() || dst.IsMulticast() {
			h.deliver(src, &netio.Run{Dst: r.Dst, TOS: r.TOS, Buf: seg})
		}
		if dst != h.addr.Addr() {
			h.port.push(h.n.newPacket(src, r.Dst, r.TOS, seg))
		}
	}
	return nil
}

func (b *backend) Join(group netip.Addr) error {
	if err := b.Backend.Join(group); err != nil {
		return err
	}
	if n := b.h.n; !slices.Contains(n.groups[group], b.h) {
		n.groups[group] = append(n.groups[group], b.h)
	}
	return nil
}

func (b *backend) Leave(group netip.Addr) error {
	err := b.Backend.Leave(group)
	if err == nil {
		b.h.n.leave(b.h, group)
	}
	return err
}

func (b *backend) Close() error {
	err := b.Backend.Close()
	if b.h.open == b {
		b.h.open, b.h.waiting = nil, false
		for group := range b.h.n.groups {
			b.h.n.leave(b.h, group)
		}
	}
	return err
}

func (n *Network) leave(h *Host, group netip.Addr) {
	if i := slices.Index(n.groups[group], h); i >= 0 {
		n.groups[group] = slices.Delete(n.groups[group], i, i+1)
	}
}
