package cm

import (
	"fmt"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

// changed returns a REQ of the peer that differs in something.
func changed(change func(*mad.REQ)) *mad.REQ {
	m := theirREQ()
	change(m)
	return m
}

// The passive side: IBTA 12.9, cm.c of Linux.
func TestPassive(t *testing.T) {
	for _, s := range []script{
		{
			name: "accept and be disconnected", rule: "IBTA 12.9",
			steps: []step{{0, in(theirREQ())}, {ms, sendREP}, {2 * ms, in(theirRTU())}, {3 * ms, in(theirRTU())}, {sec, in(theirDREQ())}}, until: 2 * sec,
			want: `
				0s ! REQ hello
				1ms > REP 1001-77
				2ms ! established
				1s > DREP 1001-77
				1s ! disconnected bye
				1.067108864s ! time-wait exit, gone`,
		},
		{
			name: "REQ again", rule: "IBTA 12.9: MRA, then REP at once, then nothing",
			steps: []step{
				{0, in(theirREQ())}, {100 * ms, in(theirREQ())}, {200 * ms, sendREP}, {300 * ms, in(theirREQ())}, {400 * ms, in(theirRTU())},
				{500 * ms, in(theirREQ())}, {600 * ms, disconnect}, {601 * ms, in(theirDREP())}, {602 * ms, in(theirREQ())},
			}, until: sec,
			want: `
				0s ! REQ hello
				100ms > MRA 1001-77 of 0
				200ms > REP 1001-77
				300ms > REP 1001-77
				400ms ! established
				600ms > DREQ 1001-77 22 bye
				601ms ! disconnected
				602ms > REJ 0-77 of 0: stale connection
				668.108864ms ! time-wait exit, gone`,
		},
		{
			name: "nobody answers the REP", rule: "IBTA 12.9: as often as the REQ says, then REJ",
			steps: []step{{0, in(theirREQ())}, {0, sendREP}}, until: 10 * sec,
			want: `
				0s ! REQ hello
				0s > REP 1001-77
				335.54432ms > REP 1001-77
				671.08864ms > REP 1001-77
				1.00663296s > REJ 1001-77 of 2: timeout 000000000000000a
				1.00663296s ! unreachable (rep), gone`,
		},
		{
			name: "MRA for the REP", rule: "IBTA 12.9",
			steps: []step{{0, in(theirREQ())}, {0, sendREP}, {100 * ms, in(theirMRA(mad.MsgREP))}, {sec, in(theirRTU())}, {sec, in(theirDREQ())}}, until: 2 * sec,
			want: `
				0s ! REQ hello
				0s > REP 1001-77
				100ms ! MRA (rep)
				1s ! established
				1s > DREP 1001-77
				1s ! disconnected bye
				1.067108864s ! time-wait exit, gone`,
		},
		{
			name: "the RTU is lost, data come", rule: "IBTA 12.9: communication established",
			steps: []step{
				{0, established}, {0, in(theirREQ())}, {0, established}, {0, sendREP}, {ms, established}, {2 * ms, established}, {3 * ms, in(theirRTU())},
				{4 * ms, in(theirDREQ())}, {5 * ms, established},
			}, until: sec,
			want: `
				0s = cm: unknown identifier
				0s ! REQ hello
				0s = cm: Established in state REQ received
				0s > REP 1001-77
				1ms ! established
				4ms > DREP 1001-77
				4ms ! disconnected bye
				5ms = cm: Established in state time-wait
				71.108864ms ! time-wait exit, gone`,
		},
		{
			name: "the RTU is lost, DREQ comes", rule: "cm_dreq_handler of Linux",
			steps: []step{{0, in(theirREQ())}, {0, sendREP}, {ms, in(theirDREQ())}}, until: sec,
			want: `
				0s ! REQ hello
				0s > REP 1001-77
				1ms > DREP 1001-77
				1ms ! disconnected bye
				68.108864ms ! time-wait exit, gone`,
		},
		{
			name: "the peer gives up", rule: "cm_acquire_rejected_id of Linux: a REJ for a timeout names the CA GUID",
			steps: []step{{0, in(theirREQ())}, {ms, in(&mad.REJ{LocalCommID: theirID, Reason: mad.RejTimeout, ARI: []byte{7: theirGUID}})}},
			want: `
				0s ! REQ hello
				1ms ! rejected: timeout, gone`,
		},
		{
			name: "a REJ with another GUID", rule: "cm_acquire_rejected_id of Linux",
			steps: []step{
				{0, in(theirREQ())}, {ms, in(&mad.REJ{LocalCommID: theirID, Reason: mad.RejTimeout, ARI: []byte{7: 0xcc}})},
				{ms, in(&mad.REJ{LocalCommID: theirID, Reason: mad.RejTimeout, ARI: []byte{7}})},
				{ms, in(&mad.REJ{LocalCommID: theirID, Reason: mad.RejConsumer, ARI: []byte{7: theirGUID}})}, {2 * ms, reject},
			},
			want: `
				0s ! REQ hello
				2ms > REJ 0-77 of 0: consumer defined 0102`,
		},
		{
			name: "the REP is rejected", rule: "cm_rej_handler of Linux: idle",
			steps: []step{{0, in(theirREQ())}, {0, sendREP}, {ms, in(theirREJ(mad.RejConsumer))}},
			want: `
				0s ! REQ hello
				0s > REP 1001-77
				1ms ! rejected: consumer defined, gone`,
		},
		{
			name: "the REP is stale", rule: "IBTA 12.9.8.3.1",
			steps: []step{{0, in(theirREQ())}, {0, sendREP}, {ms, in(theirREJ(mad.RejStaleConn))}}, until: sec,
			want: `
				0s ! REQ hello
				0s > REP 1001-77
				1ms ! rejected: stale connection
				68.108864ms ! time-wait exit, gone`,
		},
		{
			name: "the user says nothing, the peer stops asking", rule: "four times the pause between its requests",
			steps: []step{{0, in(theirREQ())}, {sec, in(theirREQ())}}, until: 10 * sec,
			want: `
				0s ! REQ hello
				1s > MRA 1001-77 of 0
				3.415919104s ! dropped, gone`,
		},
		{
			name: "reject what was accepted", rule: "ib_send_cm_rej of Linux: time-wait",
			steps: []step{{0, in(theirREQ())}, {0, sendREP}, {ms, reject}, {2 * ms, reject}}, until: sec,
			want: `
				0s ! REQ hello
				0s > REP 1001-77
				1ms > REJ 1001-77 of 2: consumer defined 0102
				2ms = cm: Reject in state time-wait
				68.108864ms ! time-wait exit, gone`,
		},
		{
			name: "cancel at each stage", rule: "ib_destroy_cm_id of Linux",
			steps: []step{
				{0, in(theirREQ())}, {0, cancel}, {0, cancel},
				{ms, in(theirREQ())}, {ms, func(b *bench) { b.check(b.SendREP(b.now, 0x1002, mad.REP{LocalQPN: ourQPN})) }},
				{ms, func(b *bench) { b.check(b.Cancel(b.now, 0x1002)) }},
			}, until: sec,
			want: `
				0s ! REQ hello
				0s > REJ 0-77 of 0: consumer defined
				0s = cm: unknown identifier
				1ms ! REQ 1002 hello
				1ms > REP 1002-77
				1ms > REJ 1002-77 of 2: consumer defined
				68.108864ms ! time-wait exit 1002, gone`,
		},
		{
			name: "MRA by hand", rule: "ib_send_cm_mra of Linux",
			steps: []step{
				{0, in(theirREQ())}, {0, func(b *bench) { b.check(b.SendMRA(b.now, ourID, 20, nil)) }}, {0, sendREP},
				{0, func(b *bench) { b.check(b.SendMRA(b.now, ourID, 20, nil)) }}, {ms, in(theirREJ(mad.RejConsumer))},
			},
			want: `
				0s ! REQ hello
				0s > MRA 1001-77 of 0
				0s > REP 1001-77
				0s = cm: SendMRA in state REP sent
				1ms ! rejected: consumer defined, gone`,
		},
		{
			name: "a REQ that was rejected comes again", rule: "the REJ was lost: a new request",
			steps: []step{{0, in(theirREQ())}, {0, reject}, {ms, in(theirREQ())}, {ms, cancel}}, until: ms,
			want: `
				0s ! REQ hello
				0s > REJ 0-77 of 0: consumer defined 0102
				1ms ! REQ 1002 hello
				1ms = cm: unknown identifier`, stays: true,
		},
	} {
		s.run(t)
	}
}

// IBTA Annex A14: an XRC target names its queue pair in the field of the EE
// context (cm_rep_get_qpn of Linux), which then stands for it everywhere.
func TestXRC(t *testing.T) {
	asXRC := func(m *mad.REQ) { m.Transport, m.ExtendedTransport = mad.TransportExtended, mad.ExtendedXRC }
	theirs := theirREP()
	theirs.LocalQPN, theirs.LocalEECN = 0, uint32(theirQPN)
	for _, s := range []script{
		{
			name: "initiator", rule: "the DREQ names the target's queue pair",
			steps: []step{
				{0, func(b *bench) {
					req := ourREQ()
					asXRC(&req)
					_, err := b.Connect(b.now, theirAddr, req, ConnectOptions{})
					b.check(err)
				}},
				{ms, in(theirs)}, {2 * ms, sendRTU}, {3 * ms, disconnect}, {4 * ms, in(theirDREP())},
			}, until: sec,
			want: `
				0s > REQ 1001
				1ms ! REP welcome
				2ms > RTU 1001-77 ready
				3ms > DREQ 1001-77 22 bye
				4ms ! disconnected
				71.108864ms ! time-wait exit, gone`,
		},
		{
			name: "target", rule: "a DREQ must name it, and it rests in time-wait",
			steps: []step{
				{0, in(changed(asXRC))}, {ms, func(b *bench) { b.check(b.SendREP(b.now, ourID, mad.REP{LocalEECN: uint32(ourQPN)})) }},
				{2 * ms, in(theirRTU())}, {3 * ms, in(theirDREQ())}, {4 * ms, connect},
			}, until: sec,
			want: `
				0s ! REQ hello
				1ms > REP 1001-77
				2ms ! established
				3ms > DREP 1001-77
				3ms ! disconnected bye
				4ms = cm: LocalQPN is 0x000011: not one of a connection in state time-wait
				70.108864ms ! time-wait exit, gone`,
		},
	} {
		s.run(t)
	}
}

// IBTA 12.9.8.3.1: a peer that has started again.
func TestStale(t *testing.T) {
	up := []step{{0, in(theirREQ())}, {0, sendREP}, {0, in(theirRTU())}}
	const begin = `
		0s ! REQ hello
		0s > REP 1001-77
		0s ! established
		`
	sameQPN := in(changed(func(m *mad.REQ) { m.LocalCommID++ }))
	sameID := in(changed(func(m *mad.REQ) { m.LocalQPN++ }))
	for _, s := range []script{
		{
			name: "same queue pair, established", rule: "cm_match_req of Linux: REJ 10, DREQ for the old one",
			steps: append(up[:3:3], step{ms, sameQPN}, step{2 * ms, in(theirDREP())}, step{3 * ms, sameQPN}), until: 3 * ms,
			want: begin + `
				1ms > REJ 0-78 of 0: stale connection
				1ms > DREQ 1001-77 22
				2ms ! disconnected
				3ms ! REQ 1002 hello`, stays: true,
		},
		{
			name: "same identifier, another queue pair, established", rule: "no duplicate: the peer has started again",
			steps: append(up[:3:3], step{ms, sameID}, step{2 * ms, in(theirDREP())}, step{3 * ms, sameID}, step{3 * ms, in(theirREQ())}), until: 3 * ms,
			want: begin + `
				1ms > REJ 0-77 of 0: stale connection
				1ms > DREQ 1001-77 22
				2ms ! disconnected
				3ms ! REQ 1002 hello
				3ms > REJ 0-77 of 0: stale connection
				3ms ! dropped 1002, gone`, stays: true,
		},
		{
			name: "same identifier and queue pair, another PSN", rule: "no duplicate either",
			steps: append(up[:3:3], step{ms, in(changed(func(m *mad.REQ) { m.StartingPSN++ }))}), until: ms,
			want: begin + `
				1ms > REJ 0-77 of 0: stale connection
				1ms > DREQ 1001-77 22`, stays: true,
		},
		{
			name: "same identifier while the old connection rests", rule: "its end does not touch the new one",
			steps: append(up[:3:3], step{ms, in(theirDREQ())}, step{2 * ms, sameID}, step{100 * ms, sameID}), until: 100 * ms,
			want: begin + `
				1ms > DREP 1001-77
				1ms ! disconnected bye
				2ms ! REQ 1002 hello
				68.108864ms ! time-wait exit, gone
				100ms > MRA 1002-77 of 0`, stays: true,
		},
		{
			name: "a REQ with the queue pair of a connection that we made", rule: "the same in the other role",
			steps: []step{{0, connect}, {0, in(theirREP())}, {0, sendRTU}, {ms, sameQPN}}, until: ms,
			want: `
				0s > REQ 1001
				0s ! REP welcome
				0s > RTU 1001-77 ready
				1ms > REJ 0-78 of 0: stale connection
				1ms > DREQ 1001-77 22`, stays: true,
		},
		{
			name: "same queue pair, half open", rule: "the old request is dropped",
			steps: []step{{0, in(theirREQ())}, {ms, sameQPN}, {2 * ms, sameQPN}, {2 * ms, func(b *bench) { b.check(b.Cancel(b.now, 0x1002)) }}},
			want: `
				0s ! REQ hello
				1ms > REJ 0-78 of 0: stale connection
				1ms ! dropped, gone
				2ms ! REQ 1002 hello
				2ms > REJ 0-78 of 0: consumer defined`,
		},
		{
			name: "a REP with the queue pair of a live connection", rule: "cm_rep_handler of Linux",
			steps: append(up[:3:3], step{ms, func(b *bench) {
				req := ourREQ()
				req.LocalQPN = 0x12
				_, err := b.Connect(b.now, theirAddr, req, ConnectOptions{})
				b.check(err)
			}}, step{2 * ms, in(&mad.REP{LocalCommID: 0x79, RemoteCommID: 0x1002, LocalCAGUID: theirGUID, LocalQPN: theirQPN})}), until: 2 * ms,
			want: begin + `
				1ms > REQ 1002
				2ms > REJ 1002-79 of 1: stale connection
				2ms > DREQ 1001-77 22`, stays: true,
		},
		{
			name: "the same numbers from elsewhere", rule: "a CA GUID is no secret",
			steps: append(up[:3:3], step{ms, func(b *bench) { b.from(thirdAddr, 7, theirREQ()) }}), until: ms,
			want: begin + `
				1ms ! REQ 1002 hello`, stays: true,
		},
	} {
		s.run(t)
	}
}

// IBTA 12.6.7.2, and what cm_req_handler of Linux looks at: REQs that the agent
// refuses, with the additional information.
func TestRefused(t *testing.T) {
	ourGID := fmt.Sprintf("%x", [16]byte(ib.GIDFromAddr(ourAddr)))
	for _, c := range []struct {
		name   string
		change func(*mad.REQ)
		want   string
	}{
		{"nobody listens", func(m *mad.REQ) { m.ServiceID++ }, "invalid service ID"},
		{"RD", func(m *mad.REQ) { m.Transport = mad.TransportRD }, "invalid transport type"},
		{"unknown extension", func(m *mad.REQ) { m.Transport, m.ExtendedTransport = mad.TransportExtended, 2 }, "invalid transport type"},
		{"MTU code 0", func(m *mad.REQ) { m.PathMTU = 0 }, "invalid path MTU 05"},
		{"MTU code 6", func(m *mad.REQ) { m.PathMTU = 6 }, "invalid path MTU 05"},
		{"not our GID", func(m *mad.REQ) { m.Primary.RemoteGID[15]++ }, "invalid GID " + ourGID},
		{"no GID of theirs", func(m *mad.REQ) { m.Primary.LocalGID = ib.GID{} }, "invalid GID " + ourGID},
		{"multicast GID", func(m *mad.REQ) { m.Primary.LocalGID = ib.GID{0: 0xff, 15: 1} }, "invalid GID " + ourGID},
		{"GID of another IP version", func(m *mad.REQ) { m.Primary.LocalGID = ib.GID{0: 0xfd, 15: 1} }, "invalid GID " + ourGID},
		{"another partition", func(m *mad.REQ) { m.PKey = 0x8001 }, "invalid GID " + ourGID},
	} {
		b := newBench(t, nil)
		b.check(b.Listen(Listener{Service: testService}))
		b.in(changed(c.change))
		if want := "0s > REJ 0-77 of 0: " + c.want; len(b.log) != 1 || b.log[0] != want {
			t.Errorf("%s: %q, want %q", c.name, b.log, want)
		}
		if n := b.Counters().Load(RejectedREQ); n != 1 || b.tids[mad.AttrREJ] != 7 {
			t.Errorf("%s: counted %d times, transaction %d", c.name, n, b.tids[mad.AttrREJ])
		}
		b.empty()
	}
	for name, change := range map[string]func(*mad.REQ){
		"UC":             func(m *mad.REQ) { m.Transport = mad.TransportUC },
		"XRC":            func(m *mad.REQ) { m.Transport, m.ExtendedTransport = mad.TransportExtended, mad.ExtendedXRC },
		"limited member": func(m *mad.REQ) { m.PKey = 0x7fff },
		"another source": func(m *mad.REQ) { m.Primary.LocalGID = ib.GIDFromAddr(thirdAddr) },
	} {
		b := newBench(t, nil)
		b.check(b.Listen(Listener{Service: testService}))
		if b.in(changed(change)); len(b.log) != 1 || b.last.Kind != EventREQ || b.last.Gone {
			t.Errorf("%s: %q", name, b.log)
		}
	}
	for _, qpn := range []ib.QPN{0, 1, 0xffffff} {
		b := newBench(t, nil)
		if b.in(changed(func(m *mad.REQ) { m.LocalQPN = qpn })); len(b.log) != 0 || b.Counters().Load(DropQPN) != 1 {
			t.Errorf("queue pair %v: %q", qpn, b.log)
		}
	}
}

// The REP repeats the transaction of the REQ, and a peer cannot make timers
// shorter than 17 ms or longer than 69 s.
func TestTimeouts(t *testing.T) {
	for _, c := range []struct {
		ack, response ib.AckTimeout
		want          time.Duration
	}{
		{ackCode, responseCode, timeout}, {1, 0, 8192*time.Nanosecond + 16777216*time.Nanosecond}, {0, responseCode, 536870912*time.Nanosecond + 268435456*time.Nanosecond},
		{31, 31, 2 * 68719476736 * time.Nanosecond},
	} {
		b := newBench(t, nil)
		b.check(b.Listen(Listener{Service: testService}))
		b.in(changed(func(m *mad.REQ) { m.Primary.LocalACKTimeout, m.LocalCMResponseTimeout = c.ack, c.response }))
		sendREP(b)
		if b.Deadline() != c.want || b.tids[mad.AttrREP] != 7 {
			t.Errorf("ACK timeout %d, response timeout %d: REP again after %v, want %v; transaction %d", c.ack, c.response, b.Deadline(), c.want, b.tids[mad.AttrREP])
		}
	}
}

// Masks as ib_cm_listen of Linux has them.
func TestListeners(t *testing.T) {
	b := newBench(t, nil)
	for _, c := range []struct {
		l    Listener
		want error
	}{
		{Listener{Service: testService, Context: "exact"}, nil},
		{Listener{Service: testService}, ErrInUse},
		{Listener{Service: testService, Mask: ^mad.ServiceID(0)}, ErrInUse},
		{Listener{Service: testService, Mask: ^mad.ServiceID(0xffff), Context: "space"}, nil},
		{Listener{Service: testService + 1, Mask: ^mad.ServiceID(0xffff)}, ErrInUse},
		{Listener{Service: 0x01060000, Mask: ^mad.ServiceID(0xff), Context: "later"}, nil},
	} {
		if err := b.Listen(c.l); err != c.want {
			t.Errorf("Listen(%v/%x): %v, want %v", c.l.Service, uint64(c.l.Mask), err, c.want)
		}
	}
	ask := func(id uint32, s mad.ServiceID) any {
		b.last = Event{}
		b.in(changed(func(m *mad.REQ) { m.LocalCommID, m.LocalQPN, m.ServiceID = id, ib.QPN(id), s }))
		return b.last.Context
	}
	for i, c := range []struct {
		service mad.ServiceID
		want    any
	}{{testService, "exact"}, {testService + 1, "space"}, {0x0106ffff, "space"}, {0x01070007, nil}} {
		if got := ask(uint32(100+i), c.service); got != c.want {
			t.Errorf("%v: listener %v, want %v", c.service, got, c.want)
		}
	}
	b.log = nil
	b.Unlisten(0, testService, 0)
	b.Unlisten(0, testService, 0)
	if len(b.log) != 1 || b.log[0] != "0s > REJ 0-64 of 0: consumer defined" {
		t.Errorf("the exact listener goes: %q", b.log)
	}
	if got := ask(200, testService); got != "space" {
		t.Errorf("without the exact listener: %v", got)
	}
	b.Unlisten(0, testService, ^mad.ServiceID(0xffff))
	if got := ask(201, testService); got != "later" {
		t.Errorf("without the first mask: %v", got)
	}
	b.Unlisten(0, testService, ^mad.ServiceID(0xff))
	if got := ask(202, testService); got != nil {
		t.Errorf("without listeners: %v", got)
	}
	b.empty()
}
