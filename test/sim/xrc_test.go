package sim

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

var xrcSeeds = flag.Int("sim.xrc", 60, "seeds of XRC, after each other from 1")

// Seeds of random requests over XRC on a network that loses, duplicates, reorders and
// damages: senders of two devices, targets in two domains of a third, receive queues
// in protection domains of their own. Each request completes once, in order, with
// success; each message arrives once, at the receive queue that it names, in the order
// of its connection, and by the target of its connection; READs, WRITEs and atomics
// find the memory of that queue; no other byte changes. One receive queue is
// destroyed: the one connection that uses it ends at the request that names it then,
// what was posted before has arrived, what comes later is flushed, and no other
// connection notices.
func TestXRCSeeds(t *testing.T) {
	ended := 0
	for seed := range uint64(*xrcSeeds) {
		x, err := runXRC(seed + 1)
		if err != nil {
			t.Fatalf("seed %d: %v", seed+1, err)
		}
		if x.links[0].ended < len(x.links[0].posted)-1 {
			ended++ // requests were under way
		}
	}
	if ended < *xrcSeeds/8 {
		t.Errorf("only %d connections ended with requests behind the one that failed", ended)
	}
}

const (
	xrcLinks    = 5
	xrcRequests = 30                     // of each link
	xrcTotal    = xrcLinks * xrcRequests // messages have numbers from 0
	xrcSlot     = 1400                   // bytes of a message and what is around it
	xrcWord     = 3 * xrcTotal * xrcSlot // where the word for atomics is
	xrcMemory   = xrcWord + 8
	xrcGuardVal = 0xd7
)

// Memory of a receive queue is in three parts, with a slot for each message in each:
// of receives, of WRITEs, and of what READs find.
func xrcRecvAt(i int) int  { return i * xrcSlot }
func xrcWriteAt(i int) int { return (xrcTotal + i) * xrcSlot }
func xrcReadAt(i int) int  { return (2*xrcTotal + i) * xrcSlot }

// xrcContents are the contents of message i. No byte is that of the guard.
func xrcContents(i, n int) []byte {
	b := make([]byte, n)
	for k := range b {
		b[k] = byte((i*41 + k*7 + k>>8) % xrcGuardVal)
	}
	return b
}

// xrcPristine is the memory of a receive queue at first.
var xrcPristine = func() []byte {
	b := bytes.Repeat([]byte{xrcGuardVal}, xrcMemory)
	for i := range xrcTotal {
		copy(b[xrcReadAt(i):], xrcContents(i, xrcSlot-1))
	}
	clear(b[xrcWord:])
	return b
}()

// xrcSim is a run.
type xrcSim struct {
	rng    *rand.Rand
	now    time.Duration
	devs   [3]*roce.Device // two of senders, one of targets
	links  []*xrcLink
	queues []*xrcQueue // of domains 0, 1, 0, ...; the last is the one destroyed
	byQPN  map[ib.QPN]*xrcLink
	wcs    [16]roce.WC
}

// xrcQueue is a shared receive queue with its protection domain.
type xrcQueue struct {
	domain int
	srq    *roce.SRQ
	cq     *roce.CQ
	mr     *roce.MR
	recvs  int             // posted
	taken  map[uint64]bool // completed: in the order in which messages end
	adds   uint64          // FETCH_ADDs that have completed
	found  map[uint64]bool
	gone   bool // destroyed
}

// xrcLink is a sender and its target.
type xrcLink struct {
	num          int
	domain       int
	send, target *roce.QP
	cq           *roce.CQ
	mr           *roce.MR
	posted       []xrcRequest
	done         int
	ended        int // the request with which it ended, or -1
}

type xrcRequest struct {
	op   roce.WROpcode
	q    *xrcQueue
	i    int // number of the message
	size int
	came bool // it was received
}

func (r *xrcRequest) receives() bool {
	return r.op == roce.WRSend || r.op == roce.WRSendWithImm || r.op == roce.WRWriteWithImm
}

func runXRC(seed uint64) (*xrcSim, error) {
	x := &xrcSim{rng: rand.New(rand.NewPCG(seed, 0x0a14)), byQPN: map[ib.QPN]*xrcLink{}}
	defer func() {
		for _, d := range x.devs {
			if d != nil {
				d.Close()
			}
		}
	}()
	if err := x.open(seed); err != nil {
		return nil, err
	}
	for steps := 0; ; steps++ {
		busy, err := x.act()
		if err != nil {
			return nil, err
		}
		if !busy {
			return x, x.check()
		}
		if steps > 200_000 {
			return nil, fmt.Errorf("not finished at %v", x.now)
		}
		for _, d := range x.devs {
			d.Progress(x.now)
		}
		x.now += time.Duration(x.rng.IntN(100)) * time.Microsecond
	}
}

func (x *xrcSim) open(seed uint64) error {
	fabric := netio.NewFabric()
	faults := netio.Faults{Loss: 0.03, Duplicate: 0.03, Reorder: 0.03, Corrupt: 0.01, ReorderBy: 1 + x.rng.IntN(8)}
	for i := range x.devs {
		be, err := fabric.Open(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), netio.Port))
		if err != nil {
			return err
		}
		var key [32]byte
		binary.LittleEndian.PutUint64(key[:], seed*4+uint64(i))
		if x.devs[i], err = roce.Open(roce.Config{
			Backend: netio.WithFaults(be, netio.FaultConfig{Seed: seed*4 + uint64(i), Rx: faults}),
			Manual:  true, Rand: rand.NewChaCha8(key),
		}); err != nil {
			return err
		}
	}
	var domains [2]*roce.XRCD
	for i := range domains {
		var err error
		if domains[i], err = x.devs[2].OpenXRCD("", os.O_CREATE); err != nil {
			return err
		}
	}
	for i := range 5 {
		if err := x.addQueue(i%2, domains[i%2]); err != nil {
			return err
		}
	}
	for i := range xrcLinks {
		if err := x.addLink(i, domains[i%2]); err != nil {
			return err
		}
	}
	return nil
}

func (x *xrcSim) addQueue(domain int, d *roce.XRCD) error {
	q := &xrcQueue{domain: domain, found: map[uint64]bool{}, taken: map[uint64]bool{}}
	pd, err := x.devs[2].AllocPD()
	if err != nil {
		return err
	}
	if q.cq, err = x.devs[2].CreateCQ(xrcTotal); err != nil {
		return err
	}
	if q.mr, err = pd.RegisterMR(bytes.Clone(xrcPristine), roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic, roce.IOVA(1<<32)); err != nil {
		return err
	}
	if q.srq, err = pd.CreateSRQ(roce.SRQConfig{MaxWR: xrcTotal, MaxSGE: 2, XRCD: d, CQ: q.cq}); err != nil {
		return err
	}
	x.queues = append(x.queues, q)
	return nil
}

func (x *xrcSim) addLink(i int, d *roce.XRCD) error {
	l := &xrcLink{num: i, domain: i % 2, ended: -1}
	dev := x.devs[x.rng.IntN(2)]
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	if l.cq, err = dev.CreateCQ(xrcRequests); err != nil {
		return err
	}
	if l.mr, err = pd.RegisterMR(bytes.Repeat([]byte{xrcGuardVal}, xrcRequests*xrcSlot), roce.LocalWrite); err != nil {
		return err
	}
	if l.send, err = pd.CreateQP(roce.QPConfig{Type: roce.XRCSend, SendCQ: l.cq, MaxSendWR: xrcRequests, SigAll: true}); err != nil {
		return err
	}
	if l.target, err = d.CreateQP(); err != nil {
		return err
	}
	conn := roce.Conn{
		Access: roce.RemoteWrite | roce.RemoteRead | roce.RemoteAtomic, PathMTU: []ib.MTU{roce.MTU256, roce.MTU1024}[x.rng.IntN(2)],
		AckTimeout: time.Millisecond, MaxRdAtomic: 1 + x.rng.IntN(4), MaxDestRdAtomic: 4,
	}
	if err := l.send.Connect(roce.Remote{Addr: x.devs[2].Addr(), QPN: l.target.Num(), PSN: l.target.PSN()}, conn); err != nil {
		return err
	}
	if err := l.target.Connect(roce.Remote{Addr: dev.Addr(), QPN: l.send.Num(), PSN: l.send.PSN()}, conn); err != nil {
		return err
	}
	x.links = append(x.links, l)
	x.byQPN[l.target.Num()] = l
	return nil
}

// act lets all programs do something, now and then, and says whether there is
// anything left to do.
func (x *xrcSim) act() (busy bool, err error) {
	for _, q := range x.queues {
		if q.recvs < xrcTotal && x.rng.IntN(3) == 0 && !q.gone {
			if err := x.postRecv(q); err != nil {
				return false, err
			}
		}
		if err := x.poll(q.cq, func(wc *roce.WC) error { return x.received(q, wc) }); err != nil {
			return false, err
		}
	}
	for _, l := range x.links {
		for len(l.posted) < xrcRequests && x.rng.IntN(4) == 0 {
			if err := x.post(l); err != nil {
				return false, err
			}
		}
		if err := x.poll(l.cq, func(wc *roce.WC) error { return x.completed(l, wc) }); err != nil {
			return false, err
		}
		busy = busy || l.done < xrcRequests || l.unheard()
	}
	if len(x.links[0].posted) > 5 && x.rng.IntN(200) == 0 {
		err = x.destroy()
	}
	return busy, err
}

// destroy destroys a queue, once.
func (x *xrcSim) destroy() error {
	q := x.doomed()
	if q.gone {
		return nil
	}
	q.gone = true
	return q.srq.Destroy()
}

// doomed is the queue that is destroyed. Only link 0 uses it.
func (x *xrcSim) doomed() *xrcQueue { return x.queues[len(x.queues)-1] }

// unheard says whether messages of the link have still to be received. What came to
// the queue that is gone cannot be.
func (l *xrcLink) unheard() bool {
	for _, r := range l.posted[:l.arriving()] {
		if r.receives() && !r.came && !r.q.gone {
			return true
		}
	}
	return false
}

// next returns the message of the link that is received next by a queue, or nil.
func (l *xrcLink) next(q *xrcQueue) *xrcRequest {
	for i := range l.posted {
		if r := &l.posted[i]; r.q == q && r.receives() && !r.came {
			return r
		}
	}
	return nil
}

// arriving is how many requests of the link arrive for sure, or have to.
func (l *xrcLink) arriving() int {
	if l.ended >= 0 {
		return l.ended
	}
	return len(l.posted)
}

func (x *xrcSim) postRecv(q *xrcQueue) error {
	at, cut := xrcRecvAt(q.recvs), x.rng.IntN(xrcSlot-1)
	q.recvs++
	return q.srq.PostRecv(roce.RecvWR{ID: uint64(q.recvs - 1), SGE: []roce.SGE{q.mr.SGE(at, cut), q.mr.SGE(at+cut, xrcSlot-1-cut)}})
}

// post posts a random request to a random queue of the link's domain.
func (x *xrcSim) post(l *xrcLink) error {
	n := len(l.posted)
	r := xrcRequest{i: l.num*xrcRequests + n, size: 4 + x.rng.IntN(xrcSlot-5)}
	r.op = []roce.WROpcode{
		roce.WRSend, roce.WRSendWithImm, roce.WRWrite, roce.WRWriteWithImm, roce.WRRead, roce.WRAtomicFetAdd,
	}[x.rng.IntN(6)]
	for r.q == nil || r.q.domain != l.domain || r.q == x.doomed() && l.num != 0 {
		r.q = x.queues[x.rng.IntN(len(x.queues))]
	}
	if l.num == 0 && n == xrcRequests-1 { // at the latest now it ends
		r.q = x.doomed()
		if err := x.destroy(); err != nil {
			return err
		}
	}
	if r.op == roce.WRAtomicFetAdd {
		r.size = 8
	}
	buf := l.mr.Bytes()[n*xrcSlot:][:r.size]
	wr := roce.SendWR{
		ID: uint64(n), Opcode: r.op, SGE: []roce.SGE{l.mr.SGE(n*xrcSlot, r.size)}, Imm: uint32(r.i), RemoteSRQN: r.q.srq.Num(),
		RKey: r.q.mr.RKey(), RemoteAddr: r.q.mr.Addr() + uint64(xrcWriteAt(r.i)), CompareAdd: 1,
	}
	switch r.op {
	case roce.WRRead:
		wr.RemoteAddr = r.q.mr.Addr() + uint64(xrcReadAt(r.i))
	case roce.WRAtomicFetAdd:
		wr.RemoteAddr = r.q.mr.Addr() + xrcWord
	default:
		copy(buf, xrcContents(r.i, r.size))
	}
	if x.rng.IntN(5) == 0 {
		wr.Flags |= roce.Fence
	}
	l.posted = append(l.posted, r)
	return l.send.PostSend(wr)
}

func (x *xrcSim) poll(cq *roce.CQ, each func(*roce.WC) error) error {
	n, err := cq.Poll(x.wcs[:])
	for i := 0; i < n && err == nil; i++ {
		err = each(&x.wcs[i])
	}
	return err
}

// received judges the completion of a receive.
func (x *xrcSim) received(q *xrcQueue, wc *roce.WC) error {
	l := x.byQPN[wc.QPN]
	switch {
	case l == nil || l.domain != q.domain || wc.Status != roce.WCSuccess:
		return fmt.Errorf("receive %+v of a queue of domain %d", *wc, q.domain)
	case q.taken[wc.ID]:
		return fmt.Errorf("receive %d completes twice", wc.ID)
	}
	q.taken[wc.ID] = true
	r := l.next(q)
	if r == nil {
		return fmt.Errorf("link %d: a message that nobody sent", l.num)
	}
	r.came = true
	if int(wc.ByteLen) != r.size || wc.SrcQP != l.send.Num() ||
		(wc.Opcode == roce.WCRecvRDMAWithImm) != (r.op == roce.WRWriteWithImm) ||
		(wc.Flags&roce.WCWithImm != 0) != (r.op != roce.WRSend) || r.op != roce.WRSend && wc.Imm != uint32(r.i) {
		return fmt.Errorf("link %d: message %+v is received as %+v", l.num, *r, *wc)
	}
	at := xrcRecvAt(int(wc.ID))
	if r.op == roce.WRWriteWithImm {
		at = xrcWriteAt(r.i)
	}
	if err := q.holds(at, xrcContents(r.i, r.size)); err != nil {
		return fmt.Errorf("link %d: message %+v: %w", l.num, *r, err)
	}
	// As it was, so that check finds what was written beside.
	at = xrcRecvAt(int(wc.ID))
	copy(q.mr.Bytes()[at:][:xrcSlot], xrcPristine[at:])
	return nil
}

func (q *xrcQueue) holds(at int, want []byte) error {
	if got := q.mr.Bytes()[at:][:len(want)]; !bytes.Equal(got, want) {
		return fmt.Errorf("wrong bytes at %d", at)
	}
	return nil
}

// completed judges the completion of a request.
func (x *xrcSim) completed(l *xrcLink, wc *roce.WC) error {
	if int(wc.ID) != l.done || wc.QPN != l.send.Num() {
		return fmt.Errorf("link %d: request %d completes, want %d", l.num, wc.ID, l.done)
	}
	r := &l.posted[l.done]
	l.done++
	if wc.Status != roce.WCSuccess {
		return x.ends(l, r, wc.Status)
	}
	buf := l.mr.Bytes()[int(wc.ID)*xrcSlot:][:r.size]
	switch {
	case l.ended >= 0:
		return fmt.Errorf("link %d: request %d succeeds behind %d, which failed", l.num, wc.ID, l.ended)
	case r.op == roce.WRRead && !bytes.Equal(buf, xrcContents(r.i, r.size)):
		return fmt.Errorf("link %d: READ %d brings wrong bytes", l.num, wc.ID)
	case r.op == roce.WRAtomicFetAdd:
		found := binary.NativeEndian.Uint64(buf)
		if r.q.found[found] {
			return fmt.Errorf("link %d: FETCH_ADD %d found %d, as another one did", l.num, wc.ID, found)
		}
		r.q.found[found] = true
		r.q.adds++
	case r.op == roce.WRWrite:
		return r.q.holds(xrcWriteAt(r.i), xrcContents(r.i, r.size))
	}
	return nil
}

// ends judges a request that has failed: one of link 0 that names the queue that is
// destroyed, or a READ that was being answered from its memory; then the others are
// flushed. A NAK that gets lost is not repeated, as its sender is in error: then the
// retries end, for the oldest request whose ACK was lost with it. So they do for a READ
// that was answered, and whose answer cannot be repeated.
func (x *xrcSim) ends(l *xrcLink, r *xrcRequest, s roce.WCStatus) error {
	refused := s == roce.WCRetryExcErr || r.q.gone && (s == roce.WCRemInvReqErr || s == roce.WCRemAccessErr && r.op == roce.WRRead)
	switch {
	case l.num == 0 && x.doomed().gone && l.ended < 0 && refused:
		l.ended = l.done - 1
		if s != roce.WCRetryExcErr && l.target.State() != roce.StateErr {
			return fmt.Errorf("the target that refused is in %v", l.target.State())
		}
	case l.ended >= 0 && s == roce.WCWRFlushErr:
	default:
		return fmt.Errorf("link %d: request %d, %+v: %v", l.num, l.done-1, *r, s)
	}
	return nil
}

// check looks at what is left at the end: link 0 alone has ended, and nothing was
// written but what was asked for.
func (x *xrcSim) check() error {
	for _, l := range x.links {
		if want := l.num == 0; (l.ended >= 0) != want || (l.send.State() == roce.StateErr) != want {
			return fmt.Errorf("link %d ended at %d, in %v", l.num, l.ended, l.send.State())
		}
	}
	for k, q := range x.queues {
		if q.gone {
			continue
		}
		want, open, begun := bytes.Clone(xrcPristine[:xrcReadAt(0)]), uint64(0), 0
		for _, l := range x.links {
			for i, r := range l.posted {
				sure := i < l.arriving()
				switch at := xrcWriteAt(r.i); {
				case r.q != q:
				case r.op == roce.WRAtomicFetAdd && !sure:
					open++
				case r.receives() && r.op != roce.WRWriteWithImm && !sure && !r.came:
					begun = 1 // one of these may have begun to arrive
				case r.op != roce.WRWrite && r.op != roce.WRWriteWithImm:
				case sure:
					copy(want[at:], xrcContents(r.i, r.size))
				default:
					copy(want[at:][:r.size], q.mr.Bytes()[at:])
				}
			}
		}
		if n := binary.NativeEndian.Uint64(q.mr.Bytes()[xrcWord:]); n < q.adds || n > q.adds+open {
			return fmt.Errorf("queue %d: %d in the word after %d FETCH_ADDs, and perhaps %d", k, n, q.adds, open)
		}
		for i := 0; i < q.recvs && begun > 0; i++ {
			if at := xrcRecvAt(i); !q.taken[uint64(i)] && q.holds(at, want[at:][:xrcSlot]) != nil {
				copy(want[at:][:xrcSlot-1], q.mr.Bytes()[at:])
				begun--
			}
		}
		if !bytes.Equal(q.mr.Bytes()[:len(want)], want) {
			return fmt.Errorf("queue %d: bytes were written that nobody asked for", k)
		}
	}
	return nil
}
