package roce_test

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
	"github.com/goroce/goroce/transport"
)

// ownMemory is the memory of work queues, and a program that posts to them without
// calls.
type ownMemory struct {
	t    *testing.T
	base unsafe.Pointer
	q    *roce.QP
	l    roce.QueueLayout
}

func (m *ownMemory) Alloc(n int) unsafe.Pointer {
	words := make([]uint64, n/8+8) // to have a multiple of 64 in it
	p := unsafe.Pointer(unsafe.SliceData(words))
	m.base = unsafe.Add(p, -uintptr(p)&63)
	return m.base
}

func (m *ownMemory) word(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Add(m.base, at)) }

// own connects a pair of endpoints of which a posts by itself.
func own(t *testing.T) (a, b *rocetest.Endpoint, m *ownMemory) {
	m = &ownMemory{t: t}
	a, b = rocetest.Pair(t)
	var err error
	a.QP, err = a.PD.CreateQP(roce.QPConfig{SendCQ: a.CQ, MaxSendWR: 4, MaxRecvWR: 4, MaxInline: 16, Memory: m})
	must(t, err)
	b.QP, err = b.PD.CreateQP(roce.QPConfig{SendCQ: b.CQ})
	must(t, err)
	rocetest.Connect(t, a, b, roce.Conn{})
	m.q, m.l = a.QP, a.QP.Layout()
	return a, b, m
}

// send posts a SEND of a segment, or inline.
func (m *ownMemory) send(id uint64, sge roce.SGE, inline string) {
	at := m.word(m.l.SendProduced)
	first := at.Load()
	i := int(first & 3)
	w := (*transport.SendWQE)(unsafe.Add(m.base, m.l.SendEntries+i*int(unsafe.Sizeof(transport.SendWQE{}))))
	*w = transport.SendWQE{ID: id, Opcode: roce.WRSend, Flags: roce.Signaled}
	if inline != "" {
		w.Flags |= roce.Inline
		w.InlineLen = uint32(copy(unsafe.Slice((*byte)(unsafe.Add(m.base, m.l.SendInline+16*i)), 16), inline))
	} else {
		w.NumSGE = 1
		*(*roce.SGE)(unsafe.Add(m.base, m.l.SendSGEs+i*4*int(unsafe.Sizeof(roce.SGE{})))) = sge
	}
	at.Add(1)
	if m.word(m.l.SendIdle).Load() == first || roce.State(m.word(m.l.State).Load()) != roce.StateRTS {
		m.q.Doorbell()
	}
}

// recv posts a receive.
func (m *ownMemory) recv(id uint64, sge roce.SGE) {
	at := m.word(m.l.RecvProduced)
	i := int(at.Load() & 3)
	e := unsafe.Add(m.base, m.l.RecvEntries+16*i)
	*(*uint64)(e), *(*uint32)(unsafe.Add(e, 8)) = id, 1
	*(*roce.SGE)(unsafe.Add(m.base, m.l.RecvSGEs+i*4*int(unsafe.Sizeof(roce.SGE{})))) = sge
	at.Add(1)
	if roce.State(m.word(m.l.State).Load()) == roce.StateErr {
		m.q.Doorbell()
	}
}

// Work queues in memory of the program's: what is written there is sent and received,
// around the end of the rings, and slots come back.
func TestOwnMemory(t *testing.T) {
	a, b, m := own(t)
	for i := range uint64(10) {
		must(t, b.QP.PostRecv(roce.RecvWR{ID: i, SGE: []roce.SGE{b.MR.SGE(0, 16)}}))
		copy(a.MR.Bytes(), []byte{byte(i), 1, 2, 3})
		text := string(a.MR.Bytes()[:4])
		if i%2 == 0 {
			m.send(i, a.MR.SGE(0, 4), "")
		} else {
			m.send(i, roce.SGE{}, text)
		}
		want(t, a.Next(t), i, roce.WCSend, roce.WCSuccess)
		want(t, b.Next(t), i, roce.WCRecv, roce.WCSuccess)
		if got := string(b.MR.Bytes()[:4]); got != text {
			t.Fatalf("message %d is %q, want %q", i, got, text)
		}
		m.recv(i, a.MR.SGE(64, 16))
		must(t, b.QP.PostSend(roce.SendWR{ID: i, Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{b.MR.SGE(0, 4)}}))
		want(t, b.Next(t), i, roce.WCSend, roce.WCSuccess)
		want(t, a.Next(t), i, roce.WCRecv, roce.WCSuccess)
		if got := string(a.MR.Bytes()[64:68]); got != text {
			t.Fatalf("answer %d is %q, want %q", i, got, text)
		}
	}
	if p, c := m.word(m.l.SendProduced).Load(), m.word(m.l.SendConsumed).Load(); p != 10 || c != 10 {
		t.Errorf("send queue: produced %d, consumed %d, want 10 of both", p, c)
	}
	if p, c := m.word(m.l.RecvProduced).Load(), m.word(m.l.RecvConsumed).Load(); p != 10 || c != 10 {
		t.Errorf("receive queue: produced %d, consumed %d, want 10 of both", p, c)
	}
}

// The state in the program's memory is that of the queue pair, and what is posted in
// the error state is flushed.
func TestOwnMemoryFlush(t *testing.T) {
	a, _, m := own(t)
	if s := roce.State(m.word(m.l.State).Load()); s != roce.StateRTS {
		t.Errorf("state %v, want RTS", s)
	}
	must(t, a.QP.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState))
	m.recv(1, a.MR.SGE(0, 16))
	want(t, a.Next(t), 1, roce.WCRecv, roce.WCWRFlushErr)
	m.send(2, a.MR.SGE(0, 16), "")
	want(t, a.Next(t), 2, roce.WCSend, roce.WCWRFlushErr)
}

// The calls and the program's own posting share one queue.
func TestOwnMemoryCalls(t *testing.T) {
	a, b, m := own(t)
	for i := range uint64(3) {
		must(t, b.QP.PostRecv(roce.RecvWR{ID: i, SGE: []roce.SGE{b.MR.SGE(0, 16)}}))
	}
	m.send(0, a.MR.SGE(0, 4), "")
	must(t, a.QP.PostSend(roce.SendWR{ID: 1, Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 4)}}))
	m.send(2, a.MR.SGE(0, 4), "")
	for i := range uint64(3) {
		want(t, a.Next(t), i, roce.WCSend, roce.WCSuccess)
		want(t, b.Next(t), i, roce.WCRecv, roce.WCSuccess)
	}
}
