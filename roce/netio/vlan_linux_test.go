package netio

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Rule: the address of a VLAN interface is as good as any: name, MTU and state are
// those of the VLAN interface, whatever the device below has, and runs arrive whole. test/interop runs this in its
// guests, whose kernels have VLANs.
func TestVLAN(t *testing.T) {
	l := newLab(t, 9000)
	for i := range l.ns {
		l.enter(i)
		parent := l.link(fmt.Sprintf("v%d", i))
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex, attrs.MTU = fmt.Sprintf("v%d.77", i), parent.Attrs().Index, 1500
		if err := netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 77}); err != nil {
			t.Skipf("needs VLAN interfaces: %v", err)
		}
		link := l.up(attrs.Name)
		for _, a := range []string{fmt.Sprintf("10.78.0.%d/24", i+1), fmt.Sprintf("fd78::%d/64", i+1)} {
			addr, err := netlink.ParseAddr(a)
			l.do(err)
			addr.Flags |= unix.IFA_F_NODAD
			l.do(netlink.AddrAdd(link, addr))
		}
	}
	for _, a := range [][2]string{{"10.78.0.1", "10.78.0.2"}, {"fd78::1", "fd78::2"}} {
		l.enter(0)
		if name, _, mtu, up, err := PortOf(netip.MustParseAddr(a[0])); err != nil || name != "v0.77" || mtu != 1500 || !up {
			t.Errorf("port of %s: %s, MTU %d, up %t, %v", a[0], name, mtu, up, err)
		}
		if src, err := SourceFor(netip.MustParseAddr(a[1])); err != nil || src.String() != a[0] {
			t.Errorf("source for %s: %v, %v", a[1], src, err)
		}
		for _, cfg := range []UDPConfig{{}, {NoGSO: true}, {Portable: true}} {
			var p pair
			for i, b := range []*Backend{&p.a, &p.b} {
				l.enter(i)
				cfg.Addr = netip.AddrPortFrom(netip.MustParseAddr(a[i]), Port)
				var err error
				*b, err = ListenUDP(cfg)
				l.do(err)
			}
			if mtu := p.a.Caps().MTU; mtu != 1500 && !cfg.Portable {
				t.Errorf("%s: MTU %d", a[0], mtu)
			}
			r := newRun(p.a.LocalAddr(), p.b.LocalAddr(), 40, 1024, 1)
			send(t, p.a, r)
			got := collect(t, p.b, 40)
			for _, g := range got {
				if !g.ok {
					t.Errorf("%s, %+v: a packet with a wrong ICRC", a[0], cfg)
				}
			}
			if len(got) != 40 {
				t.Errorf("%s, %+v: %d of 40 arrived", a[0], cfg, len(got))
			}
			p.a.Close()
			p.b.Close()
		}
	}
}
