package mem

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// modelRegion and modelWindow say in the plainest way what there should be.
type modelRegion struct {
	r        *Region
	fast     bool
	gone     bool
	valid    bool
	key      uint32
	pd       PD
	acc      Access
	iova     uint64
	from, to int // in the buffer
	mapFrom  int // what the next fast registration gives, -1 without
	mapTo    int
}

type modelWindow struct {
	w        *Window
	pd       PD
	key      uint32
	on       *modelRegion // nil: closed
	qpn      uint32
	acc      Access
	va       uint64
	from, to int
}

// windowModel runs operations on a table and on the model, and compares.
type windowModel struct {
	t       *testing.T
	tab     *Table
	buf     []byte
	ops     []byte
	regions []*modelRegion
	windows []*modelWindow
}

const modelSize = 512

// take returns a number below n from the input, 0 at its end.
func (m *windowModel) take(n int) int {
	if len(m.ops) == 0 {
		return 0
	}
	v := int(m.ops[0]) % n
	m.ops = m.ops[1:]
	return v
}

func (m *windowModel) qp() QP               { return QP{PD(1 + m.take(2)), uint32(100 + m.take(2))} }
func (m *windowModel) region() *modelRegion { return m.regions[m.take(len(m.regions))] }
func (m *windowModel) window() *modelWindow { return m.windows[m.take(len(m.windows))] }

var modelAccess = []Access{
	RemoteRead, RemoteWrite, RemoteRead | RemoteWrite, LocalWrite, LocalWrite | MWBind, LocalWrite | MWBind | RemoteRead | RemoteWrite,
	MWBind, 0, RemoteRead | ZeroBased, RemoteWrite | ZeroBased | RelaxedOrdering, MWBind | RemoteRead,
}

func (m *windowModel) access() Access { return modelAccess[m.take(len(modelAccess))] }

// key returns a key of an object: mostly the right one.
func (m *windowModel) wrong(key uint32) uint32 {
	if m.take(8) == 0 {
		return key ^ uint32(1<<m.take(10))
	}
	return key
}

func (m *windowModel) bound(r *modelRegion) (n int) {
	for _, w := range m.windows {
		if w.on == r {
			n++
		}
	}
	return n
}

func legal(acc Access, iova uint64) bool {
	return (acc&RemoteWrite == 0 || acc&LocalWrite != 0) && (acc&ZeroBased == 0 || iova == 0)
}

func (m *windowModel) step() {
	switch m.take(8) {
	case 0, 1:
		m.bind()
	case 2:
		m.invalidate()
	case 3:
		m.fastRegister()
	case 4:
		m.change()
	default:
		m.use()
	}
	for _, r := range m.regions {
		if !r.gone && (r.r.Windows() != m.bound(r) || r.r.Key() != r.key || r.r.Valid() != r.valid) {
			m.t.Fatalf("region %#x, valid %v, with %d windows; want %#x, %v, %d", r.r.Key(), r.r.Valid(), r.r.Windows(), r.key, r.valid, m.bound(r))
		}
	}
	for _, w := range m.windows {
		if w.w.Key() != w.key || w.w.Bound() != (w.on != nil) {
			m.t.Fatalf("window %#x, bound %v; want %#x, %v", w.w.Key(), w.w.Bound(), w.key, w.on != nil)
		}
	}
}

func (m *windowModel) bind() {
	w, r, who := m.window(), m.region(), m.qp()
	key := w.key&^0xff | uint32(m.take(256))
	b := Bind{m.wrong(r.key), r.iova + uint64(m.take(256)) - 8, uint64(m.take(100)), m.access()}
	one := w.w.Type() == WindowType1
	ok := w.pd == who.PD && (one || w.on == nil) && !(one && b.Access&ZeroBased != 0)
	switch {
	case b.Length == 0:
		ok = ok && one
	case r.gone || !r.valid || b.LKey != r.key || r.pd != who.PD || r.acc&MWBind == 0 || b.Access&(LocalWrite|MWBind) != 0 ||
		b.Access&RemoteWrite != 0 && r.acc&LocalWrite == 0:
		ok = false
	default:
		off := int64(b.Addr - r.iova)
		ok = ok && off >= 0 && off+int64(b.Length) <= int64(r.to-r.from)
	}
	got := m.tab.Bind(who, key, &b)
	if (got == OK) != ok {
		m.t.Fatalf("bind of %+v by %v to %+v, %+v: %v, want success %v", w, who, r, b, got, ok)
	}
	if !ok {
		return
	}
	w.key, w.acc, w.on = key, b.Access, nil
	if b.Length > 0 {
		w.on, w.qpn, w.va, w.from = r, who.Num, b.Addr, r.from+int(b.Addr-r.iova)
		w.to = w.from + int(b.Length)
		if b.Access&ZeroBased != 0 {
			w.va = 0
		}
	}
}

func (m *windowModel) invalidate() {
	who, remote := m.qp(), m.take(2) == 0
	if m.take(3) == 0 {
		r := m.region()
		key := m.wrong(r.key)
		ok := !r.gone && r.fast && key == r.key && r.pd == who.PD && (!r.valid || m.bound(r) == 0) &&
			!(remote && r.acc&(RemoteRead|RemoteWrite) == 0)
		if got := m.tab.Invalidate(who, key, remote); (got == OK) != ok {
			m.t.Fatalf("invalidate region %+v by %v with %#x, remote %v: %v, want success %v", r, who, key, remote, got, ok)
		}
		if ok {
			r.valid = false
		}
		return
	}
	w := m.window()
	key := m.wrong(w.key)
	var mine bool
	switch typ := w.w.Type(); {
	case w.on == nil:
		mine = w.pd == who.PD
	case typ == WindowType2A:
		mine = w.qpn == who.Num
	default:
		mine = w.qpn == who.Num && w.pd == who.PD
	}
	ok := key == w.key && mine && w.w.Type() != WindowType1
	if got := m.tab.Invalidate(who, key, remote); (got == OK) != ok {
		m.t.Fatalf("invalidate window %+v by %v with %#x: %v, want success %v", w, who, key, got, ok)
	}
	if ok {
		w.on = nil
	}
}

func (m *windowModel) fastRegister() {
	r, who, acc := m.region(), m.qp(), m.access()
	if m.take(3) == 0 {
		from := m.take(modelSize)
		to := from + m.take(256)
		err := r.r.Map(m.buf[from:min(to, modelSize)], r.iova)
		if (err == nil) != r.fast {
			m.t.Fatalf("map %+v: %v", r, err)
		}
		if r.fast {
			r.mapFrom, r.mapTo = from, min(to, modelSize)
		}
	}
	key := r.key&^0xff | uint32(m.take(256))
	ok := !r.gone && r.fast && !r.valid && r.pd == who.PD && r.mapFrom >= 0 && legal(acc, r.iova)
	if got := m.tab.FastRegister(who, key, acc); (got == OK) != ok {
		m.t.Fatalf("register %+v by %v with %v: %v, want success %v", r, who, acc, got, ok)
	}
	if ok {
		r.key, r.acc, r.valid, r.from, r.to = key, acc, true, r.mapFrom, r.mapTo
	}
}

// change deregisters a region or changes what it is.
func (m *windowModel) change() {
	r := m.region()
	if m.take(8) == 0 {
		err := m.tab.Deregister(r.r)
		switch {
		case r.gone && !errors.Is(err, ErrNotRegistered), !r.gone && m.bound(r) > 0 && !errors.Is(err, ErrInUse),
			!r.gone && m.bound(r) == 0 && err != nil:
			m.t.Fatalf("deregister %+v with %d windows: %v", r, m.bound(r), err)
		}
		r.gone = r.gone || err == nil
		return
	}
	from := m.take(modelSize)
	to := min(from+m.take(256), modelSize)
	pd, acc := PD(1+m.take(2)), m.access()
	ok := !r.gone && !r.fast && m.bound(r) == 0 && legal(acc, r.iova)
	if err := m.tab.Reregister(r.r, m.buf[from:to], pd, acc, r.iova); (err == nil) != ok {
		m.t.Fatalf("change %+v with %d windows: %v", r, m.bound(r), err)
	}
	if ok {
		r.pd, r.acc, r.from, r.to = pd, acc, from, to
	}
}

// use writes or reads through a key, at an offset.
func (m *windowModel) use() {
	who, write := m.qp(), m.take(2) == 0
	need := RemoteRead
	if write {
		need = RemoteWrite
	}
	var key uint32
	var va uint64
	var ok bool
	var at int
	off, n := m.take(256)-4, 1+m.take(16)
	inside := func(from, to int) bool { return off >= 0 && off+n <= to-from }
	if m.take(2) == 0 {
		r := m.region()
		key, va, at = m.wrong(r.key), r.iova, r.from
		ok = !r.gone && r.valid && key == r.key && r.pd == who.PD && r.acc&need != 0 && inside(r.from, r.to)
	} else {
		w := m.window()
		key, va, at = m.wrong(w.key), w.va, w.from
		ok = key == w.key && w.on != nil && w.acc&need != 0 && inside(w.from, w.to)
		switch w.w.Type() {
		case WindowType1:
			ok = ok && w.pd == who.PD
		case WindowType2A:
			ok = ok && w.qpn == who.Num
		case WindowType2B:
			ok = ok && w.pd == who.PD && w.qpn == who.Num
		}
	}
	var c Cursor
	c.Serve(who.Num)
	if got := c.Remote(m.tab, who.PD, key, va+uint64(off), uint64(n), need); (got == OK) != ok {
		m.t.Fatalf("access by %v to %d bytes at %d with %#x, %v: %v, want success %v", who, n, off, key, need, got, ok)
	}
	if !ok {
		return
	}
	b := make([]byte, n)
	if write {
		for i := range b {
			b[i] = byte(m.take(256))
		}
		c.CopyIn(0, b)
	} else {
		c.CopyOut(b, 0)
	}
	if string(m.buf[at+off:][:n]) != string(b) {
		m.t.Fatalf("access by %v through %#x at %d is not to byte %d of the buffer", who, key, off, at)
	}
}

func runWindowModel(t *testing.T, ops []byte) {
	m := &windowModel{t: t, tab: NewTable(seeded(9)), buf: make([]byte, modelSize), ops: ops}
	for i := range 4 {
		r := &modelRegion{fast: i >= 2, pd: PD(1 + i%2), iova: uint64(i%2) * 0x1000, mapFrom: -1}
		var err error
		if r.fast {
			r.r, err = m.tab.AllocRegion(modelSize, r.pd)
		} else {
			r.valid, r.acc, r.to = true, LocalWrite|MWBind|RemoteRead|RemoteWrite, modelSize
			r.r, err = m.tab.Register(m.buf, r.pd, r.acc, r.iova)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.key = r.r.Key()
		m.regions = append(m.regions, r)
	}
	for i := range 6 {
		w := &modelWindow{pd: PD(1 + i%2)}
		var err error
		if w.w, err = m.tab.AllocWindow(w.pd, WindowType(1+i/2)); err != nil {
			t.Fatal(err)
		}
		w.key = w.w.Key()
		m.windows = append(m.windows, w)
	}
	for len(m.ops) > 0 {
		m.step()
	}
}

// FuzzWindows runs sequences of bind, invalidate, registration and access against
// a plain model: what succeeds, which key is in force, which bytes are reached.
func FuzzWindows(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 4))
	n := 200
	if raceEnabled {
		n = 20
	}
	for range n {
		ops := make([]byte, 2000)
		for i := range ops {
			ops[i] = byte(rng.Uint32())
		}
		f.Add(ops)
	}
	f.Fuzz(runWindowModel)
}
