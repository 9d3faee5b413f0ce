// Package netio is how packets of a RoCEv2 device travel: a [Backend] sends and
// receives runs of UDP datagrams. There is one over a UDP socket ([ListenUDP]),
// one over memory ([Fabric]), and two wrappers over any of them: [WithFaults]
// loses, delays and damages packets from a seed, [Tap] writes what passes into a
// pcapng file.
//
// A backend knows nothing of InfiniBand beyond the invariant CRC: what it carries
// are the bytes from the BTH to the ICRC.
package netio

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
)

// Port is the UDP port of RoCEv2 (IANA; IBTA annex A17).
const Port = 4791

// Never is the deadline of a backend that holds nothing.
const Never = time.Duration(math.MaxInt64)

// ErrWouldBlock says that the kernel has no room for more at the moment: the runs
// that are not gone stay valid, with their IDs and ICRCs, and shall be offered
// again, the same one first, when Wait reports writability.
var ErrWouldBlock = errors.New("netio: send would block")

// Run is one or more packets of equal size for one destination.
type Run struct {
	// Dst is where the packets go, a host or a multicast group; of the same IP
	// version as the backend.
	Dst netip.AddrPort
	// SrcPort is the UDP source port the packets were sealed with; 0 means the
	// port of the backend's own address.
	SrcPort uint16
	// TOS is the IPv4 TOS or the IPv6 traffic class: DSCP and ECN.
	TOS uint8
	// FlushTwice says how FLUSHes were sealed, see ib.Flow.SealFlushTwice.
	FlushTwice bool
	// SegSize is the size of each packet in bytes, but for the last, which may
	// be shorter (not empty). 0 means that Buf is one packet.
	SegSize int
	// Buf holds the sealed packets, back to back, each from the BTH to the
	// ICRC. Segment i was sealed with the IPv4 Identification i. The backend
	// may seal segments anew in place, but keeps no reference to Buf once the
	// run is gone.
	Buf []byte
}

// Flow returns the flow in which the packets are sealed when they leave from src.
func (r *Run) Flow(src netip.AddrPort) ib.Flow {
	f := ib.NewFlow(src, r.Dst)
	f.SealFlushTwice(r.FlushTwice)
	return f
}

// Segments returns the number of packets in the run.
func (r *Run) Segments() int { return segments(len(r.Buf), r.SegSize) }

// Segment returns packet i of the run.
func (r *Run) Segment(i int) []byte { return segment(r.Buf, r.SegSize, i) }

// Received is what one call of the kernel brought: one packet, or several of
// equal size from one sender, put together by GRO.
type Received struct {
	Src, Dst netip.AddrPort
	// TOS is the IPv4 TOS or IPv6 traffic class, ECN bits included; it is 0 when
	// the backend cannot know it (see Caps.ECN).
	TOS uint8
	// SegSize is the size of each packet but for the last, which may be shorter.
	// 0 means that Buf is one packet.
	SegSize int
	// ID is the IPv4 Identification of the first packet if IDKnown; that of
	// packet i is ID + i.
	ID      uint16
	IDKnown bool
	// Buf holds the packets. It belongs to the backend and is valid until the
	// next call of Recv.
	Buf []byte
}

// Segments returns the number of packets received together. A datagram without
// any byte counts as one packet.
func (r *Received) Segments() int { return segments(len(r.Buf), r.SegSize) }

// Segment returns packet i.
func (r *Received) Segment(i int) []byte { return segment(r.Buf, r.SegSize, i) }

// hostLittleEndian is the byte order of this machine.
var hostLittleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

func segments(n, size int) int {
	if size <= 0 || n <= size {
		return 1
	}
	return (n + size - 1) / size
}

func segment(b []byte, size, i int) []byte {
	if size <= 0 || len(b) <= size {
		return b
	}
	return b[i*size : min(i*size+size, len(b)) : min(i*size+size, len(b))]
}

// Caps is what a backend can do. It may change for the worse while the backend
// is in use (GSO switched off): look again after a Send.
type Caps struct {
	// MaxSegments is the most packets of a run; 1 means no GSO.
	MaxSegments int
	// MaxRun is the most bytes of a run.
	MaxRun int
	// IDKnown says that Received.ID is known.
	IDKnown bool
	// ECN says that Received.TOS is what was on the wire.
	ECN bool
	// RecvBuffer is the size of the receive buffer that the kernel really gave,
	// in the kernel's own accounting: a datagram of 4 KiB charges about 8 KiB.
	RecvBuffer int
	// MTU is the most bytes one IP packet may have, headers included; 0 means
	// unknown.
	MTU int
	// Name says what the backend is, for people: "udp 10.0.0.1:4791 gso gro".
	Name string
}

// Backend sends and receives packets for one local address.
//
// Send, Recv and Deadline are called by one goroutine at a time (the engine under
// its lock) and never block. Wait is called by at most one goroutine at a time and
// may run beside all others. The other methods may be called by anybody.
type Backend interface {
	// Caps returns what the backend can do.
	Caps() Caps
	// LocalAddr returns the address that the backend is bound to.
	LocalAddr() netip.AddrPort
	// Send sends runs in order and returns how many are gone. The error is nil
	// when all are; ErrWouldBlock when the rest has to wait; an error that wraps
	// net.ErrClosed after Close. A run that the host refuses to send for its own
	// reasons (a firewall, no route, too big for the interface) is gone: lost and
	// counted, like a packet lost on the wire. now is the device's time; a
	// backend that holds packets back releases those that are due, also with no
	// runs at all.
	Send(now time.Duration, runs []Run) (n int, err error)
	// Recv fills dst with what has arrived and returns how many entries it
	// filled, 0 when there is nothing. What it returned before becomes invalid.
	// Errors of the network are counted, not returned; after Close the error
	// wraps net.ErrClosed.
	Recv(now time.Duration, dst []Received) (n int, err error)
	// Deadline returns when a held packet becomes due without any event from
	// the network: Recv (or Send) has to be called then. Never when nothing is
	// held.
	Deadline() time.Duration
	// Wait blocks until something can be received (with write also until
	// something can be sent), the timeout has passed, Wake or Close. It consumes
	// nothing and may return early without a reason. A negative timeout is no
	// limit. After Close the error wraps net.ErrClosed.
	Wait(timeout time.Duration, write bool) error
	// Wake ends a running Wait, or else the next one. It is cheap when nobody
	// waits.
	Wake()
	// Join makes the backend receive what is sent to a multicast group of its IP
	// version, on the interface of its address: Received.Dst is the group then.
	// What the host itself sends to the group is received, too. Joining twice is
	// joining once. The error is a *ListenError; where there is no multicast, it
	// wraps errors.ErrUnsupported.
	Join(group netip.Addr) error
	// Leave ends what Join began. The error wraps ErrNotJoined, if it did not.
	Leave(group netip.Addr) error
	// Stats returns the counters, those of wrapped backends included.
	Stats() Stats
	// Close frees the address and ends a running Wait. The second Close returns
	// an error that wraps net.ErrClosed.
	Close() error
}
