package transport

import (
	"math"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// Never is the deadline of a queue pair that waits for nothing.
const Never = time.Duration(math.MaxInt64)

// Path is where packets of a queue pair go.
type Path struct {
	Dst     netip.Addr
	SrcPort uint16 // UDP source port; 0 means the device's own, 4791
	TOS     uint8  // IPv4 TOS or IPv6 traffic class, DSCP and ECN
}

// Outbox is where packets are written: the engine's staging buffer.
type Outbox interface {
	// Packet returns n bytes for one packet, from the BTH to the last byte
	// of the ICRC (which the outbox fills in at Commit), or nil when there is
	// no room in this turn. The contents of the bytes are undefined.
	Packet(path *Path, n int) []byte
	// Commit hands over the packet that Packet returned last. A packet that
	// is not committed before the next call of Packet is forgotten.
	Commit()
}

// Inbound is one received packet: validated, its ICRC right.
type Inbound struct {
	ib.Packet
	Src, Dst netip.Addr
	CE       bool // congestion experienced (ECN)
}

// Want says what a queue pair would transmit now if it were asked.
type Want uint8

const (
	WantControl Want = 1 << iota // ACK, NAK, CNP: always first
	WantData                     // requests or READ responses
)

// QPConfig is what a queue pair is made of. All fields but Event are needed.
type QPConfig struct {
	Num            ib.QPN
	Type           QPType
	PD             mem.PD
	Mem            *mem.Table
	SQ             SQ
	RQ             RQ
	SendCQ, RecvCQ CQ
	SQDepth        uint32 // entries of the send queue, a power of two
	SigAll         bool   // every send request is signaled
	Counters       *Counters
	// Event is told of asynchronous events, from inside any method of QP: it
	// must only queue them.
	Event func(Event)
	// Window is the most bytes of packets, ICRC and headers included, that may
	// be unacknowledged; 0 means 256 KiB. The window in use adapts below it.
	Window int
}
