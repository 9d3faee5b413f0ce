package netio

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
)

// captured is a packet as the file has it.
type captured struct {
	src, dst netip.AddrPort
	id       uint16
	tos      uint8
	at       time.Time
	out      bool
	payload  []byte
}

// parsePcapng reads a pcapng file of raw IP packets, strictly.
func parsePcapng(t *testing.T, b []byte) (out []captured) {
	t.Helper()
	le := binary.LittleEndian
	for n := 0; len(b) > 0; n++ {
		if len(b) < 12 {
			t.Fatalf("block %d: %d bytes are left", n, len(b))
		}
		typ, size := le.Uint32(b), le.Uint32(b[4:])
		if size%4 != 0 || int(size) > len(b) || le.Uint32(b[size-4:]) != size {
			t.Fatalf("block %d: length %d", n, size)
		}
		body := b[8 : size-4]
		b = b[size:]
		switch n {
		case 0:
			if typ != 0x0a0d0d0a || le.Uint32(body) != 0x1a2b3c4d {
				t.Fatal("no section header")
			}
			continue
		case 1:
			if typ != 1 || le.Uint16(body) != 101 || options(t, body[8:])[9] != "\x09" {
				t.Fatal("no interface for raw IP in nanoseconds")
			}
			continue
		}
		size = le.Uint32(body[12:])
		if typ != 6 || le.Uint32(body) != 0 || le.Uint32(body[16:]) != size {
			t.Fatalf("block %d: type %d", n, typ)
		}
		c := parseIP(t, body[20:20+size])
		c.at = time.Unix(0, int64(le.Uint32(body[4:]))<<32|int64(le.Uint32(body[8:])))
		c.out = options(t, body[20+(size+3)&^3:])[2] == "\x02\x00\x00\x00"
		out = append(out, c)
	}
	return out
}

func options(t *testing.T, b []byte) map[uint16]string {
	t.Helper()
	o := make(map[uint16]string)
	for {
		code, n := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		if code == 0 {
			if len(b) != 4 {
				t.Fatalf("%d bytes after the options", len(b)-4)
			}
			return o
		}
		o[code] = string(b[4 : 4+n])
		b = b[4+(n+3)&^3:]
	}
}

func parseIP(t *testing.T, b []byte) (c captured) {
	t.Helper()
	be := binary.BigEndian
	var udp, pseudo []byte
	switch b[0] >> 4 {
	case 4:
		if b[0] != 0x45 || int(be.Uint16(b[2:])) != len(b) || be.Uint16(b[6:]) != 0x4000 || b[9] != 17 || fold(sum16(0, b[:20])) != 0xffff {
			t.Fatalf("IPv4 header % x", b[:20])
		}
		c.tos, c.id, udp = b[1], be.Uint16(b[4:]), b[20:]
		c.src = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[12:])), be.Uint16(udp))
		c.dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:])), be.Uint16(udp[2:]))
	case 6:
		if int(be.Uint16(b[4:])) != len(b)-40 || b[6] != 17 {
			t.Fatalf("IPv6 header % x", b[:40])
		}
		c.tos, udp = b[0]<<4|b[1]>>4, b[40:]
		c.src = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:])), be.Uint16(udp))
		c.dst = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[24:])), be.Uint16(udp[2:]))
		pseudo = append(append(pseudo, b[8:40]...), 0, 17, udp[4], udp[5])
		if fold(sum16(sum16(0, pseudo), udp)) != 0xffff {
			t.Fatal("UDP checksum")
		}
	default:
		t.Fatalf("IP version %d", b[0]>>4)
	}
	if int(be.Uint16(udp[4:])) != len(udp) {
		t.Fatalf("UDP length %d of %d", be.Uint16(udp[4:]), len(udp))
	}
	c.payload = udp[8:]
	return c
}

// Rule: the tap shows each packet by itself as it is on the wire, sent and
// received, such that its ICRC is right with the Identification in the file.
func TestTap(t *testing.T) {
	for _, k := range kinds() {
		if strings.HasPrefix(k.name, "faulty") || strings.HasPrefix(k.name, "tapped") {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			p := k.open(t)
			var file [2]bytes.Buffer
			a, b := Tap(p.a, &file[0]), Tap(p.b, &file[1])
			var runs []Run
			total := 0
			for i, segs := range []int{1, 5, 64, 1} {
				r := newRun(a.LocalAddr(), b.LocalAddr(), segs, 256, ib.PSN(100*i))
				r.TOS = uint8(i)
				runs = append(runs, r)
				total += segs
			}
			other := netip.AddrPortFrom(a.LocalAddr().Addr(), 0xc321)
			r := newRun(other, b.LocalAddr(), 2, 256, 7)
			r.SrcPort = other.Port()
			runs = append(runs, r)
			total += 2
			taken := other // a port that cannot be had: sent from the own one
			if !p.a.Caps().IDKnown {
				c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(other.Addr(), 0)))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				taken = c.LocalAddr().(*net.UDPAddr).AddrPort()
				r := newRun(taken, b.LocalAddr(), 2, 256, 7)
				r.SrcPort = taken.Port()
				runs = append(runs, r)
				total += 2
			}
			for i := range runs {
				if n, err := a.Send(time.Duration(i)*time.Second, runs[i:i+1]); n != 1 || err != nil {
					t.Fatal(n, err)
				}
			}
			collect(t, b, total)
			if err := errors.Join(a.Close(), b.Close()); err != nil {
				t.Fatal(err)
			}
			for i, f := range file {
				packets := parsePcapng(t, f.Bytes())
				if len(packets) != total {
					t.Fatalf("file %d: %d packets, want %d", i, len(packets), total)
				}
				for j, c := range packets {
					run := which(j, runs)
					port := runs[run].SrcPort
					if port == 0 || port == taken.Port() && taken != other {
						port = a.LocalAddr().Port()
					}
					if c.out != (i == 0) || c.dst != b.LocalAddr() || c.src.Port() != port || c.tos != runs[run].TOS {
						t.Errorf("file %d, packet %d: sent %t, %v to %v, TOS %d", i, j, c.out, c.src, c.dst, c.tos)
					}
					flow := ib.NewFlow(c.src, c.dst)
					if !flow.Verify(c.id, c.payload) {
						t.Errorf("file %d, packet %d: the ICRC is wrong with ID %d", i, j, c.id)
					}
					if k.name == "udp4-gso=true-gro=true" && int(c.id) != indexIn(j, runs) {
						t.Errorf("file %d, packet %d: ID %d, want %d", i, j, c.id, indexIn(j, runs))
					}
				}
				if i == 0 {
					if d := packets[72].at.Sub(packets[0].at); d != 4*time.Second {
						t.Errorf("4 s between first and last packet became %v", d)
					}
					if d := time.Since(packets[0].at); d < 0 || d > time.Minute {
						t.Errorf("the first packet was sent %v ago", d)
					}
				}
			}
			if s := a.Stats(); s[TapPackets] != uint64(total) || s[TapDropped] != 0 {
				t.Errorf("tap_packets %d, tap_dropped %d", s[TapPackets], s[TapDropped])
			}
			if k.name == "fabric" || k.name == "udp6-gso=true-gro=true" {
				tshark(t, file[0].Bytes(), total) // it takes its time
			}
		})
	}
}

// which returns the run that packet j belongs to; indexIn its place in there.
func which(j int, runs []Run) int {
	for i := range runs {
		if j < runs[i].Segments() {
			return i
		}
		j -= runs[i].Segments()
	}
	return -1
}

func indexIn(j int, runs []Run) int {
	for i := range runs[:which(j, runs)] {
		j -= runs[i].Segments()
	}
	return j
}

// tshark checks, where it is installed, that tshark reads the file as n RoCEv2
// packets without complaint.
func tshark(t *testing.T, file []byte, n int) {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		t.Log("tshark is not installed: file not shown to it")
		return
	}
	name := filepath.Join(t.TempDir(), "tap.pcapng")
	if err := os.WriteFile(name, file, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-r", name, "--disable-protocol", "rpcordma", "-o", "ip.check_checksum:TRUE", "-d", "udp.port==1-65535,infiniband",
		"-T", "fields", "-e", "infiniband.bth.opcode", "-e", "infiniband.bth.psn", "-e", "_ws.malformed", "-e", "_ws.expert.severity")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != n {
		t.Fatalf("tshark shows %d packets of %d", len(lines), n)
	}
	for i, l := range lines {
		f := strings.Split(l, "\t")
		if f[0] != "4" || f[1] == "" || f[2] != "" || f[3] != "" {
			t.Fatalf("tshark, packet %d: %q", i, l)
		}
	}
}

// failing is a writer that fails after some bytes, or waits first.
type failing struct {
	left int
	gate chan struct{}
}

func (f *failing) Write(b []byte) (int, error) {
	if f.gate != nil {
		<-f.gate
	}
	if f.left -= len(b); f.left < 0 {
		return 0, errors.New("the disk is full")
	}
	return len(b), nil
}

// Rule: a writer that fails or is slow disturbs nothing; Close tells, the counter
// too.
func TestTapWriterFails(t *testing.T) {
	p := openFabricPair(t)
	a := Tap(p.a, &failing{left: 500})
	for range 10 {
		send(t, a, newRun(a.LocalAddr(), p.b.LocalAddr(), 10, 64, 1))
	}
	if got := collect(t, p.b, 100); len(got) != 100 {
		t.Errorf("%d arrived", len(got))
	}
	if err := a.Close(); err == nil || !strings.Contains(err.Error(), "disk is full") {
		t.Errorf("Close: %v", err)
	}
	if err := a.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
}

func TestTapIsBounded(t *testing.T) {
	p := openFabricPair(t)
	w := &failing{left: 1 << 30, gate: make(chan struct{})}
	a := Tap(p.a, w)
	r := newRun(a.LocalAddr(), p.b.LocalAddr(), 15, 4096, 1)
	sent := 3 * tapLimit / len(r.Buf)
	for range sent {
		send(t, a, r)
	}
	close(w.gate)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	s := a.Stats()
	if s[TapPackets]+s[TapDropped] != uint64(15*sent) || s[TapDropped] == 0 || s[TapPackets] == 0 {
		t.Errorf("%d written, %d missed, %d sent", s[TapPackets], s[TapDropped], 15*sent)
	}
}

// Rule: a damaged packet is in the file as it came.
func TestTapShowsDamage(t *testing.T) {
	p := openFabricPair(t)
	var file bytes.Buffer
	b := Tap(WithFaults(p.b, FaultConfig{Rx: Faults{Corrupt: 1}}), &file)
	send(t, p.a, newRun(p.a.LocalAddr(), b.LocalAddr(), 3, 64, 1))
	collect(t, b, 3)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	packets := parsePcapng(t, file.Bytes())
	for i, c := range packets {
		flow := ib.NewFlow(c.src, c.dst)
		if flow.Verify(c.id, c.payload) || int(c.id) != i {
			t.Errorf("packet %d: ID %d, ICRC right", i, c.id)
		}
	}
	if len(packets) != 3 {
		t.Errorf("%d packets", len(packets))
	}
}
