package roce_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// watched is a pair of manual devices; b's queue pair receives on cq, which tells
// ch of completions.
type watched struct {
	t    *testing.T
	now  time.Duration
	a, b *rocetest.Endpoint
	ch   *roce.CompChannel
	cq   *roce.CQ
	qa   *roce.QP
	qb   *roce.QP
	next time.Duration // when b's device wants to run
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	fabric := netio.NewFabric()
	open := func(addr string) *rocetest.Endpoint {
		return rocetest.New(t, openManual(t, fabricPort(t, fabric, addr)), rocetest.Options{})
	}
	w := &watched{t: t, now: time.Second, a: open("10.0.0.1"), b: open("10.0.0.2")}
	var err error
	w.ch, err = w.b.Dev.CreateCompChannel()
	must(t, err)
	w.cq, err = w.b.Dev.CreateCQ(64, roce.OnChannel(w.ch))
	must(t, err)
	w.qa = w.a.QP
	w.qb, err = w.b.PD.CreateQP(roce.QPConfig{SendCQ: w.b.CQ, RecvCQ: w.cq})
	must(t, err)
	must(t, w.qa.Connect(roce.Remote{Addr: w.b.Dev.Addr(), QPN: w.qb.Num(), PSN: w.qb.PSN()}, roce.Conn{}))
	must(t, w.qb.Connect(roce.Remote{Addr: w.a.Dev.Addr(), QPN: w.qa.Num(), PSN: w.qa.PSN()}, roce.Conn{}))
	w.progress()
	return w
}

// progress lets both devices work until nothing happens any more.
func (w *watched) progress() {
	for range 4 {
		settle(w.a.Dev, w.now)
		w.next = settle(w.b.Dev, w.now)
	}
}

// send sends an empty message with more flags.
func (w *watched) send(flags roce.SendFlags) {
	w.t.Helper()
	must(w.t, w.qb.PostRecv(roce.RecvWR{}))
	must(w.t, w.qa.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: flags}))
	w.progress()
}

// events returns how many events the channel has, and acknowledges them.
func (w *watched) events() (n int) {
	w.t.Helper()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		cq, err := w.ch.GetEvent(over)
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				w.t.Fatal(err)
			}
			return n
		}
		if cq != w.cq {
			w.t.Fatal("event of another queue")
		}
		must(w.t, cq.AckEvents(1))
		n++
	}
}

func (w *watched) want(what string, n int) {
	w.t.Helper()
	if got := w.events(); got != n {
		w.t.Errorf("%s: %d events, want %d", what, got, n)
	}
}

// TestReqNotify: one event for each time a queue is armed, at the next completion
// that counts (IBTA 11.4.2.2; ibv_req_notify_cq).
func TestReqNotify(t *testing.T) {
	w := newWatched(t)
	w.send(0)
	w.want("not armed", 0)
	must(t, w.cq.ReqNotify(false))
	w.want("armed with a completion in the queue", 0)
	w.send(0)
	w.send(0)
	w.want("armed once, two completions", 1)
	w.send(roce.Solicited)
	w.want("not armed again", 0)

	must(t, w.cq.ReqNotify(true))
	w.send(0)
	w.want("solicited only, not solicited", 0)
	w.send(roce.Solicited)
	w.want("solicited only, solicited", 1)

	must(t, w.cq.ReqNotify(true))
	must(t, w.cq.ReqNotify(false))
	w.send(0)
	w.want("any replaces solicited", 1)
	must(t, w.cq.ReqNotify(false))
	must(t, w.cq.ReqNotify(true))
	w.send(0)
	w.want("solicited does not replace any", 1)

	must(t, w.cq.ReqNotify(true))
	must(t, w.qb.PostRecv(roce.RecvWR{}))
	must(t, w.qb.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState))
	w.want("solicited only, an error", 1)
}

// TestSolicitedSends: a send completes without being solicited, whatever its flags
// ask of the other side.
func TestSolicitedSends(t *testing.T) {
	w := newWatched(t)
	ch, err := w.a.Dev.CreateCompChannel()
	must(t, err)
	cq, err := w.a.Dev.CreateCQ(8, roce.OnChannel(ch))
	must(t, err)
	q, err := w.a.PD.CreateQP(roce.QPConfig{SendCQ: cq})
	must(t, err)
	must(t, w.qb.Modify(&roce.Attr{State: roce.StateReset}, roce.MaskState))
	must(t, w.qb.Connect(roce.Remote{Addr: w.a.Dev.Addr(), QPN: q.Num(), PSN: q.PSN()}, roce.Conn{}))
	must(t, q.Connect(roce.Remote{Addr: w.b.Dev.Addr(), QPN: w.qb.Num(), PSN: w.qb.PSN()}, roce.Conn{}))
	must(t, cq.ReqNotify(true))
	w.qa = q
	w.send(roce.Solicited | roce.Signaled)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := ch.GetEvent(over); !errors.Is(err, context.Canceled) {
		t.Errorf("a send raised a solicited event: %v", err)
	}
	if n, err := cq.Poll(make([]roce.WC, 1)); n != 1 || err != nil {
		t.Errorf("the send did not complete: %d, %v", n, err)
	}
}

// TestModerate: an event waits for so many completions or so long, in the time of
// the device (ibv_modify_cq).
func TestModerate(t *testing.T) {
	w := newWatched(t)
	must(t, w.cq.Moderate(3, time.Millisecond))
	must(t, w.cq.ReqNotify(false))
	w.send(0)
	w.send(0)
	w.want("two of three", 0)
	if w.next != w.now+time.Millisecond {
		t.Errorf("the device wants to run in %v, want 1ms", w.next-w.now)
	}
	w.send(0)
	w.want("three of three", 1)

	must(t, w.cq.ReqNotify(false))
	w.now += 100 * time.Millisecond
	w.send(0)
	w.now += time.Millisecond - 1
	w.progress()
	w.want("before the period ends", 0)
	w.now++
	w.progress()
	w.want("at its end", 1)
	w.now += time.Second
	w.progress()
	w.want("later", 0)
	if w.next < w.now+time.Minute {
		t.Errorf("the device wants to run in %v although nothing is due", w.next-w.now)
	}

	must(t, w.cq.ReqNotify(true))
	w.send(0)
	w.send(roce.Solicited)
	w.send(0)
	w.send(roce.Solicited)
	w.want("two solicited ones of three", 0)
	must(t, w.cq.Moderate(2, time.Millisecond))
	w.want("two are enough now", 1)
	must(t, w.cq.Moderate(0, 0))
	must(t, w.cq.ReqNotify(false))
	w.send(0)
	w.want("no moderation", 1)
}

// TestModerateClose: an event that waits for more is raised when the device is
// closed.
func TestModerateClose(t *testing.T) {
	w := newWatched(t)
	must(t, w.cq.Moderate(10, time.Millisecond))
	must(t, w.cq.ReqNotify(false))
	w.send(0)
	must(t, w.b.Dev.Close())
	cq, err := w.ch.GetEvent(context.Background())
	if cq != w.cq || err != nil {
		t.Errorf("event %v, %v", cq, err)
	}
	if _, err := w.ch.GetEvent(context.Background()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second event: %v", err)
	}
}

// TestOverflowNotifies: who waits for an event learns that the queue has overflowed.
func TestOverflowNotifies(t *testing.T) {
	w := newWatched(t)
	for range 64 {
		w.send(0)
	}
	must(t, w.cq.ReqNotify(true))
	w.send(0)
	w.want("overflow", 1)
	if err := w.cq.ReqNotify(false); !errors.Is(err, roce.ErrCQOverflow) {
		t.Errorf("ReqNotify: %v", err)
	}
}

// TestChannelBusy: what is used is not destroyed: a channel with queues, a queue
// with events that were fetched and not acknowledged (ibv_destroy_cq).
func TestChannelBusy(t *testing.T) {
	w := newWatched(t)
	for range 2 {
		must(t, w.cq.ReqNotify(false))
		w.send(0)
	}
	cq, err := w.ch.GetEvent(context.Background())
	must(t, err)
	must(t, w.qb.Destroy())
	if err := cq.Destroy(); !errors.Is(err, roce.ErrBusy) {
		t.Errorf("Destroy with an event fetched: %v", err)
	}
	if err := w.ch.Destroy(); !errors.Is(err, roce.ErrBusy) {
		t.Errorf("Destroy of the channel in use: %v", err)
	}
	var ce *roce.ConfigError
	if err := cq.AckEvents(3); !errors.As(err, &ce) {
		t.Errorf("AckEvents of more than there were: %v", err)
	}
	must(t, cq.AckEvents(1))
	must(t, cq.Destroy()) // the other event was never fetched
	w.want("destroyed", 0)
	if err := cq.Destroy(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Destroy: %v", err)
	}
	for name, err := range map[string]error{"ReqNotify": cq.ReqNotify(false), "Moderate": cq.Moderate(0, 0), "Resize": cq.Resize(9)} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after Destroy: %v", name, err)
		}
	}
	must(t, w.ch.Destroy())
	if _, err := w.ch.GetEvent(context.Background()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("GetEvent after Destroy: %v", err)
	}
	if _, err := w.b.Dev.CreateCQ(1, roce.OnChannel(w.ch)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("CreateCQ on a destroyed channel: %v", err)
	}
}

// TestChannelErrors: a bad argument is named.
func TestChannelErrors(t *testing.T) {
	w := newWatched(t)
	for _, c := range []struct {
		field string
		err   error
	}{
		{"OnChannel", w.b.CQ.ReqNotify(false)},
		{"count", w.cq.Moderate(-1, 0)},
		{"count", w.cq.Moderate(1<<16, time.Millisecond)},
		{"period", w.cq.Moderate(2, 0)},
		{"period", w.cq.Moderate(2, time.Second)},
		{"cqe", w.cq.Resize(0)},
		{"cqe", w.cq.Resize(1 << 23)},
		{"OnChannel", func() error { _, err := w.a.Dev.CreateCQ(1, roce.OnChannel(w.ch)); return err }()},
	} {
		var ce *roce.ConfigError
		if !errors.As(c.err, &ce) || ce.Field != c.field {
			t.Errorf("%v, want a ConfigError of %s", c.err, c.field)
		}
	}
}

// TestCQResize: completions stay, in order, across any change of size.
func TestCQResize(t *testing.T) {
	w := newWatched(t)
	recv, polled := uint64(0), uint64(0)
	fill := func(n int) {
		for range n {
			recv++
			must(t, w.qb.PostRecv(roce.RecvWR{ID: recv}))
			must(t, w.qa.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled}))
			w.progress()
			w.a.CQ.Poll(make([]roce.WC, 4))
		}
	}
	drain := func(n int) {
		t.Helper()
		wc := make([]roce.WC, n)
		if k, err := w.cq.Poll(wc); k != n || err != nil {
			t.Fatalf("polled %d, %v, want %d", k, err, n)
		}
		for _, c := range wc {
			if polled++; c.ID != polled {
				t.Fatalf("completion %d, want %d", c.ID, polled)
			}
		}
	}
	fill(60)
	drain(50)
	fill(40) // around the end of the ring
	if err := w.cq.Resize(49); err == nil {
		t.Error("resized below what the queue holds")
	}
	must(t, w.cq.Resize(50))
	if n := w.cq.Cap(); n != 64 {
		t.Errorf("room for %d, want 64", n)
	}
	must(t, w.cq.Resize(200))
	fill(100)
	drain(140)
	must(t, w.cq.Resize(10))
	if n := w.cq.Cap(); n != 16 {
		t.Errorf("room for %d, want 16", n)
	}
	fill(6)
	drain(16)
}

// TestChannelConcurrent: a server sleeps on one channel with a queue for each
// connection, in the way of the manual (arm, poll, wait), while queues are resized
// and moderated: no completion is slept through.
func TestChannelConcurrent(t *testing.T) {
	const conns, messages = 4, 300
	a, b := rocetest.Pair(t)
	ch, err := b.Dev.CreateCompChannel()
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	cqs := map[*roce.CQ]*roce.QP{}
	for range conns {
		cq, err := b.Dev.CreateCQ(64, roce.OnChannel(ch))
		must(t, err)
		acq, err := a.Dev.CreateCQ(64)
		must(t, err)
		qa, err := a.PD.CreateQP(roce.QPConfig{SendCQ: acq})
		must(t, err)
		qb, err := b.PD.CreateQP(roce.QPConfig{SendCQ: cq})
		must(t, err)
		must(t, qa.Connect(roce.Remote{Addr: b.Dev.Addr(), QPN: qb.Num(), PSN: qb.PSN()}, roce.Conn{}))
		must(t, qb.Connect(roce.Remote{Addr: a.Dev.Addr(), QPN: qa.Num(), PSN: qa.PSN()}, roce.Conn{}))
		for range 16 {
			must(t, qb.PostRecv(roce.RecvWR{}))
		}
		cqs[cq] = qb
		must(t, cq.ReqNotify(false))
		wg.Go(func() {
			var wc [1]roce.WC
			for i := range messages {
				if err := qa.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled}); err != nil {
					t.Error(err)
					return
				}
				if i%8 == 7 { // in bursts
					for range 8 {
						if _, err := acq.Wait(ctx, wc[:]); err != nil || wc[0].Status != roce.WCSuccess {
							t.Errorf("send: %v, %v", err, wc[0].Status)
							return
						}
					}
				}
			}
		})
	}
	stop := make(chan struct{})
	var tinkering sync.WaitGroup
	tinkering.Go(func() {
		for i := 0; ; i++ {
			for cq := range cqs {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Microsecond):
				}
				if err := errors.Join(cq.Resize(64<<(i%3)), cq.Moderate(i%4, 500*time.Microsecond)); err != nil {
					t.Error(err)
				}
			}
		}
	})
	got := 0
	for got < conns*messages {
		cq, err := ch.GetEvent(ctx)
		if err != nil {
			t.Fatalf("after %d messages: %v", got, err)
		}
		must(t, cq.AckEvents(1))
		must(t, cq.ReqNotify(false))
		var wc [8]roce.WC
		for {
			n, err := cq.Poll(wc[:])
			must(t, err)
			if n == 0 {
				break
			}
			for _, c := range wc[:n] {
				if c.Status != roce.WCSuccess {
					t.Fatalf("receive: %v", c.Status)
				}
				must(t, cqs[cq].PostRecv(roce.RecvWR{}))
			}
			got += n
		}
	}
	wg.Wait()
	close(stop)
	tinkering.Wait()
}

// TestEventsNoAllocations: arming, raising and fetching an event allocates nothing.
func TestEventsNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	a, b := udpPair(t, roce.Config{}, rocetest.Options{})
	ch, err := b.Dev.CreateCompChannel()
	must(t, err)
	if _, err := ch.FD(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Fatal(err)
	}
	cq, err := b.Dev.CreateCQ(16, roce.OnChannel(ch))
	must(t, err)
	qa, err := a.PD.CreateQP(roce.QPConfig{SendCQ: a.CQ})
	must(t, err)
	qb, err := b.PD.CreateQP(roce.QPConfig{SendCQ: cq})
	must(t, err)
	must(t, qa.Connect(roce.Remote{Addr: b.Dev.Addr(), QPN: qb.Num(), PSN: qb.PSN()}, roce.Conn{}))
	must(t, qb.Connect(roce.Remote{Addr: a.Dev.Addr(), QPN: qa.Num(), PSN: qa.PSN()}, roce.Conn{}))
	must(t, cq.Moderate(2, time.Microsecond))
	send := []roce.SendWR{{Opcode: roce.WRSend, Flags: roce.Signaled}}
	recv := []roce.RecvWR{{}}
	wc := make([]roce.WC, 1)
	round := func() {
		cq.ReqNotify(false)
		qb.PostRecv(recv...)
		qa.PostSend(send...)
		for n := 0; n == 0; {
			n, _ = a.CQ.Poll(wc)
		}
		if got, err := ch.GetEvent(context.Background()); got != cq || err != nil {
			t.Errorf("event %v, %v", got, err)
		}
		cq.AckEvents(1)
		cq.Poll(wc)
	}
	for range 10 {
		round()
	}
	if n := testing.AllocsPerRun(100, round); n > 0 {
		t.Errorf("%v allocations per round", n)
	}
}
