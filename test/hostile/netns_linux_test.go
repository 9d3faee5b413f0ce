package hostile

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// wire is two network namespaces of the test's own, joined by a veth pair (v0 and
// v1), with a connected endpoint in each. While it exists the test's goroutine is
// bound to its thread.
type wire struct {
	t    *testing.T
	ns   [2]netns.NsHandle
	ends [2]*rocetest.Endpoint
}

func newWire(t *testing.T, conn roce.Conn) *wire {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces with a veth pair")
	}
	runtime.LockOSThread() // for ever: the thread ends with the test
	w := &wire{t: t}
	for i := range w.ns {
		var err error
		if w.ns[i], err = netns.New(); err != nil {
			t.Skipf("needs network namespaces: %v", err)
		}
		t.Cleanup(func() { w.ns[i].Close() })
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "v1", 4200
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "v0", PeerNamespace: netlink.NsFd(w.ns[0])}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Skipf("needs veth: %v", err)
	}
	for i := range w.ns {
		must(t, netlink.LinkSetMTU(w.link(i), 4200))
		must(t, netlink.AddrAdd(w.link(i), w.addr(i)))
		must(t, netlink.LinkSetUp(w.link(i)))
	}
	for i := range w.ns {
		w.enter(i)
		d, err := roce.Open(roce.Config{Addr: w.ip(i)})
		must(t, err)
		t.Cleanup(func() { d.Close() })
		w.ends[i] = rocetest.New(t, d, rocetest.Options{})
	}
	conn.Access = roce.RemoteWrite | roce.RemoteRead
	for i, e := range w.ends {
		w.enter(i)
		peer := w.ends[1-i].QP
		must(t, e.QP.Connect(roce.Remote{Addr: w.ip(1 - i), QPN: peer.Num(), PSN: peer.PSN()}, conn))
	}
	return w
}

func (w *wire) enter(i int) { must(w.t, netns.Set(w.ns[i])) }

func (w *wire) ip(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 78, 0, byte(i + 1)}) }

func (w *wire) addr(i int) *netlink.Addr {
	a, err := netlink.ParseAddr(w.ip(i).String() + "/24")
	must(w.t, err)
	return a
}

// link enters the namespace of an end and returns its interface.
func (w *wire) link(i int) netlink.Link {
	w.enter(i)
	l, err := netlink.LinkByName(fmt.Sprintf("v%d", i))
	must(w.t, err)
	return l
}

// post posts a WRITE of 64 KiB.
func (w *wire) post(id uint64) {
	a, b := w.ends[0], w.ends[1]
	must(w.t, a.QP.PostSend(roce.SendWR{ID: id, Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 1<<16)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}))
}

// lost is the sum of some counters of the first device.
func (w *wire) lost(names string) (n uint64) {
	all := w.ends[0].Dev.Counters()
	for _, name := range strings.Fields(names) {
		n += all[name]
	}
	return n
}

// disturbances are what can happen to an interface under a connection. counters are
// those that tell of it: without a carrier some kernels refuse packets for want of
// buffers (ENOBUFS), which holds the sender back, others lose them.
var disturbances = []struct {
	name, counters string
	begin, end     func(w *wire) error
}{
	{"own interface down", "tx_unreachable",
		func(w *wire) error { return netlink.LinkSetDown(w.link(0)) }, func(w *wire) error { return netlink.LinkSetUp(w.link(0)) }},
	{"peer's interface down", "tx_nobufs local_ack_timeout_err",
		func(w *wire) error { return netlink.LinkSetDown(w.link(1)) }, func(w *wire) error { return netlink.LinkSetUp(w.link(1)) }},
	{"own address removed", "tx_unreachable",
		func(w *wire) error { return netlink.AddrDel(w.link(0), w.addr(0)) }, func(w *wire) error { return netlink.AddrAdd(w.link(0), w.addr(0)) }},
	{"peer's address removed", "local_ack_timeout_err",
		func(w *wire) error { return netlink.AddrDel(w.link(1), w.addr(1)) }, func(w *wire) error { return netlink.AddrAdd(w.link(1), w.addr(1)) }},
	{"MTU below the path MTU", "tx_too_big",
		func(w *wire) error { return netlink.LinkSetMTU(w.link(0), 1500) }, func(w *wire) error { return netlink.LinkSetMTU(w.link(0), 4200) }},
}

// TestDisturbed: what happens to an interface is loss, with a counter: a request that
// was posted meanwhile completes once it is over, or ends with retries exceeded.
func TestDisturbed(t *testing.T) {
	for _, d := range disturbances {
		t.Run(d.name, func(t *testing.T) {
			w := newWire(t, roce.Conn{AckTimeout: 100 * time.Millisecond, RetryCount: 7})
			w.post(1)
			if wc := w.ends[0].Next(t); wc.Status != roce.WCSuccess {
				t.Fatalf("before: %v", wc.Status)
			}
			before := w.lost(d.counters)
			must(t, d.begin(w))
			w.post(2)
			for end := time.Now().Add(10 * time.Second); w.lost(d.counters) == before; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("nothing moves %s", d.counters)
				}
			}
			must(t, d.end(w))
			wc := w.ends[0].Next(t)
			t.Logf("counters: %v", moved(w.ends[0].Dev))
			if wc.Status != roce.WCSuccess || wc.ID != 2 {
				t.Fatalf("after it was over: %d %v", wc.ID, wc.Status)
			}
		})
		t.Run(d.name+" for good", func(t *testing.T) {
			w := newWire(t, roce.Conn{AckTimeout: 5 * time.Millisecond, RetryCount: 2})
			must(t, d.begin(w))
			w.post(1)
			w.post(2)
			if wc := w.ends[0].Next(t); wc.Status != roce.WCRetryExcErr || wc.ID != 1 {
				t.Errorf("first request: %d %v", wc.ID, wc.Status)
			}
			if wc := w.ends[0].Next(t); wc.Status != roce.WCWRFlushErr || wc.ID != 2 {
				t.Errorf("second request: %d %v", wc.ID, wc.Status)
			}
			must(t, w.ends[0].Dev.Close()) // within its bound, or the error says that it was not
			must(t, w.ends[1].Dev.Close())
		})
	}
}

// moved are the counters of a device that are not 0.
func moved(d *roce.Device) map[string]uint64 {
	all := d.Counters()
	for name, n := range all {
		if n == 0 {
			delete(all, name)
		}
	}
	return all
}

// TestCloseWithLinkDown: with requests under way and the link down Close returns
// within its bound, and flushes them.
func TestCloseWithLinkDown(t *testing.T) {
	w := newWire(t, roce.Conn{AckTimeout: -1})
	must(t, netlink.LinkSetDown(w.link(0)))
	for i := range uint64(5) {
		w.post(i)
	}
	must(t, w.ends[0].Dev.Close())
	for i := range uint64(5) {
		if wc := w.ends[0].Next(t); wc.ID != i || wc.Status != roce.WCWRFlushErr {
			t.Errorf("%d %v", wc.ID, wc.Status)
		}
	}
}
