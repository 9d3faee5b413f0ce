package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The watch ends only when nothing has moved for the whole limit.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Uint64
		ctx, stop := watch(t.Context(), 10*time.Second, n.Load)
		defer stop()
		for range 5 {
			time.Sleep(8 * time.Second)
			n.Add(1)
		}
		if err := ctx.Err(); err != nil {
			t.Fatalf("ended although something moved: %v", err)
		}
		begin := time.Now()
		<-ctx.Done()
		if d := time.Since(begin); d < 9*time.Second || d > 12*time.Second {
			t.Errorf("ended after %v", d)
		}
		if quiet := (*quietError)(nil); !errors.As(context.Cause(ctx), &quiet) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
	})
}

func TestWatchStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := watch(t.Context(), time.Second, func() uint64 { return 0 })
		stop()
		<-ctx.Done()
		if quiet := (*quietError)(nil); errors.As(context.Cause(ctx), &quiet) {
			t.Error("stop looks like a timeout")
		}
	})
}
