package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goroce/goroce/roce"
)

// Work request IDs, also bits of what is pending.
const (
	recvID = 1
	sendID = 2
)

// pollFor is how long a game without --events polls before it sleeps: longer
// than any exchange takes, so that only a wait for something unusual sleeps.
const pollFor = 200 * time.Microsecond

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

// game is the loop of ibv_rc_pingpong: post a send when the last one has
// completed and a message has come.
type game struct {
	*endpoint
	client  bool
	checker *checker // nil without --chk
	send    roce.SendWR
	pending int // recvID and sendID that have to complete before the next send
	sent    int // completed
	got     int
	posted  int // receives that are outstanding
}

func newGame(e *endpoint, o *pingpongOptions) *game {
	g := &game{endpoint: e, client: o.server != "", pending: recvID, posted: o.rxDepth}
	if o.check {
		g.checker = &checker{send: e.sendBuf(), recv: e.recvBuf(), server: !g.client}
	}
	g.send = roce.SendWR{ID: sendID, Opcode: roce.WRSend, Flags: roce.Signaled}
	if o.size > 0 {
		g.send.SGE = []roce.SGE{e.mr.SGE(0, o.size)}
	}
	return g
}

// play plays all exchanges and returns how long they took.
func (g *game) play(ctx context.Context) (time.Duration, error) {
	ctx, stop := watch(ctx, g.o.timeout, func() uint64 { return packetsOf(g.dev) })
	defer stop()
	start := time.Now()
	if g.client {
		if err := g.turn(); err != nil {
			return 0, err
		}
	}
	wcs := make([]roce.WC, 2)
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
		if int(wc.ByteLen) != g.o.size {
			return fmt.Errorf("a message of %d bytes came instead of %d: use the same -s on both sides", wc.ByteLen, g.o.size)
		}
		if g.posted--; g.posted <= 1 {
			if err := g.postRecv(g.o.rxDepth - g.posted); err != nil {
				return err
			}
			g.posted = g.o.rxDepth
		}
	}
	g.pending &^= int(wc.ID)
	if g.sent < g.o.iters && g.pending == 0 {
		return g.turn()
	}
	return nil
}

// turn sends the next message.
func (g *game) turn() error {
	if g.checker != nil {
		if err := g.checker.next(); err != nil {
			return err
		}
	}
	g.pending = sendID | recvID
	return g.qp.PostSend(g.send)
}

// completions waits for completions: it polls, and sleeps with events or when
// nothing has come for a while.
func completions(ctx context.Context, cq *roce.CQ, wcs []roce.WC, events bool) (int, error) {
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
	if e.o.size > 0 {
		wr.SGE = []roce.SGE{e.mr.SGE(len(e.buf)-e.o.size, e.o.size)}
	}
	for range n {
		if err := e.qp.PostRecv(wr); err != nil {
			return err
		}
	}
	return nil
}
