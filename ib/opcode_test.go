package ib

import (
	"fmt"
	"strings"
	"testing"
)

// The opcode table row by row: IBTA 9.2 table of OpCode fields, Annex A14 (XRC),
// A17 (CNP) and A19 (FLUSH, ATOMIC_WRITE). Headers in wire order; payload "-" is
// none, "p" any, a number exactly that many bytes; position O F M L; R request,
// A response.
const opcodeRows = `
00 RC_SEND_FIRST                     send  F R p  BTH
01 RC_SEND_MIDDLE                    send  M R p  BTH
02 RC_SEND_LAST                      send  L R p  BTH
03 RC_SEND_LAST_WITH_IMMEDIATE       send  L R p  BTH Imm
04 RC_SEND_ONLY                      send  O R p  BTH
05 RC_SEND_ONLY_WITH_IMMEDIATE       send  O R p  BTH Imm
06 RC_RDMA_WRITE_FIRST               write F R p  BTH RETH
07 RC_RDMA_WRITE_MIDDLE              write M R p  BTH
08 RC_RDMA_WRITE_LAST                write L R p  BTH
09 RC_RDMA_WRITE_LAST_WITH_IMMEDIATE write L R p  BTH Imm
0a RC_RDMA_WRITE_ONLY                write O R p  BTH RETH
0b RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE write O R p  BTH RETH Imm
0c RC_RDMA_READ_REQUEST              read  O R -  BTH RETH
0d RC_RDMA_READ_RESPONSE_FIRST       resp  F A p  BTH AETH
0e RC_RDMA_READ_RESPONSE_MIDDLE      resp  M A p  BTH
0f RC_RDMA_READ_RESPONSE_LAST        resp  L A p  BTH AETH
10 RC_RDMA_READ_RESPONSE_ONLY        resp  O A p  BTH AETH
11 RC_ACKNOWLEDGE                    ack   O A -  BTH AETH
12 RC_ATOMIC_ACKNOWLEDGE             aack  O A -  BTH AETH AtomicAckETH
13 RC_COMPARE_SWAP                   cas   O R -  BTH AtomicETH
14 RC_FETCH_ADD                      fad   O R -  BTH AtomicETH
16 RC_SEND_LAST_WITH_INVALIDATE      send  L R p  BTH IETH
17 RC_SEND_ONLY_WITH_INVALIDATE      send  O R p  BTH IETH
1c RC_FLUSH                          flush O R -  BTH FETH RETH
1d RC_ATOMIC_WRITE                   aw    O R 8  BTH RETH
20 UC_SEND_FIRST                     send  F R p  BTH
21 UC_SEND_MIDDLE                    send  M R p  BTH
22 UC_SEND_LAST                      send  L R p  BTH
23 UC_SEND_LAST_WITH_IMMEDIATE       send  L R p  BTH Imm
24 UC_SEND_ONLY                      send  O R p  BTH
25 UC_SEND_ONLY_WITH_IMMEDIATE       send  O R p  BTH Imm
26 UC_RDMA_WRITE_FIRST               write F R p  BTH RETH
27 UC_RDMA_WRITE_MIDDLE              write M R p  BTH
28 UC_RDMA_WRITE_LAST                write L R p  BTH
29 UC_RDMA_WRITE_LAST_WITH_IMMEDIATE write L R p  BTH Imm
2a UC_RDMA_WRITE_ONLY                write O R p  BTH RETH
2b UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE write O R p  BTH RETH Imm
64 UD_SEND_ONLY                      send  O R p  BTH DETH
65 UD_SEND_ONLY_WITH_IMMEDIATE       send  O R p  BTH DETH Imm
81 CNP                               cnp   O - 16 BTH
a0 XRC_SEND_FIRST                     send  F R p BTH XRCETH
a1 XRC_SEND_MIDDLE                    send  M R p BTH XRCETH
a2 XRC_SEND_LAST                      send  L R p BTH XRCETH
a3 XRC_SEND_LAST_WITH_IMMEDIATE       send  L R p BTH XRCETH Imm
a4 XRC_SEND_ONLY                      send  O R p BTH XRCETH
a5 XRC_SEND_ONLY_WITH_IMMEDIATE       send  O R p BTH XRCETH Imm
a6 XRC_RDMA_WRITE_FIRST               write F R p BTH XRCETH RETH
a7 XRC_RDMA_WRITE_MIDDLE              write M R p BTH XRCETH
a8 XRC_RDMA_WRITE_LAST                write L R p BTH XRCETH
a9 XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE write L R p BTH XRCETH Imm
aa XRC_RDMA_WRITE_ONLY                write O R p BTH XRCETH RETH
ab XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE write O R p BTH XRCETH RETH Imm
ac XRC_RDMA_READ_REQUEST              read  O R - BTH XRCETH RETH
ad XRC_RDMA_READ_RESPONSE_FIRST       resp  F A p BTH AETH
ae XRC_RDMA_READ_RESPONSE_MIDDLE      resp  M A p BTH
af XRC_RDMA_READ_RESPONSE_LAST        resp  L A p BTH AETH
b0 XRC_RDMA_READ_RESPONSE_ONLY        resp  O A p BTH AETH
b1 XRC_ACKNOWLEDGE                    ack   O A - BTH AETH
b2 XRC_ATOMIC_ACKNOWLEDGE             aack  O A - BTH AETH AtomicAckETH
b3 XRC_COMPARE_SWAP                   cas   O R - BTH XRCETH AtomicETH
b4 XRC_FETCH_ADD                      fad   O R - BTH XRCETH AtomicETH
b6 XRC_SEND_LAST_WITH_INVALIDATE      send  L R p BTH XRCETH IETH
b7 XRC_SEND_ONLY_WITH_INVALIDATE      send  O R p BTH XRCETH IETH
`

func TestOpcodeTable(t *testing.T) {
	kinds := map[string]OpKind{
		"send": KindSend, "write": KindWrite, "read": KindReadRequest, "resp": KindReadResponse, "ack": KindAck,
		"aack": KindAtomicAck, "cas": KindCmpSwap, "fad": KindFetchAdd, "flush": KindFlush, "aw": KindAtomicWrite,
		"cnp": KindCNP,
	}
	positions := map[string]Position{"O": PosOnly, "F": PosFirst, "M": PosMiddle, "L": PosLast}
	known := map[Opcode]bool{}
	for row := range strings.Lines(strings.TrimSpace(opcodeRows)) {
		f := strings.Fields(row)
		var op Opcode
		if _, err := fmt.Sscanf(f[0], "%x", (*uint8)(&op)); err != nil {
			t.Fatalf("%q: %v", row, err)
		}
		known[op] = true
		i := op.Info()
		if i == nil {
			t.Errorf("%s: unknown", row)
			continue
		}
		payload := map[PayloadRule]string{PayloadNone: "-", PayloadAllowed: "p", PayloadExact: fmt.Sprint(i.PayloadLen)}[i.Payload]
		direction := "-"
		if i.Request {
			direction = "R"
		}
		if i.Response {
			direction += "A"
		}
		if i.Name != f[1] || op.String() != f[1] || i.Op != kinds[f[2]] || i.Pos != positions[f[3]] ||
			strings.TrimPrefix(direction, "-") != strings.Trim(f[4], "-") || payload != f[5] {
			t.Errorf("%s: table says %+v", strings.TrimSpace(row), *i)
		}
		if i.Transport != op.Transport() || !strings.HasPrefix(i.Name, i.Transport.String()) {
			t.Errorf("%s: transport %v", i.Name, i.Transport)
		}
		checkHeaders(t, i, f[6:])
	}
	for o := range 256 {
		op := Opcode(o)
		if (op.Info() != nil) != known[op] {
			t.Errorf("opcode %#x: known is %v", o, op.Info() != nil)
		}
		if !known[op] && op.String() != fmt.Sprintf("opcode 0x%x", o) {
			t.Errorf("opcode %#x: String %q", o, op)
		}
	}
}

// checkHeaders compares flags, offsets and length with the list of headers.
func checkHeaders(t *testing.T, i *OpcodeInfo, headers []string) {
	t.Helper()
	type header struct {
		size int
		has  bool
		off  uint8
	}
	all := map[string]header{
		"BTH":          {12, true, 0},
		"XRCETH":       {4, i.XRCETH, i.offXRCETH},
		"DETH":         {8, i.DETH, i.offDETH},
		"FETH":         {4, i.FETH, i.offFETH},
		"RETH":         {16, i.RETH, i.offRETH},
		"AtomicETH":    {28, i.AtomicETH, i.offAtomicETH},
		"AETH":         {4, i.AETH, i.offAETH},
		"AtomicAckETH": {8, i.AtomicAckETH, i.offAtomicAck},
		"Imm":          {4, i.Imm, i.offImm},
		"IETH":         {4, i.IETH, i.offIETH},
	}
	at := 0
	for _, name := range headers {
		h, ok := all[name]
		if !ok {
			t.Fatalf("%s: no header %q", i.Name, name)
		}
		if !h.has || int(h.off) != at {
			t.Errorf("%s: %s present %v at %d, want it at %d", i.Name, name, h.has, h.off, at)
		}
		at += h.size
		delete(all, name)
	}
	if i.HeaderLen != at || at > MaxHeaderSize {
		t.Errorf("%s: header length %d, want %d (at most %d)", i.Name, i.HeaderLen, at, MaxHeaderSize)
	}
	for name, h := range all {
		if h.has || h.off != 0 {
			t.Errorf("%s: must not have a %s", i.Name, name)
		}
	}
}

// The exported names stand for the numbers of the specification: each must be
// the number whose row has the corresponding name.
func TestOpcodeNames(t *testing.T) {
	for op, name := range map[Opcode]string{
		OpRCSendFirst: "RC_SEND_FIRST", OpRCSendMiddle: "RC_SEND_MIDDLE", OpRCSendLast: "RC_SEND_LAST",
		OpRCSendLastImm: "RC_SEND_LAST_WITH_IMMEDIATE", OpRCSendOnly: "RC_SEND_ONLY",
		OpRCSendOnlyImm: "RC_SEND_ONLY_WITH_IMMEDIATE", OpRCWriteFirst: "RC_RDMA_WRITE_FIRST",
		OpRCWriteMiddle: "RC_RDMA_WRITE_MIDDLE", OpRCWriteLast: "RC_RDMA_WRITE_LAST",
		OpRCWriteLastImm: "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE", OpRCWriteOnly: "RC_RDMA_WRITE_ONLY",
		OpRCWriteOnlyImm: "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", OpRCReadRequest: "RC_RDMA_READ_REQUEST",
		OpRCReadResponseFirst: "RC_RDMA_READ_RESPONSE_FIRST", OpRCReadResponseMiddle: "RC_RDMA_READ_RESPONSE_MIDDLE",
		OpRCReadResponseLast: "RC_RDMA_READ_RESPONSE_LAST", OpRCReadResponseOnly: "RC_RDMA_READ_RESPONSE_ONLY",
		OpRCAck: "RC_ACKNOWLEDGE", OpRCAtomicAck: "RC_ATOMIC_ACKNOWLEDGE", OpRCCmpSwap: "RC_COMPARE_SWAP",
		OpRCFetchAdd: "RC_FETCH_ADD", OpRCSendLastInv: "RC_SEND_LAST_WITH_INVALIDATE",
		OpRCSendOnlyInv: "RC_SEND_ONLY_WITH_INVALIDATE", OpRCFlush: "RC_FLUSH", OpRCAtomicWrite: "RC_ATOMIC_WRITE",

		OpUCSendFirst: "UC_SEND_FIRST", OpUCSendMiddle: "UC_SEND_MIDDLE", OpUCSendLast: "UC_SEND_LAST",
		OpUCSendLastImm: "UC_SEND_LAST_WITH_IMMEDIATE", OpUCSendOnly: "UC_SEND_ONLY",
		OpUCSendOnlyImm: "UC_SEND_ONLY_WITH_IMMEDIATE", OpUCWriteFirst: "UC_RDMA_WRITE_FIRST",
		OpUCWriteMiddle: "UC_RDMA_WRITE_MIDDLE", OpUCWriteLast: "UC_RDMA_WRITE_LAST",
		OpUCWriteLastImm: "UC_RDMA_WRITE_LAST_WITH_IMMEDIATE", OpUCWriteOnly: "UC_RDMA_WRITE_ONLY",
		OpUCWriteOnlyImm: "UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",

		OpUDSendOnly: "UD_SEND_ONLY", OpUDSendOnlyImm: "UD_SEND_ONLY_WITH_IMMEDIATE", OpCNP: "CNP",

		OpXRCSendFirst: "XRC_SEND_FIRST", OpXRCSendMiddle: "XRC_SEND_MIDDLE", OpXRCSendLast: "XRC_SEND_LAST",
		OpXRCSendLastImm: "XRC_SEND_LAST_WITH_IMMEDIATE", OpXRCSendOnly: "XRC_SEND_ONLY",
		OpXRCSendOnlyImm: "XRC_SEND_ONLY_WITH_IMMEDIATE", OpXRCWriteFirst: "XRC_RDMA_WRITE_FIRST",
		OpXRCWriteMiddle: "XRC_RDMA_WRITE_MIDDLE", OpXRCWriteLast: "XRC_RDMA_WRITE_LAST",
		OpXRCWriteLastImm: "XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE", OpXRCWriteOnly: "XRC_RDMA_WRITE_ONLY",
		OpXRCWriteOnlyImm: "XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", OpXRCReadRequest: "XRC_RDMA_READ_REQUEST",
		OpXRCReadResponseFirst: "XRC_RDMA_READ_RESPONSE_FIRST", OpXRCReadResponseMiddle: "XRC_RDMA_READ_RESPONSE_MIDDLE",
		OpXRCReadResponseLast: "XRC_RDMA_READ_RESPONSE_LAST", OpXRCReadResponseOnly: "XRC_RDMA_READ_RESPONSE_ONLY",
		OpXRCAck: "XRC_ACKNOWLEDGE", OpXRCAtomicAck: "XRC_ATOMIC_ACKNOWLEDGE", OpXRCCmpSwap: "XRC_COMPARE_SWAP",
		OpXRCFetchAdd: "XRC_FETCH_ADD", OpXRCSendLastInv: "XRC_SEND_LAST_WITH_INVALIDATE",
		OpXRCSendOnlyInv: "XRC_SEND_ONLY_WITH_INVALIDATE",
	} {
		if op.String() != name {
			t.Errorf("opcode %#x is %s, want %s", uint8(op), op, name)
		}
	}
	for p, want := range map[Position][2]bool{PosOnly: {true, true}, PosFirst: {true, false}, PosMiddle: {}, PosLast: {false, true}} {
		if p.Starts() != want[0] || p.Ends() != want[1] {
			t.Errorf("position %d: starts %v, ends %v", p, p.Starts(), p.Ends())
		}
	}
	if s := Transport(7).String(); s != "transport 7" {
		t.Errorf("String %q", s)
	}
}
