package rnet

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
)

// cable is the link of one end of a connection made by hand.
type cable struct {
	*cut
	qp *roce.QP
}

type cut struct {
	once sync.Once
	done chan struct{}
}

func (l *cut) Disconnect(context.Context, []byte) error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *cut) Done() <-chan struct{} { return l.done }

func (l cable) Shutdown(ctx context.Context) error {
	return errors.Join(l.Disconnect(ctx, nil), l.qp.Destroy())
}

// connect returns the two ends of a connection made by hand between two devices.
func connect(a, b *roce.Device, cfg Config) (ends [2]*Conn, err error) {
	err = cfg.fill()
	devs := [2]*roce.Device{a, b}
	var qps [2]*roce.QP
	for i := range ends {
		if err == nil {
			ends[i], err = newConn(devs[i], func() {}, cfg)
		}
		if err == nil {
			qps[i], err = ends[i].pd.CreateQP(ends[i].qpConfig())
		}
	}
	if err != nil {
		return ends, err
	}
	for i, c := range ends {
		peer := qps[1-i]
		err = errors.Join(qps[i].Init(roce.RemoteWrite), c.s.prepare(qps[i]),
			qps[i].RTR(roce.Remote{Addr: devs[1-i].Addr(), QPN: peer.Num(), PSN: peer.PSN()}, roce.Conn{}), qps[i].RTS(roce.Conn{}), err)
	}
	both := &cut{done: make(chan struct{})}
	for i, c := range ends {
		d := ends[1-i].s.local()
		told, err := parseConnData(d.append(nil))
		if err != nil {
			return ends, err
		}
		c.start(cable{both, qps[i]}, told, addrOf(devs[i]), addrOf(devs[1-i]))
	}
	return ends, err
}

func addrOf(d *roce.Device) net.Addr { return &net.IPAddr{IP: d.Addr().AsSlice()} }

// pair returns the two ends of a connection made by hand, which are closed, and seen
// to end, when the test is over.
func pair(t *testing.T, o rocetest.Options, cfg Config) (a, b *Conn) {
	t.Helper()
	x, y := o.Pair(t)
	ends, err := connect(x.Dev, y.Dev, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, ends[:]...) })
	return ends[0], ends[1]
}

// shut closes connections and waits until nothing is left of them.
func shut(t *testing.T, ends ...*Conn) {
	for _, c := range ends {
		c.Close()
	}
	for _, c := range ends {
		select {
		case <-c.ended:
		case <-time.After(10 * time.Second):
			t.Error("the connection has not ended 10 s after Close")
		}
	}
}
