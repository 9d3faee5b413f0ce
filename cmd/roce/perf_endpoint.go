package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/goroce/goroce/cmd/roce/internal/pattern"
	"github.com/goroce/goroce/cmd/roce/internal/perftest"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// perfEndpoint is one side's device with all queue pairs. The memory of queue pair
// k is an area to send from and one for the peer to reach or to receive into; for
// READ it is the requester that reads into the first.
type perfEndpoint struct {
	o      *perfOptions
	dev    *roce.Device
	mtu    ib.MTU // what we can do
	gid    ib.GID
	pd     *roce.PD
	mr     *roce.MR
	cq     *roce.CQ
	srq    *roce.SRQ // with --use-srq
	qps    []*roce.QP
	to     []datagramPeer // of each queue pair, over UD
	conns  []*rdmacm.Conn // of the queue pairs, with -R
	buf    []byte
	area   int         // bytes
	access roce.Access // of the peer
	mine   []perftest.Dest
	peers  []perftest.Dest
}

// openPerf opens the device of a local address.
func (a *app) openPerf(addr netip.Addr, o *perfOptions) (_ *perfEndpoint, err error) {
	e := &perfEndpoint{o: o}
	if e.dev, err = a.open(roce.Config{Addr: addr, Wrap: o.faults(), RecvBuffer: o.buffers, SendBuffer: o.buffers, Spin: o.spin(), Congestion: o.cc}); err != nil {
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

// build makes the memory and, unless rdma_cm does that, queue pairs in INIT; cycle is
// how much of an area the peer walks through.
func (e *perfEndpoint) build(cycle int) (err error) {
	o := e.o
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return err
	}
	e.area = o.area(cycle)
	e.buf = make([]byte, 2*e.area*o.qps)
	for i := 0; i < len(e.buf); i += os.Getpagesize() {
		e.buf[i] = 0 // the memory is there when the time begins, as perftest's is
	}
	e.access = roce.RemoteWrite
	switch {
	case o.test.sends():
		e.access = 0
	case o.test.atomic():
		e.access = roce.RemoteAtomic
	case o.test.opcode == roce.WRRead:
		e.access = roce.RemoteRead
	case o.verifies():
		e.access |= roce.RemoteRead // the client looks at what it has written
	}
	if e.mr, err = e.pd.RegisterMR(e.buf, roce.LocalWrite|e.access); err != nil {
		return err
	}
	perQP := o.txDepth + 1
	if o.test.sends() {
		perQP += o.rxDepth
	}
	if e.cq, err = e.dev.CreateCQ(o.qps * perQP); err != nil {
		return perfTooDeep(err)
	}
	if o.srq {
		if e.srq, err = e.pd.CreateSRQ(roce.SRQConfig{MaxWR: o.rxDepth, MaxSGE: 1}); err != nil {
			return perfTooDeep(err)
		}
	}
	if o.test.opcode == roce.WRRead && (!o.client() || o.both) {
		e.fillForReads()
	}
	if o.rdmaCM {
		return nil
	}
	return e.makeQPs()
}

func (e *perfEndpoint) makeQPs() error {
	for range e.o.qps {
		q, err := e.pd.CreateQP(e.qpConfig())
		if err != nil {
			return perfTooDeep(err)
		}
		if err := e.init(q); err != nil {
			return err
		}
		e.add(q)
	}
	return nil
}

// qpConfig is what queue pairs are made of.
func (e *perfEndpoint) qpConfig() roce.QPConfig {
	o := e.o
	return roce.QPConfig{
		Type: o.service, SendCQ: e.cq, SRQ: e.srq, MaxSendWR: o.txDepth + 1, MaxRecvWR: max(1, o.rxDepth), MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: o.inline,
	}
}

// add takes the next queue pair.
func (e *perfEndpoint) add(q *roce.QP) {
	d := perftest.Dest{OutReads: 1, QPN: q.Num(), PSN: q.PSN(), RKey: e.mr.RKey(), VAddr: e.mr.Addr() + uint64(e.remote(len(e.qps))), GID: e.gid}
	if e.o.test.fetches() {
		d.OutReads = uint16(e.o.outs)
	}
	e.qps, e.mine = append(e.qps, q), append(e.mine, d)
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

// connect brings all queue pairs to RTS, with the attributes of perftest; rdma_cm has
// done so already.
func (e *perfEndpoint) connect(peers []perftest.Dest, mtu ib.MTU) error {
	e.peers = peers
	if e.o.rdmaCM {
		return nil
	}
	for k, q := range e.qps {
		p := peers[k]
		if err := checkPeer(e.dev.Addr(), p.GID, p.QPN, "ib_"+e.o.test.name, "-x"); err != nil {
			return err
		}
		if err := e.connectQP(q, k, &p, mtu); err != nil {
			return err
		}
	}
	return nil
}

// fillForReads makes the data that clients read: a stream that does not depend on
// the size of the messages, so that any part of it is known.
func (e *perfEndpoint) fillForReads() {
	for k := range e.o.qps {
		pattern.Fill(e.at(e.remote(k), e.area), readKey(k))
	}
}

func readKey(k int) uint64 { return pattern.Key('r', uint64(k)) }

func (e *perfEndpoint) close() {
	if e != nil && e.dev != nil {
		e.dev.Close()
	}
}
