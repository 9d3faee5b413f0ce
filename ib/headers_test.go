package ib

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
)

// Each header's bytes, laid out by hand from IBTA 9.2, 9.3 and 9.7.5.1, Annex A14
// and A19. All bits of all fields are used once, reserved bits are 0.
func TestPut(t *testing.T) {
	for _, c := range []struct {
		name string
		h    interface{ Put([]byte) int }
		want string
	}{
		{"BTH", BTH{Opcode: OpRCSendOnly, PKey: 0x1234, DestQP: 0xabcdef, PSN: 0x345678}, "04 00 1234 00abcdef 00345678"},
		{"BTH solicited", BTH{Solicited: true}, "00 80 0000 00000000 00000000"},
		{"BTH migrated", BTH{MigReq: true}, "00 40 0000 00000000 00000000"},
		{"BTH pad", BTH{Pad: 3}, "00 30 0000 00000000 00000000"},
		{"BTH pad is 2 bits", BTH{Pad: 5}, "00 10 0000 00000000 00000000"},
		{"BTH FECN", BTH{FECN: true}, "00 00 0000 80000000 00000000"},
		{"BTH reserved", BTH{Resv7: 0x55}, "00 00 0000 00000000 55000000"},
		{"BTH reserved is 7 bits", BTH{Resv7: 0xff, AckReq: true}, "00 00 0000 00000000 ff000000"},
		{"BTH reserved is not AckReq", BTH{Resv7: 0x80}, "00 00 0000 00000000 00000000"},
		{"BTH BECN", BTH{BECN: true}, "00 00 0000 40000000 00000000"},
		{"BTH AckReq", BTH{AckReq: true}, "00 00 0000 00000000 80000000"},
		{"BTH numbers are 24 bits", BTH{DestQP: 0xff000001, PSN: 0xff000002}, "00 00 0000 00000001 00000002"},
		{"RETH", RETH{VA: 0x0123456789abcdef, RKey: 0x11223344, Length: 0x80000000}, "0123456789abcdef 11223344 80000000"},
		{"AETH", AETH{Syndrome: 0x62, MSN: 0xabcdef}, "62 abcdef"},
		{"AETH MSN is 24 bits", AETH{Syndrome: 0x1f, MSN: 0xff000001}, "1f 000001"},
		{"AtomicETH", AtomicETH{VA: 0x0123456789abcdef, RKey: 0x11223344, SwapAdd: 0x5566778899aabbcc, Compare: 0xddeeff0011223344},
			"0123456789abcdef 11223344 5566778899aabbcc ddeeff0011223344"},
		{"AtomicAckETH", AtomicAckETH(0x0123456789abcdef), "0123456789abcdef"},
		{"ImmDt", ImmDt(0x01234567), "01234567"},
		{"IETH", IETH(0x89abcdef), "89abcdef"},
		{"DETH", DETH{QKey: 0x80010000, SrcQP: 0xff123456}, "80010000 00123456"},
		{"XRCETH", XRCETH(0xff123456), "00123456"},
		{"FETH global range", FETH{Global: true}, "00000001"},
		{"FETH persistent MR", FETH{Persistent: true, Level: FlushMR}, "00000012"},
		{"FETH level is 2 bits", FETH{Level: 7}, "00000030"},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		b := bytes.Repeat([]byte{0xa5}, len(want)+1)
		if n := c.h.Put(b); n != len(want) || !bytes.Equal(b[:n], want) || b[n] != 0xa5 {
			t.Errorf("%s: Put returns %d and writes %x, want %x", c.name, n, b, want)
		}
	}
}

// IBTA Annex A17: the CNP, byte for byte as ConnectX NICs send it.
func TestPutCNP(t *testing.T) {
	b := bytes.Repeat([]byte{0xa5}, 40)
	n := PutCNP(b, 0x118)
	want, _ := hex.DecodeString("8100ffff4000011800000000" + strings.Repeat("00", 16) + "00000000")
	if n != 32 || CNPSize != 32 || !bytes.Equal(b[:n], want) || b[n] != 0xa5 {
		t.Fatalf("%d bytes %x, want %x", n, b, want)
	}
	flow4.Seal(0, b[:n])
	p, m := Parse(b[:n])
	if m != OK || p.Info().Op != KindCNP || !p.BECN() || p.DestQP() != 0x118 || p.PSN() != 0 || len(p.Payload()) != 16 {
		t.Errorf("parsed again: %v, %+v", m, p.BTH())
	}
}

// Every accessor returns what was put, for every opcode of the table, and the
// zero value for headers that the opcode does not have.
func TestAccessors(t *testing.T) {
	want := struct {
		RETH RETH
		AETH AETH
		At   AtomicETH
		AAck AtomicAckETH
		Imm  ImmDt
		IETH IETH
		DETH DETH
		XRC  QPN
		FETH FETH
	}{
		RETH{1<<63 | 5, 0xdeadbeef, 77}, AETH{0x6f, 0xfedcba}, AtomicETH{1<<63 | 9, 0xcafe0001, 3, 4}, 1<<63 | 11,
		0x80000001, 0x80000002, DETH{0x80000003, 0xffffff}, 0xfffffe, FETH{true, true, 1},
	}
	for o := range 256 {
		i := Opcode(o).Info()
		if i == nil {
			continue
		}
		payload := map[PayloadRule]int{PayloadNone: 0, PayloadAllowed: 5, PayloadExact: i.PayloadLen}[i.Payload]
		pad := -payload & 3
		b := make([]byte, i.HeaderLen+payload+pad+ICRCSize)
		bth := BTH{Opcode(o), true, true, uint8(pad), 0x8001, true, true, 0x800001, true, 0xfffffe, 0x2a}
		n := bth.Put(b)
		w := want
		put := func(has bool, f func([]byte) int, field any) {
			if has {
				n += f(b[n:])
			} else {
				v := reflect.ValueOf(field).Elem()
				v.SetZero()
			}
		}
		put(i.XRCETH, XRCETH(w.XRC).Put, &w.XRC)
		put(i.DETH, w.DETH.Put, &w.DETH)
		put(i.FETH, w.FETH.Put, &w.FETH)
		put(i.RETH, w.RETH.Put, &w.RETH)
		put(i.AtomicETH, w.At.Put, &w.At)
		put(i.AETH, w.AETH.Put, &w.AETH)
		put(i.AtomicAckETH, w.AAck.Put, &w.AAck)
		put(i.Imm, w.Imm.Put, &w.Imm)
		put(i.IETH, w.IETH.Put, &w.IETH)
		for k := range payload {
			b[n+k] = byte(k + 1)
		}
		copy(b[len(b)-4:], []byte{0x11, 0x22, 0x33, 0x44})

		p, m := Parse(b)
		if m != OK {
			t.Errorf("%s: %v", i.Name, m)
			continue
		}
		got := want
		got.RETH, got.AETH, got.At, got.AAck, got.Imm = p.RETH(), p.AETH(), p.AtomicETH(), p.AtomicAck(), p.Imm()
		got.IETH, got.DETH, got.XRC, got.FETH = p.IETH(), p.DETH(), p.XRCSRQ(), p.FETH()
		if got != w {
			t.Errorf("%s: headers %+v, want %+v", i.Name, got, w)
		}
		if p.BTH() != bth {
			t.Errorf("%s: BTH %+v, want %+v", i.Name, p.BTH(), bth)
		}
		if !bytes.Equal(p.Payload(), b[n:n+payload]) || cap(p.Payload()) != payload {
			t.Errorf("%s: payload %x", i.Name, p.Payload())
		}
		if p.ICRC() != 0x44332211 || &p.Bytes()[0] != &b[0] || len(p.Bytes()) != len(b) || p.Info() != i {
			t.Errorf("%s: ICRC %#x, %d bytes", i.Name, p.ICRC(), len(p.Bytes()))
		}
	}
}
