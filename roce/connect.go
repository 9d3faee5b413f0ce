package roce

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/transport"
)

// Remote is the other end of a connection.
type Remote struct {
	Addr netip.Addr
	QPN  ib.QPN
	PSN  ib.PSN // of its first request
}

// Conn is how a queue pair is connected. Its zero value has the defaults of most
// verbs programs; a negative number means 0, where 0 means a default.
type Conn struct {
	// Access is what the peer may do to our memory regions, as far as they
	// allow it too.
	Access Access
	// PathMTU is the payload of a packet, the same on both sides; 0 means what
	// the interface allows.
	PathMTU ib.MTU
	// MaxDestRdAtomic is how many READs and atomics of the peer may be under way, up
	// to 16; 0 means 16.
	MaxDestRdAtomic int
	// MaxRdAtomic is how many READs and atomics of ours may be under way, up to
	// 128, and at most the peer's MaxDestRdAtomic; 0 means 16.
	MaxRdAtomic int
	// MinRNRTimer is how long a peer shall wait when there is no receive
	// request; rounded up to a code of the wire; 0 means 640 us.
	MinRNRTimer time.Duration
	// AckTimeout is how long to wait for an acknowledgement; rounded up to
	// 4.096 us times a power of two; 0 means 67 ms, negative for ever.
	AckTimeout time.Duration
	// RetryCount is how often to retry without progress; 0 means 7.
	RetryCount int
	// RNRRetry is how often to retry when the peer has no receive request; 0
	// means 7, which is for ever.
	RNRRetry int
	// TrafficClass is the IPv4 TOS or IPv6 traffic class of what is sent.
	TrafficClass uint8
	// SourcePort is the UDP source port of what is sent. 0 means the device's
	// own, 4791: all queue pairs of two hosts are one flow then, and a network
	// that spreads flows over equal paths (ECMP) sends them all one way. With
	// ib.SourcePort(q.Num(), remote.QPN) each connection is a flow of its own, as
	// with rxe and mlx5. A port costs a socket; a device has up to 256 at a time,
	// opened when first used. Who gets none, or asks for a port that is taken,
	// sends from 4791 at the price of a second pass of the CRC over each packet,
	// counted as tx_port_failed. Peers take any source port.
	SourcePort uint16
}

func orDefault(n, def int) int {
	switch {
	case n == 0:
		return def
	case n < 0:
		return 0
	}
	return n
}

// ackTimeout returns the code of a timeout of Conn.
func ackTimeout(d time.Duration) ib.AckTimeout {
	switch {
	case d < 0:
		return 0
	case d > 0:
		return ib.AckTimeoutFor(d)
	}
	return 14 // 67 ms
}

// small checks that a count fits its wire field.
func small(field string, n, limit int) error {
	if n > limit {
		return &ConfigError{field, n, fmt.Sprintf("allowed are 0 to %d", limit)}
	}
	return nil
}

// Connect takes a connected queue pair from RESET through INIT and RTR to RTS: Init,
// RTR and RTS in one. UC uses of c only Access, PathMTU, TrafficClass and SourcePort.
// Of XRC, the sender's Remote is a target and the target's a sender; the sender uses
// what belongs to requests, the target what belongs to their execution.
func (q *QP) Connect(r Remote, c Conn) error {
	if err := q.Init(c.Access); err != nil {
		return err
	}
	if err := q.RTR(r, c); err != nil {
		return err
	}
	return q.RTS(c)
}

// Init moves the queue pair from RESET to INIT; receive requests may be posted
// then. access is what the peer may do.
func (q *QP) Init(access Access) error {
	return q.Modify(&Attr{State: StateInit, PortNum: 1, Access: access}, MaskState|MaskPKeyIndex|MaskPort|MaskAccess)
}

// RTR moves the queue pair from INIT to RTR: it takes requests of the peer. Of c
// it uses PathMTU, MaxDestRdAtomic, MinRNRTimer, TrafficClass and SourcePort.
func (q *QP) RTR(r Remote, c Conn) error {
	if c.PathMTU == 0 {
		port, err := q.dev.QueryPort()
		if err != nil {
			return err
		}
		c.PathMTU = port.ActiveMTU
	}
	a, mask, err := c.AttrRTR(q.typ, r)
	if err != nil {
		return err
	}
	return q.Modify(a, mask)
}

// AttrRTR returns the attributes by which QP.RTR moves a queue pair of a type to RTR,
// for Modify. The path MTU is c.PathMTU, which has to be set.
func (c Conn) AttrRTR(typ QPType, r Remote) (*Attr, AttrMask, error) {
	if !r.Addr.IsValid() {
		return nil, 0, &ConfigError{"Remote.Addr", r.Addr, "the address of the peer is needed"}
	}
	a := &Attr{
		State: StateRTR, PathMTU: c.PathMTU, DestQPN: r.QPN, RQPSN: r.PSN,
		AV: AddressVector{DGID: ib.GIDFromAddr(r.Addr.WithZone("")), TrafficClass: c.TrafficClass, HopLimit: 64, SourcePort: c.SourcePort},
	}
	const mask = MaskState | MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN
	if typ == UC || typ == XRCSend {
		return a, mask, nil
	}
	res := orDefault(c.MaxDestRdAtomic, 16)
	if err := small("MaxDestRdAtomic", res, transport.MaxDestRdAtomic); err != nil {
		return nil, 0, err
	}
	if c.MinRNRTimer == 0 {
		c.MinRNRTimer = 640 * time.Microsecond
	}
	a.MaxDestRdAtomic, a.MinRNRTimer = uint8(res), ib.RNRTimerFor(c.MinRNRTimer)
	return a, mask | MaskMaxDestRdAtomic | MaskMinRNRTimer, nil
}

// RTS moves the queue pair from RTR to RTS: requests may be posted. The first has
// the PSN that PSN returns. Of c it uses AckTimeout, RetryCount, RNRRetry and
// MaxRdAtomic.
func (q *QP) RTS(c Conn) error {
	a, mask, err := c.AttrRTS(q.typ, q.PSN())
	if err != nil {
		return err
	}
	return q.Modify(a, mask)
}

// AttrRTS returns the attributes by which QP.RTS moves a queue pair of a type to RTS,
// for Modify. The first request has the PSN psn.
func (c Conn) AttrRTS(typ QPType, psn ib.PSN) (*Attr, AttrMask, error) {
	a := &Attr{State: StateRTS, SQPSN: psn}
	const mask = MaskState | MaskSQPSN
	switch typ {
	case UC:
		return a, mask, nil
	case XRCRecv:
		a.Timeout = ackTimeout(c.AckTimeout)
		return a, mask | MaskTimeout, nil
	}
	depth, retry, rnr := orDefault(c.MaxRdAtomic, 16), orDefault(c.RetryCount, 7), orDefault(c.RNRRetry, 7)
	for _, f := range []struct {
		name     string
		n, limit int
	}{{"MaxRdAtomic", depth, transport.MaxRdAtomic}, {"RetryCount", retry, 7}, {"RNRRetry", rnr, 7}} {
		if err := small(f.name, f.n, f.limit); err != nil {
			return nil, 0, err
		}
	}
	a.Timeout, a.RetryCnt, a.RNRRetry, a.MaxRdAtomic = ackTimeout(c.AckTimeout), uint8(retry), uint8(rnr), uint8(depth)
	return a, mask | MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskMaxRdAtomic, nil
}

// Activate takes a UD queue pair from RESET through INIT and RTR to RTS. It
// receives datagrams that carry the Q_Key.
func (q *QP) Activate(qkey uint32) error {
	if err := q.Modify(&Attr{State: StateInit, PortNum: 1, QKey: qkey}, MaskState|MaskPKeyIndex|MaskPort|MaskQKey); err != nil {
		return err
	}
	if err := q.Modify(&Attr{State: StateRTR}, MaskState); err != nil {
		return err
	}
	return q.Modify(&Attr{State: StateRTS, SQPSN: q.PSN()}, MaskState|MaskSQPSN)
}
