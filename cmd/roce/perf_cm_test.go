package main

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/perftest"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// device opens a device of the world.
func (w *world) device(addr string) *roce.Device {
	w.t.Helper()
	a, _, _ := w.app()
	dev, err := a.open(roce.Config{Addr: netip.MustParseAddr(addr)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { dev.Close() })
	return dev
}

// A client that connects by rdma_cm and says nothing is not the one that a server
// waits for.
func TestPerfSilentClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan outcome, 1)
	go func() { done <- w.runIn(ctx, strings.Fields("perf send_lat -n 5 -R -u 18 --addr 127.0.0.63")...) }()
	dev := w.device("127.0.0.64")
	for {
		silent := new(perftest.Control)
		cfg := silent.Config(time.Second)
		cfg.Device = dev
		_, err := rdmacm.Dial(ctx, "127.0.0.63:18515", cfg)
		if err == nil {
			silent.Close()
			break
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatal(err)
		}
	}
	c := w.runIn(ctx, strings.Fields("perf send_lat -n 5 -R -u 18 --addr 127.0.0.65 127.0.0.63")...)
	c.want(t, "client", 0)
	s := <-done
	s.want(t, "server", 0)
	if !strings.Contains(s.err, "connected and said nothing; still waiting") {
		t.Errorf("the server says %q", s.err)
	}
}

// While a server's queue pairs are connected, others are rejected.
func TestPerfRejectsOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o := &perfOptions{test: perfTests[0], service: roce.RC, port: 18515, qps: 1, txDepth: 1, rxDepth: 1, postList: 1, size: 1, ackTime: 18, rdmaCM: true}
	a, _, _ := w.app()
	r := &perfRun{app: a, o: o, mtu: ib.MTU1024}
	defer r.close()
	if err := r.sit(netip.MustParseAddr("127.0.0.66")); err != nil {
		t.Fatal(err)
	}
	if err := r.ep.build(perftest.CycleBuffer); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.listenByCM(ctx); err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		c, err := r.acceptQP(ctx, netip.MustParseAddrPort("127.0.0.67:1"))
		if err == nil {
			r.ep.conns = append(r.ep.conns, c)
		}
		accepted <- err
	}()
	var rejected *rdmacm.RejectedError
	if _, err := rdmacm.Dial(ctx, "127.0.0.66:18515", rdmacm.Config{Device: w.device("127.0.0.68")}); !errors.As(err, &rejected) {
		t.Errorf("another one: %v", err)
	}
	if _, err := rdmacm.Dial(ctx, "127.0.0.66:18515", rdmacm.Config{Device: w.device("127.0.0.67")}); err != nil {
		t.Error(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
}
