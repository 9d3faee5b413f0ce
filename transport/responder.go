package transport

import "time"

// responder is the receiving side of a queue pair.
type responder struct {
	q *QP
}

func (s *responder) reset()                                                       {}
func (s *responder) start(a *Attr)                                                {}
func (s *responder) wants() Want                                                  { return 0 }
func (s *responder) control(now time.Duration, out Outbox)                        {}
func (s *responder) transmit(now time.Duration, out Outbox, budget int) (n int) { return 0 }
func (s *responder) receive(now time.Duration, in *Inbound)                       {}
func (s *responder) flush()                                                       {}
