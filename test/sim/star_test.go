package sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
	"github.com/goroce/goroce/test/sim/network"
)

// star is devices around a switch, of which all but the last write to the last, as fast
// as they may.
type star struct {
	t            *testing.T
	net          *network.Network
	port         *network.Port // of the switch, to the receiver
	links        []*network.Link
	from, to     []*rocetest.Endpoint
	size         int // bytes of a message
	posted, done []int
	begin        []time.Duration // when each sender begins; nil: all at once
}

// starDepth is how many messages of a sender are under way.
const starDepth = 16

// newStar connects senders to one receiver over links and a switch that are all the same.
func newStar(t *testing.T, seed uint64, senders, size int, link network.LinkConfig, sw network.SwitchConfig, cfg roce.Config) *star {
	s := &star{t: t, net: network.New(seed, netio.NewFabric()), size: size, posted: make([]int, senders), done: make([]int, senders)}
	hub := s.net.Switch(sw)
	open := func(i int) *rocetest.Endpoint {
		h := s.net.Host(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}))
		s.links = append(s.links, s.net.Link(h, hub, link))
		be, err := h.Open()
		if err != nil {
			t.Fatal(err)
		}
		cfg.Backend, cfg.Manual, cfg.Clock, cfg.Rand = be, true, s.net.Now, rand.NewChaCha8([32]byte{byte(i), byte(seed)})
		d, err := roce.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return rocetest.New(t, d, rocetest.Options{Memory: size})
	}
	s.to = []*rocetest.Endpoint{open(senders)}
	s.port = s.links[0].Ports[1]
	for i := range senders {
		if i > 0 {
			s.to = append(s.to, rocetest.New(t, s.to[0].Dev, rocetest.Options{Memory: size}))
		}
		s.from = append(s.from, open(i))
		rocetest.Connect(t, s.from[i], s.to[i], roce.Conn{PathMTU: roce.MTU4096})
	}
	return s
}

// run lets time pass until end.
func (s *star) run(end time.Duration) {
	wcs := make([]roce.WC, starDepth)
	for s.net.Now() < end {
		next := s.net.Next()
		for i, e := range s.from {
			if s.begin != nil && s.net.Now() < s.begin[i] {
				next = min(next, s.begin[i])
				continue
			}
			k, err := e.CQ.Poll(wcs)
			for _, wc := range wcs[:k] {
				if wc.Status != roce.WCSuccess {
					err = fmt.Errorf("sender %d: status %v", i, wc.Status)
				}
			}
			if err != nil {
				s.t.Fatal(err)
			}
			for s.done[i] += k; s.posted[i]-s.done[i] < starDepth; s.posted[i]++ {
				if err := e.QP.PostSend(roce.SendWR{
					Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{e.MR.SGE(0, s.size)},
					RemoteAddr: s.to[i].MR.Addr(), RKey: s.to[i].MR.RKey(),
				}); err != nil {
					s.t.Fatal(err)
				}
			}
			next = min(next, e.Dev.Progress(s.net.Now()))
		}
		next = min(next, s.to[0].Dev.Progress(s.net.Now()))
		s.net.Advance(max(min(next, s.net.Next()), s.net.Now()))
	}
}

// counter is a counter of all senders, in sum.
func (s *star) counter(name string) (n uint64) {
	for _, e := range s.from {
		n += e.Dev.Counters()[name]
	}
	return n
}

// dropped is how many packets the switch had no room for.
func (s *star) dropped() (n int) {
	for _, l := range s.links {
		n += l.Ports[1].Dropped
	}
	return n
}
