package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/perftest"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// With -R everything goes over rdma_cm, as in perftest: first a queue pair to talk
// over, then those of the test, to the same port. The server takes them in the order
// in which they come.

// meetServerByCM is the client's way.
func (r *perfRun) meetServerByCM(ctx context.Context) error {
	o := r.o
	if r.ep == nil {
		addr, err := sourceFor(ctx, o.server)
		if err == nil {
			err = r.sit(addr)
		}
		if err != nil {
			return err
		}
	}
	r.app.progressf("connecting to %s, port %d of rdma_cm", o.server, o.port)
	c := new(perftest.Control)
	if _, err := cmConnect(ctx, r.ep.dev, net.JoinHostPort(o.server, strconv.Itoa(int(o.port))), o.timeout, c.Config(o.ackWait())); err != nil {
		return err
	}
	r.conn = c
	return r.hello(ctx, r.ep.dev.Addr())
}

// listenByCM is the server's. The listener stays, for the queue pairs of the test.
func (r *perfRun) listenByCM(context.Context) (next nextClient, stop func(), err error) {
	at := netip.AddrPortFrom(r.ep.dev.Addr(), r.o.port).String()
	if r.cm, err = rdmacm.Listen(at, rdmacm.ListenConfig{Device: r.ep.dev}); err != nil {
		return nil, nil, err
	}
	if err := r.listenForQPs(at); err != nil {
		return nil, nil, err
	}
	r.app.progressf("waiting for a client on port %d of rdma_cm", r.o.port)
	if r.listening != nil {
		r.listening <- r.o.port
	}
	return r.nextByCM, func() {}, nil
}

// nextByCM waits for the next client.
func (r *perfRun) nextByCM(ctx context.Context) (perfConn, netip.Addr, error) {
	for {
		req, err := r.cm.Accept(ctx)
		if err != nil {
			return nil, netip.Addr{}, err
		}
		c := new(perftest.Control)
		limited, cancel := context.WithTimeout(ctx, r.o.timeout)
		_, err = req.Accept(limited, c.Config(r.o.ackWait()))
		cancel()
		if err == nil || ctx.Err() != nil {
			return c, r.ep.dev.Addr(), err
		}
		fmt.Fprintf(r.app.stderr, "roce: %v: %v; still waiting\n", req.RemoteAddr(), err)
	}
}

// connectByCM connects all queue pairs of the test. Both sides meet before and after.
func (r *perfRun) connectByCM(ctx context.Context) error {
	meet := func() error {
		_, err := r.talk.Swap(ctx, r.o.timeout, perftest.Dest{GID: r.ep.gid})
		return err
	}
	if err := meet(); err != nil {
		return err
	}
	connect := r.acceptQP
	if r.o.client() {
		connect = r.dialQP
	}
	limited, cancel := context.WithTimeoutCause(ctx, r.o.timeout, &quietError{r.o.timeout})
	defer cancel()
	for range r.o.qps {
		c, err := connect(limited, r.conn.(*perftest.Control).Peer())
		if err != nil {
			return err
		}
		r.ep.conns = append(r.ep.conns, c)
		r.ep.add(c.QP())
	}
	return meet()
}

// acceptQP takes the peer's next connection. Others have come too late.
func (r *perfRun) acceptQP(ctx context.Context, peer netip.AddrPort) (*rdmacm.Conn, error) {
	for {
		req, err := r.cmQPs.Accept(ctx)
		if err != nil {
			return nil, err
		}
		if req.RemoteAddr().Addr() != peer.Addr() {
			req.Reject(nil) // it may have given up, and is nothing to us
			continue
		}
		cfg, asks := r.ep.cmConfig(r.mtu), req.Params()
		cfg.ResponderResources = atMost(cfg.ResponderResources, asks.ResponderResources)
		cfg.InitiatorDepth = atMost(cfg.InitiatorDepth, asks.InitiatorDepth)
		if !r.o.introduces() {
			return req.Accept(ctx, cfg)
		}
		cfg.Prepare = r.ep.awaitIntro
		c, err := req.Accept(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return c, r.ep.takeIntro(ctx, c)
	}
}

// atMost returns the smaller number in the form of rdmacm.Config, where negative means 0.
func atMost(n, most int) int {
	if n = min(n, most); n <= 0 {
		return -1
	}
	return n
}

// dialQP connects a queue pair to the server. perftest listens anew for them, a little
// later than it has met us.
func (r *perfRun) dialQP(ctx context.Context, peer netip.AddrPort) (*rdmacm.Conn, error) {
	cfg := r.ep.cmConfig(r.mtu)
	cfg.Device = r.ep.dev
	for {
		c, err := rdmacm.Dial(ctx, peer.String(), cfg)
		if err == nil && r.o.service == roce.UD {
			return c, r.ep.intro(ctx, c)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// cmConfig has the parameters of perftest.
func (e *perfEndpoint) cmConfig(mtu ib.MTU) rdmacm.Config {
	outs := -1 // none
	switch {
	case e.o.test.fetches():
		outs = e.o.outs
	case e.o.verifies():
		outs = 1 // to look at what was written
	}
	return rdmacm.Config{
		PortSpace: e.o.space(), PD: e.pd, QP: e.qpConfig(), Access: e.access, PathMTU: mtu,
		ResponderResources: outs, InitiatorDepth: outs, AckTimeout: e.o.ackWait(),
		TrafficClass: uint8(e.o.tclass),
	}
}

// ackWait is what -u says, but for hours: there is no "for ever" in rdma_cm.
func (o *perfOptions) ackWait() time.Duration {
	if o.ackTime == 0 {
		return ib.AckTimeout(31).Duration()
	}
	return ib.AckTimeout(o.ackTime).Duration()
}

// partTimeout is how long a peer may take to disconnect.
const partTimeout = 2 * time.Second

// hangUp ends the connections of the test. In perftest the server disconnects, and its
// client waits for that.
func (e *perfEndpoint) hangUp() {
	ctx, cancel := context.WithTimeout(context.Background(), partTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, c := range e.conns {
		all.Go(func() {
			if e.o.client() && len(e.peers) > 0 && e.o.service == roce.RC { // the server may be at its last message
				select {
				case <-c.Done():
				case <-ctx.Done():
				}
			}
			c.Disconnect(ctx, nil) // a peer that has gone is what we want, too
			c.Close()
		})
	}
	all.Wait()
}
