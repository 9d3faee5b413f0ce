// Package network is a network in virtual time for whole devices: hosts, switches
// and links with a rate, a delay and finite queues. Switches mark packets by RED on
// ECN, hold back who fills them (PFC) or share a buffer and drop what does not fit.
// Links can be cut, one way or both, and hosts can be opened anew.
//
// The backends of hosts are those of a netio.Fabric behind such links;
// netio.WithFaults over one adds what else links do: loss, at random, in bursts or of
// the k-th packet of a kind, duplication, reordering, damage.
//
// One goroutine uses a network, and everything in it follows from the calls it gets
// and from the seed.
package network

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/goroce/goroce/roce/netio"
)

// Network is a network. Time passes in Advance only.
type Network struct {
	fabric *netio.Fabric
	rng    *rand.Rand
	now    time.Duration
	nodes  []Node
	hosts  map[netip.Addr]*Host
	groups map[netip.Addr][]*Host // who has joined, in order
	links  []*Link
	routed bool // routes are those of the links

	events []event // a heap by time, then seq
	seq    uint64
	free   []*packet
}

// Node is a Host or a Switch.
type Node interface {
	// arrive takes a packet that has come over the link of in.
	arrive(in *Port, k *packet)
	// left tells that a packet has left through a port.
	left(out *Port, k *packet)
	ports() []*Port
	attach(p *Port)
	String() string
}

// packet is one packet on its way.
type packet struct {
	src, dst netip.AddrPort
	tos      uint8
	buf      []byte // from the BTH to the ICRC
	size     int    // bytes of the Ethernet frame
	from     *Port  // through which it came into the switch that holds it
}

// event is something that happens at a time.
type event struct {
	at   time.Duration
	seq  uint64
	what func() // or, if nil, port is done with k, or k arrives at it
	port *Port
	k    *packet
	sent bool
}

// New returns an empty network. What arrives at a host goes into the receive buffer
// that it has on the fabric, which nobody else shall use.
func New(seed uint64, fabric *netio.Fabric) *Network {
	return &Network{
		fabric: fabric, rng: rand.New(rand.NewPCG(seed, 0x4e7)),
		hosts: map[netip.Addr]*Host{}, groups: map[netip.Addr][]*Host{},
	}
}

// Now is how far time has come.
func (n *Network) Now() time.Duration { return n.now }

// Next is when the next event is due, or netio.Never.
func (n *Network) Next() time.Duration {
	if len(n.events) == 0 {
		return netio.Never
	}
	return n.events[0].at
}

// Advance lets time pass until now, and everything happen that is due. It reports
// whether anything did.
func (n *Network) Advance(now time.Duration) (busy bool) {
	for len(n.events) > 0 && n.events[0].at <= now {
		e := n.pop()
		n.now = max(n.now, e.at)
		switch {
		case e.what != nil:
			e.what()
		case e.sent:
			e.port.sent(e.k)
		default:
			e.port.node.arrive(e.port, e.k)
		}
		busy = true
	}
	n.now = max(n.now, now)
	return busy
}

// At calls f when Advance comes to a time.
func (n *Network) At(at time.Duration, f func()) { n.push(event{at: at, what: f}) }

func (n *Network) less(i, j int) bool {
	a, b := &n.events[i], &n.events[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (n *Network) push(e event) {
	e.seq = n.seq
	n.seq++
	n.events = append(n.events, e)
	for i := len(n.events) - 1; i > 0; {
		up := (i - 1) / 2
		if !n.less(i, up) {
			return
		}
		n.events[i], n.events[up] = n.events[up], n.events[i]
		i = up
	}
}

func (n *Network) pop() event {
	e, last := n.events[0], len(n.events)-1
	n.events[0] = n.events[last]
	n.events[last] = event{}
	n.events = n.events[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			return e
		}
		if c+1 < last && n.less(c+1, c) {
			c++
		}
		if !n.less(c, i) {
			return e
		}
		n.events[i], n.events[c] = n.events[c], n.events[i]
		i = c
	}
}

// newPacket returns a packet with a copy of b.
func (n *Network) newPacket(src, dst netip.AddrPort, tos uint8, b []byte) *packet {
	var k *packet
	if last := len(n.free) - 1; last >= 0 {
		k, n.free = n.free[last], n.free[:last]
	} else {
		k = &packet{}
	}
	*k = packet{src: src, dst: dst, tos: tos, buf: append(k.buf[:0], b...), size: frameSize(len(b), dst.Addr())}
	return k
}

func (n *Network) recycle(k *packet) { n.free = append(n.free, k) }

// frameSize is the bytes of the Ethernet frame around a packet of n bytes.
func frameSize(n int, dst netip.Addr) int {
	const ethernet, udp = 14 + 4, 8
	if dst.Is4() {
		return n + ethernet + 20 + udp
	}
	return n + ethernet + 40 + udp
}

// route finds the shortest paths from every switch to every host.
func (n *Network) route() {
	if n.routed {
		return
	}
	n.routed = true
	for _, x := range n.nodes {
		if s, ok := x.(*Switch); ok {
			clear(s.routes)
		}
	}
	for addr, h := range n.hosts {
		seen := map[Node]bool{h: true}
		for at := []Node{h}; len(at) > 0; at = at[1:] {
			for _, p := range at[0].ports() {
				next := p.peer.node
				if s, ok := next.(*Switch); ok && !seen[next] {
					s.routes[addr] = p.peer
					at = append(at, next)
				}
				seen[next] = true
			}
		}
	}
}

// Idle is an error that says what is still under way, or nil.
func (n *Network) Idle() error {
	for _, l := range n.links {
		for _, p := range l.Ports {
			if p.Queue() > 0 || p.flying > 0 {
				return fmt.Errorf("network: %v: %d bytes wait, %d packets are under way", p, p.Queue(), p.flying)
			}
		}
	}
	return nil
}
