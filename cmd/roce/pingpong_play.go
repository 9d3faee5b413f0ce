package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
)

// Work request IDs, also bits of what is pending.
const (
	recvID = 1
	sendID = 2
)

// pollFor is how long a game without --events polls before it sleeps: longer than
// any exchange takes, between emulated guests as well (0.4 ms), and than a turn of
// other work, so that only a wait for something unusual sleeps.
const pollFor = 5 * time.Millisecond

// completionError is a work request that failed.
type completionError struct {
	id     uint64
	status roce.WCStatus
}

func (e *completionError) Error() string {
	what := "send"
	if e.id == recvID {
		what = "receive"
	}
	return fmt.Sprintf("a %s failed: %v (%d)", what, e.status, int(e.status))
}

// game is the loop of ibv_rc_pingpong and ibv_srq_pingpong: post a send on a queue
// pair when its last one has completed and a message has come. All queue pairs
// together make the exchanges.
type game struct {
	*endpoint
	client  bool
	checker *checker // nil without --chk
	send    roce.SendWR
	pending []int // of each queue pair: recvID and sendID that have to complete before the next send
	index   map[ib.QPN]int
	sent    int // completed
	got     int
	posted  int // receives that are outstanding
}

func newGame(e *endpoint, o *pingpongOptions) *game {
	g := &game{endpoint: e, client: o.server != "", posted: o.rxDepth, pending: make([]int, len(e.qps)), index: map[ib.QPN]int{}}
	for i, qp := range e.qps {
		g.pending[i], g.index[qp.Num()] = recvID, i
	}
	if o.check {
		g.checker = &checker{send: e.sendBuf(), recv: e.recvBuf(), server: !g.client}
	}
	g.send = roce.SendWR{ID: sendID, Opcode: roce.WRSend, Flags: roce.Signaled}
	if o.size > 0 {
		g.send.SGE = []roce.SGE{e.mr.SGE(o.header(), o.size)}
	}
	return g
}

// play plays all exchanges and returns how long they took.
func (g *game) play(ctx context.Context) (time.Duration, error) {
	ctx, stop := watch(ctx, g.o.timeout, func() uint64 { return packetsOf(g.dev) })
	defer stop()
	start := time.Now()
	if g.client {
		for i := range g.qps {
			if err := g.turn(i); err != nil {
				return 0, err
			}
		}
	}
	wcs := make([]roce.WC, 2*len(g.qps))
	for g.got < g.o.iters || g.sent < g.o.iters {
		n, err := completions(ctx, g.cq, wcs, g.o.events)
		if err != nil {
			return 0, err
		}
		for i := range wcs[:n] {
			if err := g.complete(&wcs[i]); err != nil {
				return 0, err
			}
		}
	}
	took := time.Since(start)
	if g.client && g.checker != nil {
		return took, g.checker.next() // what came last
	}
	return took, nil
}

// complete acts on one completion.
func (g *game) complete(wc *roce.WC) error {
	if wc.Status != roce.WCSuccess {
		return &completionError{wc.ID, wc.Status}
	}
	switch wc.ID {
	case sendID:
		g.sent++
	case recvID:
		g.got++
		if n := int(wc.ByteLen) - g.o.header(); n != g.o.size {
			return fmt.Errorf("a message of %d bytes came instead of %d: use the same -s on both sides", n, g.o.size)
		}
		if g.posted--; g.posted <= len(g.qps) {
			if err := g.postRecv(g.o.rxDepth - g.posted); err != nil {
				return err
			}
			g.posted = g.o.rxDepth
		}
	}
	i := g.index[wc.QPN]
	g.pending[i] &^= int(wc.ID)
	if g.sent < g.o.iters && g.pending[i] == 0 {
		return g.turn(i)
	}
	return nil
}

// turn sends the next message of a queue pair.
func (g *game) turn(i int) error {
	if g.checker != nil {
		if err := g.checker.next(); err != nil {
			return err
		}
	}
	g.pending[i] = sendID | recvID
	wr := g.send
	if g.ahs != nil {
		wr.AH, wr.RemoteQPN, wr.QKey = g.ahs[i], g.peer[i].QPN, pingpongQKey
	}
	return g.qps[i].PostSend(wr)
}

// completions waits for completions: it polls, and sleeps with events or when
// nothing has come for a while.
func completions(ctx context.Context, cq *roce.CQ, wcs []roce.WC, events bool) (int, error) {
	if ctx.Err() != nil { // who finds something in each poll never waits
		return 0, context.Cause(ctx)
	}
	if !events {
		for begin := time.Now(); time.Since(begin) < pollFor; {
			if n, err := cq.Poll(wcs); n > 0 || err != nil {
				return n, err
			}
		}
	}
	n, err := cq.Wait(ctx, wcs)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return n, context.Cause(ctx)
	}
	return n, err
}

// postRecv posts n receives, all of the same buffer.
func (e *endpoint) postRecv(n int) error {
	wr := roce.RecvWR{ID: recvID}
	if n := e.o.header() + e.o.size; n > 0 {
		wr.SGE = []roce.SGE{e.mr.SGE(len(e.buf)-n, n)}
	}
	post := e.qps[0].PostRecv
	if e.srq != nil {
		post = e.srq.PostRecv
	}
	for range n {
		if err := post(wr); err != nil {
			return err
		}
	}
	return nil
}
