package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

const (
	// timeLimit is how much virtual time a run may take, and settle how long
	// the network is watched after the last completion.
	timeLimit = time.Minute
	settle    = 2 * time.Second
	// stepLimit bounds the work of a run.
	stepLimit = 20_000_000
)

// Result is what a run shows besides success.
type Result struct {
	Hash      uint64 // of all packets and completions in their order and time
	Packets   int    // sent
	Requests  int    // completed
	Bytes     int    // of messages
	Time      time.Duration
	Retrans   uint64 // packets sent again
	Timeouts  uint64
	Probes    uint64
	RNRs      uint64
	Delivered int // packets received
	Blocked   int // sends that found the socket full
	Drains    int
	Limits    int // limit events of shared receive queues
	Heard     int // messages that UC and UD delivered, and did not
	Unheard   int
	XRC       int    // requests over XRC
	Migrated  int    // to another path
	Granted   int    // requests through grants
	Late      uint64 // READs that were asked for again when they could not be answered
	// Statuses counts those of requests of a connection that failed, besides
	// success and flushed.
	Statuses map[roce.WCStatus]int
}

// world is one run.
type world struct {
	cfg   Config
	rng   *rand.Rand
	now   time.Duration
	nodes []*node
	sides []*side // two for each connection
	byQPN []map[ib.QPN]*side
	mtu   map[ib.QPN]int // bytes, by destination
	trace trace
	res   Result

	senders map[ib.QPN]*side // who sends to a queue pair of RC or UC
	group   netip.Addr       // multicast
	failing failing
	noWait  context.Context // has ended

	sent, received int
	err            error // the first thing that went wrong
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// Run runs one configuration. The error says what went wrong, with the seed and
// the last events.
func Run(cfg Config) (Result, error) {
	w := &world{cfg: cfg, rng: newRand(cfg.Seed), mtu: map[ib.QPN]int{}, senders: map[ib.QPN]*side{}}
	var cancel context.CancelFunc
	w.noWait, cancel = context.WithCancel(context.Background())
	cancel()
	w.trace.out = cfg.hooks.trace
	err := w.run()
	if err == nil {
		err = w.err
	}
	w.res.Hash, w.res.Time, w.res.Packets, w.res.Delivered = w.trace.hash, w.now, w.sent, w.received
	if err != nil {
		cfg.hooks = hooks{}
		return w.res, fmt.Errorf("seed %d, at %v: %w\nconfiguration %+v\nlast events:\n%s", cfg.Seed, w.now, err, cfg, w.trace.tail())
	}
	return w.res, nil
}

// fail notes the first thing that went wrong.
func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *world) run() error {
	if err := w.open(); err != nil {
		return err
	}
	if err := w.connect(); err != nil {
		return err
	}
	end := time.Duration(-1)
	for step := 0; w.err == nil; step++ {
		switch {
		case step > stepLimit:
			return errors.New("too many steps")
		case w.now > timeLimit:
			return fmt.Errorf("not done after %v:\n%s", timeLimit, w.pending())
		case end < 0 && w.done():
			end = w.now + settle
		case end >= 0 && w.now >= end:
			return w.close()
		}
		w.misbehave()
		if err := w.succeed(); err != nil {
			return err
		}
		if w.cfg.hooks.step != nil {
			w.cfg.hooks.step(w)
		}
		if w.turn() {
			w.now += time.Duration(w.rng.IntN(3000)) // what it took
			continue
		}
		next := w.next()
		if end >= 0 {
			next = min(next, end)
		}
		if next == roce.Never {
			return fmt.Errorf("nothing is due, but not all is done:\n%s", w.pending())
		}
		w.now = max(next, w.now+1)
	}
	return w.err
}

// turn lets all programs and devices run once, in a random order. It reports
// whether anything may happen at once.
func (w *world) turn() (busy bool) {
	for _, i := range w.rng.Perm(len(w.sides)) {
		if w.sides[i].act() {
			busy = true
		}
	}
	before := w.sent + w.received
	for _, n := range w.nodes {
		n.events()
		for _, p := range n.pools {
			busy = p.act() || busy
		}
		n.touch()
	}
	for _, i := range w.rng.Perm(len(w.nodes)) {
		n := w.nodes[i]
		if n.next = n.dev.Progress(w.now); n.next <= w.now {
			busy = true
		}
		if w.rng.IntN(4) > 0 && n.poll() {
			busy = true
		}
	}
	if busy || w.sent+w.received != before {
		return true
	}
	for _, n := range w.nodes { // before time passes nothing is left lying
		if n.poll() {
			busy = true
		}
	}
	return busy
}

// next returns when something is due.
func (w *world) next() time.Duration {
	t := roce.Never
	for _, n := range w.nodes {
		t = min(t, n.next)
		for _, p := range n.pools {
			t = min(t, p.due())
		}
		if n.be.fullUntil > w.now {
			t = min(t, n.be.fullUntil)
		}
	}
	for _, s := range w.sides {
		t = min(t, s.due())
	}
	return t
}

func (w *world) done() bool {
	for _, s := range w.sides {
		if !s.done() || s.life > 0 && !s.closed {
			return false
		}
	}
	return true
}

// left is how many requests have not completed.
func (w *world) left() (n int) {
	for _, s := range w.sides {
		n += len(s.ops) - s.completed + len(s.recvs) - s.recvDone
	}
	return n
}

func (w *world) pending() (s string) {
	for _, x := range w.sides {
		s += x.String() + "\n"
	}
	return s
}

// open makes the devices.
func (w *world) open() error {
	fabric := netio.NewFabric()
	fabric.RecvBuffer = w.cfg.Fabric
	w.group = netip.MustParseAddr("239.7.7.7")
	if w.cfg.IPv6 {
		w.group = netip.MustParseAddr("ff15::7")
	}
	w.mtu[ib.MulticastQPN] = ib.MTU4096.Bytes()
	for i := range w.cfg.Nodes {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		if w.cfg.IPv6 {
			addr = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i + 1)})
		}
		be, err := fabric.Open(netip.AddrPortFrom(addr, netio.Port))
		if err != nil {
			return err
		}
		be = netio.WithFaults(be, netio.FaultConfig{Seed: w.cfg.Seed*16 + uint64(i), Tx: w.cfg.Faults})
		if w.cfg.hooks.backend != nil {
			be = w.cfg.hooks.backend(i, be)
		}
		n := &node{w: w, i: i, addr: addr}
		w.nodes = append(w.nodes, n)
		w.byQPN = append(w.byQPN, map[ib.QPN]*side{})
		n.be = &traced{Backend: be, w: w, node: i}
		if err := n.open(n.be); err != nil {
			return err
		}
	}
	return nil
}

// close checks what must hold at the end, and takes everything down.
func (w *world) close() error {
	for _, s := range w.sides {
		w.res.Requests += len(s.ops)
		if s.typ == roce.XRCSend {
			w.res.XRC += len(s.ops)
		}
		if err := s.close(); err != nil {
			return err
		}
	}
	for _, s := range w.sides[:2] {
		if w.cfg.Failure != NoFailure {
			dead := w.cfg.Failure == Deregister && w.failing.fired && s == w.failing.a
			if err := closeArenas(s.arenas, dead); err != nil {
				return fmt.Errorf("%v: %w", s, err)
			}
		}
	}
	w.res.Statuses = w.failing.seen
	var retrans uint64 // as the monitor saw it
	for _, s := range w.sides {
		retrans += s.flow.retrans
	}
	for _, n := range w.nodes {
		c := n.dev.Counters()
		w.res.Retrans += c["retransmitted_pkts"]
		w.res.Timeouts += c["local_ack_timeout_err"]
		w.res.Late += c["drop_no_resource"]
		w.res.Probes += c["ack_probes"]
		w.res.RNRs += c["send_rnr_err"]
		if err := n.close(); err != nil {
			return fmt.Errorf("node %d: %w", n.i, err)
		}
	}
	if w.res.Retrans != retrans && w.cfg.Failure != Cut {
		return fmt.Errorf("%d packets counted as sent again, but it were %d", w.res.Retrans, retrans)
	}
	return nil
}
