package transport

import (
	"time"

	"github.com/goroce/goroce/ib"
)

// This file is what the extended reliable connection (IBTA A14) has besides RC.
// An initiator (XRCSend) has a requester and nothing else, a target (XRCRecv) a
// responder. Each request names a shared receive queue of the target's XRC domain
// in all of its packets, also one that consumes no receive: with the queue come the
// protection domain whose memory the request may use, and the completion queue.

// reach finds the receive queue that an XRC request names and makes it the one of
// the message; of other services there is one only. All packets of a message name
// the same.
func (r *responder) reach(in *Inbound) bool {
	if r.q.cfg.Type != XRCRecv {
		return true
	}
	s := r.q.cfg.SRQs.SRQ(in.XRCSRQ())
	if s == nil || r.inMessage && s != r.srq {
		return false
	}
	r.srq = s
	return true
}

// unreachable ends the connection because the expected packet names a receive
// queue that is not there, or not in the domain of the queue pair. Which NAK that
// is, is not certain: invalid RD request is none that a requester of mlx5 can
// report (Linux include/linux/mlx5/cq.h has no syndrome of it), which leaves
// invalid request. The event is that of hns (Linux hns_roce_qp.c, INVALID_XRCETH
// and XRCD_VIOLATION).
func (r *responder) unreachable(now time.Duration) {
	r.fail(now, ib.NAKInvalidRequest, r.expected, EventQPAccessErr)
}

// noSender is the sender of a queue pair that has no send queue.
type noSender struct{ q *QP }

// drain has nothing to wait for.
func (s noSender) drain() {
	if s.q.attr.SQDrainNotify {
		s.q.event(EventSQDrained)
	}
}

func (noSender) reset()                                        {}
func (noSender) start(*Attr)                                   {}
func (noSender) resume()                                       {}
func (noSender) drains() bool                                  { return false }
func (noSender) kick(time.Duration)                            {}
func (noSender) left(time.Duration)                            {}
func (noSender) inFlight() uint64                              { return 0 }
func (noSender) repeats() bool                                 { return false }
func (noSender) moved(time.Duration)                           {}
func (noSender) wants() Want                                   { return 0 }
func (noSender) transmit(_ time.Duration, _ Outbox, _ int) int { return 0 }
func (noSender) receive(time.Duration, *Inbound)               {}
func (noSender) deadline() time.Duration                       { return Never }
func (noSender) expire(time.Duration)                          {}
func (noSender) flush()                                        {}

// noReceiver is the receiver of a queue pair that takes nothing but responses.
type noReceiver struct{ silent }

func (noReceiver) reset()                          {}
func (noReceiver) start(*Attr)                     {}
func (noReceiver) receive(time.Duration, *Inbound) {}
func (noReceiver) flush()                          {}
