package ib

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"
)

// The 40 bytes of both IP versions, written out by hand: IPv6 header, or zeros
// and IPv4 header with its checksum (RFC 791, RFC 8200).
func TestPutGRH(t *testing.T) {
	for _, tt := range []struct{ name, src, dst, want string }{
		{"IPv4", "192.0.2.1", "192.0.2.2",
			"0000000000000000000000000000000000000000" + "45b8003800004000" + "4011b5f9" + "c0000201" + "c0000202"},
		{"IPv6", "2001:db8::1", "2001:db8::2",
			"6b800000" + "0024" + "1140" + "20010db8000000000000000000000001" + "20010db8000000000000000000000002"},
	} {
		b := bytes.Repeat([]byte{0xee}, GRHSize+1)
		if n := PutGRH(b, netip.MustParseAddr(tt.src), netip.MustParseAddr(tt.dst), 0xb8, 28); n != GRHSize {
			t.Errorf("%s: %d bytes", tt.name, n)
		}
		if got := hex.EncodeToString(b[:GRHSize]); got != tt.want || b[GRHSize] != 0xee {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
		h, ok := ParseGRH(b)
		want := GRH{Src: netip.MustParseAddr(tt.src), Dst: netip.MustParseAddr(tt.dst), TrafficClass: 0xb8, HopLimit: 64}
		if !ok || h != want {
			t.Errorf("%s: parsed %+v %v, want %+v", tt.name, h, ok, want)
		}
	}
}

// A checksum whose sum carries twice.
func TestIPv4ChecksumCarries(t *testing.T) {
	b := make([]byte, GRHSize)
	for i := range 1 << 12 {
		src := netip.AddrFrom4([4]byte{255, 255, byte(i >> 4), byte(i << 4)})
		PutGRH(b, src, netip.MustParseAddr("255.255.255.254"), 0xff, 0xffff-28)
		if h, ok := ParseGRH(b); !ok || h.Src != src {
			t.Fatalf("%v: %v %v", src, h, ok)
		}
	}
}

// What is neither version is refused: a wrong checksum, another header length, a
// short buffer.
func TestParseGRHRefuses(t *testing.T) {
	good := make([]byte, GRHSize)
	PutGRH(good, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 0, 28)
	for name, change := range map[string]func([]byte) []byte{
		"checksum":      func(b []byte) []byte { b[30] ^= 1; return b },
		"header length": func(b []byte) []byte { b[20] = 0x46; return b },
		"short":         func(b []byte) []byte { return b[:GRHSize-1] },
		"empty":         func(b []byte) []byte { return nil },
		"zeros":         func(b []byte) []byte { clear(b); return b },
	} {
		if h, ok := ParseGRH(change(bytes.Clone(good))); ok {
			t.Errorf("%s: accepted as %+v", name, h)
		}
	}
}

// An IPv6 header whose last 20 bytes look like IPv4 but for the checksum is IPv6.
func TestParseGRHOfVersion6(t *testing.T) {
	b := make([]byte, GRHSize)
	src := netip.MustParseAddr("2001:db8::4500:1")
	dst := netip.MustParseAddr("4500:38::2")
	PutGRH(b, src, dst, 0, 28)
	copy(b[20:], []byte{0x45, 0})
	if h, ok := ParseGRH(b); !ok || h.Dst != dst || !h.Src.Is6() {
		t.Errorf("%+v %v", h, ok)
	}
}
