package rdmacm_test

import (
	"errors"
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// TestUseQP: queue pairs of the program's are connected as new ones are, and stay its
// own: what comes of the connection does not change them.
func TestUseQP(t *testing.T) {
	for _, typ := range []roce.QPType{roce.RC, roce.UC} {
		t.Run(typ.String(), func(t *testing.T) {
			a, b := pair(t)
			ends := [2]*own{newOwn(t, a, typ), newOwn(t, b, typ)}
			client, server := connect(t, a, b, rdmacm.Config{UseQP: ends[0].qp}, rdmacm.Config{UseQP: ends[1].qp})
			if client.QP() != ends[0].qp || client.RemoteQPN() != ends[1].qp.Num() {
				t.Errorf("connected to %#x, want %#x", client.RemoteQPN(), ends[1].qp.Num())
			}
			ends[0].greet(t, ends[1])
			must(t, client.Shutdown(ctx(t)))
			ended(t, server)
			for _, e := range ends {
				e.keeps(t)
			}
		})
	}
}

// A queue pair of another service than the port space's is refused.
func TestUseQPWrong(t *testing.T) {
	a, _ := pair(t)
	pd, err := a.AllocPD()
	must(t, err)
	cq, err := a.CreateCQ(16)
	must(t, err)
	qp, err := pd.CreateQP(roce.QPConfig{Type: roce.UD, SendCQ: cq})
	must(t, err)
	_, err = dial(t, a, addrPort("10.0.0.2"), rdmacm.Config{UseQP: qp})
	var bad *roce.ConfigError
	if !errors.As(err, &bad) || bad.Field != "QP.Type" {
		t.Errorf("%v, want a refusal of QP.Type", err)
	}
}

// A program that has accepted may send as soon as it has received, whether the
// connection manager has heard of the confirmation or not.
func TestUseQPEarly(t *testing.T) {
	a, b := pair(t)
	e := newOwn(t, b, roce.RC)
	l := listen(t, b, rdmacm.TCP)
	dialed := make(chan result, 1)
	go func() {
		c, err := dial(t, a, l.Addr(), rdmacm.Config{})
		dialed <- result{c: c, err: err}
	}()
	r, err := l.Accept(ctx(t))
	must(t, err)
	c, err := r.Answer(rdmacm.Config{UseQP: e.qp})
	must(t, err)
	if s := e.qp.State(); s != roce.StateRTS {
		t.Errorf("the queue pair is in %v when the request is answered", s)
	}
	must(t, c.Wait(ctx(t)))
	client := <-dialed
	must(t, client.err)
	client.c.Close()
	c.Close()
}
