package roce

import (
	"net/netip"
	"slices"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/transport"
)

// staging is the size of the transmit buffer: what one lock hold sends, and a
// little more.
const staging = (turns + 1) * turnBudget

// outbox is the transmit staging buffer. Queue pairs write packets into it, one
// after the other; equal-sized neighbours to one destination become a run that
// leaves in one system call. It implements transport.Outbox.
type outbox struct {
	be      netio.Backend
	local   netip.AddrPort
	caps    netio.Caps
	now     time.Duration
	buf     []byte
	end     int // of the committed packets in buf
	size    int // of the packet being written
	path    transport.Path
	runs    []netio.Run
	owner   *QP   // whose turn it is
	control bool  // ... of control packets
	owners  []*QP // of runs
	late    int   // so many of runs have waited for the socket
	open    bool  // the last run may still grow
	pure    bool  // ... and has control packets only
	mixed   bool  // ... of several queue pairs
	blocked bool  // the socket was full: runs wait, nothing new is taken

	flow     ib.Flow // of flowPath
	flowPath transport.Path
}

func (o *outbox) init(be netio.Backend) {
	o.be, o.local, o.caps = be, be.LocalAddr(), be.Caps()
	o.buf = make([]byte, staging)
	o.runs, o.owners = make([]netio.Run, 0, 64), make([]*QP, 0, 64)
}

// free drops the buffer of an outbox that is used no more.
func (o *outbox) free() {
	o.buf, o.runs, o.owner, o.owners = nil, nil, nil, nil
	o.end, o.late, o.blocked = 0, 0, true
}

// begin starts the turn of q. A run carries packets of one queue pair only, or control
// packets of several: those nobody times, and each by itself would cost as much as a
// whole run.
func (o *outbox) begin(q *QP, control bool) {
	switch {
	case control && o.pure:
		o.mixed = o.mixed || q != o.owner
	case q != o.owner || o.mixed:
		o.open = false
	}
	o.owner, o.control = q, control
}

// Packet implements transport.Outbox.
func (o *outbox) Packet(path *transport.Path, n int) []byte {
	if !o.blocked && o.end+n > len(o.buf) {
		o.flush(o.now)
	}
	if o.blocked || n > len(o.buf) {
		return nil
	}
	if o.path != *path {
		o.path, o.open = *path, false
	}
	o.size = n
	return o.buf[o.end : o.end+n : o.end+n]
}

// Commit implements transport.Outbox: it seals the packet and puts it into a run.
func (o *outbox) Commit() {
	id := 0
	start := o.end
	o.end += o.size
	if r := o.last(); r != nil && len(r.Buf)+o.size <= o.caps.MaxRun && o.size <= r.SegSize && len(r.Buf)/r.SegSize < o.caps.MaxSegments {
		id = len(r.Buf) / r.SegSize
		r.Buf = r.Buf[:len(r.Buf)+o.size] // the packet stands right behind
		o.pure = o.pure && o.control
		o.open = o.size == r.SegSize // a shorter packet is the last
	} else {
		o.runs = append(o.runs, netio.Run{
			Dst: o.dst(), SrcPort: o.path.SrcPort, TOS: o.path.TOS, FlushTwice: o.path.FlushTwice, SegSize: o.size,
			Buf: o.buf[start:o.end:len(o.buf)],
		})
		o.owners = append(o.owners, o.owner)
		o.open, o.pure, o.mixed = true, o.control, false
	}
	o.seal(uint16(id), o.buf[start:o.end])
}

// last returns the run that the next packet may join, or nil.
func (o *outbox) last() *netio.Run {
	if !o.open || len(o.runs) == 0 {
		return nil
	}
	return &o.runs[len(o.runs)-1]
}

// room is how many bytes of packets like those before still join the last run.
func (o *outbox) room() int {
	r := o.last()
	if r == nil {
		return 0
	}
	return (min(o.caps.MaxRun/r.SegSize, o.caps.MaxSegments) - len(r.Buf)/r.SegSize) * r.SegSize
}

// dst returns the address that the current path leads to. Peers are known by GID,
// which has no zone: a link-local one is on our own link.
func (o *outbox) dst() netip.AddrPort {
	a := o.path.Dst
	if a.Is6() && a.IsLinkLocalUnicast() {
		a = a.WithZone(o.local.Addr().Zone())
	}
	return netip.AddrPortFrom(a, o.local.Port())
}

func (o *outbox) seal(id uint16, b []byte) {
	if o.flowPath != o.path || !o.flow.Valid() {
		src := o.local.Port()
		if o.path.SrcPort != 0 {
			src = o.path.SrcPort
		}
		o.flow = ib.NewFlow(netip.AddrPortFrom(o.local.Addr(), src), o.dst())
		o.flow.SealFlushTwice(o.path.FlushTwice)
		o.flowPath = o.path
	}
	o.flow.Seal(id, b)
}

// flush sends the staged runs. It reports false when the socket takes no more for
// now: the rest stays staged and nothing new is accepted until a later flush has
// sent it.
func (o *outbox) flush(now time.Duration) bool {
	o.now = now
	if len(o.runs) == 0 {
		if o.be.Deadline() <= now {
			o.be.Send(now, nil) // what a fault wrapper held back
		}
		return true
	}
	n, err := o.be.Send(now, o.runs)
	o.open = false
	if err == netio.ErrWouldBlock {
		o.left(now, n)
		o.runs, o.owners = o.runs[:copy(o.runs, o.runs[n:])], o.owners[:copy(o.owners, o.owners[n:])]
		o.blocked, o.late = true, len(o.runs)
		return false
	}
	o.left(now, len(o.runs))
	clear(o.owners)
	o.runs, o.owners, o.end, o.blocked, o.late = o.runs[:0], o.owners[:0], 0, false, 0
	if o.caps.MaxSegments > 1 {
		o.caps = o.be.Caps() // GSO may have been switched off
	}
	return true
}

// left tells the queue pairs of the first n runs that those which had to wait have
// gone. No queue pair is at work then: while runs wait, nothing new is taken.
func (o *outbox) left(now time.Duration, n int) {
	var last *QP
	for _, q := range o.owners[:min(n, o.late)] {
		if q != last && !q.dead {
			q.t.Left(now)
			q.e.touch(q)
		}
		last = q
	}
}

// holds says whether packets of q wait for the socket.
func (o *outbox) holds(q *QP) bool { return o.blocked && slices.Contains(o.owners, q) }
