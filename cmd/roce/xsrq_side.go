package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/goroce/goroce/cmd/roce/internal/exchange"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
)

// xsrqDomain is the XRC domain of all sides on one address, as ibv_xsrq_pingpong has
// one per host, by a file of this name.
const xsrqDomain = "/tmp/xrc_domain"

// xsrqSide is a device with a shared receive queue of the XRC domain, and for each
// peer a target and a sender.
type xsrqSide struct {
	app   *app
	o     *pingpongOptions
	dev   *roce.Device
	pd    *roce.PD
	mr    *roce.MR
	cq    *roce.CQ
	xrcd  *roce.XRCD
	srq   *roce.SRQ
	gid   ib.GID
	pairs []xsrqPair
	index map[ib.QPN]int // of the pair, by its target's number
}

// xsrqPair is what belongs to one peer.
type xsrqPair struct {
	target, sender *roce.QP
	peer           exchange.XRCDest
	conn           net.Conn
	posted         int // messages to the peer
}

// show prints a line, unless the result is wanted as JSON.
func (s *xsrqSide) show(format string, args ...any) {
	if !s.o.json {
		fmt.Fprintf(s.app.stdout, format, args...)
	}
}

// open opens the device of a local address with all that n peers need, and posts
// the receives.
func (s *xsrqSide) open(addr netip.Addr, n int) (err error) {
	if s.dev, err = s.app.open(roce.Config{Addr: addr}); err != nil {
		return err
	}
	if s.o.mtu, err = fitMTU(s.dev, s.o.mtu); err != nil {
		return err
	}
	if s.gid, err = gidOf(s.dev, s.o.gidIndex); err != nil {
		return err
	}
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return err
	}
	if s.mr, err = s.pd.RegisterMR(bytes.Repeat([]byte{0}, s.o.size), roce.LocalWrite); err != nil {
		return err
	}
	// Room for the receives, the sends that are signaled, and in the worst case for
	// all those under way: one of each peer by each sender.
	if s.cq, err = s.dev.CreateCQ(2*n + n*n); err != nil {
		return err
	}
	if s.xrcd, err = s.dev.OpenXRCD(xsrqDomain, os.O_CREATE); err != nil {
		return err
	}
	if s.srq, err = s.pd.CreateSRQ(roce.SRQConfig{MaxWR: n, MaxSGE: 1, XRCD: s.xrcd, CQ: s.cq}); err != nil {
		return err
	}
	s.index = map[ib.QPN]int{}
	for i := range n {
		if err := s.addPair(i, min(n*s.o.iters, s.dev.Query().MaxQPWR)); err != nil {
			return err
		}
	}
	return nil
}

// addPair makes a target and a sender in INIT, and posts the receive of their peer.
func (s *xsrqSide) addPair(i, sends int) (err error) {
	var p xsrqPair
	if p.target, err = s.xrcd.CreateQP(); err != nil {
		return err
	}
	if p.sender, err = s.pd.CreateQP(roce.QPConfig{Type: roce.XRCSend, SendCQ: s.cq, MaxSendWR: sends, MaxSendSGE: 1}); err != nil {
		return err
	}
	if err := p.target.Init(roce.RemoteWrite | roce.RemoteRead); err != nil {
		return err
	}
	if err := p.sender.Init(0); err != nil {
		return err
	}
	s.pairs = append(s.pairs, p)
	s.index[p.target.Num()] = i
	return s.postRecv()
}

// dest says where pair i is. Both directions begin with one PSN.
func (s *xsrqSide) dest(i int) exchange.XRCDest {
	p := &s.pairs[i]
	return exchange.XRCDest{Target: p.target.Num(), Sender: p.sender.Num(), PSN: p.sender.PSN(), SRQN: s.srq.Num(), GID: s.gid}
}

func (s *xsrqSide) checkPeer(local netip.Addr, peer exchange.XRCDest) error {
	return checkPeer(local, peer.GID, min(peer.Target, peer.Sender, peer.SRQN), "ibv_xsrq_pingpong", "-g")
}

// connect brings pair i to RTS, with the attributes of ibv_xsrq_pingpong.
func (s *xsrqSide) connect(i int, peer exchange.XRCDest) error {
	if err := s.checkPeer(s.dev.Addr(), peer); err != nil {
		return err
	}
	p := &s.pairs[i]
	rtr := roce.Attr{
		State: roce.StateRTR, PathMTU: s.o.mtu, DestQPN: peer.Sender, RQPSN: peer.PSN, MinRNRTimer: 12, // 0.64 ms
		AV: roce.AddressVector{DGID: peer.GID, SGIDIndex: uint8(s.o.gidIndex), HopLimit: 64},
	}
	rts := roce.Attr{State: roce.StateRTS, Timeout: pingpongTimeout, RetryCnt: 7, RNRRetry: 7, SQPSN: s.dest(i).PSN} // RNR for ever
	path := roce.MaskState | roce.MaskAV | roce.MaskPathMTU | roce.MaskDestQPN | roce.MaskRQPSN
	if err := p.target.Modify(&rtr, path|roce.MaskMaxDestRdAtomic|roce.MaskMinRNRTimer); err != nil {
		return err
	}
	if err := p.target.Modify(&rts, roce.MaskState|roce.MaskTimeout|roce.MaskSQPSN); err != nil {
		return err
	}
	rtr.DestQPN = peer.Target
	if err := p.sender.Modify(&rtr, path); err != nil {
		return err
	}
	return p.sender.Modify(&rts, roce.MaskState|roce.MaskTimeout|roce.MaskSQPSN|roce.MaskRetryCnt|roce.MaskRNRRetry|roce.MaskMaxRdAtomic)
}

// meet notes the peer of pair i.
func (s *xsrqSide) meet(i int, conn net.Conn, peer exchange.XRCDest) {
	s.pairs[i].conn, s.pairs[i].peer = conn, peer
	s.show("%8s: %s\n%8s: %s\n", "local", s.dest(i).Line(), "remote", peer.Line())
}

// sges is the buffer, of sends and receives as in the original.
func (s *xsrqSide) sges() []roce.SGE {
	if s.o.size == 0 {
		return nil
	}
	return []roce.SGE{s.mr.SGE(0, s.o.size)}
}

func (s *xsrqSide) postRecv() error {
	return s.srq.PostRecv(roce.RecvWR{ID: recvID, SGE: s.sges()})
}

// play exchanges all messages; the server begins.
func (s *xsrqSide) play(ctx context.Context, begin bool) error {
	ctx, stop := watch(ctx, s.o.timeout, func() uint64 { return packetsOf(s.dev) })
	defer stop()
	if begin {
		for i := range s.pairs {
			if err := s.turn(i); err != nil {
				return err
			}
		}
	}
	wcs := make([]roce.WC, 2*len(s.pairs))
	sent := 0 // last messages that have arrived
	for got := 0; got < len(s.pairs)*s.o.iters || sent < len(s.pairs); {
		n, err := completions(ctx, s.cq, wcs, s.o.events)
		if err != nil {
			return s.explain(0, err)
		}
		for i := range wcs[:n] {
			switch wc := &wcs[i]; {
			case wc.Status != roce.WCSuccess:
				return s.explain(0, &completionError{wc.ID, wc.Status})
			case wc.ID == sendID:
				sent++
			default:
				got++
				if err := s.received(wc); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// received answers a message: by the target that it came with it is known whose it
// is.
func (s *xsrqSide) received(wc *roce.WC) error {
	if int(wc.ByteLen) != s.o.size {
		return fmt.Errorf("a message of %d bytes came instead of %d: use the same -s on both sides", wc.ByteLen, s.o.size)
	}
	if err := s.postRecv(); err != nil {
		return err
	}
	if i := s.index[wc.QPN]; s.pairs[i].posted < s.o.iters {
		return s.turn(i)
	}
	return nil
}

// turn sends the next message to peer i, by the senders of all peers in turn. The
// last one is signaled.
func (s *xsrqSide) turn(i int) error {
	p := &s.pairs[i]
	by := (i + p.posted) % len(s.pairs)
	p.posted++
	wr := roce.SendWR{ID: sendID, Opcode: roce.WRSend, SGE: s.sges(), RemoteSRQN: p.peer.SRQN}
	if p.posted == s.o.iters {
		wr.Flags = roce.Signaled
	}
	return s.pairs[by].sender.PostSend(wr)
}

func (s *xsrqSide) close() {
	for i := range s.pairs {
		if c := s.pairs[i].conn; c != nil {
			c.Close()
		}
	}
	if s.dev != nil {
		s.dev.Close()
	}
}
