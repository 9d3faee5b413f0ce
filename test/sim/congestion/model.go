// Package congestion is the standard experiments of congestion control, in virtual
// time: senders share the port of a switch that leads to one receiver. Their rates
// come from the controllers of package transport/cc, and their packets go one by one
// through the links and queues of package network. Acknowledgements take no bandwidth:
// they tell round trip times. What is lacking of a device is everything else: windows,
// retransmission, and the bursts in which a device sends; package sim has whole devices. docs/congestion.md has the results, which `make congestion` prints.
package congestion

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/test/sim/network"
	"github.com/goroce/goroce/transport/cc"
)

const (
	payload     = 4096
	packetSize  = ib.BTHSize + payload + ib.ICRCSize
	frameSize   = packetSize + 46 // what queues hold
	wireSize    = frameSize + 20  // what a link carries
	ipSize      = packetSize + 28 // what controllers count
	cnpInterval = 50 * time.Microsecond
	ect0        = 2
	cnpTOS      = 0xc2
)

// Config is one experiment.
type Config struct {
	Algorithm cc.Algorithm
	Rate      float64 // of all links, in bits per second
	Delay     time.Duration
	Switch    network.SwitchConfig
	Flows     []Flow
	NoRTT     bool // senders learn no round trip times, as over UC and UD
	Seed      uint64
	Length    time.Duration
	Window    time.Duration // of the rates in Result
}

// Flow sends as fast as it may from Start to Stop, or to the end.
type Flow struct{ Start, Stop time.Duration }

// Result is what was seen.
type Result struct {
	Config
	Rates   [][]float64 // of each window and flow, of what arrived, in bits per second on the wire
	Queue   []int       // bytes that waited for the receiver's link, every sample
	Dropped int         // packets
	Marked  int
	CNPs    int
	Pauses  int
}

// sample is the time between two looks at the queue.
const sample = 5 * time.Microsecond

// sender is the reaction point of one flow.
type sender struct {
	Flow
	host    *network.Host
	be      netio.Backend
	ctl     cc.Controller
	next    time.Duration
	started bool
	buf     []byte
	run     [1]netio.Run
}

// due returns when the sender wants to send.
func (s *sender) due() time.Duration {
	if s.Stop > 0 && s.next >= s.Stop {
		return netio.Never
	}
	return s.next
}

// stamp is where a packet says when it was sent.
const stamp = ib.BTHSize

// act takes CNPs and sends what is due.
func (s *sender) act(now time.Duration) error {
	var in [8]netio.Received
	for {
		n, err := s.be.Recv(now, in[:])
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		for range n {
			s.ctl.Signal(now, cc.Signal{Kind: cc.CNP, Delivered: s.ctl.Rate(now)})
		}
	}
	if s.due() > now {
		return nil
	}
	if !s.started {
		s.started = true
		s.ctl.Signal(now, cc.Signal{Kind: cc.Start})
	}
	binary.LittleEndian.PutUint64(s.buf[stamp:], uint64(now))
	_, err := s.be.Send(now, s.run[:])
	if err == netio.ErrWouldBlock {
		s.next = now + time.Microsecond // held back by PFC, or as fast as the link
		return nil
	}
	s.ctl.Sent(now, ipSize)
	s.next = max(s.next, now-time.Microsecond) + s.ctl.Rate(now).Time(ipSize)
	return err
}

// receiver is the notification point of all flows.
type receiver struct {
	be    netio.Backend
	flows map[netip.Addr]*arrivals
	cnps  int
	ack   func(s *sender, sent time.Duration) // nil for none
}

type arrivals struct {
	from *sender
	bits float64 // since the window began
	cnp  time.Duration
	told bool
}

// act takes what has arrived, and tells who sent marked packets.
func (r *receiver) act(now time.Duration) error {
	var in [32]netio.Received
	for {
		n, err := r.be.Recv(now, in[:])
		if n == 0 || err != nil {
			return err
		}
		for _, p := range in[:n] {
			f := r.flows[p.Src.Addr()]
			f.bits += 8 * wireSize
			if r.ack != nil {
				r.ack(f.from, time.Duration(binary.LittleEndian.Uint64(p.Buf[stamp:])))
			}
			if p.TOS&3 != 3 || f.told && now-f.cnp < cnpInterval {
				continue
			}
			f.told, f.cnp = true, now
			r.cnps++
			b := make([]byte, ib.CNPSize)
			ib.PutCNP(b, 2)
			if _, err := r.be.Send(now, []netio.Run{{Dst: p.Src, TOS: cnpTOS, Buf: b}}); err != nil {
				return err
			}
		}
	}
}

// rig is an experiment that is being run.
type rig struct {
	Config
	net     *network.Network
	port    *network.Port // of the switch, to the receiver
	senders []*sender
	rx      receiver
	rxHost  *network.Host
	links   []*network.Link
}

func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

// Run runs an experiment.
func Run(cfg Config) (Result, error) {
	r := &rig{Config: cfg}
	if err := r.build(); err != nil {
		return Result{}, err
	}
	res := Result{Config: cfg}
	r.net.At(0, func() { r.look(&res) })
	for window := cfg.Window; r.net.Now() < cfg.Length; {
		next := min(r.net.Next(), window)
		for _, s := range r.senders {
			next = min(next, s.due())
		}
		r.net.Advance(next)
		if err := r.act(r.net.Now()); err != nil {
			return res, err
		}
		if r.net.Now() >= window {
			window += cfg.Window
			res.Rates = append(res.Rates, r.rates())
		}
	}
	for _, l := range r.links {
		for _, p := range l.Ports {
			res.Dropped += p.Dropped
			res.Marked += p.Marked
			res.Pauses += p.Pauses
		}
	}
	res.CNPs = r.rx.cnps
	return res, nil
}

// build makes the network: a star.
func (r *rig) build() error {
	r.net = network.New(r.Seed, netio.NewFabric())
	sw := r.net.Switch(r.Switch)
	open := func(i, queue int) (*network.Host, netio.Backend, error) {
		h := r.net.Host(addr(i))
		l := r.net.Link(h, sw, network.LinkConfig{Rate: r.Rate, Delay: r.Delay})
		l.Ports[0].SetQueue(queue)
		r.links = append(r.links, l)
		be, err := h.Open()
		return h, be, err
	}
	var err error
	if r.rxHost, r.rx.be, err = open(1, 1<<20); err != nil {
		return err
	}
	r.port = r.links[0].Ports[1]
	r.rx.flows = map[netip.Addr]*arrivals{}
	if !r.NoRTT {
		r.rx.ack = r.ack
	}
	for i, f := range r.Flows {
		s := &sender{Flow: f, next: f.Start + time.Duration(i)*time.Microsecond, buf: make([]byte, packetSize)}
		if s.host, s.be, err = open(2+i, 2*frameSize); err != nil {
			return err
		}
		if s.ctl, err = r.Algorithm.New(); err != nil {
			return err
		}
		s.buf[0] = byte(ib.OpRCWriteMiddle)
		s.run[0] = netio.Run{Dst: r.rx.be.LocalAddr(), TOS: ect0, Buf: s.buf}
		r.rx.flows[addr(2+i)] = &arrivals{from: s}
		r.senders = append(r.senders, s)
	}
	return nil
}

// ack tells a sender of the round trip time of a packet that arrives now.
func (r *rig) ack(s *sender, sent time.Duration) {
	at := r.net.Now() + 2*r.Delay
	r.net.At(at, func() { s.ctl.Signal(at, cc.Signal{Kind: cc.Ack, RTT: at - sent, Delivered: s.ctl.Rate(at)}) })
}

// act lets everybody act who has reason to.
func (r *rig) act(now time.Duration) error {
	if r.rxHost.Ready() {
		if err := r.rx.act(now); err != nil {
			return fmt.Errorf("receiver: %w", err)
		}
	}
	for i, s := range r.senders {
		if s.host.Ready() || s.due() <= now {
			if err := s.act(now); err != nil {
				return fmt.Errorf("sender %d: %w", i, err)
			}
		}
	}
	return nil
}

// look takes a sample of the queue, and plans the next.
func (r *rig) look(res *Result) {
	res.Queue = append(res.Queue, r.port.Queue())
	r.net.At(r.net.Now()+sample, func() { r.look(res) })
}

// rates are those of the window that ends.
func (r *rig) rates() (l []float64) {
	for i := range r.Flows {
		f := r.rx.flows[addr(2+i)]
		l = append(l, f.bits/r.Window.Seconds())
		f.bits = 0
	}
	return l
}
