package mem

import "fmt"

// WindowType is the type of a memory window (IBTA 10.6.7.2). Types 1 and 2B have
// the numbers of ibv_mw_type, whose type 2 is 2B on all adapters of today.
type WindowType uint8

const (
	// WindowType1 is for all queue pairs of its protection domain; a bind
	// replaces the one before.
	WindowType1 WindowType = 1
	// WindowType2B is for the queue pair on which it was bound, and checked
	// against its protection domain as well. It is bound when it is free only,
	// and can be invalidated.
	WindowType2B WindowType = 2
	// WindowType2A is as 2B, but only the number of the queue pair counts.
	WindowType2A WindowType = 3
)

func (w WindowType) String() string {
	switch w {
	case WindowType1:
		return "1"
	case WindowType2B:
		return "2B"
	case WindowType2A:
		return "2A"
	}
	return fmt.Sprintf("WindowType(%d)", uint8(w))
}

// Window is a memory window: a key that a bind opens for a part of a region, and
// that can be closed without touching the region. It is made by
// [Table.AllocWindow]. Its methods may be called by anyone at any time.
type Window struct {
	o  object
	t  WindowType
	on *Region // what it is bound to; belongs to whoever has seized the object
}

// Key returns the key that the last bind or the allocation gave it. It is a
// remote one only.
func (w *Window) Key() uint32 { return w.o.grant().key }

// Type returns the type.
func (w *Window) Type() WindowType { return w.t }

// Bound says whether the window is open: bound and not invalidated since.
func (w *Window) Bound() bool { return w.o.grant().valid }

// QP names a queue pair to the checks.
type QP struct {
	PD  PD
	Num uint32
}

// Bind says what a window is to be opened for (ibv_mw_bind_info).
type Bind struct {
	LKey   uint32 // of the region
	Addr   uint64 // where it begins, as the region's keys name it
	Length uint64 // bytes; 0 closes a window of type 1
	Access Access // WindowAccess or less
}

// WindowAccess are the rights that a window can have; unknown optional ones are
// ignored. With ZeroBased, which is for type 2 only, peers name its first byte by
// address 0.
const WindowAccess = remoteRights | ZeroBased

// remoteRights are those by which a peer, and not the own side, uses a key.
const remoteRights = RemoteWrite | RemoteRead | RemoteAtomic | FlushGlobal | FlushPersistent

// AllocWindow makes a window with a new random key, closed. It must not run
// beside another method that makes or removes something.
func (t *Table) AllocWindow(pd PD, typ WindowType) (*Window, error) {
	switch typ {
	case WindowType1, WindowType2A, WindowType2B:
	default:
		return nil, &RegisterError{"type", fmt.Sprintf("%v is none of 1, 2A, 2B", typ)}
	}
	w := &Window{t: typ}
	w.o.window = w
	return w, t.add(&w.o, grant{pd: pd})
}

// FreeWindow closes a window and removes its key, as Deregister does that of a
// region.
func (t *Table) FreeWindow(w *Window) error {
	if w == nil {
		return ErrNotRegistered
	}
	if err := t.remove(&w.o); err != nil {
		return err
	}
	w.unbind()
	return nil
}

// unbind lets go of the region. The object is seized.
func (w *Window) unbind() {
	if w.on != nil {
		w.on.o.drop()
		w.on = nil
	}
}

// The operations below are those that queue pairs execute. They may run beside
// everything else, take no lock and do not allocate; of two that change one
// object at the same time one is answered Busy. On any answer but OK nothing has
// changed. Their rules are IBTA 10.6.7.2 as Linux rxe_mw.c and rxe_mr.c have
// them, which name the compliance statements.

// Bind opens the window that key names for a part of a region, on queue pair who,
// under key: its upper 24 bits are the window's, the lower 8 new.
func (t *Table) Bind(who QP, key uint32, b *Bind) Status {
	o := t.find(key)
	switch {
	case o == nil:
		return BadKey
	case o.window == nil:
		return WrongKind
	case !o.seize():
		return Busy
	}
	defer o.release()
	w := o.window
	old := o.grant()
	switch {
	case old.pd != who.PD:
		return WrongPD // C10-72
	case w.t == WindowType1 && b.Access&ZeroBased != 0:
		return AccessDenied // o10-36.2.2
	case w.t != WindowType1 && old.valid:
		return NotFree // o10-37.2.30
	case w.t != WindowType1 && b.Length == 0:
		return OutOfRange // o10-37.2.40
	}
	g := grant{key: key, pd: old.pd, acc: b.Access}
	if b.Length == 0 {
		w.unbind()
		o.publish(g)
		return OK
	}
	r, s := t.share(who, b, &g)
	if s != OK {
		return s
	}
	if w.t != WindowType1 {
		g.qpn = who.Num
	}
	w.unbind()
	w.on = r
	o.publish(g)
	return OK
}

// share finds the part of a region that a window is to open, holds the region
// and fills in g.
func (t *Table) share(who QP, b *Bind, g *grant) (*Region, Status) {
	o := t.find(b.LKey)
	switch {
	case o == nil || o.region == nil:
		return nil, BadKey
	case !o.hold():
		return nil, Busy
	}
	from := o.grant()
	if s := mayBind(who, b, &from); s != OK {
		o.drop()
		return nil, s
	}
	g.valid, g.size, g.iova = true, b.Length, b.Addr
	g.base = &from.slice(b.Addr, b.Length)[0]
	if b.Access&ZeroBased != 0 {
		g.iova = 0
	}
	if b.Access&RemoteAtomic != 0 && !g.aligned() {
		o.drop()
		return nil, Misaligned
	}
	return o.region, OK
}

// mayBind checks what a bind asks of a region. b.Length is not 0.
func mayBind(who QP, b *Bind, from *grant) Status {
	switch {
	case !from.valid || from.key != b.LKey:
		return BadKey
	case from.pd != who.PD:
		return WrongPD // C10-72
	case from.acc&MWBind == 0:
		return AccessDenied // C10-73
	case b.Access&^WindowAccess&^optional != 0:
		return AccessDenied
	case b.Access&(RemoteWrite|RemoteAtomic) != 0 && from.acc&LocalWrite == 0:
		return AccessDenied // C10-74
	case b.Access&^from.acc&(FlushGlobal|FlushPersistent) != 0:
		return AccessDenied // how a region is flushed is decided with the region
	}
	return from.covers(b.Addr, b.Length) // C10-75
}

// Invalidate closes what key names, on behalf of queue pair who: a window of type
// 2, which can then be bound again, or a region of fast registration, which can
// then be registered again. remote says that the peer asks for it, by SEND with
// invalidate. What is closed already stays so, and that is no error, as with rxe.
func (t *Table) Invalidate(who QP, key uint32, remote bool) Status {
	o := t.find(key)
	if o == nil {
		return BadKey
	}
	g := o.grant()
	switch {
	case g.key != key:
		return BadKey
	case o.window != nil && o.window.t == WindowType1: // o10-37.2.26
		return WrongKind
	case o.region != nil && !o.region.fast:
		return WrongKind
	}
	if s := o.knows(&g, who); s != OK {
		return s
	}
	switch {
	case o.region != nil && remote && g.acc&remoteRights == 0:
		return AccessDenied // its key is no remote one
	case !g.valid:
		return OK
	case !o.seize():
		return Busy // windows are bound to it, or it is changing
	}
	defer o.release()
	if g = o.grant(); g.key != key {
		return BadKey
	}
	if o.window != nil {
		o.window.unbind()
	}
	o.withdraw()
	return OK
}

// knows says whether the key is meant for a queue pair.
func (o *object) knows(g *grant, who QP) Status {
	if w := o.window; w != nil && w.t != WindowType1 && g.valid {
		if g.qpn != who.Num {
			return WrongQP
		}
		if w.t == WindowType2A {
			return OK
		}
	}
	if g.pd != who.PD {
		return WrongPD
	}
	return OK
}

// FastRegister gives the region that key names the memory it was told by Map,
// with rights acc, under key: its upper 24 bits are the region's, the lower 8
// new. The region must be free: never registered, or invalidated.
func (t *Table) FastRegister(who QP, key uint32, acc Access) Status {
	o := t.find(key)
	switch {
	case o == nil:
		return BadKey
	case o.region == nil || !o.region.fast:
		return WrongKind
	case !o.seize():
		return Busy
	}
	defer o.release()
	old := o.grant()
	next := o.region.mapped.Load()
	switch {
	case old.pd != who.PD:
		return WrongPD
	case old.valid:
		return NotFree
	case next == nil:
		return OutOfRange // no memory was mapped
	case t.checkRegister(next.bytes(), acc, next.iova) != nil:
		return AccessDenied
	}
	o.publish(grant{key: key, valid: true, pd: old.pd, acc: acc, iova: next.iova, size: next.size, base: next.base})
	return OK
}
