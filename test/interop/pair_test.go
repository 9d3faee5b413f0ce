//go:build linux

package interop

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/goroce/goroce/test/interop/lab"
	"github.com/goroce/goroce/test/interop/wire"
)

// end is a verbs peer with an open device.
type end struct {
	*lab.Peer
	side *side
	gid  string
	last int // the last object number given out

	services map[int]string // of queue pairs
	windows  map[int]int    // types of memory windows
}

// do sends a request that must succeed.
func (e *end) do(t testing.TB, r wire.Request) wire.Response {
	t.Helper()
	if c, ok := t.(*testCase); ok {
		e.note(c, r)
	}
	res, err := e.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// number gives out a number for a new object.
func (e *end) number() int {
	e.last++
	return e.last
}

// endKey says which peer an end is.
type endKey struct {
	side   *side
	family string
	newer  bool // of the guest's newer rdma-core
}

// end returns a verbs peer, started when needed and again when it has died.
func (s *session) end(t testing.TB, k endKey) *end {
	t.Helper()
	if e := s.ends[k]; e != nil && e.Alive() {
		return e
	}
	peer, err := k.side.peer(k.newer)
	if err != nil {
		t.Fatal(err)
	}
	e := &end{Peer: peer, side: k.side, services: map[int]string{}, windows: map[int]int{}}
	e.gid = e.do(t, wire.Request{Op: "open", Addr: k.side.addr(k.family)}).GID
	s.ends[k] = e
	return e
}

// closePeers ends all verbs peers.
func (s *session) closePeers() {
	for _, e := range s.ends {
		e.Close()
	}
	clear(s.ends)
}

// link says how two queue pairs are connected. The zero value is completed by connect.
type link struct {
	family      string
	mtu         int
	weRequest   bool     // this stack is the requester, else rxe is
	qpAccess    []string // what the responder's QP allows; nil: everything
	ackTimeout  int      // 5-bit code
	retry       int
	rnrRetry    int
	minRNRTimer int // 5-bit code
	spread      bool
	service     string // RC (or empty), UC, UD
	srq         int    // the responder's shared receive queue
	newer       bool   // ATOMIC_WRITE and FLUSH are used: rxe's side needs the newer rdma-core
}

func (l link) role() string {
	if l.service != "" {
		rc := l
		rc.service = ""
		return l.service + ", " + rc.role()
	}
	if l.weRequest {
		return "we request"
	}
	return "rxe requests"
}

// qkey is the Q_Key of all UD queue pairs.
const qkey = 0x00c0ffee

// everyAccess are the remote rights of a QP without restriction.
var everyAccess = []string{"remote_write", "remote_read"}

// conn is a connected queue pair on each side.
type conn struct {
	c        *testCase
	req, rsp *end
	reqQP    int
	rspQP    int
	reqQPN   uint32
	rspQPN   uint32
	srq      int // the responder's
	regions  []func()
}

// connect makes and connects the queue pairs; they are destroyed when the case ends. First PSNs are random, one in four near the wrap.
func (c *testCase) connect(l link) *conn {
	c.Helper()
	n := &conn{c: c, srq: l.srq, req: c.s.end(c, endKey{c.s.us, l.family, l.newer && c.s.us.rxe}), rsp: c.s.end(c, endKey{c.s.rxe, l.family, l.newer})}
	if !l.weRequest {
		n.req, n.rsp = n.rsp, n.req
	}
	if l.qpAccess == nil {
		l.qpAccess = everyAccess
	}
	l.ackTimeout = or(l.ackTimeout, 18) // 1.07 s
	l.retry = or(l.retry, 7)
	l.rnrRetry = or(l.rnrRetry, 7)
	l.minRNRTimer = or(l.minRNRTimer, 14) // 1.28 ms
	psn := [2]uint32{firstPSN(), firstPSN()}
	n.reqQP, n.rspQP = n.req.number(), n.rsp.number()
	reqQPN := n.req.do(c, wire.Request{Op: "qp", QP: n.reqQP, Depth: 128, Service: l.service, Extended: l.newer}).QPN
	rspQPN := n.rsp.do(c, wire.Request{Op: "qp", QP: n.rspQP, Depth: 128, Service: l.service, SRQ: l.srq, Extended: l.newer}).QPN
	n.reqQPN, n.rspQPN = reqQPN, rspQPN
	c.Cleanup(n.destroy)
	attrs := wire.Request{Op: "connect", MTU: l.mtu, AckTimeout: l.ackTimeout, Retry: l.retry, RNRRetry: l.rnrRetry, MinRNRTimer: l.minRNRTimer, RdAtomic: 4, Spread: l.spread, QKey: qkey}
	a := attrs
	a.QP, a.DestGID, a.DestQPN, a.RQPSN, a.SQPSN, a.Access = n.rspQP, n.req.gid, reqQPN, psn[0], psn[1], l.qpAccess
	n.rsp.do(c, a)
	a = attrs
	a.QP, a.DestGID, a.DestQPN, a.RQPSN, a.SQPSN, a.Access = n.reqQP, n.rsp.gid, rspQPN, psn[1], psn[0], nil
	n.req.do(c, a)
	c.Logf("%s QPN %#x PSN %#x -> %s QPN %#x PSN %#x", n.req.Name, reqQPN, psn[0], n.rsp.Name, rspQPN, psn[1])
	return n
}

func or(v, otherwise int) int {
	if v == 0 {
		return otherwise
	}
	return v
}

func firstPSN() uint32 {
	if rand.N(4) == 0 {
		return 0xfffffe - rand.N[uint32](4)
	}
	return rand.N[uint32](1 << 24)
}

// destroy removes what the connection made, on peers that still live; the completions of a failed case are taken off the queues.
func (n *conn) destroy() {
	for _, d := range []struct {
		e  *end
		qp int
	}{{n.req, n.reqQP}, {n.rsp, n.rspQP}} {
		if d.e.Alive() {
			d.e.Do(wire.Request{Op: "destroy", QP: d.qp})
			d.e.Do(wire.Request{Op: "poll", N: 256})
			d.e.Do(wire.Request{Op: "events", N: 16})
		}
	}
	for _, f := range n.regions {
		f()
	}
}

// region is registered memory of one side.
type region struct {
	e    *end
	id   int
	va   uint64
	rkey uint32
}

// region registers n bytes with the given rights until the case ends.
func (n *conn) region(e *end, size int, access ...string) region {
	n.c.Helper()
	r := region{e: e, id: e.number()}
	res := e.do(n.c, wire.Request{Op: "mr", MR: r.id, Len: size, Access: access})
	r.va, r.rkey = res.VA, res.RKey
	n.regions = append(n.regions, func() {
		if e.Alive() {
			e.Do(wire.Request{Op: "destroy", MR: r.id})
		}
	})
	return r
}

// fill writes the pattern of seed, or bytes of value b when seed is empty.
func (r region) fill(t testing.TB, off, size int, seed string, b byte) {
	t.Helper()
	r.e.do(t, wire.Request{Op: "fill", MR: r.id, Off: off, Len: size, Seed: seed, Byte: b})
}

// check compares with what fill would write.
func (r region) check(t testing.TB, what string, off, size int, seed string, b byte) {
	t.Helper()
	if res := r.e.do(t, wire.Request{Op: "check", MR: r.id, Off: off, Len: size, Seed: seed, Byte: b}); res.Bad > 0 {
		t.Errorf("%s on %s: %d of %d bytes are wrong, the first at %d", what, r.e.Name, res.Bad, size, res.First)
	}
}

// sges cuts a piece of the region into k segments.
func (r region) sges(off, size, k int) []wire.SGE {
	var s []wire.SGE
	for i := range k {
		a, b := size*i/k, size*(i+1)/k
		s = append(s, wire.SGE{MR: r.id, Off: off + a, Len: b - a})
	}
	return s
}

// poll waits for want completions of one side and fails the case unless they come.
func (n *conn) poll(e *end, want int, timeoutMS int) []wire.WC {
	n.c.Helper()
	wcs := e.do(n.c, wire.Request{Op: "poll", N: want, TimeoutMS: timeoutMS}).WCs
	if len(wcs) != want {
		n.c.Fatalf("%s: %d of %d completions within %d ms: %s", e.Name, len(wcs), want, timeoutMS, fmt.Sprint(wcs))
	}
	return wcs
}

// states waits until both queue pairs are in their states. A responder may be on its way to one: rxe, for one, goes to ERR when its NAK has
// left (rxe_resp.c, rxe_receiver).
func (n *conn) states(reqState, rspState string) {
	n.c.Helper()
	n.state("requester", n.req, n.reqQP, reqState)
	n.state("responder", n.rsp, n.rspQP, rspState)
}

func (n *conn) state(role string, e *end, qp int, want string) {
	n.c.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		got := e.do(n.c, wire.Request{Op: "state", QP: qp}).State
		if got == want {
			return
		}
		if time.Now().After(end) {
			n.c.Errorf("%s (%s): QP in state %s, want %s", role, e.Name, got, want)
			return
		}
	}
}
