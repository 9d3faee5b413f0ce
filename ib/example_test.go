package ib_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
)

// A packet is built with the Put methods, sealed for its path and read again.
func ExampleNewFlow() {
	flow := ib.NewFlow(netip.MustParseAddrPort("192.0.2.1:49152"), netip.MustParseAddrPort("192.0.2.2:4791"))

	payload := "hello"
	pad := -len(payload) & 3
	b := make([]byte, ib.BTHSize+len(payload)+pad+ib.ICRCSize)
	n := ib.BTH{Opcode: ib.OpRCSendOnly, MigReq: true, Pad: uint8(pad), PKey: ib.DefaultPKey, DestQP: 17, AckReq: true, PSN: 1000}.Put(b)
	copy(b[n:], payload)
	flow.Seal(0, b)

	id, ok := flow.Recover(b)
	fmt.Println("IPv4 ID", id, ok)
	b[n] ^= 1
	_, ok = flow.Recover(b)
	fmt.Println("damaged", ok)
	// Output:
	// IPv4 ID 0 true
	// damaged false
}

// What Parse accepts can be read without further checks.
func ExampleParse() {
	b := []byte{
		0x11, 0x40, 0xff, 0xff, 0, 0, 0, 17, 0, 0, 3, 232, // BTH: ACKNOWLEDGE to QP 17, PSN 1000
		0x1f, 0, 0, 5, // AETH
		0, 0, 0, 0, // ICRC, not looked at
	}
	p, reason := ib.Parse(b)
	fmt.Println(reason, p.Opcode(), p.DestQP(), p.PSN(), p.AETH().Syndrome, p.AETH().MSN)
	_, reason = ib.Parse(b[:16])
	fmt.Println(reason)
	// Output:
	// ok RC_ACKNOWLEDGE 0x000011 1000 ACK credits 31 5
	// header too short
}

// Durations are rounded up to the codes of the wire.
func ExampleRNRTimerFor() {
	code := ib.RNRTimerFor(time.Millisecond)
	fmt.Println(uint8(code), code.Duration())
	// Output: 14 1.28ms
}

// Each connection a flow of its own, for networks that spread flows by ports.
func ExampleSourcePort() {
	fmt.Println(ib.SourcePort(0x17, 0xdb9bc4))
	// Output: 65420
}
