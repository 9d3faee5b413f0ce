package flows

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

// play adds packets in a notation of one word each, a millisecond apart: who sends
// to which queue pair (a>17: host a to queue pair 17 of the other host), opcode, PSN,
// and for READs address+length. It returns what was noted, one letter per packet.
func play(t *testing.T, tr *Tracker, words string) string {
	t.Helper()
	var notes strings.Builder
	for i, w := range strings.Fields(words) {
		var host byte
		var qp, psn, va, n uint32
		var op string
		w = strings.NewReplacer(">", " ", ":", " ", "+", " ").Replace(w)
		if got, _ := fmt.Sscanf(w, "%c %d %s %d %d %d", &host, &qp, &op, &psn, &va, &n); got < 4 {
			t.Fatalf("%q", w)
		}
		p := &Packet{At: time.Unix(0, int64(i+1)*1e6), Src: string(host), Dst: "b", Payload: 100}
		if host == 'b' {
			p.Dst = "a"
		}
		p.BTH = ib.BTH{DestQP: ib.QPN(qp), PSN: ib.PSN(psn)}
		switch op {
		case "send":
			p.BTH.Opcode = ib.OpRCSendOnly
		case "uc":
			p.BTH.Opcode = ib.OpUCSendOnly
		case "read":
			p.BTH.Opcode, p.RETH = ib.OpRCReadRequest, ib.RETH{VA: uint64(va), RKey: 5, Length: n}
		case "resp":
			p.BTH.Opcode = ib.OpRCReadResponseMiddle
		case "ack":
			p.BTH.Opcode, p.AETH.Syndrome = ib.OpRCAck, ib.AckSyndrome(31)
		case "nak":
			p.BTH.Opcode, p.AETH.Syndrome = ib.OpRCAck, ib.NAKSyndrome(ib.NAKSequence)
		case "rnr":
			p.BTH.Opcode, p.AETH.Syndrome = ib.OpRCAck, ib.RNRSyndrome(1)
		case "cnp":
			p.BTH.Opcode = ib.OpCNP
		default:
			t.Fatalf("%q", w)
		}
		n2 := tr.Add(p)
		switch {
		case n2.Again && n2.Late:
			t.Fatalf("packet %d is again and late", i)
		case n2.Again:
			notes.WriteByte('R')
		case n2.Late:
			notes.WriteByte('L')
		default:
			notes.WriteByte('.')
		}
	}
	return notes.String()
}

// A packet is sent again when its PSN was there before, out of order when only a
// higher one was; what never comes is missing.
func TestSequence(t *testing.T) {
	for _, c := range []struct {
		name, words, notes string
		again, late, miss  int
	}{
		{"in order", "a>1:send:5 a>1:send:6 a>1:send:7", "...", 0, 0, 0},
		{"once more", "a>1:send:5 a>1:send:6 a>1:send:6 a>1:send:5", "..RR", 2, 0, 0},
		{"overtaken", "a>1:send:5 a>1:send:7 a>1:send:6 a>1:send:6", "..LR", 1, 1, 0},
		{"missing", "a>1:send:5 a>1:send:9", "..", 0, 0, 3},
		{"around the circle", "a>1:send:16777214 a>1:send:16777215 a>1:send:0 a>1:send:16777215", "...R", 1, 0, 0},
		{"before the first", "a>1:send:5 a>1:send:3 a>1:send:4", ".LL", 0, 2, 0},
		{"a READ has many PSNs", "a>1:read:5:0+8192 a>1:send:7", "..", 0, 0, 0},
		{"a READ once more", "a>1:read:5:0+8192 a>1:send:7 a>1:read:5:0+8192", "..R", 1, 0, 0},
		{"the rest of a READ", "a>1:read:5:1000+8192 a>1:read:6:5096+4096 a>1:send:7", ".R.", 1, 0, 0},
		{"the next READ", "a>1:read:5:1000+8192 a>1:read:7:9192+8192 a>1:read:9:17384+8192", "...", 0, 0, 0},
		{"far behind", "a>1:send:5 a>1:send:9000 a>1:send:5", "..R", 1, 0, 8994},
		{"responses are counted apart", "a>1:send:5 a>1:resp:3 a>1:send:6 a>1:resp:4 a>1:resp:4", "....R", 1, 0, 0},
		{"UC", "a>1:uc:5 a>1:uc:7 a>1:uc:6", "..L", 0, 1, 0},
	} {
		tr := new(Tracker)
		notes := play(t, tr, c.words)
		f := tr.Flows()[0]
		if notes != c.notes || f.Again != c.again || f.Late != c.late || f.Missing != c.miss {
			t.Errorf("%s: %s, again %d, late %d, missing %d; want %s, %d, %d, %d", c.name, notes, f.Again, f.Late, f.Missing, c.notes, c.again, c.late, c.miss)
		}
	}
}

// The time to the answer is that of the request with the answer's PSN, if it was
// sent once.
func TestRoundTrip(t *testing.T) {
	for _, c := range []struct {
		name, words string
		samples     int64
		min, max    float64 // milliseconds
	}{
		{"one", "a>1:send:5 b>2:ack:5", 1, 1, 1},
		{"coalesced", "a>1:send:5 a>1:send:6 b>2:ack:6", 1, 1, 1},
		{"two", "a>1:send:5 a>1:send:6 b>2:ack:5 b>2:ack:6", 2, 2, 2},
		{"sent again", "a>1:send:5 a>1:send:5 b>2:ack:5", 0, 0, 0},
		{"a READ", "a>1:read:5:0+8192 b>2:resp:5 b>2:resp:6 b>2:resp:7", 1, 1, 1},
		{"refused", "a>1:send:5 b>2:nak:5 b>2:rnr:5", 0, 0, 0},
		{"nobody knows whose", "a>1:send:5 a>3:send:5 b>2:ack:5", 0, 0, 0},
		{"found out later", "a>1:send:5 a>3:send:5 b>2:ack:5 a>1:send:6 b>2:ack:6", 1, 1, 1},
		{"without a request", "b>2:ack:5", 0, 0, 0},
	} {
		tr := new(Tracker)
		play(t, tr, c.words)
		var got RTT
		for _, f := range tr.Flows() {
			if f.RTT != nil {
				got = *f.RTT
			}
		}
		near := func(usec, ms float64) bool { return usec >= ms*1000*0.998 && usec <= ms*1000*1.002 }
		if got.Samples != c.samples || !near(got.Min, c.min) || !near(got.Max, c.max) {
			t.Errorf("%s: %+v, want %d from %v to %v ms", c.name, got, c.samples, c.min, c.max)
		}
	}
}

// A flow has its refusals, congestion notifications and both ends' queue pairs.
func TestFlow(t *testing.T) {
	tr := new(Tracker)
	play(t, tr, "a>1:send:5 b>2:ack:5 b>2:nak:6 b>2:nak:6 b>2:rnr:6 b>2:cnp:0 a>1:send:6")
	flows := tr.Flows()
	if len(flows) != 2 {
		t.Fatalf("%d flows", len(flows))
	}
	to, from := flows[0], flows[1]
	if to.Transport != "RC" || to.SrcQP != "0x000002" || from.SrcQP != "0x000001" || to.Packets != 2 || to.Bytes != 200 || to.Seconds != 0.006 || to.Opcodes["RC_SEND_ONLY"] != 2 {
		t.Errorf("%+v", to)
	}
	if from.Transport != "RC" || from.NAKs["PSN sequence error"] != 2 || from.RNR != 1 || from.CNPs != 1 || from.Opcodes["CNP"] != 1 {
		t.Errorf("%+v", from)
	}
}

// What the connection manager connects belongs together, whatever PSNs say.
func TestConnectionManagerPairs(t *testing.T) {
	tr := new(Tracker)
	gsi := func(src, dst string, m mad.Message) {
		tr.Add(&Packet{Src: src, Dst: dst, BTH: ib.BTH{Opcode: ib.OpUDSendOnly, DestQP: ib.GSIQPN}, SrcQP: ib.GSIQPN, Message: m})
	}
	gsi("a", "b", &mad.REQ{LocalCommID: 7, LocalQPN: 2})
	gsi("b", "a", &mad.REP{RemoteCommID: 7, LocalQPN: 1})
	play(t, tr, "a>1:send:5 a>3:send:5 b>2:ack:5")
	flows := tr.Flows()
	if f := flows[2]; f.SrcQP != "0x000002" || f.RTT == nil || flows[3].RTT != nil {
		t.Errorf("%+v, %+v", f, flows[3])
	}
}

// Packets that make no sense, and those with a wrong ICRC, are counted.
func TestDamaged(t *testing.T) {
	tr := new(Tracker)
	tr.Add(&Packet{Bad: ib.BadTVer, Wrong: true, CE: true, Payload: 10})
	if f := tr.Flows()[0]; f.Malformed != 1 || f.Wrong != 1 || f.CE != 1 || f.Bytes != 0 || f.Opcodes["malformed"] != 1 {
		t.Errorf("%+v", f)
	}
}
