package cm

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/transport"
)

// world is two agents and a network between them, in virtual time.
type world struct {
	t     testing.TB
	rng   *rand.Rand
	now   time.Duration
	ends  [2]*end
	mail  mail
	loss  float64
	twice float64
	late  time.Duration // most delay
}

type letter struct {
	at time.Duration
	to int
	b  []byte
}

// mail is a heap of letters, the next one to arrive first.
type mail []letter

func (m mail) Len() int           { return len(m) }
func (m mail) Less(i, j int) bool { return m[i].at < m[j].at }
func (m mail) Swap(i, j int)      { m[i], m[j] = m[j], m[i] }
func (m *mail) Push(x any)        { *m = append(*m, x.(letter)) }
func (m *mail) Pop() any {
	last := len(*m) - 1
	l := (*m)[last]
	*m = (*m)[:last]
	return l
}

// end is one agent with a user that does by itself what it must.
type end struct {
	*bench
	w      *world
	n      int
	queue  []Event
	up     map[ID]bool   // established, by our account
	known  map[ID]ib.QPN // not gone yet, with the queue pair from Connect or SendREP on
	done   int           // gone
	wasUp  int           // connections that were established
	brief  bool          // disconnects what is established
	nextQP ib.QPN
	inUse  map[ib.QPN]bool // those of known
}

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 0))}
	addrs := [2]netip.Addr{ourAddr, theirAddr}
	for n := range w.ends {
		e := &end{w: w, n: n, up: map[ID]bool{}, known: map[ID]ib.QPN{}, nextQP: 2, inUse: map[ib.QPN]bool{}}
		e.bench = newBench(t, func(c *Config) {
			c.Addr, c.GUID, c.Rand = addrs[n], uint64(n+1), w.rng.Uint32
			c.Send = func(to netip.Addr, b []byte) { w.post(1-n, to == addrs[1-n], b) }
			c.Event = func(ev Event) { e.queue = append(e.queue, ev) }
		})
		if err := e.Listen(Listener{Service: testService}); err != nil {
			t.Fatal(err)
		}
		w.ends[n] = e
	}
	return w
}

// post puts a datagram on its way, unless it is lost.
func (w *world) post(to int, right bool, b []byte) {
	if !right {
		w.t.Fatal("a datagram to nobody")
	}
	for range 2 {
		if w.rng.Float64() >= w.loss {
			at := w.now + ms
			if w.late > 0 {
				at += time.Duration(w.rng.Int64N(int64(w.late)))
			}
			heap.Push(&w.mail, letter{at, to, append([]byte(nil), b...)})
		}
		if w.rng.Float64() >= w.twice {
			return
		}
	}
}

// step goes to the next datagram or timer; false when there is none before limit.
func (w *world) step(limit time.Duration) bool {
	next := min(w.ends[0].Deadline(), w.ends[1].Deadline())
	arrives := len(w.mail) > 0 && w.mail[0].at <= next
	if arrives {
		next = w.mail[0].at
	}
	if next == transport.Never || next > limit {
		w.now = max(w.now, min(limit, next))
		return false
	}
	if next < w.now {
		w.t.Fatalf("step back from %v to %v", w.now, next)
	}
	w.now = next
	if arrives {
		l := heap.Pop(&w.mail).(letter)
		w.ends[l.to].Receive(w.now, w.ends[1-l.to].cfg.Addr, l.b)
	} else {
		w.ends[0].Expire(w.now)
		w.ends[1].Expire(w.now)
	}
	for _, e := range w.ends {
		e.serve()
	}
	return true
}

// run goes on until nothing more is to come.
func (w *world) run() {
	for n := 0; w.step(w.now + time.Hour); n++ {
		if n > 5e6 {
			w.t.Fatal("it does not end")
		}
	}
}

func (e *end) qpn() ib.QPN {
	for e.nextQP++; e.inUse[e.nextQP]; e.nextQP++ {
	}
	return e.nextQP
}

func (e *end) connect() ID {
	req := ourREQ()
	req.LocalQPN, req.MaxCMRetries = e.qpn(), 15
	req.StartingPSN = ib.PSN(e.w.rng.Uint32() & 0xffffff)
	id, err := e.Connect(e.w.now, e.w.ends[1-e.n].cfg.Addr, req, ConnectOptions{})
	e.must(err)
	e.known[id], e.inUse[req.LocalQPN] = req.LocalQPN, true
	return id
}

func (e *end) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// serve takes the events as a program would.
func (e *end) serve() {
	for len(e.queue) > 0 {
		ev := e.queue[0]
		e.queue = e.queue[1:]
		if ev.Kind == EventREQ {
			e.known[ev.ID] = 0
		}
		if _, ok := e.known[ev.ID]; !ok {
			e.t.Fatalf("event %v for %x, which is gone or was never there", ev.Kind, uint32(ev.ID))
		}
		var err error
		switch ev.Kind {
		case EventREQ:
			qpn := e.qpn()
			if err = e.SendREP(e.w.now, ev.ID, mad.REP{LocalQPN: qpn}); err == nil {
				e.known[ev.ID], e.inUse[qpn] = qpn, true
			}
		case EventREP:
			if err = e.SendRTU(e.w.now, ev.ID, nil); err == nil {
				e.established(ev.ID)
			}
		case EventEstablished:
			e.established(ev.ID)
		case EventDisconnected:
			delete(e.up, ev.ID)
		}
		if err != nil && err != ErrUnknownID {
			e.t.Fatalf("after %v: %v", ev.Kind, err)
		}
		if ev.Gone {
			e.gone(ev.ID)
		}
	}
}

func (e *end) established(id ID) {
	e.up[id] = true
	e.wasUp++
	if e.brief {
		e.must(e.Disconnect(e.w.now, id, nil))
	}
}

func (e *end) gone(id ID) {
	if e.State(id) != StateNone {
		e.t.Fatalf("%x is gone in state %v", uint32(id), e.State(id))
	}
	delete(e.inUse, e.known[id])
	delete(e.known, id)
	e.done++
	if e.up[id] {
		e.t.Fatalf("%x is gone without EventDisconnected", uint32(id))
	}
}

// finish checks that nothing is left.
func (w *world) finish() {
	for _, e := range w.ends {
		e.bench.empty()
		if len(e.known)+len(e.up)+len(e.inUse) != 0 {
			w.t.Errorf("end %d: %d identifiers without a last event, %d established, %d queue pairs in use", e.n, len(e.known), len(e.up), len(e.inUse))
		}
	}
}

// seeds is how many random runs there are.
func seeds() uint64 {
	if raceEnabled || testing.Short() {
		return 100
	}
	return 1000
}

// Two agents that connect to each other and disconnect, over a network that
// loses, doubles and reorders: all connections come about on both sides, and at
// the end nothing is left.
func TestRandomPairs(t *testing.T) {
	for seed := range seeds() {
		w := newWorld(t, seed)
		w.loss, w.twice, w.late = 0.3*w.rng.Float64(), 0.3*w.rng.Float64(), time.Duration(w.rng.Int64N(int64(300*ms)))
		const each = 10
		for range each {
			w.ends[0].connect()
			w.ends[1].connect()
			w.step(w.now + 20*ms)
		}
		for !w.settled() && w.step(time.Hour) {
		}
		if got := [2]int{w.ends[0].wasUp, w.ends[1].wasUp}; got != [2]int{2 * each, 2 * each} {
			t.Fatalf("seed %d: %d established, want %d at each end", seed, got, 2*each)
		}
		w.matched()
		for _, e := range w.ends {
			for _, id := range sorted(e.up) {
				if w.rng.IntN(2) == 0 {
					e.must(e.Disconnect(w.now, id, nil))
				}
			}
			w.step(w.now + 5*ms)
		}
		for _, e := range w.ends {
			for _, id := range sorted(e.up) {
				e.must(e.Disconnect(w.now, id, nil))
			}
		}
		w.run()
		if w.finish(); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// settled says that nobody waits for the making of a connection.
func (w *world) settled() bool {
	for _, e := range w.ends {
		if len(e.up) != len(e.known) {
			return false
		}
	}
	return true
}

// matched checks that both ends of each connection mean the same.
func (w *world) matched() {
	for n, e := range w.ends {
		for id := range e.up {
			c := e.ids[uint32(id)]
			peer := w.ends[1-n].ids[c.remote]
			if peer == nil || peer.remote != c.id || peer.localQPN != c.remoteQPN || peer.remoteQPN != c.localQPN {
				w.t.Errorf("%x is connected to %x: %+v", c.id, c.remote, peer)
			}
		}
	}
}

func sorted[V any](m map[ID]V) []ID {
	var ids []ID
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b ID) int { return cmp.Compare(a, b) })
	return ids
}

// A program may connect to its own port: both ends are in one agent.
func TestOwnPort(t *testing.T) {
	var mail [][]byte
	b := newBench(t, func(c *Config) {
		log := c.Send
		c.Send = func(to netip.Addr, d []byte) {
			log(theirAddr, d)
			mail = append(mail, append([]byte(nil), d...))
		}
	})
	deliver := func() {
		for len(mail) > 0 {
			d := mail[0]
			mail = mail[1:]
			b.Receive(b.now, ourAddr, d)
		}
	}
	b.check(b.Listen(Listener{Service: testService}))
	_, err := b.Connect(0, ourAddr, ourREQ(), ConnectOptions{})
	b.check(err)
	deliver()
	b.check(b.SendREP(0, ourID+1, mad.REP{LocalQPN: theirQPN}))
	deliver()
	sendRTU(b)
	deliver()
	b.check(b.Disconnect(0, ourID+1, nil))
	deliver()
	b.until(sec)
	want := []string{
		"0s > REQ 1001", "0s ! REQ 1002", "0s > REP 1002-1001", "0s ! REP", "0s > RTU 1001-1002 ready", "0s ! established 1002 ready",
		"0s > DREQ 1002-1001 11", "0s > DREP 1001-1002", "0s ! disconnected", "0s ! disconnected 1002",
		"67.108864ms ! time-wait exit, gone", "67.108864ms ! time-wait exit 1002, gone",
	}
	if !slices.Equal(b.log, want) {
		t.Errorf("%q, want %q", b.log, want)
	}
	b.empty()
}

// The same with users that cancel and reject at any time, and with one end that
// starts again and remembers nothing.
func TestRandomEnds(t *testing.T) {
	for seed := range seeds() {
		w := newWorld(t, seed)
		w.loss, w.twice, w.late = 0.5*w.rng.Float64(), 0.3*w.rng.Float64(), time.Duration(w.rng.Int64N(int64(800*ms)))
		for range 200 {
			e := w.ends[w.rng.IntN(2)]
			if len(e.known) < 10 {
				e.connect()
			}
			if ids := sorted(e.known); len(ids) > 0 && w.rng.IntN(2) == 0 {
				e.interfere(ids[w.rng.IntN(len(ids))])
			}
			if w.rng.IntN(100) == 0 {
				w.restart(e.n)
			}
			w.step(w.now + time.Duration(w.rng.Int64N(int64(100*ms))))
		}
		for !w.idle() {
			for _, e := range w.ends {
				for _, id := range sorted(e.known) {
					e.must(e.Cancel(w.now, id))
					e.after(id)
				}
			}
			w.run()
		}
		if w.finish(); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func (w *world) idle() bool {
	return len(w.ends[0].known) == 0 && len(w.ends[1].known) == 0 && len(w.mail) == 0 && w.ends[0].Deadline() == transport.Never && w.ends[1].Deadline() == transport.Never
}

// interfere does something that a user may do at any time.
func (e *end) interfere(id ID) {
	switch e.w.rng.IntN(5) {
	case 0:
		_ = e.Cancel(e.w.now, id)
	case 1:
		_ = e.Reject(e.w.now, id, mad.RejConsumer, nil, nil) // a StateError in some states
	case 2:
		_ = e.Disconnect(e.w.now, id, nil)
	case 3:
		_ = e.Established(e.w.now, id)
	case 4:
		_ = e.LoadAlternate(e.w.now, id, mad.LAP{Alternate: testAlternate})
	}
	e.serve()
	e.after(id)
}

// after notes that a command has ended id, which no event tells.
func (e *end) after(id ID) {
	if _, ok := e.known[id]; ok && e.State(id) == StateNone {
		delete(e.up, id)
		e.gone(id)
	}
}

// restart puts an agent that remembers nothing in the place of one. Like a
// program that starts again it may hit upon identifiers and queue pair numbers of
// its last life.
func (w *world) restart(n int) {
	old := w.ends[n]
	cfg := old.cfg
	first := old.nextID - uint32(w.rng.IntN(5))
	cfg.Rand = func() uint32 { return first }
	a, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	old.Agent, old.queue = a, nil
	old.up, old.known, old.inUse = map[ID]bool{}, map[ID]ib.QPN{}, map[ib.QPN]bool{}
	old.nextQP = max(old.nextQP, 7) - ib.QPN(w.rng.IntN(5))
	if err := old.Listen(Listener{Service: testService}); err != nil {
		w.t.Fatal(err)
	}
}

// 10,000 connections, 1,000 at a time, over a network that loses 5 %: each comes
// about and nothing is left.
func TestManyConnections(t *testing.T) {
	w := newWorld(t, 1)
	w.loss = 0.05
	e := w.ends[0]
	e.brief = true
	const total, together = 10000, 1000
	for begun := 0; begun < total || len(e.known) > 0; {
		for begun < total && len(e.known) < together {
			e.connect()
			begun++
		}
		if !w.step(time.Hour) && len(e.up) == 0 {
			t.Fatal("it stands still")
		}
	}
	w.run()
	w.finish()
	// Where the RTU was lost, the passive side heard of a connection by its end.
	if e.wasUp != total || e.done != total || w.ends[1].done != total {
		t.Errorf("%d established, %d and %d ended, want %d", e.wasUp, e.done, w.ends[1].done, total)
	}
}

// A connection made and ended by two agents, time-wait included, without the
// network and the queue pairs.
func BenchmarkConnection(b *testing.B) {
	w := newWorld(b, 1)
	w.ends[0].brief = true
	b.ReportAllocs()
	for b.Loop() {
		w.ends[0].connect()
		w.run()
	}
	w.finish()
}
