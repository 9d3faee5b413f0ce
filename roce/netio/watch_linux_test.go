package netio

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// portNews is one call of WatchPort's function.
type portNews struct{ present, up bool }

// TestWatchPort: what becomes of an address and its interface is told, once each,
// in the namespace where the watch began.
func TestWatchPort(t *testing.T) {
	l := newLab(t, 1500)
	l.enter(0)
	news := make(chan portNews, 16)
	stop, err := WatchPort(netip.MustParseAddr("10.77.0.1"), func(present, up bool) { news <- portNews{present, up} })
	l.do(err)
	if n := <-news; n != (portNews{true, true}) {
		t.Errorf("at first: %+v", n)
	}
	l.enter(1) // what the watch asks is answered by its own namespace
	link := func(i int) netlink.Link {
		t.Helper()
		l.enter(i)
		v, err := netlink.LinkByName([]string{"v0", "v1"}[i])
		l.do(err)
		return v
	}
	addr := func(a string) *netlink.Addr {
		n, err := netlink.ParseAddr(a)
		l.do(err)
		return n
	}
	// Nothing is told of other addresses: it would come before what follows.
	l.do(netlink.AddrAdd(link(0), addr("10.77.0.9/24")))
	for _, c := range []struct {
		name string
		do   func() error
		want portNews
	}{
		{"interface down", func() error { return netlink.LinkSetDown(link(0)) }, portNews{true, false}},
		{"interface up", func() error { return netlink.LinkSetUp(link(0)) }, portNews{true, true}},
		{"peer down: no carrier", func() error { return netlink.LinkSetDown(link(1)) }, portNews{true, false}},
		{"peer up", func() error { return netlink.LinkSetUp(link(1)) }, portNews{true, true}},
		{"address removed", func() error { return netlink.AddrDel(link(0), addr("10.77.0.1/24")) }, portNews{false, true}},
		{"down without the address", func() error { return netlink.LinkSetDown(link(0)) }, portNews{false, false}},
		{"address added", func() error { return netlink.AddrAdd(link(0), addr("10.77.0.1/24")) }, portNews{true, false}},
		{"up again", func() error { return netlink.LinkSetUp(link(0)) }, portNews{true, true}},
		{"interface deleted", func() error { return netlink.LinkDel(link(0)) }, portNews{false, false}},
	} {
		l.do(c.do())
		select {
		case n := <-news:
			if n != c.want {
				t.Errorf("%s: %+v, want %+v", c.name, n, c.want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: nothing was told", c.name)
		}
	}
	stop()
	if len(news) > 0 {
		t.Errorf("told besides: %+v", <-news)
	}
}

// TestWatchPortStop: a watch ends at once, also one that was never told of anything,
// and says no more.
func TestWatchPortStop(t *testing.T) {
	for range 10 {
		stop, err := WatchPort(netip.MustParseAddr("127.0.0.1"), func(bool, bool) {})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { stop(); close(done) }()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("stop hangs")
		}
	}
}
