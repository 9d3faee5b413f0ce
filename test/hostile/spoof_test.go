package hostile

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
)

// spoof is an injected packet, repeated, while a request of 4 packets is under way.
type spoof struct {
	name  string
	needs string // what the attacker has to know besides the addresses
	from  netip.Addr
	op    roce.WROpcode // the request; the zero value is WRWrite
	// packet is the ith to be injected; a response counts PSNs from the request's first.
	packet func(v *victim, i int) []byte
	// sent is the most packets that the victim sends because of all of them, status
	// how the request ends when the peer is heard again, and forged says that its
	// data is not the peer's.
	sent   int
	status roce.WCStatus
	forged bool
	state  roce.State // of the queue pair in the end
}

const (
	spoofed  = 1000 // times each packet is injected
	spoofLen = 4096 // of the request: 4 packets
)

func answer(s spec) func(*victim, int) []byte {
	return func(v *victim, _ int) []byte { return v.response(s) }
}

func ask(s spec) func(*victim, int) []byte {
	return func(v *victim, _ int) []byte { return v.packet(s) }
}

// readData are the responses to the READ, one after the other.
func readData(v *victim, i int) []byte {
	op := [...]ib.Opcode{ib.OpRCReadResponseFirst, ib.OpRCReadResponseMiddle, ib.OpRCReadResponseMiddle, ib.OpRCReadResponseLast}[i%4]
	return v.response(spec{op: op, psn: i % 4, n: 1024})
}

// selectiveNAK says that all but the first packet have come (docs/selective-repeat.md).
func selectiveNAK(v *victim, _ int) []byte {
	b := v.response(spec{op: ib.OpRCAtomicAck, syndrome: seqNAK})
	b[8] |= 0x40
	ib.AtomicAckETH(^uint64(0)).Put(b[ib.BTHSize+ib.AETHSize:])
	return b
}

var (
	fatalNAK = ib.NAKSyndrome(ib.NAKInvalidRequest)
	seqNAK   = ib.NAKSyndrome(ib.NAKSequence)
	longRNR  = ib.RNRSyndrome(0) // 655 ms
	credits  = ib.AckSyndrome(ib.CreditsInvalid)
)

var spoofs = []spoof{
	// Without knowing what is random, nothing happens.
	{name: "NAK from another address", needs: "QPN, PSN in the window", from: stranger, packet: answer(spec{op: ib.OpRCAck, syndrome: fatalNAK})},
	{name: "NAK to another queue pair", needs: "PSN", packet: answer(spec{op: ib.OpRCAck, qpn: 0x123456, syndrome: fatalNAK})},
	{name: "NAK outside of the window", needs: "QPN", packet: answer(spec{op: ib.OpRCAck, psn: 5, syndrome: fatalNAK})},
	{name: "ACK outside of the window", needs: "QPN", packet: answer(spec{op: ib.OpRCAck, psn: -1, syndrome: credits})},
	{name: "READ response without a READ", needs: "QPN, PSN", packet: answer(spec{op: ib.OpRCReadResponseOnly, n: 4})},
	{name: "request with a PSN far off", needs: "QPN", packet: ask(spec{op: ib.OpRCWriteOnly, psn: 1 << 22, length: 4, n: 4, rkey: 1}), sent: spoofed}, // at most one NAK for each
	{name: "request with another P_Key", needs: "QPN, PSN", packet: ask(spec{op: ib.OpRCWriteOnly, pkey: 0x1234, length: 4, n: 4})},
	{name: "READ response outside of the window", needs: "QPN", op: roce.WRRead, packet: answer(spec{op: ib.OpRCReadResponseMiddle, psn: 9, n: 1024})},

	// Some of it is known: a bounded delay.
	{name: "CNP", needs: "QPN", packet: func(v *victim, _ int) []byte {
		b := make([]byte, ib.CNPSize)
		ib.PutCNP(b, v.rc.QP.Num())
		return b
	}},
	{name: "sequence NAK in the window", needs: "QPN, PSN in the window", packet: answer(spec{op: ib.OpRCAck, syndrome: seqNAK}), sent: 4},
	{name: "selective NAK in the window", needs: "QPN, PSN in the window", packet: selectiveNAK, sent: 4},
	{name: "RNR NAK in the window", needs: "QPN, PSN in the window", packet: answer(spec{op: ib.OpRCAck, syndrome: longRNR})},
	{name: "ACK of a READ", needs: "QPN, PSN in the window", op: roce.WRRead, packet: answer(spec{op: ib.OpRCAck, psn: 3, syndrome: credits}), sent: 1},
	{name: "duplicate request", needs: "QPN, PSN of the last 8 million", packet: ask(spec{op: ib.OpRCWriteOnly, psn: -1, length: 4, n: 4, rkey: 1}), sent: spoofed},

	// All of it is known: what a protocol without authentication cannot refuse.
	{name: "fatal NAK in the window", needs: "QPN, PSN in the window", packet: answer(spec{op: ib.OpRCAck, syndrome: fatalNAK}), status: roce.WCRemInvReqErr, state: roce.StateErr},
	{name: "ACK in the window", needs: "QPN, PSN in the window", packet: answer(spec{op: ib.OpRCAck, psn: 3, syndrome: credits}), forged: true},
	{name: "request with the expected PSN and no key", needs: "QPN, exact PSN", packet: ask(spec{op: ib.OpRCWriteOnly, length: 4, n: 4, rkey: 1}),
		sent: 1, status: roce.WCWRFlushErr, state: roce.StateErr},
	{name: "READ response of a wrong length", needs: "QPN, exact PSN", op: roce.WRRead, packet: answer(spec{op: ib.OpRCReadResponseFirst, n: 1020}),
		status: roce.WCLocLenErr, state: roce.StateErr},
	{name: "READ responses", needs: "QPN, exact PSN", op: roce.WRRead, packet: readData, forged: true},
}

// TestSpoofedPackets: what packets in the peer's name cost at most. Each is injected
// a thousand times into a connection with a request under way; the rest of the
// device goes on in any case.
func TestSpoofedPackets(t *testing.T) {
	for _, s := range spoofs {
		overBoth(t, s.name, func(t *testing.T, v *victim) {
			v.acquaint()
			fill(v.rcPeer.MR.Bytes())
			v.rcPeer.MR.Bytes()[0] ^= 0xff
			if !s.from.IsValid() {
				s.from = peerAddr
			}
			v.in.mute = true
			must(t, v.rc.QP.PostSend(roce.SendWR{ID: 3, Opcode: s.op, Flags: roce.Signaled, SGE: []roce.SGE{v.rc.MR.SGE(0, spoofLen)},
				RemoteAddr: v.rcPeer.MR.Addr(), RKey: v.rcPeer.MR.RKey()}))
			v.settle()
			v.in.sent = nil
			for i := range spoofed {
				v.attack(s.from, s.packet(v, i))
			}
			if n := len(v.in.sent); n > s.sent {
				t.Errorf("the victim has sent %d packets, at most %d are needed", n, s.sent)
			}
			v.in.mute = false
			wc := v.complete()
			if wc.Status != s.status {
				t.Fatalf("the request ended with %v, want %v", wc.Status, s.status)
			}
			if s.state == 0 {
				s.state = roce.StateRTS
			}
			if got := v.rc.QP.State(); got != s.state {
				t.Errorf("the queue pair is in %v, want %v", got, s.state)
			}
			if same := bytes.Equal(v.rc.MR.Bytes()[:spoofLen], v.rcPeer.MR.Bytes()[:spoofLen]); s.status == roce.WCSuccess && same == s.forged {
				t.Errorf("the data is the peer's: %v", same)
			}
			v.healthy("after it")
		})
	}
}

// acquaint lets the attacked connection find out that its peer is one of goroce, by a
// WRITE of one packet.
func (v *victim) acquaint() {
	must(v.t, v.rc.QP.PostSend(roce.SendWR{ID: 2, Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{v.rc.MR.SGE(0, 8)},
		RemoteAddr: v.rcPeer.MR.Addr(), RKey: v.rcPeer.MR.RKey()}))
	if wc := v.complete(); wc.Status != roce.WCSuccess {
		v.t.Fatalf("the first request ended with %v", wc.Status)
	}
	v.asked = 1
}

// complete lets time pass until the attacked request has ended.
func (v *victim) complete() roce.WC {
	v.t.Helper()
	var wc [1]roce.WC
	for range 1000 {
		v.settle()
		if n, err := v.rc.CQ.Poll(wc[:]); err != nil {
			v.t.Fatal(err)
		} else if n == 1 {
			return wc[0]
		}
		v.now += 10 * time.Millisecond
	}
	v.t.Fatal("the request does not end")
	return wc[0]
}

// TestReplayedRead: a repeated READ request is answered to the peer, not to who has
// sent it, and only if it names the key, the address and the length of one of the
// last READs: all that a replay has over a guess is that it knows them.
func TestReplayedRead(t *testing.T) {
	for _, c := range []struct {
		name string
		s    spec
		want int // packets that answer it
	}{
		{"the same", spec{op: ib.OpRCReadRequest, length: 4096}, 4},
		{"the rest", spec{op: ib.OpRCReadRequest, psn: 3, va: 3072, length: 1024}, 1},
		{"another key", spec{op: ib.OpRCReadRequest, length: 4096, rkey: 1}, 0},
		{"another address", spec{op: ib.OpRCReadRequest, va: 8, length: 4096}, 0},
		{"longer", spec{op: ib.OpRCReadRequest, length: 8192}, 0},
	} {
		v := newVictim(t)
		v.in.mute = true
		v.attack(peerAddr, v.packet(spec{op: ib.OpRCReadRequest, length: 4096}))
		v.in.sent = nil
		v.attack(peerAddr, v.packet(c.s))
		if n := len(v.in.sent); n != c.want {
			t.Errorf("%s: %d packets, want %d", c.name, n, c.want)
		}
	}
}
