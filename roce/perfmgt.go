package roce

import (
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/roce/netio"
)

// The counters of performance management (IBTA chapter 16).
const (
	perfXmitData = iota // data in units of 4 bytes
	perfRcvData
	perfXmitPkts
	perfRcvPkts
	perfRcvErrors
	perfXmitDiscards
	perfQP1Dropped
	perfXmitWait
	numPerf
)

// perfSelect are the counters that the bits of CounterSelect reset, from the lowest
// on, -1 where we have none (Linux include/rdma/ib_pma.h).
var (
	perfSelect         = []int{-1, -1, -1, perfRcvErrors, -1, -1, perfXmitDiscards, -1, -1, -1, -1, -1, perfXmitData, perfRcvData, perfXmitPkts, perfRcvPkts}
	perfSelectExtended = []int{perfXmitData, perfRcvData, perfXmitPkts, perfRcvPkts}
)

// perfAgent answers the performance management of a port from the counters of the
// backend and the engine. A Set resets counters: what they were then is taken off
// afterwards. Only the goroutine of the GSI uses it.
type perfAgent struct {
	gsi  *GSI
	zero [numPerf]uint64 // as of the last reset
}

// counts reads the counters.
func (a *perfAgent) counts() (c [numPerf]uint64) {
	p := a.gsi.dev.port
	s := p.stats()
	c = [numPerf]uint64{
		perfXmitData: s[netio.TxBytes] / 4, perfRcvData: s[netio.RxBytes] / 4, perfXmitPkts: s[netio.TxPackets], perfRcvPkts: s[netio.RxPackets],
		perfRcvErrors:    p.dropped(dropICRC) + p.dropped(dropIPID) + s[netio.RxTruncated],
		perfXmitDiscards: s[netio.TxRefused] + s[netio.TxUnreachable] + s[netio.TxTooBig] + s[netio.TxError],
		perfQP1Dropped:   p.dropped(dropMADFormat) + p.dropped(dropMADClass) + p.dropped(dropMADSend),
		perfXmitWait:     s[netio.TxWouldBlock],
	}
	for m := range ib.NumMalformed {
		c[perfRcvErrors] += p.malformed(m)
	}
	return c
}

// reset makes counters count from now on.
func (a *perfAgent) reset(bits uint16, selected []int) {
	now := a.counts()
	for i, c := range selected {
		if c >= 0 && bits>>i&1 != 0 {
			a.zero[c] = now[c]
		}
	}
}

// since returns what was counted since the last reset.
func (a *perfAgent) since() [numPerf]uint64 {
	c := a.counts()
	for i := range c {
		c[i] -= a.zero[i]
	}
	return c
}

// answer serves one datagram.
func (a *perfAgent) answer(from MADAddr, b []byte) {
	h, _ := mad.Parse(b) // it is well-formed: the GSI has looked
	if h.Method != mad.MethodGet && h.Method != mad.MethodSet {
		a.gsi.qp.e.count(dropMADClass) // an answer to nobody's question, or a trap
		return
	}
	var reply [mad.Size]byte
	copy(reply[:], b)
	h.Status = a.serve(h, reply[:])
	h.Method = mad.MethodGetResp
	h.Put(reply[:])
	a.gsi.Send(from, reply[:]) // what finds no room is counted there; who asks will ask again
}

// serve executes a request and writes the attribute that is asked for over it.
func (a *perfAgent) serve(h mad.Header, b []byte) (status uint16) {
	set := h.Method == mad.MethodSet
	switch {
	case h.ClassVersion != h.Class.Version():
		return mad.StatusBadVersion
	case h.Attr == mad.AttrClassPortInfo && !set:
		mad.Put(b, &mad.ClassPortInfo{
			Class: h.Class, ClassVersion: h.ClassVersion, RespTime: ib.AckTimeout(18), // a second
			CapabilityMask: mad.PerfCapExtWidthNoIETF | mad.PerfCapXmitWait,
		})
		return mad.StatusOK
	case h.Attr == mad.AttrPortCounters:
		return a.portCounters(set, b)
	case h.Attr == mad.AttrPortCountersExtended:
		return a.portCountersExtended(set, b)
	}
	return mad.StatusBadMethodAttr
}

// ourPort says whether a request is about our port, number 1, or about all.
func ourPort(n uint8) bool { return n == 1 || n == 255 }

func (a *perfAgent) portCounters(set bool, b []byte) (status uint16) {
	var m mad.PortCounters
	mad.Decode(b, &m)
	if !ourPort(m.PortSelect) {
		return mad.StatusBadValue
	}
	if set {
		a.reset(m.CounterSelect, perfSelect)
	}
	c := a.since()
	mad.Put(b, &mad.PortCounters{
		PortSelect: m.PortSelect, CounterSelect: m.CounterSelect,
		RcvErrors: most[uint16](c[perfRcvErrors]), XmitDiscards: most[uint16](c[perfXmitDiscards]), QP1Dropped: most[uint16](c[perfQP1Dropped]),
		XmitData: most[uint32](c[perfXmitData]), RcvData: most[uint32](c[perfRcvData]), XmitPkts: most[uint32](c[perfXmitPkts]),
		RcvPkts: most[uint32](c[perfRcvPkts]), XmitWait: most[uint32](c[perfXmitWait]),
	})
	return mad.StatusOK
}

// most returns a count, or the largest number that fits.
func most[T uint16 | uint32](n uint64) T { return T(min(n, uint64(^T(0)))) }

func (a *perfAgent) portCountersExtended(set bool, b []byte) (status uint16) {
	var m mad.PortCountersExtended
	mad.Decode(b, &m)
	if !ourPort(m.PortSelect) {
		return mad.StatusBadValue
	}
	if set {
		a.reset(m.CounterSelect, perfSelectExtended)
	}
	c := a.since()
	mad.Put(b, &mad.PortCountersExtended{
		PortSelect: m.PortSelect, CounterSelect: m.CounterSelect,
		XmitData: c[perfXmitData], RcvData: c[perfRcvData], XmitPkts: c[perfXmitPkts], RcvPkts: c[perfRcvPkts],
	})
	return mad.StatusOK
}
