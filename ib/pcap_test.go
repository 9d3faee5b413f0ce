package ib

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// capturesEnv names the folder with captures that are not part of the repository.
const capturesEnv = "GOROCE_CAPTURES"

// captured is one InfiniBand transport packet out of a capture.
type captured struct {
	name string        // file and frame number, for messages
	at   time.Duration // time stamp
	b    []byte        // BTH to ICRC

	src, dst netip.AddrPort // RoCEv2
	id       uint16         // IPv4 Identification
	grh      []byte         // RoCEv1 and native with GRH
	lrh      []byte         // native
}

// rxeCaptures are traffic of two Linux hosts with rxe; want is the number of
// RoCE packets in each.
var rxeCaptures = []struct {
	file string
	want int
}{{"rxe-linux-6.1.pcap", 1328}, {"rxe-linux-6.12.pcap", 1317}}

func readRXE(tb testing.TB, file string) []captured {
	tb.Helper()
	return readPcap(tb, filepath.Join("testdata", "rxe", file))
}

// readPcap returns the transport packets of a pcap file.
func readPcap(tb testing.TB, path string) []captured {
	tb.Helper()
	d, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	if len(d) < 24 || binary.LittleEndian.Uint32(d) != 0xa1b2c3d4 {
		tb.Fatalf("%s: not a little-endian pcap file", path)
	}
	link := binary.LittleEndian.Uint32(d[20:])
	var out []captured
	for n, d := 1, d[24:]; len(d) > 0; n++ {
		sec, usec := binary.LittleEndian.Uint32(d), binary.LittleEndian.Uint32(d[4:])
		size := binary.LittleEndian.Uint32(d[8:])
		c, err := dissect(link, d[16:16+size])
		if err != nil {
			tb.Fatalf("%s frame %d: %v", path, n, err)
		}
		d = d[16+size:]
		if c == nil {
			continue
		}
		c.name = fmt.Sprintf("%s frame %d", filepath.Base(path), n)
		c.at = time.Duration(sec)*time.Second + time.Duration(usec)*time.Microsecond
		out = append(out, *c)
	}
	return out
}

// dissect finds the transport packet in a frame, nil when there is none.
func dissect(link uint32, f []byte) (*captured, error) {
	switch link {
	case 1: // Ethernet
		typ, f := be.Uint16(f[12:]), f[14:]
		if typ == 0x8100 {
			typ, f = be.Uint16(f[2:]), f[4:]
		}
		switch typ {
		case 0x0800:
			return dissectIPv4(f)
		case 0x86dd:
			return dissectIPv6(f)
		case 0x8915:
			return &captured{grh: f[:GRHSize], b: f[GRHSize : GRHSize+int(be.Uint16(f[4:]))]}, nil
		}
		return nil, nil
	case 101: // raw IP
		if f[0]>>4 == 6 {
			return dissectIPv6(f)
		}
		return dissectIPv4(f)
	case 197: // ERF
		return dissectERF(f)
	}
	return nil, fmt.Errorf("link type %d", link)
}

func dissectIPv4(f []byte) (*captured, error) {
	f = f[:be.Uint16(f[2:])]
	src, _ := netip.AddrFromSlice(f[12:16])
	dst, _ := netip.AddrFromSlice(f[16:20])
	if f[0] != 0x45 || f[9] != 17 || be.Uint16(f[22:]) != Port {
		return nil, nil
	}
	if be.Uint16(f[6:]) != 0x4000 {
		return nil, errors.New("RoCE packet without DF or in fragments")
	}
	return dissectUDP(f[20:], src, dst, be.Uint16(f[4:]))
}

func dissectIPv6(f []byte) (*captured, error) {
	f = f[:40+int(be.Uint16(f[4:]))]
	src, _ := netip.AddrFromSlice(f[8:24])
	dst, _ := netip.AddrFromSlice(f[24:40])
	if f[6] != 17 || be.Uint16(f[42:]) != Port {
		return nil, nil
	}
	return dissectUDP(f[40:], src, dst, 0)
}

func dissectUDP(f []byte, src, dst netip.Addr, id uint16) (*captured, error) {
	if int(be.Uint16(f[4:])) != len(f) {
		return nil, errors.New("IP and UDP length differ")
	}
	return &captured{
		src: netip.AddrPortFrom(src, be.Uint16(f)), dst: netip.AddrPortFrom(dst, be.Uint16(f[2:])),
		id: id, b: f[8:],
	}, nil
}

// dissectERF takes native InfiniBand frames (record type 21): a 16-byte record
// header, LRH, optional GRH, packet, VCRC.
func dissectERF(f []byte) (*captured, error) {
	if f[8]&0x7f != 21 {
		return nil, fmt.Errorf("ERF record type %d", f[8]&0x7f)
	}
	f = f[16:]
	lrh := f[:LRHSize]
	size := int(be.Uint16(lrh[4:])&0x7ff) * 4 // LRH to ICRC
	if size > len(f) {
		return nil, fmt.Errorf("LRH length %d in a frame of %d bytes", size, len(f))
	}
	b := f[LRHSize:size]
	switch lrh[1] & 3 { // LNH
	case 2:
		return &captured{lrh: lrh, b: b}, nil
	case 3:
		return &captured{lrh: lrh, grh: b[:GRHSize], b: b[GRHSize:]}, nil
	}
	return nil, nil // raw packets have no transport header
}

// verify checks the ICRC of c in the way that its link demands.
func (c *captured) verify() error {
	var want uint32
	switch {
	case c.grh != nil:
		want = ICRCv1(c.grh, c.b)
	case c.lrh != nil:
		want = ICRCNative(c.lrh, c.b)
	default:
		f := NewFlow(c.src, c.dst)
		if !f.Verify(c.id, c.b) {
			return errors.New("Verify refuses the ICRC")
		}
		if id, ok := f.Recover(c.b); !ok || id != c.id {
			return fmt.Errorf("Recover: ID %d, %v; want %d", id, ok, c.id)
		}
		if f.Verify(c.id^1, c.b) && c.src.Addr().Is4() {
			return errors.New("Verify accepts another ID")
		}
		return nil
	}
	if got := le.Uint32(c.b[len(c.b)-ICRCSize:]); got != want {
		return fmt.Errorf("ICRC %#x, want %#x", got, want)
	}
	return nil
}
