package roce_test

import (
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestPortEvents: the device tells when its interface goes down and up, and when
// its address goes and comes (IBTA 11.6.3.3).
func TestPortEvents(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a network namespace with a veth pair")
	}
	runtime.LockOSThread() // for ever: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("needs a network namespace: %v", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "v0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "v1"}); err != nil {
		t.Skipf("needs veth: %v", err)
	}
	v0, err := netlink.LinkByName("v0")
	must(t, err)
	v1, err := netlink.LinkByName("v1")
	must(t, err)
	addr, err := netlink.ParseAddr("10.77.1.1/24")
	must(t, err)
	must(t, netlink.AddrAdd(v0, addr))
	must(t, netlink.LinkSetUp(v1))

	// The interface is still down: that is what the device begins with.
	d, err := roce.Open(roce.Config{Addr: netip.MustParseAddr("10.77.1.1")})
	must(t, err)
	defer d.Close()
	none(t, d)
	for _, c := range []struct {
		do   func() error
		want roce.EventType
	}{
		{func() error { return netlink.LinkSetUp(v0) }, roce.EventPortActive},
		{func() error { return netlink.LinkSetDown(v1) }, roce.EventPortErr},
		{func() error { return netlink.LinkSetUp(v1) }, roce.EventPortActive},
		{func() error { return netlink.AddrDel(v0, addr) }, roce.EventGIDChange},
		{func() error { return netlink.AddrAdd(v0, addr) }, roce.EventGIDChange},
		{func() error { return netlink.LinkSetDown(v0) }, roce.EventPortErr},
	} {
		must(t, c.do())
		if ev := next(t, d, c.want); ev.QP != nil || ev.CQ != nil || ev.SRQ != nil {
			t.Errorf("event %v is about an object", ev.Type)
		}
	}
	none(t, d)
}
