package netio

import (
	"net/netip"
	"sync"
	"time"

	"github.com/goroce/goroce/ib"
)

// MaxQueues is the most queues of one address.
const MaxQueues = 64

// passRoom is how many bytes may wait that others have received for a queue.
const passRoom = 2 << 20

// QueueOf returns which of n queues receives the packets to a queue pair: the first
// has the management ones, 0 and 1.
func QueueOf(qpn ib.QPN, n int) int {
	if qpn <= ib.GSIQPN {
		return 0
	}
	return int(qpn) % n
}

// Queues lets n users, 1 to MaxQueues, share a backend, as the queues of a NIC do:
// each is a backend that may be used beside the others, and receives what QueueOf says
// and what is sent to the groups that it has joined. One of them reads for all, the
// first, which has to be polled for the others to get anything. The counters of the
// shared backend are those of the first; the last that is closed closes it. b is used
// under a lock, by Send, Recv and Deadline one at a time.
func Queues(b Backend, n int) []Backend {
	if n == 1 {
		return []Backend{b}
	}
	s := &queues{shared: b, groups: map[netip.Addr]uint64{}, open: n}
	for range n {
		s.add(b)
	}
	return s.backends()
}

// ListenQueues opens n UDP sockets on one address, as queues that need not be polled
// for each other: the kernel chooses by the number of the queue pair, where it can
// (Linux, SO_ATTACH_REUSEPORT_CBPF). Where the sockets of one address cannot be told
// apart, there is one with n queues. The error is a *ListenError.
//
// Where GRO puts packets to queue pairs of several queues together, one socket receives
// them for all, and they may arrive after later ones. It does not where the peer sends
// from a source port for each queue pair.
func ListenQueues(cfg UDPConfig, n int) ([]Backend, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	if n > 1 && !cfg.Portable {
		return listenQueues(cfg, n)
	}
	b, err := listen(cfg)
	if err != nil {
		return nil, err
	}
	return Queues(b, n), nil
}

// OwnQueues reports whether each of some backends that Queues or ListenQueues has
// returned receives by itself.
func OwnQueues(each []Backend) bool {
	q, ok := each[len(each)-1].(*queue)
	return !ok || q.reads()
}

// ownQueues makes backends of one address queues of each other.
func ownQueues(each []Backend) []Backend {
	s := &queues{}
	for _, b := range each {
		s.add(b)
	}
	return s.backends()
}

// queues are the queues of one address.
type queues struct {
	all    []*queue
	shared Backend // that of all, nil if each has its own

	mu     sync.Mutex            // of what is shared: held while it is used
	groups map[netip.Addr]uint64 // which queues have joined
	open   int                   // queues
}

func (s *queues) add(b Backend) {
	q := &queue{set: s, index: len(s.all), be: b, w: newWaiter(), in: inbox{room: passRoom}}
	s.all = append(s.all, q)
}

func (s *queues) backends() []Backend {
	list := make([]Backend, len(s.all))
	for i, q := range s.all {
		list[i] = q
	}
	return list
}

// queue is one of several backends on one address. What another one has received for
// it waits in its inbox: GRO puts packets together whatever their queue pair is.
type queue struct {
	set   *queues
	index int
	be    Backend // its own, or the shared one
	c     counters
	w     waiter // of one that has no backend to wait for
	turn  bool   // the inbox was read last

	mu     sync.Mutex // leaf
	in     inbox
	kept   bool // something of the own backend is in it, which came before what that has now
	closed bool
}

// reads says whether the queue reads a backend: its own, or for all.
func (q *queue) reads() bool { return q.set.shared == nil || q.index == 0 }

// lock takes the shared backend.
func (q *queue) lock() {
	if q.set.shared != nil {
		q.set.mu.Lock()
	}
}

func (q *queue) unlock() {
	if q.set.shared != nil {
		q.set.mu.Unlock()
	}
}

func (q *queue) Caps() Caps                { return q.be.Caps() }
func (q *queue) LocalAddr() netip.AddrPort { return q.be.LocalAddr() }

func (q *queue) Send(now time.Duration, runs []Run) (int, error) {
	if q.waitClosed() {
		return 0, errClosed(q.LocalAddr())
	}
	q.lock()
	defer q.unlock()
	before := q.be.Deadline()
	n, err := q.be.Send(now, runs)
	if !q.reads() && q.be.Deadline() < before {
		q.be.Wake() // what is held is for the first to release
	}
	return n, err
}

func (q *queue) Recv(now time.Duration, dst []Received) (int, error) {
	n, err := q.takePassed(dst)
	if n > 0 || err != nil || !q.reads() {
		return n, err
	}
	n, err = q.receive(now, dst)
	return q.sort(dst[:n]), err
}

func (q *queue) receive(now time.Duration, dst []Received) (int, error) {
	q.lock()
	defer q.unlock()
	return q.be.Recv(now, dst)
}

// takePassed takes what is in the inbox, by turns with the own backend.
func (q *queue) takePassed(dst []Received) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, errClosed(q.LocalAddr())
	}
	if q.turn && !q.kept && q.reads() {
		q.turn = false
		return 0, nil
	}
	n := q.in.take(dst)
	q.turn, q.kept = n > 0, q.kept && q.in.waiting() > 0
	return n, nil
}

// sort keeps what is for this queue and passes the rest on. It returns how much of got
// it has kept, in order: when a part of something is put by, so is all behind it.
func (q *queue) sort(got []Received) (n int) {
	kept := false
	for i := range got {
		r := &got[i]
		to := q.owners(r)
		if to == 1<<q.index && !kept {
			got[n] = *r
			n++
			continue
		}
		if to != 0 {
			kept = q.pass(r, to) || kept
			continue
		}
		for at := 0; at < r.Segments(); {
			part, next := q.part(r, at)
			kept = q.pass(&part, q.set.owner(part.Segment(0), q.index)) || kept
			at = next
		}
	}
	return n
}

// owners returns the set of queues that all of r is for, or 0 when its packets are for
// different ones.
func (q *queue) owners(r *Received) uint64 {
	if r.Dst.Addr().IsMulticast() {
		return q.members(r)
	}
	to := q.set.owner(r.Segment(0), q.index)
	for i := 1; i < r.Segments(); i++ {
		if q.set.owner(r.Segment(i), q.index) != to {
			return 0
		}
	}
	return to
}

// members returns the set of queues that receive from this one what was sent to a group.
func (q *queue) members(r *Received) uint64 {
	own := uint64(1) << q.index
	if q.set.shared == nil || qpnOf(r.Segment(0)) != ib.MulticastQPN {
		return own // each joins by itself, or nobody may have it
	}
	q.lock()
	defer q.unlock()
	if to := q.set.groups[r.Dst.Addr()]; to != 0 {
		return to
	}
	return own // which says that nobody is there
}

// qpnOf returns the queue pair that a packet is for, 0 if it is too short to say.
func qpnOf(b []byte) ib.QPN {
	if len(b) < ib.BTHSize {
		return 0
	}
	return ib.QPN(b[5])<<16 | ib.QPN(b[6])<<8 | ib.QPN(b[7])
}

// owner returns the queue of a packet as a set, that of the receiver by if nobody can
// have it.
func (s *queues) owner(b []byte, by int) uint64 {
	qpn := qpnOf(b)
	if qpn == 0 {
		return 1 << by
	}
	return 1 << QueueOf(qpn, len(s.all))
}

// part returns the packets of r from one on that are for the same queue, and where the
// next part begins.
func (q *queue) part(r *Received, from int) (part Received, next int) {
	to := q.set.owner(r.Segment(from), q.index)
	for next = from + 1; next < r.Segments() && q.set.owner(r.Segment(next), q.index) == to; {
		next++
	}
	part = *r
	part.ID += uint16(from)
	part.Buf = r.Buf[from*r.SegSize : min(next*r.SegSize, len(r.Buf))]
	return part, next
}

// pass copies r for a set of queues. It reports whether this one is among them.
func (q *queue) pass(r *Received, to uint64) (own bool) {
	for _, o := range q.set.all {
		if to>>o.index&1 != 0 {
			o.accept(r, o == q)
			own = own || o == q
		}
	}
	return own
}

// accept puts r into the inbox, where it stays until the next Recv.
func (q *queue) accept(r *Received, own bool) {
	q.mu.Lock()
	ok := !q.closed && q.in.put(r)
	if ok && own {
		q.kept = true
	}
	first := ok && q.in.waiting() == 1
	q.mu.Unlock()
	switch {
	case !ok:
		q.c.add(RxPassDropped, r.Segments())
	case !own:
		q.c.add(RxPassed, r.Segments())
	}
	if first && !own {
		q.Wake()
	}
}

// Deadline is now while something waits in the inbox.
func (q *queue) Deadline() time.Duration {
	q.mu.Lock()
	waits := q.in.waiting() > 0
	q.mu.Unlock()
	switch {
	case waits:
		return 0
	case !q.reads():
		return Never
	}
	q.lock()
	defer q.unlock()
	return q.be.Deadline()
}

// shareRetry is how long a queue waits that cannot see when a shared backend takes
// more.
const shareRetry = 100 * time.Microsecond

func (q *queue) Wait(timeout time.Duration, write bool) error {
	if q.waitClosed() {
		return errClosed(q.LocalAddr())
	}
	if q.reads() {
		if err := q.be.Wait(timeout, write); err != nil {
			return err
		}
	} else {
		if write && (timeout < 0 || timeout > shareRetry) {
			timeout = shareRetry
		}
		q.w.wait(timeout, q)
	}
	if q.waitClosed() {
		return errClosed(q.LocalAddr())
	}
	return nil
}

func (q *queue) waitClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// waitOver implements condition.
func (q *queue) waitOver() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed || q.in.waiting() > 0
}

func (q *queue) Wake() {
	if q.reads() {
		q.be.Wake()
	} else {
		q.w.wake()
	}
}

func (q *queue) Join(group netip.Addr) error {
	if q.set.shared == nil {
		return q.be.Join(group)
	}
	q.lock()
	defer q.unlock()
	if q.set.groups[group] == 0 {
		if err := q.be.Join(group); err != nil {
			return err
		}
	}
	q.set.groups[group] |= 1 << q.index
	return nil
}

func (q *queue) Leave(group netip.Addr) error {
	if q.set.shared == nil {
		return q.be.Leave(group)
	}
	q.lock()
	defer q.unlock()
	if q.set.groups[group]>>q.index&1 == 0 {
		return errNotJoined(group)
	}
	if q.set.groups[group] &^= 1 << q.index; q.set.groups[group] != 0 {
		return nil
	}
	delete(q.set.groups, group)
	return q.be.Leave(group)
}

// Stats returns the counters of the queue and, unless that is shared and this one not
// the first, of its backend.
func (q *queue) Stats() (s Stats) {
	if q.reads() {
		s = q.be.Stats()
	}
	q.c.addTo(&s)
	return s
}

func (q *queue) Close() error {
	q.mu.Lock()
	closed := q.closed
	q.closed, q.in = true, inbox{}
	q.mu.Unlock()
	if closed {
		return errClosed(q.LocalAddr())
	}
	if q.set.shared == nil {
		return q.be.Close()
	}
	q.Wake()
	q.lock()
	defer q.unlock()
	if q.set.open--; q.set.open > 0 {
		return nil
	}
	return q.be.Close()
}
