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
	for _, service := range []roce.QPType{roce.RC, roce.UD} {
		t.Run(service.String(), func(t *testing.T) {
			t.Parallel()
			perfRejectsOthers(t, service)
		})
	}
}

// connecting is a server at 127.0.0.66 that waits for the connection of a queue pair from
// 127.0.0.67.
func (w *world) connecting(ctx context.Context, o *perfOptions) (r *perfRun, accepted chan error) {
	w.t.Helper()
	o.port, o.qps, o.txDepth, o.rxDepth, o.postList, o.size, o.ackTime, o.rdmaCM = 18515, 1, 1, 1, 1, 1, 18, true
	a, _, _ := w.app()
	r = &perfRun{app: a, o: o, mtu: ib.MTU1024}
	w.t.Cleanup(r.close)
	if err := r.sit(netip.MustParseAddr("127.0.0.66")); err != nil {
		w.t.Fatal(err)
	}
	if err := r.ep.build(perftest.CycleBuffer); err != nil {
		w.t.Fatal(err)
	}
	if _, _, err := r.listenByCM(ctx); err != nil {
		w.t.Fatal(err)
	}
	accepted = make(chan error, 1)
	go func() {
		c, err := r.acceptQP(ctx, netip.MustParseAddrPort("127.0.0.67:1"))
		if err == nil {
			r.ep.conns = append(r.ep.conns, c)
		}
		accepted <- err
	}()
	return r, accepted
}

func perfRejectsOthers(t *testing.T, service roce.QPType) {
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, accepted := w.connecting(ctx, &perfOptions{test: perfTests[0], service: service})
	var rejected *rdmacm.RejectedError
	if _, err := rdmacm.Dial(ctx, "127.0.0.66:18515", rdmacm.Config{PortSpace: r.o.space(), Device: w.device("127.0.0.68")}); !errors.As(err, &rejected) {
		t.Errorf("another one: %v", err)
	}
	if _, err := rdmacm.Dial(ctx, "127.0.0.66:18515", rdmacm.Config{PortSpace: r.o.space(), Device: w.device("127.0.0.67")}); err != nil {
		t.Error(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
}

// A client whose first datagram is lost is not waited for without end.
func TestPerfLostIntroduction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	_, accepted := w.connecting(ctx, &perfOptions{test: perfTests[1], service: roce.UD})
	if _, err := rdmacm.Dial(t.Context(), "127.0.0.66:18515", rdmacm.Config{PortSpace: rdmacm.UDP, Device: w.device("127.0.0.67")}); err != nil {
		t.Fatal(err)
	}
	cancel(&quietError{10 * time.Second}) // as connectByCM does in the end
	if err := <-accepted; err == nil || !strings.Contains(err.Error(), "nothing came from the peer for 10s; UD repeats nothing") {
		t.Errorf("%v", err)
	}
}

// A first datagram that does not name its queue pair is not one of perftest.
func TestPerfWrongIntroduction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, accepted := w.connecting(ctx, &perfOptions{test: perfTests[1], service: roce.UD})
	c, err := rdmacm.Dial(ctx, "127.0.0.66:18515", rdmacm.Config{PortSpace: rdmacm.UDP, Device: w.device("127.0.0.67")})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.QP().PostSend(roce.SendWR{Opcode: roce.WRSendWithImm, Imm: uint32(c.QP().Num()) ^ 1, AH: c.AH(), RemoteQPN: c.RemoteQPN(), QKey: c.QKey()}); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err == nil || !strings.Contains(err.Error(), "it is not one of perftest with -R") {
		t.Errorf("%v", err)
	}
}
