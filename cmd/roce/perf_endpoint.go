package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/goroce/goroce/cmd/roce/internal/pattern"
	"github.com/goroce/goroce/cmd/roce/internal/perftest"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
)

// perfEndpoint is one side's device with all queue pairs. The memory of queue pair
// k is an area to send from and one for the peer to reach or to receive into; for
// READ it is the requester that reads into the first.
type perfEndpoint struct {
	o     *perfOptions
	dev   *roce.Device
	mtu   ib.MTU // what we can do
	gid   ib.GID
	pd    *roce.PD
	mr    *roce.MR
	cq    *roce.CQ
	qps   []*roce.QP
	buf   []byte
	area  int // bytes
	mine  []perftest.Dest
	peers []perftest.Dest
}

// openPerf opens the device of a local address.
func (a *app) openPerf(addr netip.Addr, o *perfOptions) (_ *perfEndpoint, err error) {
	e := &perfEndpoint{o: o}
	if e.dev, err = a.open(roce.Config{Addr: addr, Wrap: o.faults()}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if e.mtu, err = fitMTU(e.dev, o.mtu); err != nil {
		return nil, err
	}
	e.gid, err = gidOf(e.dev, o.gidIndex)
	return e, err
}

// build makes queue pairs and memory, in INIT; cycle is how much of an area the
// peer walks through.
func (e *perfEndpoint) build(cycle int) (err error) {
	o := e.o
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return err
	}
	e.area = o.area(cycle)
	e.buf = make([]byte, 2*e.area*o.qps)
	access := roce.RemoteWrite
	switch {
	case o.test.sends():
		access = 0
	case o.test.atomic():
		access = roce.RemoteAtomic
	case o.test.opcode == roce.WRRead:
		access = roce.RemoteRead
	case o.verify:
		access |= roce.RemoteRead // the client looks at what it has written
	}
	if e.mr, err = e.pd.RegisterMR(e.buf, roce.LocalWrite|access); err != nil {
		return err
	}
	perQP := o.txDepth + 1
	if o.test.sends() {
		perQP += o.rxDepth
	}
	if e.cq, err = e.dev.CreateCQ(o.qps * perQP); err != nil {
		return perfTooDeep(err)
	}
	for k := range o.qps {
		q, err := e.pd.CreateQP(roce.QPConfig{SendCQ: e.cq, MaxSendWR: o.txDepth + 1, MaxRecvWR: max(1, o.rxDepth), MaxSendSGE: 1, MaxRecvSGE: 1})
		if err != nil {
			return perfTooDeep(err)
		}
		e.qps = append(e.qps, q)
		if err := q.Init(access); err != nil {
			return err
		}
		d := perftest.Dest{OutReads: 1, QPN: q.Num(), PSN: q.PSN(), RKey: e.mr.RKey(), VAddr: e.mr.Addr() + uint64(e.remote(k)), GID: e.gid}
		if o.test.fetches() {
			d.OutReads = uint16(o.outs)
		}
		e.mine = append(e.mine, d)
	}
	if o.test.opcode == roce.WRRead && !o.client() {
		e.fillForReads()
	}
	return nil
}

// perfTooDeep names the flags behind a configuration error.
func perfTooDeep(err error) error {
	if conf := (*roce.ConfigError)(nil); errors.As(err, &conf) {
		return fmt.Errorf("-q, -t or -r is too large: %w", err)
	}
	return err
}

// local and remote are offsets of queue pair k's areas.
func (e *perfEndpoint) local(k int) int  { return k * e.area }
func (e *perfEndpoint) remote(k int) int { return (e.o.qps + k) * e.area }

// at returns the memory of a message at an offset.
func (e *perfEndpoint) at(off, size int) []byte { return e.buf[off:][:size:size] }

// connect brings all queue pairs to RTS, with the attributes of perftest.
func (e *perfEndpoint) connect(peers []perftest.Dest, mtu ib.MTU) error {
	for k, q := range e.qps {
		p := peers[k]
		if err := checkPeer(e.dev.Addr(), p.GID, p.QPN, "ib_"+e.o.test.name, "-x"); err != nil {
			return err
		}
		err := q.Modify(&roce.Attr{
			State: roce.StateRTR, PathMTU: mtu, DestQPN: p.QPN, RQPSN: p.PSN,
			MaxDestRdAtomic: uint8(e.mine[k].OutReads), MinRNRTimer: 12, // 0.64 ms
			AV: roce.AddressVector{DGID: p.GID, SGIDIndex: uint8(e.o.gidIndex), HopLimit: 64},
		}, roce.MaskState|roce.MaskAV|roce.MaskPathMTU|roce.MaskDestQPN|roce.MaskRQPSN|roce.MaskMaxDestRdAtomic|roce.MaskMinRNRTimer)
		if err != nil {
			return err
		}
		err = q.Modify(&roce.Attr{
			State: roce.StateRTS, SQPSN: e.mine[k].PSN,
			Timeout: ib.AckTimeout(e.o.ackTime), RetryCnt: 7, RNRRetry: 7, // for ever
			MaxRdAtomic: uint8(max(1, min(p.OutReads, e.mine[k].OutReads))),
		}, roce.MaskState|roce.MaskTimeout|roce.MaskRetryCnt|roce.MaskRNRRetry|roce.MaskSQPSN|roce.MaskMaxRdAtomic)
		if err != nil {
			return err
		}
	}
	e.peers = peers
	return nil
}

// fillForReads makes the data that clients read: a stream that does not depend on
// the size of the messages, so that any part of it is known.
func (e *perfEndpoint) fillForReads() {
	for k := range e.qps {
		pattern.Fill(e.at(e.remote(k), e.area), readKey(k))
	}
}

func readKey(k int) uint64 { return pattern.Key('r', uint64(k)) }

func (e *perfEndpoint) close() {
	if e != nil && e.dev != nil {
		e.dev.Close()
	}
}
