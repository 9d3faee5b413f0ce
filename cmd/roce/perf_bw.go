package main

import (
	"context"
	"errors"
	"time"

	"github.com/goroce/goroce/roce"
)

// pollBatch is how many completions are taken at a time.
const pollBatch = 64

// requests is the client's side of a bandwidth test, with -b either side, or of the
// latency of READs and atomics, where one request is under way at a time.
type requests struct {
	*perfRun
	size  int
	cqMod int
	flows []*flow
	total uint64 // messages to send, all queue pairs together; unknown with -D

	begin, end time.Time
	posted     uint64  // messages
	done       uint64  // completed, as far as they are signaled
	postedAt   []int64 // ns since begin, of each message; nil without a peak
	doneAt     []progress
	lat        *latencies // of a latency test
	receives   *receives  // of SEND with -b
}

// progress says that so many messages had completed at a time.
type progress struct {
	ns    int64 // since begin
	count uint64
}

// flow is one queue pair's share.
type flow struct {
	k            int
	qp           *roce.QP
	wrs          []roce.SendWR // the list to post
	sges         []roce.SGE    // by slot
	depth        int           // messages under way
	posted, done uint64
	tail         uint64 // posted since the last signaled one
	inline       bool
}

func newRequests(r *perfRun, size int) *requests {
	o := r.o
	b := &requests{perfRun: r, size: size, cqMod: o.cqMod(size)}
	if o.duration == 0 {
		b.total = uint64(o.iters) * uint64(o.qps)
	}
	if o.test.latency {
		b.lat = newLatencies(o, 1)
	} else if 0 < b.total && b.total <= perfPeakUpTo && !o.noPeak {
		b.postedAt = make([]int64, 0, b.total)
		b.doneAt = make([]progress, 0, b.total)
	}
	slots := o.slots(size)
	for k, q := range r.ep.qps {
		f := &flow{k: k, qp: q, wrs: make([]roce.SendWR, o.postList), depth: o.txDepth, inline: o.inlines(size)}
		if o.verifiesEach() {
			f.depth = min(f.depth, slots)
		}
		for s := range slots {
			f.sges = append(f.sges, r.ep.mr.SGE(r.ep.local(k)+s*o.stride(size), size))
		}
		b.flows = append(b.flows, f)
	}
	return b
}

// run posts all messages and waits for them.
func (b *requests) run(ctx context.Context) (res perfResult, err error) {
	var wcs [pollBatch]roce.WC
	b.begin = time.Now()
	waiting, stop := b.untilTaken(ctx)
	defer stop()
	for {
		// One look at the clock decides both: what ends in between would leave
		// nothing to wait for.
		ended := b.o.ended(b.begin)
		if b.finished(ended) {
			break
		}
		if ctx.Err() != nil {
			return res, context.Cause(ctx)
		}
		for _, f := range b.flows {
			if err := b.post(f, ended); err != nil {
				return res, err
			}
		}
		n, err := completions(waiting, b.ep.cq, wcs[:], b.o.events)
		if err != nil && !errors.Is(err, errTimeUp) {
			return res, err
		}
		for i := range wcs[:n] {
			if err := b.complete(&wcs[i]); err != nil {
				return res, err
			}
		}
		if b.receives != nil {
			if err := b.receives.post(); err != nil {
				return res, err
			}
		}
	}
	if b.lat != nil {
		res = b.lat.result(b.size, b.end.Sub(b.begin))
	} else {
		res = newThroughput(b.size, b.done, b.end.Sub(b.begin), b.peak())
	}
	return res, b.check.readBack(ctx, b)
}

// errTimeUp ends the wait for completions when a test of some duration is over.
var errTimeUp = errors.New("the time is up")

// untilTaken returns a context for waiting for completions. SENDs with -b and -D may
// have none after the time: a peer whose clock is ahead of ours takes no more of them.
func (b *requests) untilTaken(ctx context.Context) (context.Context, context.CancelFunc) {
	if b.receives == nil || b.o.duration == 0 {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, b.begin.Add(b.o.duration), errTimeUp)
}

// finished reports whether everything is posted and has completed. With -D that is
// when the time has ended; with -b as well the peer takes no more SENDs then.
func (b *requests) finished(ended bool) bool {
	switch {
	case b.o.duration > 0:
		return ended && (b.posted == b.done || b.receives != nil)
	case b.receives != nil && b.receives.got < b.receives.total:
		return false
	}
	return b.done == b.total
}

// post posts as many messages of a queue pair as may be under way. After the end it
// only completes what the next signaled message completes.
func (b *requests) post(f *flow, ended bool) error {
	for {
		n := min(b.o.postList, f.depth)
		if int(f.posted-f.done)+n > f.depth {
			return nil
		}
		switch {
		case b.o.duration == 0:
			n = int(min(uint64(n), uint64(b.o.iters)-f.posted))
		case ended && f.tail == 0:
			n = 0
		}
		if n == 0 {
			return nil
		}
		for i := range n {
			b.prepare(f, &f.wrs[i], i == n-1)
		}
		if err := f.qp.PostSend(f.wrs[:n]...); err != nil {
			return err
		}
	}
}

// prepare makes the next request of a queue pair, the last one of its list or not.
func (b *requests) prepare(f *flow, wr *roce.SendWR, last bool) {
	slot := int(f.posted % uint64(len(f.sges)))
	f.posted++
	f.tail++
	*wr = roce.SendWR{Opcode: b.o.opcode(), SGE: f.sges[slot : slot+1 : slot+1]}
	if f.inline {
		wr.SGE, wr.Flags, wr.Data = nil, roce.Inline, b.ep.at(b.ep.local(f.k)+slot*b.o.stride(b.size), b.size)
	}
	if b.o.test.atomic() && !b.o.cmpSwap {
		wr.CompareAdd = 1 // CmpSwap compares with 0 and stores 0, as there
	}
	if b.o.test.opcode != roce.WRSend {
		peer := &b.ep.peers[f.k]
		wr.RemoteAddr, wr.RKey = peer.VAddr+uint64(b.check.remoteSlot(slot)*b.o.stride(b.size)), peer.RKey
	}
	b.ep.direct(wr, f.k)
	full := f.tail >= uint64(b.cqMod) || int(f.posted-f.done) >= f.depth && last
	if full || b.o.duration == 0 && f.posted == uint64(b.o.iters) {
		wr.Flags |= roce.Signaled
		wr.ID = uint64(f.k)<<32 | f.tail // this completion is for so many
		f.tail = 0
	}
	if b.o.verifies() {
		b.check.beforeRequest(b, f, slot, wr)
	}
	b.posted++
	if b.postedAt != nil || b.lat != nil {
		now := time.Since(b.begin).Nanoseconds()
		if b.lat != nil {
			b.lat.posted(now)
		} else {
			b.postedAt = append(b.postedAt, now)
		}
	}
}

// complete acts on a completion.
func (b *requests) complete(wc *roce.WC) error {
	if wc.ID&recvBit != 0 {
		return b.receives.complete(wc)
	}
	if wc.Status != roce.WCSuccess {
		return &completionError{sendID, wc.Status}
	}
	f, n := b.flows[wc.ID>>32], wc.ID&0xffffffff
	if b.o.verifiesEach() {
		if err := b.check.afterRequests(b, f, n); err != nil {
			return err
		}
	}
	f.done += n
	b.done += n
	b.end = time.Now()
	if b.postedAt != nil {
		b.doneAt = append(b.doneAt, progress{b.end.Sub(b.begin).Nanoseconds(), b.done})
	}
	return nil
}

// peak returns the best rate in messages per second between the posting of any
// message and the completion of any later one, as perftest defines it; 0 if it was
// not measured.
func (b *requests) peak() float64 {
	best := 0.0
	first := 0
	for i, at := range b.postedAt {
		for first < len(b.doneAt) && b.doneAt[first].count <= uint64(i) {
			first++
		}
		for _, d := range b.doneAt[first:] {
			if ns := d.ns - at; ns > 0 {
				best = max(best, float64(d.count-uint64(i))/float64(ns))
			}
		}
	}
	return best * 1e9
}
