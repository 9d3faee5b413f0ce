package ib

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

var benchSizes = []int{0, 8, 60, 256, 1024, 4096}

var (
	testSrc4, testDst4 = netip.MustParseAddrPort("10.77.0.2:49153"), netip.MustParseAddrPort("10.77.0.3:4791")
	testSrc6, testDst6 = netip.MustParseAddrPort("[fd00::2]:49153"), netip.MustParseAddrPort("[fd00::3]:4791")

	flow4, flow6 = NewFlow(testSrc4, testDst4), NewFlow(testSrc6, testDst6)
)

// sendOnly returns an unsealed SEND_ONLY packet with n payload bytes that depend
// on their position.
func sendOnly(n int) []byte {
	pad := -n & 3
	b := make([]byte, BTHSize+n+pad+ICRCSize)
	BTH{Opcode: OpRCSendOnly, MigReq: true, Pad: uint8(pad), PKey: DefaultPKey, DestQP: 0x1234, AckReq: true, PSN: 77}.Put(b)
	for i := range n {
		b[BTHSize+i] = byte(i*7 + i>>8)
	}
	return b
}

func BenchmarkParse(b *testing.B) {
	p := sendOnly(1024)
	var sum int
	for b.Loop() {
		v, m := Parse(p)
		if m != OK {
			b.Fatal(m)
		}
		sum += len(v.Payload()) + int(v.PSN()) + int(v.DestQP())
	}
}

func BenchmarkSeal(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("payload=%d", n), func(b *testing.B) {
			p := sendOnly(n)
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				flow4.Seal(7, p)
			}
		})
	}
}

// BenchmarkUpdate is what TuneICRC chooses from.
func BenchmarkUpdate(b *testing.B) {
	p := make([]byte, 4112)
	for _, c := range []struct {
		name   string
		update func(uint32, []byte) uint32
	}{{"hash/crc32", updateLong}, {"shifts", updateShifts}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				c.update(0, p)
			}
		})
	}
}

func BenchmarkRecover(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("payload=%d", n), func(b *testing.B) {
			p := sendOnly(n)
			flow4.Seal(7, p)
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				if id, ok := flow4.Recover(p); id != 7 || !ok {
					b.Fatal(id, ok)
				}
			}
		})
	}
}

func BenchmarkRecoverNear(b *testing.B) {
	p := sendOnly(1024)
	flow4.Seal(7, p)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if id, ok := flow4.RecoverNear(7, p); id != 7 || !ok {
			b.Fatal(id, ok)
		}
	}
}

// BenchmarkBTH writes a header and reads it as the ICRC does.
func BenchmarkBTH(b *testing.B) {
	p := sendOnly(0)
	h := BTH{Opcode: OpRCWriteMiddle, MigReq: true, PKey: DefaultPKey, DestQP: 0x1234, PSN: 77}
	for b.Loop() {
		h.Put(p)
		h.PSN = PSN(sumFromBTH(1, p[:BTHSize])) & 0xff
	}
}

func BenchmarkNewFlow(b *testing.B) {
	for b.Loop() {
		if f := NewFlow(testSrc4, testDst4); !f.Valid() {
			b.Fatal("not valid")
		}
	}
}

func BenchmarkIDTracker(b *testing.B) {
	var t IDTracker
	var now time.Duration
	var id uint16
	for b.Loop() {
		now += time.Microsecond
		id++
		if !t.Accept(now, id) {
			b.Fatal(id)
		}
	}
}
