package main

import (
	"bytes"
	"context"
	"fmt"

	"github.com/goroce/goroce/cmd/roce/internal/pattern"
	"github.com/goroce/goroce/cmd/roce/internal/perftest"
	"github.com/goroce/goroce/roce"
)

// perfCheck is --verify: each message has data that no other message of the test
// has, and lies in memory of its own until that is used again. Who sees the data
// checks it:
//
//	SEND           the receiver, each message
//	WRITE latency  the receiver, each message
//	WRITE          the writer, reading back what is there at the end
//	READ           the reader, each message
//	atomics        the requester, each result: the server's word counts, or has
//	               what the last CmpSwap has stored
//
// With --verify=last all messages of a queue pair have the same data and the same
// place. What is there is looked at when the time has been taken, by the same side.
//
// perftest knows nothing of it. What its servers let us read is compared with what
// we read of it before the test, packet by packet; nothing else of theirs can be
// verified.
type perfCheck struct {
	verified
	reference [][]byte // what a server of perftest has in its memory, by queue pair
	words     []uint64 // the words of atomics at the beginning, by queue pair
	stale     []byte   // what is in memory that a READ has not reached
}

// verified is what has been verified.
type verified struct {
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	What     string `json:"what"` // empty: nothing
}

const otherSideVerifies = "the other side verifies"

// agree finds out whether the data can be verified together with this peer.
func (c *perfCheck) agree(o *perfOptions, peer perftest.Peer) error {
	t := o.test
	switch {
	case peer.Ours && peer.Verify != o.verify:
		return fmt.Errorf("only one side has --verify, or the two differ in it: give the same on both")
	case !o.verifies():
		return nil
	case !peer.Ours && (!(t.fetches() && o.client()) || o.both):
		return fmt.Errorf("--verify needs roce perf %s on the other side: the data of perftest cannot be known", t.name)
	case t.pingPongs(), t.sends() && (!o.client() || o.both):
		c.What = "each message received"
	case t.atomic() && o.requests():
		c.What = "each result"
	case t.fetches() && o.requests() && peer.Ours:
		c.What = "each message read"
	case t.fetches() && o.client():
		c.What = "each message read, against a READ of each packet before the test"
		c.reference = make([][]byte, o.qps)
	case o.requests() && !t.sends():
		c.What = "the memory written, read back after the test: the last message of each place"
	default:
		c.What = otherSideVerifies
	}
	if o.verify == perftest.VerifyLast && c.What != otherSideVerifies {
		c.What = "what was there in the end"
	}
	return nil
}

// remoteSlot returns the place at the peer of what has a place here.
func (c *perfCheck) remoteSlot(slot int) int {
	if c.reference != nil || c.words != nil {
		return 0 // perftest has memory for one message, atomics use one word
	}
	return slot
}

// dataKey is the key of message number i of a queue pair, from side 0, the client,
// or 1.
func dataKey(k, size int, i, side uint64) uint64 {
	return pattern.Key('m', uint64(k), uint64(size), i, side)
}

// fill makes message i of queue pair k in a slot of ours.
func (c *perfCheck) fill(r *perfRun, k, slot, size int, i, side uint64) {
	pattern.Fill(r.ep.at(r.ep.local(k)+slot*r.o.stride(size), size), dataKey(k, size, i, side))
}

// beforeRequest makes the memory for message f.posted-1 ready.
func (c *perfCheck) beforeRequest(b *requests, f *flow, slot int, wr *roce.SendWR) {
	if b.o.cmpSwap {
		wr.CompareAdd, wr.Swap = c.word(b.o, f.k, f.posted-1), c.word(b.o, f.k, f.posted)
	}
	switch {
	case !b.o.verifiesEach():
	case b.o.test.fetches():
		c.spoil(b.perfRun, f.k, slot, b.size)
	default:
		c.fill(b.perfRun, f.k, slot, b.size, f.posted-1, b.side())
	}
}

// spoil puts data into a slot of ours that no READ or atomic brings.
func (c *perfCheck) spoil(r *perfRun, k, slot, size int) {
	copy(r.ep.at(r.ep.local(k)+slot*r.o.stride(size), size), c.stale)
}

// word returns what the server's word is before operation i: it counts, or is what
// the last CmpSwap stored.
func (c *perfCheck) word(o *perfOptions, k int, i uint64) uint64 {
	if o.cmpSwap && i > 0 {
		return pattern.Key('a', uint64(k), i)
	}
	return c.words[k] + i
}

// afterRequests checks what the next n completed requests have read.
func (c *perfCheck) afterRequests(b *requests, f *flow, n uint64) error {
	if !b.o.test.fetches() {
		return nil
	}
	for i := f.done; i < f.done+n; i++ {
		slot := int(i % uint64(len(f.sges)))
		off := slot * b.o.stride(b.size)
		if b.o.test.atomic() {
			if got, want := b.ep.mr.LoadUint64(b.ep.local(f.k)+off), c.word(b.o, f.k, i); got != want {
				return fmt.Errorf("wrong result of operation %d of queue pair %d: %#x, expected %#x", i+1, f.k, got, want)
			}
			c.count(b.size)
			continue
		}
		if err := c.fetched(b.perfRun, f.k, off, b.size, i); err != nil {
			return err
		}
	}
	return nil
}

// fetched checks what READ number i of queue pair k has brought to an offset.
func (c *perfCheck) fetched(r *perfRun, k, off, size int, i uint64) error {
	got := r.ep.at(r.ep.local(k)+off, size)
	if c.reference == nil {
		return c.data(got, pattern.From(readKey(k), off), k, i)
	}
	if want := c.reference[k][:size]; !bytes.Equal(got, want) {
		at := 0
		for got[at] == want[at] {
			at++
		}
		return wrongData(k, i, at, got[at], want[at])
	}
	c.count(size)
	return nil
}

// received checks message number i of queue pair k, from a side, in its slot.
func (c *perfCheck) received(r *perfRun, k, slot, size int, i, side uint64) error {
	return c.data(r.ep.at(r.ep.remote(k)+slot*r.o.stride(size)+r.o.header(), size), dataKey(k, size, i, side), k, i)
}

// fillWrite makes message i of a WRITE ping-pong, whose last byte is its number.
func (c *perfCheck) fillWrite(b *writePingPong, i uint64) {
	pattern.Fill(b.ep.at(b.src, b.size), dataKey(0, b.size, i, b.side()))
}

// written checks the peer's message i, whose last byte has been seen. The rest is
// there too, but reading it other than with the region's accessors needs the
// engine's lock in between: asking the queue pair anything takes it.
func (c *perfCheck) written(b *writePingPong, i uint64) error {
	b.qp().Query()
	if err := c.data(b.ep.at(b.dst, b.size-1), dataKey(0, b.size, i, 1-b.side()), 0, i); err != nil {
		return err
	}
	c.Bytes++
	return nil
}

// side returns 0 for the client, 1 for the server.
func (r *perfRun) side() uint64 {
	if r.o.client() {
		return 0
	}
	return 1
}

// data checks one message.
func (c *perfCheck) data(got []byte, key uint64, k int, i uint64) error {
	if at := pattern.Check(got, key); at >= 0 {
		return wrongData(k, i, at, got[at], pattern.At(key, at))
	}
	c.count(len(got))
	return nil
}

func (c *perfCheck) count(size int) {
	c.Messages++
	c.Bytes += uint64(size)
}

func wrongData(k int, i uint64, at int, got, want byte) error {
	return fmt.Errorf("wrong data in message %d of queue pair %d: byte %d is %#02x, expected %#02x", i+1, k, at, got, want)
}

// begin reads what a server of perftest has in its memory.
func (c *perfCheck) begin(ctx context.Context, r *perfRun) error {
	if !r.o.verifies() || !r.o.requests() {
		return nil
	}
	if r.o.test.fetches() {
		c.stale = make([]byte, r.o.size)
		pattern.Fill(c.stale, pattern.Key('s'))
	}
	if r.o.test.atomic() {
		return c.beginAtomics(ctx, r)
	}
	for k := range c.reference {
		for off := 0; off < r.o.size; off += r.mtu.Bytes() {
			if err := r.read(ctx, k, off, off, min(r.mtu.Bytes(), r.o.size-off)); err != nil {
				return err
			}
		}
		c.reference[k] = bytes.Clone(r.ep.at(r.ep.local(k), r.o.size))
	}
	return nil
}

// beginAtomics asks for the words of all queue pairs, adding nothing to them.
func (c *perfCheck) beginAtomics(ctx context.Context, r *perfRun) error {
	c.words = make([]uint64, r.o.qps)
	for k := range c.words {
		var err error
		if c.words[k], err = r.fetchWord(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// readBack reads what the requests have written and checks it.
func (c *perfCheck) readBack(ctx context.Context, b *requests) error {
	if !b.o.verifiesEach() || b.o.test.opcode != roce.WRWrite {
		return nil
	}
	for _, f := range b.flows {
		slots := uint64(len(f.sges))
		for i := f.posted - min(f.posted, slots); i < f.posted; i++ {
			off := int(i%slots) * b.o.stride(b.size)
			clear(b.ep.at(b.ep.local(f.k)+off, b.size))
			if err := b.read(ctx, f.k, off, off, b.size); err != nil {
				return err
			}
			if err := c.data(b.ep.at(b.ep.local(f.k)+off, b.size), dataKey(f.k, b.size, i, b.side()), f.k, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// read reads a part of the peer's memory of queue pair k into ours.
func (r *perfRun) read(ctx context.Context, k, from, to, n int) error {
	return r.one(ctx, k, roce.SendWR{Opcode: roce.WRRead, SGE: []roce.SGE{r.ep.mr.SGE(r.ep.local(k)+to, n)}}, from)
}

// fetchWord asks for the peer's word of queue pair k.
func (r *perfRun) fetchWord(ctx context.Context, k int) (uint64, error) {
	err := r.one(ctx, k, roce.SendWR{Opcode: roce.WRAtomicFetAdd, SGE: []roce.SGE{r.ep.mr.SGE(r.ep.local(k), r.o.size)}}, 0)
	return r.ep.mr.LoadUint64(r.ep.local(k)), err
}

// one does one request at an offset of the peer's memory of queue pair k.
func (r *perfRun) one(ctx context.Context, k int, wr roce.SendWR, at int) error {
	peer := &r.ep.peers[k]
	wr.Flags, wr.RemoteAddr, wr.RKey = roce.Signaled, peer.VAddr+uint64(at), peer.RKey
	if err := r.ep.qps[k].PostSend(wr); err != nil {
		return err
	}
	var wc [1]roce.WC
	if _, err := completions(ctx, r.ep.cq, wc[:], false); err != nil {
		return err
	}
	if wc[0].Status != roce.WCSuccess {
		return &completionError{sendID, wc[0].Status}
	}
	return nil
}
