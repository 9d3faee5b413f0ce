package roce_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
)

// xrcDomain opens a domain that only this device has.
func xrcDomain(t testing.TB, e *rocetest.Endpoint) *roce.XRCD {
	t.Helper()
	x, err := e.Dev.OpenXRCD("", os.O_CREATE)
	must(t, err)
	return x
}

// xrcQueue is a shared receive queue of an XRC domain; what it receives completes
// on the endpoint's CQ, which is its own.
type xrcQueue struct {
	*rocetest.Endpoint
	srq *roce.SRQ
}

// newXRCQueue makes a queue with memory and a protection domain of its own.
func newXRCQueue(t testing.TB, d *roce.Device, x *roce.XRCD, cfg roce.SRQConfig) *xrcQueue {
	t.Helper()
	q := &xrcQueue{Endpoint: rocetest.New(t, d, rocetest.Options{Memory: 1 << 16})}
	cfg.XRCD, cfg.CQ = x, q.CQ
	var err error
	q.srq, err = q.PD.CreateSRQ(cfg)
	must(t, err)
	return q
}

// post posts receives of 4 KiB.
func (q *xrcQueue) post(t testing.TB, ids ...uint64) {
	t.Helper()
	for _, id := range ids {
		must(t, q.srq.PostRecv(roce.RecvWR{ID: id, SGE: []roce.SGE{q.MR.SGE(0, 4096)}}))
	}
}

// xrcConnect connects a new sender at a with a target at b's device.
func xrcConnect(t testing.TB, a *rocetest.Endpoint, b *roce.Device, target *roce.QP) *roce.QP {
	t.Helper()
	send, err := a.PD.CreateQP(roce.QPConfig{Type: roce.XRCSend, SendCQ: a.CQ})
	must(t, err)
	conn := roce.Conn{Access: roce.RemoteWrite | roce.RemoteRead | roce.RemoteAtomic, PathMTU: roce.MTU1024}
	must(t, send.Connect(roce.Remote{Addr: b.Addr(), QPN: target.Num(), PSN: target.PSN()}, conn))
	must(t, target.Connect(roce.Remote{Addr: a.Dev.Addr(), QPN: send.Num(), PSN: send.PSN()}, conn))
	return send
}

// xrcPair returns a sender at a and its target at b, in a domain.
func xrcPair(t testing.TB, a, b *rocetest.Endpoint, x *roce.XRCD) (send, target *roce.QP) {
	t.Helper()
	target, err := x.CreateQP()
	must(t, err)
	return xrcConnect(t, a, b.Dev, target), target
}

// TestXRCOperations: all operations that XRC has, with messages of one packet and
// several; a receive completes with the numbers of the target and of the sender
// (ibv_xsrq_pingpong finds its connection by wc.qp_num).
func TestXRCOperations(t *testing.T) {
	a, b := rocetest.Pair(t)
	x := xrcDomain(t, b)
	send, target := xrcPair(t, a, b, x)
	q := newXRCQueue(t, b.Dev, x, roce.SRQConfig{})
	for _, size := range []int{0, 8, 1025, 4000} {
		for _, op := range []roce.WROpcode{roce.WRSend, roce.WRSendWithImm, roce.WRWrite, roce.WRWriteWithImm, roce.WRRead} {
			src, dst := a.MR.Bytes()[:size], q.MR.Bytes()[:size]
			if op == roce.WRRead {
				src, dst = dst, src
			}
			fill(src, int(op))
			clear(dst)
			recv := op != roce.WRWrite && op != roce.WRRead
			if recv {
				q.post(t, 7)
			}
			must(t, send.PostSend(roce.SendWR{
				ID: 1, Opcode: op, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, size)}, Imm: 9,
				RemoteAddr: q.MR.Addr(), RKey: q.MR.RKey(), RemoteSRQN: q.srq.Num(),
			}))
			if wc := a.Next(t); wc.Status != roce.WCSuccess || wc.QPN != send.Num() {
				t.Fatalf("operation %d of %d bytes: %+v", op, size, wc)
			}
			if recv {
				wc := q.Next(t)
				imm := op != roce.WRSend
				if wc.ID != 7 || wc.Status != roce.WCSuccess || int(wc.ByteLen) != size || wc.QPN != target.Num() || wc.SrcQP != send.Num() ||
					imm != (wc.Flags&roce.WCWithImm != 0) || imm && wc.Imm != 9 {
					t.Errorf("operation %d of %d bytes is received as %+v", op, size, wc)
				}
			}
			if !bytes.Equal(src, dst) {
				t.Errorf("operation %d of %d bytes: wrong bytes", op, size)
			}
		}
	}
	q.MR.StoreUint64(64, 5)
	must(t, send.PostSend(roce.SendWR{
		ID: 2, Opcode: roce.WRAtomicFetAdd, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 8)}, CompareAdd: 3,
		RemoteAddr: q.MR.Addr() + 64, RKey: q.MR.RKey(), RemoteSRQN: q.srq.Num(),
	}))
	want(t, a.Next(t), 2, roce.WCFetchAdd, roce.WCSuccess)
	if found, now := a.MR.LoadUint64(0), q.MR.LoadUint64(64); found != 5 || now != 8 {
		t.Errorf("FETCH_ADD found %d and left %d", found, now)
	}
	fast, err := q.PD.AllocMR(4096)
	must(t, err)
	must(t, fast.Map(make([]byte, 4096)))
	must(t, q.QP.Connect(roce.Remote{Addr: a.Dev.Addr(), QPN: 99}, roce.Conn{}))
	key := fast.RKey()
	must(t, q.QP.PostSend(roce.SendWR{ID: 3, Opcode: roce.WRRegMR, Flags: roce.Signaled, MR: fast, RKey: key, Access: roce.LocalWrite | roce.RemoteWrite}))
	want(t, q.Next(t), 3, roce.WCRegMR, roce.WCSuccess)
	q.post(t, 8)
	must(t, send.PostSend(roce.SendWR{ID: 4, Opcode: roce.WRSendWithInv, Flags: roce.Signaled, InvalidateRKey: key, RemoteSRQN: q.srq.Num()}))
	want(t, a.Next(t), 4, roce.WCSend, roce.WCSuccess)
	if wc := q.Next(t); wc.Flags&roce.WCWithInv == 0 || wc.Imm != key {
		t.Errorf("SEND with invalidate is received as %+v", wc)
	}
}

// TestXRCWindows: a window of type 1 of the receive queue's protection domain opens
// memory to a target; one of type 2 is bound to a queue pair, which a target is not
// (IBTA 10.6.7.2).
func TestXRCWindows(t *testing.T) {
	a, b := rocetest.Pair(t)
	x := xrcDomain(t, b)
	q := newXRCQueue(t, b.Dev, x, roce.SRQConfig{})
	must(t, q.QP.Connect(roce.Remote{Addr: a.Dev.Addr(), QPN: 99}, roce.Conn{}))
	mr, err := q.PD.RegisterMR(make([]byte, 100), roce.LocalWrite|roce.MWBind)
	must(t, err)
	for _, typ := range []roce.MWType{roce.MWType1, roce.MWType2A, roce.MWType2B} {
		win, err := q.PD.AllocMW(typ)
		must(t, err)
		key, status := roce.IncRKey(win.RKey()), roce.WCRemAccessErr
		if typ == roce.MWType1 {
			status = roce.WCSuccess
			must(t, q.QP.BindMW(win, roce.BindWR{ID: 1, Flags: roce.Signaled, MR: mr, Addr: mr.Addr(), Length: 100, Access: roce.RemoteWrite}))
		} else {
			must(t, q.QP.PostSend(roce.SendWR{ID: 1, Opcode: roce.WRBindMW, Flags: roce.Signaled, MW: win, RKey: key, MR: mr, Addr: mr.Addr(), Length: 100, Access: roce.RemoteWrite}))
		}
		want(t, q.Next(t), 1, roce.WCBindMW, roce.WCSuccess)
		send, _ := xrcPair(t, a, b, x)
		must(t, send.PostSend(roce.SendWR{
			ID: 2, Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 8)}, RemoteAddr: mr.Addr(), RKey: key, RemoteSRQN: q.srq.Num(),
		}))
		want(t, a.Next(t), 2, roce.WCWrite, status)
	}
}

// TestXRCOneConnection: one connection reaches all receive queues of the domain,
// each with its receives, completion queue and protection domain (IBTA A14).
func TestXRCOneConnection(t *testing.T) {
	a, b := rocetest.Pair(t)
	x := xrcDomain(t, b)
	send, target := xrcPair(t, a, b, x)
	queues := []*xrcQueue{newXRCQueue(t, b.Dev, x, roce.SRQConfig{}), newXRCQueue(t, b.Dev, x, roce.SRQConfig{Limit: 1})}
	for i, q := range queues {
		q.post(t, uint64(i))
		fill(a.MR.Bytes()[:100], i)
		must(t, send.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 100)}, RemoteSRQN: q.srq.Num()}))
		want(t, a.Next(t), 0, roce.WCSend, roce.WCSuccess)
		want(t, q.Next(t), uint64(i), roce.WCRecv, roce.WCSuccess)
		if !bytes.Equal(q.MR.Bytes()[:100], a.MR.Bytes()[:100]) {
			t.Errorf("queue %d has wrong bytes", i)
		}
	}
	if ev := next(t, b.Dev, roce.EventSRQLimit); ev.SRQ != queues[1].srq {
		t.Errorf("the limit of %p was reached, want %p", ev.SRQ, queues[1].srq)
	}
	must(t, send.PostSend(roce.SendWR{
		Opcode: roce.WRWrite, SGE: []roce.SGE{a.MR.SGE(0, 8)}, RemoteSRQN: queues[0].srq.Num(), RemoteAddr: queues[1].MR.Addr(), RKey: queues[1].MR.RKey(),
	}))
	want(t, a.Next(t), 0, roce.WCWrite, roce.WCRemAccessErr)
	for _, e := range []roce.EventType{roce.EventQPAccessErr, roce.EventQPLastWQE} {
		if ev := next(t, b.Dev, e); ev.QP != target {
			t.Errorf("%v is about %p, want the target", e, ev.QP)
		}
	}
}

// TestXRCNoSuchQueue: a request for a receive queue that the domain has not ends its
// connection and no other.
func TestXRCNoSuchQueue(t *testing.T) {
	a, b := rocetest.Pair(t)
	x := xrcDomain(t, b)
	gone := newXRCQueue(t, b.Dev, x, roce.SRQConfig{})
	must(t, gone.srq.Destroy())
	overflowed := newXRCQueue(t, b.Dev, x, roce.SRQConfig{})
	q := newXRCQueue(t, b.Dev, x, roce.SRQConfig{})
	good, _ := xrcPair(t, a, b, x)
	overflow(t, a, good, overflowed, b.Dev)
	for _, c := range []struct {
		name string
		num  ib.QPN
	}{
		{"destroyed", gone.srq.Num()},
		{"its completion queue overflowed", overflowed.srq.Num()},
		{"of another domain", newXRCQueue(t, b.Dev, xrcDomain(t, b), roce.SRQConfig{}).srq.Num()},
		{"a queue pair's number", good.Num()},
	} {
		t.Run(c.name, func(t *testing.T) {
			send, target := xrcPair(t, a, b, x)
			must(t, send.PostSend(roce.SendWR{ID: 1, Opcode: roce.WRSend, RemoteSRQN: c.num}))
			want(t, a.Next(t), 1, roce.WCSend, roce.WCRemInvReqErr)
			next(t, b.Dev, roce.EventQPAccessErr)
			next(t, b.Dev, roce.EventQPLastWQE)
			if target.State() != roce.StateErr {
				t.Errorf("the target is in %v", target.State())
			}
			q.post(t, 2)
			must(t, good.PostSend(roce.SendWR{ID: 3, Opcode: roce.WRSend, Flags: roce.Signaled, RemoteSRQN: q.srq.Num()}))
			want(t, a.Next(t), 3, roce.WCSend, roce.WCSuccess)
			want(t, q.Next(t), 2, roce.WCRecv, roce.WCSuccess)
		})
	}
}

// overflow fills the completion queue of a receive queue.
func overflow(t *testing.T, a *rocetest.Endpoint, send *roce.QP, q *xrcQueue, d *roce.Device) {
	t.Helper()
	for range q.CQ.Cap() + 1 {
		q.post(t, 0)
		must(t, send.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled, RemoteSRQN: q.srq.Num()}))
		want(t, a.Next(t), 0, roce.WCSend, roce.WCSuccess)
	}
	if ev := next(t, d, roce.EventCQErr); ev.CQ != q.CQ {
		t.Errorf("%p overflowed", ev.CQ)
	}
	if ev := next(t, d, roce.EventSRQErr); ev.SRQ != q.srq {
		t.Errorf("the error is of %p", ev.SRQ)
	}
}

// TestXRCDomains: what ibv_open_xrcd(3) and ibv_open_qp(3) say of domains, targets
// and what is in use.
func TestXRCDomains(t *testing.T) {
	a, _ := rocetest.Pair(t)
	d := a.Dev
	open := func(name string, flags int) (*roce.XRCD, error) { return d.OpenXRCD(name, flags) }
	var ce *roce.ConfigError
	for _, flags := range []int{os.O_RDWR, os.O_CREATE | os.O_TRUNC} {
		if _, err := open("n", flags); !errors.As(err, &ce) || ce.Field != "flags" {
			t.Errorf("flags %#x: %v", flags, err)
		}
	}
	if _, err := open("", 0); !errors.As(err, &ce) || ce.Field != "flags" {
		t.Errorf("no name, not to be created: %v", err)
	}
	if _, err := open("n", 0); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), `"n"`) {
		t.Errorf("not there: %v", err)
	}
	x, err := open("n", os.O_CREATE|os.O_EXCL)
	must(t, err)
	if _, err := open("n", os.O_CREATE|os.O_EXCL); !errors.Is(err, fs.ErrExist) {
		t.Errorf("there already: %v", err)
	}
	again, err := open("n", os.O_CREATE)
	must(t, err)
	other, err := open("", os.O_CREATE)
	must(t, err)

	q, err := x.CreateQP()
	must(t, err)
	same, err := again.OpenQP(q.Num())
	must(t, err)
	if _, err := other.OpenQP(q.Num()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("target of another domain: %v", err)
	}
	if _, err := x.OpenQP(a.QP.Num()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no target: %v", err)
	}
	must(t, same.Init(0))
	if q.State() != roce.StateInit || same.Num() != q.Num() || same.PSN() != q.PSN() {
		t.Errorf("the two are not one: %v", q.State())
	}
	for _, x := range []*roce.XRCD{x, again} {
		if err := x.Close(); !errors.Is(err, roce.ErrBusy) {
			t.Errorf("closed with a target: %v", err)
		}
	}
	must(t, q.Destroy())
	must(t, x.Close())
	for what, err := range map[string]error{"Destroy": q.Destroy(), "Modify": q.Init(0), "Close": x.Close()} {
		if !errors.Is(err, roce.ErrClosed) {
			t.Errorf("%s again: %v", what, err)
		}
	}
	if _, err := x.CreateQP(); !errors.Is(err, roce.ErrClosed) {
		t.Errorf("target of a closed domain: %v", err)
	}
	if _, err := x.OpenQP(q.Num()); !errors.Is(err, roce.ErrClosed) {
		t.Errorf("target of a closed domain: %v", err)
	}
	if same.State() != roce.StateInit {
		t.Errorf("the other's target is in %v", same.State())
	}
	must(t, same.Destroy())
	if _, err := again.OpenQP(q.Num()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("destroyed target: %v", err)
	}

	s, err := a.PD.CreateSRQ(roce.SRQConfig{XRCD: again, CQ: a.CQ})
	must(t, err)
	if err := again.Close(); !errors.Is(err, roce.ErrBusy) {
		t.Errorf("closed with a receive queue: %v", err)
	}
	must(t, a.QP.Destroy())
	if err := a.CQ.Destroy(); !errors.Is(err, roce.ErrBusy) {
		t.Errorf("CQ destroyed with a receive queue: %v", err)
	}
	must(t, s.Destroy())
	must(t, a.CQ.Destroy())
	must(t, again.Close())
	if _, err := open("n", 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("closed by all: %v", err)
	}
}

// TestXRCRefusals: what cannot be made and what cannot be posted.
func TestXRCRefusals(t *testing.T) {
	a, b := rocetest.Pair(t)
	x := xrcDomain(t, b)
	send, target := xrcPair(t, a, b, x)
	q := newXRCQueue(t, b.Dev, x, roce.SRQConfig{})
	for field, cfg := range map[string]roce.SRQConfig{"CQ": {XRCD: x}, "XRCD": {CQ: b.CQ}} {
		var ce *roce.ConfigError
		if _, err := b.PD.CreateSRQ(cfg); !errors.As(err, &ce) || ce.Field != field {
			t.Errorf("%s is missing: %v", field, err)
		}
	}
	for field, cfg := range map[string]roce.SRQConfig{"CQ": {XRCD: x, CQ: a.CQ}, "XRCD": {XRCD: xrcDomain(t, a), CQ: b.CQ}} {
		var ce *roce.ConfigError
		if _, err := b.PD.CreateSRQ(cfg); !errors.As(err, &ce) || ce.Field != field {
			t.Errorf("%s of another device: %v", field, err)
		}
	}
	if _, err := q.PD.CreateQP(roce.QPConfig{SendCQ: q.CQ, SRQ: q.srq}); err == nil || !strings.Contains(err.Error(), "of no XRC domain") {
		t.Errorf("RC with a receive queue of XRC: %v", err)
	}
	plain, err := b.PD.CreateSRQ(roce.SRQConfig{})
	must(t, err)
	if plain.Num() != 0 {
		t.Errorf("a queue of no domain has number %#x", plain.Num())
	}
	win, err := b.PD.AllocMW(roce.MWType1)
	must(t, err)
	ok := roce.SendWR{Opcode: roce.WRSend, RemoteSRQN: q.srq.Num()}
	for _, c := range []struct {
		what, field string
		err         error
	}{
		{"a target sends", "", target.PostSend(ok)},
		{"a target binds", "", target.BindMW(win, roce.BindWR{})},
		{"a target has a receive queue", "", target.PostRecv(roce.RecvWR{})},
		{"a sender has a receive queue", "", send.PostRecv(roce.RecvWR{})},
		{"number 0", "RemoteSRQN", send.PostSend(roce.SendWR{Opcode: roce.WRWrite})},
		{"number of 25 bits", "RemoteSRQN", send.PostSend(roce.SendWR{Opcode: roce.WRRead, RemoteSRQN: 1 << 24})},
		{"FLUSH", "Opcode", send.PostSend(roce.SendWR{Opcode: roce.WRFlush, RemoteSRQN: 1})},
		{"ATOMIC_WRITE", "Opcode", send.PostSend(roce.SendWR{Opcode: roce.WRAtomicWrite, RemoteSRQN: 1})},
	} {
		var pe *roce.PostError
		if !errors.As(c.err, &pe) || pe.Field != c.field {
			t.Errorf("%s: %v", c.what, c.err)
		}
	}
	if attr, cfg := target.Query(); attr.DestQPN != send.Num() || cfg != (roce.QPConfig{Type: roce.XRCRecv}) {
		t.Errorf("the target is %+v, of %+v", attr, cfg)
	}
	if attr, cfg := send.Query(); attr.DestQPN != target.Num() || cfg.Type != roce.XRCSend || cfg.MaxSendWR < 128 || cfg.MaxRecvWR != 0 || cfg.RecvCQ != nil {
		t.Errorf("the sender is %+v, of %+v", attr, cfg)
	}
}

// TestXRCTwoDevices: two devices on one address share a domain by its name, as two
// processes do by a file: the target of one receives for the queue of the other, lives
// on when its device closes, and reaches that device's queues no longer.
func TestXRCTwoDevices(t *testing.T) {
	a := rocetest.New(t, openUDP(t, "127.0.0.2", roce.Config{}), rocetest.Options{})
	var domains [2]*roce.XRCD
	var queues [2]*xrcQueue
	for i := range domains {
		d := openUDP(t, "127.0.0.1", roce.Config{})
		var err error
		domains[i], err = d.OpenXRCD("job", os.O_CREATE)
		must(t, err)
		queues[i] = newXRCQueue(t, d, domains[i], roce.SRQConfig{})
	}
	first, second := queues[0], queues[1]
	target, err := domains[0].CreateQP()
	must(t, err)
	send := xrcConnect(t, a, first.Dev, target)
	deliver := func(q *xrcQueue) {
		t.Helper()
		q.post(t, 5)
		fill(a.MR.Bytes()[:3000], 1)
		clear(q.MR.Bytes())
		must(t, send.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 3000)}, RemoteSRQN: q.srq.Num()}))
		want(t, a.Next(t), 0, roce.WCSend, roce.WCSuccess)
		want(t, q.Next(t), 5, roce.WCRecv, roce.WCSuccess)
		if !bytes.Equal(q.MR.Bytes()[:3000], a.MR.Bytes()[:3000]) {
			t.Error("wrong bytes")
		}
	}
	deliver(first)
	deliver(second)
	theirs, err := domains[1].OpenQP(target.Num())
	must(t, err)
	must(t, first.Dev.Close())
	deliver(second)
	if err := target.Destroy(); !errors.Is(err, roce.ErrClosed) {
		t.Errorf("target of the closed device: %v", err)
	}
	must(t, send.PostSend(roce.SendWR{Opcode: roce.WRSend, RemoteSRQN: first.srq.Num()}))
	want(t, a.Next(t), 0, roce.WCSend, roce.WCRemInvReqErr)
	if ev := next(t, second.Dev, roce.EventQPAccessErr); ev.QP != theirs {
		t.Errorf("the event is about %p, want what was opened", ev.QP)
	}
	next(t, second.Dev, roce.EventQPLastWQE)
	must(t, theirs.Destroy())
	must(t, second.Dev.Close())
	if err := domains[1].Close(); !errors.Is(err, roce.ErrClosed) {
		t.Errorf("domain of a closed device: %v", err)
	}
	if _, err := second.Dev.OpenXRCD("job", os.O_CREATE); !errors.Is(err, roce.ErrClosed) {
		t.Errorf("domain on a closed device: %v", err)
	}
	d := openUDP(t, "127.0.0.1", roce.Config{})
	if _, err := d.OpenXRCD("job", 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the domain outlives its devices: %v", err)
	}
}

// TestXRCEventsToAll: an event of a target goes to all who have it open.
func TestXRCEventsToAll(t *testing.T) {
	a, b := rocetest.Pair(t)
	x := xrcDomain(t, b)
	send, target := xrcPair(t, a, b, x)
	again, err := x.OpenQP(target.Num())
	must(t, err)
	must(t, send.PostSend(roce.SendWR{Opcode: roce.WRSend, RemoteSRQN: 1}))
	want(t, a.Next(t), 0, roce.WCSend, roce.WCRemInvReqErr)
	for _, e := range []roce.EventType{roce.EventQPAccessErr, roce.EventQPLastWQE} {
		if one, two := next(t, b.Dev, e), next(t, b.Dev, e); one.QP != target || two.QP != again {
			t.Errorf("%v is about %p and %p", e, one.QP, two.QP)
		}
	}
	must(t, target.Destroy())
	if again.State() != roce.StateErr {
		t.Errorf("%v", again.State())
	}
}
