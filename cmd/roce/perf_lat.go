package main

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/goroce/goroce/roce"
)

// errTimeIsUp ends a test of some duration.
var errTimeIsUp = errors.New("the time is up")

// pingPong is what both sides of a latency test with messages to and fro have in
// common. For SEND the client begins, for WRITE, as in perftest, the server.
type pingPong struct {
	*perfRun
	size  int
	lat   *latencies
	begin time.Time
	sent  uint64
	got   uint64
	acked uint64 // sends that have completed
}

// finished reports whether all messages have come and gone, or the time is over.
func (b *pingPong) finished() bool {
	if b.o.duration > 0 {
		return b.o.ended(b.begin)
	}
	n := uint64(b.o.iters)
	return b.sent == n && b.got == n && b.acked == n
}

// mayPost reports whether there is a message left to send.
func (b *pingPong) mayPost() bool {
	return b.o.duration > 0 || b.sent < uint64(b.o.iters)
}

// posted notes that a message leaves now.
func (b *pingPong) posted() {
	b.sent++
	b.lat.posted(time.Since(b.begin).Nanoseconds())
}

// sendPingPong is SEND latency: a message goes when one has come.
type sendPingPong struct {
	pingPong
	q    *recvQueue
	sges []roce.SGE
	send roce.SendWR
}

func newSendPingPong(r *perfRun, size int) (*sendPingPong, error) {
	q, err := r.newRecvQueue(0, size, r.o.rxDepth)
	if err != nil {
		return nil, err
	}
	b := &sendPingPong{pingPong: pingPong{perfRun: r, size: size, lat: newLatencies(r.o, 2)}, q: q}
	for s := range r.o.slots(size) {
		b.sges = append(b.sges, r.ep.mr.SGE(r.ep.local(0)+s*r.o.stride(size), size))
	}
	b.send = roce.SendWR{ID: sendID, Opcode: roce.WRSend, Flags: roce.Signaled}
	if r.o.inlines(size) {
		b.send.Flags |= roce.Inline
	}
	r.ep.direct(&b.send, 0)
	return b, nil
}

func (b *sendPingPong) run(ctx context.Context) (res perfResult, err error) {
	if b.o.duration > 0 {
		// The side that ends first leaves the other one waiting.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, b.o.duration, errTimeIsUp)
		defer cancel()
	}
	var wcs [pollBatch]roce.WC
	b.begin = time.Now()
	if b.o.client() {
		if err := b.turn(); err != nil {
			return res, err
		}
	}
	for !b.finished() {
		if ctx.Err() != nil && b.o.duration == 0 {
			return res, context.Cause(ctx)
		}
		n, err := completions(ctx, b.ep.cq, wcs[:], b.o.events)
		if err != nil && context.Cause(ctx) == errTimeIsUp {
			break
		}
		if err != nil {
			return res, err
		}
		for i := range wcs[:n] {
			if err := b.complete(&wcs[i]); err != nil {
				return res, err
			}
		}
	}
	return b.lat.result(b.size, time.Since(b.begin)), nil
}

// complete acts on a completion.
func (b *sendPingPong) complete(wc *roce.WC) error {
	if wc.ID&recvBit == 0 {
		if wc.Status != roce.WCSuccess {
			return &completionError{sendID, wc.Status}
		}
		b.acked++
		return b.turn()
	}
	if wc.Status != roce.WCSuccess {
		return &completionError{recvID, wc.Status}
	}
	if got := int(wc.ByteLen) - b.o.header(); got != b.size {
		return wrongLength(got, b.size)
	}
	if b.o.verifiesEach() {
		if err := b.check.received(b.perfRun, 0, b.q.slot(b.got), b.size, b.got, 1-b.side()); err != nil {
			return err
		}
	}
	b.got++
	b.q.missed++
	if err := b.q.post(); err != nil {
		return err
	}
	return b.turn()
}

// turn sends the next message if it is our turn and an earlier message has left the
// memory for it: without --verify all have the same.
func (b *sendPingPong) turn() error {
	due := b.got
	if b.o.client() {
		due++
	}
	if b.sent >= due || !b.mayPost() || b.sent-b.acked > uint64(b.o.txDepth) {
		return nil
	}
	slot := int(b.sent % uint64(len(b.sges)))
	if b.o.verifiesEach() {
		if b.sent-b.acked >= uint64(len(b.sges)) {
			return nil
		}
		b.check.fill(b.perfRun, 0, slot, b.size, b.sent, b.side())
	}
	if b.send.SGE = b.sges[slot : slot+1]; b.o.inlines(b.size) {
		b.send.SGE, b.send.Data = nil, b.ep.at(b.ep.local(0)+slot*b.o.stride(b.size), b.size)
	}
	b.posted()
	return b.qp().PostSend(b.send)
}

func (r *perfRun) qp() *roce.QP { return r.ep.qps[0] }

// writePingPong is WRITE latency: a message goes when the last byte of the peer's
// has come, which is the number of the message.
type writePingPong struct {
	pingPong
	src, dst int // offsets of our messages and of the peer's
	write    roce.SendWR
	wcs      [4]roce.WC
}

func newWritePingPong(r *perfRun, size int) *writePingPong {
	b := &writePingPong{pingPong: pingPong{perfRun: r, size: size, lat: newLatencies(r.o, 2)}, src: r.ep.local(0), dst: r.ep.remote(0)}
	peer := &r.ep.peers[0]
	b.write = roce.SendWR{
		ID: sendID, Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{r.ep.mr.SGE(b.src, size)},
		RemoteAddr: peer.VAddr, RKey: peer.RKey,
	}
	if r.o.inlines(size) {
		b.write.SGE, b.write.Data = nil, r.ep.at(b.src, size)
		b.write.Flags |= roce.Inline
	}
	return b
}

func (b *writePingPong) run(ctx context.Context) (res perfResult, err error) {
	b.begin = time.Now()
	for !b.finished() {
		if b.got < b.sent || b.o.client() {
			if here, err := b.await(ctx); err != nil {
				return res, err
			} else if !here {
				break
			}
		}
		if b.mayPost() {
			if err := b.turn(ctx); err != nil {
				return res, err
			}
		}
	}
	return b.lat.result(b.size, time.Since(b.begin)), nil
}

// await waits for the peer's next message, or reports that the time is over.
func (b *writePingPong) await(ctx context.Context) (here bool, err error) {
	if b.o.duration == 0 && b.got == uint64(b.o.iters) {
		return true, nil
	}
	for spins := 1; b.lastByte() != byte(b.got+1); spins++ {
		if err := b.poll(); err != nil {
			return false, err
		}
		if spins%256 == 0 {
			if ctx.Err() != nil {
				return false, context.Cause(ctx)
			}
			if b.o.ended(b.begin) {
				return false, nil
			}
		}
	}
	if b.o.verifiesEach() {
		if err := b.check.written(b, b.got); err != nil {
			return false, err
		}
	}
	b.got++
	return true, nil
}

// turn sends our next message and waits until it has left its memory, as perftest
// does. When the time is over the peer may be gone.
func (b *writePingPong) turn(ctx context.Context) error {
	if b.o.verifiesEach() {
		b.check.fillWrite(b, b.sent)
	}
	b.ep.buf[b.src+b.size-1] = byte(b.sent + 1)
	b.posted()
	if err := b.qp().PostSend(b.write); err != nil {
		return err
	}
	for spins := 1; b.acked < b.sent; spins++ {
		if err := b.poll(); err != nil {
			return err
		}
		if spins%256 == 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if b.o.ended(b.begin) {
				return nil
			}
		}
	}
	return nil
}

// poll takes completions and moves packets.
func (b *writePingPong) poll() error {
	n, err := b.ep.cq.Poll(b.wcs[:])
	if err != nil {
		return err
	}
	for i := range b.wcs[:n] {
		if b.wcs[i].Status != roce.WCSuccess {
			return &completionError{sendID, b.wcs[i].Status}
		}
		b.acked++
	}
	return nil
}

// lastByte returns the last byte of the memory for the peer's messages.
func (b *writePingPong) lastByte() byte {
	at := b.dst + b.size - 1
	var word [4]byte
	binary.NativeEndian.PutUint32(word[:], b.ep.mr.LoadUint32(at&^3))
	return word[at&3]
}
