package rdmacm_test

import (
	"errors"
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// own is a queue pair that the test connects by itself.
type own struct {
	cq *roce.CQ
	qp *roce.QP
	mr *roce.MR
}

func newOwn(t testing.TB, d *roce.Device, typ roce.QPType) *own {
	t.Helper()
	pd, err := d.AllocPD()
	must(t, err)
	e := new(own)
	e.cq, err = d.CreateCQ(16)
	must(t, err)
	e.qp, err = pd.CreateQP(roce.QPConfig{Type: typ, SendCQ: e.cq})
	must(t, err)
	must(t, e.qp.Init(roce.RemoteWrite))
	e.mr, err = pd.RegisterMR(make([]byte, 16), roce.LocalWrite)
	must(t, err)
	return e
}

func (e *own) config(typ roce.QPType) rdmacm.Config {
	return rdmacm.Config{QPN: e.qp.Num(), QP: roce.QPConfig{Type: typ}}
}

// move brings the queue pair to RTR and RTS, as attr says.
func (e *own) move(t testing.TB, attr func(roce.State) (*roce.Attr, roce.AttrMask, error)) {
	t.Helper()
	for _, s := range []roce.State{roce.StateRTR, roce.StateRTS} {
		a, mask, err := attr(s)
		must(t, err)
		must(t, e.qp.Modify(a, mask))
	}
}

// greet sends a message to another one.
func (e *own) greet(t testing.TB, to *own) {
	t.Helper()
	must(t, to.qp.PostRecv(roce.RecvWR{ID: 1, SGE: []roce.SGE{to.mr.SGE(0, 16)}}))
	copy(e.mr.Bytes(), "hello")
	must(t, e.qp.PostSend(roce.SendWR{ID: 2, Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{e.mr.SGE(0, 5)}}))
	if wc := next(t, to.cq); wc.ID != 1 || wc.Status != roce.WCSuccess || string(to.mr.Bytes()[:wc.ByteLen]) != "hello" {
		t.Errorf("received %v, %q", wc.Status, to.mr.Bytes())
	}
	if wc := next(t, e.cq); wc.ID != 2 || wc.Status != roce.WCSuccess {
		t.Errorf("sent: %v", wc.Status)
	}
}

// keeps checks that the end of a connection has not changed the queue pair.
func (e *own) keeps(t testing.TB) {
	t.Helper()
	if s := e.qp.State(); s != roce.StateRTS {
		t.Errorf("queue pair %#x is in %v after the connection", e.qp.Num(), s)
	}
}

// TestOwnQP: both programs connect their queue pairs by themselves, the passive one
// before it answers (rdma_init_qp_attr, rdma_establish). Data goes both ways, and the
// end of the connection does not change the queue pairs.
func TestOwnQP(t *testing.T) {
	for _, typ := range []roce.QPType{roce.RC, roce.UC} {
		t.Run(typ.String(), func(t *testing.T) {
			a, b := pair(t)
			ends := [2]*own{newOwn(t, a, typ), newOwn(t, b, typ)}
			l := listen(t, b, rdmacm.TCP)
			served := make(chan *rdmacm.Conn, 1)
			go func() {
				defer close(served)
				r, err := l.Accept(ctx(t))
				if err != nil {
					t.Error(err)
					return
				}
				ends[1].move(t, r.Attr)
				c, err := r.Accept(ctx(t), ends[1].config(typ))
				if err != nil {
					t.Error(err)
					return
				}
				served <- c
			}()
			client, err := dial(t, a, l.Addr(), ends[0].config(typ))
			must(t, err)
			ends[0].move(t, client.Attr)
			must(t, client.Establish())
			if client.Establish() == nil {
				t.Error("a connection is established twice")
			}
			server := <-served
			if server == nil {
				t.FailNow()
			}
			if client.RemoteQPN() != ends[1].qp.Num() || server.RemoteQPN() != ends[0].qp.Num() {
				t.Errorf("connected to %v and %v", client.RemoteQPN(), server.RemoteQPN())
			}
			ends[0].greet(t, ends[1])
			ends[1].greet(t, ends[0])
			must(t, client.Shutdown(ctx(t)))
			ended(t, server)
			for _, e := range ends {
				e.keeps(t)
			}
		})
	}
}

// A program that does not go on after the answer has its peer told: whoever has
// accepted does not wait.
func TestOwnQPGivenUp(t *testing.T) {
	a, b := pair(t)
	mine := newOwn(t, a, roce.RC)
	l := listen(t, b, rdmacm.TCP)
	accepted := accept(t, l, rdmacm.Config{})
	client, err := dial(t, a, l.Addr(), mine.config(roce.RC))
	must(t, err)
	if _, _, err := client.Attr(roce.StateInit); err == nil {
		t.Error("attributes of a state that is not of the connection's making")
	}
	must(t, client.Shutdown(ctx(t)))
	var rejected *rdmacm.RejectedError
	if r := <-accepted; !errors.As(r.err, &rejected) {
		t.Errorf("%v, want a rejection", r.err)
	}
	if client.Establish() == nil {
		t.Error("a connection that was given up is established")
	}
}

// The peer of a program that connects by itself notices nothing: its confirmation may
// be lost, if the program says that data have come (rdma_notify).
func TestOwnQPNotify(t *testing.T) {
	a, b := pair(t)
	mine, theirs := newOwn(t, a, roce.RC), newOwn(t, b, roce.RC)
	l := listen(t, b, rdmacm.TCP)
	served := make(chan result, 1)
	answered := make(chan *rdmacm.Conn, 1)
	go func() {
		r, err := l.Accept(ctx(t))
		if err != nil {
			served <- result{err: err}
			return
		}
		c, err := r.Answer(theirs.config(roce.RC))
		answered <- c
		if err == nil {
			err = c.Wait(ctx(t))
		}
		served <- result{c: c, err: err}
	}()
	client, err := dial(t, a, l.Addr(), mine.config(roce.RC))
	must(t, err)
	(<-answered).Notify() // the client confirms nothing
	r := <-served
	must(t, r.err)
	r.c.Close()
	client.Close()
}
