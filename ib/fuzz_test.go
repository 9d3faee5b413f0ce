package ib

import (
	"bytes"
	"slices"
	"testing"
)

// seedPackets returns one captured packet of each opcode and length up to limit.
func seedPackets(tb testing.TB, limit int) [][]byte {
	type kind struct {
		op  byte
		len int
	}
	seen := map[kind]bool{}
	var out [][]byte
	for _, f := range rxeCaptures {
		for _, c := range readRXE(tb, f.file) {
			k := kind{c.b[0], len(c.b)}
			if len(c.b) <= limit && !seen[k] {
				seen[k] = true
				out = append(out, c.b)
			}
		}
	}
	return out
}

// asXRC makes a packet of RC one of XRC, and leaves others as they are.
func asXRC(b []byte) []byte {
	if Opcode(b[0]).Transport() != TransportRC {
		return b
	}
	b = bytes.Clone(b)
	b[0] |= byte(OpXRCSendFirst)
	if i := Opcode(b[0]).Info(); i != nil && i.XRCETH {
		b = slices.Insert(b, BTHSize, 0, 0, 0x12, 0x34)
	}
	return b
}

// Whatever arrives, Parse does not fail; what it accepts can be read through
// every accessor, and written again gives the same bytes but for reserved bits.
func FuzzParse(f *testing.F) {
	for _, b := range seedPackets(f, 400) {
		f.Add(b)
		f.Add(asXRC(b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		p, m := Parse(b)
		if m >= NumMalformed {
			t.Fatalf("reason %d", m)
		}
		if m != OK {
			return
		}
		i := p.Info()
		if i != p.Opcode().Info() || p.DestQP() == 0 || p.Pad() > 3 {
			t.Fatalf("accepted %+v", p.BTH())
		}
		if i.HeaderLen+len(p.Payload())+int(p.Pad())+ICRCSize != len(b) {
			t.Fatalf("header %d, payload %d, pad %d of %d bytes", i.HeaderLen, len(p.Payload()), p.Pad(), len(b))
		}
		again := encode(p)
		clear(b[len(b)-ICRCSize-int(p.Pad()):]) // pad and ICRC are not encoded
		b[4] &= 0xc0
		if i.XRCETH {
			b[i.offXRCETH] = 0
		}
		if i.DETH {
			b[i.offDETH+4] = 0
		}
		if i.FETH {
			clear(b[i.offFETH : i.offFETH+3])
			b[i.offFETH+3] &= 0x33
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("encoded again\n%x, want\n%x (was %x)", again, b, before)
		}
	})
}

// Recover accepts exactly the packets that Verify accepts with some ID, and what
// Seal wrote always.
func FuzzRecover(f *testing.F) {
	for i, b := range seedPackets(f, 400) {
		f.Add(b, uint16(i*1000), uint16(i*13), byte(i))
	}
	f.Fuzz(func(t *testing.T, b []byte, id, at uint16, flip byte) {
		for _, fl := range []Flow{flow4, flow6} {
			if got, ok := fl.Recover(b); ok && !fl.Verify(got, b) {
				t.Fatalf("Recover found ID %d, which Verify refuses", got)
			}
			if len(b) < BTHSize+ICRCSize || len(b) > maxUDPPayload {
				continue
			}
			fl.Seal(id, b)
			want := id
			if fl.family == family6 {
				want = 0
			}
			if got, ok := fl.Recover(b); !ok || got != want || !fl.Verify(id, b) {
				t.Fatalf("Recover: %d, %v; want %d", got, ok, want)
			}
			b[int(at)%len(b)] ^= flip
			got, ok := fl.Recover(b)
			if ok && !fl.Verify(got, b) {
				t.Fatalf("after damage Recover found ID %d, which Verify refuses", got)
			}
			if !ok && fl.Verify(id, b) {
				t.Fatal("Recover refuses what Verify accepts")
			}
			if near, found := fl.RecoverNear(at, b); near != got || found != ok {
				t.Fatalf("after damage RecoverNear(%d) found %d, %v, and Recover %d, %v", at, near, found, got, ok)
			}
		}
	})
}
