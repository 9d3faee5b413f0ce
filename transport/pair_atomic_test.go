package transport

import (
	"encoding/binary"
	"testing"

	"github.com/goroce/goroce/mem"
)

// postAtomic posts an atomic, ATOMIC_WRITE or FLUSH. One end is the only one that
// changes the words of its peer, in the order in which it posts, so what each
// atomic must find is known when it is posted.
func (e *pairEnd) postAtomic(op WROpcode, flags SendFlags) {
	rng, p := e.p.rng, e.peer()
	slot := int(e.next % (2 * pairDepth))
	o := &pairOp{op: op, off: slot * e.maxSize, unsignal: flags&Signaled == 0, word: op == WRAtomicFetAdd || op == WRAtomicCmpSwp}
	i := rng.IntN(pairWords)
	found := p.model[i]
	w := SendWQE{
		ID: e.next, Opcode: op, Flags: flags, RKey: p.words.Key(), RemoteAddr: pairIOVA + uint64(8*i), SRQN: pairSRQN,
		CompareAdd: uint64(rng.IntN(3)), Swap: uint64(rng.IntN(3)),
	}
	sges := []mem.SGE{{Addr: pairIOVA + uint64(o.off), Length: 8, LKey: e.sink.Key()}}
	switch op {
	case WRAtomicFetAdd:
		p.model[i] += w.CompareAdd
	case WRAtomicCmpSwp:
		if rng.IntN(2) == 0 {
			w.CompareAdd = found
		}
		if found == w.CompareAdd {
			p.model[i] = w.Swap
		}
	case WRAtomicWrite:
		sges[0].LKey = e.source.Key()
		p.model[i] = uint64(rng.IntN(3))
		binary.NativeEndian.PutUint64(e.source.Bytes()[o.off:], p.model[i])
	case WRFlush:
		sges = nil
		w.Imm = FlushImm(PlaceGlobal, FlushMR)
	}
	if o.word {
		o.data = binary.NativeEndian.AppendUint64(nil, found)
	}
	e.issued[e.next] = o
	e.order = append(e.order, e.next)
	e.sq.post(w, sges, nil)
	e.next++
	e.q.Kick(e.p.now)
}

// Atomics are executed once whatever single fault or two losses the network has (IBTA 9.4.5, A19).
func TestPairEveryFaultOfAtomics(t *testing.T) {
	pairEveryFault(t, bothRC, []int{0}, func(e *pairEnd) {
		e.postAtomic(WRAtomicFetAdd, Signaled)
		e.post(WRWrite, 1, Signaled)
		e.postAtomic(WRAtomicWrite, 0)
		e.postAtomic(WRFlush, Signaled)
		e.post(WRRead, 300, Signaled)
		e.postAtomic(WRAtomicCmpSwp, Fence)
		e.postAtomic(WRAtomicFetAdd, Signaled)
	})
}
