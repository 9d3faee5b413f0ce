package roce_test

import (
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
)

// allocRig is two endpoints over sockets for a row of TestNothingAllocates: what a
// posts to b, whose memory may have windows.
type allocRig struct {
	t    *testing.T
	a, b *rocetest.Endpoint
	recv func(...roce.RecvWR) error // posts to b
	srqn ib.QPN                     // of XRC
	mr   *roce.MR                   // of b, with MWBind
	wc   []roce.WC
}

// wait polls both ends until a has n completions and b has m. Nothing that is posted
// is left then.
func (r *allocRig) wait(n, m int) {
	for deadline := time.Now().Add(20 * time.Second); n > 0 || m > 0; {
		if time.Now().After(deadline) {
			r.t.Fatalf("%d and %d completions are missing", n, m)
		}
		n -= r.poll(r.a)
		m -= r.poll(r.b)
	}
}

func (r *allocRig) poll(e *rocetest.Endpoint) int {
	n, err := e.CQ.Poll(r.wc)
	must(r.t, err)
	for i := range r.wc[:n] {
		if s := r.wc[i].Status; s != roce.WCSuccess {
			r.t.Fatal(s)
		}
	}
	return n
}

// allocRow is an operation of a service.
type allocRow struct {
	name string
	typ  roce.QPType
	make func(r *allocRig) (round func())
}

// simple is a request from a to b that, with recv, consumes a receive.
func simple(recv bool, wr roce.SendWR) func(r *allocRig) func() {
	return func(r *allocRig) func() {
		wr.Flags |= roce.Signaled
		if n := payload(&wr); n > 0 && wr.Data == nil {
			wr.SGE = []roce.SGE{r.a.MR.SGE(0, n/2), r.a.MR.SGE(1000, n-n/2)}
		}
		wr.RemoteAddr, wr.RKey, wr.RemoteSRQN = r.b.MR.Addr(), r.b.MR.RKey(), r.srqn
		return send(r, recv, []roce.SendWR{wr})
	}
}

// payload is how many bytes a request of a row has.
func payload(wr *roce.SendWR) int {
	switch wr.Opcode {
	case roce.WRFlush:
		return 0
	case roce.WRAtomicFetAdd, roce.WRAtomicCmpSwp, roce.WRAtomicWrite:
		return 8
	}
	return 10000
}

// send makes the round that posts a list of requests of a, the last of which is
// signaled and, with recv, consumes a receive.
func send(r *allocRig, recv bool, list []roce.SendWR) func() {
	recvs, m := []roce.RecvWR{{SGE: []roce.SGE{r.b.MR.SGE(0, 5000), r.b.MR.SGE(5000, 5100)}}}, 1
	if !recv {
		recvs, m = nil, 0
	}
	return func() {
		must(r.t, r.recv(recvs...))
		must(r.t, r.a.QP.PostSend(list...))
		r.wait(1, m)
	}
}

// datagram is a message to b; TestMulticastUDP has those to groups.
func datagram(op roce.WROpcode) func(r *allocRig) func() {
	return func(r *allocRig) func() {
		return send(r, true, []roce.SendWR{{
			Opcode: op, Flags: roce.Signaled, SGE: []roce.SGE{r.a.MR.SGE(0, 1000)},
			AH: handle(r.t, r.a, r.b), RemoteQPN: r.b.QP.Num(), QKey: mcastQKey,
		}})
	}
}

// window is a bind by b and an invalidation, by a SEND of a if remote.
func window(typ roce.MWType, remote bool) func(r *allocRig) func() {
	return func(r *allocRig) func() {
		w, err := r.b.PD.AllocMW(typ)
		must(r.t, err)
		bind := []roce.SendWR{{Opcode: roce.WRBindMW, Flags: roce.Signaled, MW: w, MR: r.mr, Addr: r.mr.Addr(), Length: 8, Access: roce.RemoteRead}}
		local := []roce.SendWR{{Opcode: roce.WRLocalInv, Flags: roce.Signaled}}
		inv := []roce.SendWR{{Opcode: roce.WRSendWithInv, Flags: roce.Signaled}}
		closing := send(r, true, inv)
		return func() {
			bind[0].RKey = roce.IncRKey(w.RKey())
			must(r.t, r.b.QP.PostSend(bind...))
			r.wait(0, 1)
			local[0].InvalidateRKey, inv[0].InvalidateRKey = w.RKey(), w.RKey()
			if remote {
				closing()
				return
			}
			must(r.t, r.b.QP.PostSend(local...))
			r.wait(0, 1)
		}
	}
}

// window1 is two binds of a window of type 1, the second of which closes it.
func window1(r *allocRig) func() {
	w, err := r.b.PD.AllocMW(roce.MWType1)
	must(r.t, err)
	return func() {
		must(r.t, r.b.QP.BindMW(w, roce.BindWR{Flags: roce.Signaled, MR: r.mr, Addr: r.mr.Addr(), Length: 8, Access: roce.RemoteRead}))
		must(r.t, r.b.QP.BindMW(w, roce.BindWR{Flags: roce.Signaled}))
		r.wait(0, 2)
	}
}

// fastReg is a fast registration, of the same memory each time, and its invalidation.
func fastReg(r *allocRig) func() {
	mr, err := r.b.PD.AllocMR(64)
	must(r.t, err)
	must(r.t, mr.Map(make([]byte, 64)))
	list := []roce.SendWR{{Opcode: roce.WRRegMR, MR: mr, Access: roce.RemoteRead}, {Opcode: roce.WRLocalInv, Flags: roce.Signaled}}
	return func() {
		list[0].RKey = roce.IncRKey(mr.RKey())
		list[1].InvalidateRKey = list[0].RKey
		must(r.t, r.b.QP.PostSend(list...))
		r.wait(0, 1)
	}
}

// shared is a SEND into a shared receive queue.
func shared(r *allocRig) func() {
	s := shareBetween(r.t, 1, r.a, r.b, roce.SRQConfig{})
	list := []roce.SendWR{{Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{r.a.MR.SGE(0, 10000)}}}
	recvs := []roce.RecvWR{{SGE: []roce.SGE{r.b.MR.SGE(0, 5000), r.b.MR.SGE(5000, 5000)}}}
	return func() {
		must(r.t, s.srq.PostRecv(recvs...))
		must(r.t, s.qps[0][0].PostSend(list...))
		r.wait(1, 1)
	}
}

// TestNothingAllocates: posting, polling and the packets of every operation of every
// service allocate nothing.
func TestNothingAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	data := make([]byte, 300)
	da, db := openUDP(t, "127.0.0.1", roce.Config{}), openUDP(t, "127.0.0.2", roce.Config{})
	for _, row := range []allocRow{
		{"SEND", roce.RC, simple(true, roce.SendWR{Opcode: roce.WRSend})},
		{"SEND inline", roce.RC, simple(true, roce.SendWR{Opcode: roce.WRSend, Flags: roce.Inline, Data: data})},
		{"SEND to a shared queue", roce.RC, shared},
		{"SEND with immediate", roce.RC, simple(true, roce.SendWR{Opcode: roce.WRSendWithImm, Flags: roce.Solicited})},
		{"SEND with invalidate", roce.RC, window(roce.MWType2B, true)},
		{"WRITE", roce.RC, simple(false, roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Fence})},
		{"WRITE with immediate", roce.RC, simple(true, roce.SendWR{Opcode: roce.WRWriteWithImm})},
		{"READ", roce.RC, simple(false, roce.SendWR{Opcode: roce.WRRead})},
		{"FetchAdd", roce.RC, simple(false, roce.SendWR{Opcode: roce.WRAtomicFetAdd, CompareAdd: 1})},
		{"CmpSwap", roce.RC, simple(false, roce.SendWR{Opcode: roce.WRAtomicCmpSwp})},
		{"ATOMIC_WRITE", roce.RC, simple(false, roce.SendWR{Opcode: roce.WRAtomicWrite})},
		{"FLUSH", roce.RC, simple(false, roce.SendWR{Opcode: roce.WRFlush, Flush: roce.Flush{Placement: roce.PlaceGlobal, Length: 8}})},
		{"bind 2A and local invalidate", roce.RC, window(roce.MWType2A, false)},
		{"bind 2B and local invalidate", roce.RC, window(roce.MWType2B, false)},
		{"bind 1", roce.RC, window1},
		{"fast registration", roce.RC, fastReg},
		{"SEND", roce.UC, simple(true, roce.SendWR{Opcode: roce.WRSend})},
		{"SEND with immediate", roce.UC, simple(true, roce.SendWR{Opcode: roce.WRSendWithImm})},
		{"WRITE", roce.UC, simple(false, roce.SendWR{Opcode: roce.WRWrite})},
		{"WRITE with immediate", roce.UC, simple(true, roce.SendWR{Opcode: roce.WRWriteWithImm})},
		{"bind 2B and local invalidate", roce.UC, window(roce.MWType2B, false)},
		{"bind 1", roce.UC, window1},
		{"fast registration", roce.UC, fastReg},
		{"SEND", roce.XRCSend, simple(true, roce.SendWR{Opcode: roce.WRSend})},
		{"SEND with immediate", roce.XRCSend, simple(true, roce.SendWR{Opcode: roce.WRSendWithImm})},
		{"WRITE", roce.XRCSend, simple(false, roce.SendWR{Opcode: roce.WRWrite})},
		{"WRITE with immediate", roce.XRCSend, simple(true, roce.SendWR{Opcode: roce.WRWriteWithImm})},
		{"READ", roce.XRCSend, simple(false, roce.SendWR{Opcode: roce.WRRead})},
		{"FetchAdd", roce.XRCSend, simple(false, roce.SendWR{Opcode: roce.WRAtomicFetAdd, CompareAdd: 1})},
		{"CmpSwap", roce.XRCSend, simple(false, roce.SendWR{Opcode: roce.WRAtomicCmpSwp})},
		{"SEND", roce.UD, datagram(roce.WRSend)},
		{"SEND with immediate", roce.UD, datagram(roce.WRSendWithImm)},
	} {
		r := newAllocRig(t, row.typ, da, db)
		if n := testing.AllocsPerRun(200, row.warm(r)); n > 0 {
			t.Errorf("%v %s: %v allocations", row.typ, row.name, n)
		}
	}
}

// warm returns the round of a row, after so many that all storage has its size.
func (row *allocRow) warm(r *allocRig) func() {
	round := row.make(r)
	for range 100 {
		round()
	}
	return round
}

func newAllocRig(t *testing.T, typ roce.QPType, da, db *roce.Device) *allocRig {
	o := rocetest.Options{QP: roce.QPConfig{Type: typ, MaxInline: 512}, Memory: 64 << 10}
	if typ == roce.XRCSend {
		o.QP.Type = roce.RC // not used
	}
	r := &allocRig{t: t, a: rocetest.New(t, da, o), b: rocetest.New(t, db, o), wc: make([]roce.WC, 8)}
	r.recv = r.b.QP.PostRecv
	switch typ {
	case roce.XRCSend:
		x := xrcDomain(t, r.b)
		q := newXRCQueue(t, db, x, roce.SRQConfig{})
		r.a.QP, _ = xrcPair(t, r.a, r.b, x)
		r.b.CQ, r.b.MR, r.recv, r.srqn = q.CQ, q.MR, q.srq.PostRecv, q.srq.Num()
	case roce.UD:
		must(t, r.a.QP.Activate(mcastQKey))
		must(t, r.b.QP.Activate(mcastQKey))
	default:
		rocetest.Connect(t, r.a, r.b, roce.Conn{AckTimeout: time.Second, SourcePort: 0xd000})
	}
	var err error
	r.mr, err = r.b.PD.RegisterMR(make([]byte, 64), roce.LocalWrite|roce.MWBind)
	must(t, err)
	return r
}
