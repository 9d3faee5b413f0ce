package roce

// fifo is a queue of queue pairs, linked through them. A queue pair is in it at
// most once.
type fifo struct{ head, tail *QP }

// The queues that a queue pair can be in.
const (
	controlQueue = iota
	dataQueue
	waitQueue // for room at a peer
	numQueues
)

// link is a queue pair's place in a fifo.
type link struct {
	next   *QP
	queued bool
}

func (f *fifo) push(q *QP, which int) {
	l := &q.links[which]
	if l.queued {
		return
	}
	*l = link{queued: true}
	if f.tail == nil {
		f.head = q
	} else {
		f.tail.links[which].next = q
	}
	f.tail = q
}

func (f *fifo) pop(which int) *QP {
	q := f.head
	if q == nil {
		return nil
	}
	f.head = q.links[which].next
	if f.head == nil {
		f.tail = nil
	}
	q.links[which] = link{}
	return q
}
