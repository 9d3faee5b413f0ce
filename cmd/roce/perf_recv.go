package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goroce/goroce/roce"
)

// receives is the server's side of a SEND bandwidth test, and with -b a part of either
// side's.
type receives struct {
	*perfRun
	size   int
	queues []*recvQueue
	total  uint64
	got    uint64
	first  time.Time // of completions
	last   time.Time
}

// recvQueue is one queue pair's receives, or with --use-srq those of all: exactly as
// many as messages will come.
type recvQueue struct {
	to     interface{ PostRecv(...roce.RecvWR) error }
	wrs    []roce.RecvWR // a ring of those that are posted
	next   int
	left   uint64 // still to post
	missed int    // to post again
	got    uint64
}

func newReceives(r *perfRun, size int) (*receives, error) {
	o := r.o
	b := &receives{perfRun: r, size: size, total: uint64(o.iters) * uint64(o.qps)}
	queues := o.qps
	if r.ep.srq != nil {
		queues = 1
	}
	for k := range queues {
		q, err := r.newRecvQueue(k, size, o.rxDepth)
		if err != nil {
			return nil, err
		}
		b.queues = append(b.queues, q)
	}
	return b, nil
}

// newRecvQueue posts the receives of queue pair k, as many as fit.
func (r *perfRun) newRecvQueue(k, size, depth int) (*recvQueue, error) {
	o := r.o
	slots := 1
	if o.verifiesEach() {
		depth = min(depth, o.slots(size))
		slots = depth
	}
	q := &recvQueue{to: r.ep.qps[k], left: uint64(o.iters), wrs: make([]roce.RecvWR, depth)}
	if r.ep.srq != nil {
		q.to, q.left = r.ep.srq, uint64(o.iters)*uint64(o.qps)
	}
	if o.duration > 0 {
		q.left = 1 << 62
	}
	sges := make([]roce.SGE, slots)
	for s := range sges {
		sges[s] = r.ep.mr.SGE(r.ep.remote(k)+s*o.stride(size), o.header()+size)
	}
	for i := range q.wrs {
		q.wrs[i] = roce.RecvWR{ID: recvBit | uint64(k), SGE: sges[i%slots : i%slots+1]}
	}
	q.missed = depth
	return q, q.post()
}

// slot returns where message i is, with --verify.
func (q *recvQueue) slot(i uint64) int { return int(i % uint64(len(q.wrs))) }

// recvBit tells the completions of receives from those of sends.
const recvBit = 1 << 63

// post posts again what has completed, in the order of the slots.
func (q *recvQueue) post() error {
	q.missed = int(min(uint64(q.missed), q.left))
	for q.missed > 0 {
		n := min(q.missed, len(q.wrs)-q.next)
		if err := q.to.PostRecv(q.wrs[q.next : q.next+n]...); err != nil {
			return err
		}
		q.next = (q.next + n) % len(q.wrs)
		q.left -= uint64(n)
		q.missed -= n
	}
	return nil
}

// run receives all messages; with -D, until the client has finished.
func (b *receives) run(ctx context.Context) (res perfResult, err error) {
	if b.o.duration > 0 {
		var stop func()
		ctx, stop = b.untilSpokenTo(ctx)
		defer stop()
	}
	var wcs [pollBatch]roce.WC
	for b.o.duration > 0 || b.got < b.total {
		n, err := completions(ctx, b.ep.cq, wcs[:], b.o.events)
		if errors.Is(err, errSpokenTo) {
			// All that the client knows to have arrived is in the queue.
			if n, err = b.ep.cq.Poll(wcs[:]); n == 0 && err == nil {
				break
			}
		}
		if err != nil {
			return res, err
		}
		for i := range wcs[:n] {
			if err := b.complete(&wcs[i]); err != nil {
				return res, err
			}
		}
		if err := b.post(); err != nil {
			return res, err
		}
	}
	return newThroughput(b.size, b.got, b.last.Sub(b.first), 0), nil
}

// post posts again what has completed.
func (b *receives) post() error {
	for _, q := range b.queues {
		if err := q.post(); err != nil {
			return err
		}
	}
	return nil
}

// complete acts on the completion of a receive.
func (b *receives) complete(wc *roce.WC) error {
	k := int(wc.ID &^ recvBit)
	if wc.Status != roce.WCSuccess {
		return &completionError{recvID, wc.Status}
	}
	if got := int(wc.ByteLen) - b.o.header(); got != b.size {
		return wrongLength(got, b.size)
	}
	q := b.queues[k]
	if b.o.verifiesEach() {
		if err := b.check.received(b.perfRun, k, q.slot(q.got), b.size, q.got, 1-b.side()); err != nil {
			return err
		}
	}
	b.last = time.Now()
	if b.got == 0 {
		b.first = b.last
	}
	q.got++
	q.missed++
	b.got++
	return nil
}

func wrongLength(got, want int) error {
	return fmt.Errorf("a message of %d bytes came instead of %d: use the same -s or -a on both sides", got, want)
}

// errSpokenTo ends the wait for messages of a client that has finished.
var errSpokenTo = errors.New("the client has finished")

// untilSpokenTo returns a context that ends when the peer says something in the exchange.
func (r *perfRun) untilSpokenTo(ctx context.Context) (_ context.Context, stop func()) {
	inner, cancel := context.WithCancelCause(ctx)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		if err := r.talk.Await(inner); err != nil {
			cancel(err)
		} else {
			cancel(errSpokenTo)
		}
	}()
	return inner, func() {
		cancel(context.Canceled)
		<-finished
	}
}
