package cm

import (
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

func theirSIDRREQ() *mad.SIDRREQ {
	return &mad.SIDRREQ{RequestID: theirID, PKey: ib.DefaultPKey, ServiceID: testService, PrivateData: []byte("hello")}
}

func resolve(b *bench) {
	_, err := b.Resolve(b.now, theirAddr, mad.SIDRREQ{ServiceID: testService}, ResolveOptions{Timeout: sec, Retries: 2})
	b.check(err)
}

func answer(b *bench) {
	b.check(b.Answer(b.now, ourID, mad.SIDRREP{QPN: ourQPN, QKey: 0x01234567}))
}

// IBTA 12.11: service id resolution, on either side.
func TestResolve(t *testing.T) {
	theirs := &mad.SIDRREP{RequestID: ourID, ServiceID: testService, QPN: theirQPN}
	for _, s := range []script{
		{
			name: "answered", rule: "IBTA 12.11",
			steps: []step{{0, resolve}, {1500 * ms, in(theirs)}, {2 * sec, in(theirs)}}, until: 9 * sec,
			want: `
				0s > SIDR_REQ 1001
				1s > SIDR_REQ 1001
				1.5s ! SIDR_REP, gone`,
		},
		{
			name: "not answered", rule: "as often as the user said",
			steps: []step{{0, resolve}}, until: 9 * sec,
			want: `
				0s > SIDR_REQ 1001
				1s > SIDR_REQ 1001
				2s > SIDR_REQ 1001
				3s ! unreachable (sidr_req), gone`,
		},
		{
			name: "answered by somebody else, given up", rule: "messages come from the peer",
			steps: []step{{0, resolve}, {ms, func(b *bench) { b.from(thirdAddr, 7, theirs) }}, {2 * ms, cancel}}, until: 9 * sec,
			want: `0s > SIDR_REQ 1001`,
		},
		{
			name: "asked", rule: "IBTA 12.11: the answer is not repeated by itself",
			steps: []step{{0, in(theirSIDRREQ())}, {ms, in(theirSIDRREQ())}, {2 * ms, answer}, {3 * ms, answer}, {4 * ms, in(theirSIDRREQ())}, {4 * ms, func(b *bench) {
				b.check(b.Cancel(b.now, 0x1002))
			}}}, until: 9 * sec,
			want: `
				0s ! SIDR_REQ
				2ms > SIDR_REP 77: ok QP 11
				3ms = cm: unknown identifier
				4ms ! SIDR_REQ 1002
				4ms > SIDR_REP 77: rejected QP 0`,
		},
		{
			name: "asked for nothing", rule: "IBTA 12.11: status 1",
			steps: []step{{0, in(&mad.SIDRREQ{RequestID: theirID, ServiceID: 1})}},
			want:  `0s > SIDR_REP 77: service id not supported QP 0`,
		},
		{
			name: "asked, the user says nothing", rule: "four times the service timeout",
			steps: []step{{0, in(theirSIDRREQ())}}, until: 9 * sec,
			want: `
				0s ! SIDR_REQ
				1.073741824s ! dropped, gone`,
		},
	} {
		s.run(t)
	}
}

var testAlternate = mad.Path{LocalGID: ib.GIDFromAddr(ourAddr), RemoteGID: ib.GIDFromAddr(thirdAddr)}

func loadAlternate(b *bench) {
	b.check(b.LoadAlternate(b.now, ourID, mad.LAP{RemoteCMResponseTimeout: responseCode, Alternate: testAlternate}))
}

func answerAlternate(b *bench) {
	b.check(b.AnswerAlternate(b.now, ourID, mad.APR{Status: mad.APRRejected}))
}

// IBTA 12.8: alternate paths, on either side.
func TestAlternate(t *testing.T) {
	up := []step{{0, connect}, {0, in(theirREP())}, {0, sendRTU}}
	down := step{9 * sec, in(theirDREQ())}
	const begin = `
		0s > REQ 1001
		0s ! REP welcome
		0s > RTU 1001-77 ready
		`
	const end = `
		9s > DREP 1001-77
		9s ! disconnected bye
		9.067108864s ! time-wait exit, gone`
	apr := in(&mad.APR{LocalCommID: theirID, RemoteCommID: ourID})
	lap := &mad.LAP{LocalCommID: theirID, RemoteCommID: ourID, RemoteQPN: ourQPN}
	for _, s := range []script{
		{
			name: "accepted", rule: "IBTA 12.8; an APR without a LAP is nothing",
			steps: append(up[:3:3], step{ms, loadAlternate}, step{2 * ms, loadAlternate}, step{400 * ms, apr}, step{401 * ms, apr}, down), until: 10 * sec,
			want: begin + `
				1ms > LAP 1001-77 22
				2ms = cm: LoadAlternate in state established
				336.54432ms > LAP 1001-77 22
				400ms ! APR` + end,
		},
		{
			name: "not answered", rule: "the connection goes on",
			steps: append(up[:3:3], step{ms, loadAlternate}, step{400 * ms, in(theirMRA(mad.MsgOther))}, down), until: 10 * sec,
			want: begin + `
				1ms > LAP 1001-77 22
				336.54432ms > LAP 1001-77 22
				400ms ! MRA (lap)
				1.540850688s > LAP 1001-77 22
				1.876395008s ! unreachable (lap)` + end,
		},
		{
			name: "proposed by the peer, who repeats itself", rule: "IBTA 12.8: MRA, then the APR again; RTU again after it",
			steps: append(up[:3:3],
				step{ms, in(lap)}, step{2 * ms, in(lap)}, step{2 * ms, func(b *bench) { b.check(b.SendMRA(b.now, ourID, 20, nil)) }},
				step{3 * ms, answerAlternate}, step{4 * ms, answerAlternate}, step{5 * ms, in(lap)},
				step{6 * ms, func(b *bench) { b.from(theirAddr, 8, lap) }}, step{7 * ms, answerAlternate}, step{8 * ms, in(theirREP())}, down), until: 10 * sec,
			want: begin + `
				1ms ! LAP
				2ms > MRA 1001-77 of 2
				2ms > MRA 1001-77 of 2
				3ms > APR 1001-77: 3
				4ms = cm: AnswerAlternate in state established
				5ms > APR 1001-77: 3
				6ms ! LAP
				7ms > APR 1001-77: 3
				8ms > RTU 1001-77` + end,
		},
		{
			name: "proposed by the peer, not answered when the connection ends", rule: "no MRA any more",
			steps: append(up[:3:3], step{ms, in(lap)}, step{2 * ms, disconnect}, step{3 * ms, func(b *bench) { b.check(b.SendMRA(b.now, ourID, 20, nil)) }}, step{4 * ms, in(theirDREP())}), until: sec,
			want: begin + `
				1ms ! LAP
				2ms > DREQ 1001-77 22 bye
				3ms = cm: SendMRA in state DREQ sent
				4ms ! disconnected
				71.108864ms ! time-wait exit, gone`,
		},
		{
			name: "for another queue pair, before and after", rule: "IBTA 12.8",
			steps: append(up[:1:1], step{0, in(lap)}, step{0, loadAlternate}, up[1], up[2],
				step{ms, in(&mad.LAP{LocalCommID: theirID, RemoteCommID: ourID, RemoteQPN: 0x12})},
				step{ms, func(b *bench) { b.check(b.LoadAlternate(b.now, ourID, mad.LAP{})) }},
				down, step{9 * sec, in(lap)}, step{9 * sec, loadAlternate}), until: 10 * sec,
			want: `
				0s > REQ 1001
				0s = cm: LoadAlternate in state REQ sent
				0s ! REP welcome
				0s > RTU 1001-77 ready
				1ms = cm: Alternate is without GIDs: a path with both ends
				9s > DREP 1001-77
				9s ! disconnected bye
				9s = cm: LoadAlternate in state time-wait
				9.067108864s ! time-wait exit, gone`,
		},
		{
			name: "MRA for the REQ and for the LAP", rule: "IBTA 12.9: each message may have one",
			steps: []step{
				{0, connect}, {0, in(theirMRA(mad.MsgREQ))}, {0, in(theirREP())}, {0, sendRTU},
				{ms, loadAlternate}, {2 * ms, in(theirMRA(mad.MsgOther))}, {sec, apr}, down,
			}, until: 10 * sec,
			want: `
				0s > REQ 1001
				0s ! MRA (req)
				0s ! REP welcome
				0s > RTU 1001-77 ready
				1ms > LAP 1001-77 22
				2ms ! MRA (lap)
				1s ! APR` + end,
		},
		{
			name: "unanswered when the connection ends", rule: "the DREQ takes its place",
			steps: append(up[:3:3], step{ms, loadAlternate}, step{2 * ms, disconnect}, step{3 * ms, apr}, step{4 * ms, in(theirDREP())}), until: sec,
			want: begin + `
				1ms > LAP 1001-77 22
				2ms > DREQ 1001-77 22 bye
				4ms ! disconnected
				71.108864ms ! time-wait exit, gone`,
		},
	} {
		s.run(t)
	}
}

// IBTA 12.9, peer-to-peer: the side with the larger CA GUID is the active one,
// with equal ones the larger queue pair number.
func TestPeerToPeer(t *testing.T) {
	peeringAs := func(qpn ib.QPN) func(*bench) {
		return func(b *bench) {
			req := ourREQ()
			req.LocalQPN = qpn
			_, err := b.Connect(b.now, theirAddr, req, ConnectOptions{PeerToPeer: true})
			b.check(err)
		}
	}
	peering := peeringAs(ourQPN)
	loses := in(changed(func(m *mad.REQ) { m.LocalCAGUID = ourGUID - 1 }))
	for _, s := range []script{
		{
			name: "the other side is active", rule: "its REQ counts",
			steps: []step{{0, peering}, {ms, in(theirREQ())}, {2 * ms, in(theirREQ())}, {400 * ms, sendREP}, {500 * ms, in(theirRTU())}, {sec, in(theirDREQ())}}, until: 2 * sec,
			want: `
				0s > REQ 1001
				1ms ! REQ hello
				2ms > MRA 1001-77 of 0
				400ms > REP 1001-77
				500ms ! established
				1s > DREP 1001-77
				1s ! disconnected bye
				1.067108864s ! time-wait exit, gone`,
		},
		{
			name: "we are active", rule: "our REQ counts; theirs may come late",
			steps: []step{
				{0, peering}, {ms, loses},
				{2 * ms, in(&mad.REP{LocalCommID: theirID, RemoteCommID: ourID, LocalCAGUID: ourGUID - 1, LocalQPN: theirQPN})}, {3 * ms, loses}, {4 * ms, sendRTU},
				{5 * ms, loses}, {sec, in(theirDREQ())},
			}, until: 2 * sec,
			want: `
				0s > REQ 1001
				2ms ! REP
				4ms > RTU 1001-77 ready
				1s > DREP 1001-77
				1s ! disconnected bye
				1.067108864s ! time-wait exit, gone`,
		},
		{
			name: "equal GUIDs", rule: "the larger queue pair number is active",
			steps: []step{{0, peering}, {ms, in(changed(func(m *mad.REQ) { m.LocalCAGUID, m.LocalQPN = ourGUID, ourQPN-1 }))}, {2 * ms, in(changed(func(m *mad.REQ) { m.LocalCAGUID = ourGUID }))}, {3 * ms, cancel}},
			want: `
				0s > REQ 1001
				2ms ! REQ hello
				3ms > REJ 0-77 of 0: consumer defined`,
		},
		{
			name: "again after the REP, after a stale one", rule: "one unanswered request at a time",
			steps: []step{
				{0, peering}, {ms, in(&mad.REP{LocalCommID: theirID, RemoteCommID: ourID, LocalCAGUID: ourGUID - 1, LocalQPN: theirQPN})},
				{2 * ms, peeringAs(0x12)}, {3 * ms, in(&mad.REJ{RemoteCommID: 0x1002, Reason: mad.RejStaleConn})}, {4 * ms, peeringAs(0x13)},
				{5 * ms, in(changed(func(m *mad.REQ) { m.LocalCommID++; m.LocalCAGUID = ourGUID - 1; m.LocalQPN++ }))},
			}, until: 5 * ms,
			want: `
				0s > REQ 1001
				1ms ! REP
				2ms > REQ 1002
				3ms ! rejected 1002: stale connection
				4ms > REQ 1003`, stays: true,
		},
		{
			name: "accepted with another queue pair", rule: "the first one is free",
			steps: []step{
				{0, peering}, {ms, in(theirREQ())}, {2 * ms, func(b *bench) { b.check(b.SendREP(b.now, ourID, mad.REP{LocalQPN: 0x12})) }},
				{3 * ms, peeringAs(0x12)}, {3 * ms, peering},
			}, until: 3 * ms,
			want: `
				0s > REQ 1001
				1ms ! REQ hello
				2ms > REP 1001-77
				3ms = cm: LocalQPN is 0x000012: not one of a connection in state REP sent
				3ms > REQ 1002`, stays: true,
		},
		{
			name: "with ourselves", rule: "nobody yields, nobody wins",
			steps: []step{{0, peering}, {ms, in(changed(func(m *mad.REQ) { m.LocalCAGUID, m.LocalQPN = ourGUID, ourQPN }))}, {2 * ms, cancel}},
			want: `
				0s > REQ 1001
				2ms > REJ 1001-0 of 2: timeout 000000000000000a`,
		},
		{
			name: "twice for the same", rule: "one at a time",
			steps: []step{{0, peering}, {0, peeringAs(0x12)}, {ms, cancel}},
			want: `
				0s > REQ 1001
				0s = cm: service is in use
				1ms > REJ 1001-0 of 2: timeout 000000000000000a`,
		},
	} {
		s.run(t)
	}
}
