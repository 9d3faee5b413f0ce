//go:build linux

package main

import (
	"math/rand/v2"
	"time"

	"github.com/goroce/goroce/test/sim/network"
)

// queueConfig is a link and the queue before it.
type queueConfig struct {
	rate  float64 // bits per second
	limit int     // bytes that find room
	red   network.RED
}

// counts is what a queue has seen.
type counts struct {
	packets, bytes, marked, dropped int
	cnps                            int
	longest                         int             // bytes
	waited                          float64         // bytes that each packet found before it, in sum
	from                            map[[4]byte]int // bytes that have left, by source
	left                            time.Duration   // when the last of them had
}

// queue is the output of a switch. A packet leaves when the link has sent it, which
// follows from when it came and not from when somebody looks: the backlog is what the
// link still needs time for.
type queue struct {
	queueConfig
	counts
	rng  *rand.Rand
	free time.Duration // when the link has sent everything
	wait []waiting     // a ring
	head int
	n    int
}

type waiting struct {
	at     time.Duration // when its last bit has left
	packet []byte
}

func newQueue(c queueConfig, seed uint64) *queue {
	return &queue{queueConfig: c, counts: counts{from: map[[4]byte]int{}}, rng: rand.New(rand.NewPCG(seed, 4791)), wait: make([]waiting, 4096)}
}

// backlog is how many bytes wait.
func (q *queue) backlog(now time.Duration) int {
	return int(float64(max(q.free-now, 0)) * q.rate / 8e9)
}

// push takes a copy of an IP packet that has come, marks it or drops it.
func (q *queue) push(now time.Duration, p []byte) {
	backlog := q.backlog(now)
	if q.n == len(q.wait) || backlog+len(p) > q.limit {
		q.dropped++
		return
	}
	w := &q.wait[(q.head+q.n)%len(q.wait)]
	w.packet = append(w.packet[:0], p...)
	q.n++
	q.free = max(q.free, now) + time.Duration(float64(8*len(p))/q.rate*1e9)
	w.at = q.free
	if q.red.Marks(backlog, q.rng.Float64) && mark(w.packet) {
		q.marked++
	}
	if isCNP(p) {
		q.cnps++
	}
	q.packets++
	q.bytes += len(p)
	q.longest = max(q.longest, backlog+len(p))
	q.waited += float64(backlog)
}

// due is when the next packet has left, false if there is none.
func (q *queue) due() (time.Duration, bool) { return q.wait[q.head].at, q.n > 0 }

// pop returns the next packet that has left; it is valid until the next push.
func (q *queue) pop(now time.Duration) []byte {
	if at, ok := q.due(); !ok || at > now {
		return nil
	}
	p := q.wait[q.head].packet
	q.from[source(p)] += len(p)
	q.left = q.wait[q.head].at
	q.head = (q.head + 1) % len(q.wait)
	q.n--
	return p
}
