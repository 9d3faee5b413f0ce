//go:build linux

package interop

import (
	"fmt"
	"slices"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/test/interop/wire"
)

// srqVerbs are those that take a receive.
var srqVerbs = []string{"SEND", "SEND_IMM", "WRITE_IMM"}

// srq shares one receive queue of the responder among several connections.
func (s *session) srq(t *testing.T) {
	t.Run("srq", func(t *testing.T) {
		for _, family := range pingpongFamilies {
			for _, we := range []bool{true, false} {
				if s.mode != full && we != (family == ipv4) {
					continue // the subset: one family per role
				}
				l := link{family: family, mtu: 1024, weRequest: we, minRNRTimer: rnrTimer}
				name := l.role() + " " + family
				for _, verb := range srqVerbs {
					for _, size := range []int{0, 3000, 65537} {
						if s.mode != full && size != 3000 {
							continue
						}
						s.run(t, "srq", fmt.Sprintf("%s: %s size %d to three queue pairs", name, verb, size), func(c *testCase) {
							q := c.newShared(l, verb, size)
							for round := range 2 {
								q.post(round)
								q.send(round)
								q.finish(round)
							}
						})
					}
				}
				s.run(t, "srq", name+": an empty queue is not ready, then recovers", func(c *testCase) { c.sharedEmpty(l) })
				s.run(t, "srq", name+": the limit event", func(c *testCase) { c.sharedLimit(l) })
			}
		}
	})
}

// shared is a number of connections whose responders take their receives from one queue.
type shared struct {
	*conn // the first
	conns []*conn
	verb  string
	size  int
	src   region // a message per connection and turn
	dst   region // a slot per receive
	far   region // what a WRITE with immediate writes to, a slot per message
}

const (
	sharedConns = 3
	sharedEach  = 4 // messages of a connection in a round
	sharedTotal = sharedConns * sharedEach
)

func (c *testCase) newShared(l link, verb string, size int) *shared {
	c.Helper()
	rsp := c.s.end(c, endKey{side: c.s.rxe, family: l.family})
	if !l.weRequest {
		rsp = c.s.end(c, endKey{side: c.s.us, family: l.family})
	}
	l.srq = rsp.number()
	rsp.do(c, wire.Request{Op: "srq", SRQ: l.srq, Depth: 2 * sharedTotal})
	c.Cleanup(func() { // after the queue pairs
		if rsp.Alive() {
			rsp.Do(wire.Request{Op: "destroy", SRQ: l.srq})
		}
	})
	q := &shared{verb: verb, size: size}
	for range sharedConns {
		q.conns = append(q.conns, c.connect(l))
	}
	q.conn = q.conns[0]
	q.src = q.region(q.req, q.slot(sharedTotal), "local_write")
	q.dst = q.region(q.rsp, q.slot(sharedTotal), "local_write")
	q.far = q.region(q.rsp, q.slot(sharedTotal), "local_write", "remote_write")
	return q
}

func (q *shared) slot(i int) int { return guardLen + i*(q.size+guardLen) }

// seed and number are what message n of connection k has in a round.
func (q *shared) seed(round, k, n int) string { return fmt.Sprintf("srq/%d/%d/%d", round, k, n) }
func (q *shared) number(k, n int) int         { return k*sharedEach + n }

// recvs posts n receives, from number at on, to the shared queue.
func (q *shared) recvs(at, n int) {
	q.c.Helper()
	var wrs []wire.WR
	for i := at; i < at+n; i++ {
		wrs = append(wrs, wire.WR{ID: uint64(1000 + i), SGEs: q.dst.sges(q.slot(i), q.size, 1+i%3)})
	}
	q.rsp.do(q.c, wire.Request{Op: "recv", SRQ: q.conn.srq, WRs: wrs})
}

// post prepares a round: receives for all messages, and guards around where they go.
func (q *shared) post(round int) {
	q.c.Helper()
	q.dst.fill(q.c, 0, q.slot(sharedTotal), "", guardByte)
	q.far.fill(q.c, 0, q.slot(sharedTotal), "", guardByte)
	q.recvs(0, sharedTotal)
}

// send posts a round, the messages of each connection as one list.
func (q *shared) send(round int) {
	q.c.Helper()
	for k, conn := range q.conns {
		var wrs []wire.WR
		for n := range sharedEach {
			i := q.number(k, n)
			q.src.fill(q.c, q.slot(i), q.size, q.seed(round, k, n), 0)
			wr := wire.WR{ID: uint64(i), Verb: q.verb, SGEs: q.src.sges(q.slot(i), q.size, 1+n%3)}
			if carriesImm(q.verb) {
				wr.Imm = uint32(0x80ff0000 + i)
			}
			if q.verb == "WRITE_IMM" {
				wr.RemoteVA, wr.RKey = q.far.va+uint64(q.slot(i)), q.far.rkey
			}
			wrs = append(wrs, wr)
		}
		q.req.do(q.c, wire.Request{Op: "send", QP: conn.reqQP, WRs: wrs})
	}
}

// finish waits for a round. Each receive is used once, in the order in which they were posted as seen by each connection, and has the next
// message of the connection that took it.
func (q *shared) finish(round int) {
	q.c.Helper()
	for _, wc := range q.poll(q.req, sharedTotal, 60000) {
		if wc.Status != 0 {
			q.c.Fatalf("requester (%s): completion %+v", q.req.Name, wc)
		}
	}
	op := "RECV"
	if q.verb == "WRITE_IMM" {
		op = "RECV_IMM"
	}
	var next [sharedConns]int
	used := map[uint64]bool{}
	for _, wc := range q.poll(q.rsp, sharedTotal, 60000) {
		k := slices.IndexFunc(q.conns, func(c *conn) bool { return c.rspQPN == wc.QPN })
		if k < 0 || next[k] == sharedEach || used[wc.ID] || wc.ID < 1000 || wc.ID >= 1000+sharedTotal {
			q.c.Fatalf("responder (%s): completion %+v", q.rsp.Name, wc)
		}
		n := next[k]
		next[k]++
		used[wc.ID] = true
		want := wire.WC{ID: wc.ID, Opcode: op, Len: q.size, Text: wc.Text, QPN: wc.QPN, GRH: wc.GRH, SrcQP: wc.SrcQP}
		if carriesImm(q.verb) {
			want.HasImm, want.Imm = true, uint32(0x80ff0000+q.number(k, n))
		}
		if wc != want {
			q.c.Fatalf("responder (%s): completion %+v, want %+v", q.rsp.Name, wc, want)
		}
		r, i := q.dst, int(wc.ID-1000)
		if q.verb == "WRITE_IMM" {
			r, i = q.far, q.number(k, n)
		}
		r.check(q.c, fmt.Sprintf("message %d of connection %d", n, k), q.slot(i), q.size, q.seed(round, k, n), 0)
	}
	for _, r := range []region{q.dst, q.far} {
		for i := range sharedTotal + 1 {
			r.check(q.c, fmt.Sprintf("guard before slot %d", i), q.slot(i)-guardLen, guardLen, "", guardByte)
		}
	}
	for _, c := range q.conns {
		c.states("RTS", "RTS")
	}
}

// sharedEmpty sends before there is any receive.
func (c *testCase) sharedEmpty(l link) {
	q := c.newShared(l, "SEND", 3000)
	q.dst.fill(c, 0, q.slot(sharedTotal), "", guardByte)
	q.far.fill(c, 0, q.slot(sharedTotal), "", guardByte)
	q.send(0)
	if wcs := q.req.do(c, wire.Request{Op: "poll", N: 1, TimeoutMS: 300}).WCs; len(wcs) > 0 {
		c.Fatalf("requester (%s): completion %+v although no receive is posted", q.req.Name, wcs[0])
	}
	q.recvs(0, sharedTotal)
	q.finish(0)
	c.wantSyndrome(l, q.conn, ib.RNRSyndrome(rnrTimer))
}

// sharedLimit arms the limit: the event comes once, with the message that leaves fewer receives.
func (c *testCase) sharedLimit(l link) {
	q := c.newShared(l, "SEND", 10)
	q.recvs(0, 4)
	q.rsp.do(c, wire.Request{Op: "limit", SRQ: q.conn.srq, N: 3})
	for n, want := range [][]string{nil, {"SRQ_LIMIT_REACHED"}, nil} { // 3, 2 and 1 are left
		q.req.do(c, wire.Request{Op: "send", QP: q.reqQP, WRs: []wire.WR{{ID: uint64(n), Verb: "SEND", SGEs: q.src.sges(0, 10, 1)}}})
		q.poll(q.req, 1, 30000)
		q.poll(q.rsp, 1, 30000)
		timeout := 200
		if want != nil {
			timeout = 5000
		}
		if got := q.rsp.do(c, wire.Request{Op: "events", N: 1, TimeoutMS: timeout}).Events; !slices.Equal(got, want) {
			c.Errorf("responder (%s): events %v after message %d, want %v", q.rsp.Name, got, n, want)
		}
	}
}
