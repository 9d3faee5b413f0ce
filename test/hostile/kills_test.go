package hostile

import (
	"bytes"
	"fmt"
	"math"
	"net/netip"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// kill is a class of packets that have crashed or hung other implementations.
type kill struct {
	name    string
	packets func(v *victim) [][]byte
	fatal   bool // it may end the queue pair that it names
}

// one makes a packet of each spec.
func one(specs ...spec) func(v *victim) [][]byte {
	return func(v *victim) (out [][]byte) {
		for _, s := range specs {
			out = append(out, v.packet(s))
		}
		return out
	}
}

// known are the opcodes that mean something.
func known() (ops []ib.Opcode) {
	for op := range 256 {
		if ib.Opcode(op).Info() != nil {
			ops = append(ops, ib.Opcode(op))
		}
	}
	return ops
}

func unknownOpcodes(v *victim) (out [][]byte) {
	for op := range 256 {
		if ib.Opcode(op).Info() != nil {
			continue
		}
		for _, qpn := range []ib.QPN{v.rc.QP.Num(), v.uc.QP.Num(), v.ud.QP.Num(), v.xrc.QP.Num(), 0, 1, ib.MulticastQPN} {
			for _, n := range []int{16, 17, 40, 1100} {
				b := make([]byte, n)
				ib.BTH{Opcode: ib.Opcode(op), PKey: ib.DefaultPKey, DestQP: qpn, PSN: startPSN}.Put(b)
				out = append(out, b)
			}
		}
	}
	return out
}

// forgedPads claim pad bytes that are not there, or make a length that is no
// multiple of 4.
func forgedPads(v *victim) (out [][]byte) {
	for _, op := range known() {
		for pad := range 4 {
			for n := range 5 {
				b := make([]byte, op.Info().HeaderLen+n+ib.ICRCSize)
				copy(b, v.packet(spec{op: op})[:op.Info().HeaderLen])
				b[1] = b[1]&^0x30 | byte(pad)<<4
				if pad > n || n%4 != 0 {
					out = append(out, b)
				}
			}
		}
	}
	return out
}

// shortPackets are cut off at every length below the least of their opcode: the
// ICRC would be computed over nothing, or less.
func shortPackets(v *victim) (out [][]byte) {
	for _, op := range known() {
		b := v.packet(spec{op: op})
		for n := range op.Info().HeaderLen + ib.ICRCSize {
			out = append(out, bytes.Clone(b[:n]))
		}
	}
	return out
}

var kills = []kill{
	{"unknown opcode", unknownOpcodes, false},
	{"forged pad", forgedPads, false},
	{"short packet, ICRC over nothing", shortPackets, false},
	{"longer than any packet", func(*victim) [][]byte { return [][]byte{make([]byte, 65507), make([]byte, 65536)} }, false},
	{"ATOMIC_WRITE without payload", func(v *victim) [][]byte {
		b := v.packet(spec{op: ib.OpRCAtomicWrite, length: 8, n: 8})
		return [][]byte{append(b[:ib.OpRCAtomicWrite.Info().HeaderLen:ib.OpRCAtomicWrite.Info().HeaderLen], 0, 0, 0, 0)}
	}, false},
	{"ATOMIC_WRITE of length 0", one(spec{op: ib.OpRCAtomicWrite, length: 0, n: 8}), true},
	{"ATOMIC_WRITE of another length", one(spec{op: ib.OpRCAtomicWrite, length: 16, n: 8}), true},
	{"WRITE whose iova and length overflow", one(spec{op: ib.OpRCWriteOnly, va: math.MaxUint64 - 3, length: 8, n: 8}), true},
	{"WRITE to the end of the address space", func(v *victim) [][]byte {
		return [][]byte{v.packet(spec{op: ib.OpRCWriteOnly, va: -v.rc.MR.Addr() - 4, length: 8, n: 8})}
	}, true},
	{"WRITE beyond the region", one(spec{op: ib.OpRCWriteOnly, va: 16<<10 - 4, length: 8, n: 8}), true},
	{"WRITE before the region", one(spec{op: ib.OpRCWriteOnly, va: math.MaxUint64 - 7, length: 8, n: 8}), true},
	{"WRITE longer than a message may be", one(spec{op: ib.OpRCWriteFirst, length: math.MaxUint32, n: 1024}), true},
	{"WRITE that is longer than it said", one(spec{op: ib.OpRCWriteOnly, length: 4, n: 8}), true},
	{"WRITE that is shorter than it said", one(spec{op: ib.OpRCWriteOnly, length: 12, n: 8}), true},
	{"WRITE LAST longer than it said", one(spec{op: ib.OpRCWriteFirst, length: 1028, n: 1024}, spec{op: ib.OpRCWriteLast, psn: 1, n: 1024}), true},
	{"READ whose iova and length overflow", one(spec{op: ib.OpRCReadRequest, va: math.MaxUint64 - 3, length: math.MaxInt32}), true},
	{"READ of the longest message", one(spec{op: ib.OpRCReadRequest, length: 1 << 31}), true},
	{"READ longer than a message may be", one(spec{op: ib.OpRCReadRequest, length: math.MaxUint32}), true},
	{"FLUSH whose iova and length overflow", one(spec{op: ib.OpRCFlush, va: math.MaxUint64 - 3, length: 8, feth: ib.FETH{Global: true}}), true},
	{"FLUSH of no kind and of an unknown level", one(spec{op: ib.OpRCFlush, length: 8, feth: ib.FETH{Level: 3}}), true},
	{"atomic beyond the region", one(spec{op: ib.OpRCFetchAdd, va: 16 << 10}), true},
	{"atomic that is not aligned", one(spec{op: ib.OpRCCmpSwap, va: 3}), true},
	{"atomic whose iova overflows", func(v *victim) [][]byte {
		return [][]byte{v.packet(spec{op: ib.OpRCFetchAdd, va: -v.rc.MR.Addr() - 1})}
	}, true},
	{"key that does not exist", one(spec{op: ib.OpRCWriteOnly, rkey: 0xffffffff, length: 8, n: 8}), true},
	{"SEND that invalidates a key it may not", func(v *victim) [][]byte {
		return [][]byte{v.packet(spec{op: ib.OpRCSendOnlyInv, inv: v.other.MR.RKey(), n: 4})}
	}, true},
	{"SEND longer than its receive", one(spec{op: ib.OpRCSendOnly, n: 1024}), true},
	{"SEND that goes on without end", func(v *victim) (out [][]byte) {
		out = append(out, v.packet(spec{op: ib.OpRCSendFirst, n: 1024}))
		for i := range 100 {
			out = append(out, v.packet(spec{op: ib.OpRCSendMiddle, psn: 1 + i, n: 1024}))
		}
		return out
	}, true},
	{"opcodes in a wrong order", one(spec{op: ib.OpRCSendFirst, n: 1024}, spec{op: ib.OpRCWriteMiddle, psn: 1, n: 1024}), true},
	{"message that begins in the middle", one(spec{op: ib.OpRCSendMiddle, n: 1024}), true},
	{"acknowledgements of nothing", func(v *victim) (out [][]byte) {
		for s := range 256 {
			for _, psn := range []int{-1 << 23, -1, 0, 1, 1<<23 - 1} {
				out = append(out, v.packet(spec{op: ib.OpRCAck, psn: psn, syndrome: ib.Syndrome(s)}),
					v.packet(spec{op: ib.OpRCAtomicAck, psn: psn, syndrome: ib.Syndrome(s)}))
			}
		}
		return out
	}, false},
	{"READ responses to nothing", one(
		spec{op: ib.OpRCReadResponseFirst, n: 1024}, spec{op: ib.OpRCReadResponseMiddle, n: 1024},
		spec{op: ib.OpRCReadResponseLast, n: 5}, spec{op: ib.OpRCReadResponseOnly, n: 0}), false},
	{"CNPs to everybody", func(v *victim) (out [][]byte) {
		for _, qpn := range []ib.QPN{v.rc.QP.Num(), v.uc.QP.Num(), v.ud.QP.Num(), 1, 2, ib.MulticastQPN} {
			b := make([]byte, ib.CNPSize)
			ib.PutCNP(b, qpn)
			out = append(out, b)
		}
		return out
	}, false},
	{"connected opcodes to multicast", func(v *victim) (out [][]byte) {
		for _, op := range known() {
			out = append(out, v.packet(spec{op: op, qpn: ib.MulticastQPN, n: op.Info().PayloadLen}))
		}
		return out
	}, false},
	{"datagrams of every length", func(v *victim) (out [][]byte) {
		for n := range 4200 {
			out = append(out, v.packet(spec{op: ib.OpUDSendOnly, n: n}))
		}
		return out
	}, false},
	{"UC messages of every breach", one(
		spec{op: ib.OpUCWriteOnly, va: math.MaxUint64 - 3, length: 8, n: 8}, spec{op: ib.OpUCWriteLast, n: 5}, spec{op: ib.OpUCWriteFirst, length: math.MaxUint32, n: 1024},
		spec{op: ib.OpUCWriteFirst, length: 1030, n: 1024}, spec{op: ib.OpUCWriteLast, psn: 1, n: 1024}, spec{op: ib.OpUCSendMiddle, n: 1024},
		spec{op: ib.OpUCSendOnly, n: 1024}, spec{op: ib.OpUCSendFirst, n: 3}, spec{op: ib.OpUCWriteOnlyImm, length: 0}), false},
	{"every opcode to a queue pair of another service", func(v *victim) (out [][]byte) {
		for _, op := range known() {
			for _, e := range v.attacked() {
				if b := v.packet(spec{op: op, qpn: e.QP.Num(), n: op.Info().PayloadLen}); serviceOf(e) != op.Info().Transport {
					out = append(out, b)
				}
			}
		}
		return out
	}, false},
}

func serviceOf(e *rocetest.Endpoint) ib.Transport {
	switch _, cfg := e.QP.Query(); cfg.Type {
	case roce.UC:
		return ib.TransportUC
	case roce.UD:
		return ib.TransportUD
	case roce.XRCRecv, roce.XRCSend:
		return ib.TransportXRC
	}
	return ib.TransportRC
}

// TestOnePacketKills: what has crashed or hung others ends at most the queue pair
// that it names, and writes nothing that its sender may not write. It comes from the
// peer, with the right ICRC, key and PSN but for what is wrong.
func TestOnePacketKills(t *testing.T) {
	for _, k := range kills {
		overBoth(t, k.name, func(t *testing.T, v *victim) {
			// A receive that nothing fits, so that no SEND changes memory.
			for _, e := range []*rocetest.Endpoint{v.rc, v.uc, v.ud} {
				must(t, e.QP.PostRecv(roce.RecvWR{ID: 1, SGE: []roce.SGE{e.MR.SGE(0, 10)}}))
			}
			before := [][]byte{bytes.Clone(v.rc.MR.Bytes()[1024:]), bytes.Clone(v.uc.MR.Bytes()[1024:]), bytes.Clone(v.ud.MR.Bytes())}
			packets := k.packets(v)
			if len(packets) == 0 {
				t.Fatal("no packet")
			}
			for i, b := range packets {
				v.attack(peerAddr, b)
				if i%100 == 99 {
					v.healthy(fmt.Sprintf("packet %d", i))
				}
			}
			v.healthy("at the end")
			if s := v.rc.QP.State(); s != roce.StateRTS && !k.fatal {
				t.Errorf("the RC queue pair is in %v", s)
			} else if k.fatal && s != roce.StateErr {
				t.Errorf("the RC queue pair is in %v: the packet was taken", s)
			}
			for name, e := range map[string]*rocetest.Endpoint{"UC": v.uc, "UD": v.ud, "XRC": v.xrc, "other": v.other} {
				if s := e.QP.State(); s != roce.StateRTS {
					t.Errorf("the %s queue pair is in %v", name, s)
				}
			}
			for i, mr := range [][]byte{v.rc.MR.Bytes()[1024:], v.uc.MR.Bytes()[1024:], v.ud.MR.Bytes()} {
				if !bytes.Equal(mr, before[i]) {
					t.Errorf("memory %d was written", i)
				}
			}
		})
	}
}

// TestRunOfManyQueuePairs: GRO puts together packets of one sender whatever their
// queue pairs: each is judged by itself, also the damaged and the short one.
func TestRunOfManyQueuePairs(t *testing.T) {
	v := newVictim(t)
	var run []byte
	for i, s := range []spec{
		{op: ib.OpRCWriteOnly, length: 4, n: 4}, {op: ib.OpUCWriteOnly, length: 4, n: 4}, {op: ib.OpRCWriteOnly, qpn: 0x123456, length: 4, n: 4},
		{op: ib.OpRCWriteOnly, psn: 1, va: 64, length: 4, n: 4}, {op: ib.OpRCAck, n: 0},
	} {
		b := v.packet(s)
		flow := ib.NewFlow(netip.AddrPortFrom(peerAddr, netio.Port), netip.AddrPortFrom(victimAddr, netio.Port))
		flow.Seal(uint16(i), b)
		run = append(run, b...)
	}
	size := ib.OpRCWriteOnly.Info().HeaderLen + 4 + ib.ICRCSize
	diff := v.changed(func() {
		v.in.in = append(v.in.in, netio.Received{
			Src: netip.AddrPortFrom(peerAddr, netio.Port), Dst: netip.AddrPortFrom(victimAddr, netio.Port), IDKnown: true, SegSize: size, Buf: run,
		})
		v.settle()
	})
	if fmt.Sprint(diff) != "map[drop_ghost_ack:1 drop_unknown_qp:1]" {
		t.Errorf("counted %v", diff)
	}
	for _, b := range [][]byte{v.rc.MR.Bytes(), v.uc.MR.Bytes(), v.rc.MR.Bytes()[64:]} {
		if !bytes.Equal(b[:4], []byte{0xee, 0xee, 0xee, 0xee}) {
			t.Errorf("a WRITE is missing: % x", b[:4])
		}
	}
	v.healthy("after the run")
}
