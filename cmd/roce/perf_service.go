package main

import (
	"fmt"

	"github.com/goroce/goroce/cmd/roce/internal/perftest"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
)

// perfServices are the values of -c.
var perfServices = map[string]roce.QPType{"RC": roce.RC, "UC": roce.UC, "UD": roce.UD}

// over reports whether the test can use a transport service.
func (t *perfTest) over(s roce.QPType) bool {
	return s == roce.RC || s == roce.UC && !t.fetches() || s == roce.UD && t.sends()
}

// services are those that the test can use.
func (t *perfTest) services() (names []string) {
	for _, name := range []string{"RC", "UC", "UD"} {
		if t.over(perfServices[name]) {
			names = append(names, name)
		}
	}
	return names
}

// fit makes the size of datagrams one that fits the path MTU, as perftest does.
func (o *perfOptions) fit(mtu ib.MTU) error {
	if o.service != roce.UD || o.size <= mtu.Bytes() {
		return nil
	}
	if !o.anySize {
		return fmt.Errorf("-s %d: a datagram has up to the path MTU here, %d bytes", o.size, mtu.Bytes())
	}
	o.size = mtu.Bytes()
	return nil
}

// header is how much is received before the message of a datagram.
func (o *perfOptions) header() int {
	if o.service == roce.UD {
		return ib.GRHSize
	}
	return 0
}

// perfQKey is the Q_Key of perftest.
const perfQKey = 0x11111111

// init makes a queue pair ready for receives.
func (e *perfEndpoint) init(q *roce.QP) error {
	if e.o.service == roce.UD {
		return q.Activate(perfQKey)
	}
	return q.Init(e.access)
}

// direct tells a request over UD where to go.
func (e *perfEndpoint) direct(wr *roce.SendWR, k int) {
	if e.o.service == roce.UD {
		to := &e.to[k]
		wr.AH, wr.RemoteQPN, wr.QKey = to.ah, to.qpn, to.qkey
	}
}

// connectQP brings queue pair k to RTS.
func (e *perfEndpoint) connectQP(q *roce.QP, k int, p *perftest.Dest, mtu ib.MTU) error {
	av := roce.AddressVector{DGID: p.GID, SGIDIndex: uint8(e.o.gidIndex), HopLimit: 64, TrafficClass: uint8(e.o.tclass)}
	switch e.o.service {
	case roce.UD:
		ah, err := e.pd.CreateAH(av)
		e.to = append(e.to, datagramPeer{ah, p.QPN, perfQKey})
		return err
	case roce.UC:
		if err := q.RTR(roce.Remote{Addr: p.GID.Addr(), QPN: p.QPN, PSN: p.PSN}, roce.Conn{PathMTU: mtu, TrafficClass: av.TrafficClass}); err != nil {
			return err
		}
		return q.RTS(roce.Conn{})
	}
	err := q.Modify(&roce.Attr{
		State: roce.StateRTR, PathMTU: mtu, DestQPN: p.QPN, RQPSN: p.PSN,
		MaxDestRdAtomic: uint8(e.mine[k].OutReads), MinRNRTimer: 12, // 0.64 ms
		AV: av,
	}, roce.MaskState|roce.MaskAV|roce.MaskPathMTU|roce.MaskDestQPN|roce.MaskRQPSN|roce.MaskMaxDestRdAtomic|roce.MaskMinRNRTimer)
	if err != nil {
		return err
	}
	return q.Modify(&roce.Attr{
		State: roce.StateRTS, SQPSN: e.mine[k].PSN,
		Timeout: ib.AckTimeout(e.o.ackTime), RetryCnt: 7, RNRRetry: 7, // for ever
		MaxRdAtomic: uint8(max(1, min(p.OutReads, e.mine[k].OutReads))),
	}, roce.MaskState|roce.MaskTimeout|roce.MaskRetryCnt|roce.MaskRNRRetry|roce.MaskSQPSN|roce.MaskMaxRdAtomic)
}
