package roce

import (
	"runtime/debug"
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
	heard     time.Duration // when the last batch of packets came
	sending   time.Duration // spent on data since then, with no poller
	pause     time.Duration // between the last two batches, but for that
	putOff    bool          // the answers to the last batch wait for the poller, or for whom it has roused
	roused    bool          // the batch at work has a completion for which somebody sleeps

	used     atomic.Int32       // queue pairs
	full     fullCQs            // overflowed, their queue pairs not yet in error
	bells    atomic.Pointer[QP] // queue pairs with new requests, last first
	lease    atomic.Int64       // until when a poller drives
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

// driver is who lets the engine work.
type driver uint8

const (
	poller    driver = iota // of a completion queue, who comes again
	goroutine               // the engine's own
	passerby                // anybody else, once
)

// run does one bounded batch of everything: receive, timers, doorbells, send. It
// reports whether there is more to do at once. For a poller, who comes again, the
// answers to a packet or two wait until then, once: what it has to send goes with
// them, and it has what came a system call sooner. So they do for a program that was
// asleep until now. The lock is held.
func (e *engine) run(now time.Duration, by driver) (more bool) {
	defer e.contain()
	// Memory that came from C may be gone: a fault there is a protection error
	// (package mem recovers it), not the end of the process.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	e.roused = false
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
	waits := by == poller || by == goroutine && e.roused
	if e.putOff = waits && e.few(n) && !e.putOff; !e.putOff {
		if e.transmit(now) && by == goroutine {
			e.sending += e.clock() - now
		}
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

// settle sends the answers that wait for the poller: before a queue pair ends, as a NIC
// would have sent them by then. The lock is held.
func (e *engine) settle(now time.Duration) {
	if e.putOff {
		e.transmit(now)
	}
}

// transmit sends control packets, then a few turns of data, in one flush. Whose turn
// it is to send data does that before its acknowledgement: being shorter, that may only
// be the last of a run, and both travel as one datagram. It reports whether anybody
// had a turn of data.
func (e *engine) transmit(now time.Duration) (data bool) {
	defer e.contain()
	defer e.failOverflowed(now)
	e.putOff = false
	if !e.out.flush(now) {
		return false // the socket is full: generate nothing new
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
	return n > 0
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

// transmitData is one turn of requests or READ responses, and what fills the run that
// its last one has left. Of requests only what was sent before, if there is no room at
// the peer for more: then the queue pair waits.
func (q *QP) transmitData(now time.Duration, out transport.Outbox) {
	waits := q.links[waitQueue].queued
	q.t.Share(q.shares(), waits || q.full(), q.beside(now))
	was := q.t.InFlight()
	q.t.Transmit(now, out, turnBudget+q.e.out.room())
	if was == 0 {
		q.waitsForEach(now)
	}
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
