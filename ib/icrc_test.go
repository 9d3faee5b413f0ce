package ib

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// slowICRC is the ICRC as the specification describes it, bit by bit over the
// whole pseudo packet, sharing nothing with the code under test (IBTA 7.8.1 and
// Annex A17).
func slowICRC(src, dst netip.AddrPort, id uint16, b []byte) uint32 {
	p := bytes.Repeat([]byte{0xff}, 8)
	udp := 8 + len(b)
	if src.Addr().Is4() {
		p = append(p, 0x45, 0xff, byte((20+udp)>>8), byte(20+udp), byte(id>>8), byte(id), 0x40, 0, 0xff, 17, 0xff, 0xff)
	} else {
		p = append(p, 0x6f, 0xff, 0xff, 0xff, byte(udp>>8), byte(udp), 17, 0xff)
	}
	p = append(p, src.Addr().AsSlice()...)
	p = append(p, dst.Addr().AsSlice()...)
	p = append(p, byte(src.Port()>>8), byte(src.Port()), byte(dst.Port()>>8), byte(dst.Port()), byte(udp>>8), byte(udp), 0xff, 0xff)
	bth := len(p)
	p = append(p, b[:len(b)-4]...)
	p[bth+4] = 0xff
	crc := ^uint32(0)
	for _, c := range p {
		crc ^= uint32(c)
		for range 8 {
			crc = crc>>1 ^ 0xedb88320*(crc&1)
		}
	}
	return ^crc
}

var icrcFlows = []struct{ src, dst string }{
	{"10.77.0.2:49153", "10.77.0.3:4791"},
	{"255.255.255.255:65535", "0.0.0.0:0"},
	{"[fd00::2]:49153", "[fd00::3]:4791"},
	{"[2001:db8:1234:5678:9abc:def0:1234:5678]:0", "[ff02::1]:65535"},
}

// Seal writes what the specification says for all four pads, both IP versions,
// every length around the steps of the implementation, and the masked bits of
// BTH byte 4 do not matter, while the bits of byte 8 do.
func TestSealAgainstSpecification(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var lengths []int
	for n := 16; n < 200; n++ { // with lengths that are no multiple of 4: defined, though no packet has them
		lengths = append(lengths, n)
	}
	lengths = append(lengths, 1040, 1056, 4112, 4128, 4140, 4144, 4148, 9000, 65504, 65507)
	for _, fl := range icrcFlows {
		src, dst := netip.MustParseAddrPort(fl.src), netip.MustParseAddrPort(fl.dst)
		f := NewFlow(src, dst)
		for _, n := range lengths {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			id := uint16(r.Uint32())
			before := bytes.Clone(b)
			f.Seal(id, b)
			want := slowICRC(src, dst, id, b)
			if got := le.Uint32(b[n-4:]); got != want || !bytes.Equal(b[:n-4], before[:n-4]) {
				t.Fatalf("%s, %d bytes: ICRC %#x, want %#x", fl.src, n, got, want)
			}
			if !f.Verify(id, b) {
				t.Fatalf("%s, %d bytes: Verify refuses it", fl.src, n)
			}
			b[4] ^= 0xff
			if !f.Verify(id, b) {
				t.Fatalf("%s, %d bytes: BTH byte 4 is not masked", fl.src, n)
			}
			b[8] ^= 0x40
			if f.Verify(id, b) {
				t.Fatalf("%s, %d bytes: BTH byte 8 is masked", fl.src, n)
			}
		}
	}
}

func TestPads(t *testing.T) {
	for _, f := range []Flow{flow4, flow6} {
		for n := range 9 {
			b := sendOnly(n)
			f.Seal(300, b)
			p, m := Parse(b)
			if m != OK || len(p.Payload()) != n || int(p.Pad()) != -n&3 {
				t.Fatalf("%d bytes: %v, payload %d, pad %d", n, m, len(p.Payload()), p.Pad())
			}
			want := uint16(300)
			if f.family == family6 {
				want = 0
			}
			if id, ok := f.Recover(b); !ok || id != want {
				t.Errorf("%d bytes: Recover %d, %v", n, id, ok)
			}
			if p.Pad() > 0 {
				b[len(b)-5]++ // the ICRC covers pad bytes
				if f.Verify(300, b) {
					t.Errorf("%d bytes: Verify accepts a changed pad byte", n)
				}
			}
		}
	}
}

// IPv4-mapped addresses are IPv4, zones do not count, families do not mix.
func TestNewFlow(t *testing.T) {
	ap := netip.MustParseAddrPort
	if NewFlow(ap("[::ffff:10.77.0.2]:49153"), ap("10.77.0.3:4791")) != flow4 {
		t.Error("an IPv4-mapped source gives another flow")
	}
	if NewFlow(ap("[fd00::2%lo]:49153"), ap("[fd00::3]:4791")) != flow6 {
		t.Error("a zone gives another flow")
	}
	b := sendOnly(8)
	for name, f := range map[string]Flow{
		"zero":              {},
		"mixed":             NewFlow(ap("10.0.0.1:1"), ap("[::1]:2")),
		"mixed reverse":     NewFlow(ap("[::1]:2"), ap("10.0.0.1:1")),
		"no source":         NewFlow(netip.AddrPort{}, ap("[::1]:2")),
		"no destination":    NewFlow(ap("10.0.0.1:1"), netip.AddrPort{}),
		"neither of either": NewFlow(netip.AddrPort{}, netip.AddrPort{}),
	} {
		f.Seal(0, b)
		_, ok := f.Recover(b)
		if f.Valid() || f.Verify(0, b) || ok || le.Uint32(b[len(b)-4:]) != 0 {
			t.Errorf("%s: the flow verifies something or seals", name)
		}
	}
	if !flow4.Valid() || !flow6.Valid() {
		t.Error("a good flow is not valid")
	}
}

// Recover finds every ID at every length that honest peers send, at those they do
// not, and nothing in lengths without meaning; RecoverNear finds the same, whatever it
// is told.
func TestRecoverFindsID(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	check := func(n int, id uint16) {
		t.Helper()
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		flow4.Seal(id, b)
		if got, ok := flow4.Recover(b); !ok || got != id {
			t.Fatalf("%d bytes: Recover %d, %v; want %d", n, got, ok, id)
		}
		for _, likely := range []uint16{id, id + 1, uint16(r.Uint32())} {
			if got, ok := flow4.RecoverNear(likely, b); !ok || got != id {
				t.Fatalf("%d bytes: RecoverNear(%d) %d, %v; want %d", n, likely, got, ok, id)
			}
		}
	}
	for id := range 1 << 16 {
		check(16+4*(id%40), uint16(id))
	}
	for n := 16; n <= maxTabled+64; n++ {
		check(n, uint16(r.Uint32()))
	}
	for range 50 {
		check(maxTabled+r.IntN(maxUDPPayload-maxTabled), uint16(r.Uint32()))
	}
	check(maxUDPPayload, 0xffff)
	for _, n := range []int{0, 1, 4, 15, maxUDPPayload + 1, 1 << 17} {
		for _, f := range []Flow{flow4, flow6} {
			b := make([]byte, n)
			if n >= 16 {
				f.Seal(0, b) // with lengths modulo 2^16, so that only the length is wrong
			}
			if _, ok := f.Recover(b); ok || f.Verify(0, b) {
				t.Errorf("%d bytes count as a packet", n)
			}
		}
	}
}

// Random damage passes Recover with probability 2^-16 over IPv4; Verify with the
// known ID, and Recover over IPv6, pass with 2^-32, that is never here.
func TestRecoverRefusesDamage(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	trials := 1 << 20
	if raceEnabled {
		trials = 1 << 17
	}
	b4, b6 := sendOnly(40), sendOnly(40)
	flow4.Seal(0x1234, b4)
	flow6.Seal(0, b6)
	passed := 0
	damaged := make([]byte, len(b4))
	for range trials {
		at, x := r.IntN(len(b4)-8), r.Uint64()|1 // damage over 8 bytes
		copy(damaged, b4)
		le.PutUint64(damaged[at:], le.Uint64(damaged[at:])^x)
		if at <= 4 && at+8 > 4 {
			damaged[4] = b4[4] // not covered
			if bytes.Equal(damaged, b4) {
				continue
			}
		}
		if _, ok := flow4.Recover(damaged); ok {
			passed++
		}
		if flow4.Verify(0x1234, damaged) {
			t.Fatal("Verify accepts a damaged packet")
		}
		copy(damaged, b6)
		le.PutUint64(damaged[at:], le.Uint64(damaged[at:])^x)
		damaged[4] = b6[4]
		if _, ok := flow6.Recover(damaged); ok && !bytes.Equal(damaged, b6) {
			t.Fatal("Recover accepts a damaged IPv6 packet")
		}
	}
	if want := float64(trials) / (1 << 16); math.Abs(float64(passed)-want) > 5*math.Sqrt(want) {
		t.Errorf("%d of %d damaged packets passed, expected about %.0f", passed, trials, want)
	}
}

// Damage of one or two bits anywhere is noticed by Recover except where the
// difference happens to look like another ID: count that it is rare.
func TestRecoverFewBits(t *testing.T) {
	b := sendOnly(64)
	flow4.Seal(0x00ff, b)
	flip := func(bit int) { b[bit/8] ^= 1 << (bit % 8) }
	pairs, passed := 0, 0
	for i := range len(b) * 8 {
		if i/8 == 4 {
			continue
		}
		flip(i)
		if _, ok := flow4.Recover(b); ok {
			t.Errorf("one bit flipped at %d passes", i)
		}
		for j := range i {
			if j/8 == 4 {
				continue
			}
			flip(j)
			if _, ok := flow4.Recover(b); ok {
				passed++
			}
			pairs++
			flip(j)
		}
		flip(i)
	}
	if pairs < 100000 || passed > pairs/10000 {
		t.Errorf("%d of %d double flips pass", passed, pairs)
	}
}

// RoCEv1 and native InfiniBand: the masked fields do not matter, others do, and
// short headers give 0 (IBTA 7.8.1, Annex A16).
func TestICRCv1AndNativeMasks(t *testing.T) {
	grh := []byte{0x60, 1, 2, 3, 0, 32, 27, 64}
	for i := range 32 {
		grh = append(grh, byte(i))
	}
	lrh := []byte{0x30, 2, 0, 1, 0, 9, 0, 2}
	b := sendOnly(16)
	v1, native := ICRCv1(grh, b), ICRCNative(lrh, b)
	check := func(h []byte, i int, masked byte, crc func() uint32) error {
		was := crc()
		for bit := range 8 {
			h[i] ^= 1 << bit
			if (crc() == was) != (masked>>bit&1 == 1) {
				return fmt.Errorf("bit %d of byte %d: masked is %v", bit, i, crc() == was)
			}
			h[i] ^= 1 << bit
		}
		return nil
	}
	grhMask := map[int]byte{0: 0x0f, 1: 0xff, 2: 0xff, 3: 0xff, 7: 0xff}
	for i := range grh {
		if err := check(grh, i, grhMask[i], func() uint32 { return ICRCv1(grh, b) }); err != nil {
			t.Errorf("GRH: %v", err)
		}
	}
	lrhMask := map[int]byte{0: 0xf0}
	for i := range lrh {
		if err := check(lrh, i, lrhMask[i], func() uint32 { return ICRCNative(lrh, b) }); err != nil {
			t.Errorf("LRH: %v", err)
		}
	}
	b[len(b)-1]++ // the old ICRC is no input
	if ICRCv1(grh, b) != v1 || ICRCNative(lrh, b) != native {
		t.Error("the last four bytes count")
	}
	if ICRCv1(grh[:39], b) != 0 || ICRCv1(grh, b[:15]) != 0 || ICRCNative(lrh[:7], b) != 0 || ICRCNative(lrh, b[:15]) != 0 {
		t.Error("short input has an ICRC")
	}
}

// A FLUSH of Linux 7.2 (rxe) as it was captured: its headers are covered twice (rxe_opcode.c, rxe_icrc.c). Both forms are taken, Seal makes
// the one that was chosen, and no other packet has two.
func TestFlushOfRxe(t *testing.T) {
	b, _ := hex.DecodeString("1c00ffff0028031a800aab0d0000000100003e5344961800faf9f08800000bb8339a7b72")
	f := NewFlow(netip.MustParseAddrPort("[fd77::2]:65082"), netip.MustParseAddrPort("[fd77::1]:4791"))
	if !f.Verify(0, b) {
		t.Error("the packet is refused")
	}
	sealed := slices.Clone(b)
	f.Seal(0, sealed)
	if bytes.Equal(sealed, b) || !f.Verify(0, sealed) {
		t.Error("Seal does not seal by the rule")
	}
	f.SealFlushTwice(true)
	if f.Seal(0, sealed); !bytes.Equal(sealed, b) {
		t.Errorf("sealed twice: %x, want %x", sealed[32:], b[32:])
	}
	for _, fl := range icrcFlows {
		for _, twice := range []bool{false, true} {
			f := NewFlow(netip.MustParseAddrPort(fl.src), netip.MustParseAddrPort(fl.dst))
			f.SealFlushTwice(twice)
			f.Seal(0xa1b2, b)
			if id, ok := f.Recover(b); !ok || f.family == family4 && id != 0xa1b2 {
				t.Errorf("%s twice %t: Identification %#x, %t", fl.src, twice, id, ok)
			}
			for i := range b {
				b[i] ^= 4
				if f.Verify(0xa1b2, b) && i != 4 { // BTH byte 4 is masked
					t.Errorf("%s twice %t: damage at byte %d passes", fl.src, twice, i)
				}
				b[i] ^= 4
			}
			write := append([]byte{byte(OpRCWriteOnly)}, b[1:]...)
			f.Seal(1, write)
			want := slices.Clone(write)
			f.SealFlushTwice(!twice)
			if f.Seal(1, write); !bytes.Equal(write, want) {
				t.Errorf("%s: the form of FLUSHes changes a WRITE", fl.src)
			}
		}
	}
}

// VerifyWire agrees with Flow, with IP options and without DF as well, and counts
// every bit of the headers that stays as it is on the way.
func TestVerifyWire(t *testing.T) {
	for name, c := range map[string]struct {
		ip     []byte
		masked map[int]byte
	}{
		"IPv4": {[]byte{0x45, 2, 0, 60, 0x12, 0x34, 0x40, 0, 64, 17, 1, 2, 10, 0, 0, 1, 10, 0, 0, 2},
			map[int]byte{1: 0xff, 8: 0xff, 10: 0xff, 11: 0xff}},
		"IPv4 with options, without DF": {[]byte{0x46, 2, 0, 64, 0x12, 0x34, 0, 0, 64, 17, 1, 2, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 0},
			map[int]byte{1: 0xff, 8: 0xff, 10: 0xff, 11: 0xff}},
		"IPv6": {append([]byte{0x60, 1, 2, 3, 0, 40, 17, 64}, bytes.Repeat([]byte{0xfd, 1}, 16)...),
			map[int]byte{0: 0x0f, 1: 0xff, 2: 0xff, 3: 0xff, 7: 0xff}},
	} {
		udp := []byte{0xc0, 1, 0x12, 0xb7, 0, 40, 5, 6}
		b := sendOnly(16)
		h := slices.Concat(bytes.Repeat([]byte{0xff}, 8), c.ip, udp, b[:len(b)-ICRCSize])
		for i, m := range c.masked {
			h[8+i] |= m
		}
		h[8+len(c.ip)+6], h[8+len(c.ip)+7], h[8+len(c.ip)+12] = 0xff, 0xff, 0xff
		le.PutUint32(b[len(b)-ICRCSize:], crc32.ChecksumIEEE(h))
		if !VerifyWire(c.ip, udp, b) {
			t.Errorf("%s: the ICRC is refused", name)
		}
		for i := range c.ip {
			for bit := range 8 {
				c.ip[i] ^= 1 << bit
				version := i == 0 && bit >= 4
				if VerifyWire(c.ip, udp, b) != (c.masked[i]>>bit&1 == 1) && !version {
					t.Errorf("%s: bit %d of byte %d counts: %v", name, bit, i, c.masked[i]>>bit&1 == 1)
				}
				c.ip[i] ^= 1 << bit
			}
		}
		if udp[6]++; !VerifyWire(c.ip, udp, b) {
			t.Errorf("%s: the UDP checksum counts", name)
		}
		if udp[0]++; VerifyWire(c.ip, udp, b) {
			t.Errorf("%s: the source port does not count", name)
		}
		for n := range c.ip {
			if VerifyWire(c.ip[:n], udp[:min(n, 8)], b[:min(n, len(b))]) {
				t.Errorf("%s: %d bytes of a header verify", name, n)
			}
		}
	}
}
