package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

// numbered returns a REQ that has identifier and queue pair n.
func numbered(n int) *mad.REQ {
	return changed(func(m *mad.REQ) { m.LocalCommID, m.LocalQPN = uint32(n), ib.QPN(n) })
}

// A flood of REQs leaves what Config and Listener allow; the newest win, and those
// that were dropped get in when they ask again.
func TestBacklog(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxHalfOpen = 6 })
	b.check(b.Listen(Listener{Service: testService, Backlog: 4}))
	b.check(b.Listen(Listener{Service: testService + 1, Backlog: 100}))
	const flood = 10000
	dropped := 0
	b.cfg.Event = func(e Event) {
		b.last = e
		if e.Kind == EventDropped && e.Gone {
			dropped++
		}
	}
	for n := range flood {
		b.in(numbered(100 + n))
	}
	if all, _ := b.Len(); all != 4 || dropped != flood-4 || b.Counters().Load(BacklogOverflow) != flood-4 {
		t.Errorf("%d requests left, %d dropped, %d counted", all, dropped, b.Counters().Load(BacklogOverflow))
	}
	b.in(numbered(100))
	accepted := b.last.ID
	if b.SendREP(0, accepted, mad.REP{LocalQPN: ourQPN}) != nil {
		t.Error("a request that was dropped does not get in again")
	}

	// Three pending, one with its REP sent, and room for two of another service.
	dropped = 0
	for n := range 3 {
		b.in(changed(func(m *mad.REQ) { m.LocalCommID, m.LocalQPN, m.ServiceID = uint32(n), ib.QPN(20000+n), testService+1 }))
	}
	if all, _ := b.Len(); all != 6 || dropped != 1 {
		t.Errorf("%d requests of both services, %d dropped; want 6 and 1", all, dropped)
	}
	// One whose REP was sent gives way, too, when it is the oldest; its peer is told.
	for n := range 3 {
		b.in(changed(func(m *mad.REQ) {
			m.LocalCommID, m.LocalQPN, m.ServiceID = uint32(10+n), ib.QPN(30000+n), testService+1
		}))
	}
	want := fmt.Sprintf("0s > REJ %x-64 of 2: no resources available", uint32(accepted))
	if all, _ := b.Len(); all != 6 || b.log[len(b.log)-1] != want {
		t.Errorf("%d requests, %q, want %q", all, b.log[len(b.log)-1], want)
	}
	b.until(time.Hour)
	b.empty()
}

// What is established, in time-wait or accepted takes no place in the backlog.
func TestBacklogIsLeft(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxHalfOpen = 3 })
	b.check(b.Listen(Listener{Service: testService, Backlog: 1}))
	for n, next := range []func(id ID){
		func(id ID) { b.in(&mad.RTU{LocalCommID: 100, RemoteCommID: uint32(id)}) },
		func(id ID) { b.check(b.Reject(0, id, mad.RejConsumer, nil, nil)) },
		func(ID) {},
		func(ID) {},
	} {
		b.in(numbered(100 + n))
		id := b.last.ID
		b.check(b.SendREP(0, id, mad.REP{LocalQPN: ib.QPN(50 + n)}))
		next(id)
	}
	b.in(numbered(200))
	for id, want := range map[ID]State{
		ourID: StateEstablished, ourID + 1: StateTimeWait, ourID + 2: StateREPSent, ourID + 3: StateREPSent, ourID + 4: StateREQReceived,
	} {
		if got := b.State(id); got != want {
			t.Errorf("%x is in state %v, want %v", uint32(id), got, want)
		}
	}
	if n := b.Counters().Load(BacklogOverflow); n != 0 {
		t.Errorf("%d requests gave way", n)
	}
}

// A connection that waits for nothing keeps no datagrams but the RTU, to be sent
// again.
func TestBuffers(t *testing.T) {
	b := newBench(t, nil)
	b.check(b.Listen(Listener{Service: testService}))
	connect(b)
	b.in(theirREP())
	sendRTU(b)
	c := b.ids[ourID]
	if c.out != nil || c.reply == nil {
		t.Errorf("active: REQ kept: %v, RTU kept: %v", c.out != nil, c.reply != nil)
	}
	b.in(theirDREQ())
	if c.out != nil || c.reply != nil {
		t.Error("time-wait: datagrams kept")
	}
	b.in(numbered(100))
	b.check(b.SendREP(0, ourID+1, mad.REP{LocalQPN: 50}))
	b.in(&mad.RTU{LocalCommID: 100, RemoteCommID: ourID + 1})
	if c = b.ids[ourID+1]; c.state != StateEstablished || c.out != nil || c.reply != nil {
		t.Errorf("passive, %v: datagrams kept", c.state)
	}
}

// The messages of an exchange share a transaction, and so do repetitions; each
// LAP and DREQ has one of its own (IBTA 13.4.6.4).
func TestTransactions(t *testing.T) {
	b := newBench(t, nil)
	connect(b)
	first := b.tids[mad.AttrREQ]
	b.until(timeout)
	b.in(theirREP())
	sendRTU(b)
	if b.tids[mad.AttrREQ] != first || b.tids[mad.AttrRTU] != first {
		t.Errorf("REQ %x, then %x, RTU %x", first, b.tids[mad.AttrREQ], b.tids[mad.AttrRTU])
	}
	seen := map[uint64]bool{first: true}
	other := func(a mad.Attr) {
		t.Helper()
		if seen[b.tids[a]] {
			t.Errorf("transaction %x again", b.tids[a])
		}
		seen[b.tids[a]] = true
	}
	for range 2 {
		loadAlternate(b)
		other(mad.AttrLAP)
		b.in(&mad.APR{LocalCommID: theirID, RemoteCommID: ourID})
	}
	disconnect(b)
	other(mad.AttrDREQ)
}

// Expire does a bounded amount of work, and says so by a Deadline in the past.
func TestExpireIsBounded(t *testing.T) {
	b := newBench(t, nil)
	for n := range ib.QPN(300) {
		req := ourREQ()
		req.LocalQPN = 2 + n
		_, err := b.Connect(0, theirAddr, req, ConnectOptions{})
		b.check(err)
	}
	b.log = nil
	for _, want := range []int{256, 300} {
		if b.Expire(timeout); len(b.log) != want {
			t.Errorf("%d REQs again, want %d", len(b.log), want)
		}
	}
	if b.Deadline() != 2*timeout {
		t.Errorf("deadline %v", b.Deadline())
	}
}

// A port has one zone, which not everybody names: messages match without it and
// are sent with it.
func TestZones(t *testing.T) {
	zoned := netip.MustParseAddr("fe80::2%eth0")
	var to []netip.Addr
	b := newBench(t, func(c *Config) {
		c.Addr = netip.MustParseAddr("fe80::1%eth0")
		c.Send = func(a netip.Addr, _ []byte) { to = append(to, a) }
	})
	b.check(b.Listen(Listener{Service: testService}))
	req := changed(func(m *mad.REQ) {
		m.Primary.LocalGID, m.Primary.RemoteGID = ib.GIDFromAddr(zoned), ib.GIDFromAddr(b.cfg.Addr)
	})
	b.from(zoned, 7, req)
	sendREP(b)
	b.from(zoned.WithZone(""), 7, req)
	b.from(zoned.WithZone(""), 7, theirRTU())
	if b.State(ourID) != StateEstablished || len(to) != 2 || to[0] != zoned || to[1] != zoned {
		t.Errorf("state %v, sent to %v", b.State(ourID), to)
	}
	if b.last.Peer != zoned {
		t.Errorf("the event tells of %v", b.last.Peer)
	}
}

// Commands and REQs beyond MaxIDs fail; those in time-wait count.
func TestMaxIDs(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxIDs = 2 })
	b.check(b.Listen(Listener{Service: testService}))
	connect(b)
	b.in(&mad.REJ{RemoteCommID: ourID, Reason: mad.RejStaleConn})
	resolve(b)
	b.in(numbered(100))
	b.in(theirSIDRREQ())
	req := ourREQ()
	req.LocalQPN++
	_, err := b.Connect(0, theirAddr, req, ConnectOptions{})
	b.check(err)
	_, err = b.Resolve(0, theirAddr, mad.SIDRREQ{}, ResolveOptions{})
	b.check(err)
	want := []string{
		"0s > REQ 1001", "0s ! rejected: stale connection", "0s > SIDR_REQ 1002", "0s > REJ 0-64 of 0: no resources available",
		"0s > SIDR_REP 77: no QP QP 0", "0s = cm: too many connections", "0s = cm: too many connections",
	}
	if len(b.log) != len(want) {
		t.Fatalf("%q, want %q", b.log, want)
	}
	for i := range want {
		if b.log[i] != want[i] {
			t.Errorf("%q, want %q", b.log[i], want[i])
		}
	}
}

// Of too many connections in time-wait the oldest leaves early.
func TestMaxTimeWait(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxTimeWait = 2 })
	b.check(b.Listen(Listener{Service: testService}))
	for n := range 3 {
		b.in(numbered(100 + n))
		id := b.last.ID
		b.check(b.SendREP(0, id, mad.REP{LocalQPN: ib.QPN(50 + n)}))
		b.log = nil
		b.check(b.Reject(0, id, mad.RejConsumer, nil, nil))
	}
	if all, waiting := b.Len(); all != 2 || waiting != 2 || b.last.ID != ourID || b.last.Kind != EventTimeWaitExit || b.Counters().Load(TimeWaitCut) != 1 {
		t.Errorf("%d identifiers, %d in time-wait, last event %v", all, waiting, describeEvent(b.last))
	}
	b.until(sec)
	b.empty()
}

// Every command refuses what it must with an error that names the field or the
// state, and changes nothing.
func TestCommandErrors(t *testing.T) {
	long := make([]byte, 300)
	unknown := func(b *bench, id ID) []error {
		return []error{
			b.SendRTU(0, id, nil), b.SendREP(0, id, mad.REP{}), b.Established(0, id), b.Reject(0, id, 1, nil, nil), b.SendMRA(0, id, 1, nil),
			b.Disconnect(0, id, nil), b.Answer(0, id, mad.SIDRREP{}), b.LoadAlternate(0, id, mad.LAP{}), b.AnswerAlternate(0, id, mad.APR{}),
		}
	}
	b := newBench(t, nil)
	b.check(b.Listen(Listener{Service: testService}))
	for i, err := range append(unknown(b, ourID), b.Cancel(0, ourID)) {
		if !errors.Is(err, ErrUnknownID) {
			t.Errorf("command %d for nothing: %v", i, err)
		}
	}
	resolve(b)
	for i, err := range unknown(b, ourID) {
		if e := (*StateError)(nil); !errors.As(err, &e) || e.State != StateSIDRREQSent {
			t.Errorf("command %d for a resolution: %v", i, err)
		}
	}
	b.in(theirREQ()) // 0x1002
	asked := ID(0x1002)
	b.in(theirSIDRREQ()) // 0x1003
	connectTo := func(dst netip.Addr, change func(*mad.REQ)) error {
		req := ourREQ()
		change(&req)
		_, err := b.Connect(0, dst, req, ConnectOptions{})
		return err
	}
	resolveFor := func(dst netip.Addr, req mad.SIDRREQ, o ResolveOptions) error {
		_, err := b.Resolve(0, dst, req, o)
		return err
	}
	nothing := func(*mad.REQ) {}
	before := len(b.ids)
	for _, c := range []struct {
		field string
		err   error
	}{
		{"address", connectTo(netip.Addr{}, nothing)},
		{"address", connectTo(netip.MustParseAddr("0.0.0.0"), nothing)},
		{"address", connectTo(netip.MustParseAddr("224.0.0.1"), nothing)},
		{"address", connectTo(netip.MustParseAddr("fd77::1"), nothing)},
		{"LocalQPN", connectTo(theirAddr, func(m *mad.REQ) { m.LocalQPN = 1 })},
		{"LocalQPN", connectTo(theirAddr, func(m *mad.REQ) { m.LocalQPN = 0xffffff })},
		{"PathMTU", connectTo(theirAddr, func(m *mad.REQ) { m.PathMTU = 6 })},
		{"Transport", connectTo(theirAddr, func(m *mad.REQ) { m.Transport = mad.TransportRD })},
		{"MaxCMRetries", connectTo(theirAddr, func(m *mad.REQ) { m.MaxCMRetries = 16 })},
		{"RetryCount or RNRRetryCount", connectTo(theirAddr, func(m *mad.REQ) { m.RNRRetryCount = 8 })},
		{"PrivateData", connectTo(theirAddr, func(m *mad.REQ) { m.PrivateData = long[:93] })},
		{"LocalQPN", b.SendREP(0, asked, mad.REP{})},
		{"RNRRetryCount", b.SendREP(0, asked, mad.REP{LocalQPN: 9, RNRRetryCount: 8})},
		{"PrivateData", b.SendREP(0, asked, mad.REP{LocalQPN: 9, PrivateData: long[:197]})},
		{"ARI", b.Reject(0, asked, 28, long[:73], nil)},
		{"private data", b.Reject(0, asked, 28, nil, long[:149])},
		{"service timeout", b.SendMRA(0, asked, 32, nil)},
		{"private data", b.SendMRA(0, asked, 1, long[:223])},
		{"private data", b.Disconnect(0, asked, long[:221])},
		{"address", resolveFor(netip.Addr{}, mad.SIDRREQ{}, ResolveOptions{})},
		{"PrivateData", resolveFor(theirAddr, mad.SIDRREQ{PrivateData: long[:217]}, ResolveOptions{})},
		{"Timeout", resolveFor(theirAddr, mad.SIDRREQ{}, ResolveOptions{Timeout: -1})},
		{"PrivateData", b.Answer(0, 0x1003, mad.SIDRREP{PrivateData: long[:137]})},
		{"Info", b.Answer(0, 0x1003, mad.SIDRREP{Info: long[:73]})},
		{"Backlog", b.Listen(Listener{Backlog: -1})},
	} {
		if e := (*FieldError)(nil); !errors.As(c.err, &e) || e.Field != c.field {
			t.Errorf("%s: %v", c.field, c.err)
		}
	}
	if len(b.ids) != before || b.State(asked) != StateREQReceived || b.State(ourID) != StateSIDRREQSent || b.State(99) != StateNone {
		t.Errorf("%d identifiers, were %d; state %v", len(b.ids), before, b.State(asked))
	}
	b.check(b.SendREP(0, asked, mad.REP{LocalQPN: ourQPN}))
	if e := (*FieldError)(nil); !errors.As(connectTo(theirAddr, nothing), &e) || e.Field != "LocalQPN" {
		t.Error("a queue pair number is used twice")
	}
	established := func(err error) {
		t.Helper()
		if e := (*FieldError)(nil); !errors.As(err, &e) {
			t.Errorf("too long: %v", err)
		}
	}
	b.in(&mad.RTU{LocalCommID: theirID, RemoteCommID: uint32(asked)})
	established(b.LoadAlternate(0, asked, mad.LAP{Alternate: testAlternate, PrivateData: long[:169]}))
	b.in(&mad.LAP{LocalCommID: theirID, RemoteCommID: uint32(asked), RemoteQPN: ourQPN})
	established(b.AnswerAlternate(0, asked, mad.APR{Info: long[:73]}))
	established(b.AnswerAlternate(0, asked, mad.APR{PrivateData: long[:149]}))
}

func TestConfig(t *testing.T) {
	good := Config{Addr: ourAddr, GUID: 1, Rand: func() uint32 { return 0 }, Send: func(netip.Addr, []byte) {}, Event: func(Event) {}}
	for field, change := range map[string]func(*Config){
		"Addr": func(c *Config) { c.Addr = netip.IPv4Unspecified() }, "GUID": func(c *Config) { c.GUID = 0 },
		"Rand, Send or Event": func(c *Config) { c.Send = nil }, "MaxIDs, MaxHalfOpen or MaxTimeWait": func(c *Config) { c.MaxHalfOpen = -1 },
		"ServiceTimeout": func(c *Config) { c.ServiceTimeout = 32 },
	} {
		c := good
		change(&c)
		_, err := New(c)
		if e := (*FieldError)(nil); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if a, err := New(good); err != nil || a.cfg.MaxIDs != 65536 || a.cfg.MaxHalfOpen != 4096 || a.cfg.MaxTimeWait != 16384 || a.cfg.ServiceTimeout != 20 {
		t.Errorf("defaults: %+v, %v", a, err)
	}
}

// The zero fields of a REQ, and what the agent fills in.
func TestREQDefaults(t *testing.T) {
	var sent []byte
	b := newBench(t, nil)
	b.cfg.Send = func(_ netip.Addr, d []byte) { sent = append([]byte(nil), d...) }
	if _, err := b.Connect(0, theirAddr, mad.REQ{LocalQPN: ourQPN, PathMTU: ib.MTU4096}, ConnectOptions{}); err != nil {
		t.Fatal(err)
	}
	var got mad.REQ
	mad.Decode(sent, &got)
	got.PrivateData = nil
	want := mad.REQ{
		LocalCommID: ourID, LocalCAGUID: ourGUID, LocalQPN: ourQPN, PathMTU: ib.MTU4096, PKey: 0xffff, RemoteCMResponseTimeout: 20,
		LocalCMResponseTimeout: 20, MaxCMRetries: 15,
		Primary: mad.Path{
			LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: ib.GIDFromAddr(ourAddr), RemoteGID: ib.GIDFromAddr(theirAddr), HopLimit: 64, LocalACKTimeout: 17,
		},
	}
	if got.Primary != want.Primary || got.LocalCommID != want.LocalCommID || got.LocalCAGUID != want.LocalCAGUID || got.PKey != want.PKey ||
		got.RemoteCMResponseTimeout != 20 || got.LocalCMResponseTimeout != 20 || got.MaxCMRetries != 15 || got.Alternate != want.Alternate {
		t.Errorf("sent %+v, want %+v", got, want)
	}
}

// What is no message of the connection manager is counted, and answered where
// IBTA 13.4 says so.
func TestOtherDatagrams(t *testing.T) {
	var sent []byte
	b := newBench(t, nil)
	b.cfg.Send = func(_ netip.Addr, d []byte) { sent = append([]byte(nil), d...) }
	head := mad.Header{Class: mad.ClassCM, ClassVersion: 2, Method: mad.MethodGet, TID: 9, Attr: mad.AttrClassPortInfo}
	give := func(change func(*mad.Header), size int) {
		h, d := head, make([]byte, 300)
		change(&h)
		h.Put(d)
		sent = nil
		b.Receive(0, theirAddr, d[:size])
	}
	for i, c := range []struct {
		change func(*mad.Header)
		size   int
		want   Counter
	}{
		{func(*mad.Header) {}, 0, DropFormat},
		{func(*mad.Header) {}, 255, DropFormat},
		{func(*mad.Header) {}, 257, DropFormat},
		{func(h *mad.Header) { h.Class = mad.ClassPerfMgt }, 256, DropFormat},
		{func(h *mad.Header) { h.ClassVersion = 1 }, 256, DropFormat},
		{func(h *mad.Header) { h.Method = mad.MethodSet }, 256, DropMethod},
		{func(h *mad.Header) { h.Method, h.Attr = mad.MethodSend, 0x0f }, 256, DropMethod},
		{func(h *mad.Header) { h.Method, h.Attr = mad.MethodSend, 0x1b }, 256, DropMethod},
		{func(h *mad.Header) { h.Method, h.Attr = mad.MethodSend, mad.AttrRTU }, 256, DropUnknownID},
		{func(h *mad.Header) { h.Method, h.Attr = mad.MethodSend, mad.AttrMRA }, 256, DropUnknownID},
	} {
		before := b.Counters().Load(c.want)
		if give(c.change, c.size); sent != nil || b.Counters().Load(c.want) != before+1 {
			t.Errorf("datagram %d: answered with %x, %v is %d", i, sent, c.want, b.Counters().Load(c.want))
		}
	}
	info := mad.ClassPortInfo{Class: mad.ClassCM}
	give(func(*mad.Header) {}, 256)
	if h, bad := mad.Parse(sent); bad != mad.OK || h.Method != mad.MethodGetResp || h.TID != 9 || h.Status != 0 || h.Attr != mad.AttrClassPortInfo {
		t.Fatalf("ClassPortInfo: %+v", h)
	}
	if mad.Decode(sent, &info); info.ClassVersion != 2 || info.CapabilityMask != mad.CMCapRC|mad.CMCapUC|mad.CMCapUD || info.RespTime != 20 {
		t.Errorf("ClassPortInfo: %+v", info)
	}
	give(func(h *mad.Header) { h.Attr = mad.AttrREQ }, 256)
	if h, bad := mad.Parse(sent); bad != mad.OK || h.Method != mad.MethodGetResp || h.Status != mad.StatusBadMethodAttr {
		t.Errorf("Get of a REQ: %+v", h)
	}
}

// Each counter has a name of its own.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for c := range NumCounters {
		if n := c.String(); n == "cm_" || seen[n] {
			t.Errorf("counter %d: %q is no name or not the only one", c, n)
		}
		seen[c.String()] = true
	}
	for c, want := range map[Counter]string{
		Rx(mad.AttrREQ): "cm_rx_req", Tx(mad.AttrAPR): "cm_tx_apr", Retries(mad.AttrSIDRREQ): "cm_tx_retries_sidr_req",
		Duplicates(mad.AttrDREP): "cm_rx_duplicates_drep", DropFormat: "cm_drop_format", TimeWaitCut: "cm_time_wait_cut",
	} {
		if c.String() != want {
			t.Errorf("counter %d is %v, want %s", c, c, want)
		}
	}
	if EventAPR.String() != "APR" || Kind(99).String() != "event 99" || StateSIDRREQReceived.String() != "SIDR_REQ received" || State(99).String() != "state 99" {
		t.Error("names of kinds or states")
	}
}

// What is dropped costs no memory, whatever it is.
func TestDropAllocations(t *testing.T) {
	b := newBench(t, nil)
	d := make([]byte, mad.Size)
	for _, m := range []mad.Message{&mad.MRA{}, &mad.REJ{}, theirRTU(), theirDREP(), &mad.SIDRREP{}, &mad.LAP{}, &mad.APR{}, changed(func(m *mad.REQ) { m.LocalQPN = 0 })} {
		mad.EncodeCM(d, 1, m)
		if n := testing.AllocsPerRun(100, func() { b.Receive(0, theirAddr, d) }); n != 0 {
			t.Errorf("%T: %v allocations", m, n)
		}
	}
}
