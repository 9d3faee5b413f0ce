package transport

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/transport/cc"
)

// CNPMode says which flows share one interval between congestion notification
// packets.
type CNPMode uint8

const (
	CNPPerQP     CNPMode = iota // each queue pair of a peer has its own
	CNPPerPeer                  // those of one address share one
	CNPPerDevice                // all do
)

func (m CNPMode) String() string {
	switch m {
	case CNPPerQP:
		return "per QP"
	case CNPPerPeer:
		return "per peer"
	case CNPPerDevice:
		return "per device"
	}
	return fmt.Sprintf("CNPMode(%d)", uint8(m))
}

// Notifier is the notification point of a device: it says when CNPs may leave (IBTA
// A17.9; Zhu et al., SIGCOMM 2015, section 3.2: one at once, then at most one per
// interval, and only for packets that were marked since). Its queue pairs may have
// several owners.
type Notifier struct {
	Interval time.Duration // between two CNPs
	Mode     CNPMode
	TOS      uint8 // IPv4 TOS or IPv6 traffic class of CNPs
	Overflow bool  // packets that come when others were dropped here cause CNPs, too

	// last is when a CNP left, and 1: of the whole device, or by peer, or by peer
	// and queue pair for datagrams. Two that meet in one place share an interval.
	last [256]atomic.Int64
}

// place returns where the time of the last CNP to a flow stands, for all but
// connected queue pairs that have their own.
func (n *Notifier) place(src netip.Addr, qpn ib.QPN) *atomic.Int64 {
	if n.Mode == CNPPerDevice {
		return &n.last[0]
	}
	b := src.As16()
	h := binary.BigEndian.Uint64(b[:8])*31 + binary.BigEndian.Uint64(b[8:])
	if n.Mode == CNPPerQP {
		h = h*31 + uint64(qpn)
	}
	return &n.last[h*0x9e3779b97f4a7c15>>56]
}

// may says whether a CNP may leave, and if so takes it as gone.
func (n *Notifier) may(last *atomic.Int64, now time.Duration) bool {
	was := last.Load()
	return (was == 0 || int64(now)+1-was >= int64(n.Interval)) && last.CompareAndSwap(was, int64(now)+1)
}

// notices is what a queue pair knows of CNPs, made with the first mark.
type notices struct {
	last atomic.Int64 // when one left, see Notifier
	owed [2]cnp       // those to be sent; a flow more is told by its next packet
	n    int
}

// cnp is a congestion notification packet to be sent.
type cnp struct {
	path Path
	dest ib.QPN
	why  Counter
}

// congestion takes note of the mark that a switch has put on a packet, and of a
// receive socket that is too small: whoever has sent the packet is told, if it was
// data. What slows a sender of acknowledgements does not make them fewer.
func (q *QP) congestion(now time.Duration, in *Inbound) {
	switch n := q.cfg.Notifier; {
	case in.CE:
		q.count(NPECNMarked)
		q.notify(now, in, NPCNPSent)
	case in.Overflow && n != nil && n.Overflow:
		q.notify(now, in, NPCNPOverflow)
	}
}

// notify makes a CNP to the sender of a packet due, if it is time for one; why counts
// it when it leaves.
func (q *QP) notify(now time.Duration, in *Inbound, why Counter) {
	n := q.cfg.Notifier
	if n == nil || in.Info().Op == ib.KindAck {
		return
	}
	if q.cnps == nil {
		q.cnps = new(notices)
	}
	if q.cnps.n == len(q.cnps.owed) {
		return
	}
	to := cnp{q.path, q.attr.DestQPN, why}
	if q.cfg.Type == UD {
		d := in.DETH()
		if d.QKey != q.attr.QKey || in.DestQP() == ib.MulticastQPN || d.SrcQP <= ib.GSIQPN || d.SrcQP >= ib.MulticastQPN {
			return // nobody who may send to us, or nobody to tell
		}
		to = cnp{Path{Dst: in.Src.Unmap()}, d.SrcQP, why}
	}
	last := &q.cnps.last
	if n.Mode != CNPPerQP || q.cfg.Type == UD {
		last = n.place(to.path.Dst, to.dest)
	}
	if !n.may(last, now) {
		return
	}
	to.path.TOS = n.TOS
	q.cnps.owed[q.cnps.n] = to
	q.cnps.n++
}

// putCNPs writes the CNPs that are due; their format is that of
// ConnectX NICs (ib.PutCNP).
func (q *QP) putCNPs(out Outbox) {
	for q.owesCNPs() {
		c := &q.cnps.owed[q.cnps.n-1]
		b := out.Packet(&c.path, ib.CNPSize)
		if b == nil {
			return
		}
		ib.PutCNP(b, c.dest)
		out.Commit()
		q.count(SentPkts)
		q.count(c.why)
		q.cnps.n--
	}
}

// owesCNPs says whether some are due.
func (q *QP) owesCNPs() bool { return q.cnps != nil && q.cnps.n > 0 }

// cnp takes a congestion notification packet of the peer; those to a UD queue pair
// come from whom it has sent to of late. All that it can do is to slow the queue pair
// down.
func (q *QP) cnp(now time.Duration, in *Inbound) {
	p := q.paced(now)
	if p == nil {
		q.count(RPCNPIgnored)
		return
	}
	if u, ok := q.snd.(*unreliable); ok && u.datagram && !u.knows(in.Src.Unmap()) {
		q.count(DropSource)
		return
	}
	q.count(RPCNPHandled)
	p.signal(now, cc.Signal{Kind: cc.CNP})
}

// ecn returns a path with ECT(0), unless what the program gave as traffic class has a
// codepoint (RFC 3168, section 5): packets carry it when somebody slows down for
// marks. Nobody tells the sender of multicast.
func (q *QP) ecn(p Path) Path {
	if q.cfg.ECN && p.TOS&3 == 0 && !p.Dst.IsMulticast() {
		p.TOS |= 2
	}
	return p
}
