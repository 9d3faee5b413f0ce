package transport

// req and rsp return the halves of an RC queue pair.
func (q *QP) req() *requester { return q.snd.(*requester) }
func (q *QP) rsp() *responder { return q.rcv.(*responder) }
