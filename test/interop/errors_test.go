//go:build linux

package interop

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/test/interop/wire"
)

// Completion statuses (ibv_wc_status).
const (
	wcFlush      = 5
	wcRemInv     = 9
	wcRemAcc     = 10
	wcRetry      = 12
	wcRNR        = 13
	accessEvent  = "QP_ACCESS_ERR"
	requestEvent = "QP_REQ_ERR"
	rnrTimer     = 18   // code of 5.12 ms
	errorSize    = 3000 // three packets at MTU 1024
)

// errorCase is a request that the responder must refuse.
type errorCase struct {
	name     string
	verb     string
	mrAccess []string // of the responder's region
	qpAccess []string // of the responder's QP; nil: everything
	wrongKey bool
	beyond   bool // one byte beyond the end of the region
	status   int
	nak      ib.NAKCode
	event    string   // that this stack, as responder, must raise
	skew     int      // bytes that the address is beside a word, of an atomic
	place    []string // of a FLUSH
}

// request is the bad request.
func (e errorCase) request(local, remote region) wire.WR {
	wr := wire.WR{ID: 1, Verb: e.verb, RemoteVA: remote.va + uint64(e.skew), RKey: remote.rkey, Compare: 1}
	switch {
	case e.verb == "FLUSH":
		wr.Len, wr.Access = errorSize, e.place
	case isAtomic(e.verb):
		wr.SGEs = local.sges(0, 8, 1)
	default:
		wr.SGEs = local.sges(0, errorSize, 1)
	}
	if e.wrongKey {
		wr.RKey ^= 0x55
	}
	if e.beyond {
		wr.RemoteVA++
	}
	return wr
}

var both = []string{"local_write", "remote_write", "remote_read"}

// The statuses and NAK codes are those of IBTA 9.7.4.1.2 and 9.7.5.2.4, Tables 58 and 59; the events those of IBTA 11.6.3.
var errorCases = []errorCase{
	{name: "WRITE with a wrong rkey", verb: "WRITE", mrAccess: both, wrongKey: true, status: wcRemAcc, nak: ib.NAKRemoteAccess, event: accessEvent},
	{name: "READ with a wrong rkey", verb: "READ", mrAccess: both, wrongKey: true, status: wcRemAcc, nak: ib.NAKRemoteAccess, event: accessEvent},
	{name: "WRITE out of range", verb: "WRITE", mrAccess: both, beyond: true, status: wcRemAcc, nak: ib.NAKRemoteAccess, event: accessEvent},
	{name: "READ out of range", verb: "READ", mrAccess: both, beyond: true, status: wcRemAcc, nak: ib.NAKRemoteAccess, event: accessEvent},
	{name: "WRITE, no right on the MR", verb: "WRITE", mrAccess: []string{"local_write", "remote_read"}, status: wcRemAcc, nak: ib.NAKRemoteAccess, event: accessEvent},
	{name: "READ, no right on the MR", verb: "READ", mrAccess: []string{"local_write", "remote_write"}, status: wcRemAcc, nak: ib.NAKRemoteAccess, event: accessEvent},
	{name: "WRITE, no right on the QP", verb: "WRITE", mrAccess: both, qpAccess: []string{"remote_read"}, status: wcRemInv, nak: ib.NAKInvalidRequest, event: requestEvent},
	{name: "READ, no right on the QP", verb: "READ", mrAccess: both, qpAccess: []string{"remote_write"}, status: wcRemInv, nak: ib.NAKInvalidRequest, event: requestEvent},
}

func (s *session) errors(t *testing.T) {
	t.Run("errors", func(t *testing.T) {
		for _, family := range pingpongFamilies {
			for _, we := range []bool{true, false} {
				l := link{family: family, mtu: 1024, weRequest: we}
				for _, e := range errorCases {
					s.run(t, "errors", fmt.Sprintf("%s %s: %s", l.role(), family, e.name), func(c *testCase) { c.refused(l, e) })
				}
				for _, verb := range []string{"SEND", "WRITE_IMM"} {
					s.run(t, "errors", fmt.Sprintf("%s %s: %s without a receive recovers", l.role(), family, verb), func(c *testCase) { c.rnrRecovers(l, verb) })
				}
				s.run(t, "errors", fmt.Sprintf("%s %s: SEND without a receive runs out of RNR retries", l.role(), family), func(c *testCase) { c.rnrExceeded(l) })
				s.run(t, "errors", fmt.Sprintf("%s %s: SEND to a QP that is gone runs out of retries", l.role(), family), func(c *testCase) { c.peerGone(l) })
			}
		}
	})
}

// refused posts the bad request and a good one behind it: the first fails with the status, the second is flushed, no memory changes, the
// NAK on the wire has the right code and the responder's QP is in error, with its event.
func (c *testCase) refused(l link, e errorCase) {
	l.qpAccess = e.qpAccess
	n := c.connect(l)
	local := n.region(n.req, errorSize, "local_write")
	remote := n.region(n.rsp, errorSize, e.mrAccess...)
	local.fill(c, 0, errorSize, "local", 0)
	remote.fill(c, 0, errorSize, "remote", 0)
	bad := e.request(local, remote)
	good := wire.WR{ID: 2, Verb: "WRITE", RemoteVA: remote.va, RKey: remote.rkey}
	n.req.do(c, wire.Request{Op: "send", QP: n.reqQP, WRs: []wire.WR{bad, good}})
	wcs := n.poll(n.req, 2, 30000)
	if wcs[0].ID != 1 || wcs[0].Status != e.status {
		c.Errorf("requester (%s): completion %+v, want status %d", n.req.Name, wcs[0], e.status)
	}
	if wcs[1].ID != 2 || wcs[1].Status != wcFlush {
		c.Errorf("requester (%s): completion %+v behind the failure, want status %d", n.req.Name, wcs[1], wcFlush)
	}
	local.check(c, "requester's memory", 0, errorSize, "local", 0)
	remote.check(c, "responder's memory", 0, errorSize, "remote", 0)
	n.states("ERR", "ERR")
	c.wantSyndrome(l, n, ib.NAKSyndrome(e.nak))
	n.wantEvent(e.event)
}

// wantEvent checks the responder's asynchronous event. rxe raises none for a refusal by the QP's own rights, and none at all up to
// kernel 6.12; 7.2 raises the one for a remote access error.
func (n *conn) wantEvent(want string) {
	n.c.Helper()
	timeout, expect := 5000, []string{want}
	if n.rsp.side.rxe && (want != accessEvent || !newerThan(n.c.s.kernel.Release, 6, 12)) {
		timeout, expect = 200, nil
	}
	if got := n.rsp.do(n.c, wire.Request{Op: "events", N: 1, TimeoutMS: timeout}).Events; !slices.Equal(got, expect) {
		n.c.Errorf("responder (%s): events %v, want %v", n.rsp.Name, got, expect)
	}
}

// newerThan compares a kernel release such as 6.12.117+deb13-amd64 with a version.
func newerThan(release string, major, minor int) bool {
	var a, b int
	fmt.Sscanf(release, "%d.%d", &a, &b)
	return a > major || a == major && b > minor
}

// wantSyndrome looks for the NAK in the capture.
func (c *testCase) wantSyndrome(l link, n *conn, want ib.Syndrome) {
	c.Helper()
	found, err := c.syndromes(netip.MustParseAddr(n.rsp.side.addr(l.family)))
	if err != nil {
		c.Fatal(err)
	}
	if found[want] == 0 {
		c.Errorf("responder (%s) put no syndrome %#x (%v) on the wire, but %v", n.rsp.Name, uint8(want), want, found)
	}
}

// rnrRecovers sends without a posted receive, waits until RNR NAKs must have been answered, posts receives and expects all data.
func (c *testCase) rnrRecovers(l link, verb string) {
	l.minRNRTimer = rnrTimer
	b := c.newBatch(l, verb, errorSize, 3)
	b.prepare(0)
	b.postSends(0)
	if wcs := b.req.do(c, wire.Request{Op: "poll", N: 1, TimeoutMS: 300}).WCs; len(wcs) > 0 {
		c.Fatalf("requester (%s): completion %+v although no receive is posted", b.req.Name, wcs[0])
	}
	b.postRecvs()
	b.finish(0, 30000)
	b.states("RTS", "RTS")
	c.wantSyndrome(l, b.conn, ib.RNRSyndrome(rnrTimer))
}

// rnrExceeded gives the requester one RNR retry.
func (c *testCase) rnrExceeded(l link) {
	l.minRNRTimer, l.rnrRetry = rnrTimer, 1
	b := c.newBatch(l, "SEND", errorSize, 2)
	b.prepare(0)
	b.postSends(0)
	b.wantFailure(wcRNR)
	c.wantSyndrome(l, b.conn, ib.RNRSyndrome(rnrTimer))
}

// peerGone destroys the responder's QP: nothing answers.
func (c *testCase) peerGone(l link) {
	l.ackTimeout, l.retry = 14, 2 // 67 ms
	b := c.newBatch(l, "SEND", errorSize, 2)
	b.prepare(0)
	b.rsp.do(c, wire.Request{Op: "destroy", QP: b.rspQP})
	b.postSends(0)
	b.wantFailure(wcRetry)
}

// wantFailure expects the first request to fail with a status, the others to be flushed and the requester's QP to be in error.
func (b *batch) wantFailure(status int) {
	b.c.Helper()
	for i, wc := range b.poll(b.req, b.n, 30000) {
		want := wcFlush
		if i == 0 {
			want = status
		}
		if wc.ID != uint64(i) || wc.Status != want {
			b.c.Errorf("requester (%s): completion %d is %+v, want status %d", b.req.Name, i, wc, want)
		}
	}
	b.state("requester", b.req, b.reqQP, "ERR")
}
