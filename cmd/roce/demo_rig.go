package main

import (
	"errors"
	"net/netip"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

const (
	demoDepth = 16      // requests outstanding at most
	pipelined = 1 << 20 // bytes outstanding at most, unless it is one request
	fallback  = 14791   // UDP port when 4791 is taken and none was asked for
	faultRate = 0.01    // of packets dropped, duplicated and reordered
)

// side is one of the two endpoints.
type side struct {
	dev *roce.Device
	pd  *roce.PD
	cq  *roce.CQ
	qp  *roce.QP
	mr  *roce.MR
	buf []byte
}

// rig is two connected endpoints.
type rig struct {
	a, b *side
}

// rigConfig says how a rig is made.
type rigConfig struct {
	addrs  [2]netip.Addr // equal: one device with two queue pairs
	port   uint16
	bufs   [2][]byte
	faults bool
	seed   uint64
	wire   func(netio.Backend) netio.Backend // around the socket of the first endpoint
}

// newRig opens both endpoints and connects them.
func (a *app) newRig(c *rigConfig) (_ *rig, err error) {
	r := &rig{a: &side{buf: c.bufs[0]}, b: &side{buf: c.bufs[1]}}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.a.dev, err = a.openDemo(c, 0); err != nil {
		return nil, err
	}
	if r.b.dev = r.a.dev; c.addrs[0] != c.addrs[1] {
		if r.b.dev, err = a.openDemo(c, 1); err != nil {
			return nil, err
		}
	}
	for _, s := range []*side{r.a, r.b} {
		if err := s.open(); err != nil {
			return nil, err
		}
	}
	return r, errors.Join(r.a.connect(r.b), r.b.connect(r.a))
}

// openDemo opens endpoint i, with faults between device and wire if wanted.
func (a *app) openDemo(c *rigConfig, i int) (*roce.Device, error) {
	return a.open(roce.Config{Addr: c.addrs[i], Port: c.port, Wrap: func(be netio.Backend) netio.Backend {
		if i == 0 && c.wire != nil {
			be = c.wire(be)
		}
		if c.faults {
			be = netio.WithFaults(be, netio.FaultConfig{
				Seed: c.seed + uint64(i),
				Tx:   netio.Faults{Loss: faultRate, Duplicate: faultRate, Reorder: faultRate},
			})
		}
		return be
	}})
}

// open makes the objects of a side on its device.
func (s *side) open() (err error) {
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return err
	}
	if s.mr, err = s.pd.RegisterMR(s.buf, roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead); err != nil {
		return err
	}
	if s.cq, err = s.dev.CreateCQ(2 * demoDepth); err != nil {
		return err
	}
	s.qp, err = s.pd.CreateQP(roce.QPConfig{SendCQ: s.cq, MaxSendWR: demoDepth, MaxRecvWR: demoDepth})
	return err
}

// connect connects a side to the other, with the ACK timeout of most verbs programs.
func (s *side) connect(peer *side) error {
	return s.qp.Connect(
		roce.Remote{Addr: peer.dev.Addr(), QPN: peer.qp.Num(), PSN: peer.qp.PSN()},
		roce.Conn{Access: roce.RemoteWrite | roce.RemoteRead, AckTimeout: 67 * time.Millisecond})
}

// packets returns how many packets both sides have received.
func (r *rig) packets() uint64 { return r.sum("rcvd_pkts") }

// retries returns how often a requester had to go back: after a sequence NAK, an
// implied NAK or a timeout.
func (r *rig) retries() uint64 {
	return r.sum("rcvd_seq_err", "implied_nak_seq_err", "local_ack_timeout_err")
}

// sum adds counters of the devices.
func (r *rig) sum(names ...string) uint64 {
	var n uint64
	for i, s := range []*side{r.a, r.b} {
		if i == 1 && s.dev == r.a.dev {
			break
		}
		all := s.dev.Counters()
		for _, name := range names {
			n += all[name]
		}
	}
	return n
}

func (r *rig) close() {
	for _, s := range []*side{r.a, r.b} {
		if s.dev != nil {
			s.dev.Close()
		}
	}
}
