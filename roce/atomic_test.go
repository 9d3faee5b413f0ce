package roce_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// TestAtomics: the four operations on words, as their completions and both
// memories show them (IBTA 9.4.5, A19).
func TestAtomics(t *testing.T) {
	a, b := rocetest.Pair(t)
	post := func(wr roce.SendWR) roce.WC {
		t.Helper()
		wr.Flags |= roce.Signaled
		wr.RemoteAddr, wr.RKey = b.MR.Addr()+16, b.MR.RKey()
		must(t, a.QP.PostSend(wr))
		return a.Next(t)
	}
	result := []roce.SGE{a.MR.SGE(64, 8)}
	found := func() uint64 { return a.MR.LoadUint64(64) }

	b.MR.StoreUint64(16, 1<<40)
	wc := post(roce.SendWR{ID: 1, Opcode: roce.WRAtomicFetAdd, SGE: result, CompareAdd: 5})
	want(t, wc, 1, roce.WCFetchAdd, roce.WCSuccess)
	if found() != 1<<40 || b.MR.LoadUint64(16) != 1<<40+5 || wc.ByteLen != 8 {
		t.Errorf("FetchAdd: found %#x, leaves %#x, %d bytes", found(), b.MR.LoadUint64(16), wc.ByteLen)
	}
	wc = post(roce.SendWR{ID: 2, Opcode: roce.WRAtomicCmpSwp, SGE: result, CompareAdd: 1<<40 + 5, Swap: 7})
	want(t, wc, 2, roce.WCCompSwap, roce.WCSuccess)
	if found() != 1<<40+5 || b.MR.LoadUint64(16) != 7 || wc.ByteLen != 8 {
		t.Errorf("CmpSwap: found %#x, leaves %#x, %d bytes", found(), b.MR.LoadUint64(16), wc.ByteLen)
	}
	want(t, post(roce.SendWR{ID: 3, Opcode: roce.WRAtomicCmpSwp, SGE: result, CompareAdd: 8, Swap: 9}), 3, roce.WCCompSwap, roce.WCSuccess)
	if found() != 7 || b.MR.LoadUint64(16) != 7 {
		t.Errorf("CmpSwap of another value: found %d, leaves %d", found(), b.MR.LoadUint64(16))
	}
	copy(a.MR.Bytes()[128:], "01234567")
	want(t, post(roce.SendWR{ID: 4, Opcode: roce.WRAtomicWrite, SGE: []roce.SGE{a.MR.SGE(128, 8)}}), 4, roce.WCAtomicWrite, roce.WCSuccess)
	if got := string(b.MR.Bytes()[16:24]); got != "01234567" {
		t.Errorf("ATOMIC_WRITE leaves %q", got)
	}
	want(t, post(roce.SendWR{ID: 5, Opcode: roce.WRFlush, Flush: roce.Flush{Placement: roce.PlaceGlobal, Length: 100}}), 5, roce.WCFlush, roce.WCSuccess)
	want(t, post(roce.SendWR{ID: 6, Opcode: roce.WRFlush, Flush: roce.Flush{Placement: roce.PlaceGlobal, Level: roce.FlushMR}}), 6, roce.WCFlush, roce.WCSuccess)
	if got := a.Dev.Query().AtomicCap; got != roce.AtomicGlob || got.String() != "ATOMIC_GLOB" {
		t.Errorf("capability %v", got)
	}
}

// TestAtomicErrors: what the peer refuses, and what the own side does (IBTA
// 9.7.5.2, 9.9.2.4.2; 11.6.2).
func TestAtomicErrors(t *testing.T) {
	word := func(b *rocetest.Endpoint) (uint64, uint32) { return b.MR.Addr(), b.MR.RKey() }
	for _, tt := range []struct {
		rule   string
		op     roce.WROpcode
		conn   roce.Conn
		target func(b *rocetest.Endpoint) (uint64, uint32)
		status roce.WCStatus
		event  roce.EventType // at the peer
	}{
		{"FetchAdd, misaligned", roce.WRAtomicFetAdd, roce.Conn{},
			func(b *rocetest.Endpoint) (uint64, uint32) { return b.MR.Addr() + 4, b.MR.RKey() }, roce.WCRemInvReqErr, roce.EventQPReqErr},
		{"CmpSwap, misaligned", roce.WRAtomicCmpSwp, roce.Conn{},
			func(b *rocetest.Endpoint) (uint64, uint32) { return b.MR.Addr() + 1, b.MR.RKey() }, roce.WCRemInvReqErr, roce.EventQPReqErr},
		{"ATOMIC_WRITE, misaligned", roce.WRAtomicWrite, roce.Conn{},
			func(b *rocetest.Endpoint) (uint64, uint32) { return b.MR.Addr() + 4, b.MR.RKey() }, roce.WCRemInvReqErr, roce.EventQPReqErr},
		{"FetchAdd, a wrong key", roce.WRAtomicFetAdd, roce.Conn{},
			func(b *rocetest.Endpoint) (uint64, uint32) { return b.MR.Addr(), b.MR.RKey() ^ 1 }, roce.WCRemAccessErr, roce.EventQPAccessErr},
		{"FetchAdd, past the end", roce.WRAtomicFetAdd, roce.Conn{},
			func(b *rocetest.Endpoint) (uint64, uint32) { return b.MR.Addr() + b.MR.Len(), b.MR.RKey() }, roce.WCRemAccessErr, roce.EventQPAccessErr},
		{"FetchAdd, the queue pair has no right", roce.WRAtomicFetAdd, roce.Conn{Access: roce.RemoteRead | roce.RemoteWrite}, word, roce.WCRemInvReqErr, roce.EventQPReqErr},
		{"ATOMIC_WRITE, the queue pair has no right", roce.WRAtomicWrite, roce.Conn{Access: roce.RemoteRead | roce.RemoteAtomic}, word, roce.WCRemInvReqErr, roce.EventQPReqErr},
		{"FLUSH, the queue pair has no right", roce.WRFlush, roce.Conn{Access: roce.RemoteRead}, word, roce.WCRemInvReqErr, roce.EventQPReqErr},
		{"FetchAdd, the peer has no resources", roce.WRAtomicFetAdd, roce.Conn{MaxDestRdAtomic: -1}, word, roce.WCRemInvReqErr, roce.EventQPReqErr},
		{"FetchAdd, no initiator depth", roce.WRAtomicFetAdd, roce.Conn{MaxRdAtomic: -1}, word, roce.WCLocQPOpErr, 0xff},
		{"CmpSwap, no initiator depth", roce.WRAtomicCmpSwp, roce.Conn{MaxRdAtomic: -1}, word, roce.WCLocQPOpErr, 0xff},
		{"FLUSH needs no initiator depth", roce.WRFlush, roce.Conn{MaxRdAtomic: -1, MaxDestRdAtomic: -1}, word, roce.WCSuccess, 0xff},
		{"FetchAdd, the region has no right", roce.WRAtomicFetAdd, roce.Conn{}, func(b *rocetest.Endpoint) (uint64, uint32) {
			mr, err := b.PD.RegisterMR(make([]byte, 64), roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead)
			if err != nil {
				panic(err)
			}
			return mr.Addr(), mr.RKey()
		}, roce.WCRemAccessErr, roce.EventQPAccessErr},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			a, b := rocetest.Options{Conn: tt.conn}.Pair(t)
			fill(b.MR.Bytes()[:64], 3)
			before := string(b.MR.Bytes()[:64])
			wr := roce.SendWR{ID: 1, Opcode: tt.op, SGE: []roce.SGE{a.MR.SGE(0, 8)}, CompareAdd: 1}
			if tt.op == roce.WRFlush {
				wr = roce.SendWR{ID: 1, Opcode: tt.op, Flags: roce.Signaled, Flush: roce.Flush{Placement: roce.PlaceGlobal, Length: 8}}
			}
			wr.RemoteAddr, wr.RKey = tt.target(b)
			must(t, a.QP.PostSend(wr))
			want(t, a.Next(t), 1, roce.WCFlush, tt.status)
			if string(b.MR.Bytes()[:64]) != before {
				t.Error("memory was changed")
			}
			if tt.event == 0xff {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			for {
				ev, err := b.Dev.NextEvent(ctx)
				must(t, err)
				if ev.Type == tt.event {
					return
				}
			}
		})
	}
}

// TestPostAtomicErrors: requests that ibv_post_send(3) refuses.
func TestPostAtomicErrors(t *testing.T) {
	a, _ := rocetest.Options{QP: roce.QPConfig{MaxInline: 16}}.Pair(t)
	sge := func(n int) []roce.SGE { return []roce.SGE{a.MR.SGE(0, n)} }
	flush := roce.Flush{Placement: roce.PlaceGlobal}
	for _, tt := range []struct {
		rule, field string
		wr          roce.SendWR
	}{
		{"FetchAdd of 4 bytes", "SGE", roce.SendWR{Opcode: roce.WRAtomicFetAdd, SGE: sge(4)}},
		{"CmpSwap of 16 bytes", "SGE", roce.SendWR{Opcode: roce.WRAtomicCmpSwp, SGE: sge(16)}},
		{"CmpSwap of nothing", "SGE", roce.SendWR{Opcode: roce.WRAtomicCmpSwp}},
		{"FetchAdd with Data", "Data", roce.SendWR{Opcode: roce.WRAtomicFetAdd, SGE: sge(8), Data: make([]byte, 8)}},
		{"FetchAdd inline", "Flags", roce.SendWR{Opcode: roce.WRAtomicFetAdd, Flags: roce.Inline, Data: make([]byte, 8)}},
		{"ATOMIC_WRITE of 7 bytes", "SGE", roce.SendWR{Opcode: roce.WRAtomicWrite, SGE: sge(7)}},
		{"ATOMIC_WRITE of 16 bytes inline", "Data", roce.SendWR{Opcode: roce.WRAtomicWrite, Flags: roce.Inline, Data: make([]byte, 16)}},
		{"FLUSH with memory", "SGE", roce.SendWR{Opcode: roce.WRFlush, SGE: sge(8), Flush: flush}},
		{"FLUSH with data", "Data", roce.SendWR{Opcode: roce.WRFlush, Flags: roce.Inline, Data: make([]byte, 8), Flush: flush}},
		{"FLUSH to nowhere", "Flush.Placement", roce.SendWR{Opcode: roce.WRFlush}},
		{"FLUSH to an unknown place", "Flush.Placement", roce.SendWR{Opcode: roce.WRFlush, Flush: roce.Flush{Placement: 5}}},
		{"FLUSH of an unknown level", "Flush.Level", roce.SendWR{Opcode: roce.WRFlush, Flush: roce.Flush{Placement: 1, Level: 2}}},
	} {
		var pe *roce.PostError
		if err := a.QP.PostSend(tt.wr); !errors.As(err, &pe) || pe.Field != tt.field {
			t.Errorf("%s: %v, want an error that names %s", tt.rule, err, tt.field)
		}
	}
}

// TestAtomicsAreLinearizable: queue pairs of several devices and the program
// itself add to one word while the network loses and repeats packets. Each finds a
// value that nobody else found, each client ever larger ones, and in the end the
// sum is right: so each was executed once, at one moment.
func TestAtomicsAreLinearizable(t *testing.T) {
	const clients, each = 4, 200
	fabric := netio.NewFabric()
	open := func(i int) *roce.Device {
		be, err := fabric.Open(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netio.Port))
		must(t, err)
		be = netio.WithFaults(be, netio.FaultConfig{Seed: uint64(i), Tx: netio.Faults{Loss: 0.02, Duplicate: 0.05, Reorder: 0.05}})
		d, err := roce.Open(roce.Config{Backend: be})
		must(t, err)
		t.Cleanup(func() { d.Close() })
		return d
	}
	server := open(1)
	home := rocetest.New(t, server, rocetest.Options{})
	seen := make([]atomic.Bool, (clients+1)*each)
	note := func(v uint64) {
		if v >= uint64(len(seen)) || seen[v].Swap(true) {
			t.Errorf("%d was found twice, or never there", v)
		}
	}
	var wg sync.WaitGroup
	for c := range clients {
		e := rocetest.New(t, open(2+c), rocetest.Options{})
		qp, err := home.PD.CreateQP(roce.QPConfig{SendCQ: home.CQ})
		must(t, err)
		far := &rocetest.Endpoint{Dev: server, PD: home.PD, CQ: home.CQ, QP: qp, MR: home.MR}
		rocetest.Connect(t, e, far, roce.Conn{})
		wg.Go(func() {
			last := int64(-1)
			for done := 0; done < each; done += 10 {
				for i := range 10 {
					err := e.QP.PostSend(roce.SendWR{ID: uint64(i), Opcode: roce.WRAtomicFetAdd, Flags: roce.Signaled,
						SGE: []roce.SGE{e.MR.SGE(8*i, 8)}, CompareAdd: 1, RemoteAddr: home.MR.Addr(), RKey: home.MR.RKey()})
					if err != nil {
						t.Error(err)
						return
					}
				}
				for i := range 10 {
					if wc := e.Next(t); wc.Status != roce.WCSuccess || wc.ID != uint64(i) {
						t.Errorf("client %d: %+v", c, wc)
						return
					}
					v := e.MR.LoadUint64(8 * i)
					note(v)
					if int64(v) <= last {
						t.Errorf("client %d found %d after %d", c, v, last)
					}
					last = int64(v)
				}
			}
		})
	}
	for range each {
		note(home.MR.AddUint64(0, 1) - 1)
		time.Sleep(20 * time.Microsecond)
	}
	wg.Wait()
	if got := home.MR.LoadUint64(0); got != (clients+1)*each {
		t.Errorf("the sum is %d, want %d", got, (clients+1)*each)
	}
}
