//go:build linux

package interop

import (
	"fmt"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/test/interop/wire"
)

// The rights of a queue pair and of a region that take everything of ATOMIC_WRITE and FLUSH.
var (
	withPlacement = []string{"remote_write", "remote_read", "flush_global", "flush_persistent"}
	forGlobal     = []string{"local_write", "remote_write", "flush_global"}
	forPersistent = []string{"local_write", "remote_write", "flush_global", "flush_persistent"}
)

// placementErrors are what a responder refuses (IBTA Annex A19; Linux rxe_resp.c, check_qp_attr_access and check_rkey, has the same codes).
var placementErrors = []errorCase{
	{name: "ATOMIC_WRITE, no right on the MR", verb: "ATOMIC_WRITE", mrAccess: []string{"local_write", "remote_read"}, qpAccess: withPlacement,
		status: wcRemAcc, nak: ib.NAKRemoteAccess, event: accessEvent},
	{name: "ATOMIC_WRITE, no right on the QP", verb: "ATOMIC_WRITE", mrAccess: both, qpAccess: []string{"remote_read"},
		status: wcRemInv, nak: ib.NAKInvalidRequest, event: requestEvent},
	{name: "ATOMIC_WRITE with a wrong rkey", verb: "ATOMIC_WRITE", mrAccess: both, qpAccess: withPlacement, wrongKey: true,
		status: wcRemAcc, nak: ib.NAKRemoteAccess, event: accessEvent},
	{name: "ATOMIC_WRITE, misaligned", verb: "ATOMIC_WRITE", mrAccess: both, qpAccess: withPlacement, skew: 4,
		status: wcRemInv, nak: ib.NAKInvalidRequest, event: requestEvent},
	{name: "FLUSH, no right on the MR", verb: "FLUSH", place: []string{"flush_global"}, mrAccess: both, qpAccess: withPlacement,
		status: wcRemAcc, nak: ib.NAKRemoteAccess, event: accessEvent},
	{name: "FLUSH, no right on the QP", verb: "FLUSH", place: []string{"flush_global"}, mrAccess: forGlobal, qpAccess: everyAccess,
		status: wcRemInv, nak: ib.NAKInvalidRequest, event: requestEvent},
	{name: "FLUSH to persistent memory of a region that is not", verb: "FLUSH", place: []string{"flush_global", "flush_persistent"}, mrAccess: forGlobal,
		qpAccess: withPlacement, status: wcRemAcc, nak: ib.NAKRemoteAccess, event: accessEvent},
	{name: "FLUSH out of range", verb: "FLUSH", place: []string{"flush_global"}, mrAccess: forGlobal, qpAccess: withPlacement, beyond: true,
		status: wcRemAcc, nak: ib.NAKRemoteAccess, event: accessEvent},
}

// placement runs ATOMIC_WRITE and FLUSH. They came to rxe with Linux 6.2; an older one is never sent them.
func (s *session) placement(t *testing.T) {
	if !newerThan(s.kernel.Release, 6, 1) {
		return
	}
	t.Run("placement", func(t *testing.T) {
		if err := s.guest.MakePMem(s.ctx); err != nil {
			t.Fatal(err)
		}
		for _, family := range pingpongFamilies {
			for _, we := range []bool{true, false} {
				if s.mode != full && we != (family == ipv4) {
					continue // the subset: one family per role
				}
				l := link{family: family, mtu: 1024, weRequest: we, qpAccess: withPlacement, newer: true}
				name := l.role() + " " + family
				s.run(t, "placement", name+": WRITE, FLUSH, ATOMIC_WRITE", func(c *testCase) { c.flushed(l, forGlobal) })
				s.run(t, "placement", name+": the same in persistent memory", func(c *testCase) { c.flushed(l, forPersistent) })
				if we { // what rxe repeats of them has the address 0 (rxe_req.c, req_retry), which any responder refuses
					s.run(t, "placement", name+": WRITE, ATOMIC_WRITE under loss", func(c *testCase) { c.lossyAtomicWrites(l) })
				}
				for _, e := range placementErrors {
					s.run(t, "placement", name+": "+e.name, func(c *testCase) { c.refused(l, e) })
				}
			}
		}
	})
}

// flushes is a connection whose requester writes messages into the responder's memory, flushes them and tells so in a word behind each.
type flushes struct {
	*conn
	places   [][]string // what a FLUSH asks for, in turn; none: no FLUSH
	src, dst region
}

const (
	flushCount = 4    // messages of a round
	flushSize  = 3001 // bytes of each, not a multiple of 4
	flushSlot  = 4096 // from one to the next; the word stands at the end
	flushTotal = flushCount * flushSlot
)

func (c *testCase) newFlushes(l link, access []string) *flushes {
	c.Helper()
	f := &flushes{conn: c.connect(l), places: [][]string{{"flush_global"}}}
	if len(access) == len(forPersistent) {
		f.places = [][]string{{"flush_persistent"}, {"flush_global", "flush_persistent"}}
	}
	f.src = f.region(f.req, flushTotal, "local_write")
	f.dst = f.region(f.rsp, flushTotal, access...)
	return f
}

func (c *testCase) flushed(l link, access []string) {
	f := c.newFlushes(l, access)
	for round := range 2 {
		f.transfer(round, 30000)
	}
	f.states("RTS", "RTS")
}

// lossyAtomicWrites does without FLUSHes: rxe never answers a duplicate of one, because what it keeps of a FLUSH has no PSN (rxe_resp.c,
// rxe_prepare_res and find_resource).
func (c *testCase) lossyAtomicWrites(l link) {
	l.ackTimeout = 17
	f := c.newFlushes(l, forGlobal)
	f.places = nil
	c.untilDropped(func(round int) { f.transfer(round, 60000) })
	f.states("RTS", "RTS")
}

// word is what the word of a message has after a round, seed what the message is.
func (f *flushes) word(round, i int) uint64 {
	return 0x0102030405060708*uint64(round+1) + uint64(i)<<56
}
func (f *flushes) seed(round, i int) string { return fmt.Sprintf("flush/%d/%d", round, i) }

// transfer posts a round as one list: of each message a WRITE, a FLUSH of its bytes or of the region, and the ATOMIC_WRITE of its word.
func (f *flushes) transfer(round, timeoutMS int) {
	f.c.Helper()
	f.dst.fill(f.c, 0, flushTotal, "", guardByte)
	var wrs []wire.WR
	for i := range flushCount {
		at, end := i*flushSlot, (i+1)*flushSlot-8
		f.src.fill(f.c, at, flushSize, f.seed(round, i), 0)
		f.req.do(f.c, wire.Request{Op: "setword", MR: f.src.id, Off: end, Word: f.word(round, i)})
		wrs = append(wrs, wire.WR{Verb: "WRITE", SGEs: f.src.sges(at, flushSize, 1+i%3), RemoteVA: f.dst.va + uint64(at), RKey: f.dst.rkey})
		if len(f.places) > 0 {
			wrs = append(wrs, wire.WR{Verb: "FLUSH", RemoteVA: f.dst.va + uint64(at), RKey: f.dst.rkey, Access: f.places[i%len(f.places)], Len: i % 2 * flushSize})
		}
		wrs = append(wrs, wire.WR{Verb: "ATOMIC_WRITE", SGEs: f.src.sges(end, 8, 1), RemoteVA: f.dst.va + uint64(end), RKey: f.dst.rkey})
	}
	for n := range wrs {
		wrs[n].ID = uint64(n)
	}
	f.req.do(f.c, wire.Request{Op: "send", QP: f.reqQP, WRs: wrs})
	for n, wc := range f.poll(f.req, len(wrs), timeoutMS) {
		if wc.ID != uint64(n) || wc.Status != 0 || wc.Opcode != wrs[n].Verb {
			f.c.Fatalf("requester (%s): completion %d is %+v, want success of %s", f.req.Name, n, wc, wrs[n].Verb)
		}
	}
	for i := range flushCount {
		at, end := i*flushSlot, (i+1)*flushSlot-8
		f.dst.check(f.c, fmt.Sprintf("message %d", i), at, flushSize, f.seed(round, i), 0)
		f.dst.check(f.c, fmt.Sprintf("guard behind message %d", i), at+flushSize, end-at-flushSize, "", guardByte)
		if got, want := f.rsp.do(f.c, wire.Request{Op: "word", MR: f.dst.id, Off: end}).Word, f.word(round, i); got != want {
			f.c.Errorf("round %d: word %d is %#x, want %#x", round, i, got, want)
		}
	}
}
