package netio

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/goroce/goroce/ib"
)

// tapLimit bounds the bytes that wait to be written.
const tapLimit = 8 << 20

// Tapped is a backend that writes what passes into a pcapng file.
type Tapped struct {
	b Backend
	w io.Writer
	c counters

	mu     sync.Mutex // leaf; never held while writing
	closed bool
	next   tapBatch // being filled
	ready  chan struct{}
	done   chan struct{} // the writing goroutine has ended
	err    error         // of the writer; read after done
}

// tapBatch is a number of packets on their way to the writer.
type tapBatch struct {
	recs []tapRecord
	buf  []byte
}

// tapRecord describes one run or one reception.
type tapRecord struct {
	at       time.Duration
	src, dst netip.AddrPort
	own      netip.AddrPort // what a run is sent from when its source port cannot be had
	sent     bool
	tos      uint8
	idKnown  bool
	id       uint16
	seg      int
	off, end int // in buf
}

// Tap wraps a backend and writes all its packets to w as a pcapng file with raw IP
// packets, each one by itself as it is on the wire: with the IPv4 Identification
// it was sent with, or that its ICRC tells. Fields that a UDP socket hides, such as
// the TTL, are made up. Writing happens on a goroutine of its own; what it cannot
// keep up with is missing in the file and counted. The time stamps are the times
// given to Send and Recv, with the first one as the present.
//
// Close closes the backend and returns when everything is written; its error
// includes the writer's first one. It leaves w open.
func Tap(b Backend, w io.Writer) *Tapped {
	t := &Tapped{b: b, w: w, ready: make(chan struct{}, 1), done: make(chan struct{})}
	go t.write()
	return t
}

// Caps returns those of the wrapped backend.
func (t *Tapped) Caps() Caps { return t.b.Caps() }

// LocalAddr implements Backend.
func (t *Tapped) LocalAddr() netip.AddrPort { return t.b.LocalAddr() }

// Deadline implements Backend.
func (t *Tapped) Deadline() time.Duration { return t.b.Deadline() }

// Wait implements Backend.
func (t *Tapped) Wait(timeout time.Duration, write bool) error { return t.b.Wait(timeout, write) }

// Wake implements Backend.
func (t *Tapped) Wake() { t.b.Wake() }

// Join implements Backend.
func (t *Tapped) Join(group netip.Addr) error { return t.b.Join(group) }

// Leave implements Backend.
func (t *Tapped) Leave(group netip.Addr) error { return t.b.Leave(group) }

// Stats returns the counters of the wrapped backend and of the tap.
func (t *Tapped) Stats() Stats {
	s := t.b.Stats()
	t.c.addTo(&s)
	return s
}

// Send implements Backend.
func (t *Tapped) Send(now time.Duration, runs []Run) (int, error) {
	n, err := t.b.Send(now, runs)
	if n == 0 {
		return n, err
	}
	own := t.b.LocalAddr()
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range runs[:n] {
		r := &runs[i]
		src := own
		if r.SrcPort != 0 {
			src = netip.AddrPortFrom(own.Addr(), r.SrcPort)
		}
		t.record(tapRecord{at: now, src: src, dst: r.Dst, own: own, sent: true, tos: r.TOS, seg: r.SegSize}, r.Buf)
	}
	t.kick()
	return n, err
}

// Recv implements Backend.
func (t *Tapped) Recv(now time.Duration, dst []Received) (int, error) {
	n, err := t.b.Recv(now, dst)
	if n == 0 {
		return n, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range dst[:n] {
		r := &dst[i]
		t.record(tapRecord{at: now, src: r.Src, dst: r.Dst, tos: r.TOS, seg: r.SegSize, id: r.ID, idKnown: r.IDKnown}, r.Buf)
	}
	t.kick()
	return n, err
}

func (t *Tapped) record(rec tapRecord, b []byte) {
	if t.closed || len(t.next.buf)+len(b) > tapLimit || len(t.next.recs) > tapLimit/64 {
		t.c.add(TapDropped, segments(len(b), rec.seg))
		return
	}
	rec.off = len(t.next.buf)
	t.next.buf = append(t.next.buf, b...)
	rec.end = len(t.next.buf)
	t.next.recs = append(t.next.recs, rec)
}

func (t *Tapped) kick() {
	select {
	case t.ready <- struct{}{}:
	default:
	}
}

// Close implements Backend.
func (t *Tapped) Close() error {
	err := t.b.Close()
	t.mu.Lock()
	closed := t.closed
	t.closed = true
	t.mu.Unlock()
	if closed {
		return err
	}
	t.kick()
	<-t.done
	if t.err != nil {
		err = errors.Join(err, fmt.Errorf("netio: tap: %w", t.err))
	}
	return err
}

// write writes batch after batch until the tap is closed and empty.
func (t *Tapped) write() {
	defer close(t.done)
	out := pcapngHeader(nil, t.b.LocalAddr().String())
	t.emit(out)
	var batch tapBatch
	var base time.Time
	for closed := false; !closed; {
		<-t.ready
		batch.recs, batch.buf = batch.recs[:0], batch.buf[:0]
		t.mu.Lock()
		batch, t.next = t.next, batch
		closed = t.closed
		t.mu.Unlock()
		out = out[:0]
		for i := range batch.recs {
			rec := &batch.recs[i]
			if base.IsZero() {
				base = time.Now().Add(-rec.at)
			}
			out = t.append(out, rec, batch.buf[rec.off:rec.end], base.Add(rec.at))
			if len(out) > 1<<18 {
				t.emit(out)
				out = out[:0]
			}
		}
		t.emit(out)
	}
}

// emit writes until the writer fails for the first time.
func (t *Tapped) emit(b []byte) {
	if t.err == nil && len(b) > 0 {
		_, t.err = t.w.Write(b)
	}
}

// append formats the packets of a record.
func (t *Tapped) append(out []byte, rec *tapRecord, b []byte, at time.Time) []byte {
	n := segments(len(b), rec.seg)
	if t.err != nil {
		t.c.add(TapDropped, n)
		return out
	}
	flow := ib.NewFlow(rec.src, rec.dst)
	for i := range n {
		p := segment(b, rec.seg, i)
		id, src := rec.identify(&flow, p, i)
		out = appendPacketBlock(out, at, rec.sent, func(out []byte) []byte {
			return appendIP(out, src, rec.dst, rec.tos, id, p)
		})
	}
	t.c.add(TapPackets, n)
	return out
}

// identify finds the Identification that packet i had on the wire and where it was
// sent from. A backend that could not send a run as it was has sealed its packets
// anew.
func (r *tapRecord) identify(flow *ib.Flow, p []byte, i int) (uint16, netip.AddrPort) {
	id := r.id + uint16(i)
	if r.idKnown || r.sent && flow.Verify(id, p) {
		return id, r.src
	}
	if got, ok := flow.Recover(p); ok {
		return got, r.src
	}
	if r.sent && r.own != r.src {
		own := ib.NewFlow(r.own, r.dst)
		if got, ok := own.Recover(p); ok {
			return got, r.own
		}
	}
	return 0, r.src
}
