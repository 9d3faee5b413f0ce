package roce

import (
	"context"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// leaseTime is how long a polling goroutine has the device to itself after
	// each Poll that drives. The engine's goroutine wakes once per lease, and a
	// poller that went away without Wait holds up the device for as long.
	leaseTime = time.Millisecond
	// maxPolls bounds how often the engine's goroutine polls in vain before it
	// sleeps, whatever the clock says.
	maxPolls = 1000
)

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
	by := passerby
	if lease {
		by = poller
	}
	e.run(now, by)
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
			o.run(o.clock(), passerby)
		}
		o.unlock()
	}
}

// How a poller gives way to whoever has the engine. Where both ends of a stream are on one
// machine and keep its processors busy, the turn of up to 3 ms that yielding costs is not
// lost: the peer has it.
const (
	turnTime = 4 * time.Millisecond // to yield for longer is to have lost a turn to other work
	looks    = 64                   // more than there are while an engine is at work on a batch
	pauses   = 2                    // instead of yielding, after a lost turn
)

// giveWay is what a poller does that found an engine taken: whoever has it is done soon,
// unless its thread has lost its processor, as happens on a busy machine. Then it may have
// ours: for nothing but a system call if nobody else wants it, and a whole turn if somebody
// does, which is some hundred milliseconds where many do. A short sleep costs less there.
func (p *port) giveWay() {
	if left := p.crowded.Load(); left > 0 {
		if p.crowded.Store(left - 1); left%looks == 0 {
			pauseThread()
		}
		return
	}
	before := p.clock()
	yieldThread()
	if p.clock()-before > turnTime {
		p.crowded.Store(pauses * looks)
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
		more := e.run(now, goroutine)
		next := e.next()
		polling := !more && polls < maxPolls && e.expects(now)
		if !more && !polling {
			e.waitUntil = next
		}
		blocked, roused := e.out.blocked, e.putOff
		e.waitWrite = blocked
		notices, changes = e.unknown.take(notices), e.rates.take(changes)
		e.unlock()
		e.unknown.tell(notices)
		tellRates(changes)
		if more {
			polls = 0
			if roused {
				runtime.Gosched() // here, rather than when another thread has woken up
			}
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
// and not long ago. To wake up takes as long as a few packets: a pause in which the
// engine has slept looks longer than it was. The lock is held.
func (e *engine) expects(now time.Duration) bool {
	return e.pause < 4*e.spin && e.silence(now) < e.spin
}

// silence is for how long nothing has come, but for the time in which the engine was at
// work on what it had to send: its peers may have waited for that.
func (e *engine) silence(now time.Duration) time.Duration { return now - e.heard - e.sending }

// progress is one batch at the time of a manual device.
func (e *engine) progress(now time.Duration) (next time.Duration) {
	e.mu.Lock()
	if e.dead {
		e.mu.Unlock()
		return Never
	}
	next = now
	if !e.run(now, passerby) {
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
