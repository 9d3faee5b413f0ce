package network

import (
	"fmt"
	"time"

	"github.com/goroce/goroce/ib"
)

// LinkConfig is what both directions of a link are like.
type LinkConfig struct {
	Rate  float64       // bits per second; 0 is no limit
	Delay time.Duration // of each packet behind its last bit
	// Queue is the most bytes that wait at each end, the packet that is being sent
	// included. Of what comes to a switch beyond it is dropped; a host's program is
	// told to wait, like one whose socket is full. 0 means 1 MiB at a host and no
	// limit but the buffer at a switch. One packet always finds room.
	Queue int
}

const hostQueue = 1 << 20

// gap is the preamble and the pause before each Ethernet frame, in bytes.
const gap = 8 + 12

// Link connects two nodes.
type Link struct {
	Ports [2]*Port // of the first and of the second node
}

// Link connects two nodes. A host has one link.
func (n *Network) Link(a, b Node, cfg LinkConfig) *Link {
	l := &Link{}
	for i, x := range []Node{a, b} {
		p := &Port{n: n, node: x, cfg: cfg, limit: cfg.Queue}
		if _, ok := x.(*Host); ok && p.limit == 0 {
			p.limit = hostQueue
		}
		l.Ports[i] = p
	}
	l.Ports[0].peer, l.Ports[1].peer = l.Ports[1], l.Ports[0]
	a.attach(l.Ports[0])
	b.attach(l.Ports[1])
	n.links = append(n.links, l)
	n.routed = false
	return l
}

// Cut loses all packets, also those under way, that travel from the first node to
// the second (there), and back, until the next Cut.
func (l *Link) Cut(there, back bool) { l.Ports[0].cut, l.Ports[1].cut = there, back }

// Port is one end of a link: a queue, and what sends from it.
type Port struct {
	n      *Network
	node   Node
	peer   *Port
	cfg    LinkConfig
	limit  int
	cut    bool
	queues [numClasses]queue
	busy   bool   // something is being sent
	free   uint64 // picoseconds: when the last packet has been sent, exactly
	flying int    // packets between the two ends
	paused bool   // by the other end
	since  time.Duration

	PortStats
}

// PortStats is what a port has seen.
type PortStats struct {
	Packets, Bytes int // sent; bytes with what Ethernet puts around frames
	Marked         int // packets that RED has marked
	Dropped        int // packets that found no room
	Cut            int // packets that a cut link has lost
	Longest        int // the most bytes that waited
	Pauses         int // times that the other end held it back
	Paused         time.Duration
}

// class is a traffic class. Congestion notifications have one of their own, which
// goes first and is never held back.
type class uint8

const (
	control class = iota
	data
	numClasses
)

// cnpDSCP is the DSCP that adapters give to CNPs.
const cnpDSCP = 48

func (k *packet) class() class {
	if k.tos>>2 == cnpDSCP && len(k.buf) > 0 && ib.Opcode(k.buf[0]) == ib.OpCNP {
		return control
	}
	return data
}

// queue is packets in their order.
type queue struct {
	k     []*packet
	first int
	bytes int // of them, and of the one that is being sent
}

func (q *queue) push(k *packet) {
	if q.first > 64 && q.first > len(q.k)/2 {
		q.k = q.k[:copy(q.k, q.k[q.first:])]
		q.first = 0
	}
	q.k = append(q.k, k)
	q.bytes += k.size
}

func (q *queue) empty() bool { return q.first == len(q.k) }

func (q *queue) pop() *packet {
	k := q.k[q.first]
	q.k[q.first] = nil
	q.first++
	return k
}

func (p *Port) String() string { return fmt.Sprintf("port of %v to %v", p.node, p.peer.node) }

// SetQueue changes how many bytes may wait, see LinkConfig.Queue.
func (p *Port) SetQueue(bytes int) { p.limit = bytes }

// Queue is how many bytes wait, the packet that is being sent included.
func (p *Port) Queue() int { return p.queues[control].bytes + p.queues[data].bytes }

// room says whether so many more bytes may wait.
func (p *Port) room(bytes int) bool {
	waiting := p.Queue()
	return p.limit == 0 || waiting == 0 || waiting+bytes <= p.limit
}

// push puts a packet behind those that wait.
func (p *Port) push(k *packet) {
	p.queues[k.class()].push(k)
	p.Longest = max(p.Longest, p.Queue())
	p.start()
}

// start sends the next packet, if that is possible.
func (p *Port) start() {
	if p.busy {
		return
	}
	c := control
	if p.queues[c].empty() {
		c = data
	}
	if p.queues[c].empty() || c == data && p.paused {
		return
	}
	k := p.queues[c].pop()
	p.busy = true
	if now := uint64(p.n.now) * 1000; p.free+1000 <= now { // otherwise it follows the last without a pause
		p.free = now
	}
	p.free += p.sending(k.size)
	p.n.push(event{at: time.Duration((p.free + 999) / 1000), port: p, k: k, sent: true})
}

// sending is how long a frame of so many bytes takes, in picoseconds.
func (p *Port) sending(bytes int) uint64 {
	if p.cfg.Rate == 0 {
		return 0
	}
	return uint64(float64(8*(bytes+gap)) / p.cfg.Rate * 1e12)
}

// sent is called when the last bit of a packet has left.
func (p *Port) sent(k *packet) {
	p.busy = false
	p.Packets++
	p.Bytes += k.size + gap
	p.queues[k.class()].bytes -= k.size
	p.flying++
	p.n.push(event{at: p.n.now + p.cfg.Delay, port: p.peer, k: k})
	p.node.left(p, k)
	p.start()
}

// landed says whether a packet that comes to the end of the link is there; a cut link
// has lost it.
func (p *Port) landed(k *packet) bool {
	from := p.peer
	from.flying--
	if from.cut {
		from.Cut++
		p.n.recycle(k)
	}
	return !from.cut
}

// hold tells the other end to pause, or to go on: a frame of 64 bytes that goes first
// behind the one that is being sent.
func (p *Port) hold(on bool) {
	at := uint64(p.n.now) * 1000
	if p.busy {
		at = max(at, p.free)
	}
	p.n.At(time.Duration((at+p.sending(64)+999)/1000)+p.cfg.Delay, func() { p.peer.pause(on) })
}

func (p *Port) pause(on bool) {
	if p.paused == on {
		return
	}
	p.paused = on
	if on {
		p.Pauses++
		p.since = p.n.now
		return
	}
	p.Paused += p.n.now - p.since
	p.start()
}
