package main

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// interopOp is an operation, by whom it is requested.
type interopOp struct {
	name    string
	byPeer  bool
	kind    ib.OpKind // of the packets of its request
	answers ib.OpKind
	long    bool // the request has as many packets as the message
	read    bool // ... or the answer has
}

var (
	usSend     = &interopOp{name: "SEND", kind: ib.KindSend, answers: ib.KindAck, long: true}
	usSendImm  = &interopOp{name: "SEND_IMM", kind: ib.KindSend, answers: ib.KindAck, long: true}
	usWrite    = &interopOp{name: "WRITE", kind: ib.KindWrite, answers: ib.KindAck, long: true}
	usWriteImm = &interopOp{name: "WRITE_IMM", kind: ib.KindWrite, answers: ib.KindAck, long: true}
	usRead     = &interopOp{name: "READ", kind: ib.KindReadRequest, answers: ib.KindReadResponse, read: true}
	usFetchAdd = &interopOp{name: "FETCH_ADD", kind: ib.KindFetchAdd, answers: ib.KindAtomicAck}
	usCmpSwap  = &interopOp{name: "CMP_SWAP", kind: ib.KindCmpSwap, answers: ib.KindAtomicAck}

	itSend     = &interopOp{name: "SEND", byPeer: true, kind: ib.KindSend, answers: ib.KindAck, long: true}
	itWrite    = &interopOp{name: "WRITE", byPeer: true, kind: ib.KindWrite, answers: ib.KindAck, long: true}
	itRead     = &interopOp{name: "READ", byPeer: true, kind: ib.KindReadRequest, answers: ib.KindReadResponse, read: true}
	itFetchAdd = &interopOp{name: "FETCH_ADD", byPeer: true, kind: ib.KindFetchAdd, answers: ib.KindAtomicAck}
	itCmpSwap  = &interopOp{name: "CMP_SWAP", byPeer: true, kind: ib.KindCmpSwap, answers: ib.KindAtomicAck}
)

// by names who requests.
func (o *interopOp) by() string {
	if o.byPeer {
		return "peer"
	}
	return "us"
}

// ours and theirs are the kinds of packets that each side sends for the operation.
func (o *interopOp) ours() ib.OpKind {
	if o.byPeer {
		return o.answers
	}
	return o.kind
}

func (o *interopOp) theirs() ib.OpKind {
	if o.byPeer {
		return o.kind
	}
	return o.answers
}

// sendsMany reports whether our side sends as many packets as the message has.
func (o *interopOp) sendsMany() bool { return o.long && !o.byPeer || o.read && o.byPeer }

// hearsMany is the same of the other side.
func (o *interopOp) hearsMany() bool { return o.long && o.byPeer || o.read && !o.byPeer }

// acks reports whether our side answers with ACKs.
func (o *interopOp) acks() bool { return o.byPeer && o.answers == ib.KindAck }

// misdeed is what our side does wrong, or what happens to our packets, and what a
// peer has to make of it.
type misdeed struct {
	name, what   string
	expect, rule string
	concerns     func(*interopOp) bool
	script       func(op *interopOp, nth int, ackTimeout time.Duration) netio.Fault
	status       roce.WCStatus // how the request has to end
	orFails      bool          // another end will do, but no wrong data
	shows        string        // a counter of ours that has to move, if the operation is of several packets
	alwaysShows  bool          // ... or of one
}

// any is what concerns all operations.
func anyOp(*interopOp) bool { return true }

// part chooses the nth packet of several, or the first of one.
func part(many bool, nth int) int {
	switch {
	case nth > 0:
		return nth
	case many:
		return 3
	}
	return 1
}

// count is how many NAKs a storm has.
func count(nth, usual int) int {
	if nth > 0 {
		return nth
	}
	return usual
}

// on is a fault of our packets.
func on(action netio.Action) func(*interopOp, int, time.Duration) netio.Fault {
	return func(op *interopOp, nth int, _ time.Duration) netio.Fault {
		return netio.Fault{Match: netio.OfKind(op.ours()), Nth: part(op.sendsMany(), nth), Action: action, By: 2}
	}
}

// edit is a change of our packets.
func edit(change func([]byte)) func(*interopOp, int, time.Duration) netio.Fault {
	return func(op *interopOp, nth int, _ time.Duration) netio.Fault {
		return netio.Fault{Match: netio.OfKind(op.ours()), Nth: part(op.sendsMany(), nth), Action: netio.Edit, Edit: change}
	}
}

// movePSN adds to the PSN of a packet.
func movePSN(by int) func([]byte) {
	return func(b []byte) {
		h := ib.ParseBTH(b)
		h.PSN = h.PSN.Add(by)
		h.Put(b)
	}
}

// syndrome makes another answer of an ACK.
func syndrome(s ib.Syndrome) func([]byte) {
	return func(b []byte) { b[ib.BTHSize] = byte(s) }
}

// offRKey is where the R_Key stands, in a RETH and in an AtomicETH.
const offRKey = ib.BTHSize + 8

// withRKey matches packets of a kind that have an R_Key.
func withRKey(kind ib.OpKind) func(*ib.Packet) bool {
	return func(p *ib.Packet) bool { return p.Info().Op == kind && (p.Info().RETH || p.Info().AtomicETH) }
}

// stormRNR is how long the peer is told to wait, a code: 0.64 ms.
const stormRNR = 12

var misdeeds = []misdeed{
	{
		name: "drop", what: "the K-th packet that we send is lost",
		expect: "a NAK for the gap, if more packets follow; the message arrives once and whole", rule: "IBTA 9.7.5.2",
		concerns: anyOp, script: on(netio.Drop), shows: "rcvd_seq_err",
	},
	{
		name: "deaf", what: "the K-th packet of the peer is lost before it reaches us",
		expect: "what is repeated is answered again and not executed again", rule: "IBTA 9.4.4, 9.7.5.1, C9-105",
		concerns: anyOp, script: func(op *interopOp, nth int, _ time.Duration) netio.Fault {
			return netio.Fault{Direction: netio.Rx, Match: netio.OfKind(op.theirs()), Nth: part(op.hearsMany(), nth)}
		},
	},
	{
		name: "duplicate", what: "the K-th packet that we send arrives twice; of an atomic, too",
		expect: "it is executed once, and an atomic answered with the first result", rule: "IBTA C9-105, 9.4.5",
		concerns: anyOp, script: on(netio.Duplicate),
	},
	{
		name: "reorder", what: "the K-th packet that we send is overtaken by two",
		expect: "nothing is executed out of order", rule: "IBTA 9.7.5.2",
		concerns: (*interopOp).sendsMany, script: on(netio.Reorder),
	},
	{
		name: "corrupt", what: "the K-th packet that we send has a wrong ICRC",
		expect: "it is dropped without an answer, as if it was lost", rule: "IBTA 7.8.1, 9.6",
		concerns: anyOp, script: on(netio.Corrupt), shows: "rcvd_seq_err",
	},
	{
		name: "psn-ahead", what: "the K-th packet of our request has a PSN that is 1000 too large",
		expect: "a sequence NAK; it is not executed", rule: "IBTA 9.7.5.2",
		concerns: func(op *interopOp) bool { return !op.byPeer }, script: edit(movePSN(1000)), shows: "rcvd_seq_err", alwaysShows: true,
	},
	{
		name: "psn-behind", what: "the K-th packet of our request has a PSN that is 1000 too small",
		expect: "it is taken for a duplicate and not executed", rule: "IBTA 9.7.5.1, C9-105",
		concerns: func(op *interopOp) bool { return !op.byPeer && op.long }, script: edit(movePSN(-1000)),
	},
	{
		name: "nak", what: "our K-th ACK becomes a sequence NAK",
		expect: "the peer sends again from its PSN", rule: "IBTA 9.7.5.2.2",
		concerns: (*interopOp).acks, script: func(op *interopOp, nth int, _ time.Duration) netio.Fault {
			return netio.Fault{Match: netio.OfKind(ib.KindAck), Nth: count(nth, 1), Action: netio.Edit, Edit: syndrome(ib.NAKSyndrome(ib.NAKSequence))}
		},
		shows: "duplicate_request", alwaysShows: true,
	},
	{
		name: "rnr", what: "our first K ACKs (5) become RNR NAKs of 0.64 ms",
		expect: "the peer waits and sends again each time", rule: "IBTA 9.7.5.2.8, 9.9.2.1",
		concerns: (*interopOp).acks, script: func(op *interopOp, nth int, _ time.Duration) netio.Fault {
			return netio.Fault{Match: netio.OfKind(ib.KindAck), Nth: 1, Count: count(nth, 5), Action: netio.Edit, Edit: syndrome(ib.RNRSyndrome(stormRNR))}
		},
		shows: "duplicate_request", alwaysShows: true,
	},
	{
		name: "late-ack", what: "our K-th ACK leaves after 10 times the time that the peer waits",
		expect: "the peer sends again; the late one changes nothing", rule: "IBTA 9.7.6.1.3, 9.7.5.1.1",
		concerns: (*interopOp).acks, script: func(op *interopOp, nth int, ackTimeout time.Duration) netio.Fault {
			return netio.Fault{Match: netio.OfKind(ib.KindAck), Nth: count(nth, 1), Action: netio.Delay, Delay: 10 * ackTimeout}
		},
	},
	{
		name: "msn", what: "our K-th ACK has an MSN that is 100 too large",
		expect: "requests complete by their PSN, or the connection ends with an error; no data are wrong", rule: "IBTA 9.7.5.1, 9.7.7.1", orFails: true,
		concerns: (*interopOp).acks, script: func(op *interopOp, nth int, _ time.Duration) netio.Fault {
			return netio.Fault{Match: netio.OfKind(ib.KindAck), Nth: count(nth, 1), Action: netio.Edit, Edit: func(b []byte) {
				h := binary.BigEndian.Uint32(b[ib.BTHSize:])
				binary.BigEndian.PutUint32(b[ib.BTHSize:], h&^0xffffff|(h+100)&0xffffff)
			}}
		},
	},
	{
		name: "bad-rkey", what: "our K-th request has a wrong R_Key",
		expect: "a NAK, remote access error", rule: "IBTA 9.7.5.2.5", status: roce.WCRemAccessErr,
		concerns: func(op *interopOp) bool { return op == usWrite || op == usRead || op == usFetchAdd },
		script: func(op *interopOp, nth int, _ time.Duration) netio.Fault {
			// A repetition has it as well.
			return netio.Fault{Match: withRKey(op.kind), Nth: count(nth, 1), Count: 1000, Action: netio.Edit, Edit: func(b []byte) { b[offRKey] ^= 0xff }}
		},
	},
	{
		name: "bad-opcode", what: "the second packet of a SEND, and each after it, is one of a WRITE",
		expect: "a NAK, invalid request", rule: "IBTA 9.7.5.2.4", status: roce.WCRemInvReqErr,
		concerns: func(op *interopOp) bool { return op == usSend },
		script: func(*interopOp, int, time.Duration) netio.Fault {
			middle := func(p *ib.Packet) bool { return p.Opcode() == ib.OpRCSendMiddle }
			return netio.Fault{Match: middle, Nth: 1, Count: 1000, Action: netio.Edit, Edit: func(b []byte) { b[0] = byte(ib.OpRCWriteMiddle) }}
		},
	},
}

// misdeedList is the part of the help.
func misdeedList() string {
	var b strings.Builder
	for _, m := range misdeeds {
		fmt.Fprintf(&b, "  %-10s  %s\n", m.name, m.what)
	}
	return b.String()
}
