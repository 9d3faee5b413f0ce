package roce

import (
	"fmt"
	"runtime/debug"
	"slices"
)

// FatalError says that the engine of a device has panicked: a bug of this module,
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

// fail ends the engine after a panic: all requests of its queue pairs complete as
// flushed, as far as that can still be done, each device gets EventDeviceFatal, and
// whoever waits returns. The socket stays until the devices are closed. The lock is
// held.
func (e *engine) fail(v any) {
	if !e.fatal.CompareAndSwap(nil, &FatalError{Panic: v, Stack: debug.Stack()}) {
		return // Close has tried what was left
	}
	e.dead = true
	e.mourners = slices.Clone(e.devs)
	for _, d := range e.devs {
		d.report(AsyncEvent{Type: EventDeviceFatal}) // before anybody who waits for it is turned away
	}
	for _, q := range e.qps {
		e.bury(q)
		q.dev.finish() // the GSI's own is not in the list
	}
	clear(e.qps)
	for _, d := range e.devs {
		d.finish()
		d.closeChannels()
	}
	e.be.Wake() // the goroutine ends
}

// bury flushes and removes a queue pair whose state may make no sense any more.
func (e *engine) bury(q *QP) {
	defer func() { recover() }() // then this is all that can be done for it
	q.dead = true
	q.t.Modify(e.clock(), &Attr{State: StateErr}, MaskState)
	q.remove()
}

// mourn tells the loggers of a panic, once. No lock is held.
func (e *engine) mourn() {
	e.mu.Lock()
	f, devs := e.fatal.Load(), e.mourners
	e.mourners = nil
	e.mu.Unlock()
	for _, d := range devs {
		d.cfg.Logger.Error("the engine has panicked", "name", d.cfg.Name, "addr", d.addr, "panic", f.Panic, "stack", string(f.Stack))
	}
}

// join makes a device one of the engine's, which tells it of its end.
func (e *engine) join(d *Device) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f := e.fatal.Load(); f != nil {
		return f
	}
	e.devs = append(e.devs, d)
	e.heeds = e.heeds || d.cfg.CNP.OnOverflow
	return nil
}

// leave ends what join began. The lock is held.
func (e *engine) leave(d *Device) {
	e.devs = slices.DeleteFunc(e.devs, func(o *Device) bool { return o == d })
}

// gone says why the device can no longer be used; nil if it can.
func (d *Device) gone() error {
	if d.closed.Load() {
		return ErrClosed
	}
	if f := d.port.engine.fatal.Load(); f != nil {
		return f
	}
	return nil
}

// finish ends all waiting on the device.
func (d *Device) finish() { d.finished.Do(func() { close(d.done) }) }
