package roce_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// sharing is two devices with connections whose far ends share a receive queue.
type sharing struct {
	a, b *rocetest.Endpoint
	srq  *roce.SRQ
	qps  [][2]*roce.QP // at a, at b
}

func share(t *testing.T, conns int, o rocetest.Options, cfg roce.SRQConfig) *sharing {
	t.Helper()
	a, b := o.Pair(t)
	return shareBetween(t, conns, a, b, cfg)
}

func shareBetween(t *testing.T, conns int, a, b *rocetest.Endpoint, cfg roce.SRQConfig) *sharing {
	t.Helper()
	s := &sharing{a: a, b: b}
	var err error
	s.srq, err = s.b.PD.CreateSRQ(cfg)
	must(t, err)
	for range conns {
		qa, err := s.a.PD.CreateQP(roce.QPConfig{SendCQ: s.a.CQ})
		must(t, err)
		qb, err := s.b.PD.CreateQP(roce.QPConfig{SendCQ: s.b.CQ, SRQ: s.srq})
		must(t, err)
		for _, e := range []struct {
			q, p *roce.QP
			peer *rocetest.Endpoint
		}{{qa, qb, s.b}, {qb, qa, s.a}} {
			must(t, e.q.Connect(roce.Remote{Addr: e.peer.Dev.Addr(), QPN: e.p.Num(), PSN: e.p.PSN()}, roce.Conn{Access: roce.RemoteWrite}))
		}
		s.qps = append(s.qps, [2]*roce.QP{qa, qb})
	}
	return s
}

// next returns the next event of a type and complains of others, except
// communication established.
func next(t *testing.T, d *roce.Device, want roce.EventType) roce.AsyncEvent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		ev, err := d.NextEvent(ctx)
		if err != nil {
			t.Fatalf("waiting for the event %v: %v", want, err)
		}
		if ev.Type == want {
			return ev
		}
		if ev.Type != roce.EventCommEst {
			t.Fatalf("event %v, want %v", ev.Type, want)
		}
	}
}

// none says that no event is there.
func none(t *testing.T, d *roce.Device) {
	t.Helper()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		ev, err := d.NextEvent(over)
		if errors.Is(err, context.Canceled) {
			return
		}
		must(t, err)
		if ev.Type != roce.EventCommEst {
			t.Fatalf("event %v, want none", ev.Type)
		}
	}
}

// TestSRQOrder: queue pairs take receives in the order in which they were posted,
// whichever of them a message comes for, and complete them as their own (IBTA
// 10.2.9).
func TestSRQOrder(t *testing.T) {
	s := share(t, 3, rocetest.Options{}, roce.SRQConfig{MaxWR: 16, MaxSGE: 2})
	for i := range 9 {
		must(t, s.srq.PostRecv(roce.RecvWR{ID: uint64(i), SGE: []roce.SGE{s.b.MR.SGE(100*i, 50), s.b.MR.SGE(100*i+50, 50)}}))
	}
	for i := range 9 {
		q := s.qps[i*2%3]
		fill(s.a.MR.Bytes()[:80], i)
		must(t, q[0].PostSend(roce.SendWR{ID: 1, Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{s.a.MR.SGE(0, 80)}}))
		want(t, s.a.Next(t), 1, roce.WCSend, roce.WCSuccess)
		wc := s.b.Next(t)
		want(t, wc, uint64(i), roce.WCRecv, roce.WCSuccess)
		if wc.QPN != q[1].Num() || string(s.b.MR.Bytes()[100*i:][:80]) != string(s.a.MR.Bytes()[:80]) {
			t.Errorf("message %d: completed by %#x, want %#x, or wrong bytes", i, wc.QPN, q[1].Num())
		}
	}
}

// TestSRQEmpty: an empty shared queue makes peers wait, and they go on when a
// receive is posted to it (IBTA 9.7.5.2.8).
func TestSRQEmpty(t *testing.T) {
	s := share(t, 2, rocetest.Options{}, roce.SRQConfig{})
	for i, q := range s.qps {
		must(t, q[0].PostSend(roce.SendWR{ID: uint64(i), Opcode: roce.WRSend, Flags: roce.Signaled}))
	}
	for s.b.Dev.Counters()["send_rnr_err"] < 2 {
		time.Sleep(time.Millisecond)
	}
	must(t, s.srq.PostRecv(roce.RecvWR{ID: 10}, roce.RecvWR{ID: 11}))
	for range s.qps {
		if wc := s.a.Next(t); wc.Status != roce.WCSuccess {
			t.Errorf("send: %v", wc.Status)
		}
		if wc := s.b.Next(t); wc.Status != roce.WCSuccess {
			t.Errorf("receive: %v", wc.Status)
		}
	}
}

// TestSRQLimit: the event comes once, when fewer receives than the limit are left,
// and not again until the limit is armed anew (IBTA 10.2.9.2; Linux rxe_resp.c).
func TestSRQLimit(t *testing.T) {
	s := share(t, 1, rocetest.Options{}, roce.SRQConfig{MaxWR: 8, Limit: 3})
	for i := range 6 {
		must(t, s.srq.PostRecv(roce.RecvWR{ID: uint64(i)}))
	}
	send := func() {
		t.Helper()
		must(t, s.qps[0][0].PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled}))
		want(t, s.a.Next(t), 0, roce.WCSend, roce.WCSuccess)
		s.b.Next(t)
	}
	for range 3 { // 3 are left: not fewer than 3
		send()
	}
	none(t, s.b.Dev)
	send()
	if ev := next(t, s.b.Dev, roce.EventSRQLimit); ev.SRQ != s.srq || ev.QP != nil || ev.CQ != nil {
		t.Errorf("event %+v", ev)
	}
	if n := s.srq.Query().Limit; n != 0 {
		t.Errorf("limit %d after the event", n)
	}
	send()
	none(t, s.b.Dev)
	must(t, s.srq.Modify(roce.SRQAttr{Limit: 8}, roce.SRQLimit))
	none(t, s.b.Dev)
	send()
	next(t, s.b.Dev, roce.EventSRQLimit)
}

// TestSRQResize: what is posted stays, in order, and room grows and shrinks.
func TestSRQResize(t *testing.T) {
	s := share(t, 1, rocetest.Options{}, roce.SRQConfig{MaxWR: 4})
	post := func(from, to int) error {
		for i := from; i < to; i++ {
			if err := s.srq.PostRecv(roce.RecvWR{ID: uint64(i)}); err != nil {
				return err
			}
		}
		return nil
	}
	must(t, post(0, 4))
	if err := post(4, 5); !errors.Is(err, roce.ErrQueueFull) {
		t.Errorf("fifth request of four: %v", err)
	}
	must(t, s.srq.Modify(roce.SRQAttr{MaxWR: 100, Limit: 60}, roce.SRQMaxWR|roce.SRQLimit))
	if a := s.srq.Query(); a.MaxWR != 128 || a.Limit != 60 || a.MaxSGE != 4 {
		t.Errorf("attributes %+v", a)
	}
	must(t, post(4, 20))
	var ce *roce.ConfigError
	if err := s.srq.Modify(roce.SRQAttr{MaxWR: 19, Limit: 1}, roce.SRQMaxWR|roce.SRQLimit); !errors.As(err, &ce) || ce.Field != "MaxWR" {
		t.Errorf("smaller than what is posted: %v", err)
	}
	if a := s.srq.Query(); a.MaxWR != 128 || a.Limit != 60 {
		t.Errorf("a refused change has left %+v", a)
	}
	must(t, s.srq.Modify(roce.SRQAttr{MaxWR: 20}, roce.SRQMaxWR))
	if a := s.srq.Query(); a.MaxWR != 32 || a.Limit != 32 {
		t.Errorf("attributes %+v, want 32 and the limit within it", a)
	}
	for i := range 20 {
		must(t, s.qps[0][0].PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled}))
		want(t, s.b.Next(t), uint64(i), roce.WCRecv, roce.WCSuccess)
	}
}

// TestSRQError: a queue pair that ends leaves the receives to the others and tells
// that it takes no more (IBTA 10.2.9.3).
func TestSRQError(t *testing.T) {
	s := share(t, 2, rocetest.Options{}, roce.SRQConfig{})
	must(t, s.srq.PostRecv(roce.RecvWR{ID: 1}, roce.RecvWR{ID: 2}))
	must(t, s.qps[0][1].Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState))
	if ev := next(t, s.b.Dev, roce.EventQPLastWQE); ev.QP != s.qps[0][1] {
		t.Errorf("event of %#x", ev.QP.Num())
	}
	for id := range 2 {
		must(t, s.qps[1][0].PostSend(roce.SendWR{Opcode: roce.WRSend}))
		want(t, s.b.Next(t), uint64(id+1), roce.WCRecv, roce.WCSuccess)
	}
	none(t, s.b.Dev)
	var pe *roce.PostError
	if err := s.qps[1][1].PostRecv(roce.RecvWR{}); !errors.As(err, &pe) {
		t.Errorf("PostRecv on the queue pair: %v", err)
	}
	if _, c := s.qps[1][1].Query(); c.SRQ != s.srq || c.MaxRecvWR != 0 || c.Type != roce.RC || c.SendCQ != s.b.CQ || c.MaxSendWR != 128 {
		t.Errorf("queried %+v", c)
	}
}

// TestSRQBusy: a shared queue in use is not destroyed, and keeps its domain.
func TestSRQBusy(t *testing.T) {
	s := share(t, 1, rocetest.Options{}, roce.SRQConfig{})
	if err := s.srq.Destroy(); !errors.Is(err, roce.ErrBusy) {
		t.Errorf("Destroy in use: %v", err)
	}
	must(t, s.qps[0][1].Destroy())
	must(t, s.b.QP.Destroy())
	must(t, s.b.MR.Deregister())
	if err := s.b.PD.Dealloc(); !errors.Is(err, roce.ErrBusy) {
		t.Errorf("Dealloc with a shared queue: %v", err)
	}
	must(t, s.srq.PostRecv(roce.RecvWR{}))
	must(t, s.srq.Destroy())
	must(t, s.b.PD.Dealloc())
	if _, err := s.b.PD.CreateQP(roce.QPConfig{SendCQ: s.b.CQ, SRQ: s.srq}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("CreateQP on a destroyed queue: %v", err)
	}
	for name, err := range map[string]error{
		"Destroy": s.srq.Destroy(), "PostRecv": s.srq.PostRecv(roce.RecvWR{}), "Modify": s.srq.Modify(roce.SRQAttr{Limit: 1}, roce.SRQLimit),
	} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after Destroy: %v", name, err)
		}
	}
}

// TestSRQConfigErrors: a bad field is named.
func TestSRQConfigErrors(t *testing.T) {
	s := share(t, 0, rocetest.Options{}, roce.SRQConfig{MaxWR: 4, MaxSGE: 1})
	other, err := s.b.Dev.AllocPD()
	must(t, err)
	for _, c := range []struct {
		field string
		do    func() error
	}{
		{"MaxWR", func() error { _, err := s.b.PD.CreateSRQ(roce.SRQConfig{MaxWR: 1 << 20}); return err }},
		{"MaxSGE", func() error { _, err := s.b.PD.CreateSRQ(roce.SRQConfig{MaxSGE: 33}); return err }},
		{"Limit", func() error { _, err := s.b.PD.CreateSRQ(roce.SRQConfig{MaxWR: 4, Limit: 5}); return err }},
		{"Limit", func() error { return s.srq.Modify(roce.SRQAttr{Limit: -1}, roce.SRQLimit) }},
		{"MaxWR", func() error { return s.srq.Modify(roce.SRQAttr{}, roce.SRQMaxWR) }},
		{"mask", func() error { return s.srq.Modify(roce.SRQAttr{}, 4) }},
		{"SRQ", func() error { _, err := other.CreateQP(roce.QPConfig{SendCQ: s.b.CQ, SRQ: s.srq}); return err }},
		{"SRQ", func() error { _, err := s.a.PD.CreateQP(roce.QPConfig{SendCQ: s.a.CQ, SRQ: s.srq}); return err }},
	} {
		var ce *roce.ConfigError
		if err := c.do(); !errors.As(err, &ce) || ce.Field != c.field {
			t.Errorf("%v, want a ConfigError of %s", err, c.field)
		}
	}
	var pe *roce.PostError
	if err := s.srq.PostRecv(roce.RecvWR{}, roce.RecvWR{SGE: make([]roce.SGE, 2)}); !errors.As(err, &pe) || pe.Index != 1 || pe.Field != "SGE" {
		t.Errorf("too many segments: %v", err)
	}
}

// TestSRQConcurrent: several connections under loss receive from one queue while
// others post, arm and resize: every message is received once, none is lost or
// exchanged.
func TestSRQConcurrent(t *testing.T) {
	const conns, messages = 4, 200
	s := share(t, conns, rocetest.Options{
		Faults: &netio.FaultConfig{Seed: 7, Tx: netio.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01}},
	}, roce.SRQConfig{MaxWR: 64})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	slot := func(i uint64) []roce.SGE { return []roce.SGE{s.b.MR.SGE(int(i)*16, 16)} }
	for i := range uint64(48) {
		must(t, s.srq.PostRecv(roce.RecvWR{ID: i, SGE: slot(i)}))
	}
	for c, q := range s.qps { // senders: the number of the connection and of the message
		wg.Go(func() {
			for i := range messages {
				data := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(c)), uint32(i))
				sge := s.a.MR.SGE((c*messages+i)*8, 8)
				copy(s.a.MR.Bytes()[(c*messages+i)*8:], data)
				for {
					err := q[0].PostSend(roce.SendWR{ID: uint64(c), Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{sge}})
					if err == nil {
						break
					}
					if !errors.Is(err, roce.ErrQueueFull) {
						t.Error(err)
						return
					}
					time.Sleep(100 * time.Microsecond)
				}
			}
		})
	}
	wg.Go(func() {
		for n := 0; n < conns*messages; n++ {
			var wc [1]roce.WC
			if _, err := s.a.CQ.Wait(ctx, wc[:]); err != nil || wc[0].Status != roce.WCSuccess {
				t.Errorf("send %d: %v, %v", n, err, wc[0].Status)
				return
			}
		}
	})
	stop := make(chan struct{})
	var tinkering sync.WaitGroup
	tinkering.Go(func() { // resize and arm all the time
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Microsecond):
			}
			if err := s.srq.Modify(roce.SRQAttr{MaxWR: 64 << (i % 3), Limit: i % 64}, roce.SRQMaxWR|roce.SRQLimit); err != nil {
				t.Error(err)
			}
			s.srq.Query()
		}
	})
	wg.Go(func() { // the receiver checks the order of each connection
		byQPN := map[uint32]uint32{}
		for i, q := range s.qps {
			byQPN[uint32(q[1].Num())] = uint32(i)
		}
		var last [conns]uint32
		for n := 0; n < conns*messages; n++ {
			var wc [1]roce.WC
			if _, err := s.b.CQ.Wait(ctx, wc[:]); err != nil || wc[0].Status != roce.WCSuccess {
				t.Errorf("receive %d: %v, %v", n, err, wc[0].Status)
				return
			}
			b := s.b.MR.Bytes()[wc[0].ID*16:]
			c, i := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
			if c != byQPN[uint32(wc[0].QPN)] || i != last[c] {
				t.Errorf("message %d of connection %d, on the queue pair of %d, want message %d", i, c, byQPN[uint32(wc[0].QPN)], last[c])
				return
			}
			last[c]++
			if err := s.srq.PostRecv(roce.RecvWR{ID: wc[0].ID, SGE: slot(wc[0].ID)}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	wg.Wait()
	close(stop)
	tinkering.Wait()
}
