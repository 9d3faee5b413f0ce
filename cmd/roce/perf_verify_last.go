package main

import (
	"context"
	"fmt"

	"github.com/goroce/goroce/cmd/roce/internal/perftest"
)

// With --verify=last the data of all messages of a queue pair are those of its first one.

// beforeSize makes what is sent, and spoils what is fetched over.
func (c *perfCheck) beforeSize(r *perfRun, size int) {
	if r.o.verify != perftest.VerifyLast {
		return
	}
	t := r.o.test
	for k := range r.o.qps {
		switch {
		case t.fetches():
			c.spoil(r, k, 0, size)
		case r.o.requests() || t.pingPongs():
			c.fill(r, k, 0, size, 0, r.side())
		}
	}
}

// afterSize looks at what has come.
func (c *perfCheck) afterSize(ctx context.Context, r *perfRun, b bench, size int) error {
	if r.o.verify != perftest.VerifyLast {
		return nil
	}
	for k := range r.o.qps {
		if err := c.last(ctx, r, b, k, size); err != nil {
			return err
		}
	}
	return nil
}

func (c *perfCheck) last(ctx context.Context, r *perfRun, b bench, k, size int) error {
	t := r.o.test
	switch {
	case t.pingPongs() && !t.sends():
		return c.written(b.(*writePingPong), 0)
	case t.pingPongs(), t.sends() && (!r.o.client() || r.o.both):
		return c.received(r, k, 0, size, 0, 1-r.side())
	case t.sends():
		return nil
	case t.atomic():
		return c.lastWord(ctx, r, k, b.(*requests).flows[k].posted)
	case t.fetches():
		return c.fetched(r, k, 0, size, 0)
	}
	clear(r.ep.at(r.ep.local(k), size))
	if err := r.read(ctx, k, 0, 0, size); err != nil {
		return err
	}
	return c.data(r.ep.at(r.ep.local(k), size), dataKey(k, size, 0, r.side()), k, 0)
}

// lastWord checks the server's word of queue pair k after n atomics.
func (c *perfCheck) lastWord(ctx context.Context, r *perfRun, k int, n uint64) error {
	got, err := r.fetchWord(ctx, k)
	if err != nil {
		return err
	}
	if want := c.word(r.o, k, n); got != want {
		return fmt.Errorf("wrong word of queue pair %d after %d operations: %#x, expected %#x", k, n, got, want)
	}
	c.count(r.o.size)
	return nil
}
