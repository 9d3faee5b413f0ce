package netio

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/goroce/goroce/ib"
	"golang.org/x/sys/unix"
)

// refusing stands between a udp and sendmmsg: errs are what it answers in turn, 0
// to let one message through. After them all goes through.
type refusing struct {
	errs  []unix.Errno
	match func(h *mmsghdr) bool // which messages are refused; nil: all
}

func (r *refusing) install(u *udp) {
	u.sendmmsg = func(fd int, h []mmsghdr) (int, unix.Errno) {
		if len(r.errs) == 0 {
			return sysSendmmsg(fd, h)
		}
		n := 0
		for n < len(h) && r.match != nil && !r.match(&h[n]) {
			n++
		}
		if n > 0 {
			return sysSendmmsg(fd, h[:n])
		}
		e := r.errs[0]
		r.errs = r.errs[1:]
		if e != 0 {
			return -1, e
		}
		return sysSendmmsg(fd, h[:1])
	}
}

func isGSO(h *mmsghdr) bool { return int(h.Hdr.Iov.Len) > maxPacket }

func times(n int, e unix.Errno) []unix.Errno {
	out := make([]unix.Errno, n)
	for i := range out {
		out[i] = e
	}
	return out
}

func checkStats(t *testing.T, b Backend, want map[Stat]uint64) {
	t.Helper()
	s := b.Stats()
	for k, v := range want {
		if s[k] != v {
			t.Errorf("%v = %d, want %d", k, s[k], v)
		}
	}
}

// Rule: a GSO send that the device cannot do (EIO), or whose segments do not fit
// though single packets do (EMSGSIZE, EINVAL on old kernels), is sent packet by
// packet, sealed for the Identification 0; GSO stays off. Nothing is lost.
func TestGSOFallback(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EIO, unix.EMSGSIZE, unix.EINVAL} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			p := udpPair(t, false, UDPConfig{NoGRO: true})
			u := p.a.(*udp)
			(&refusing{errs: times(1000, errno), match: isGSO}).install(u)
			r := newRun(u.local, p.b.LocalAddr(), 20, 1024, 1)
			one := newRun(u.local, p.b.LocalAddr(), 1, 64, 100)
			if n, err := u.Send(0, []Run{one, r, one}); n != 3 || err != nil {
				t.Fatal(n, err)
			}
			got := collect(t, p.b, 22)
			if len(got) != 22 {
				t.Fatalf("%d arrived", len(got))
			}
			for i, g := range got {
				want := i
				if i == 0 || i == 21 {
					want = 100
				}
				if !g.ok || g.id != 0 || psns1(g) != want {
					t.Errorf("packet %d: PSN %d, ICRC right %t, ID %d", i, psns1(g), g.ok, g.id)
				}
			}
			checkStats(t, u, map[Stat]uint64{GSOOff: 1, TxResealed: 19, TxPackets: 22, TxRuns: 3, TxTooBig: 0, TxError: 0})
			if c := u.Caps(); c.MaxSegments != 1 || strings.Contains(c.Name, "gso") {
				t.Errorf("afterwards: %+v", c)
			}
			// A run that was staged before goes the same way.
			send(t, u, newRun(u.local, p.b.LocalAddr(), 3, 1024, 1))
			if got := collect(t, p.b, 3); len(got) != 3 || got[2].id != 0 || !got[2].ok {
				t.Error("the next run")
			}
		})
	}
}

// Rule: when single packets do not fit either, the path is too narrow and GSO is not
// to blame: the run is lost and counted.
func TestGSOPathTooNarrow(t *testing.T) {
	p := udpPair(t, false, UDPConfig{})
	u := p.a.(*udp)
	(&refusing{errs: times(100, unix.EMSGSIZE)}).install(u)
	send(t, u, newRun(u.local, p.b.LocalAddr(), 5, 1024, 1))
	checkStats(t, u, map[Stat]uint64{GSOOff: 0, TxPackets: 0, TxTooBig: 5})
	if u.Caps().MaxSegments == 1 {
		t.Error("GSO was switched off")
	}
}

// Rule: EAGAIN and ENOBUFS keep the run; offered again, each packet is sent once,
// also when a run had stopped in its middle.
func TestBackPressure(t *testing.T) {
	eagain, nobufs := unix.EAGAIN, unix.ENOBUFS
	for name, errs := range map[string][]unix.Errno{
		"first":          {eagain},
		"device queue":   {nobufs, nobufs},
		"between runs":   {0, eagain, 0, nobufs},
		"every other":    {eagain, 0, eagain, 0, eagain, 0, eagain, 0},
		"interrupted":    {unix.EINTR, unix.EINTR, eagain, unix.EINTR},
		"old ICMP error": {unix.ECONNREFUSED, 0, unix.EHOSTUNREACH, eagain},
	} {
		for _, gso := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s-gso=%t", name, gso), func(t *testing.T) {
				p := udpPair(t, false, UDPConfig{NoGSO: !gso, NoGRO: true})
				u := p.a.(*udp)
				(&refusing{errs: errs}).install(u)
				var runs []Run
				for i := range 4 {
					runs = append(runs, newRun(u.local, p.b.LocalAddr(), 5, 256, ib.PSN(5*i)))
				}
				blocked := 0
				for left := runs; len(left) > 0; {
					n, err := u.Send(0, left)
					left = left[n:]
					if err == ErrWouldBlock {
						blocked++
						if err := u.Wait(time.Second, true); err != nil {
							t.Fatal(err)
						}
					} else if err != nil || len(left) > 0 {
						t.Fatal(n, err)
					}
				}
				got := collectFor(t, p.b, 21, 5*time.Millisecond)
				for i, g := range got {
					if psns1(g) != i || !g.ok {
						t.Errorf("packet %d: PSN %d, ICRC right %t", i, psns1(g), g.ok)
					}
				}
				s := u.Stats()
				want := 0
				for _, e := range errs {
					if e == eagain || e == nobufs {
						want++
					}
				}
				if len(got) != 20 || s[TxPackets] != 20 || s[TxRuns] != 4 || blocked != want || s[TxWouldBlock] != uint64(want) {
					t.Errorf("%d arrived, tx_packets %d, tx_runs %d, blocked %d times, want %d", len(got), s[TxPackets], s[TxRuns], blocked, want)
				}
			})
		}
	}
}

// Rule: a full device queue is no reason to spin: Wait for room takes a moment, then
// ends although the socket has had room all the time.
func TestWaitAfterNoBufs(t *testing.T) {
	p := udpPair(t, false, UDPConfig{})
	u := p.a.(*udp)
	(&refusing{errs: []unix.Errno{unix.ENOBUFS}}).install(u)
	if _, err := u.Send(0, []Run{newRun(u.local, p.b.LocalAddr(), 1, 64, 1)}); err != ErrWouldBlock {
		t.Fatal(err)
	}
	start := time.Now()
	u.Wait(-1, true)
	if d := time.Since(start); d < queueRetry {
		t.Errorf("waited %v", d)
	}
	checkStats(t, u, map[Stat]uint64{TxNoBufs: 1, TxWouldBlock: 1, TxPackets: 0})
}

// Rule: a firewall's refusal is a loss of that run alone, and no error.
func TestRefused(t *testing.T) {
	p := udpPair(t, false, UDPConfig{})
	u := p.a.(*udp)
	(&refusing{errs: []unix.Errno{0, unix.EPERM}}).install(u)
	var runs []Run
	for i := range 3 {
		runs = append(runs, newRun(u.local, p.b.LocalAddr(), 2, 64, ib.PSN(2*i)))
	}
	if n, err := u.Send(0, runs); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	got := collectFor(t, p.b, 6, 5*time.Millisecond)
	if fmt.Sprint(psns(got)) != "[0 1 4 5]" {
		t.Errorf("arrived: %v", psns(got))
	}
	checkStats(t, u, map[Stat]uint64{TxRefused: 2, TxPackets: 4})
}

// Rule: an ICMP error about an earlier packet neither loses a later one nor stays in
// the socket, where it would end every wait.
func TestICMPErrors(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		p := udpPair(t, v6, UDPConfig{})
		closed := p.b.LocalAddr()
		p.b.Close()
		for range 5 {
			send(t, p.a, newRun(p.a.LocalAddr(), closed, 1, 64, 1)) // draws port unreachable
		}
		cfg := UDPConfig{Addr: closed}
		b, err := ListenUDP(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		send(t, p.a, newRun(p.a.LocalAddr(), closed, 1, 64, 9))
		if got := collect(t, b, 1); len(got) != 1 || psns1(got[0]) != 9 {
			t.Errorf("the packet after the errors: %v", psns(got))
		}
		if n, err := p.a.Recv(0, make([]Received, 4)); n != 0 || err != nil {
			t.Error(n, err)
		}
		// Once collected they end no wait.
		p.a.Wait(0, false)
		p.a.Recv(0, make([]Received, 4))
		start := time.Now()
		p.a.Wait(2*time.Millisecond, false)
		if time.Since(start) < 2*time.Millisecond {
			t.Error("a wait ended early")
		}
		if s := p.a.Stats(); s[ICMPErrors] == 0 || s[TxPackets]+s[TxUnreachable] != 6 {
			t.Errorf("icmp_errors %d, tx_packets %d, tx_unreachable %d", s[ICMPErrors], s[TxPackets], s[TxUnreachable])
		}
	}
}

// Rule: an error that only Wait sees is collected by the next Recv.
func TestWaitSeesErrors(t *testing.T) {
	p := udpPair(t, false, UDPConfig{})
	p.b.Close()
	send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 64, 1))
	if err := p.a.Wait(time.Second, false); err != nil {
		t.Fatal(err)
	}
	// Somebody takes the socket's error, but not what the error queue holds.
	u := p.a.(*udp)
	if e, err := unix.GetsockoptInt(u.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || unix.Errno(e) != unix.ECONNREFUSED {
		t.Fatal(e, err)
	}
	p.a.Recv(0, make([]Received, 1))
	checkStats(t, p.a, map[Stat]uint64{ICMPErrors: 1})
}

// Rule: no route is a loss, counted, not an error.
func TestNoRoute(t *testing.T) {
	p := udpPair(t, false, UDPConfig{})
	// From a loopback address the kernel sends nowhere else.
	send(t, p.a, newRun(p.a.LocalAddr(), netip.MustParseAddrPort("192.0.2.77:4791"), 3, 64, 1))
	s := p.a.Stats()
	if s[TxUnreachable]+s[TxError] != 3 || s[TxPackets] != 0 || s[GSOOff] != 0 {
		t.Errorf("tx_unreachable %d, tx_error %d, tx_packets %d, gso_off %d", s[TxUnreachable], s[TxError], s[TxPackets], s[GSOOff])
	}
}

// Rule: the zero UDP checksum of NICs and rxe is accepted, also over IPv6; what is
// no RoCE packet arrives as it is or is dropped for its length.
func TestForeignSenders(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		p := udpPair(t, v6, UDPConfig{NoGRO: true})
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(p.b.LocalAddr()))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		rc, _ := c.SyscallConn()
		rc.Control(func(fd uintptr) {
			if v6 {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX, 1)
			} else {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range [][]byte{[]byte("hello"), {}, bytes.Repeat([]byte{7}, maxPacket+1), []byte("x")} {
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		got := collect(t, p.b, 3)
		if len(got) != 3 || string(got[0].Buf) != "hello" || len(got[1].Buf) != 0 || string(got[2].Buf) != "x" {
			t.Errorf("%d arrived", len(got))
		}
		checkStats(t, p.b, map[Stat]uint64{RxTruncated: 1})
	}
}

// Rule: the number of datagrams read at once follows what arrives, and begins anew when
// nothing is there.
func TestReceiveBatchAdapts(t *testing.T) {
	p := udpPair(t, false, UDPConfig{})
	u := p.b.(*udp)
	small := newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 64, 1)
	small.TOS = 4
	large := newRun(p.a.LocalAddr(), p.b.LocalAddr(), 14, 4096, 1)
	dst := make([]Received, 64)
	for range 10 {
		for i := range 64 {
			small.TOS ^= 8 // so that GRO leaves them apart
			small.SrcPort = uint16(i) + 0xc000
			send(t, p.a, small)
		}
		for i, want := range []int{1, 2, 4, 8, groBatch, groBatch} {
			if got, _ := p.b.Recv(0, dst); got != want {
				t.Fatalf("many small ones: call %d read %d, not %d", i, got, want)
			}
		}
		for n := 1; n > 0; n, _ = p.b.Recv(0, dst) {
		}
		if u.rx.batch != 1 {
			t.Fatalf("after none: %d at once", u.rx.batch)
		}
	}
	for range 3 {
		send(t, p.a, large)
	}
	p.b.Recv(0, dst)
	if got, _ := p.b.Recv(0, dst); got != 2 || u.rx.batch != 2 {
		t.Errorf("few large ones: %d, then %d at once", got, u.rx.batch)
	}
}

// Rule: control messages are read within their bounds, whatever they say.
func TestControlMessages(t *testing.T) {
	var c control
	c.put(0, unix.IPPROTO_IP, unix.IP_TOS, 0x12, 4)
	c.put(cmsgSlot, unix.IPPROTO_UDP, unix.UDP_GRO, 1040, 4)
	c.put(2*cmsgSlot, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 77, 4)
	if a := c.parse(3 * cmsgSlot); a.tos != 0x12 || a.segSize != 1040 || a.overflow != 77 || !a.hasOvfl {
		t.Errorf("%+v", a)
	}
	for n := range 3 * cmsgSlot {
		c.parse(n)
	}
	for _, l := range []int{-1, 0, 1, cmsgHead - 1, 1 << 20} {
		c.put(0, unix.IPPROTO_IP, unix.IP_TOS, 0x12, 4)
		(*unix.Cmsghdr)(unsafe.Pointer(&c)).SetLen(l)
		if a := c.parse(3 * cmsgSlot); a.tos != 0 {
			t.Errorf("length %d: %+v", l, a)
		}
	}
}

// Rule: the error of a failed bind says what is wrong and who is in the way.
func TestListenErrors(t *testing.T) {
	for _, portable := range []bool{false, true} {
		open := func(a netip.AddrPort) (Backend, error) { return ListenUDP(UDPConfig{Addr: a, Portable: portable}) }
		wantListenError(t, "not local", open, "192.0.2.99:4791", "not one of this machine's")
		wantListenError(t, "not local", open, "[2001:db8::99]:4791", "not one of this machine's")
		addr := ownAddr(t, 3)
		b, err := open(addr)
		if err != nil {
			t.Fatal(err)
		}
		wantListenError(t, "own", open, addr.String(), fmt.Sprintf("this very process (%s, pid %d)", comm(t), os.Getpid()))
		b.Close()
		wantListenError(t, "no zone", open, "[fe80::1]:4791", "link-local")
	}
	wantListenError(t, "unknown zone", func(a netip.AddrPort) (Backend, error) { return ListenUDP(UDPConfig{Addr: a}) }, "[fe80::1%nosuch0]:4791", "zone")
}

// comm returns the name that the kernel knows this program by.
func comm(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// A child process holds a port, on the address itself or on all of them.
func TestPortHeldByChild(t *testing.T) {
	if addr := os.Getenv("NETIO_TEST_HOLD"); addr != "" {
		c, err := net.ListenPacket("udp4", addr)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		defer c.Close()
		fmt.Println("held")
		os.Stdin.Read(make([]byte, 1)) // until the parent goes
		return
	}
	for _, host := range []string{"127.0.0.1", "0.0.0.0"} {
		port := freePort(t, "127.0.0.1").Port()
		cmd := exec.Command(os.Args[0], "-test.run=^TestPortHeldByChild$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("NETIO_TEST_HOLD=%s:%d", host, port))
		in, _ := cmd.StdinPipe()
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 4)
		if _, err := out.Read(line); err != nil || string(line) != "held" {
			t.Fatalf("child: %q %v", line, err)
		}
		wantListenError(t, host, func(a netip.AddrPort) (Backend, error) { return ListenUDP(UDPConfig{Addr: a}) },
			fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("in use by %s (pid %d)", comm(t), cmd.Process.Pid))
		in.Close()
		cmd.Wait()
	}
}

// Rule: /proc/net/udp writes 32-bit words in host order.
func TestParseProcAddr(t *testing.T) {
	if !hostLittleEndian {
		t.Skip("the samples are from a little-endian machine")
	}
	for in, want := range map[string]string{
		"0100007F:12B7":                         "127.0.0.1:4791",
		"00000000:0035":                         "0.0.0.0:53",
		"00000000000000000000000001000000:12B7": "[::1]:4791",
		"000080FE00000000FF00FC00010000FE:0222": "[fe80::fc:ff:fe00:1]:546",
		"":                                      "invalid AddrPort",
		"0100007F":                              "invalid AddrPort",
		"0100007F:":                             "invalid AddrPort",
		"0100007:12B7":                          "invalid AddrPort",
		"01000:1":                               "invalid AddrPort",
		"zz:1":                                  "invalid AddrPort",
		"0100007F00000000:1":                    "invalid AddrPort",
	} {
		if got, _ := parseProcAddr(in); got.String() != want {
			t.Errorf("%q: %v, want %s", in, got, want)
		}
	}
}

func TestAddresses(t *testing.T) {
	lo := netip.MustParseAddr("127.0.0.1")
	if a, err := SourceFor(netip.MustParseAddr("127.0.0.9")); err != nil || !a.IsLoopback() {
		t.Errorf("source for loopback: %v, %v", a, err)
	}
	for _, bad := range []string{"0.0.0.0", "::", "fe80::1%nosuch0"} {
		if a, err := SourceFor(netip.MustParseAddr(bad)); err == nil {
			t.Errorf("source for %s: %v", bad, a)
		}
	}
	if a, err := SourceFor(netip.Addr{}); err == nil {
		t.Errorf("source for no address: %v", a)
	}
	for _, a := range []string{"127.0.0.1", "127.0.0.77", "::ffff:127.0.0.1"} {
		if name, index, mtu, up, err := PortOf(netip.MustParseAddr(a)); err != nil || name != "lo" || index != 1 || mtu < 1280 || !up {
			t.Errorf("port of %s: %s %d %d %t %v", a, name, index, mtu, up, err)
		}
	}
	if name, _, _, _, err := PortOf(netip.MustParseAddr("192.0.2.99")); err == nil {
		t.Errorf("port of a foreign address: %s", name)
	}
	all, err := LocalAddrs()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, a := range all {
		found = found || a == lo
		if _, _, _, _, err := PortOf(a); err != nil {
			t.Errorf("port of own address: %v", err)
		}
	}
	if !found {
		t.Errorf("%v lacks %v", all, lo)
	}
}
