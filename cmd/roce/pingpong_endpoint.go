package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/exchange"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
)

// endpoint is connected pairs of queues, one unless they share a receive queue, and
// the memory for messages.
type endpoint struct {
	app  *app
	o    *pingpongOptions
	dev  *roce.Device
	pd   *roce.PD
	mr   *roce.MR
	cq   *roce.CQ
	qps  []*roce.QP
	srq  *roce.SRQ  // or nil
	ahs  []*roce.AH // of each queue pair, with ud
	buf  []byte     // one message behind its header; with --chk one to send, one to receive
	mine []exchange.Dest
	peer []exchange.Dest // as many as mine
}

// openEndpoint opens the device of a local address, with receives posted and the
// queue pair in INIT: ready to be told of its peer.
func (a *app) openEndpoint(addr netip.Addr, o *pingpongOptions) (_ *endpoint, err error) {
	e := &endpoint{app: a, o: o}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if e.dev, err = a.open(roce.Config{Addr: addr}); err != nil {
		return nil, err
	}
	if o.transport == "ud" {
		o.mtu = 0 // what fits
	}
	if o.mtu, err = fitMTU(e.dev, o.mtu); err != nil {
		return nil, err
	}
	if limit := o.mtu.Bytes(); o.transport == "ud" && o.size > limit {
		return nil, fmt.Errorf("-s %d: a datagram from %v carries %d bytes, as the MTU of its interface says: use at most that on both sides", o.size, addr, limit)
	}
	gid, err := gidOf(e.dev, o.gidIndex)
	if err != nil {
		return nil, err
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return nil, err
	}
	e.buf = bytes.Repeat([]byte{plainByte}, (o.header()+o.size)*e.buffers()) // now: a peer may send before we look again
	if e.mr, err = e.pd.RegisterMR(e.buf, roce.LocalWrite); err != nil {
		return nil, err
	}
	if e.cq, err = e.dev.CreateCQ(o.rxDepth + o.numQP); err != nil {
		return nil, tooDeep(o, err)
	}
	if o.transport == "srq" {
		if e.srq, err = e.pd.CreateSRQ(roce.SRQConfig{MaxWR: o.rxDepth, MaxSGE: 1}); err != nil {
			return nil, tooDeep(o, err)
		}
	}
	e.mine = make([]exchange.Dest, o.slots())
	for i := range o.numQP {
		if err := e.addQP(&e.mine[i]); err != nil {
			return nil, tooDeep(o, err)
		}
		e.mine[i].GID = gid
	}
	return e, e.postRecv(o.rxDepth)
}

// addQP makes a queue pair in INIT.
func (e *endpoint) addQP(mine *exchange.Dest) error {
	qp, err := e.pd.CreateQP(roce.QPConfig{Type: e.o.service(), SendCQ: e.cq, RecvCQ: e.cq, SRQ: e.srq,
		MaxSendWR: 1, MaxRecvWR: e.o.rxDepth, MaxSendSGE: 1, MaxRecvSGE: 1})
	if err != nil {
		return err
	}
	e.qps = append(e.qps, qp)
	mine.QPN, mine.PSN = qp.Num(), qp.PSN()
	mask := roce.MaskState | roce.MaskPKeyIndex | roce.MaskPort | roce.MaskAccess
	if e.o.transport == "ud" {
		mask ^= roce.MaskAccess | roce.MaskQKey
	}
	return qp.Modify(&roce.Attr{State: roce.StateInit, PortNum: 1, QKey: pingpongQKey}, mask)
}

// fitMTU checks that a path MTU fits the device's interface, and returns the
// largest that does for none.
func fitMTU(dev *roce.Device, mtu ib.MTU) (ib.MTU, error) {
	port, err := dev.QueryPort()
	switch {
	case err != nil:
		return 0, err
	case mtu == 0:
		return port.ActiveMTU, nil
	case mtu > port.ActiveMTU:
		return 0, fmt.Errorf("path MTU %v does not fit interface %s, whose MTU is %d: use -m %v on both sides, or raise the interface's MTU to %d",
			mtu, port.Interface, port.LinkMTU, port.ActiveMTU, mtu.Bytes()+headers(dev.Addr()))
	}
	return mtu, nil
}

// gidOf returns the device's GID with an index.
func gidOf(dev *roce.Device, index int) (ib.GID, error) {
	gids := dev.GIDs()
	if index < 0 || index >= len(gids) {
		return ib.GID{}, fmt.Errorf("there is no GID with index %d: the device of %v has the indices 0 to %d", index, dev.Addr(), len(gids)-1)
	}
	return gids[index], nil
}

// pingpongQKey is the Q_Key of ibv_ud_pingpong.
const pingpongQKey = 0x11111111

// tooDeep names the flag behind a configuration error.
func tooDeep(o *pingpongOptions, err error) error {
	var conf *roce.ConfigError
	if errors.As(err, &conf) {
		return fmt.Errorf("-r %d: %w", o.rxDepth, err)
	}
	return err
}

func (o *pingpongOptions) checkPeer(local netip.Addr, peer exchange.Dest) error {
	return checkPeer(local, peer.GID, peer.QPN, o.original(), "-g")
}

// connect brings the queue pairs to RTS.
func (e *endpoint) connect(peers []exchange.Dest) error {
	if n := used(peers); n > 0 && n != len(e.qps) {
		return fmt.Errorf("the other side has %d queue pairs and we have %d: use the same -q on both sides", n, len(e.qps))
	}
	e.peer = peers
	for i := range e.qps {
		if err := e.connectQP(i, peers[i]); err != nil {
			return err
		}
	}
	return nil
}

// used returns how many queue pairs a peer has.
func used(peers []exchange.Dest) (n int) {
	for n < len(peers) && peers[n].QPN != 0 {
		n++
	}
	return n
}

// connectQP brings a queue pair to RTS, with the attributes of ibv_rc_pingpong and
// its relatives.
func (e *endpoint) connectQP(i int, peer exchange.Dest) error {
	if err := e.o.checkPeer(e.dev.Addr(), peer); err != nil {
		return err
	}
	rtr, rts := roce.MaskState, roce.MaskState|roce.MaskSQPSN
	switch e.o.service() {
	case roce.RC:
		rtr |= roce.MaskMaxDestRdAtomic | roce.MaskMinRNRTimer
		rts |= roce.MaskTimeout | roce.MaskRetryCnt | roce.MaskRNRRetry | roce.MaskMaxRdAtomic
		fallthrough
	case roce.UC:
		rtr |= roce.MaskAV | roce.MaskPathMTU | roce.MaskDestQPN | roce.MaskRQPSN
	}
	av := roce.AddressVector{DGID: peer.GID, SGIDIndex: uint8(e.o.gidIndex), HopLimit: 64}
	err := e.qps[i].Modify(&roce.Attr{
		State:           roce.StateRTR,
		PathMTU:         e.o.mtu,
		DestQPN:         peer.QPN,
		RQPSN:           peer.PSN,
		MaxDestRdAtomic: 1,
		MinRNRTimer:     12, // 0.64 ms
		AV:              av,
	}, rtr)
	if err != nil {
		return err
	}
	if e.o.transport == "ud" {
		ah, err := e.pd.CreateAH(av)
		if err != nil {
			return err
		}
		e.ahs = append(e.ahs, ah)
	}
	return e.qps[i].Modify(&roce.Attr{
		State:       roce.StateRTS,
		Timeout:     pingpongTimeout,
		RetryCnt:    7,
		RNRRetry:    7, // for ever
		SQPSN:       e.mine[i].PSN,
		MaxRdAtomic: 1,
	}, rts)
}

func (e *endpoint) buffers() int {
	if e.o.check {
		return 2
	}
	return 1
}

// pingpongTimeout is 268 ms, where ibv_rc_pingpong has 67: a machine with other work may stop
// either side for half a second.
const pingpongTimeout ib.AckTimeout = 16

// sendBuf and recvBuf are the same bytes without --chk, as in ibv_rc_pingpong.
func (e *endpoint) sendBuf() []byte { return e.buf[e.o.header():][:e.o.size] }
func (e *endpoint) recvBuf() []byte { return e.buf[len(e.buf)-e.o.size:] }

// linger keeps the device open while the other side may miss our last ACK: until
// nothing has come for a few timeouts of ibv_rc_pingpong (67 ms), at most two seconds.
func linger(ctx context.Context, dev *roce.Device) {
	const quiet = 250 * time.Millisecond
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); {
		before := packetsOf(dev)
		select {
		case <-ctx.Done():
			return
		case <-time.After(quiet):
		}
		if packetsOf(dev) == before {
			return
		}
	}
}

// packetsOf returns how many packets of a device have come in.
func packetsOf(dev *roce.Device) uint64 { return dev.Counters()["rcvd_pkts"] }

func (e *endpoint) close() {
	if e.dev != nil {
		e.dev.Close()
	}
}
