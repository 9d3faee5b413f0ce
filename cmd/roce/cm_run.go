package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// cmResult is what --json prints.
type cmResult struct {
	Role        string            `json:"role"`       // client or server
	PortSpace   string            `json:"port_space"` // tcp, ib or udp
	Connections int               `json:"connections"`
	Messages    int               `json:"messages"`     // sent and received, of all connections
	Size        int               `json:"size"`         // bytes
	Connect     float64           `json:"connect_usec"` // from the first to the last connection
	PerSec      float64           `json:"connections_per_sec"`
	Seconds     float64           `json:"seconds"`
	Counters    map[string]uint64 `json:"counters"` // of the connection manager, those that are not 0
}

// cmNode is one connection.
type cmNode struct {
	o    *cmOptions
	conn *rdmacm.Conn
	cq   *roce.CQ
	mr   *roce.MR
	ah   *roce.AH // with udp: of the peer
	qpn  ib.QPN
	done [256]int // completions by operation
}

// header is how many bytes stand before a received message.
func (n *cmNode) header() int {
	if n.o.space == rdmacm.UDP {
		return ib.GRHSize
	}
	return 0
}

// config is how a node's connection is made.
func (n *cmNode) config() rdmacm.Config {
	return rdmacm.Config{
		PortSpace: n.o.space, TrafficClass: n.o.tos,
		QP:                 roce.QPConfig{MaxSendWR: max(1, n.o.messages), MaxRecvWR: max(1, n.o.messages)},
		ResponderResources: 1, InitiatorDepth: 1, RetryCount: 5,
		Prepare: n.prepare,
	}
}

// prepare registers memory and posts all receives.
func (n *cmNode) prepare(c *rdmacm.Conn) (err error) {
	n.conn, n.cq = c, c.CQ()
	if port, err := c.Device().QueryPort(); err == nil && n.o.space == rdmacm.UDP && n.o.size > port.ActiveMTU.Bytes() {
		return fmt.Errorf("-S %d: a datagram has at most %d bytes here", n.o.size, port.ActiveMTU.Bytes())
	}
	if n.mr, err = c.PD().RegisterMR(make([]byte, 2*(n.o.size+n.header())), roce.LocalWrite); err != nil {
		return err
	}
	// The first message has memory of its own, where its GRH stays while others come.
	for i := range n.o.messages {
		if err := c.QP().PostRecv(roce.RecvWR{SGE: []roce.SGE{n.mr.SGE(min(i, 1)*(n.o.size+n.header()), n.o.size+n.header())}}); err != nil {
			return err
		}
	}
	return nil
}

// send posts all messages.
func (n *cmNode) send() error {
	wr := roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{n.mr.SGE(n.header(), n.o.size)}}
	if n.o.space == rdmacm.UDP {
		// The other side takes our number from there, as udaddy does.
		wr.Opcode, wr.Imm = roce.WRSendWithImm, uint32(n.conn.QP().Num())
		wr.AH, wr.RemoteQPN, wr.QKey = n.ah, n.qpn, n.conn.QKey()
	}
	for range n.o.messages {
		if err := n.conn.QP().PostSend(wr); err != nil {
			return err
		}
	}
	return nil
}

// wait waits until all messages have gone, or come.
func (n *cmNode) wait(ctx context.Context, op roce.WCOpcode) error {
	var wc [16]roce.WC
	for n.done[op] < n.o.messages {
		k, err := n.cq.Wait(ctx, wc[:])
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil {
				err = cause
			}
			return fmt.Errorf("%v: %d of %d messages: %w", n.conn.RemoteAddr(), n.done[op], n.o.messages, err)
		}
		for i := range wc[:k] {
			w := &wc[i]
			switch {
			case w.Status != roce.WCSuccess:
				return fmt.Errorf("%v: a request failed: %v (%d)", n.conn.RemoteAddr(), w.Status, w.Status)
			case w.Opcode == roce.WCRecv && int(w.ByteLen) != n.o.size+n.header():
				return fmt.Errorf("%v sent a message of %d bytes instead of %d: do both sides use the same -S?", n.conn.RemoteAddr(), int(w.ByteLen)-n.header(), n.o.size)
			case w.Opcode == roce.WCRecv && n.o.space == rdmacm.UDP && n.ah == nil:
				if n.ah, err = n.conn.PD().CreateAHFromWC(w, n.mr.Bytes()); err != nil {
					return err
				}
				n.qpn = ib.QPN(w.Imm)
			}
			n.done[w.Opcode]++
		}
	}
	return nil
}

// cmRun is one run of either role.
type cmRun struct {
	app   *app
	o     *cmOptions
	nodes []*cmNode
	first time.Time // of the connections
	last  time.Time
}

// cm runs as server or client.
func (a *app) cm(ctx context.Context, o *cmOptions) error {
	r := &cmRun{app: a, o: o}
	role, run := "server", r.server
	if o.server != "" {
		role, run = "client", r.client
	}
	began := time.Now()
	if err := run(ctx); err != nil {
		return err
	}
	took := r.last.Sub(r.first)
	if !o.json {
		fmt.Fprintf(a.stdout, "%d connections in %.3f ms, %d messages of %d bytes sent and received\n",
			o.conns, float64(took)/float64(time.Millisecond), 2*o.conns*o.messages, o.size)
		return nil
	}
	return printJSON(a.stdout, cmResult{
		Role: role, PortSpace: map[rdmacm.PortSpace]string{rdmacm.TCP: "tcp", rdmacm.IB: "ib", rdmacm.UDP: "udp"}[o.space],
		Connections: o.conns, Messages: 2 * o.conns * o.messages, Size: o.size,
		Connect: float64(took) / float64(time.Microsecond), PerSec: float64(o.conns) / max(took.Seconds(), 1e-9),
		Seconds: time.Since(began).Seconds(), Counters: nonZero(rdmacm.Counters()),
	})
}

// each runs f for all nodes at a time and returns the first error.
func (r *cmRun) each(f func(*cmNode) error) error {
	errs := make([]error, len(r.nodes))
	var all sync.WaitGroup
	for i, n := range r.nodes {
		all.Go(func() { errs[i] = f(n) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// client connects, answers the messages and waits until the server disconnects.
func (r *cmRun) client(ctx context.Context) (err error) {
	o := r.o
	source := o.bind
	if !source.IsValid() {
		if source, err = sourceFor(ctx, o.server); err != nil {
			return err
		}
	}
	dev, err := r.app.open(roce.Config{Addr: source})
	if err != nil {
		return err
	}
	defer dev.Close()
	defer func() { r.leave(err) }()
	for range o.conns {
		r.nodes = append(r.nodes, &cmNode{o: o})
	}
	r.first = time.Now()
	if err := r.each(func(n *cmNode) (err error) {
		n.conn, err = cmConnect(ctx, dev, net.JoinHostPort(o.server, strconv.Itoa(int(o.port))), o.timeout, n.config())
		if err == nil {
			n.ah, n.qpn = n.conn.AH(), n.conn.RemoteQPN()
		}
		return err
	}); err != nil {
		return err
	}
	r.last = time.Now()
	ctx, stop := watch(ctx, o.timeout, r.activity(dev))
	defer stop()
	steps := []func(context.Context) error{r.receive, r.send}
	if o.first {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return r.part(ctx, o.messages == 0 || o.first)
}

// activity counts what a device receives.
func (r *cmRun) activity(dev *roce.Device) func() uint64 {
	return func() uint64 { return dev.Counters()["rcvd_pkts"] }
}

func (r *cmRun) receive(ctx context.Context) error {
	return r.each(func(n *cmNode) error { return n.wait(ctx, roce.WCRecv) })
}

func (r *cmRun) send(ctx context.Context) error {
	return r.each(func(n *cmNode) error {
		if err := n.send(); err != nil {
			return err
		}
		if r.o.server != "" && !r.o.first {
			return nil // the server may disconnect when it has all, before we have the last acknowledgement
		}
		return n.wait(ctx, roce.WCSend)
	})
}

// part disconnects, or waits until the other side does.
func (r *cmRun) part(ctx context.Context, first bool) error {
	if r.o.space == rdmacm.UDP {
		return nil
	}
	return r.each(func(n *cmNode) error {
		if first {
			if err := n.conn.Disconnect(ctx, nil); err != nil && !errors.Is(err, rdmacm.ErrDisconnected) {
				return err
			}
			return nil
		}
		select {
		case <-n.conn.Done():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%v does not disconnect: %w", n.conn.RemoteAddr(), context.Cause(ctx))
		}
	})
}

// server takes connections, sends the messages, takes the answers and disconnects.
func (r *cmRun) server(ctx context.Context) (err error) {
	o := r.o
	host := ""
	if o.bind.IsValid() {
		host = o.bind.String()
	}
	l, closeAll, err := r.app.cmListen(host, o.port, o.space)
	if err != nil {
		return err
	}
	defer closeAll()
	defer func() { r.leave(err) }()
	r.app.progressf("waiting for %d connections on port %d", o.conns, o.port)
	if err := r.accept(ctx, l); err != nil {
		return err
	}
	dev := r.nodes[0].conn.Device()
	ctx, stop := watch(ctx, o.timeout, r.activity(dev))
	defer stop()
	steps := []func(context.Context) error{r.send, r.receive}
	if o.first {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return r.part(ctx, o.messages > 0)
}

// leave, after an error, tells the peers of all connections, so that they need not
// find out by waiting.
func (r *cmRun) leave(err error) {
	if err == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	r.each(func(n *cmNode) error {
		if n.conn == nil {
			return nil
		}
		return n.conn.Shutdown(ctx)
	})
}

// accept takes all connections; the first may be long in coming.
func (r *cmRun) accept(ctx context.Context, l *rdmacm.Listener) (err error) {
	first, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	r.first = time.Now()
	limited, cancel := context.WithTimeout(ctx, r.o.timeout)
	defer cancel()
	answered := make(chan error, r.o.conns)
	waiting := 0
	defer func() { // after an error
		cancel()
		for range waiting {
			<-answered
		}
	}()
	for req := first; ; {
		n := &cmNode{o: r.o}
		r.nodes = append(r.nodes, n)
		waiting++
		go func(req *rdmacm.Request) {
			var err error
			n.conn, err = req.Accept(limited, n.config())
			answered <- err
		}(req)
		if len(r.nodes) == r.o.conns {
			break
		}
		if req, err = l.Accept(limited); err != nil {
			if ctx.Err() == nil {
				err = fmt.Errorf("%d of %d connections have come: does the client use the same -c?", len(r.nodes), r.o.conns)
			}
			return err
		}
	}
	for waiting > 0 {
		waiting--
		if err := <-answered; err != nil {
			return err
		}
	}
	r.last = time.Now()
	return nil
}
