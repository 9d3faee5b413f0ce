package cm

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/transport"
)

// The numbers of scripts. Ours is the agent, theirs a peer that the script plays.
const (
	ourGUID, theirGUID = 0x0a, 0x0b
	ourID, theirID     = 0x1001, 0x77
	ourQPN, theirQPN   = ib.QPN(0x11), ib.QPN(0x22)
	testService        = mad.ServiceID(0x01060007)
)

var (
	ourAddr   = netip.MustParseAddr("10.0.0.1")
	theirAddr = netip.MustParseAddr("10.0.0.2")
	thirdAddr = netip.MustParseAddr("10.0.0.3")
)

const (
	ackCode      = ib.AckTimeout(14)           // 67.108864ms, the round trip and time-wait of scripts
	responseCode = ib.AckTimeout(16)           // 268.435456ms
	rtt          = 67108864 * time.Nanosecond  // of ackCode
	timeout      = 335544320 * time.Nanosecond // from a message to its repetition: both
)

// bench is one agent and a log of all that it does, with times.
type bench struct {
	*Agent
	t    testing.TB
	now  time.Duration
	log  []string
	tids map[mad.Attr]uint64 // of what was sent last
	last Event
}

func newBench(t testing.TB, change func(*Config)) *bench {
	b := &bench{t: t, tids: map[mad.Attr]uint64{}}
	cfg := Config{
		Addr: ourAddr, GUID: ourGUID, Rand: func() uint32 { return ourID - 1 },
		ServiceTimeout: responseCode,
		Send: func(to netip.Addr, d []byte) {
			h, _ := mad.Parse(d)
			b.tids[h.Attr] = h.TID
			b.say("> %s", describe(d))
			if to != theirAddr {
				b.say("  to %v", to)
			}
		},
		Event: func(e Event) {
			b.last = e
			b.say("! %s", describeEvent(e))
		},
	}
	if change != nil {
		change(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Agent = a
	return b
}

func (b *bench) say(format string, args ...any) {
	b.log = append(b.log, fmt.Sprintf("%v ", b.now)+fmt.Sprintf(format, args...))
}

// check says what a command returned, if it failed.
func (b *bench) check(err error) {
	if err != nil {
		b.say("= %v", err)
	}
}

// in gives the agent a message of the peer.
func (b *bench) in(m mad.Message) { b.from(theirAddr, 7, m) }

func (b *bench) from(src netip.Addr, tid uint64, m mad.Message) {
	d := make([]byte, mad.Size)
	mad.EncodeCM(d, tid, m)
	b.Receive(b.now, src, d)
}

// until runs all timers that are due before or at t.
func (b *bench) until(t time.Duration) {
	for d := b.Deadline(); d <= t; d = b.Deadline() {
		if d < b.now {
			b.t.Fatalf("deadline %v in the past of %v", d, b.now)
		}
		b.now = d
		b.Expire(d)
	}
	b.now = t
}

// empty fails unless the agent has forgotten everything but listeners.
func (b *bench) empty() {
	b.t.Helper()
	a := b.Agent
	if n := len(a.ids) + len(a.remotes) + len(a.remoteQPs) + len(a.localQPs) + len(a.peering) + len(a.resolving) +
		a.halfOpen.Len() + a.timeWait.Len() + len(a.timers); n != 0 || a.Deadline() != transport.Never {
		b.t.Errorf("not empty: %d ids, %d remote, %d+%d QPs, %d peering, %d resolving, %d half open, %d in time-wait, %d timers",
			len(a.ids), len(a.remotes), len(a.remoteQPs), len(a.localQPs), len(a.peering), len(a.resolving),
			a.halfOpen.Len(), a.timeWait.Len(), len(a.timers))
	}
	for s, l := range a.exact {
		if l.pending.Len() != 0 {
			b.t.Errorf("service %v has %d requests pending", s, l.pending.Len())
		}
	}
}

// describe is a sent message in few words: its name, and what matters of it.
func describe(d []byte) string {
	h, _ := mad.Parse(d)
	switch h.Attr {
	case mad.AttrREQ:
		var m mad.REQ
		mad.Decode(d, &m)
		return fmt.Sprintf("REQ %x", m.LocalCommID)
	case mad.AttrMRA:
		var m mad.MRA
		mad.Decode(d, &m)
		return fmt.Sprintf("MRA %x-%x of %d", m.LocalCommID, m.RemoteCommID, m.MRAed)
	case mad.AttrREJ:
		var m mad.REJ
		mad.Decode(d, &m)
		return strings.TrimSpace(fmt.Sprintf("REJ %x-%x of %d: %v %x", m.LocalCommID, m.RemoteCommID, m.Rejected, m.Reason, m.ARI))
	case mad.AttrREP:
		var m mad.REP
		mad.Decode(d, &m)
		return fmt.Sprintf("REP %x-%x", m.LocalCommID, m.RemoteCommID)
	case mad.AttrRTU:
		var m mad.RTU
		mad.Decode(d, &m)
		return fmt.Sprintf("RTU %x-%x", m.LocalCommID, m.RemoteCommID) + text(m.PrivateData)
	case mad.AttrDREQ:
		var m mad.DREQ
		mad.Decode(d, &m)
		return fmt.Sprintf("DREQ %x-%x %x", m.LocalCommID, m.RemoteCommID, uint32(m.RemoteQPN)) + text(m.PrivateData)
	case mad.AttrDREP:
		var m mad.DREP
		mad.Decode(d, &m)
		return fmt.Sprintf("DREP %x-%x", m.LocalCommID, m.RemoteCommID)
	case mad.AttrSIDRREQ:
		var m mad.SIDRREQ
		mad.Decode(d, &m)
		return fmt.Sprintf("SIDR_REQ %x", m.RequestID)
	case mad.AttrSIDRREP:
		var m mad.SIDRREP
		mad.Decode(d, &m)
		return fmt.Sprintf("SIDR_REP %x: %v QP %x", m.RequestID, m.Status, uint32(m.QPN))
	case mad.AttrLAP:
		var m mad.LAP
		mad.Decode(d, &m)
		return fmt.Sprintf("LAP %x-%x %x", m.LocalCommID, m.RemoteCommID, uint32(m.RemoteQPN))
	case mad.AttrAPR:
		var m mad.APR
		mad.Decode(d, &m)
		return fmt.Sprintf("APR %x-%x: %d", m.LocalCommID, m.RemoteCommID, m.Status)
	}
	return fmt.Sprintf("attribute %x", uint16(h.Attr))
}

// text is private data up to the first zero, with a space in front.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	if s != "" {
		s = " " + s
	}
	return s
}

func describeEvent(e Event) string {
	s := e.Kind.String()
	if e.ID != ourID {
		s += fmt.Sprintf(" %x", uint32(e.ID))
	}
	switch e.Kind {
	case EventUnreachable, EventMRA:
		s += fmt.Sprintf(" (%s)", messageNames[e.Attr-mad.AttrREQ])
	case EventREQ:
		s += text(e.REQ.PrivateData)
	case EventREP:
		s += text(e.REP.PrivateData)
	}
	if e.REJ != nil {
		s += ": " + e.REJ.Reason.String() + text(e.REJ.PrivateData)
	}
	if s += text(e.Private); e.TimedOut {
		s += ", timed out"
	}
	if e.Gone {
		s += ", gone"
	}
	return s
}

// Messages of the peer, and parameters of commands.
func theirREQ() *mad.REQ {
	return &mad.REQ{
		LocalCommID: theirID, ServiceID: testService, LocalCAGUID: theirGUID, LocalQPN: theirQPN, StartingPSN: 5,
		RemoteCMResponseTimeout: responseCode, LocalCMResponseTimeout: responseCode, PKey: ib.DefaultPKey, PathMTU: ib.MTU1024,
		MaxCMRetries: 2, Primary: mad.Path{LocalGID: ib.GIDFromAddr(theirAddr), RemoteGID: ib.GIDFromAddr(ourAddr), LocalACKTimeout: ackCode},
		PrivateData: []byte("hello"),
	}
}

func theirREP() *mad.REP {
	return &mad.REP{LocalCommID: theirID, RemoteCommID: ourID, LocalCAGUID: theirGUID, LocalQPN: theirQPN, PrivateData: []byte("welcome")}
}

func ourREQ() mad.REQ {
	return mad.REQ{
		ServiceID: testService, LocalQPN: ourQPN, PathMTU: ib.MTU1024, MaxCMRetries: 2,
		RemoteCMResponseTimeout: responseCode, LocalCMResponseTimeout: responseCode, Primary: mad.Path{LocalACKTimeout: ackCode},
	}
}

func theirRTU() *mad.RTU   { return &mad.RTU{LocalCommID: theirID, RemoteCommID: ourID} }
func theirDREP() *mad.DREP { return &mad.DREP{LocalCommID: theirID, RemoteCommID: ourID} }
func theirDREQ() *mad.DREQ {
	return &mad.DREQ{LocalCommID: theirID, RemoteCommID: ourID, RemoteQPN: ourQPN, PrivateData: []byte("bye")}
}
func theirREJ(r mad.Reason) *mad.REJ {
	return &mad.REJ{LocalCommID: theirID, RemoteCommID: ourID, Rejected: mad.MsgOther, Reason: r}
}
func theirMRA(what mad.Msg) *mad.MRA {
	return &mad.MRA{LocalCommID: theirID, RemoteCommID: ourID, MRAed: what, ServiceTimeout: 18} // 1.073741824s
}

// Steps of scripts.
type step struct {
	at time.Duration
	do func(*bench)
}

func in(m mad.Message) func(*bench) { return func(b *bench) { b.in(m) } }
func connect(b *bench) {
	_, err := b.Connect(b.now, theirAddr, ourREQ(), ConnectOptions{})
	b.check(err)
}
func sendRTU(b *bench)     { b.check(b.SendRTU(b.now, ourID, []byte("ready"))) }
func sendREP(b *bench)     { b.check(b.SendREP(b.now, ourID, mad.REP{LocalQPN: ourQPN})) }
func disconnect(b *bench)  { b.check(b.Disconnect(b.now, ourID, []byte("bye"))) }
func established(b *bench) { b.check(b.Established(b.now, ourID)) }
func cancel(b *bench)      { b.check(b.Cancel(b.now, ourID)) }
func reject(b *bench) {
	b.check(b.Reject(b.now, ourID, mad.RejConsumer, []byte{1, 2}, []byte("no")))
}

// script is what happens and what the agent does about it: lines of "TIME > sent",
// "TIME ! event" and "TIME = error". Afterwards the agent has forgotten all, unless
// stays is set.
type script struct {
	name  string
	rule  string // where it comes from
	steps []step
	until time.Duration
	want  string
	stays bool
}

func (s script) run(t *testing.T) {
	t.Run(s.name, func(t *testing.T) {
		b := newBench(t, nil)
		b.check(b.Listen(Listener{Service: testService}))
		for _, step := range s.steps {
			b.until(step.at)
			step.do(b)
		}
		b.until(max(s.until, b.now))
		var want []string
		for line := range strings.Lines(s.want) {
			if line = strings.TrimSpace(line); line != "" {
				want = append(want, line)
			}
		}
		if got := strings.Join(b.log, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", s.rule, got, strings.Join(want, "\n"))
		}
		if !s.stays {
			b.empty()
		}
	})
}

const (
	ms  = time.Millisecond
	sec = time.Second
)
