//go:build dropin && linux

package main

// #include "engine.h"
import "C"

import (
	"encoding/binary"
	"time"
	"unsafe"

	"github.com/goroce/goroce/roce"
)

// queue is a completion queue.
type queue struct {
	*roce.CQ
	given *eventTable
	l3    C.uint8_t // what datagrams come in: sl of their completions
}

// leastCQE is the room of a new queue that asks for less, as it may be given more (IBTA
// 11.2.8.1). perftest 4.5 with -e asks for one entry for sends and has one channel for
// both queues: when it gets the event of a receive in place of that of its send, it goes
// on without the completion, and posts the next.
const leastCQE = 16

// The layer 3 of a datagram, which a completion tells (IBTA A17.4.5.1), where mlx5 has it
// and UCX looks for it: in sl, with the bit that says that there is UDP.
const (
	overIPv6 = 1 | 1<<3
	overIPv4 = 2 | 1<<3
)

// goroceCreateCQ makes a completion queue, with a channel if that is not 0. *cqe is
// the number of entries, as asked for and then as it is.
//
//export goroceCreateCQ
func goroceCreateCQ(h, channel C.uint32_t, cookie C.uintptr_t, cqe *C.int, cq *C.uint32_t) C.int {
	d := devices.get(h)
	if d == nil {
		return C.EINVAL
	}
	opts := []roce.CQOption{roce.FromC()}
	if channel != 0 {
		ch := channels.get(channel)
		if ch == nil {
			return C.EINVAL
		}
		opts = append(opts, roce.OnChannel(ch))
	}
	c, err := d.CreateCQ(max(int(*cqe), leastCQE), opts...)
	if err != nil {
		return errnoOf(err)
	}
	d.events.own(c, cookie)
	if channel != 0 {
		completions.own(c, cookie)
	}
	q := &queue{CQ: c, given: d.events, l3: overIPv6}
	if d.Addr().Is4() {
		q.l3 = overIPv4
	}
	*cq, *cqe = cqs.add(q), C.int(c.Cap())
	return 0
}

//export goroceResizeCQ
func goroceResizeCQ(h C.uint32_t, n C.int, cqe *C.int) C.int {
	c := cqs.get(h)
	if c == nil {
		return C.EINVAL
	}
	err := c.Resize(int(n))
	if err == nil {
		*cqe = C.int(c.Cap())
	}
	return errnoOf(err)
}

//export goroceModerateCQ
func goroceModerateCQ(h C.uint32_t, count, usec C.uint16_t) C.int {
	c := cqs.get(h)
	if c == nil {
		return C.EINVAL
	}
	return errnoOf(c.Moderate(int(count), time.Duration(usec)*time.Microsecond))
}

// goroceDestroyCQ ends a completion queue. Then comp and async are how many events of
// it were handed out, which the program has to acknowledge before its memory goes.
//
//export goroceDestroyCQ
func goroceDestroyCQ(h C.uint32_t, comp, async *C.uint32_t) C.int {
	return destroy(&cqs, h, func(q *queue) error {
		err := q.Destroy()
		if err == nil {
			*async, *comp = q.given.disown(q.CQ), completions.disown(q.CQ)
		}
		return err
	})
}

// gorocePollCQ moves up to n completions into wc. It returns how many, or a negative
// errno.
//
//export gorocePollCQ
func gorocePollCQ(h C.uint32_t, n C.int, wc *C.struct_ibv_wc) C.int {
	c := cqs.get(h)
	if c == nil {
		return -C.EINVAL
	}
	out := unsafe.Slice(wc, n)
	var batch [16]roce.WC
	done := 0
	for done < len(out) {
		got, err := c.Poll(batch[:min(len(batch), len(out)-done)])
		for i := range got {
			putWC(&out[done+i], &batch[i])
			if batch[i].Flags&roce.WCGRH != 0 {
				out[done+i].sl = c.l3
			}
		}
		done += got
		if err != nil && done == 0 {
			return -errnoOf(err)
		}
		if got < len(batch) {
			break
		}
	}
	return C.int(done)
}

func putWC(out *C.struct_ibv_wc, wc *roce.WC) {
	*out = C.struct_ibv_wc{
		wr_id: C.uint64_t(wc.ID), status: C.enum_ibv_wc_status(wc.Status), opcode: C.enum_ibv_wc_opcode(wc.Opcode),
		vendor_err: C.uint32_t(wc.VendorErr), byte_len: C.uint32_t(wc.ByteLen), qp_num: C.uint32_t(wc.QPN), src_qp: C.uint32_t(wc.SrcQP),
		wc_flags: C.uint(wc.Flags),
	}
	if wc.Flags&roce.WCWithInv != 0 {
		binary.NativeEndian.PutUint32(out.anon0[:], wc.Imm)
	} else {
		binary.BigEndian.PutUint32(out.anon0[:], wc.Imm)
	}
}

//export goroceReqNotifyCQ
func goroceReqNotifyCQ(h C.uint32_t, solicited C.int) C.int {
	c := cqs.get(h)
	if c == nil {
		return C.EINVAL
	}
	return errnoOf(c.ReqNotify(solicited != 0))
}

// goroceCreateChannel makes a completion channel; fd is readable while
// goroceGetCQEvent has an event.
//
//export goroceCreateChannel
func goroceCreateChannel(h C.uint32_t, channel *C.uint32_t, fd *C.int) C.int {
	d := devices.get(h)
	if d == nil {
		return C.EINVAL
	}
	ch, err := d.CreateCompChannel()
	if err != nil {
		return errnoOf(err)
	}
	if *fd, err = blockable(ch.FD()); err != nil {
		ch.Destroy()
		return errnoOf(err)
	}
	*channel = channels.add(ch)
	return 0
}

//export goroceDestroyChannel
func goroceDestroyChannel(h C.uint32_t) C.int {
	return destroy(&channels, h, (*roce.CompChannel).Destroy)
}

// completions are the events of channels.
var completions = newEvents()

// goroceGetCQEvent takes an event and tells the cookie of its completion queue. It
// returns EAGAIN when there is none.
//
//export goroceGetCQEvent
func goroceGetCQEvent(h C.uint32_t, cookie *C.uintptr_t) C.int {
	ch := channels.get(h)
	if ch == nil {
		return C.EINVAL
	}
	for {
		c, err := ch.GetEvent(over)
		if err != nil {
			return noEvent(err)
		}
		c.AckEvents(1) // the C side counts what the program acknowledges
		if completions.give(c, cookie) {
			return 0
		}
	}
}
