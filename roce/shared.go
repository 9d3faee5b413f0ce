package roce

import (
	"sync/atomic"
	"unsafe"

	"github.com/goroce/goroce/transport"
)

// QueueMemory is memory for work queues outside of Go's.
type QueueMemory interface {
	// Alloc returns n bytes of zeros on a multiple of 64. They stay until the queue
	// pair is destroyed or its device is closed. It is called once.
	Alloc(n int) unsafe.Pointer
}

// QueueLayout says where the work queues of a queue pair lie in the memory of
// QPConfig.Memory, in bytes from its start. All words are in the byte order of the
// host.
//
// A queue has entries numbered by free-running indices of 32 bits; entry i is at i
// modulo the size of the queue, a power of two. Who posts is alone in it, fills
// entries at the produced index as long as that is less than a queue's size ahead of
// the consumed one, and stores the produced index after them. A send queue wants
// QP.Doorbell then if its idle index is one of the new entries', or the state is not RTS;
// a receive queue only in the error state, so that its entries are flushed. Both are to be
// read after the index was stored, all sequentially consistent.
type QueueLayout struct {
	Size int // bytes

	State                      int // uint32, the State of the queue pair
	SendProduced, SendConsumed int // uint32; the engine writes consumed and idle, the program produced
	SendIdle                   int // uint32: where the engine last found no more entries
	RecvProduced, RecvConsumed int

	SendEntries int // transport.SendWQE
	SendSGEs    int // SGE, MaxSendSGE for each entry
	SendInline  int // MaxInline bytes for each entry
	RecvEntries int // ID as uint64, the number of segments as uint32, 4 bytes of padding
	RecvSGEs    int // SGE, MaxRecvSGE for each entry

	MaxLen int // bytes of the longest message
}

// queueHead is the start of the memory of work queues.
type queueHead struct {
	state      index
	send, recv ends
}

// Layout returns where the work queues lie, of a queue pair that was made with
// QPConfig.Memory. PostSend may be used as well, PostRecv too; never beside somebody
// who posts to the same queue by himself. They do all checks: who posts by himself
// does those of PostSend and PostRecv, or the device misbehaves towards the program,
// never towards others.
func (q *QP) Layout() QueueLayout { return q.layout }

// Doorbell says that the memory of QPConfig.Memory has new requests.
func (q *QP) Doorbell() { q.e.ring(q) }

// layOut puts the queues into m.
func (q *QP) layOut(m QueueMemory) {
	s, r, l := q.sq, q.rq, &q.layout
	sent := int(s.mask + 1)
	l.room(1, int(unsafe.Sizeof(queueHead{})))
	l.SendEntries = l.room(sent, int(unsafe.Sizeof(transport.SendWQE{})))
	l.SendSGEs = l.room(sent*int(s.maxSGE), int(unsafe.Sizeof(SGE{})))
	l.SendInline = l.room(sent*int(s.maxInline), 1)
	if r != nil {
		l.RecvEntries = l.room(r.size(), int(unsafe.Sizeof(recvEntry{})))
		l.RecvSGEs = l.room(r.size()*int(r.maxSGE), int(unsafe.Sizeof(SGE{})))
	}
	l.MaxLen = q.maxLen
	base := m.Alloc(l.Size)
	h := (*queueHead)(base)
	at := func(p *atomic.Uint32) int { return int(uintptr(unsafe.Pointer(p)) - uintptr(base)) }
	l.State = at(&h.state.Uint32)
	l.SendProduced, l.SendConsumed, l.SendIdle = at(&h.send.produced.Uint32), at(&h.send.consumed), at(&h.send.idle)
	l.RecvProduced, l.RecvConsumed = at(&h.recv.produced.Uint32), at(&h.recv.consumed)

	q.seen = &h.state.Uint32
	s.ends = &h.send
	s.entries = unsafe.Slice((*transport.SendWQE)(unsafe.Add(base, l.SendEntries)), sent)
	s.sges = unsafe.Slice((*SGE)(unsafe.Add(base, l.SendSGEs)), sent*int(s.maxSGE))
	s.inline = unsafe.Slice((*byte)(unsafe.Add(base, l.SendInline)), sent*int(s.maxInline))
	if r != nil {
		r.ends = &h.recv
		r.entries = unsafe.Slice((*recvEntry)(unsafe.Add(base, l.RecvEntries)), r.size())
		r.sges = unsafe.Slice((*SGE)(unsafe.Add(base, l.RecvSGEs)), r.size()*int(r.maxSGE))
	}
}

// room appends n things of a size, on a cache line, and returns where they begin.
func (l *QueueLayout) room(n, size int) (at int) {
	at = l.Size
	l.Size += (n*size + lineSize - 1) &^ (lineSize - 1)
	return at
}

const lineSize = int(unsafe.Sizeof(index{}))
