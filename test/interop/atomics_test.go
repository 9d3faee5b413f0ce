//go:build linux

package interop

import (
	"fmt"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/test/interop/wire"
)

// withAtomics are the remote rights of a QP that takes everything.
var withAtomics = []string{"remote_write", "remote_read", "remote_atomic"}

func isAtomic(verb string) bool {
	return verb == "FETCH_ADD" || verb == "CMP_SWAP" || verb == "ATOMIC_WRITE"
}

// atomicErrors are what a responder refuses; IBTA 9.7.5.2 and Linux rxe_resp.c agree on the codes.
var atomicErrors = []errorCase{
	{name: "FETCH_ADD, no right on the MR", verb: "FETCH_ADD", mrAccess: both, qpAccess: withAtomics, status: wcRemAcc, nak: ib.NAKRemoteAccess, event: accessEvent},
	{name: "CMP_SWAP, no right on the QP", verb: "CMP_SWAP", mrAccess: append([]string{"remote_atomic"}, both...), qpAccess: everyAccess,
		status: wcRemInv, nak: ib.NAKInvalidRequest, event: requestEvent},
	{name: "CMP_SWAP with a wrong rkey", verb: "CMP_SWAP", mrAccess: append([]string{"remote_atomic"}, both...), qpAccess: withAtomics, wrongKey: true,
		status: wcRemAcc, nak: ib.NAKRemoteAccess, event: accessEvent},
	{name: "FETCH_ADD, misaligned", verb: "FETCH_ADD", mrAccess: append([]string{"remote_atomic"}, both...), qpAccess: withAtomics, skew: 4,
		status: wcRemInv, nak: ib.NAKInvalidRequest, event: requestEvent},
}

func (s *session) atomics(t *testing.T) {
	t.Run("atomics", func(t *testing.T) {
		for _, family := range pingpongFamilies {
			for _, we := range []bool{true, false} {
				if s.mode != full && we != (family == ipv4) {
					continue // the subset: one family per role
				}
				l := link{family: family, mtu: 1024, weRequest: we, qpAccess: withAtomics}
				name := l.role() + " " + family
				s.run(t, "atomics", name, func(c *testCase) {
					w := c.newWords(l)
					for round := range 2 {
						w.transfer(round, 30000)
					}
					w.conn.states("RTS", "RTS")
				})
				s.run(t, "atomics", name+" under loss", func(c *testCase) { c.lossyWords(l) })
				for _, e := range atomicErrors {
					if e.skew != 0 && !we {
						continue // librxe refuses to post it
					}
					s.run(t, "atomics", name+": "+e.name, func(c *testCase) { c.refused(l, e) })
				}
			}
		}
	})
}

// words is a connection whose requests work on a few words of the responder, at odd distances from the ends of its memory.
type words struct {
	*conn
	far, near region
}

const (
	numWords  = 2
	wordsLen  = 128
	firstWord = 40 // offset in far
	atomicOps = 12 // posted as one list, three times the initiator depth
)

func (c *testCase) newWords(l link) *words {
	c.Helper()
	w := &words{conn: c.connect(l)}
	w.far = w.region(w.rsp, wordsLen, "local_write", "remote_write", "remote_read", "remote_atomic")
	w.near = w.region(w.req, 16*atomicOps, "local_write")
	return w
}

// transfer posts a round of atomics, compares what each found and what all left with a sequential model, and all other memory.
func (w *words) transfer(round, timeoutMS int) {
	w.c.Helper()
	w.far.fill(w.c, 0, wordsLen, "", guardByte)
	w.near.fill(w.c, 0, 16*atomicOps, "", guardByte)
	var model [numWords]uint64
	for i := range model {
		model[i] = 0xfffffffffffffff0 + uint64(8*i+round) // sums wrap
		w.rsp.do(w.c, wire.Request{Op: "setword", MR: w.far.id, Off: firstWord + 8*i, Word: model[i]})
	}
	var found [atomicOps]uint64
	var wrs []wire.WR
	for n := range found {
		v := &model[n/2%numWords]
		found[n] = *v
		wr := wire.WR{ID: uint64(n), SGEs: []wire.SGE{{MR: w.near.id, Off: 16 * n, Len: 8}}, RemoteVA: w.far.va + uint64(firstWord+8*(n/2%numWords)), RKey: w.far.rkey}
		switch n % 3 {
		case 0, 2:
			wr.Verb, wr.Compare = "FETCH_ADD", uint64(n)<<32+13
			*v += wr.Compare
		case 1: // every other finds what it expects
			wr.Verb, wr.Compare, wr.Swap = "CMP_SWAP", *v+uint64(n/3%2), 0x0102030405060708*uint64(n+1)
			if wr.Compare == *v {
				*v = wr.Swap
			}
		}
		wrs = append(wrs, wr)
	}
	w.req.do(w.c, wire.Request{Op: "send", QP: w.reqQP, WRs: wrs})
	for n, wc := range w.poll(w.req, atomicOps, timeoutMS) {
		if wc.ID != uint64(n) || wc.Status != 0 || wc.Opcode != wrs[n].Verb {
			w.c.Fatalf("requester (%s): completion %d is %+v, want success of %s", w.req.Name, n, wc, wrs[n].Verb)
		}
	}
	for n, want := range found {
		if got := w.req.do(w.c, wire.Request{Op: "word", MR: w.near.id, Off: 16 * n}).Word; got != want {
			w.c.Errorf("round %d: %s %d found %#x, want %#x", round, wrs[n].Verb, n, got, want)
		}
		w.near.check(w.c, fmt.Sprintf("guard behind result %d", n), 16*n+8, 8, "", guardByte)
	}
	for i, want := range model {
		if got := w.rsp.do(w.c, wire.Request{Op: "word", MR: w.far.id, Off: firstWord + 8*i}).Word; got != want {
			w.c.Errorf("round %d: word %d is %#x in the end, want %#x", round, i, got, want)
		}
	}
	w.far.check(w.c, "guard before the words", 0, firstWord, "", guardByte)
	w.far.check(w.c, "guard behind the words", firstWord+8*numWords, wordsLen-firstWord-8*numWords, "", guardByte)
}

// lossyWords does the same while packets get lost: nothing is executed twice or not at all.
func (c *testCase) lossyWords(l link) {
	l.ackTimeout = 17
	w := c.newWords(l)
	c.untilDropped(func(round int) { w.transfer(round, 60000) })
	w.conn.states("RTS", "RTS")
}
