package cm

import (
	"container/heap"
	"container/list"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/transport"
)

// conn is a connection or a resolution, on either side.
type conn struct {
	id, remote uint32 // identifiers: ours, the peer's
	state      State
	peer       netip.Addr // with its zone
	guid       uint64     // the peer's
	tid        uint64     // of the messages of the exchange
	service    mad.ServiceID
	peerToPeer bool
	localQPN   ib.QPN
	remoteQPN  ib.QPN
	remotePSN  ib.PSN // of the peer's REQ

	// out is the message that is repeated until it is answered: REQ, REP, DREQ,
	// SIDR_REQ or LAP. reply is what answers a repeated message of the peer: RTU
	// or APR.
	out, reply    []byte
	timeout       time.Duration // from a message to its repetition
	roundTrip     time.Duration // of the path: twice its packet life time
	retries, left uint8
	extended      bool          // the peer's MRA is in force
	patience      time.Duration // how long a request waits for the user and for a repetition
	lapOut, lapIn bool          // a LAP of ours, of the peer's waits for its APR
	lapTID        uint64
	due           time.Duration
	timer         int           // place in the heap, unarmed when there is no timer
	listener      *Listener     // whose backlog it is in
	pending, half *list.Element // in listener.pending, in Agent.halfOpen
	waiting       *list.Element // in Agent.timeWait
}

// from says whether a message from src is the peer's.
func (c *conn) from(src netip.Addr) bool { return plain(c.peer) == plain(src) }

// The keys of c in the tables of Agent.
func (c *conn) remoteKey() remoteID    { return remote(c.peer, c.guid, c.remote) }
func (c *conn) remoteQPKey() remoteID  { return remote(c.peer, c.guid, uint32(c.remoteQPN)) }
func (c *conn) resolvingKey() remoteID { return remote(c.peer, 0, c.remote) }
func (c *conn) peeringKey() service    { return service{plain(c.peer), c.service} }

// The limits of timeouts that peers ask for, as codes: 17 ms and 69 s.
const (
	minTimeout = ib.AckTimeout(12)
	maxTimeout = ib.AckTimeout(24)
)

// wait returns the duration of a timeout that a message asks for.
func wait(code ib.AckTimeout) time.Duration {
	return min(max(code, minTimeout), maxTimeout).Duration()
}

// roundTrip returns twice the packet life time of a path, from its local ACK
// timeout, which is that and a little more (IBTA 9.7.6.1.3).
func roundTrip(code ib.AckTimeout) time.Duration {
	orDefault(&code, defaultACKTimeout)
	return min(code, maxTimeout).Duration()
}

// repeat sends m to the peer now, and again after each timeout, retries times,
// until stop.
func (a *Agent) repeat(now time.Duration, c *conn, m mad.Message) {
	if c.out == nil {
		c.out = make([]byte, mad.Size)
	}
	mad.EncodeCM(c.out, c.tid, m)
	a.count(Tx(m.Attr()))
	c.left, c.extended = c.retries, false
	a.arm(c, now+c.timeout)
	a.cfg.Send(c.peer, c.out)
}

// attrOf returns the attribute of a datagram that was encoded here.
func attrOf(b []byte) mad.Attr {
	h, _ := mad.Parse(b)
	return h.Attr
}

// keep sends m and keeps it, to be sent again when the peer repeats itself.
func (a *Agent) keep(c *conn, tid uint64, m mad.Message) {
	if c.reply == nil {
		c.reply = make([]byte, mad.Size)
	}
	mad.EncodeCM(c.reply, tid, m)
	a.count(Tx(m.Attr()))
	a.cfg.Send(c.peer, c.reply)
}

// timers is a heap of connections, the next one due first.
type timers []*conn

const unarmed = -1

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].due < t[j].due }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer, t[j].timer = i, j
}
func (t *timers) Push(x any) {
	c := x.(*conn)
	c.timer = len(*t)
	*t = append(*t, c)
}
func (t *timers) Pop() any {
	last := len(*t) - 1
	c := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	c.timer = unarmed
	return c
}

// arm makes c's timer expire at due.
func (a *Agent) arm(c *conn, due time.Duration) {
	c.due = due
	if c.timer == unarmed {
		heap.Push(&a.timers, c)
	} else {
		heap.Fix(&a.timers, c.timer)
	}
}

// stop stops c's timer.
func (a *Agent) stop(c *conn) {
	if c.timer != unarmed {
		heap.Remove(&a.timers, c.timer)
	}
}

// Deadline returns when Expire wants to be called, transport.Never for not at
// all.
func (a *Agent) Deadline() time.Duration {
	if len(a.timers) == 0 {
		return transport.Never
	}
	return a.timers[0].due
}

// expireBatch bounds the work of one Expire.
const expireBatch = 256

// Expire runs the timers that are due, a bounded number of them: the next
// Deadline is in the past when there are more. It is harmless at any other time.
func (a *Agent) Expire(now time.Duration) {
	for range expireBatch {
		if a.Deadline() > now {
			return
		}
		a.expire(now, a.timers[0])
	}
}

func (a *Agent) expire(now time.Duration, c *conn) {
	switch c.state {
	case StateTimeWait:
		a.event(c, Event{Kind: EventTimeWaitExit, Gone: true})
	case StateREQReceived, StateSIDRREQReceived:
		a.count(PendingExpired)
		a.event(c, Event{Kind: EventDropped, Gone: true})
	default:
		if c.left == 0 {
			a.exhausted(now, c, attrOf(c.out))
			return
		}
		c.left--
		c.extended = false
		a.arm(c, now+c.timeout)
		a.count(Retries(attrOf(c.out)))
		a.cfg.Send(c.peer, c.out)
	}
}

// exhausted ends what nobody answered. The peer is told (IBTA 12.9, timeout):
// it may have sent answers that were all lost.
func (a *Agent) exhausted(now time.Duration, c *conn, attr mad.Attr) {
	switch attr {
	case mad.AttrLAP:
		a.stop(c)
		c.lapOut = false
		a.event(c, Event{Kind: EventUnreachable, Attr: attr})
	case mad.AttrDREQ:
		a.enterTimeWait(now, c)
		a.event(c, Event{Kind: EventDisconnected, TimedOut: true, Attr: attr})
	case mad.AttrREQ, mad.AttrREP:
		a.sendREJ(c, mad.RejTimeout, nil, nil)
		a.event(c, Event{Kind: EventUnreachable, Gone: true, Attr: attr})
	default:
		a.event(c, Event{Kind: EventUnreachable, Gone: true, Attr: attr})
	}
}
