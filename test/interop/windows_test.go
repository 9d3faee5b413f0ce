//go:build linux

package interop

import (
	"fmt"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/test/interop/wire"
)

// windowCase is what happens with a memory window of a type, which the responder
// opens for the requester.
type windowCase struct {
	name string
	typ  int
	f    func(w *windowed)
	ours bool // rxe, as responder, does not do so
}

// rxe compares a range with that of the region, not with that of the window (Linux rxe_resp.c, check_rkey).
var windowCases = []windowCase{
	{"WRITE and READ through the window", 1, (*windowed).used, false},
	{"WRITE and READ through the window", 2, (*windowed).used, false},
	{"WRITE past the window's end is refused", 1, (*windowed).beyond, true},
	{"WRITE past the window's end is refused", 2, (*windowed).beyond, true},
	{"another bind ends the key before", 1, (*windowed).reopened, false},
	{"SEND with invalidate closes it", 2, (*windowed).closedByPeer, false},
	{"local invalidate closes it", 2, (*windowed).closedLocally, false},
	{"another queue pair is refused", 2, (*windowed).otherQP, false},
	{"SEND with invalidate of a region's key", 2, (*windowed).badKey, false},
}

func (s *session) windows(t *testing.T) {
	t.Run("windows", func(t *testing.T) {
		for _, family := range pingpongFamilies {
			for _, we := range []bool{true, false} {
				if s.mode != full && we != (family == ipv6) {
					continue // the subset: one family per role
				}
				l := link{family: family, mtu: 1024, weRequest: we}
				for _, w := range windowCases {
					if w.ours && we && s.mode != reference {
						continue
					}
					s.run(t, "windows", fmt.Sprintf("%s %s: type %d, %s", l.role(), family, w.typ, w.name), func(c *testCase) {
						w.f(c.newWindowed(l, w.typ))
					})
				}
			}
		}
	})
}

// windowed is a connection whose responder has a region and a window that is
// open for part of it.
type windowed struct {
	*conn
	l        link
	typ      int
	src, mem region
	mw       int
	key      uint32
}

const (
	windowRegion = 16384
	windowOff    = 4099 // of the window in the region
	windowLen    = 5000
)

func (c *testCase) newWindowed(l link, typ int) *windowed {
	c.Helper()
	w := &windowed{conn: c.connect(l), l: l, typ: typ}
	w.src = w.region(w.req, windowRegion, "local_write")
	w.mem = w.region(w.rsp, windowRegion, "local_write", "mw_bind")
	w.src.fill(c, 0, windowRegion, "src", 0)
	w.mem.fill(c, 0, windowRegion, "mem", 0)
	w.mw = w.rsp.number()
	w.rsp.do(c, wire.Request{Op: "mw", MW: w.mw, Type: typ})
	// Before the region, which cannot go while a window is bound to it, and before the queue pair, for which rxe waits 50 seconds.
	c.Cleanup(func() {
		if w.rsp.Alive() {
			w.rsp.Do(wire.Request{Op: "destroy", MW: w.mw})
		}
	})
	w.key = w.open()
	return w
}

// open binds the window on the responder's side and returns its key.
func (w *windowed) open() uint32 {
	w.c.Helper()
	key := w.rsp.do(w.c, wire.Request{Op: "send", QP: w.rspQP, WRs: []wire.WR{{
		ID: 77, Verb: "BIND_MW", MW: w.mw, SGEs: []wire.SGE{{MR: w.mem.id, Off: windowOff, Len: windowLen}}, Access: everyAccess,
	}}}).RKey
	w.done(w.rsp, 77, "BIND_MW")
	return key
}

// done expects one successful completion.
func (w *windowed) done(e *end, id uint64, op string) {
	w.c.Helper()
	if wc := w.poll(e, 1, 30000)[0]; wc.ID != id || wc.Status != 0 || wc.Opcode != op {
		w.c.Fatalf("%s: completion %+v, want success of %d, %s", e.Name, wc, id, op)
	}
}

// transfer posts a WRITE or READ of n bytes from offset off of the window, with
// offset off of src, on the requester's side.
func (w *windowed) transfer(verb string, off, n int, key uint32) {
	w.c.Helper()
	w.req.do(w.c, wire.Request{Op: "send", QP: w.reqQP, WRs: []wire.WR{{
		ID: 5, Verb: verb, SGEs: w.src.sges(off, n, 2), RemoteVA: w.mem.va + windowOff + uint64(off), RKey: key,
	}}})
}

// works expects a WRITE through the key to arrive.
func (w *windowed) works(key uint32) {
	w.c.Helper()
	w.transfer("WRITE", 0, windowLen, key)
	w.done(w.req, 5, "WRITE")
}

// refused expects a WRITE with the key to be refused, and memory to be as it was.
func (w *windowed) refused(key uint32, off, n int) {
	w.c.Helper()
	w.mem.fill(w.c, 0, windowRegion, "mem", 0)
	w.transfer("WRITE", off, n, key)
	if wc := w.poll(w.req, 1, 30000)[0]; wc.Status != wcRemAcc {
		w.c.Errorf("requester (%s): completion %+v, want status %d", w.req.Name, wc, wcRemAcc)
	}
	w.mem.check(w.c, "memory", 0, windowRegion, "mem", 0)
	w.states("ERR", "ERR")
	w.c.wantSyndrome(w.l, w.conn, ib.NAKSyndrome(ib.NAKRemoteAccess))
}

func (w *windowed) used() {
	w.src.fill(w.c, 0, windowRegion, "", 7)
	w.mem.fill(w.c, 0, windowRegion, "", 1)
	w.works(w.key)
	w.mem.check(w.c, "memory before the window", 0, windowOff, "", 1)
	w.mem.check(w.c, "the window", windowOff, windowLen, "", 7)
	w.mem.check(w.c, "memory behind the window", windowOff+windowLen, windowRegion-windowOff-windowLen, "", 1)
	w.mem.fill(w.c, windowOff, windowLen, "read", 0)
	w.transfer("READ", 0, windowLen, w.key)
	w.done(w.req, 5, "READ")
	w.src.check(w.c, "what was read", 0, windowLen, "read", 0)
	w.src.check(w.c, "memory behind it", windowLen, windowRegion-windowLen, "", 7)
	w.states("RTS", "RTS")
}

func (w *windowed) beyond() {
	w.works(w.key)
	w.refused(w.key, 1, windowLen)
}

func (w *windowed) reopened() {
	old := w.key
	w.key = w.open()
	if w.key == old {
		w.c.Fatalf("the second bind has the key of the first, %#x", old)
	}
	w.works(w.key)
	w.refused(old, 0, windowLen)
}

func (w *windowed) closedByPeer() {
	w.works(w.key)
	w.send(w.key)
	wc := w.poll(w.rsp, 1, 30000)[0]
	// rxe does not tell programs in user space of the key (Linux rxe_resp.c, do_complete).
	told := wc.HasInv && wc.Inv == w.key || w.rsp.side.rxe && !wc.HasInv
	if wc.ID != 9 || wc.Status != 0 || wc.Opcode != "RECV" || wc.Len != 3000 || !told {
		w.c.Errorf("responder (%s): completion %+v, want the key %#x", w.rsp.Name, wc, w.key)
	}
	w.refused(w.key, 0, windowLen)
}

// send is a SEND with invalidate from src to the responder's region, which is
// acknowledged.
func (w *windowed) send(key uint32) {
	w.c.Helper()
	w.rsp.do(w.c, wire.Request{Op: "recv", QP: w.rspQP, WRs: []wire.WR{{ID: 9, SGEs: w.mem.sges(0, 3000, 1)}}})
	w.req.do(w.c, wire.Request{Op: "send", QP: w.reqQP, WRs: []wire.WR{{ID: 8, Verb: "SEND_INV", SGEs: w.src.sges(0, 3000, 1), Inv: key}}})
	w.done(w.req, 8, "SEND")
}

func (w *windowed) closedLocally() {
	w.works(w.key)
	w.rsp.do(w.c, wire.Request{Op: "send", QP: w.rspQP, WRs: []wire.WR{{ID: 6, Verb: "LOCAL_INV", Inv: w.key}}})
	w.done(w.rsp, 6, "LOCAL_INV")
	w.refused(w.key, 0, windowLen)
}

// otherQP uses the key on a second connection of the same peers.
func (w *windowed) otherQP() {
	w.works(w.key)
	other := *w
	other.conn = w.c.connect(w.l)
	other.refused(w.key, 0, windowLen)
	w.works(w.key)
}

// badKey: IBTA 9.9.3.1 class J, as rxe has it: the message is acknowledged, its
// receive ends in error and with it the responder's queue pair.
func (w *windowed) badKey() {
	w.send(w.mem.rkey)
	if wc := w.poll(w.rsp, 1, 30000)[0]; wc.ID != 9 || wc.Status != wcRemInv {
		w.c.Errorf("responder (%s): completion %+v, want status %d", w.rsp.Name, wc, wcRemInv)
	}
	w.states("RTS", "ERR")
}
