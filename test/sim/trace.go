package sim

import (
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// castagnoli: the sum of a sealed packet by the polynomial of the ICRC would be the
// same for all packets.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// trace hashes everything that happens, and keeps the end of it for people.
type trace struct {
	hash   uint64
	count  int
	recent [60]event // ring, by count
	out    func(event)
}

// event is one line of a trace.
type event struct {
	at   time.Duration
	node int
	what string // "tx", "rx", "wc", "send", "recv"
	op   ib.Opcode
	psn  ib.PSN
	qpn  ib.QPN      // destination of a packet, queue pair otherwise
	n    int         // bytes
	sum  uint64      // of the contents
	syn  ib.Syndrome // of an ACKNOWLEDGE
	wc   roce.WC
}

func (t *trace) add(e event) {
	for _, x := range [...]uint64{uint64(e.at), uint64(e.node), uint64(e.op), uint64(e.psn), uint64(e.qpn), uint64(e.n), e.sum,
		e.wc.ID, uint64(e.wc.Status), uint64(e.wc.Opcode), uint64(e.wc.ByteLen)} {
		t.hash = (t.hash ^ x) * 0x9e3779b97f4a7c15
		t.hash ^= t.hash >> 29
	}
	t.recent[t.count%len(t.recent)] = e
	t.count++
	if t.out != nil {
		t.out(e)
	}
}

func (e event) String() string {
	s := fmt.Sprintf("%12v node %d %-4s ", e.at, e.node, e.what)
	switch e.what {
	case "tx", "rx":
		name := fmt.Sprintf("opcode %#x", uint8(e.op))
		if i := e.op.Info(); i != nil {
			name = i.Name
		}
		if e.op == ib.OpRCAck {
			name += fmt.Sprintf(" %#02x", uint8(e.syn))
		}
		return s + fmt.Sprintf("%-28s psn %06x to qp %06x, %d bytes, %#x", name, uint32(e.psn), uint32(e.qpn), e.n, e.sum)
	case "wc":
		return s + fmt.Sprintf("qp %06x id %#x %v %v %d bytes", uint32(e.qpn), e.wc.ID, e.wc.Opcode, e.wc.Status, e.wc.ByteLen)
	}
	return s + fmt.Sprintf("qp %06x id %#x, %d bytes", uint32(e.qpn), e.sum, e.n)
}

// tail returns the last lines.
func (t *trace) tail() string {
	var b strings.Builder
	for i := max(0, t.count-len(t.recent)); i < t.count; i++ {
		fmt.Fprintln(&b, t.recent[i%len(t.recent)])
	}
	return b.String()
}

// traced is a backend that notes every packet, and checks those that leave.
type traced struct {
	netio.Backend
	w         *world
	node      int
	fullUntil time.Duration // the socket takes nothing
	refused   int           // packets that wait for that
}

func (b *traced) Send(now time.Duration, runs []netio.Run) (int, error) {
	n, err := b.send(now, runs)
	b.refused = 0
	for i := range runs[n:] {
		b.refused += runs[n+i].Segments()
	}
	for i := range runs[:n] {
		r := &runs[i]
		for k := range r.Segments() {
			b.w.sent++
			seg := r.Segment(k)
			b.w.note("tx", b.node, seg)
			p, why := ib.Parse(seg)
			if why != ib.OK {
				b.w.fail("node %d sent a malformed packet: %v", b.node, why)
			} else if err := b.w.checkSent(b.node, &p); err != nil {
				b.w.fail("node %d to queue pair %06x: %w", b.node, uint32(p.DestQP()), err)
			} else if limit := b.w.mtu[p.DestQP()]; len(p.Payload()) > limit {
				b.w.fail("node %d sent %d bytes of payload, the path MTU is %d", b.node, len(p.Payload()), limit)
			}
		}
	}
	return n, err
}

// send sends some of the runs, as a socket does that is full now and then.
func (b *traced) send(now time.Duration, runs []netio.Run) (int, error) {
	if len(runs) == 0 {
		return b.Backend.Send(now, nil)
	}
	if now < b.fullUntil {
		return 0, netio.ErrWouldBlock
	}
	n := len(runs)
	if b.w.rng.Float64() < b.w.cfg.Block {
		n = b.w.rng.IntN(n)
		b.w.res.Blocked++
		b.fullUntil = now + time.Duration(1+b.w.rng.IntN(200_000))
	}
	k, err := b.Backend.Send(now, b.w.drop(runs[:n]))
	if err != nil {
		return k, err // ours never is full by itself
	}
	if n < len(runs) {
		return n, netio.ErrWouldBlock
	}
	return n, nil
}

func (b *traced) Recv(now time.Duration, dst []netio.Received) (int, error) {
	n, err := b.Backend.Recv(now, dst)
	for i := range dst[:n] {
		r := &dst[i]
		for k := range r.Segments() {
			b.w.received++
			b.w.note("rx", b.node, r.Segment(k))
			b.w.noteReceived(b.node, r.Src.Addr(), r.TOS, r.Segment(k))
		}
	}
	return n, err
}

// note adds a packet to the trace; received ones may be damaged in any way.
func (w *world) note(what string, node int, seg []byte) {
	e := event{at: w.now, node: node, what: what, n: len(seg), sum: uint64(crc32.Checksum(seg, castagnoli))}
	if len(seg) >= ib.BTHSize {
		e.op = ib.Opcode(seg[0])
		e.qpn = ib.QPN(seg[5])<<16 | ib.QPN(seg[6])<<8 | ib.QPN(seg[7])
		e.psn = ib.PSN(seg[9])<<16 | ib.PSN(seg[10])<<8 | ib.PSN(seg[11])
	}
	if e.op == ib.OpRCAck && len(seg) > ib.BTHSize {
		e.syn = ib.Syndrome(seg[ib.BTHSize])
	}
	w.trace.add(e)
}
