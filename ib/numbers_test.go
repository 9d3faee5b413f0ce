package ib

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

// IBTA 9.7.1: PSNs count modulo 2^24 and half of the circle is "later".
func TestPSN(t *testing.T) {
	for _, c := range []struct {
		p, q PSN
		d    int
	}{
		{0, 0, 0},
		{1, 0, 1},
		{0, 1, -1},
		{0, 0xffffff, 1},
		{0xffffff, 0, -1},
		{5, 0xfffff0, 21},
		{0x7fffff, 0, 1<<23 - 1},
		{0x800000, 0, -1 << 23},
		{0, 0x800000, -1 << 23},
		{0x800001, 0, -1<<23 + 1},
	} {
		if d := c.p.Sub(c.q); d != c.d {
			t.Errorf("%d.Sub(%d) = %d, want %d", c.p, c.q, d, c.d)
		}
		if got := c.q.Add(c.d); got != c.p {
			t.Errorf("%d.Add(%d) = %d, want %d", c.q, c.d, got, c.p)
		}
		if c.p.Before(c.q) != (c.d < 0) || c.p.After(c.q) != (c.d > 0) {
			t.Errorf("Before or After of %d and %d is wrong", c.p, c.q)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		p, n := PSN(r.Uint32()&psnMask), int(r.Int32N(1<<24))-1<<23
		if q := p.Add(n); q > psnMask || q.Sub(p) != n {
			t.Fatalf("%d.Add(%d) = %d, back %d", p, n, q, q.Sub(p))
		}
	}
	if got := PSN(5).Add(math.MinInt32); got != 5 {
		t.Errorf("adding -2^31, a multiple of 2^24, gives %d", got)
	}
	if s := QPN(0xabc).String(); s != "0x000abc" {
		t.Errorf("QPN String %q", s)
	}
}

// IBTA 10.9.3: equal partition, not partition 0, at least one full member.
func TestPKeyMatches(t *testing.T) {
	for _, c := range []struct {
		a, b PKey
		want bool
	}{
		{0xffff, 0xffff, true},
		{0xffff, 0x7fff, true},
		{0x7fff, 0xffff, true},
		{0x7fff, 0x7fff, false},
		{0xffff, 0x8001, false},
		{0x8001, 0x0001, true},
		{0x8000, 0x8000, false},
		{0x8000, 0x0000, false},
	} {
		if got := c.a.Matches(c.b); got != c.want {
			t.Errorf("%#x matches %#x: %v", uint16(c.a), uint16(c.b), got)
		}
	}
}

func TestMTU(t *testing.T) {
	for _, c := range []struct {
		n       int
		exact   MTU
		largest MTU
	}{
		{-1, 0, 0},
		{0, 0, 0},
		{255, 0, 0},
		{256, MTU256, MTU256},
		{257, 0, MTU256},
		{512, MTU512, MTU512},
		{1023, 0, MTU512},
		{1024, MTU1024, MTU1024},
		{1420, 0, MTU1024},
		{2048, MTU2048, MTU2048},
		{4096, MTU4096, MTU4096},
		{8192, 0, MTU4096},
	} {
		if m, ok := MTUFromBytes(c.n); m != c.exact || ok != (c.exact != 0) {
			t.Errorf("MTUFromBytes(%d) = %v, %v", c.n, m, ok)
		}
		if m, ok := LargestMTU(c.n); m != c.largest || ok != (c.largest != 0) {
			t.Errorf("LargestMTU(%d) = %v, %v", c.n, m, ok)
		}
	}
	for _, m := range []MTU{0, 6, 255} {
		if m.Valid() || m.Bytes() != 0 {
			t.Errorf("MTU code %d counts as valid", uint8(m))
		}
	}
	if s := MTU1024.String(); s != "1024" {
		t.Errorf("String %q", s)
	}
	if s := MTU(9).String(); s != "invalid MTU code 9" {
		t.Errorf("String %q", s)
	}
}

// IBTA 9.7.6.1.3: 4.096 us * 2^code, 0 is off; durations round up.
func TestAckTimeout(t *testing.T) {
	for _, c := range []struct {
		code AckTimeout
		d    time.Duration
	}{
		{0, 0},
		{1, 8192 * time.Nanosecond},
		{14, 67108864 * time.Nanosecond},
		{18, 1073741824 * time.Nanosecond},
		{31, 8796093022208 * time.Nanosecond},
		{32, 0},
	} {
		if d := c.code.Duration(); d != c.d {
			t.Errorf("code %d: %v, want %v", c.code, d, c.d)
		}
	}
	for code := AckTimeout(1); code < 32; code++ {
		d := code.Duration()
		if got := AckTimeoutFor(d); got != code {
			t.Errorf("AckTimeoutFor(%v) = %d, want %d", d, got, code)
		}
		if got := AckTimeoutFor(d - 1); got != code {
			t.Errorf("AckTimeoutFor(%v) = %d, want %d", d-1, got, code)
		}
		if got := AckTimeoutFor(d + 1); got != min(code+1, 31) {
			t.Errorf("AckTimeoutFor(%v) = %d, want %d", d+1, got, min(code+1, 31))
		}
	}
	for d, want := range map[time.Duration]AckTimeout{
		math.MinInt64: 0, -1: 0, 0: 0, 1: 1, 4096: 1, 4097: 1, math.MaxInt64: 31,
	} {
		if got := AckTimeoutFor(d); got != want {
			t.Errorf("AckTimeoutFor(%d) = %d, want %d", int64(d), got, want)
		}
	}
}

// IBTA 9.7.5.2.8, table of RNR NAK timer codes, in milliseconds.
func TestRNRTimer(t *testing.T) {
	want := [32]float64{
		655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
		2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
	}
	for code, ms := range want {
		d := RNRTimer(code).Duration()
		if got := float64(d) / 1e6; math.Abs(got-ms) > 1e-9 {
			t.Errorf("code %d: %v ms, want %v", code, got, ms)
		}
		if got := RNRTimerFor(d); got != RNRTimer(code) {
			t.Errorf("RNRTimerFor(%v) = %d, want %d", d, got, code)
		}
		if got := RNRTimerFor(d - 1); got != RNRTimer(code) {
			t.Errorf("RNRTimerFor(%v) = %d, want %d", d-1, got, code)
		}
		if got, next := RNRTimerFor(d+1), RNRTimer(code+1)&31; code != 0 && got != next {
			t.Errorf("RNRTimerFor(%v) = %d, want %d", d+1, got, next)
		}
	}
	for d, want := range map[time.Duration]RNRTimer{math.MinInt64: 1, 0: 1, 1: 1, time.Second: 0, math.MaxInt64: 0} {
		if got := RNRTimerFor(d); got != want {
			t.Errorf("RNRTimerFor(%d) = %d, want %d", int64(d), got, want)
		}
	}
}

// IBTA Annex A17: an IPv4 address is the GID ::ffff:a.b.c.d.
func TestGID(t *testing.T) {
	for _, c := range []struct{ addr, unmapped, text string }{
		{"10.0.0.1", "10.0.0.1", "::ffff:10.0.0.1"},
		{"::ffff:10.0.0.1", "10.0.0.1", "::ffff:10.0.0.1"},
		{"fe80::1%eth0", "fe80::1", "fe80::1"},
		{"2001:db8::5", "2001:db8::5", "2001:db8::5"},
	} {
		g := GIDFromAddr(netip.MustParseAddr(c.addr))
		if g.IsZero() || g.Addr() != netip.MustParseAddr(c.unmapped) || g.String() != c.text {
			t.Errorf("%s: GID %v, address %v", c.addr, g, g.Addr())
		}
	}
	if g := GIDFromAddr(netip.MustParseAddr("10.0.0.1")); g != (GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}) {
		t.Errorf("bytes %x", g[:])
	}
	if g := GIDFromAddr(netip.Addr{}); !g.IsZero() {
		t.Errorf("the invalid address gives %v", g)
	}
}

// IBTA 9.7.5.1, table of AETH syndromes; the numbers of the NAK codes as seen on
// the wire: 0x60 sequence, 0x61 invalid request, 0x62 access, 0x63 operational.
func TestSyndrome(t *testing.T) {
	for _, c := range []struct {
		s    Syndrome
		raw  uint8
		kind SyndromeKind
		text string
	}{
		{AckSyndrome(0), 0x00, SynAck, "ACK credits 0"},
		{AckSyndrome(CreditsInvalid), 0x1f, SynAck, "ACK credits 31"},
		{AckSyndrome(0xff), 0x1f, SynAck, "ACK credits 31"},
		{RNRSyndrome(0), 0x20, SynRNR, "RNR 655.36ms"},
		{RNRSyndrome(12), 0x2c, SynRNR, "RNR 640µs"},
		{Syndrome(0x5a), 0x5a, SynReserved, "reserved 0x5a"},
		{NAKSyndrome(NAKSequence), 0x60, SynNAK, "NAK PSN sequence error"},
		{NAKSyndrome(NAKInvalidRequest), 0x61, SynNAK, "NAK invalid request"},
		{NAKSyndrome(NAKRemoteAccess), 0x62, SynNAK, "NAK remote access error"},
		{NAKSyndrome(NAKRemoteOperational), 0x63, SynNAK, "NAK remote operational error"},
		{NAKSyndrome(NAKInvalidRD), 0x64, SynNAK, "NAK invalid RD request"},
		{Syndrome(0x7f), 0x7f, SynNAK, "NAK reserved code 31"},
		{Syndrome(0x80), 0x80, SynReserved, "reserved 0x80"},
		{Syndrome(0xe1), 0xe1, SynReserved, "reserved 0xe1"},
	} {
		if uint8(c.s) != c.raw || c.s.Kind() != c.kind || c.s.String() != c.text {
			t.Errorf("%#x: kind %d, %q; want %#x, %d, %q", uint8(c.s), c.s.Kind(), c.s, c.raw, c.kind, c.text)
		}
		if low := c.raw & 31; c.s.Credits() != low || uint8(c.s.RNRTimer()) != low || uint8(c.s.NAK()) != low {
			t.Errorf("%#x: value is not its low 5 bits", c.raw)
		}
	}
}

// Ports that rxe of Linux 6.12 sent from; test/interop compares with more.
func TestSourcePort(t *testing.T) {
	for _, c := range []struct {
		local, remote QPN
		want          uint16
	}{
		{0x17, 0xdb9bc4, 65420}, {0x18, 0xff6921, 55904}, {0x19, 0x4ebdb1, 50736}, {0x1a, 0x9784eb, 65317}, {0x1c, 0x6e7f22, 59246},
	} {
		if got := SourcePort(c.local, c.remote); got != c.want {
			t.Errorf("source port of %v to %v is %d, want %d", c.local, c.remote, got, c.want)
		}
		if got := SourcePort(c.remote, c.local); got != c.want {
			t.Errorf("source port of %v to %v is %d, want %d", c.remote, c.local, got, c.want)
		}
	}
}
