package network

import (
	"fmt"
	"net/netip"
)

// SwitchConfig is what a switch does when its queues fill.
type SwitchConfig struct {
	// Buffer is the most bytes of data that all queues together hold; what comes beyond
	// is dropped. 0 means 12 MB. CNPs always find room.
	Buffer int
	// RED goes by the bytes of data that wait for the port which a packet is to leave
	// by, when it comes. Packets that are not ECN-capable are not marked.
	RED
	// Pause and Resume are PFC: a port through which more than Pause bytes have come
	// that are still held tells its peer to stop, and to go on when no more than
	// Resume are left. Pause 0 is no PFC.
	Pause, Resume int
}

const switchBuffer = 12_000_000

// Switch forwards packets by the shortest path to their destination.
type Switch struct {
	n      *Network
	num    int
	cfg    SwitchConfig
	all    []*Port
	routes map[netip.Addr]*Port
	held   map[*Port]int  // bytes that came by a port and wait
	paused map[*Port]bool // ports whose peer was told to stop
	bytes  int            // of data

	Unrouted int // packets that nobody is the destination of
	Longest  int // the most bytes of data that were held
}

// Switch adds a switch.
func (n *Network) Switch(cfg SwitchConfig) *Switch {
	if cfg.Buffer == 0 {
		cfg.Buffer = switchBuffer
	}
	s := &Switch{n: n, num: len(n.nodes), cfg: cfg, routes: map[netip.Addr]*Port{}, held: map[*Port]int{}, paused: map[*Port]bool{}}
	n.nodes = append(n.nodes, s)
	n.routed = false
	return s
}

func (s *Switch) String() string { return fmt.Sprintf("switch %d", s.num) }
func (s *Switch) ports() []*Port { return s.all }
func (s *Switch) attach(p *Port) { s.all = append(s.all, p) }

func (s *Switch) arrive(in *Port, k *packet) {
	if !in.landed(k) {
		return
	}
	s.n.route()
	if group := k.dst.Addr(); group.IsMulticast() {
		s.copies(in, k)
		s.n.recycle(k)
		return
	}
	out := s.routes[k.dst.Addr()]
	if out == nil || out == in {
		s.Unrouted++
		s.n.recycle(k)
		return
	}
	s.forward(in, out, k)
}

// copies forwards a packet to all ports behind which somebody has joined its group.
func (s *Switch) copies(in *Port, k *packet) {
	for _, out := range s.all {
		if out == in {
			continue
		}
		for _, h := range s.n.groups[k.dst.Addr()] {
			if s.routes[h.addr.Addr()] == out {
				s.forward(in, out, s.n.newPacket(k.src, k.dst, k.tos, k.buf))
				break
			}
		}
	}
}

// forward puts a packet into the queue of a port.
func (s *Switch) forward(in, out *Port, k *packet) {
	if k.class() == data && (s.bytes+k.size > s.cfg.Buffer || !out.room(k.size)) {
		out.Dropped++
		s.n.recycle(k)
		return
	}
	if k.class() == data && s.cfg.Marks(out.queues[data].bytes, s.n.rng.Float64) && (k.tos&3 == 1 || k.tos&3 == 2) {
		k.tos |= 3 // RFC 3168
		out.Marked++
	}
	k.from = in
	if k.class() == data {
		s.bytes += k.size
		s.Longest = max(s.Longest, s.bytes)
		s.held[in] += k.size
		if s.cfg.Pause > 0 && s.held[in] > s.cfg.Pause && !s.paused[in] {
			s.paused[in] = true
			in.hold(true)
		}
	}
	out.push(k)
}

func (s *Switch) left(_ *Port, k *packet) {
	if k.class() == control {
		return
	}
	s.bytes -= k.size
	in := k.from
	s.held[in] -= k.size
	if s.paused[in] && s.held[in] <= s.cfg.Resume {
		s.paused[in] = false
		in.hold(false)
	}
}
