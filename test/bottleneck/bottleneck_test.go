//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/test/sim/network"
)

// packet is a sealed CNP in an IPv4 packet with a TOS, made n bytes long.
func packet(tos uint8, n int) []byte {
	b := make([]byte, ib.CNPSize)
	ib.PutCNP(b, 0x118)
	src, dst := netip.MustParseAddrPort("10.98.1.0:4791"), netip.MustParseAddrPort("10.98.2.0:4791")
	flow := ib.NewFlow(src, dst)
	flow.Seal(0, b)
	p := make([]byte, ipHeader+8, max(n, ipHeader+8+len(b)))
	p[0], p[1], p[8], p[9] = 0x45, tos, 64, 17
	copy(p[12:], src.Addr().AsSlice())
	copy(p[16:], dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(p[10:], ^sum(p[:ipHeader]))
	binary.BigEndian.PutUint16(p[ipHeader:], netio.Port)
	binary.BigEndian.PutUint16(p[ipHeader+2:], netio.Port)
	p = append(p, b...)
	return p[:max(n, len(p))]
}

// sum is the ones' complement sum of RFC 1071.
func sum(b []byte) uint16 {
	s := uint32(0)
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	s = s&0xffff + s>>16
	return uint16(s + s>>16)
}

// A mark changes the ECN bits of a packet that is ECN-capable, and keeps the checksum
// of its header and its ICRC right.
func TestMark(t *testing.T) {
	flow := ib.NewFlow(netip.MustParseAddrPort("10.98.1.0:4791"), netip.MustParseAddrPort("10.98.2.0:4791"))
	for tos := range 256 {
		p := packet(uint8(tos), 0)
		was := bytes.Clone(p)
		capable := tos&3 == 1 || tos&3 == 2
		if got := mark(p); got != capable {
			t.Errorf("TOS %#x: marked: %v", tos, got)
		}
		if !capable && !bytes.Equal(p, was) || capable && int(p[1]) != tos|3 || sum(p[:ipHeader]) != 0xffff || !flow.Verify(0, p[ipHeader+8:]) {
			t.Errorf("TOS %#x: % x", tos, p)
		}
	}
	for _, p := range [][]byte{nil, make([]byte, 19), append([]byte{0x60}, make([]byte, 60)...)} {
		if mark(p) || isCNP(p) {
			t.Errorf("% x is none of ours", p)
		}
	}
	if p := packet(0xc2, 0); !isCNP(p) || source(p) != [4]byte{10, 98, 1, 0} {
		t.Errorf("% x", p)
	}
}

// A packet leaves when the link has sent it and those before it; RED goes by what
// waits, and what finds no room is dropped. 8 Mb/s are a byte per us.
func TestQueue(t *testing.T) {
	const us = time.Microsecond
	q := newQueue(queueConfig{rate: 8e6, limit: 1000, red: network.RED{Kmin: 150, Kmax: 350, Pmax: 0}}, 1)
	for i, s := range []struct {
		at               time.Duration
		n                int
		marked, dropped  int
		backlog, longest int
	}{
		{0, 100, 0, 0, 100, 100},
		{50 * us, 100, 0, 0, 150, 150},
		{50 * us, 250, 0, 0, 400, 400}, // 150 wait: not more than kmin
		{50 * us, 100, 1, 0, 500, 500}, // 400 wait
		{60 * us, 600, 1, 1, 490, 500}, // 490 + 600
		{60 * us, 510, 2, 1, 1000, 1000},
	} {
		q.push(s.at, packet(2, s.n))
		if q.marked != s.marked || q.dropped != s.dropped || q.backlog(s.at) != s.backlog || q.longest != s.longest {
			t.Errorf("packet %d: %d marked, %d dropped, %d wait, %d the longest; want %+v", i, q.marked, q.dropped, q.backlog(s.at), q.longest, s)
		}
	}
	for _, want := range []struct {
		at time.Duration
		n  int
	}{{100 * us, 100}, {200 * us, 100}, {450 * us, 250}, {550 * us, 100}, {1060 * us, 510}} {
		if p := q.pop(want.at - 1); p != nil {
			t.Errorf("%d bytes leave before %v", len(p), want.at)
		}
		if p := q.pop(want.at); len(p) != want.n {
			t.Errorf("at %v: %d bytes leave, want %d", want.at, len(p), want.n)
		}
	}
	if _, ok := q.due(); ok || q.packets != 5 || q.cnps != 5 || q.bytes != 1060 || q.from[[4]byte{10, 98, 1, 0}] != 1060 {
		t.Errorf("%+v", q.counts)
	}
}

// Processes that share a slow link with room for all their windows: marks and CNPs
// slow them down, nothing is lost, and there is no storm of packets sent again.
func TestBottleneck(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	for _, needed := range []string{"/dev/net/tun", "/run"} {
		if _, err := os.Stat(needed); err != nil {
			t.Skip(err)
		}
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs the command ip")
	}
	if out, err := exec.Command("unshare", "-n", "true").CombinedOutput(); err != nil {
		t.Skipf("needs network namespaces: %v: %s", err, out)
	}
	roce := filepath.Join(t.TempDir(), "roce")
	if out, err := exec.Command("go", "build", "-o", roce, "../../cmd/roce").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r, err := run(config{roce: roce, control: "dcqcn", flows: 4, seconds: 2, args: []string{"-u", "20"}, queue: queueConfig{rate: 200e6, limit: 8_000_000, red: network.RED{Kmin: 50_000, Kmax: 200_000, Pmax: 0.2}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s\n%s", head, r.row())
	if r.used() > 1.01 {
		t.Errorf("%.2f of the link are used", r.used())
	}
	for i := range r.flows {
		if r.data.from[netip.MustParseAddr(addr(0, i)).As4()] < 1<<20 {
			t.Errorf("flow %d got nearly nothing: %v", i, r.data.from)
		}
	}
	c := r.sums
	if r.data.marked == 0 || r.back.cnps == 0 || r.data.cnps != 0 || int(c["np_cnp_sent"]) < r.back.cnps || c["rp_cnp_handled"] == 0 || c["rp_cnp_ignored"] != 0 {
		t.Errorf("%d packets marked, %d CNPs came by, %d the wrong way; counters %v", r.data.marked, r.back.cnps, r.data.cnps, c)
	}
	if int(c["np_ecn_marked_roce_packets"]) > r.data.marked {
		t.Errorf("%d packets marked, %d came marked", r.data.marked, c["np_ecn_marked_roce_packets"])
	}
	if r.data.dropped > 0 || r.lost == 0 && r.again() > 0.2 { // a busy machine takes waiting for loss now and then
		t.Errorf("%d packets dropped, %.1f %% sent again; counters %v", r.data.dropped, 100*r.again(), c)
	}
}
