package cm

import (
	"testing"

	"github.com/goroce/goroce/ib/mad"
)

// The active side: IBTA 12.9, cm.c of Linux.
func TestActive(t *testing.T) {
	for _, s := range []script{
		{
			name: "connect and disconnect", rule: "IBTA 12.9; time-wait 12.9",
			steps: []step{{0, connect}, {ms, in(theirREP())}, {2 * ms, sendRTU}, {sec, disconnect}, {sec + ms, in(theirDREP())}}, until: 2 * sec,
			want: `
				0s > REQ 1001
				1ms ! REP welcome
				2ms > RTU 1001-77 ready
				1s > DREQ 1001-77 22 bye
				1.001s ! disconnected
				1.068108864s ! time-wait exit, gone`,
		},
		{
			name: "nobody answers the REQ", rule: "IBTA 12.9: Max CM Retries, then REJ with our CA GUID",
			steps: []step{{0, connect}}, until: 10 * sec,
			want: `
				0s > REQ 1001
				335.54432ms > REQ 1001
				671.08864ms > REQ 1001
				1.00663296s > REJ 1001-0 of 2: timeout 000000000000000a
				1.00663296s ! unreachable (req), gone`,
		},
		{
			name: "MRA", rule: "IBTA 12.9: Service Timeout and the way, once for each REQ",
			steps: []step{{0, connect}, {100 * ms, in(theirMRA(mad.MsgREQ))}, {200 * ms, in(theirMRA(mad.MsgREQ))}, {1300 * ms, in(theirMRA(mad.MsgREQ))}, {2 * sec, in(theirREP())}, {2 * sec, reject}},
			want: `
				0s > REQ 1001
				100ms ! MRA (req)
				1.240850688s > REQ 1001
				1.3s ! MRA (req)
				2s ! REP welcome
				2s > REJ 1001-77 of 1: consumer defined 0102`,
		},
		{
			name: "MRA for something else", rule: "IBTA 12.6.6.1",
			steps: []step{{0, connect}, {100 * ms, in(theirMRA(mad.MsgREP))}, {336 * ms, cancel}},
			want: `
				0s > REQ 1001
				335.54432ms > REQ 1001
				336ms > REJ 1001-0 of 2: timeout 000000000000000a`,
		},
		{
			name: "REP again", rule: "IBTA 12.9: RTU again; before it, MRA as Linux",
			steps: []step{
				{0, connect}, {ms, in(theirREP())}, {2 * ms, in(theirREP())}, {3 * ms, sendRTU}, {4 * ms, in(theirREP())}, {5 * ms, disconnect},
				{6 * ms, in(theirREP())}, {7 * ms, in(theirDREP())}, {8 * ms, in(theirREP())},
			}, until: sec,
			want: `
				0s > REQ 1001
				1ms ! REP welcome
				2ms > MRA 1001-77 of 1
				3ms > RTU 1001-77 ready
				4ms > RTU 1001-77 ready
				5ms > DREQ 1001-77 22 bye
				7ms ! disconnected
				74.108864ms ! time-wait exit, gone`,
		},
		{
			name: "rejected by a service", rule: "IBTA 12.6.7: local id 0",
			steps: []step{{0, connect}, {ms, in(&mad.REJ{RemoteCommID: ourID, Reason: mad.RejConsumer, PrivateData: []byte("no")})}},
			want: `
				0s > REQ 1001
				1ms ! rejected: consumer defined no, gone`,
		},
		{
			name: "stale", rule: "IBTA 12.9.8.3.1: the queue pair rests",
			steps: []step{{0, connect}, {ms, in(&mad.REJ{RemoteCommID: ourID, Reason: mad.RejStaleConn})}, {2 * ms, connect}}, until: sec,
			want: `
				0s > REQ 1001
				1ms ! rejected: stale connection
				2ms = cm: LocalQPN is 0x000011: not one of a connection in state time-wait
				68.108864ms ! time-wait exit, gone`,
		},
		{
			name: "REJ after the REP", rule: "cm_rej_handler of Linux: time-wait",
			steps: []step{{0, connect}, {ms, in(theirREP())}, {2 * ms, in(theirREJ(mad.RejTimeout))}}, until: sec,
			want: `
				0s > REQ 1001
				1ms ! REP welcome
				2ms ! rejected: timeout
				69.108864ms ! time-wait exit, gone`,
		},
		{
			name: "REJ when established", rule: "cm_rej_handler of Linux: disconnected",
			steps: []step{{0, connect}, {ms, in(theirREP())}, {2 * ms, sendRTU}, {3 * ms, in(theirREJ(mad.RejTimeout))}}, until: sec,
			want: `
				0s > REQ 1001
				1ms ! REP welcome
				2ms > RTU 1001-77 ready
				3ms ! disconnected: timeout
				70.108864ms ! time-wait exit, gone`,
		},
		{
			name: "REP for a request that was given up", rule: "REJ 6, so that the peer need not wait",
			steps: []step{{0, connect}, {ms, cancel}, {2 * ms, in(theirREP())}, {3 * ms, in(theirREP())}},
			want: `
				0s > REQ 1001
				1ms > REJ 1001-0 of 2: timeout 000000000000000a
				2ms > REJ 1001-77 of 1: invalid communication ID
				3ms > REJ 1001-77 of 1: invalid communication ID`,
		},
		{
			name: "second REP of another connection", rule: "REJ 6",
			steps: []step{
				{0, connect}, {ms, in(theirREP())},
				{2 * ms, in(&mad.REP{LocalCommID: 0x78, RemoteCommID: ourID, LocalQPN: 0x23, LocalCAGUID: theirGUID})}, {3 * ms, cancel},
			},
			want: `
				0s > REQ 1001
				1ms ! REP welcome
				2ms > REJ 1001-78 of 1: invalid communication ID
				3ms > REJ 1001-77 of 1: consumer defined`,
		},
		{
			name: "answers of a third party", rule: "messages come from the peer",
			steps: []step{
				{0, connect},
				{ms, func(b *bench) { b.from(thirdAddr, 7, theirREP()) }},
				{ms, func(b *bench) {
					b.from(thirdAddr, 7, &mad.REJ{RemoteCommID: ourID, Reason: mad.RejConsumer})
				}},
				{ms, func(b *bench) { b.from(thirdAddr, 7, theirMRA(mad.MsgREQ)) }},
				{2 * ms, in(theirREP())}, {3 * ms, sendRTU},
				{4 * ms, func(b *bench) { b.from(thirdAddr, 7, theirDREQ()) }},
				{4 * ms, func(b *bench) { b.from(thirdAddr, 7, theirREJ(mad.RejTimeout)) }},
				{5 * ms, disconnect},
				{6 * ms, func(b *bench) { b.from(thirdAddr, 7, theirDREP()) }},
				{7 * ms, in(theirDREP())},
			}, until: sec,
			want: `
				0s > REQ 1001
				2ms ! REP welcome
				3ms > RTU 1001-77 ready
				5ms > DREQ 1001-77 22 bye
				7ms ! disconnected
				74.108864ms ! time-wait exit, gone`,
		},
	} {
		s.run(t)
	}
}

// IBTA 12.9: the end of a connection.
func TestDisconnect(t *testing.T) {
	up := []step{{0, connect}, {0, in(theirREP())}, {0, sendRTU}}
	const begin = `
		0s > REQ 1001
		0s ! REP welcome
		0s > RTU 1001-77 ready
		`
	for _, s := range []script{
		{
			name: "by the peer, who repeats itself", rule: "IBTA 12.9: DREP again during time-wait and later",
			steps: append(up[:3:3], step{ms, in(theirDREQ())}, step{2 * ms, in(theirDREQ())}, step{3 * ms, disconnect}, step{sec, in(theirDREQ())}, step{sec, disconnect}),
			want: begin + `
				1ms > DREP 1001-77
				1ms ! disconnected bye
				2ms > DREP 1001-77
				68.108864ms ! time-wait exit, gone
				1s > DREP 1001-77
				1s = cm: unknown identifier`,
		},
		{
			name: "both at once", rule: "IBTA 12.9",
			steps: append(up[:3:3], step{ms, disconnect}, step{2 * ms, in(theirDREQ())}, step{3 * ms, in(theirDREP())}), until: sec,
			want: begin + `
				1ms > DREQ 1001-77 22 bye
				2ms > DREP 1001-77
				2ms ! disconnected bye
				69.108864ms ! time-wait exit, gone`,
		},
		{
			name: "nobody answers", rule: "IBTA 12.9: time-wait all the same",
			steps: append(up[:3:3], step{ms, disconnect}, step{2 * ms, disconnect}), until: 2 * sec,
			want: begin + `
				1ms > DREQ 1001-77 22 bye
				336.54432ms > DREQ 1001-77 22 bye
				672.08864ms > DREQ 1001-77 22 bye
				1.00763296s ! disconnected, timed out
				1.074741824s ! time-wait exit, gone`,
		},
		{
			name: "REJ instead of DREP", rule: "cm_rej_handler of Linux",
			steps: append(up[:3:3], step{ms, disconnect}, step{2 * ms, in(theirREJ(mad.RejInvalidCommID))}), until: sec,
			want: begin + `
				1ms > DREQ 1001-77 22 bye
				2ms ! disconnected: invalid communication ID
				69.108864ms ! time-wait exit, gone`,
		},
		{
			name: "DREQ for another queue pair", rule: "cm_dreq_handler of Linux drops it",
			steps: append(up[:3:3], step{ms, in(&mad.DREQ{LocalCommID: theirID, RemoteCommID: ourID, RemoteQPN: 0x12})}),
			want:  begin, stays: true,
		},
		{
			name: "DREQ for nothing", rule: "cm_issue_drep of Linux",
			steps: []step{{0, in(&mad.DREQ{LocalCommID: 1, RemoteCommID: 2, RemoteQPN: 3})}},
			want:  "0s > DREP 2-1",
		},
		{
			name: "cancelled", rule: "as Disconnect",
			steps: append(up[:3:3], step{ms, cancel}, step{2 * ms, cancel}, step{3 * ms, in(theirDREP())}), until: sec,
			want: begin + `
				1ms > DREQ 1001-77 22
				3ms ! disconnected
				70.108864ms ! time-wait exit, gone`,
		},
	} {
		s.run(t)
	}
}
