package ib

import (
	"fmt"
	"testing"
)

// What Parse refuses, and why: one field of a good packet is wrong at a time.
func TestParseRefuses(t *testing.T) {
	build := func(op Opcode, n int, edit func(b []byte)) []byte {
		b := make([]byte, n)
		BTH{Opcode: op, PKey: DefaultPKey, DestQP: 2}.Put(b)
		if edit != nil {
			edit(b)
		}
		return b
	}
	flags := func(v byte) func([]byte) { return func(b []byte) { b[1] = v } }
	qp := func(q QPN) func([]byte) {
		return func(b []byte) { b[5], b[6], b[7] = byte(q>>16), byte(q>>8), byte(q) }
	}
	for _, c := range []struct {
		rule string
		b    []byte
		want Malformed
	}{
		{"empty", nil, TooShort},
		{"15 bytes: BTH without a whole ICRC", build(OpRCSendOnly, 16, nil)[:15], TooShort},
		{"16 bytes: empty SEND", build(OpRCSendOnly, 16, nil), OK},
		{"65507 bytes do not pad to 4", build(OpRCSendOnly, 65507, nil), BadPad},
		{"65504 bytes fit in a datagram", build(OpRCSendOnly, 65504, nil), OK},
		{"65508 bytes fit in no datagram", build(OpRCSendOnly, 65508, nil), TooLong},
		{"RESYNC is not an RC opcode", build(0x15, 32, nil), UnknownOpcode},
		{"RD", build(0x44, 64, nil), UnknownOpcode},
		{"UC has no READ", build(0x2c, 64, nil), UnknownOpcode},
		{"UD has SEND_ONLY alone", build(0x60, 64, nil), UnknownOpcode},
		{"CNP transport, other operation", build(0x80, 32, nil), UnknownOpcode},
		{"manufacturer opcode", build(0xff, 64, nil), UnknownOpcode},
		{"transport version 1 (IBTA 9.6)", build(OpRCSendOnly, 16, flags(1)), BadTVer},
		{"transport version 8", build(OpRCSendOnly, 16, flags(8)), BadTVer},
		{"solicited and migration bits are fine", build(OpRCSendOnly, 16, flags(0xc0)), OK},
		{"WRITE_ONLY without room for its RETH", build(OpRCWriteOnly, 28, nil), HeaderTooShort},
		{"WRITE_ONLY of nothing", build(OpRCWriteOnly, 32, nil), OK},
		{"ACK without AETH", build(OpRCAck, 16, nil), HeaderTooShort},
		{"CMP_SWAP cut in the AtomicETH", build(OpRCCmpSwap, 40, nil), HeaderTooShort},
		{"CMP_SWAP", build(OpRCCmpSwap, 44, nil), OK},
		{"UD without DETH", build(OpUDSendOnly, 20, nil), HeaderTooShort},
		{"FLUSH without RETH", build(OpRCFlush, 20, nil), HeaderTooShort},
		{"FLUSH", build(OpRCFlush, 36, nil), OK},
		{"FLUSH with payload", build(OpRCFlush, 40, nil), UnexpectedPayload},
		{"pad without payload", build(OpRCSendOnly, 16, flags(0x10)), BadPad},
		{"pad 3 of 4 bytes", build(OpRCSendOnly, 20, flags(0x30)), OK},
		{"payload of 1 byte without pad", build(OpRCSendOnly, 17, nil), BadPad},
		{"payload of 1 byte and pad 3 in 3 bytes", build(OpRCSendOnly, 19, flags(0x30)), BadPad},
		{"pad on an opcode without payload", build(OpRCAck, 20, flags(0x20)), BadPad},
		{"READ request with payload", build(OpRCReadRequest, 36, nil), UnexpectedPayload},
		{"ACK with payload", build(OpRCAck, 24, nil), UnexpectedPayload},
		{"ATOMIC_ACK with payload", build(OpRCAtomicAck, 32, nil), UnexpectedPayload},
		{"ATOMIC_WRITE of nothing", build(OpRCAtomicWrite, 32, nil), BadPayloadLength},
		{"ATOMIC_WRITE of 4", build(OpRCAtomicWrite, 36, nil), BadPayloadLength},
		{"ATOMIC_WRITE of 8", build(OpRCAtomicWrite, 40, nil), OK},
		{"ATOMIC_WRITE of 7", build(OpRCAtomicWrite, 40, flags(0x10)), BadPayloadLength},
		{"ATOMIC_WRITE of 12", build(OpRCAtomicWrite, 44, nil), BadPayloadLength},
		{"CNP", build(OpCNP, 32, nil), OK},
		{"CNP without reserved bytes", build(OpCNP, 16, nil), BadPayloadLength},
		{"CNP of 20 reserved bytes", build(OpCNP, 36, nil), BadPayloadLength},
		{"QP 0 (IBTA chapter 13: subnet management, not on RoCE)", build(OpUDSendOnly, 24, qp(0)), ReservedQPN},
		{"QP 1", build(OpUDSendOnly, 24, qp(1)), OK},
		{"multicast UD", build(OpUDSendOnly, 24, qp(MulticastQPN)), OK},
		{"multicast RC (IBTA 10.5)", build(OpRCSendOnly, 16, qp(MulticastQPN)), MulticastNotUD},
		{"multicast CNP", build(OpCNP, 32, qp(MulticastQPN)), MulticastNotUD},
		{"reserved bits of BTH bytes 4 and 8 are ignored", build(OpRCSendOnly, 16, func(b []byte) { b[4], b[8] = 0x3f, 0x7f }), OK},
	} {
		p, m := Parse(c.b)
		if m != c.want {
			t.Errorf("%s: %v, want %v", c.rule, m, c.want)
		}
		if m != OK && p.b != nil {
			t.Errorf("%s: refused with a view", c.rule)
		}
	}
}

// Every known opcode at every length around its limits: accepted exactly when
// headers, payload rule and pad allow it.
func TestParseLengths(t *testing.T) {
	for o := range 256 {
		i := Opcode(o).Info()
		for n := range 80 {
			for pad := range 4 {
				b := make([]byte, n)
				if n >= BTHSize {
					BTH{Opcode: Opcode(o), Pad: uint8(pad), DestQP: 2}.Put(b)
				}
				p, m := Parse(b)
				payload := -1
				if i != nil {
					payload = n - i.HeaderLen - pad - ICRCSize
				}
				want := payload >= 0 && (payload+pad)%4 == 0 &&
					(i.Payload != PayloadNone || payload == 0) && (i.Payload != PayloadExact || payload == i.PayloadLen)
				if (m == OK) != want {
					t.Fatalf("opcode %v, %d bytes, pad %d: %v", Opcode(o), n, pad, m)
				}
				if m == OK && len(p.Payload()) != payload {
					t.Fatalf("opcode %v, %d bytes, pad %d: payload of %d bytes", Opcode(o), n, pad, len(p.Payload()))
				}
			}
		}
	}
}

func TestMalformedString(t *testing.T) {
	seen := map[string]Malformed{}
	for m := range NumMalformed {
		s := m.String()
		if s == "" || s == fmt.Sprintf("malformed reason %d", m) {
			t.Errorf("reason %d has no text", m)
		}
		if other, ok := seen[s]; ok {
			t.Errorf("reasons %d and %d have the same text %q", other, m, s)
		}
		seen[s] = m
	}
	if s := NumMalformed.String(); s != fmt.Sprintf("malformed reason %d", NumMalformed) {
		t.Errorf("String of an unknown reason %q", s)
	}
}
