package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/exchange"
	"github.com/goroce/goroce/cmd/roce/internal/perftest"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// perfRun is one test from the first address to the result.
type perfRun struct {
	app     *app
	o       *perfOptions
	ep      *perfEndpoint
	conn    perfConn
	cm      *rdmacm.Listener // of a server, with -R
	cmQPs   *rdmacm.Listener // of its queue pairs: the same, but for UD
	talk    *perftest.Session
	peer    perftest.Peer
	mtu     ib.MTU
	results []perfResult
	check   perfCheck

	listening chan<- uint16
}

// perfConn is what both sides exchange records over.
type perfConn interface {
	exchange.Conn
	io.Closer
}

// perf runs one test as client or server. A server tells listening, if that is not
// nil, the port on which it waits for its client.
func (a *app) perf(ctx context.Context, o *perfOptions, listening chan<- uint16) error {
	r := &perfRun{app: a, o: o, listening: listening}
	defer r.close()
	if o.addr.IsValid() {
		if err := r.sit(o.addr); err != nil {
			return err
		}
	}
	meet := r.meetClient
	if o.client() {
		meet = r.meetServer
	}
	if err := meet(ctx); err != nil {
		return err
	}
	if err := r.connect(ctx); err != nil {
		return err
	}
	r.head()
	watched, stop := watch(ctx, o.timeout, func() uint64 { return packetsOf(r.ep.dev) })
	defer stop()
	err := r.measure(watched)
	if err == nil {
		err = r.finish(watched)
	}
	if err != nil {
		return r.explain(err)
	}
	stop()
	if err := r.tail(); err != nil {
		return err
	}
	linger(ctx, r.ep.dev)
	return r.limits()
}

// limits reports what -w and -y forbid.
func (r *perfRun) limits() error {
	for _, res := range r.results {
		t, ok := res.(*throughput)
		if !ok {
			continue
		}
		average, unit := t.MiB, "MiB/s"
		if r.o.gbits {
			average, unit = t.Gbit, "Gbit/s"
		}
		switch {
		case average < r.o.leastBW:
			return fmt.Errorf("%.2f %s with messages of %d bytes: -w wants %v", average, unit, t.Size, r.o.leastBW)
		case t.MsgPerUsec < r.o.leastMsg:
			return fmt.Errorf("%.6f million messages per second of %d bytes: -y wants %v", t.MsgPerUsec, t.Size, r.o.leastMsg)
		}
	}
	return nil
}

// sit opens our device on a local address.
func (r *perfRun) sit(addr netip.Addr) (err error) {
	r.ep, err = r.app.openPerf(addr, r.o)
	return err
}

// meetServer is the client's way to a peer that has said hello.
func (r *perfRun) meetServer(ctx context.Context) (err error) {
	o := r.o
	if o.rdmaCM {
		return r.meetServerByCM(ctx)
	}
	r.app.progressf("connecting to %s, TCP port %d", o.server, o.port)
	conn, err := dial(ctx, tcpServer{o.server, o.port, o.timeout, o.test.how()})
	if err != nil {
		return err
	}
	r.conn = conn
	return r.hello(ctx, clientAddr(conn))
}

// meetClient is the server's.
func (r *perfRun) meetClient(ctx context.Context) error {
	listen := r.listenByTCP
	if r.o.rdmaCM {
		listen = r.listenByCM
	}
	next, stop, err := listen(ctx)
	if err != nil {
		return err
	}
	defer stop()
	for {
		conn, local, err := next(ctx)
		if err != nil {
			return err
		}
		r.conn = conn
		err = r.hello(ctx, local)
		if !errors.Is(err, exchange.ErrSilent) {
			return err
		}
		fmt.Fprintf(r.app.stderr, "roce: %s connected and said nothing; still waiting\n", r.conn.RemoteAddr())
		r.conn.Close()
	}
}

// nextClient waits for a client; local is the address that it has come to.
type nextClient func(ctx context.Context) (conn perfConn, local netip.Addr, err error)

func (r *perfRun) listenByTCP(ctx context.Context) (next nextClient, stop func(), err error) {
	l, err := r.app.listen(ctx, r.o.port)
	if err != nil {
		return nil, nil, err
	}
	r.app.progressf("waiting for a client on TCP port %d", r.o.port)
	if r.listening != nil {
		r.listening <- uint16(l.Addr().(*net.TCPAddr).Port)
	}
	next = func(ctx context.Context) (perfConn, netip.Addr, error) {
		conn, err := accept(ctx, l)
		if err != nil {
			return nil, netip.Addr{}, err
		}
		return conn, tcpAddr(conn.LocalAddr()), nil
	}
	return next, func() { l.Close() }, nil
}

// hello exchanges what both sides are and can do; addr is our address unless one
// was given.
func (r *perfRun) hello(ctx context.Context, addr netip.Addr) (err error) {
	if r.ep == nil {
		if err := r.sit(addr); err != nil {
			return err
		}
	}
	r.talk = perftest.NewSession(r.conn, r.o.client())
	if r.peer, err = r.talk.Hello(ctx, r.o.timeout, r.ep.mtu, r.o.verify); err != nil {
		return err
	}
	r.mtu = min(r.ep.mtu, r.peer.MTU)
	if err := r.o.fit(r.mtu); err != nil {
		return err
	}
	return r.check.agree(r.o, r.peer)
}

// connect makes both sides' queue pairs ready.
func (r *perfRun) connect(ctx context.Context) error {
	if err := r.ep.build(r.peer.CycleBuffer); err != nil {
		return err
	}
	if r.o.rdmaCM {
		if err := r.connectByCM(ctx); err != nil {
			return err
		}
	}
	return r.talk.Connect(ctx, r.o.timeout, r.o.test.order, r.ep.mine, func(peers []perftest.Dest) error {
		return r.ep.connect(peers, r.mtu)
	})
}

// measure runs the test for each size.
func (r *perfRun) measure(ctx context.Context) error {
	if err := r.check.begin(ctx, r); err != nil {
		return err
	}
	for _, size := range r.o.sizes() {
		res, err := r.measureSize(ctx, size)
		if err != nil {
			return err
		}
		if res == nil {
			return nil // a server that only waits
		}
		r.add(res)
		if r.o.test.sends() && !r.o.test.latency && r.o.all {
			if err := r.meetPeer(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// measureSize measures one size; a server that the client needs nothing from has no
// result.
func (r *perfRun) measureSize(ctx context.Context, size int) (perfResult, error) {
	defer r.showProgress(size)()
	b, err := r.newBench(size)
	if b == nil || err != nil {
		return nil, err
	}
	r.check.beforeSize(r, size)
	if r.o.test.sends() || r.o.both {
		if err := r.meetPeer(ctx); err != nil { // its receives are posted
			return nil, err
		}
	}
	res, err := b.run(ctx)
	if err == nil {
		err = r.check.afterSize(ctx, r, b, size)
	}
	if err == nil && r.o.both {
		err = r.addPeers(ctx, res.(*throughput))
	}
	return res, err
}

// meetPeer waits until the peer is where we are.
func (r *perfRun) meetPeer(ctx context.Context) error {
	_, err := r.talk.Swap(ctx, 0, r.ep.mine[0])
	return err
}

// addPeers adds what the peer has measured with -b, as perftest does: it keeps the
// results of SEND with -D to itself.
func (r *perfRun) addPeers(ctx context.Context, t *throughput) error {
	sends := r.o.test.sends()
	if sends && r.o.duration > 0 {
		return nil
	}
	if !sends && r.o.all {
		if err := r.meetPeer(ctx); err != nil {
			return err
		}
	}
	theirs, err := r.talk.SwapReport(ctx, r.o.timeout, r.report(t))
	if err == nil {
		t.add(r.reported(theirs))
	}
	return err
}

// finish meets the peer at the end; a server of a one-sided test waits here for as
// long as the client works, and learns its results.
func (r *perfRun) finish(ctx context.Context) error {
	t := r.o.test
	switch {
	case t.hangsUp:
		return nil
	case !t.sends() && !t.latency && !r.o.both:
		hide := r.showProgress(r.o.size)
		err := r.meetPeer(ctx)
		hide()
		if err != nil {
			return err
		}
		var mine perftest.Report
		if n := len(r.results); n > 0 {
			mine = r.report(r.results[n-1].(*throughput))
		}
		theirs, err := r.talk.SwapReport(ctx, r.o.timeout, mine)
		if err != nil {
			return err
		}
		if !r.o.client() {
			r.add(r.reported(theirs))
		}
	}
	return r.talk.Close(ctx, 0, r.ep.mine[0])
}

// bench is one size's measurement on one side.
type bench interface {
	run(ctx context.Context) (perfResult, error)
}

// newBench returns our part in the measurement of a size: nil for a server that the
// client needs nothing from. Receives are posted then.
func (r *perfRun) newBench(size int) (_ bench, err error) {
	t := r.o.test
	switch {
	case t.pingPongs() && t.sends():
		return newSendPingPong(r, size)
	case t.pingPongs():
		return newWritePingPong(r, size), nil
	case t.sends() && r.o.both:
		b := newRequests(r, size)
		b.receives, err = newReceives(r, size)
		return b, err
	case r.o.requests():
		return newRequests(r, size), nil
	case t.sends():
		return newReceives(r, size)
	}
	return nil, nil
}

func (r *perfRun) close() {
	if r.ep != nil {
		r.ep.hangUp()
	}
	if r.conn != nil {
		r.conn.Close()
	}
	for _, l := range []*rdmacm.Listener{r.cm, r.cmQPs} {
		if l != nil {
			l.Close() // twice does not matter
		}
	}
	r.ep.close()
}

// explain makes one line of what ended a test, with what to do about it.
func (r *perfRun) explain(err error) error {
	var (
		failed *completionError
		quiet  *quietError
		peer   = netip.Addr{}
	)
	if len(r.ep.peers) > 0 {
		peer = r.ep.peers[0].GID.Addr()
	}
	switch {
	case errors.As(err, &quiet) && r.o.service != roce.RC:
		return fmt.Errorf("%w: %v repeats nothing, and a message that is lost ends a test; otherwise look whether the other side's program still runs, with the same test, -c, -s, -n or -D, and -q",
			err, r.o.service)
	case errors.As(err, &quiet):
		return fmt.Errorf("%w: is the other side's program still running, and do both sides use the same test, -s, -n or -D, and -q?", err)
	case !errors.As(err, &failed):
		return err
	}
	switch failed.status {
	case roce.WCRetryExcErr:
		return fmt.Errorf("%w: %s", err, silenceHint(peer, r.ep.dev.Counters()))
	case roce.WCRemInvReqErr, roce.WCRemOpErr, roce.WCRemAccessErr, roce.WCLocLenErr:
		return fmt.Errorf("%w: do both sides use the same test, -s or -a, and --verify?", err)
	case roce.WCRNRRetryExcErr:
		return fmt.Errorf("%w: %v posts no receives", err, peer)
	}
	return err
}

// ended reports whether a test of some duration is over; without one it never is.
func (o *perfOptions) ended(since time.Time) bool {
	return o.duration > 0 && time.Since(since) >= o.duration
}
