package rdmacm_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rdmacm"
)

// receiving returns a Prepare that posts a receive of 100 bytes behind the 40.
func receiving(t testing.TB, mr **roce.MR) func(*rdmacm.Conn) error {
	return func(c *rdmacm.Conn) error {
		*mr = memory(t, c, 200)
		return c.QP().PostRecv(roce.RecvWR{SGE: []roce.SGE{(*mr).SGE(0, 140)}})
	}
}

// datagram sends one over a connection of port space UDP.
func datagram(t testing.TB, c *rdmacm.Conn, to *roce.AH, qpn ib.QPN, text string) {
	t.Helper()
	must(t, c.QP().PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Inline, Data: []byte(text), AH: to, RemoteQPN: qpn, QKey: c.QKey()}))
}

// TestDatagrams: a client learns the server's queue pair, Q_Key and private data, and
// has its address handle; the server answers by that of the client.
func TestDatagrams(t *testing.T) {
	for _, addrs := range [][]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
		devs := devices(t, netio.Faults{}, addrs...)
		inline := roce.QPConfig{MaxInline: 64}
		var fromServer, fromClient *roce.MR
		client, server := connect(t, devs[0], devs[1],
			rdmacm.Config{PortSpace: rdmacm.UDP, QP: inline, PrivateData: []byte("question"), Prepare: receiving(t, &fromServer)},
			rdmacm.Config{QP: inline, PrivateData: []byte("answer"), Prepare: receiving(t, &fromClient)})
		if !padded(client.PrivateData(), "answer") || !padded(server.PrivateData(), "question") {
			t.Errorf("private data %q and %q", client.PrivateData(), server.PrivateData())
		}
		if client.RemoteQPN() != server.QP().Num() || client.QKey() != rdmacm.UDPQKey || server.RemoteAddr() != client.LocalAddr() {
			t.Errorf("queue pair %#x, Q_Key %#x, address %v", client.RemoteQPN(), client.QKey(), server.RemoteAddr())
		}
		datagram(t, client, client.AH(), client.RemoteQPN(), "hello")
		wc := next(t, server.CQ())
		if wc.SrcQP != client.QP().Num() || string(fromClient.Bytes()[40:wc.ByteLen]) != "hello" {
			t.Fatalf("the server gets %+v", wc)
		}
		datagram(t, server, server.AH(), wc.SrcQP, "hello yourself")
		wc = next(t, client.CQ())
		if string(fromServer.Bytes()[40:wc.ByteLen]) != "hello yourself" {
			t.Errorf("the client gets %+v", wc)
		}
		must(t, client.Disconnect(ctx(t), nil))
		must(t, client.Shutdown(ctx(t)))
		must(t, server.Shutdown(ctx(t)))
	}
}

// TestDatagramsShared: one queue pair serves all clients, and asks by itself.
func TestDatagramsShared(t *testing.T) {
	a, b := pair(t)
	pd, err := b.AllocPD()
	must(t, err)
	cq, err := b.CreateCQ(16)
	must(t, err)
	qp, err := pd.CreateQP(roce.QPConfig{Type: roce.UD, SendCQ: cq})
	must(t, err)
	must(t, qp.Activate(77))
	for range 3 {
		client, server := connect(t, a, b, rdmacm.Config{PortSpace: rdmacm.UDP}, rdmacm.Config{UseQP: qp, PD: pd, QKey: 77})
		if client.RemoteQPN() != qp.Num() || client.QKey() != 77 {
			t.Errorf("queue pair %#x with Q_Key %d", client.RemoteQPN(), client.QKey())
		}
		must(t, server.Shutdown(ctx(t)))
		must(t, client.Shutdown(ctx(t)))
	}
	if qp.State() != roce.StateRTS {
		t.Errorf("the shared queue pair is in %v", qp.State())
	}
	must(t, qp.Destroy())
	must(t, pd.Dealloc())
	var bad *roce.ConfigError
	if _, err := dial(t, b, addrPort("10.0.0.1"), rdmacm.Config{PortSpace: rdmacm.UDP, UseQP: qp}); !errors.As(err, &bad) || bad.Field != "PD" {
		t.Errorf("UseQP without PD: %v", err)
	}
}

// TestDatagramsRejected: the server's refusal comes with its private data.
func TestDatagramsRejected(t *testing.T) {
	a, b := pair(t)
	l := listen(t, b, rdmacm.UDP)
	go func() {
		if r, err := l.Accept(ctx(t)); err == nil {
			r.Reject([]byte("closed today"))
		}
	}()
	var rejected *rdmacm.RejectedError
	if _, err := dial(t, a, l.Addr(), rdmacm.Config{PortSpace: rdmacm.UDP}); !errors.As(err, &rejected) || !padded(rejected.PrivateData, "closed today") {
		t.Errorf("%v", err)
	}
}

// TestMulticast: who has joined gets what is sent to the group, until Close.
func TestMulticast(t *testing.T) {
	for _, tt := range []struct{ a, b, group string }{{"10.0.0.1", "10.0.0.2", "239.1.2.3"}, {"fd00::1", "fd00::2", "ff15::77"}} {
		devs := devices(t, netio.Faults{}, tt.a, tt.b)
		group := netip.MustParseAddr(tt.group)
		var mr *roce.MR
		events := make(chan rdmacm.Event, 1)
		from, err := rdmacm.JoinMulticast(group, rdmacm.Config{Device: devs[0], QP: roce.QPConfig{MaxInline: 64}})
		must(t, err)
		to, err := rdmacm.JoinMulticast(group, rdmacm.Config{Device: devs[1], Prepare: receiving(t, &mr), Events: events})
		must(t, err)
		if ev := <-events; ev.Type != rdmacm.EventMulticastJoin || to.RemoteAddr().Addr() != group || to.QKey() != rdmacm.UDPQKey {
			t.Errorf("event %v, group %v, Q_Key %#x", ev.Type, to.RemoteAddr(), to.QKey())
		}
		datagram(t, from, from.AH(), from.RemoteQPN(), "hello, all")
		if wc := next(t, to.CQ()); string(mr.Bytes()[40:wc.ByteLen]) != "hello, all" || wc.SrcQP != from.QP().Num() {
			t.Errorf("received %+v", wc)
		}
		must(t, to.Shutdown(ctx(t)))
		before := devs[1].Counters()["drop_unknown_qp"]
		datagram(t, from, from.AH(), from.RemoteQPN(), "anybody?")
		if n := devs[1].Counters()["rcvd_pkts"]; n != 1 || before != 0 {
			t.Errorf("after Close %d packets have come", n)
		}
		must(t, from.Shutdown(ctx(t)))
	}
	var bad *roce.ConfigError
	if _, err := rdmacm.JoinMulticast(netip.MustParseAddr("10.0.0.3"), rdmacm.Config{}); !errors.As(err, &bad) || bad.Field != "group" {
		t.Errorf("a host as group: %v", err)
	}
}
