package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/exchange"
	"github.com/goroce/goroce/roce"
)

// endpoint is a connected pair of queues and the memory for messages.
type endpoint struct {
	app  *app
	o    *pingpongOptions
	dev  *roce.Device
	pd   *roce.PD
	mr   *roce.MR
	cq   *roce.CQ
	qp   *roce.QP
	buf  []byte // one message; with --chk one to send, one to receive
	mine exchange.Dest
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
	port, err := e.dev.QueryPort()
	if err != nil {
		return nil, err
	}
	if o.mtu > port.ActiveMTU {
		return nil, fmt.Errorf("path MTU %v does not fit interface %s, whose MTU is %d: use -m %v on both sides, or raise the interface's MTU to %d",
			o.mtu, port.Interface, port.LinkMTU, port.ActiveMTU, o.mtu.Bytes()+headers(addr))
	}
	gids := e.dev.GIDs()
	if o.gidIndex < 0 || o.gidIndex >= len(gids) {
		return nil, fmt.Errorf("there is no GID with index %d: the device of %v has the indices 0 to %d", o.gidIndex, addr, len(gids)-1)
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return nil, err
	}
	e.buf = bytes.Repeat([]byte{plainByte}, o.size*e.buffers()) // now: a peer may send before we look again
	if e.mr, err = e.pd.RegisterMR(e.buf, roce.LocalWrite); err != nil {
		return nil, err
	}
	if e.cq, err = e.dev.CreateCQ(o.rxDepth + 1); err != nil {
		return nil, tooDeep(o, err)
	}
	e.qp, err = e.pd.CreateQP(roce.QPConfig{Type: roce.RC, SendCQ: e.cq, RecvCQ: e.cq,
		MaxSendWR: 1, MaxRecvWR: o.rxDepth, MaxSendSGE: 1, MaxRecvSGE: 1})
	if err != nil {
		return nil, tooDeep(o, err)
	}
	err = e.qp.Modify(&roce.Attr{State: roce.StateInit, PortNum: 1},
		roce.MaskState|roce.MaskPKeyIndex|roce.MaskPort|roce.MaskAccess)
	if err != nil {
		return nil, err
	}
	if err := e.postRecv(o.rxDepth); err != nil {
		return nil, err
	}
	e.mine = exchange.Dest{QPN: e.qp.Num(), PSN: e.qp.PSN(), GID: gids[o.gidIndex]}
	return e, nil
}

// tooDeep names the flag behind a configuration error.
func tooDeep(o *pingpongOptions, err error) error {
	var conf *roce.ConfigError
	if errors.As(err, &conf) {
		return fmt.Errorf("-r %d: %w", o.rxDepth, err)
	}
	return err
}

// connect brings the queue pair to RTS, with the attributes of ibv_rc_pingpong.
func (e *endpoint) connect(peer exchange.Dest) error {
	if err := checkPeer(e.dev.Addr(), peer); err != nil {
		return err
	}
	err := e.qp.Modify(&roce.Attr{
		State:           roce.StateRTR,
		PathMTU:         e.o.mtu,
		DestQPN:         peer.QPN,
		RQPSN:           peer.PSN,
		MaxDestRdAtomic: 1,
		MinRNRTimer:     12, // 0.64 ms
		AV:              roce.AddressVector{DGID: peer.GID, SGIDIndex: uint8(e.o.gidIndex), HopLimit: 64},
	}, roce.MaskState|roce.MaskAV|roce.MaskPathMTU|roce.MaskDestQPN|roce.MaskRQPSN|roce.MaskMaxDestRdAtomic|roce.MaskMinRNRTimer)
	if err != nil {
		return err
	}
	return e.qp.Modify(&roce.Attr{
		State:       roce.StateRTS,
		Timeout:     14, // 67 ms
		RetryCnt:    7,
		RNRRetry:    7, // for ever
		SQPSN:       e.mine.PSN,
		MaxRdAtomic: 1,
	}, roce.MaskState|roce.MaskTimeout|roce.MaskRetryCnt|roce.MaskRNRRetry|roce.MaskSQPSN|roce.MaskMaxRdAtomic)
}

func (e *endpoint) buffers() int {
	if e.o.check {
		return 2
	}
	return 1
}

// sendBuf and recvBuf are the same bytes without --chk, as in ibv_rc_pingpong.
func (e *endpoint) sendBuf() []byte { return e.buf[:e.o.size] }
func (e *endpoint) recvBuf() []byte { return e.buf[len(e.buf)-e.o.size:] }

// linger keeps the device open while the other side may miss our last ACK: until
// nothing has come for a few of its timeouts (67 ms), at most two seconds.
func (e *endpoint) linger(ctx context.Context) {
	const quiet = 250 * time.Millisecond
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); {
		before := e.packets()
		select {
		case <-ctx.Done():
			return
		case <-time.After(quiet):
		}
		if e.packets() == before {
			return
		}
	}
}

// packets returns how many packets of ours have come in.
func (e *endpoint) packets() uint64 { return e.dev.Counters()["rcvd_pkts"] }

func (e *endpoint) close() {
	if e.dev != nil {
		e.dev.Close()
	}
}
