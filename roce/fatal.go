package roce

import (
	"fmt"
	"runtime/debug"
	"slices"
)

// FatalError says that an engine of a device has panicked: a bug of this module,
// or of a Backend that the program has supplied. All devices on its port have
// ended then, the rest of the process goes on (see Device.Close). It is ErrClosed,
// and net.ErrClosed, to errors.Is.
type FatalError struct {
	Panic any    // the value of the panic
	Stack []byte // where it happened, as runtime/debug.Stack writes it
}

func (e *FatalError) Error() string {
	return fmt.Sprintf("roce: the engine has panicked, its devices can only be closed: %v", e.Panic)
}

func (e *FatalError) Unwrap() error { return ErrClosed }

// contain, deferred around what runs under the engine's lock, lets a panic end the
// engine and not the process. Locks below that of the engine are released by
// defer, so that a panic leaves none of them locked.
func (e *engine) contain() {
	if v := recover(); v != nil {
		e.fail(v)
	}
}

// fail ends the engine after a panic, and has those of its port end when the lock,
// which is held, is released. The sockets stay until the devices are closed.
func (e *engine) fail(v any) {
	if e.dead {
		return // Close has tried what was left
	}
	e.port.doom(&FatalError{Panic: v, Stack: debug.Stack()})
	e.end()
}

// doom tells the devices that their engines end; the first panic is what they hear of.
func (p *port) doom(f *FatalError) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.fatal.CompareAndSwap(nil, f) {
		return
	}
	p.mourners = slices.Clone(p.devs)
	for _, d := range p.devs {
		d.report(AsyncEvent{Type: EventDeviceFatal}) // before anybody who waits for it is turned away
	}
}

// end completes all requests of the engine's queue pairs as flushed, as far as that can
// still be done. The lock is held.
func (e *engine) end() {
	if e.dead {
		return
	}
	e.dead = true
	for _, q := range e.qps {
		e.bury(q)
	}
	clear(e.qps)
	e.be.Wake() // the goroutine ends
}

// end does for all engines of the port what one that has panicked wants: they end, then
// whoever waits returns. No engine is locked. Without a panic it does nothing.
func (p *port) end() {
	if p.fatal.Load() == nil {
		return
	}
	for _, e := range p.engines {
		e.mu.Lock()
		e.end()
		e.mu.Unlock()
	}
	p.mu.Lock()
	devs := slices.Clone(p.devs)
	p.mu.Unlock()
	for _, d := range devs {
		d.finish()
		d.closeChannels()
	}
	if g := p.gsi.Load(); g != nil {
		g.dev.finish()
	}
}

// mourn tells the loggers of a panic, once. No lock is held.
func (p *port) mourn() {
	p.mu.Lock()
	f, devs := p.fatal.Load(), p.mourners
	p.mourners = nil
	p.mu.Unlock()
	for _, d := range devs {
		d.cfg.Logger.Error("the engine has panicked", "name", d.cfg.Name, "addr", d.addr, "panic", f.Panic, "stack", string(f.Stack))
	}
}

// bury flushes and removes a queue pair whose state may make no sense any more.
func (e *engine) bury(q *QP) {
	defer func() { recover() }() // then this is all that can be done for it
	q.dead = true
	q.retire()
	q.t.Modify(e.clock(), &Attr{State: StateErr}, MaskState)
	q.remove()
}

// join makes a device one of the port's, which tells it of its end.
func (p *port) join(d *Device) error {
	if d.cfg.CNP.OnOverflow {
		for _, e := range p.engines {
			e.lock()
			e.heeds = true
			e.unlock()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.fatal.Load(); f != nil {
		return f
	}
	p.devs = append(p.devs, d)
	return nil
}

// leave ends what join began.
func (p *port) leave(d *Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devs = slices.DeleteFunc(p.devs, func(o *Device) bool { return o == d })
}

// gone says why the device can no longer be used; nil if it can.
func (d *Device) gone() error {
	if d.closed.Load() {
		return ErrClosed
	}
	if f := d.port.fatal.Load(); f != nil {
		return f
	}
	return nil
}

// finish ends all waiting on the device.
func (d *Device) finish() { d.finished.Do(func() { close(d.done) }) }
