package hostile

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// drop is a way to be dropped: packets of which the last moves exactly the counters
// in want, by one each.
type drop struct {
	name    string
	want    string
	from    netip.Addr // not valid: the peer
	raw     bool       // the ICRC is left as it is
	before  func(v *victim)
	packets func(v *victim) [][]byte
}

// bytesOf returns a packet of given bytes.
func bytesOf(n int, b ...byte) func(*victim) [][]byte {
	return func(*victim) [][]byte { return [][]byte{append(b, make([]byte, n-len(b))...)} }
}

// edited makes the packet of a spec and changes it.
func edited(s spec, edit func(b []byte) []byte) func(*victim) [][]byte {
	return func(v *victim) [][]byte { return [][]byte{edit(v.packet(s))} }
}

// posted posts a request of the victim that nobody answers.
func posted(op roce.WROpcode, n int) func(v *victim) {
	return func(v *victim) {
		v.in.mute = true
		must(v.t, v.rc.QP.PostSend(roce.SendWR{ID: 3, Opcode: op, SGE: []roce.SGE{v.rc.MR.SGE(0, n)}, RemoteAddr: v.rcPeer.MR.Addr(), RKey: v.rcPeer.MR.RKey()}))
		v.settle()
	}
}

// toVictim makes a response whose PSN is that of the victim's first request plus
// the psn of s.
func toVictim(s spec) func(*victim) [][]byte {
	return func(v *victim) [][]byte { return [][]byte{v.response(s)} }
}

// response makes a response to the victim's requests: s.psn counts from the first that
// is not answered.
func (v *victim) response(s spec) []byte {
	b := v.packet(s)
	psn := v.rc.QP.PSN().Add(v.asked + s.psn)
	b[9], b[10], b[11] = byte(psn>>16), byte(psn>>8), byte(psn)
	return b
}

// to keeps what a spec says and sends it to another queue pair.
func to(end func(v *victim) *rocetest.Endpoint, s spec) func(*victim) [][]byte {
	return func(v *victim) [][]byte {
		s := s
		s.qpn = end(v).QP.Num()
		return [][]byte{v.packet(s)}
	}
}

// idle makes a queue pair that is connected to nobody.
func idle(v *victim) *rocetest.Endpoint {
	return rocetest.New(v.t, v.dev, rocetest.Options{})
}

// inErr moves the attacked queue pair to the error state.
func inErr(v *victim) {
	must(v.t, v.rc.QP.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState))
}

func rightsOf(access roce.Access) func(v *victim) {
	return func(v *victim) {
		for _, e := range []*rocetest.Endpoint{v.rc, v.uc} {
			must(v.t, e.QP.Modify(&roce.Attr{State: roce.StateRTS, Access: access}, roce.MaskState|roce.MaskAccess))
		}
	}
}

func receives(e func(v *victim) *rocetest.Endpoint, n int) func(v *victim) {
	return func(v *victim) {
		end := e(v)
		must(v.t, end.QP.PostRecv(roce.RecvWR{ID: 1, SGE: []roce.SGE{end.MR.SGE(0, n)}}))
	}
}

func ofUD(v *victim) *rocetest.Endpoint { return v.ud }
func ofUC(v *victim) *rocetest.Endpoint { return v.uc }
func ofRC(v *victim) *rocetest.Endpoint { return v.rc }

var dropTable = []drop{
	{name: "empty datagram", want: "drop_too_short", packets: bytesOf(0)},
	{name: "15 bytes", want: "drop_too_short", packets: bytesOf(15, 4)},
	{name: "65508 bytes", want: "drop_too_long", packets: bytesOf(65508, 4)},
	{name: "reserved opcode", want: "drop_unknown_opcode", packets: bytesOf(40, 0x1f)},
	{name: "transport version 1", want: "drop_bad_transport_version", packets: edited(spec{op: ib.OpRCSendOnly}, func(b []byte) []byte { b[1] |= 1; return b })},
	{name: "half a RETH", want: "drop_header_too_short", packets: edited(spec{op: ib.OpRCWriteOnly}, func(b []byte) []byte { return b[:24] })},
	{name: "pad without payload", want: "drop_bad_pad_count", packets: edited(spec{op: ib.OpRCSendOnly}, func(b []byte) []byte { b[1] |= 0x30; return b })},
	{name: "payload in a READ request", want: "drop_unexpected_payload", packets: edited(spec{op: ib.OpRCReadRequest}, func(b []byte) []byte { return append(b, 0, 0, 0, 0) })},
	{name: "ATOMIC_WRITE of nothing", want: "drop_bad_payload_length", packets: one(spec{op: ib.OpRCAtomicWrite})},
	{name: "queue pair 0", want: "drop_reserved_QPN", packets: edited(spec{op: ib.OpRCSendOnly}, func(b []byte) []byte { b[5], b[6], b[7] = 0, 0, 0; return b })},
	{name: "RC to multicast", want: "drop_multicast_and_not_UD", packets: one(spec{op: ib.OpRCSendOnly, qpn: ib.MulticastQPN})},

	{name: "no such queue pair", want: "drop_unknown_qp", packets: one(spec{op: ib.OpRCSendOnly, qpn: 0x123456})},
	{name: "CNP to no queue pair", want: "drop_unknown_qp", packets: one(spec{op: ib.OpCNP, qpn: 0x123456, n: 16})},
	{name: "GSI that nobody has opened", want: "drop_unknown_qp", packets: one(spec{op: ib.OpUDSendOnly, qpn: 1, n: 256})},
	{name: "group that nobody has joined", want: "drop_unknown_qp", packets: one(spec{op: ib.OpUDSendOnly, qpn: ib.MulticastQPN})},
	{name: "stranger", want: "drop_source_address", from: stranger, packets: one(spec{op: ib.OpRCSendOnly})},
	{name: "queue pair without a peer", want: "drop_qp_state", packets: to(idle, spec{op: ib.OpRCSendOnly})},
	{name: "wrong ICRC", want: "drop_icrc", raw: true, packets: one(spec{op: ib.OpRCSendOnly})},
	{name: "queue pair in error", want: "drop_qp_state", before: inErr, packets: one(spec{op: ib.OpRCSendOnly})},
	{name: "P_Key", want: "drop_pkey", packets: one(spec{op: ib.OpRCSendOnly, pkey: 0x8001})},
	{name: "UC to RC", want: "drop_transport", packets: to(ofRC, spec{op: ib.OpUCSendOnly})},
	{name: "XRC to RC", want: "drop_transport", packets: to(ofRC, spec{op: ib.OpXRCSendOnly})},
	{name: "RC to UD", want: "drop_transport", packets: to(ofUD, spec{op: ib.OpRCSendOnly})},
	{name: "CNP", want: "rp_cnp_handled", packets: cnpTo(ofRC)},
	{name: "CNP from where no datagram went", want: "drop_source_address", from: stranger, packets: cnpTo(ofUD)},

	{name: "ACK before anything was sent", want: "drop_ghost_ack", packets: toVictim(spec{op: ib.OpRCAck})},
	{name: "ACK of what was not sent yet", want: "drop_ghost_ack", before: posted(roce.WRWrite, 8), packets: toVictim(spec{op: ib.OpRCAck, psn: 1})},
	{name: "ACK of the past", want: "drop_ghost_ack", before: posted(roce.WRWrite, 8), packets: toVictim(spec{op: ib.OpRCAck, psn: -1})},
	{name: "READ response without a READ", want: "drop_bad_response", before: posted(roce.WRWrite, 8), packets: toVictim(spec{op: ib.OpRCReadResponseOnly, n: 8})},
	{name: "atomic answer without an atomic", want: "drop_bad_response", before: posted(roce.WRWrite, 8), packets: toVictim(spec{op: ib.OpRCAtomicAck})},
	{name: "READ response that has come", want: "drop_duplicate", before: posted(roce.WRRead, 2048),
		packets: func(v *victim) [][]byte {
			first := v.response(spec{op: ib.OpRCReadResponseFirst, n: 1024})
			return [][]byte{first, append([]byte(nil), first...)}
		}},
	{name: "acknowledgement of a reserved kind", want: "drop_bad_response", before: posted(roce.WRWrite, 8), packets: toVictim(spec{op: ib.OpRCAck, syndrome: 0x40})},

	{name: "behind a gap that was NAKed, too far to be kept", want: "drop_after_nak", packets: one(spec{op: ib.OpRCSendOnly, psn: 3}, spec{op: ib.OpRCSendOnly, psn: 2000})},
	{name: "duplicate READ whose resource is gone", want: "drop_no_resource duplicate_request", packets: one(spec{op: ib.OpRCReadRequest, psn: -5, length: 8})},
	{name: "duplicate of a READ that never was one", want: "drop_duplicate duplicate_request",
		packets: one(spec{op: ib.OpRCReadRequest, length: 8}, spec{op: ib.OpRCSendOnly, psn: 0})},
	{name: "request to migrate with no other path", want: "drop_mig_req", before: armed, packets: one(spec{op: ib.OpRCSendOnly})},

	{name: "UC: rest of a message", want: "drop_broken_message", packets: one(spec{op: ib.OpUCSendLast, n: 4})},
	{name: "UC: no receive", want: "drop_no_receive", packets: one(spec{op: ib.OpUCSendOnly, n: 4})},
	{name: "UC: no receive for immediate data", want: "drop_no_receive", packets: one(spec{op: ib.OpUCWriteOnlyImm, length: 4, n: 4})},
	{name: "UC: longer than the receive", want: "resp_local_length_error", before: receives(ofUC, 2), packets: one(spec{op: ib.OpUCSendOnly, n: 4})},
	{name: "UC: longer than the path MTU", want: "resp_remote_invalid_request", packets: one(spec{op: ib.OpUCSendOnly, n: 1025})},
	{name: "UC: no right to write", want: "resp_remote_invalid_request", before: rightsOf(0), packets: one(spec{op: ib.OpUCWriteOnly, length: 4, n: 4})},
	{name: "UC: no such key", want: "resp_remote_access_errors", packets: one(spec{op: ib.OpUCWriteOnly, rkey: 0xffffffff, length: 4, n: 4})},
	{name: "UC: other length than said", want: "resp_remote_invalid_request", packets: one(spec{op: ib.OpUCWriteOnly, length: 5, n: 4})},
	{name: "UD: Q_Key", want: "drop_qkey", from: stranger, packets: one(spec{op: ib.OpUDSendOnly, qkey: 0x12, n: 4})},
	{name: "UD: no receive", want: "drop_no_receive", from: stranger, packets: one(spec{op: ib.OpUDSendOnly, n: 4})},
	{name: "UD: longer than the receive", want: "resp_local_length_error", before: receives(ofUD, 43), packets: one(spec{op: ib.OpUDSendOnly, n: 4})},
	{name: "UD: longer than any path MTU", want: "resp_remote_invalid_request", packets: one(spec{op: ib.OpUDSendOnly, n: 4097})},

	{name: "not allowed", want: "drop_not_allowed", from: netip.MustParseAddr("192.0.2.1"), packets: one(spec{op: ib.OpUDSendOnly, n: 4})},
}

// cnpTo makes a CNP to a queue pair.
func cnpTo(of func(*victim) *rocetest.Endpoint) func(v *victim) [][]byte {
	return func(v *victim) [][]byte {
		b := make([]byte, ib.CNPSize)
		ib.PutCNP(b, of(v).QP.Num())
		return [][]byte{b}
	}
}

// armed gives the attacked queue pair an alternate path to elsewhere.
func armed(v *victim) {
	must(v.t, v.rc.QP.Modify(&roce.Attr{State: roce.StateRTS, AltAV: roce.AddressVector{DGID: ib.GIDFromAddr(v.at(stranger)), HopLimit: 64}, AltPortNum: 1, PathMigState: roce.MigRearm},
		roce.MaskState|roce.MaskAltPath|roce.MaskPathMigState))
	v.attack(peerAddr, v.packet(spec{op: ib.OpRCAck, mig: true})) // the peer has rearmed as well
}

// elsewhere are the reasons that no single packet to a device of this package can
// give, and the test that covers each.
var elsewhere = map[string]string{
	"drop_ip_id":       "TestForgedIdentification",
	"drop_cq_overflow": "a completion: roce, TestCQOverflow",
	"drop_event":       "an event: TestEventsAreBounded",
	"drop_mad_format":  "roce, TestGSIDrops",
	"drop_mad_class":   "roce, TestGSIDrops",
	"drop_mad_send":    "roce, TestGSIFull",
	"drop_log":         "a record: roce, TestNotesAreBounded",
	"drop_rate_change": "roce, TestRateChangesAreBounded",
}

// TestDropsAreCounted: each packet that is dropped moves exactly the counter of its
// reason, and there is a packet for each reason.
func TestDropsAreCounted(t *testing.T) {
	covered := map[string]bool{}
	for _, d := range dropTable {
		overBoth(t, d.name, func(t *testing.T, v *victim) {
			if d.before != nil {
				d.before(v)
			}
			if !d.from.IsValid() {
				d.from = peerAddr
			}
			list := d.packets(v)
			for i, b := range list {
				if !d.raw {
					v.seal(d.from, b)
				}
				if i < len(list)-1 {
					v.put(d.from, b)
				}
			}
			diff := v.changed(func() { v.put(d.from, list[len(list)-1]) })
			want := map[string]uint64{}
			for _, name := range strings.Fields(d.want) {
				want[name] = 1
				covered[name] = true
			}
			if fmt.Sprint(diff) != fmt.Sprint(want) {
				t.Errorf("counted %v, want %v", diff, want)
			}
			v.in.mute = false
			v.healthy("after it")
		})
	}
	for name := range newVictim(t).dev.Counters() {
		if strings.HasPrefix(name, "drop_") && !covered[name] && elsewhere[name] == "" {
			t.Errorf("no packet of the table is dropped as %s: add one to drops_test.go, or say in elsewhere which test has it", name)
		}
	}
}

// TestForgedIdentification: where the Identification is recovered from the ICRC, a
// packet with one that its host would not send is dropped, as is one in 65536 of all
// damaged packets otherwise (docs/decisions/0002).
func TestForgedIdentification(t *testing.T) {
	be, err := netio.NewFabric().Open(netip.AddrPortFrom(victimAddr, netio.Port))
	must(t, err)
	in := &injector{Backend: be, noID: true}
	d, err := roce.Open(roce.Config{Backend: in, Manual: true})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	v := &victim{t: t, now: time.Second, dev: d, in: in}
	v.ud = rocetest.New(t, d, rocetest.Options{QP: roce.QPConfig{Type: roce.UD}})
	v.rc = v.ud
	must(t, v.ud.QP.Activate(victimQKey))
	flow := ib.NewFlow(netip.AddrPortFrom(peerAddr, netio.Port), netip.AddrPortFrom(victimAddr, netio.Port))
	for i := range 200 {
		b := v.packet(spec{op: ib.OpUDSendOnly, n: 4})
		flow.Seal(uint16(i%8), b)
		v.put(peerAddr, b)
	}
	b := v.packet(spec{op: ib.OpUDSendOnly, n: 4})
	flow.Seal(0xabcd, b)
	if diff := v.changed(func() { v.put(peerAddr, b) }); fmt.Sprint(diff) != "map[drop_ip_id:1]" {
		t.Errorf("counted %v", diff)
	}
}

// TestEventsAreBounded: events that nobody fetches are kept up to a bound, and
// counted beyond.
func TestEventsAreBounded(t *testing.T) {
	v := newVictim(t)
	srq, err := v.rc.PD.CreateSRQ(roce.SRQConfig{})
	must(t, err)
	q, err := v.rc.PD.CreateQP(roce.QPConfig{SendCQ: v.rc.CQ, SRQ: srq})
	must(t, err)
	for range 5000 {
		must(t, q.Modify(&roce.Attr{State: roce.StateInit, PortNum: 1}, roce.MaskState|roce.MaskPKeyIndex|roce.MaskPort|roce.MaskAccess))
		must(t, q.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState)) // tells that no receive follows
		must(t, q.Modify(&roce.Attr{State: roce.StateReset}, roce.MaskState))
	}
	if n := v.dev.Counters()["drop_event"]; n == 0 || n >= 5000 {
		t.Errorf("drop_event is %d after 5000 events", n)
	}
}
