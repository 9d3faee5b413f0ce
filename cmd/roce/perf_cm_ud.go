package main

import (
	"context"
	"fmt"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// Over UD rdma_cm only tells the client which queue pair serves it (SIDR). A server
// that has to send as well learns of the client's queue pair from a datagram of that,
// whose immediate data is its number, as in perftest: rdma_cm_establish_ud_connection
// and rdma_cm_initialize_ud_connection_parameters of perftest_communication.c.

// datagramPeer is where the datagrams of a queue pair go.
type datagramPeer struct {
	ah   *roce.AH
	qpn  ib.QPN
	qkey uint32
}

// space is the port space of the queue pairs of the test.
func (o *perfOptions) space() rdmacm.PortSpace {
	if o.service == roce.UD {
		return rdmacm.UDP
	}
	return rdmacm.TCP
}

// introduces reports whether a client has to say which queue pairs are its own.
func (o *perfOptions) introduces() bool { return o.service == roce.UD && (o.test.latency || o.both) }

// introLen is what the number comes with, and what its receive has room for.
const introLen = 4

// awaitIntro posts the receive of the client's first datagram to the queue pair that
// is next.
func (e *perfEndpoint) awaitIntro(c *rdmacm.Conn) error {
	wr := roce.RecvWR{ID: recvBit, SGE: []roce.SGE{e.mr.SGE(e.remote(len(e.qps)), ib.GRHSize+introLen)}}
	if e.srq != nil {
		return e.srq.PostRecv(wr)
	}
	return c.QP().PostRecv(wr)
}

// takeIntro waits for it.
func (e *perfEndpoint) takeIntro(ctx context.Context, c *rdmacm.Conn) error {
	wc, err := e.oneCompletion(ctx)
	if err != nil {
		return fmt.Errorf("the client's first datagram, which says its queue pair number: %w; UD repeats nothing, so try again", err)
	}
	if wc.Flags&roce.WCWithImm == 0 || wc.SrcQP != ib.QPN(wc.Imm) {
		return fmt.Errorf("the first datagram comes from queue pair %#x and says %#x: it is not one of perftest with -R", uint32(wc.SrcQP), wc.Imm)
	}
	ah, err := e.pd.CreateAHFromWC(&wc, e.at(e.remote(len(e.qps)), ib.GRHSize))
	e.to = append(e.to, datagramPeer{ah, wc.SrcQP, c.QKey()})
	return err
}

// intro tells the server our number, if that has to know it.
func (e *perfEndpoint) intro(ctx context.Context, c *rdmacm.Conn) error {
	to := datagramPeer{c.AH(), c.RemoteQPN(), c.QKey()}
	e.to = append(e.to, to)
	if !e.o.introduces() {
		return nil
	}
	err := c.QP().PostSend(roce.SendWR{
		Opcode: roce.WRSendWithImm, Flags: roce.Signaled, Imm: uint32(c.QP().Num()), SGE: []roce.SGE{e.mr.SGE(e.local(len(e.qps)), introLen)},
		AH: to.ah, RemoteQPN: to.qpn, QKey: to.qkey,
	})
	if err == nil {
		_, err = e.oneCompletion(ctx)
	}
	return err
}

// oneCompletion waits for the completion of the only request that is under way.
func (e *perfEndpoint) oneCompletion(ctx context.Context) (roce.WC, error) {
	var wcs [1]roce.WC
	if _, err := completions(ctx, e.cq, wcs[:], e.o.events); err != nil {
		return wcs[0], err
	}
	if wc := &wcs[0]; wc.Status != roce.WCSuccess {
		return *wc, &completionError{wc.ID, wc.Status}
	}
	return wcs[0], nil
}

// listenForQPs listens for the queue pairs of the test: over UD these have a port
// space of their own.
func (r *perfRun) listenForQPs(at string) (err error) {
	if r.cmQPs = r.cm; r.o.service == roce.UD {
		r.cmQPs, err = rdmacm.Listen(at, rdmacm.ListenConfig{PortSpace: r.o.space(), Device: r.ep.dev})
	}
	return err
}
