package transport

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/goroce/goroce/ib"
)

// Each reason for which Receive drops a packet has its counter, and a dropped
// packet changes nothing (IBTA 9.6.1, 10.3.1).
func TestReceiveChecks(t *testing.T) {
	ack := func(w *reqWorld) *Inbound { return w.packet([]string{"ACK", "0"}) }
	with := func(op ib.Opcode, set func(b []byte)) func(w *reqWorld) *Inbound {
		return func(w *reqWorld) *Inbound {
			info := op.Info()
			n := info.HeaderLen + info.PayloadLen + ib.ICRCSize
			b := make([]byte, n)
			ib.BTH{Opcode: op, PKey: ib.DefaultPKey, DestQP: w.cfg.Num, PSN: w.base}.Put(b)
			if set != nil {
				set(b)
			}
			p, bad := ib.Parse(b)
			if bad != ib.OK {
				t.Fatal(bad)
			}
			return &Inbound{Packet: p, Src: reqPeer}
		}
	}
	pkey := func(k uint16) func(b []byte) {
		return func(b []byte) { b[2], b[3] = byte(k>>8), byte(k) }
	}
	from := func(src string) func(w *reqWorld) *Inbound {
		return func(w *reqWorld) *Inbound {
			in := ack(w)
			in.Src = netip.MustParseAddr(src)
			return in
		}
	}
	cases := []struct {
		name  string
		state State
		in    func(w *reqWorld) *Inbound
		count Counter
	}{
		{"RESET takes nothing", Reset, ack, DropState},
		{"INIT takes nothing", Init, ack, DropState},
		{"INIT takes no requests", Init, with(ib.OpRCSendOnly, nil), DropState},
		{"ERR takes no requests", Err, with(ib.OpRCSendOnly, nil), DropState},
		{"ERR takes nothing", Err, ack, DropState},
		{"RTR takes no responses", RTR, ack, DropState},
		{"SQE takes no responses", SQE, ack, DropState},
		{"not from the peer", RTS, from("192.0.2.3"), DropSource},
		{"not from the peer's family", RTS, from("2001:db8::1"), DropSource},
		{"another partition", RTS, with(ib.OpRCAck, pkey(0x8001)), DropPKey},
		{"partition 0", RTS, with(ib.OpRCAck, pkey(0x8000)), DropPKey},
		{"UC", RTS, with(ib.OpUCSendOnly, nil), DropTransport},
		{"UD", RTS, with(ib.OpUDSendOnly, nil), DropTransport},
		{"XRC", RTS, with(0xa0|ib.OpRCAck, nil), DropTransport},
		{"CNP without congestion control", RTS, with(ib.OpCNP, nil), RPCNPIgnored},
		{"ATOMIC ACKNOWLEDGE without atomics", RTS, with(ib.OpRCAtomicAck, nil), DropBadResponse},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newReqWorld(t, 77)
			w.run("post 1 SEND 1\n> SEND_ONLY 0 1 ack")
			w.q.become(c.state)
			w.q.Receive(0, c.in(w))
			if got := w.take(); len(got) != 0 {
				t.Errorf("brought %q", got)
			}
			for k := range NumCounters {
				want := uint64(0)
				if k == c.count || k == RcvdPkts {
					want = 1
				}
				if k != SentPkts && w.counts.Load(k) != want {
					t.Errorf("%v is %d, want %d", k, w.counts.Load(k), want)
				}
			}
		})
	}
	t.Run("an IPv4 source may be mapped, a limited member may send", func(t *testing.T) {
		w := newReqWorld(t, 77)
		w.run("post 1 SEND 1\n> SEND_ONLY 0 1 ack")
		in := with(ib.OpRCAck, pkey(0x7fff))(w)
		in.Src = netip.AddrFrom16(reqPeer.As16())
		in.CE = true
		w.q.Receive(0, in)
		if got := w.take(); len(got) != 1 || got[0] != "wc 1 SEND ok" {
			t.Errorf("brought %q", got)
		}
		if w.counts.Load(NPECNMarked) != 1 {
			t.Error("the CE mark was not counted")
		}
	})
}

// Destroy completes nothing (ibv_destroy_qp(3)) and leaves nothing to do.
func TestDestroy(t *testing.T) {
	w := newReqWorld(t, 77)
	w.run("post 1 SEND 1\npost 2 READ 1\n> SEND_ONLY 0 1 ack\n> READ 1 va=0 len=1 ack")
	w.q.Destroy()
	if got := w.take(); len(got) != 0 || w.q.Wants() != 0 || w.q.Deadline() != Never || w.q.State() != Reset {
		t.Errorf("%q, wants %v, deadline %v, state %v", got, w.q.Wants(), w.q.Deadline(), w.q.State())
	}
	w.run("< ACK 0\nat 1h\nat never\nkick\nstate RESET\ncount drop_qp_state 1\ncount local_ack_timeout_err 0")
}

// Requests and READ responses take turns (the engine gives a queue pair one run
// at a time).
func TestTransmitTurns(t *testing.T) {
	p := newPair(t, 3, ib.MTU256, 0)
	a, b := p.end[0], p.end[1]
	b.post(WRRead, 700, Signaled)
	b.transmit()
	for len(p.air) > 0 {
		p.step() // a has to answer the READ
	}
	a.post(WRWrite, 700, Signaled)
	var kinds []ib.OpKind
	for range 6 {
		a.q.Transmit(p.now, &a.out, 1)
	}
	for _, pkt := range a.out.sent {
		in, _ := ib.Parse(pkt)
		kinds = append(kinds, in.Info().Op)
	}
	r, w := ib.KindReadResponse, ib.KindWrite
	if !slices.Equal(kinds, []ib.OpKind{r, w, r, w, r, w}) && !slices.Equal(kinds, []ib.OpKind{w, r, w, r, w, r}) {
		t.Errorf("order %v", kinds)
	}
}

// A queue pair fails once: the second error brings no second event (IBTA
// 11.6.3) and changes nothing.
func TestFailOnce(t *testing.T) {
	w := newReqWorld(t, 77)
	w.run("post 1 SEND 1\n> SEND_ONLY 0 1 ack")
	w.q.fail(0, EventQPAccessErr)
	w.q.fail(0, EventQPReqErr)
	if got := w.take(); !slices.Equal(got, []string{"wc 1 Work Request Flushed Error", "event " + EventQPAccessErr.String()}) {
		t.Errorf("brought %q", got)
	}
}
