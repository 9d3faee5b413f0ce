package roce_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
)

// windowPair is two endpoints, of which b lets windows be bound to its memory.
type windowPair struct {
	testing.TB
	a, b *rocetest.Endpoint
	buf  []byte
	mr   *roce.MR // of b
}

func newWindowPair(t testing.TB) *windowPair {
	p := &windowPair{TB: t, buf: make([]byte, 4096)}
	p.a, p.b = rocetest.Pair(t)
	var err error
	if p.mr, err = p.b.PD.RegisterMR(p.buf, roce.LocalWrite|roce.MWBind); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *windowPair) window(t roce.MWType) *roce.MW {
	w, err := p.b.PD.AllocMW(t)
	if err != nil {
		p.Fatal(err)
	}
	return w
}

// post posts a request and expects its completion.
func (p *windowPair) post(e *rocetest.Endpoint, wr roce.SendWR, want roce.WCStatus) roce.WC {
	p.Helper()
	wr.Flags |= roce.Signaled
	if err := e.QP.PostSend(wr); err != nil {
		p.Fatal(err)
	}
	wc := e.Next(p)
	if wc.Status != want {
		p.Fatalf("opcode %d: %v, want %v", wr.Opcode, wc.Status, want)
	}
	return wc
}

// bind opens a window of type 2 for 64 bytes from offset 128 of b's memory.
func (p *windowPair) bind(w *roce.MW, acc roce.Access) {
	p.Helper()
	wc := p.post(p.b, roce.SendWR{
		ID: 7, Opcode: roce.WRBindMW, MW: w, RKey: roce.IncRKey(w.RKey()),
		MR: p.mr, Addr: p.mr.Addr() + 128, Length: 64, Access: acc,
	}, roce.WCSuccess)
	if wc.ID != 7 || wc.Opcode != roce.WCBindMW || !w.Bound() {
		p.Fatalf("completion %+v, bound %v", wc, w.Bound())
	}
}

// write WRITEs through a key from a to b.
func (p *windowPair) write(addr uint64, key uint32, text string, want roce.WCStatus) {
	p.Helper()
	n := copy(p.a.MR.Bytes(), text)
	p.post(p.a, roce.SendWR{Opcode: roce.WRWrite, SGE: []roce.SGE{p.a.MR.SGE(0, n)}, RemoteAddr: addr, RKey: key}, want)
}

func TestWindowType2(t *testing.T) {
	for _, typ := range []roce.MWType{roce.MWType2A, roce.MWType2B} {
		p := newWindowPair(t)
		w := p.window(typ)
		p.bind(w, roce.RemoteWrite)
		p.write(p.mr.Addr()+130, w.RKey(), "through", roce.WCSuccess)
		if got := string(p.buf[130:137]); got != "through" {
			t.Errorf("%q in memory", got)
		}
		if err := p.mr.Deregister(); !errors.Is(err, roce.ErrBusy) {
			t.Errorf("deregister with a window: %v", err)
		}

		// The peer closes it with its last message.
		if err := p.b.QP.PostRecv(roce.RecvWR{ID: 5, SGE: []roce.SGE{p.b.MR.SGE(0, 64)}}); err != nil {
			t.Fatal(err)
		}
		p.post(p.a, roce.SendWR{Opcode: roce.WRSendWithInv, InvalidateRKey: w.RKey(), SGE: []roce.SGE{p.a.MR.SGE(0, 4)}}, roce.WCSuccess)
		wc := p.b.Next(t)
		if wc.ID != 5 || wc.Opcode != roce.WCRecv || wc.ByteLen != 4 || wc.Flags != roce.WCWithInv || wc.Imm != w.RKey() || w.Bound() {
			t.Errorf("received %+v, want the key %#x; bound %v", wc, w.RKey(), w.Bound())
		}
		old := w.RKey()
		p.bind(w, roce.RemoteWrite)
		p.write(p.mr.Addr()+128, w.RKey(), "again", roce.WCSuccess)
		p.post(p.b, roce.SendWR{Opcode: roce.WRLocalInv, InvalidateRKey: w.RKey()}, roce.WCSuccess)
		if err := p.mr.Deregister(); err != nil {
			t.Errorf("deregister without windows: %v", err)
		}
		p.write(p.mr.Addr()+128, old, "never", roce.WCRemAccessErr)
		if bytes.Contains(p.buf, []byte("never")) {
			t.Error("written through a closed window")
		}
	}
}

func TestWindowType1(t *testing.T) {
	p := newWindowPair(t)
	w := p.window(roce.MWType1)
	bind := func(b roce.BindWR) {
		t.Helper()
		b.Flags = roce.Signaled
		if err := p.b.QP.BindMW(w, b); err != nil {
			t.Fatal(err)
		}
		if wc := p.b.Next(t); wc.Status != roce.WCSuccess || wc.Opcode != roce.WCBindMW {
			t.Fatalf("bind: %+v", wc)
		}
	}
	bind(roce.BindWR{MR: p.mr, Addr: p.mr.Addr(), Length: 16, Access: roce.RemoteRead | roce.RemoteWrite})
	first := w.RKey()
	p.write(p.mr.Addr(), first, "one", roce.WCSuccess)
	bind(roce.BindWR{MR: p.mr, Addr: p.mr.Addr() + 100, Length: 16, Access: roce.RemoteWrite})
	if w.RKey() != roce.IncRKey(first) {
		t.Errorf("keys %#x, %#x", first, w.RKey())
	}
	p.write(p.mr.Addr()+100, w.RKey(), "two", roce.WCSuccess)
	bind(roce.BindWR{})
	if w.Bound() {
		t.Error("bound after a bind of length 0")
	}
	if err := p.mr.Deregister(); err != nil {
		t.Error(err)
	}
	p.write(p.mr.Addr(), first, "three", roce.WCRemAccessErr)
}

// A request of a list may use what the one before it opens.
func TestBindAndTellInOneList(t *testing.T) {
	p := newWindowPair(t)
	w := p.window(roce.MWType2B)
	if err := p.a.QP.PostRecv(roce.RecvWR{SGE: []roce.SGE{p.a.MR.SGE(0, 64)}}); err != nil {
		t.Fatal(err)
	}
	key := roce.IncRKey(w.RKey())
	err := p.b.QP.PostSend(
		roce.SendWR{Opcode: roce.WRBindMW, MW: w, RKey: key, MR: p.mr, Addr: p.mr.Addr(), Length: 64, Access: roce.RemoteWrite | roce.ZeroBased},
		roce.SendWR{Opcode: roce.WRSendWithImm, Imm: key},
	)
	if err != nil {
		t.Fatal(err)
	}
	wc := p.a.Next(t)
	p.write(3, wc.Imm, "zero", roce.WCSuccess)
	if got := string(p.buf[3:7]); got != "zero" {
		t.Errorf("%q in memory", got)
	}
}

func TestFastRegistration(t *testing.T) {
	p := newWindowPair(t)
	mr, err := p.b.PD.AllocMR(8192)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		buf := make([]byte, 100)
		if err := mr.Map(buf, roce.IOVA(0x1000)); err != nil {
			t.Fatal(err)
		}
		key := roce.IncRKey(mr.RKey())
		wc := p.post(p.b, roce.SendWR{Opcode: roce.WRRegMR, MR: mr, RKey: key, Access: roce.LocalWrite | roce.RemoteWrite}, roce.WCSuccess)
		if wc.Opcode != roce.WCRegMR || mr.RKey() != key || !mr.Valid() || mr.Addr() != 0x1000 || mr.Len() != 100 {
			t.Fatalf("completion %+v, region %#x valid %v at %#x, %d bytes", wc, mr.RKey(), mr.Valid(), mr.Addr(), mr.Len())
		}
		p.write(0x1000+90, key, "fast", roce.WCSuccess)
		if string(buf[90:94]) != "fast" {
			t.Errorf("round %d: %q", round, buf[90:])
		}
		if wc = p.post(p.b, roce.SendWR{Opcode: roce.WRLocalInv, InvalidateRKey: key}, roce.WCSuccess); wc.Opcode != roce.WCLocalInv || mr.Valid() {
			t.Errorf("completion %+v, valid %v", wc, mr.Valid())
		}
	}
	p.write(0x1000, mr.RKey(), "never", roce.WCRemAccessErr)
	if err := mr.Deregister(); err != nil {
		t.Error(err)
	}
}

// What is wrong with a local operation when its turn comes is the status of its
// completion; the queue pair goes to the error state.
func TestLocalOperationFails(t *testing.T) {
	p := newWindowPair(t)
	p.post(p.b, roce.SendWR{Opcode: roce.WRLocalInv, InvalidateRKey: p.mr.RKey()}, roce.WCMWBindErr)
	if s := p.b.QP.State(); s != roce.StateErr {
		t.Errorf("state %v", s)
	}
}

func TestLocalOperationsPostErrors(t *testing.T) {
	p := newWindowPair(t)
	one, two := p.window(roce.MWType1), p.window(roce.MWType2B)
	foreign, err := p.a.PD.AllocMW(roce.MWType2B)
	if err != nil {
		t.Fatal(err)
	}
	bind := roce.SendWR{Opcode: roce.WRBindMW, MW: two, RKey: two.RKey(), MR: p.mr, Length: 1}
	fast, err := p.b.PD.AllocMR(10)
	if err != nil {
		t.Fatal(err)
	}
	reg := roce.SendWR{Opcode: roce.WRRegMR, MR: fast, RKey: fast.RKey()}
	for _, tt := range []struct {
		rule  string
		base  roce.SendWR
		f     func(*roce.SendWR)
		field string
	}{
		{"a bind without a window", bind, func(w *roce.SendWR) { w.MW = nil }, "MW"},
		{"a window of another device", bind, func(w *roce.SendWR) { w.MW = foreign }, "MW"},
		{"a window of type 1", bind, func(w *roce.SendWR) { w.MW = one }, "MW"},
		{"a bind without a region", bind, func(w *roce.SendWR) { w.MR = nil }, "MR"},
		{"a region of another device", bind, func(w *roce.SendWR) { w.MR = p.a.MR }, "MR"},
		{"a key of another window", bind, func(w *roce.SendWR) { w.RKey ^= 1 << 8 }, "RKey"},
		{"a registration without a region", reg, func(w *roce.SendWR) { w.MR = nil }, "MR"},
		{"an ordinary region", reg, func(w *roce.SendWR) { w.MR = p.mr }, "MR"},
		{"the region of another device", reg, func(w *roce.SendWR) { w.MR = p.a.MR }, "MR"},
		{"a key of another region", reg, func(w *roce.SendWR) { w.RKey ^= 1 << 31 }, "RKey"},
		{"segments", roce.SendWR{Opcode: roce.WRLocalInv}, func(w *roce.SendWR) { w.SGE = []roce.SGE{{}} }, "SGE"},
		{"data", roce.SendWR{Opcode: roce.WRLocalInv}, func(w *roce.SendWR) { w.Data = []byte{1} }, "Data"},
		{"inline", reg, func(w *roce.SendWR) { w.Flags = roce.Inline }, "Flags"},
		{"solicited", bind, func(w *roce.SendWR) { w.Flags = roce.Solicited }, "Flags"},
	} {
		wr := tt.base
		tt.f(&wr)
		var pe *roce.PostError
		if err := p.b.QP.PostSend(wr); !errors.As(err, &pe) || pe.Field != tt.field {
			t.Errorf("%s: %v, want an error that names %s", tt.rule, err, tt.field)
		}
	}
	var pe *roce.PostError
	for _, w := range []*roce.MW{nil, two} {
		if err := p.b.QP.BindMW(w, roce.BindWR{}); !errors.As(err, &pe) || pe.Field != "MW" {
			t.Errorf("BindMW of %v: %v", w, err)
		}
	}
	key := one.RKey()
	if err := p.b.QP.BindMW(one, roce.BindWR{Length: 1}); !errors.As(err, &pe) || pe.Field != "MR" || one.RKey() != key {
		t.Errorf("BindMW without a region: %v, key %#x, before %#x", err, one.RKey(), key)
	}
	qp, err := p.b.PD.CreateQP(roce.QPConfig{SendCQ: p.b.CQ})
	if err != nil {
		t.Fatal(err)
	}
	if err := qp.BindMW(one, roce.BindWR{}); !errors.As(err, &pe) || one.RKey() != key {
		t.Errorf("BindMW in RESET: %v, key %#x, before %#x", err, one.RKey(), key)
	}
	if _, err := p.b.PD.AllocMR(-1); err == nil {
		t.Error("AllocMR of -1 bytes")
	}
}

func TestObjectsThatAreInUse(t *testing.T) {
	p := newWindowPair(t)
	pd, err := p.b.Dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	w, err := pd.AllocMW(roce.MWType1)
	if err != nil {
		t.Fatal(err)
	}
	mr, err := pd.AllocMR(10)
	if err != nil {
		t.Fatal(err)
	}
	for _, free := range []func() error{w.Dealloc, mr.Deregister} {
		if err := pd.Dealloc(); !errors.Is(err, roce.ErrBusy) {
			t.Errorf("domain with an object: %v", err)
		}
		if err := free(); err != nil {
			t.Error(err)
		}
		if err := free(); err == nil {
			t.Error("freed twice")
		}
	}
	if err := pd.Dealloc(); err != nil {
		t.Error(err)
	}
	if err := p.b.Dev.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.b.PD.AllocMW(roce.MWType1); !errors.Is(err, roce.ErrClosed) {
		t.Errorf("window of a closed device: %v", err)
	}
	if _, err := p.b.PD.AllocMR(1); !errors.Is(err, roce.ErrClosed) {
		t.Errorf("region of a closed device: %v", err)
	}
}

func TestReregister(t *testing.T) {
	p := newWindowPair(t)
	key := p.mr.RKey()
	if err := p.mr.Reregister(roce.ReregAccess, nil, nil, roce.LocalWrite|roce.RemoteWrite|roce.MWBind); err != nil {
		t.Fatal(err)
	}
	p.write(p.mr.Addr(), key, "rights", roce.WCSuccess)
	next := make([]byte, 64)
	if err := p.mr.Reregister(roce.ReregTranslation, nil, next, 0, roce.IOVA(0x5000)); err != nil {
		t.Fatal(err)
	}
	if p.mr.RKey() != key || p.mr.Addr() != 0x5000 || p.mr.Len() != 64 || p.mr.SGE(1, 2) != (roce.SGE{Addr: 0x5001, Length: 2, LKey: key}) {
		t.Errorf("region %#x at %#x, %d bytes", p.mr.RKey(), p.mr.Addr(), p.mr.Len())
	}
	p.write(0x5000, key, "memory", roce.WCSuccess)
	if string(next[:6]) != "memory" || string(p.buf[:6]) != "rights" {
		t.Errorf("%q, %q", next[:6], p.buf[:6])
	}

	w := p.window(roce.MWType2B)
	p.post(p.b, roce.SendWR{Opcode: roce.WRBindMW, MW: w, RKey: w.RKey(), MR: p.mr, Addr: 0x5000, Length: 1}, roce.WCSuccess)
	if err := p.mr.Reregister(roce.ReregAccess, nil, nil, 0); !errors.Is(err, roce.ErrBusy) {
		t.Errorf("with a window: %v", err)
	}
	if err := w.Dealloc(); err != nil {
		t.Fatal(err)
	}

	pd, err := p.b.Dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	var ce *roce.ConfigError
	for _, err := range []error{
		p.mr.Reregister(0, nil, nil, 0), p.mr.Reregister(8, nil, nil, 0),
		p.mr.Reregister(roce.ReregPD, nil, nil, 0), p.mr.Reregister(roce.ReregPD, p.a.PD, nil, 0),
	} {
		if !errors.As(err, &ce) {
			t.Errorf("%v, want a ConfigError", err)
		}
	}
	if err := p.mr.Reregister(roce.ReregPD, pd, nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := pd.Dealloc(); !errors.Is(err, roce.ErrBusy) {
		t.Errorf("the new domain: %v", err)
	}
	p.write(0x5000, key, "domain", roce.WCRemAccessErr)
	if err := p.mr.Deregister(); err != nil {
		t.Error(err)
	}
	if err := pd.Dealloc(); err != nil {
		t.Error(err)
	}
	if err := p.mr.Reregister(roce.ReregAccess, nil, nil, 0); err == nil {
		t.Error("a region that is gone was changed")
	}
}

func TestZeroBasedRegion(t *testing.T) {
	p := newWindowPair(t)
	mr, err := p.b.PD.RegisterMR(p.buf, roce.LocalWrite|roce.RemoteWrite|roce.ZeroBased|roce.RelaxedOrdering)
	if err != nil {
		t.Fatal(err)
	}
	p.write(5, mr.RKey(), "zero", roce.WCSuccess)
	if got := string(p.buf[5:9]); mr.Addr() != 0 || got != "zero" {
		t.Errorf("address %#x, %q in memory", mr.Addr(), got)
	}
}
