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
	"github.com/goroce/goroce/test/sim/network"
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

	Completions int            // taken, each checked for its order and contents
	Atomics     int            // explained by one order
	Lives       int            // connections
	CNPs        int            // congestion notifications sent
	Suffered    map[string]int // what the network did to packets
	// Statuses counts those of requests of a connection that failed, besides
	// success and flushed.
	Statuses map[roce.WCStatus]int
}

// world is one run.
type world struct {
	cfg   Config
	rng   *rand.Rand
	now   time.Duration
	net   *network.Network // nil if the nodes are next to each other
	open  func(i int) (netio.Backend, error)
	links []*network.Link // of each node
	nodes []*node
	sides []*side // two for each connection
	made  int     // sides so far
	byQPN []map[ib.QPN]*side
	mtu   map[ib.QPN]int // bytes, by destination
	trace trace
	res   Result

	senders map[ib.QPN]*side // who sends to a queue pair of RC or UC
	group   netip.Addr       // multicast
	failing failing
	noWait  context.Context // has ended

	sent, received int
	again          uint64 // request packets of closed sides that were sent again, as the monitor saw it
	refused        uint64 // packets that a full socket had not taken when the device was restarted
	err            error  // the first thing that went wrong
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
	if err := w.build(); err != nil {
		return err
	}
	if err := w.connect(); err != nil {
		return err
	}
	end, mark := time.Duration(-1), soakMark
	for step := 0; w.err == nil; step++ {
		if !w.done() {
			end = -1 // not yet, or a device has been restarted since
		}
		switch {
		case step > stepLimit && w.cfg.Soak == 0:
			return errors.New("too many steps")
		case w.now > timeLimit+w.cfg.Soak:
			return fmt.Errorf("not done after %v:\n%s", timeLimit+w.cfg.Soak, w.pending())
		case end < 0 && w.done():
			end = w.now + settle
		case end >= 0 && w.now >= end:
			return w.close()
		}
		if w.now >= mark && w.cfg.hooks.mark != nil {
			w.cfg.hooks.mark(w)
			mark += soakMark
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
	if w.net != nil {
		w.net.Advance(w.now)
	}
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
	if w.net != nil {
		t = w.net.Next()
	}
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
		if !s.done() || s.continues() && !s.closed {
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

// build makes the network and the devices.
func (w *world) build() error {
	fabric := netio.NewFabric()
	fabric.RecvBuffer = w.cfg.Fabric
	w.group = netip.MustParseAddr("239.7.7.7")
	if w.cfg.IPv6 {
		w.group = netip.MustParseAddr("ff15::7")
	}
	w.mtu[ib.MulticastQPN] = ib.MTU4096.Bytes()
	count := w.cfg.Nodes
	if w.cfg.Failure == Restart {
		count++ // the one that does, with the failing connection alone
	}
	var addrs []netip.Addr
	for i := range count {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		if w.cfg.IPv6 {
			addr = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i + 1)})
		}
		addrs = append(addrs, addr)
	}
	w.open = func(i int) (netio.Backend, error) { return fabric.Open(netip.AddrPortFrom(addrs[i], netio.Port)) }
	if w.cfg.Link.Rate > 0 {
		w.wire(fabric, addrs)
	}
	for i, addr := range addrs {
		n := &node{w: w, i: i, addr: addr}
		w.nodes = append(w.nodes, n)
		w.byQPN = append(w.byQPN, map[ib.QPN]*side{})
		if err := n.open(); err != nil {
			return err
		}
	}
	return nil
}

// wire puts a link between each node and a switch, and plans the partitions.
func (w *world) wire(fabric *netio.Fabric, addrs []netip.Addr) {
	w.net = network.New(w.cfg.Seed, fabric)
	sw := w.net.Switch(w.cfg.Switch)
	var hosts []*network.Host
	for _, addr := range addrs {
		h := w.net.Host(addr)
		hosts = append(hosts, h)
		w.links = append(w.links, w.net.Link(h, sw, w.cfg.Link))
	}
	w.open = func(i int) (netio.Backend, error) { return hosts[i].Open() }
	for _, f := range w.cfg.Cuts {
		w.cut(f)
	}
}

// cut plans a partition.
func (w *world) cut(f Fault) {
	from, to := f.span()
	w.net.At(from, func() { w.links[f.Node].Cut(f.What != "cut-in", f.What != "cut-out") })
	w.net.At(to, func() { w.links[f.Node].Cut(false, false) })
}

// close checks what must hold at the end, and takes everything down.
func (w *world) close() error {
	for _, s := range w.sides {
		s.account()
		if err := s.close(); err != nil {
			return err
		}
	}
	for _, s := range w.sides[:2] {
		if w.cfg.Failure != NoFailure {
			dead := (w.cfg.Failure == Deregister || w.cfg.Failure == Restart) && w.failing.fired && s == w.failing.a
			if err := closeArenas(s.arenas, dead); err != nil {
				return fmt.Errorf("%v: %w", s, err)
			}
		}
	}
	w.res.Statuses = w.failing.seen
	for _, n := range w.nodes {
		n.tally()
		if err := n.close(); err != nil {
			return fmt.Errorf("node %d: %w", n.i, err)
		}
	}
	if w.net != nil {
		for _, l := range w.links {
			for _, p := range l.Ports {
				w.res.suffer("cut off", p.Cut)
				w.res.suffer("queue full", p.Dropped)
				w.res.suffer("marked by RED", p.Marked)
				w.res.suffer("held back by PFC", p.Pauses)
			}
		}
		if err := w.net.Idle(); err != nil {
			return err
		}
	}
	if n := w.res.Retrans; (n < w.again || n > w.again+w.refused) && w.cfg.Failure != Cut {
		return fmt.Errorf("%d packets counted as sent again, but it were %d, and %d waited for a full socket when its device was closed", n, w.again, w.refused)
	}
	return nil
}

// suffer counts what the network did to n packets.
func (r *Result) suffer(what string, n int) {
	if r.Suffered == nil {
		r.Suffered = map[string]int{}
	}
	r.Suffered[what] += n
}

// tally adds up the counters of a device that is about to end.
func (n *node) tally() {
	c, r := n.dev.Counters(), &n.w.res
	r.Retrans += c["retransmitted_pkts"]
	r.Timeouts += c["local_ack_timeout_err"]
	r.Late += c["drop_no_resource"]
	r.Probes += c["ack_probes"]
	r.RNRs += c["send_rnr_err"]
	stats := n.be.Stats()
	for what, stat := range map[string]netio.Stat{
		"lost": netio.FaultDrop, "duplicated": netio.FaultDuplicate, "reordered": netio.FaultReorder, "damaged": netio.FaultCorrupt,
		"marked": netio.FaultCE, "receive buffer full": netio.RxOverflow, "send queue full": netio.TxWouldBlock,
	} {
		r.suffer(what, int(stats[stat]))
	}
}
