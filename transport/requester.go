package transport

import "time"

// requester is the sending side of a queue pair.
type requester struct {
	q        *QP
	draining bool // SQD: requests are still in process
}

func (r *requester) reset()                                                       {}
func (r *requester) start(a *Attr)                                                {}
func (r *requester) kick(now time.Duration)                                       {}
func (r *requester) wants() Want                                                  { return 0 }
func (r *requester) transmit(now time.Duration, out Outbox, budget int) (n int) { return 0 }
func (r *requester) receive(now time.Duration, in *Inbound)                       {}
func (r *requester) deadline() time.Duration                                      { return Never }
func (r *requester) expire(now time.Duration)                                     {}
func (r *requester) flush()                                                       {}
