package hostile

import (
	"net/netip"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
)

// BenchmarkDrop is what a packet costs that is dropped, without the system call that
// brought it: a run of 64, as GRO makes them.
func BenchmarkDrop(b *testing.B) {
	const segments = 64
	for _, c := range []struct {
		name string
		from netip.Addr
		s    spec
		raw  bool
	}{
		{"not allowed", netip.MustParseAddr("192.0.2.1"), spec{op: ib.OpRCWriteOnly, n: 1024}, true},
		{"malformed", peerAddr, spec{op: ib.OpRCReadRequest, n: 1024}, true},
		{"unknown queue pair", peerAddr, spec{op: ib.OpRCWriteOnly, qpn: 0x123456, n: 1024}, true},
		{"stranger's address", stranger, spec{op: ib.OpRCWriteOnly, n: 1024}, true},
		{"damaged, 1 KiB", peerAddr, spec{op: ib.OpRCWriteOnly, n: 1024}, true},
		{"damaged, 4 KiB", peerAddr, spec{op: ib.OpRCWriteOnly, n: 4096}, true},
		{"Q_Key, 1 KiB", stranger, spec{op: ib.OpUDSendOnly, qkey: 0x99, n: 1024}, false},
		{"ACK outside of the window", peerAddr, spec{op: ib.OpRCAck}, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			v := newVictim(b)
			p := v.packet(c.s)
			flow := ib.NewFlow(netip.AddrPortFrom(c.from, netio.Port), netip.AddrPortFrom(victimAddr, netio.Port))
			var run []byte
			for i := range segments {
				if !c.raw {
					flow.Seal(uint16(i), p)
				}
				run = append(run, p...)
			}
			in := []netio.Received{{
				Src: netip.AddrPortFrom(c.from, netio.Port), Dst: netip.AddrPortFrom(victimAddr, netio.Port), IDKnown: true, SegSize: len(p), Buf: run,
			}}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N/segments + 1 {
				v.in.in = in
				v.dev.Progress(v.now)
			}
		})
	}
}
