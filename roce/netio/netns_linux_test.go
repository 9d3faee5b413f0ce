package netio

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// lab is two network namespaces of the test's own, joined by a veth pair: v0 with
// 10.77.0.1 and fd77::1 in the first, v1 with .2 and ::2 in the second. While it
// exists the test's goroutine is bound to its thread.
type lab struct {
	t    *testing.T
	home int
	ns   [2]int
}

func newLab(t *testing.T, mtu int) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces with a veth pair")
	}
	runtime.LockOSThread()
	l := &lab{t: t, home: netnsFD(t)}
	t.Cleanup(func() {
		if err := unix.Setns(l.home, unix.CLONE_NEWNET); err != nil {
			return // the thread stays locked, and ends with the goroutine
		}
		runtime.UnlockOSThread()
		for _, fd := range []int{l.home, l.ns[0], l.ns[1]} {
			unix.Close(fd)
		}
	})
	for i := range l.ns {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Skipf("needs network namespaces: %v", err)
		}
		l.ns[i] = netnsFD(t)
		l.up("lo")
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "v1", mtu
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "v0", PeerNamespace: netlink.NsFd(l.ns[0])}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Skipf("needs veth: %v", err)
	}
	for i := range l.ns {
		l.enter(i)
		link := l.up(fmt.Sprintf("v%d", i))
		l.do(netlink.LinkSetMTU(link, mtu))
		for _, a := range []string{fmt.Sprintf("10.77.0.%d/24", i+1), fmt.Sprintf("fd77::%d/64", i+1), fmt.Sprintf("fe80::%d/64", i+1)} {
			addr, err := netlink.ParseAddr(a)
			l.do(err)
			addr.Flags |= unix.IFA_F_NODAD
			l.do(netlink.AddrAdd(link, addr))
		}
	}
	return l
}

func netnsFD(t *testing.T) int {
	t.Helper()
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func (l *lab) do(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) enter(i int) { l.t.Helper(); l.do(unix.Setns(l.ns[i], unix.CLONE_NEWNET)) }

func (l *lab) link(name string) netlink.Link {
	l.t.Helper()
	link, err := netlink.LinkByName(name)
	l.do(err)
	return link
}

func (l *lab) up(name string) netlink.Link {
	l.t.Helper()
	link := l.link(name)
	l.do(netlink.LinkSetUp(link))
	return link
}

// pair opens a socket in each namespace.
func (l *lab) pair(v6 bool, cfg UDPConfig) pair {
	l.t.Helper()
	var p pair
	for i, b := range []*Backend{&p.a, &p.b} {
		l.enter(i)
		cfg.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 77, 0, byte(i + 1)}), Port)
		if v6 {
			cfg.Addr = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("fd77::%d", i+1)), Port)
		}
		var err error
		*b, err = ListenUDP(cfg)
		l.do(err)
	}
	// Let them find each other first.
	send(l.t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 0, 1))
	if len(collect(l.t, p.b, 1)) != 1 {
		l.t.Fatal("the veth pair carries nothing")
	}
	return closing(l.t, p)
}

func eachOverVeth(t *testing.T, mtu int, f func(t *testing.T, l *lab, p pair)) {
	l := newLab(t, mtu)
	for _, v6 := range []bool{false, true} {
		for _, c := range []UDPConfig{{}, {NoGSO: true}, {NoGRO: true}, {Portable: true}} {
			name := fmt.Sprintf("v6=%t-gso=%t-gro=%t-portable=%t", v6, !c.NoGSO, !c.NoGRO, c.Portable)
			p := l.pair(v6, c)
			// In this goroutine: another one would be in another namespace.
			f(t, l, p)
			if t.Failed() {
				t.Fatalf("the above with %s", name)
			}
			p.a.Close()
			p.b.Close()
		}
	}
}

// Rule: over a network device as over loopback, segment i is sealed and travels with
// the Identification i, 2 to 64 segments (wire.md).
func TestVethIDs(t *testing.T) {
	eachOverVeth(t, 9000, func(t *testing.T, l *lab, p pair) {
		for segs := 1; segs <= 64; segs++ {
			r := newRun(p.a.LocalAddr(), p.b.LocalAddr(), segs, 128+segs*4, 1)
			r.TOS = 2
			send(t, p.a, r)
			got := collect(t, p.b, segs)
			if len(got) != segs {
				t.Fatalf("%d of %d arrived", len(got), segs)
			}
			for i, g := range got {
				want := uint16(0)
				if p.a.Caps().MaxSegments > 1 && g.Src.Addr().Is4() {
					want = uint16(i)
				}
				if !g.ok || g.id != want || g.TOS != 2 {
					t.Fatalf("%d of %d: ICRC right %t, ID %d, TOS %d", i, segs, g.ok, g.id, g.TOS)
				}
			}
		}
	})
}

// sniffer is a packet socket on v1.
type sniffer struct{ fd int }

func (l *lab) sniff() sniffer {
	l.enter(1)
	proto := int(swap16(unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, proto)
	l.do(err)
	l.do(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: swap16(unix.ETH_P_ALL), Ifindex: l.link("v1").Attrs().Index}))
	tv := unix.NsecToTimeval(int64(2 * time.Second))
	l.do(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
	l.t.Cleanup(func() { unix.Close(fd) })
	return sniffer{fd}
}

// next returns the next UDP packet to 4791, from its IP header on.
func (s sniffer) next(t *testing.T) []byte {
	t.Helper()
	b := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(s.fd, b, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatalf("no packet: %v", err)
		}
		switch {
		case n > 28 && b[0] == 0x45 && b[9] == 17 && binary.BigEndian.Uint16(b[22:]) == Port,
			n > 48 && b[0]>>4 == 6 && b[6] == 17 && binary.BigEndian.Uint16(b[42:]) == Port:
			return b[:n]
		}
	}
}

// Rule: what is on the wire is what the ICRC says: ID i for segment i, 0 for a
// packet alone, DF set, the TOS and the source port asked for.
func TestWire(t *testing.T) {
	l := newLab(t, 9000)
	l.enter(0)
	// The kernel segments before the device instead of passing runs on whole.
	l.do(netlink.LinkSetGSOMaxSegs(l.link("v0"), 1))
	for _, v6 := range []bool{false, true} {
		for _, cfg := range []UDPConfig{{}, {NoGSO: true}, {Portable: true}} {
			p := l.pair(v6, cfg)
			s := l.sniff()
			l.enter(0) // where sockets for other ports are opened
			for i, segs := range []int{1, 2, 40, 64, 1} {
				src := p.a.LocalAddr()
				if i%2 == 1 {
					src = netip.AddrPortFrom(src.Addr(), ib.SourcePort(17, ib.QPN(segs)))
				}
				r := newRun(src, p.b.LocalAddr(), segs, 512, 1)
				r.TOS = 0xc2
				if i > 0 {
					r.SrcPort = src.Port()
				}
				send(t, p.a, r)
				for i := range segs {
					b := s.next(t)
					id, tos, udp := uint16(0), b[1], b[20:]
					if v6 {
						tos, udp = b[0]<<4|b[1]>>4, b[40:]
					} else {
						id = binary.BigEndian.Uint16(b[4:])
						if b[6] != 0x40 || b[7] != 0 {
							t.Errorf("flags and offset % x", b[6:8])
						}
						want := uint16(0)
						if p.a.Caps().MaxSegments > 1 {
							want = uint16(i)
						}
						if id != want {
							t.Errorf("%+v: segment %d of %d has ID %d on the wire, want %d", cfg, i, segs, id, want)
						}
					}
					flow := ib.NewFlow(src, p.b.LocalAddr())
					if port := binary.BigEndian.Uint16(udp); !flow.Verify(id, udp[8:]) || tos != 0xc2 || port != src.Port() {
						t.Errorf("%+v: segment %d of %d: ICRC right %t, TOS %#x, from port %d, want %d",
							cfg, i, segs, flow.Verify(id, udp[8:]), tos, port, src.Port())
					}
				}
			}
			p.a.Close()
			p.b.Close()
		}
	}
}

// Rule: a firewall's output drop (EPERM) is a counted loss, never an error.
func TestFirewall(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("needs nft (Debian package nftables)")
	}
	eachOverVeth(t, 9000, func(t *testing.T, l *lab, p pair) {
		l.enter(0)
		run := func(rules string) {
			t.Helper()
			if out, err := exec.Command(nft, rules).CombinedOutput(); err != nil {
				t.Skipf("nft: %v: %s", err, out)
			}
		}
		run("table inet f { chain o { type filter hook output priority 0; udp dport 4791 drop; }; }")
		send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 64, 1), newRun(p.a.LocalAddr(), p.b.LocalAddr(), 8, 64, 1))
		if s := p.a.Stats(); s[TxRefused] != 9 || s[TxPackets] != 1 || s[GSOOff] != 0 {
			t.Errorf("tx_refused %d, tx_packets %d, gso_off %d", s[TxRefused], s[TxPackets], s[GSOOff])
		}
		run("delete table inet f")
		send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 8, 64, 1))
		if got := collect(t, p.b, 8); len(got) != 8 {
			t.Errorf("afterwards %d arrived", len(got))
		}
	})
}

// Rule: packets that do not fit the interface are lost and counted, and GSO is not
// to blame.
func TestInterfaceMTU(t *testing.T) {
	eachOverVeth(t, 1500, func(t *testing.T, l *lab, p pair) {
		if mtu := p.a.Caps().MTU; mtu != 1500 {
			t.Errorf("MTU %d", mtu)
		}
		fits := 1500 - ipUDPHeaders(p.a.LocalAddr().Addr()) - 16
		send(t, p.a,
			newRun(p.a.LocalAddr(), p.b.LocalAddr(), 4, 4096, 1), newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 2048, 1),
			newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, fits, 1))
		s := p.a.Stats()
		// The last packet of the run is short and may pass.
		if lost := s[TxTooBig]; lost < 4 || lost > 5 || s[GSOOff] != 0 || s[TxPackets] != 2+5-lost {
			t.Errorf("tx_too_big %d, tx_packets %d, gso_off %d", lost, s[TxPackets], s[GSOOff])
		}
		send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 20, fits, 1000))
		for {
			got := collect(t, p.b, 1)
			if len(got) == 0 {
				t.Fatal("what fits did not arrive")
			}
			if psns1(got[len(got)-1]) >= 1000 {
				break
			}
		}
	})
}

// Rule: with a slow device, ENOBUFS (its queue is full) and EAGAIN (the socket's
// buffer is) hold the sender back, and no packet is lost.
func TestSlowDevice(t *testing.T) {
	for name, c := range map[string]struct {
		queue uint32 // bytes that the device's queue holds
		send  int
		stat  Stat
	}{
		"full queue":         {20_000, 4 << 20, TxNoBufs},
		"full socket buffer": {4 << 20, 20_000, TxWouldBlock},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 9000)
			p := l.pair(false, UDPConfig{SendBuffer: c.send})
			l.enter(0)
			link := l.link("v0")
			// 3 MB/s, with a bucket that takes a whole run.
			if err := netlink.QdiscAdd(&netlink.Tbf{
				QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
				Rate:       3_000_000, Buffer: 20_000, Limit: c.queue,
			}); err != nil {
				t.Skipf("needs the tbf queueing discipline: %v", err)
			}
			const n = 600
			psn, received := 0, 0
			var seen [n]bool // two processors may hand over packets in another order
			var dst [16]Received
			var runs []Run
			for received < n {
				if len(runs) == 0 {
					for len(runs) < 10 && psn < n {
						runs = append(runs, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 1024, ib.PSN(psn)))
						psn++
					}
				}
				k, err := p.a.Send(0, runs)
				runs = runs[k:]
				if err != nil && err != ErrWouldBlock {
					t.Fatal(err)
				}
				if err != nil {
					if err := p.a.Wait(time.Second, true); err != nil {
						t.Fatal(err)
					}
				}
				sent := psn == n && len(runs) == 0
				if sent {
					p.b.Wait(time.Second, false)
				}
				k, _ = p.b.Recv(0, dst[:])
				for i := range k {
					for _, g := range unpack(&dst[i]) {
						if at := psns1(g); !g.ok || at >= n || seen[at] {
							t.Fatalf("PSN %d arrives twice, or damaged", at)
						}
						seen[psns1(g)] = true
						received++
					}
				}
				if k == 0 && sent {
					t.Fatalf("%d of %d packets arrived", received, n)
				}
			}
			s := p.a.Stats()
			if s[c.stat] == 0 || s[TxPackets] != n+1 {
				t.Errorf("%v %d, tx_packets %d", c.stat, s[c.stat], s[TxPackets])
			}
			t.Logf("tx_would_block %d, of these tx_nobufs %d", s[TxWouldBlock], s[TxNoBufs])
		})
	}
}

// Rule: addresses, MTU and state of the port are those of the routing table and the
// interface.
func TestVethAddresses(t *testing.T) {
	l := newLab(t, 4200)
	l.enter(0)
	for dst, want := range map[string]string{
		"10.77.0.9": "10.77.0.1", "fd77::9": "fd77::1", "::ffff:10.77.0.9": "10.77.0.1", "fe80::9%v0": "fe80::1%v0", "10.77.0.1": "10.77.0.1",
	} {
		if got, err := SourceFor(netip.MustParseAddr(dst)); err != nil || got.String() != want && got.WithZone("").String() != want {
			t.Errorf("source for %s: %v, %v; want %s", dst, got, err, want)
		}
	}
	if got, err := SourceFor(netip.MustParseAddr("198.51.100.1")); err == nil {
		t.Errorf("source for an address without a route: %v", got)
	}
	index := l.link("v0").Attrs().Index
	for _, a := range []string{"10.77.0.1", "fd77::1", "fe80::1%v0"} {
		if name, i, mtu, up, err := PortOf(netip.MustParseAddr(a)); err != nil || name != "v0" || i != index || mtu != 4200 || !up {
			t.Errorf("port of %s: %s %d %d %t %v", a, name, i, mtu, up, err)
		}
	}
	l.enter(1)
	l.do(netlink.LinkSetDown(l.link("v1")))
	l.enter(0)
	if name, _, _, up, err := PortOf(netip.MustParseAddr("10.77.0.1")); err != nil || name != "v0" || up {
		t.Errorf("port of an address whose link is down: %s %t %v", name, up, err)
	}
}

// Rule: link-local addresses work with their zone.
func TestLinkLocal(t *testing.T) {
	l := newLab(t, 9000)
	for _, portable := range []bool{false, true} {
		var b [2]Backend
		for i := range b {
			l.enter(i)
			var err error
			b[i], err = ListenUDP(UDPConfig{Addr: netip.MustParseAddrPort(fmt.Sprintf("[fe80::%d%%v%d]:4791", i+1, i)), Portable: portable})
			if err != nil {
				// Package net looks for zones in the namespace of another thread.
				if portable {
					t.Skip(err)
				}
				t.Fatal(err)
			}
			defer b[i].Close()
		}
		send(t, b[0], newRun(b[0].LocalAddr(), b[1].LocalAddr(), 3, 64, 1))
		got := collect(t, b[1], 3)
		for _, g := range got {
			if !g.ok || g.Src != b[0].LocalAddr() || g.Src.Addr().Zone() != "" {
				t.Errorf("from %v, ICRC right %t", g.Src, g.ok)
			}
		}
		if len(got) != 3 {
			t.Errorf("%d arrived", len(got))
		}
		b[0].Close()
		b[1].Close()
	}
}

// Rule: who holds a port is found in this thread's network namespace.
func TestPortHeldInNamespace(t *testing.T) {
	l := newLab(t, 9000)
	p := l.pair(false, UDPConfig{})
	l.enter(0)
	wantListenError(t, "in a namespace", func(a netip.AddrPort) (Backend, error) { return ListenUDP(UDPConfig{Addr: a}) },
		p.a.LocalAddr().String(), "this very process")
}

// Rule: groups are joined, and sent to, on the interface of the backend's address.
func TestVethMulticast(t *testing.T) {
	l := newLab(t, 1500)
	for _, v6 := range []bool{false, true} {
		for _, cfg := range []UDPConfig{{}, {NoGSO: true, NoGRO: true}} {
			p := l.pair(v6, cfg)
			l.enter(0)
			testMulticast(t, p)
			p.a.Close()
		}
	}
}
