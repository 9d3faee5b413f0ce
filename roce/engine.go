package roce

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/transport"
)

const (
	// rxBatch bounds what one lock hold receives: super-packets of up to 64
	// packets each.
	rxBatch = 8
	// turns bounds what one lock hold sends before it receives again, and
	// turnBudget what one queue pair sends in its turn, but for the last packet: at
	// a path MTU of 4096 that makes 15 packets, as many as a run has room for.
	turns      = 4
	turnBudget = 60 << 10
	// leaseTime is how long a polling goroutine has the device to itself after
	// each Poll that drives. The engine's goroutine wakes once per lease, and a
	// poller that went away without Wait holds up the device for as long.
	leaseTime = time.Millisecond
	// maxPolls bounds how often the engine's goroutine polls in vain before it
	// sleeps, whatever the clock says.
	maxPolls = 1000
)

// engine is the unit of concurrency: a backend and the queue pairs that use it,
// under one lock, run to completion. Whoever holds the lock works: a poller, a
// poster, or the engine's own goroutine when nobody else does.
//
// Lock order: engine, SRQ, CQ; a QP's posting locks, the key table and the event
// queue are leaves.
type engine struct {
	port   *port
	index  int // in the port
	be     netio.Backend
	clock  func() time.Duration
	manual bool
	spin   time.Duration // Config.Spin: how long to poll before going to sleep

	mu        sync.Mutex
	qps       map[ib.QPN]*QP
	peers     peers
	groups    groups
	xrc       xrc
	unknown   unknown
	strangers *strangers // made with the first UD queue pair
	wheel     *wheel
	control   fifo // queue pairs with ACKs and NAKs to send: always first
	data      fifo // queue pairs with requests or READ responses to send
	out       outbox
	rx        [rxBatch]netio.Received
	held      heldEvents
	rates     rates  // changes to be told
	overflow  uint64 // packets that the receive socket has dropped, if a device heeds that
	heeds     bool   // one does
	crowded   bool   // ... and it did before the batch at work
	dead      bool
	waitUntil time.Duration // when the goroutine will look by itself; 0 while it works
	waitWrite bool          // the goroutine waits until the socket takes more, or is on its way to
	drops     drops
	pause     time.Duration // between the last two batches of packets
	putOff    bool          // the answers to the last batch wait for the poller

	used     atomic.Int32       // queue pairs
	full     fullCQs            // overflowed, their queue pairs not yet in error
	bells    atomic.Pointer[QP] // queue pairs with new requests, last first
	lease    atomic.Int64       // until when a poller drives
	heard    atomic.Int64       // when the last batch of packets came
	unleased chan struct{}      // ends the goroutine's sleep during a lease
	ended    chan struct{}      // the goroutine has returned
}

// newEngine returns an engine for devices of a configuration, with defaults in place.
func newEngine(cfg *Config, p *port, index int, be netio.Backend, limit *unknownLimit) *engine {
	e := &engine{
		port: p, index: index, be: be, clock: p.clock, manual: cfg.Manual, spin: cfg.Spin,
		unknown:  newUnknown(cfg.Logger, limit),
		qps:      map[ib.QPN]*QP{},
		peers:    peers{},
		xrc:      newXRC(),
		wheel:    newWheel(p.clock()),
		unleased: make(chan struct{}, 1),
		ended:    make(chan struct{}),
	}
	e.out.init(be)
	return e
}

// share is the part that one of n engines has of what all have, rounded up.
func share(all, n int) int { return (max(all, 0) + n - 1) / n }

// bit is the engine as a set of those of its port.
func (e *engine) bit() uint64 { return 1 << e.index }

// begin starts the goroutine.
func (e *engine) begin() {
	if e.manual {
		close(e.ended)
	} else {
		engines.add(e)
		go e.loop()
	}
}

// engines are those of the process that have a goroutine.
var engines engineList

type engineList struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*engine] // replaced as a whole
}

func (l *engineList) all() []*engine {
	if p := l.list.Load(); p != nil {
		return *p
	}
	return nil
}

func (l *engineList) add(e *engine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := append(slices.Clone(l.all()), e)
	l.list.Store(&list)
}

func (l *engineList) remove(e *engine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(l.all()), func(o *engine) bool { return o == e })
	l.list.Store(&list)
}

// run does one bounded batch of everything: receive, timers, doorbells, send. It
// reports whether there is more to do at once. For a poller, who comes again, the
// answers to a packet or two wait until then, once: what it has to send goes with
// them, and it has what came a system call sooner. The lock is held.
func (e *engine) run(now time.Duration, poller bool) (more bool) {
	defer e.contain()
	// Memory that came from C may be gone: a fault there is a protection error
	// (package mem recovers it), not the end of the process.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	n, now := e.receive(now)
	e.wheel.advance(now, func(q *QP) {
		if e.out.holds(q) {
			q.t.Left(now) // no sooner than now
		}
		if q.t.Deadline() <= now {
			q.t.Expire(now)
		}
		e.touch(q)
	})
	e.answerBells(now)
	if e.putOff = poller && e.few(n) && !e.putOff; !e.putOff {
		e.transmit(now)
	}
	e.held.release(now, e.bit())
	return n > 0 || e.ready()
}

// few reports whether the n datagrams of a batch are one or two packets.
func (e *engine) few(n int) bool {
	switch n {
	case 1:
		return e.rx[0].Segments() <= 2
	case 2:
		return e.rx[0].SegSize == 0 && e.rx[1].SegSize == 0
	}
	return false
}

// pump serves what was posted, without receiving. The lock is held.
func (e *engine) pump(now time.Duration) {
	defer e.contain()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	e.answerBells(now)
	e.transmit(now)
}

// transmit sends control packets, then a few turns of data, in one flush. Whose turn
// it is to send data does that before its acknowledgement: being shorter, that may only
// be the last of a run, and both travel as one datagram.
func (e *engine) transmit(now time.Duration) {
	defer e.contain()
	defer e.failOverflowed(now)
	e.putOff = false
	if !e.out.flush(now) {
		return // the socket is full: generate nothing new
	}
	n := 0
	for !e.out.blocked {
		q := e.control.pop(controlQueue)
		if q == nil {
			break
		}
		if n < turns && q == e.data.head {
			n++
			e.turn(e.data.pop(dataQueue), now, false)
		}
		e.turn(q, now, true)
	}
	for ; n < turns && !e.out.blocked; n++ {
		q := e.data.pop(dataQueue)
		if q == nil {
			break
		}
		e.turn(q, now, false)
	}
	e.out.flush(now)
}

// turn lets one queue pair write packets, of control or of data.
func (e *engine) turn(q *QP, now time.Duration, control bool) {
	if q.dead {
		return
	}
	e.out.begin(q, control)
	if control {
		q.t.TransmitControl(now, &e.out)
	} else {
		q.transmitData(now, &e.out)
	}
	e.touch(q)
}

// transmitData is one turn of requests or READ responses. Of requests only what was
// sent before, if there is no room at the peer for more: then the queue pair waits.
func (q *QP) transmitData(now time.Duration, out transport.Outbox) {
	waits := q.links[waitQueue].queued
	q.t.Share(q.shares(), waits || q.full())
	q.t.Transmit(now, out, turnBudget)
	if q.t.Held() && !waits {
		q.peers[0].waiting.push(q, waitQueue)
	}
}

// ready reports whether a queue pair has something to send that nothing hinders.
func (e *engine) ready() bool {
	return !e.out.blocked && (e.control.head != nil || e.data.head != nil)
}

// touch brings the engine's books in line after a queue pair has worked: its
// place in the queues and its timer.
func (e *engine) touch(q *QP) {
	w := q.t.Wants()
	if w&transport.WantControl != 0 {
		e.control.push(q, controlQueue)
	}
	if w&transport.WantData != 0 && (!q.links[waitQueue].queued || q.t.Urgent()) {
		e.data.push(q, dataQueue)
	}
	e.wheel.schedule(q, q.t.Deadline())
	e.account(q)
}

// next returns when the engine has to work again if nothing happens until then.
func (e *engine) next() time.Duration {
	if e.ready() || e.full.some() {
		return 0
	}
	return min(e.wheel.earliest, e.held.due(), e.be.Deadline())
}

// ring says that q has new requests. The caller serves them itself, unless
// somebody holds the engine: then that one does, before or just after it unlocks.
func (e *engine) ring(q *QP) {
	if !q.rung.Swap(true) {
		for {
			head := e.bells.Load()
			q.nextBell = head
			if e.bells.CompareAndSwap(head, q) {
				break
			}
		}
	}
	if !e.manual && e.mu.TryLock() {
		e.pump(e.clock())
		e.unlock()
	}
}

// answerBells hands new requests to their queue pairs. The lock is held.
func (e *engine) answerBells(now time.Duration) {
	var first *QP // in the order in which the bells were rung
	for q := e.bells.Swap(nil); q != nil; {
		next := q.nextBell
		q.nextBell, first = first, q
		q = next
	}
	for q := first; q != nil; {
		next := q.nextBell
		q.nextBell = nil
		q.rung.Store(false) // from here on q may ring again
		if !q.dead {
			q.t.Kick(now)
			e.touch(q)
		}
		q = next
	}
}

// lock takes the engine and returns the time.
func (e *engine) lock() time.Duration {
	e.mu.Lock()
	return e.clock()
}

// unlock releases the engine. Bells rung while it was held are answered; the
// goroutine is woken if it would sleep past the next deadline, or does not know
// that the socket is full.
func (e *engine) unlock() {
	for {
		if e.dead {
			e.mu.Unlock()
			e.port.end()
			return
		}
		if e.next() < e.waitUntil || e.out.blocked && !e.waitWrite {
			e.waitUntil, e.waitWrite = 0, e.out.blocked
			e.be.Wake()
		}
		e.mu.Unlock()
		// A bell rung between the last look and the unlock found the lock taken.
		if e.manual || e.bells.Load() == nil || !e.mu.TryLock() {
			return
		}
		e.pump(e.clock())
	}
}

// drive lets a poller run one batch and, if it will come again, leases it the
// engine for a while. It reports false when somebody else has the engine.
func (e *engine) drive(lease bool) bool {
	if !e.mu.TryLock() {
		return false
	}
	if e.dead {
		e.mu.Unlock()
		return true
	}
	now := e.clock()
	if lease {
		e.lease.Store(int64(now + leaseTime))
	}
	e.run(now, lease)
	e.unlock()
	return true
}

// yield is what a poller does that found nothing, so that polling in a loop does
// not starve what it waits for. While every processor is busy polling, Go looks at
// sockets every 10 ms only: now and then the poller does the work of the process's
// engines of other ports, and of those that its queue has nothing to do with.
func (p *port) yield(fromC bool) {
	if !fromC {
		runtime.Gosched()
	}
	if p.misses.Add(1)%16 != 0 {
		return
	}
	for _, o := range engines.all() {
		if len(p.engines) == 1 && o.port == p || !o.mu.TryLock() {
			continue
		}
		if !o.dead {
			o.run(o.clock(), false)
		}
		o.unlock()
	}
}

// handOver ends a lease: the poller is going to block.
func (e *engine) handOver() {
	if e.lease.Swap(0) != 0 {
		select {
		case e.unleased <- struct{}{}:
		default:
		}
	}
}

// loop is the engine's goroutine: it works when no poller does.
func (e *engine) loop() {
	defer close(e.ended)
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("roce", e.be.LocalAddr().String(), "engine", strconv.Itoa(e.index))))
	timer := time.NewTimer(0)
	defer timer.Stop()
	var notices []notice
	polls := 0 // in a row, that found nothing
	var changes []rateNote
	for {
		if left := time.Duration(e.lease.Load()) - e.clock(); left > 0 {
			timer.Reset(left)
			select { // sit the lease out
			case <-timer.C:
			case <-e.unleased:
			}
			continue
		}
		now := e.lock()
		if e.dead {
			e.mu.Unlock()
			e.port.end()
			e.port.mourn()
			return
		}
		e.waitUntil = 0
		more := e.run(now, false)
		next := e.next()
		polling := !more && polls < maxPolls && e.expects(now)
		if !more && !polling {
			e.waitUntil = next
		}
		blocked := e.out.blocked
		e.waitWrite = blocked
		notices, changes = e.unknown.take(notices), e.rates.take(changes)
		e.unlock()
		e.unknown.tell(notices)
		tellRates(changes)
		if more {
			polls = 0
			continue
		}
		if polling {
			polls++
			runtime.Gosched()
			continue
		}
		polls = 0
		timeout := time.Duration(-1)
		if next != Never {
			timeout = max(next-now, 0)
		}
		if e.be.Wait(timeout, blocked) != nil {
			return // closed
		}
	}
}

// expects reports whether the next packets are likely to come so soon that polling
// for them is cheaper than going to sleep: the last ones followed each other closely,
// and not long ago. The lock is held.
func (e *engine) expects(now time.Duration) bool {
	return e.pause < e.spin && now-time.Duration(e.heard.Load()) < e.spin
}

// progress is one batch at the time of a manual device.
func (e *engine) progress(now time.Duration) (next time.Duration) {
	e.mu.Lock()
	if e.dead {
		e.mu.Unlock()
		return Never
	}
	next = now
	if !e.run(now, false) {
		next = max(e.next(), now)
	}
	dead := e.dead
	notices, changes := e.unknown.take(nil), e.rates.take(nil)
	e.mu.Unlock()
	e.unknown.tell(notices)
	tellRates(changes)
	if dead {
		e.port.end()
		e.port.mourn()
		return Never
	}
	return next
}

// due is when a manual engine has to work again.
func (e *engine) due(now time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return Never
	}
	return max(e.next(), now)
}

// fullCQs are completion queues that have overflowed. Its lock is a leaf.
type fullCQs struct {
	mu   sync.Mutex
	list []*CQ
	n    atomic.Int32
}

func (f *fullCQs) some() bool { return f.n.Load() > 0 }

func (f *fullCQs) add(c *CQ) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, c)
	f.n.Add(1)
}

// take returns one, or nil.
func (f *fullCQs) take() (c *CQ) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.list); n > 0 {
		c, f.list = f.list[n-1], f.list[:n-1]
		f.n.Add(-1)
	}
	return c
}

// overflowed notes that c lost a completion: its queue pairs and those of other
// engines will be in error. The lock is held, of this engine alone.
func (e *engine) overflowed(c *CQ) {
	c.dev.report(AsyncEvent{Type: EventCQErr, CQ: c})
	for _, o := range e.port.engines {
		o.full.add(c)
		if o != e {
			o.be.Wake()
		}
	}
}

// failOverflowed puts the queue pairs of overflowed queues into error. A shared
// receive queue of XRC is cut off instead: its targets serve others as well.
func (e *engine) failOverflowed(now time.Duration) {
	for e.full.some() {
		c := e.full.take()
		for _, q := range e.qps {
			if q.sendCQ == c || q.recvCQ == c {
				q.t.Modify(now, &Attr{State: StateErr}, MaskState) // always allowed
				e.touch(q)
			}
		}
		for _, s := range e.xrc.srqs {
			if s.cq == c {
				s.cutOff()
				s.dev.report(AsyncEvent{Type: EventSRQErr, SRQ: s})
			}
		}
	}
}

// close closes the backend and frees the buffers; the goroutine ends.
func (e *engine) close() error {
	engines.remove(e)
	e.lock()
	defer e.mu.Unlock()
	e.dead = true
	e.out.free()
	clear(e.rx[:])
	return e.be.Close() // under the lock: nobody else may be using the descriptor
}

// await waits for the goroutine of a closed engine.
func (e *engine) await() {
	e.handOver()
	<-e.ended
}

// fifo is a queue of queue pairs, linked through them. A queue pair is in it at
// most once.
type fifo struct{ head, tail *QP }

// The queues that a queue pair can be in.
const (
	controlQueue = iota
	dataQueue
	waitQueue // for room at a peer
	numQueues
)

// link is a queue pair's place in a fifo.
type link struct {
	next   *QP
	queued bool
}

func (f *fifo) push(q *QP, which int) {
	l := &q.links[which]
	if l.queued {
		return
	}
	*l = link{queued: true}
	if f.tail == nil {
		f.head = q
	} else {
		f.tail.links[which].next = q
	}
	f.tail = q
}

func (f *fifo) pop(which int) *QP {
	q := f.head
	if q == nil {
		return nil
	}
	f.head = q.links[which].next
	if f.head == nil {
		f.tail = nil
	}
	q.links[which] = link{}
	return q
}
