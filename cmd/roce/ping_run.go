package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// pingInfo is the size of the message that names memory: address, key, length
// (struct rping_rdma_info of librdmacm's examples/rping.c).
const pingInfo = 16

// pingResult is what --json prints.
type pingResult struct {
	Role        string            `json:"role"` // client or server
	Clients     int               `json:"clients"`
	Pings       int               `json:"pings"`
	Size        int               `json:"size"`  // bytes
	Bytes       int64             `json:"bytes"` // both directions
	Seconds     float64           `json:"seconds"`
	UsecPerPing float64           `json:"usec_per_ping"`
	Validated   bool              `json:"validated"`
	Counters    map[string]uint64 `json:"counters"` // of the connection manager, those that are not 0
}

// ping runs as server or client.
func (a *app) ping(ctx context.Context, o *pingOptions) error {
	r := pingResult{Role: "client", Clients: 1, Size: o.size, Validated: o.validate}
	run := a.pingClient
	if o.server {
		r.Role, run = "server", a.pingServer
	}
	began := time.Now()
	if err := run(ctx, o, &r); err != nil {
		return err
	}
	if !o.json {
		return nil
	}
	r.Seconds = time.Since(began).Seconds()
	r.Bytes = 2 * int64(r.Size) * int64(r.Pings)
	if r.Pings > 0 {
		r.UsecPerPing = r.Seconds * 1e6 / float64(r.Pings)
	}
	r.Counters = nonZero(rdmacm.Counters())
	return printJSON(a.stdout, r)
}

// pinger is one end of a connection that is pinged over.
type pinger struct {
	app                    *app
	o                      *pingOptions
	conn                   *rdmacm.Conn
	cq                     *roce.CQ
	info, told, data, back *roce.MR      // what we say of our memory, what the peer says of its; what is sent, what comes back
	done                   [256]int      // completions seen and not yet waited for, by operation
	seen                   atomic.Uint64 // completions
}

// config is how a pinger's connection is made.
func (p *pinger) config() rdmacm.Config {
	return rdmacm.Config{
		QP:                 roce.QPConfig{MaxSendWR: 16, MaxRecvWR: 2},
		Access:             roce.RemoteRead | roce.RemoteWrite,
		ResponderResources: 1, InitiatorDepth: 1,
		PathMTU: p.o.mtu, AckTimeout: p.o.ackTimeout,
		Prepare: p.prepare,
	}
}

// prepare registers memory and posts the first receive.
func (p *pinger) prepare(c *rdmacm.Conn) error {
	p.conn, p.cq = c, c.CQ()
	size := p.o.size
	if p.o.server {
		size = pingSizeMax // the client says how long a ping is
	}
	for _, m := range []struct {
		mr     **roce.MR
		size   int
		access roce.Access
	}{
		{&p.info, pingInfo, 0}, {&p.told, pingInfo, roce.LocalWrite},
		{&p.data, size, roce.LocalWrite | roce.RemoteRead}, {&p.back, size, roce.LocalWrite | roce.RemoteWrite},
	} {
		var err error
		if *m.mr, err = c.PD().RegisterMR(make([]byte, m.size), m.access); err != nil {
			return err
		}
	}
	return p.receive()
}

// release frees the memory, which would keep the connection's protection domain.
func (p *pinger) release() {
	for _, mr := range []*roce.MR{p.info, p.told, p.data, p.back} {
		if mr != nil {
			mr.Deregister()
		}
	}
}

func (p *pinger) receive() error {
	return p.conn.QP().PostRecv(roce.RecvWR{SGE: []roce.SGE{p.told.SGE(0, pingInfo)}})
}

// say sends the peer where our memory is.
func (p *pinger) say(mr *roce.MR) error {
	b := p.info.Bytes()
	binary.BigEndian.PutUint64(b, mr.Addr())
	binary.BigEndian.PutUint32(b[8:], mr.RKey())
	binary.BigEndian.PutUint32(b[12:], uint32(mr.Len()))
	if err := p.conn.QP().PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{p.info.SGE(0, pingInfo)}}); err != nil {
		return err
	}
	return nil
}

// hear waits for the peer's message, which names its memory.
func (p *pinger) hear(ctx context.Context) (addr uint64, rkey, size uint32, err error) {
	if err := p.wait(ctx, roce.WCRecv); err != nil {
		return 0, 0, 0, err
	}
	b := p.told.Bytes()
	addr, rkey, size = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	return addr, rkey, size, p.receive()
}

// errPingOver says that the other side has disconnected.
var errPingOver = errors.New("the other side has disconnected")

// wait waits until an operation has completed.
func (p *pinger) wait(ctx context.Context, op roce.WCOpcode) error {
	var wc [8]roce.WC
	for p.done[op] == 0 {
		n, err := p.cq.Wait(ctx, wc[:])
		if err != nil {
			if errors.As(context.Cause(ctx), new(*quietError)) {
				return context.Cause(ctx)
			}
			return err
		}
		for i := range wc[:n] {
			switch {
			case wc[i].Status == roce.WCWRFlushErr:
				return errPingOver
			case wc[i].Status != roce.WCSuccess:
				return fmt.Errorf("a request failed: %v (%d)", wc[i].Status, wc[i].Status)
			case wc[i].Opcode == roce.WCRecv && wc[i].ByteLen != pingInfo:
				return fmt.Errorf("the other side sent a message of %d bytes instead of %d: is it rping?", wc[i].ByteLen, pingInfo)
			}
			p.done[wc[i].Opcode]++
			p.seen.Add(1)
		}
	}
	p.done[op]--
	return nil
}

// watched runs f with a context that ends when nothing completes any more.
func (p *pinger) watched(ctx context.Context, f func(context.Context) error) error {
	ctx, stop := watch(ctx, p.o.timeout, p.seen.Load)
	defer stop()
	return f(ctx)
}

// debugf says with -d what happens.
func (p *pinger) debugf(format string, args ...any) {
	if p.o.debug {
		fmt.Fprintf(p.app.stderr, format+"\n", args...)
	}
}

// pingClient connects and pings.
func (a *app) pingClient(ctx context.Context, o *pingOptions, r *pingResult) error {
	p := &pinger{app: a, o: o}
	conn, closeAll, err := a.cmDial(ctx, o.addr, o.port, o.source, o.timeout, p.config())
	if err != nil {
		return err
	}
	defer closeAll()
	defer p.part(conn)
	p.debugf("connected to %v", conn.RemoteAddr())
	return p.watched(ctx, func(ctx context.Context) error {
		for n := 0; o.count == 0 || n < o.count; n++ {
			if err := p.client(ctx, n); err != nil {
				return fmt.Errorf("ping %d: %w", n, err)
			}
			r.Pings++
		}
		return nil
	})
}

// part tells the server that it is over, whatever has ended it: a few times, if
// that is lost.
func (p *pinger) part(conn *rdmacm.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	conn.Disconnect(ctx, nil) // if it still is
}

// client sends one ping: the server reads it and writes it back.
func (p *pinger) client(ctx context.Context, n int) error {
	data, back := p.data.Bytes(), p.back.Bytes()
	fillPing(data, n)
	clear(back)
	for _, mr := range []*roce.MR{p.data, p.back} {
		if err := p.say(mr); err != nil {
			return err
		}
		if _, _, _, err := p.hear(ctx); err != nil {
			return err
		}
		if err := p.wait(ctx, roce.WCSend); err != nil {
			return err
		}
	}
	if p.o.validate && !bytes.Equal(data, back) {
		return errors.New("wrong data came back")
	}
	if p.o.verbose && !p.o.json {
		fmt.Fprintf(p.app.stdout, "ping data: %s\n", text(back))
	}
	return nil
}

// fillPing makes the data of ping n as rping does: its number, then letters, then
// a zero.
func fillPing(b []byte, n int) {
	const first, last = 'A', 'z'
	at := copy(b, fmt.Sprintf("rdma-ping-%d: ", n))
	c := byte(first + n%(last-first+1))
	for i := at; i < len(b); i++ {
		b[i] = c
		if c++; c > last {
			c = first
		}
	}
	b[len(b)-1] = 0
}

// text is what stands before the first zero.
func text(b []byte) []byte {
	t, _, _ := bytes.Cut(b, []byte{0})
	return t
}

// pingServer serves one client, or with -P all that come.
func (a *app) pingServer(ctx context.Context, o *pingOptions, r *pingResult) error {
	l, closeAll, err := a.cmListen(o.addr, o.port, rdmacm.TCP)
	if err != nil {
		return err
	}
	defer closeAll()
	a.progressf("waiting for a client on port %d", o.port)
	if !o.persistent {
		req, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		only, stop := context.WithCancel(ctx)
		defer stop()
		go turnAway(only, l)
		r.Pings, err = a.serveClient(ctx, o, req)
		return err
	}
	return a.serveClients(ctx, l, &room{limit: math.MaxInt}, a.plainJournal, func(ctx context.Context, req *rdmacm.Request) error {
		_, err := a.serveClient(ctx, o, req)
		return err
	})
}

// room is how many clients there may be at a time.
type room struct {
	limit int64
	busy  atomic.Int64
}

// serveClients serves all that come, while there is room, until ctx ends; the journal is
// told of errors.
func (a *app) serveClients(ctx context.Context, l *rdmacm.Listener, r *room, journal clientJournal, serve func(context.Context, *rdmacm.Request) error) error {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		req, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		if r.busy.Add(1) > r.limit {
			r.busy.Add(-1)
			req.Reject([]byte("busy")) // or it has gone by itself
			continue
		}
		all.Go(func() {
			defer r.busy.Add(-1)
			if err := serve(ctx, req); err != nil && ctx.Err() == nil {
				journal(req.RemoteAddr(), oneLine(err))
			}
		})
	}
}

// turnAway refuses whoever comes while there is a client.
func turnAway(ctx context.Context, l *rdmacm.Listener) {
	for {
		req, err := l.Accept(ctx)
		if err != nil {
			return
		}
		req.Reject([]byte("busy")) // or it has gone by itself
	}
}

// serveClient answers one client until it disconnects, and returns how many pings
// there were.
func (a *app) serveClient(ctx context.Context, o *pingOptions, req *rdmacm.Request) (pings int, err error) {
	p := &pinger{app: a, o: o}
	p.debugf("client %v connects", req.RemoteAddr())
	defer p.release()
	conn, err := req.Accept(ctx, p.config())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	err = p.watched(ctx, func(ctx context.Context) error {
		for ; ; pings++ {
			if err := p.server(ctx); err != nil {
				return err
			}
		}
	})
	if errors.Is(err, errPingOver) {
		p.debugf("client %v has disconnected", req.RemoteAddr())
		return pings, nil
	}
	return pings, err
}

// server answers one ping.
func (p *pinger) server(ctx context.Context) error {
	qp := p.conn.QP()
	addr, rkey, size, err := p.hear(ctx)
	if err != nil {
		return err
	}
	if size > pingSizeMax {
		return fmt.Errorf("the client announces a ping of %d bytes, more than %d", size, pingSizeMax)
	}
	if err := qp.PostSend(roce.SendWR{Opcode: roce.WRRead, Flags: roce.Signaled, SGE: []roce.SGE{p.data.SGE(0, int(size))}, RemoteAddr: addr, RKey: rkey}); err != nil {
		return err
	}
	if err := p.wait(ctx, roce.WCRead); err != nil {
		return err
	}
	ping := text(p.data.Bytes()[:size])
	if p.o.verbose && !p.o.json {
		fmt.Fprintf(p.app.stdout, "server ping data: %s\n", ping)
	}
	if err := p.say(p.data); err != nil {
		return err
	}
	if addr, rkey, _, err = p.hear(ctx); err != nil {
		return err
	}
	// With the zero behind it, as rping writes it.
	if err := qp.PostSend(roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{p.data.SGE(0, min(len(ping)+1, int(size)))}, RemoteAddr: addr, RKey: rkey}); err != nil {
		return err
	}
	if err := p.wait(ctx, roce.WCWrite); err != nil {
		return err
	}
	return p.say(p.data)
}
