package transport

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
	"github.com/goroce/goroce/transport/cc"
)

const us = time.Microsecond

// fixedRate is a controller that says one rate and keeps what it is told.
type fixedRate struct {
	rate cc.Rate
	sent int
	told []cc.Signal
}

func (c *fixedRate) New() (cc.Controller, error)         { return c, nil }
func (c *fixedRate) Rate(time.Duration) cc.Rate          { return c.rate }
func (c *fixedRate) Sent(_ time.Duration, n int)         { c.sent += n }
func (c *fixedRate) Signal(_ time.Duration, s cc.Signal) { c.told = append(c.told, s) }
func (c *fixedRate) State() cc.State                     { return cc.State{Rate: c.rate, Target: c.rate} }

// kinds are the signals since the last call, but for acknowledgements.
func (c *fixedRate) kinds() (list []cc.Kind) {
	for _, s := range c.told {
		if s.Kind != cc.Ack {
			list = append(list, s.Kind)
		}
	}
	c.told = nil
	return list
}

// newPaced returns a connected queue pair of a type that is controlled by c.
func newPaced(t testing.TB, typ QPType, c cc.Algorithm) *reqWorld {
	w := newReqWorld(t, 1000)
	w.cfg.Type, w.cfg.AHs, w.cfg.MTU, w.cfg.Congestion = typ, testAHs{}, 512, c
	w.connect()
	return w
}

// turn advances the clock, runs what is due and returns how many packets a turn of
// sending brings.
func (w *reqWorld) turn(now time.Duration) int {
	w.now = now
	w.q.Expire(now)
	before := len(w.out.sent)
	if w.q.Wants()&WantData != 0 {
		w.q.Transmit(now, &w.out, 64<<10)
	}
	return len(w.out.sent) - before
}

// ack acknowledges everything up to a PSN.
func (w *reqWorld) ack(psn int) { w.q.Receive(w.now, w.packet([]string{"ACK", strconv.Itoa(psn)})) }

// A token bucket: 480 Mb/s are 60 bytes per us, a packet of 256 bytes is 300 with its
// headers, 272 of them in the turn's budget. The bucket holds 50 us, 3000 bytes. A turn
// may go over by a packet; what it took too much is waited for, and 25 us more, so that
// the next run is one. All services are paced.
func TestPacing(t *testing.T) {
	for _, typ := range []QPType{RC, UC, UD} {
		c := &fixedRate{rate: 480 * cc.Mbps}
		w := newPaced(t, typ, c)
		if typ == UD {
			for id := range 23 {
				w.post([]string{strconv.Itoa(id), "SEND", "248", "ah=5", "qp=17"}) // 8 bytes less: DETH
			}
		} else {
			w.post([]string{"1", "SEND", "15872"})
		}
		for i, s := range []struct {
			at      time.Duration
			packets int
			due     time.Duration // of the next
		}{
			{0, 12, 35 * us},                  // 3000 - 12*300 = -600: 10 us
			{34 * us, 0, 35 * us},             // too early
			{35 * us, 6, 65 * us},             // 1500 - 6*300 = -300: 5 us
			{85 * us, 10, 115 * us},           // 20 us late: 2700 - 10*300
			{5 * time.Millisecond, 12, Never}, // 4.885 ms late: the bucket holds 2.025 ms now, and is full
		} {
			if typ == UD && i > 2 {
				break // all has been sent
			}
			if n := w.turn(s.at); n != s.packets || w.q.pace.deadline() != s.due || w.q.Deadline() > s.due {
				t.Errorf("%v, turn %d at %v: %d packets, next at %v; want %d, %v", typ, i, s.at, n, w.q.pace.deadline(), s.packets, s.due)
			}
			if typ == RC {
				w.ack(len(w.out.sent) - 1)
			}
		}
		if c.sent != 300*len(w.out.sent) {
			t.Errorf("%v: the controller was told of %d bytes of %d packets", typ, c.sent, len(w.out.sent))
		}
	}
}

// A queue pair that is held goes on sending acknowledgements and CNPs.
func TestPacingLeavesControl(t *testing.T) {
	w := newPaced(t, RC, &fixedRate{rate: cc.Mbps})
	w.post([]string{"1", "SEND", "600"})
	if n := w.turn(0); n != 1 || w.q.Wants() != 0 {
		t.Fatalf("%d packets, wants %v", n, w.q.Wants())
	}
	w.q.cnps = &notices{n: 1, owed: [2]cnp{{path: w.q.path, dest: 5, why: NPCNPSent}}}
	if w.q.Wants() != WantControl {
		t.Fatalf("wants %v", w.q.Wants())
	}
	if w.q.TransmitControl(0, &w.out); len(w.out.sent) != 2 || w.q.Wants() != 0 {
		t.Errorf("%d packets, wants %v", len(w.out.sent), w.q.Wants())
	}
}

// READ responses are paced like requests: 256 bytes of payload make 276 in a MIDDLE
// with ICRC and 300 with IP and UDP headers, 3000 bytes are a burst.
func TestPacingOfResponses(t *testing.T) {
	w := newRspWorldOf(t, RC, rspAttr())
	w.q.cfg.Congestion = &fixedRate{rate: 480 * cc.Mbps}
	w.in(w.build("RDMA_READ_REQUEST 0 len=10240"))
	for i, want := range []int{12, 6, 6} {
		if i > 0 {
			w.now = w.q.Deadline()
			w.q.Expire(w.now)
		}
		before := len(w.out.pkts)
		w.out.room = -1
		if w.q.Transmit(w.now, &w.out, 64<<10); len(w.out.pkts)-before != want || w.q.Wants() != 0 {
			t.Errorf("turn %d at %v: %d packets, want %d; wants %v", i, w.now, len(w.out.pkts)-before, want, w.q.Wants())
		}
	}
}

// A held queue pair asks for an acknowledgement with each burst, not with each quarter
// of the window alone: it would take its packets for lost otherwise.
func TestPacingAsks(t *testing.T) {
	for _, c := range []struct {
		rate cc.Rate
		asks []int // packets
	}{
		{cc.Unlimited, []int{51}},                  // a quarter of 64 KiB, 316 a packet
		{480 * cc.Mbps, []int{9, 19}},              // 3000 bytes
		{40 * cc.Mbps, []int{0, 1, 2, 3, 4, 5, 6}}, // 250
	} {
		w := newPaced(t, RC, &fixedRate{rate: c.rate})
		w.post([]string{"1", "SEND", "16384"})
		var asks []int
		for now := time.Duration(0); len(w.out.sent) < 60 && len(asks) < len(c.asks); now += 25 * us {
			before := len(w.out.sent)
			w.turn(now)
			for i, b := range w.out.sent[before:] {
				if p, _ := ib.Parse(b); p.AckReq() {
					asks = append(asks, before+i)
				}
			}
		}
		if len(asks) < len(c.asks) || !slices.Equal(asks[:len(c.asks)], c.asks) {
			t.Errorf("%v: %v ask, want %v", c.rate, asks, c.asks)
		}
	}
}

// What a controller is told: the start, round trip times with what was sent of late,
// CNPs, timeouts; and that nothing is known any more after a pause of 10 ms in which
// nothing was sent, nothing came and nothing was waited for.
func TestSignals(t *testing.T) {
	const ms = time.Millisecond
	c := &fixedRate{rate: cc.Unlimited}
	w := newPaced(t, RC, c)
	expect := func(when string, want ...cc.Kind) {
		t.Helper()
		if got := c.kinds(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	expect("connected")
	w.post([]string{"1", "SEND", "2560"})
	w.turn(1 * ms)
	expect("it sends", cc.Start)
	w.now += 300 * us
	w.ack(9)
	// 10 packets of 300 bytes in the last round trip time
	want := cc.Signal{Kind: cc.Ack, RTT: 300 * us, Least: 300 * us, Delivered: 80 * cc.Mbps}
	if len(c.told) != 1 || c.told[0] != want {
		t.Errorf("acknowledged: %+v, want %+v", c.told, want)
	}
	w.cnp("192.0.2.2")
	expect("a CNP", cc.CNP)
	w.post([]string{"2", "SEND", "10"})
	w.turn(w.now + 10*ms)
	expect("10 ms later")
	w.turn(w.now + w.attr.Timeout.Duration())
	expect("no acknowledgement", cc.Timeout)
	w.ack(10)
	w.post([]string{"3", "SEND", "10"})
	w.turn(w.now + 10*ms + 1)
	expect("more than 10 ms later", cc.Start)
	w.post([]string{"4", "SEND", "10"})
	w.turn(w.now + 11*ms)
	expect("more than 10 ms later, but 3 is not acknowledged")
}

// cnp is a CNP from an address; 192.0.2.2 is the peer's.
func (w *reqWorld) cnp(from string) {
	b := make([]byte, ib.CNPSize)
	ib.PutCNP(b, w.cfg.Num)
	p, _ := ib.Parse(b)
	w.q.Receive(w.now, &Inbound{Packet: p, Src: netip.MustParseAddr(from)})
}

// The meter covers one to two spans, and forgets what is older.
func TestMeter(t *testing.T) {
	var m meter
	const span = time.Millisecond
	for _, s := range []struct {
		at   time.Duration
		n    int64
		want cc.Rate // in kb/s
	}{
		{0, 1000, 8000},                // less than a span counts as one
		{500 * us, 1000, 16000},        // 2000 bytes in 1 ms
		{1000 * us, 500, 20000},        // 2000 in the last span, 500 in this
		{1500 * us, 0, 2500 * 8 / 1.5}, // in 1.5 ms
		{2000 * us, 0, 500 * 8},        // the first is forgotten
		{4000 * us, 0, 0},              // so is everything
	} {
		m.roll(s.at, span)
		m.n += s.n
		if got := m.rate(s.at, span); got < s.want*1e3*0.999 || got > s.want*1e3*1.001 {
			t.Errorf("at %v: %v, want %v", s.at, got, s.want*1e3)
		}
	}
}

// A CNP is heard by a controller, if there is one, and counted. It has to come from the
// peer; to a UD queue pair from one of the last four hosts that it has sent to.
func TestCNPs(t *testing.T) {
	expect := func(w *reqWorld, what string, handled, ignored, dropped uint64) {
		t.Helper()
		for k, want := range map[Counter]uint64{RPCNPHandled: handled, RPCNPIgnored: ignored, DropSource: dropped} {
			if got := w.counts.Load(k); got != want {
				t.Errorf("%s: %v is %d, want %d", what, k, got, want)
			}
		}
	}
	w := newPaced(t, RC, nil)
	w.cnp("192.0.2.2")
	expect(w, "nobody to hear it", 0, 1, 0)
	w = newPaced(t, RC, &fixedRate{rate: cc.Unlimited})
	w.cnp("192.0.2.3")
	expect(w, "a stranger's", 0, 0, 1)
	w.cnp("192.0.2.2")
	expect(w, "the peer's", 1, 0, 1)

	w = newPaced(t, UD, &fixedRate{rate: cc.Unlimited})
	w.cnp("192.0.2.5")
	expect(w, "before anything was sent", 0, 0, 1)
	w.post([]string{"1", "SEND", "1", "ah=5", "qp=17"})
	w.turn(0)
	w.cnp("192.0.2.5")
	expect(w, "from where it went", 1, 0, 1)
	for i := range 4 {
		w.q.snd.(*unreliable).remember(netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}))
	}
	w.cnp("192.0.2.5")
	expect(w, "from where it went long ago", 1, 0, 2)
}

// marked is a queue pair whose packets come marked.
type marked struct {
	*rspWorld
	out reqOutbox
}

// newMarked returns a queue pair of a type whose notification point is n.
func newMarked(t *testing.T, typ QPType, n *Notifier) *marked {
	m := &marked{rspWorld: newRspWorldOf(t, typ, rspAttr()), out: reqOutbox{room: -1}}
	m.q.cfg.Notifier = n
	return m
}

// mark receives a packet with the mark "congestion experienced" and returns how many
// CNPs it brings.
func (m *marked) mark(now time.Duration, src, line string) int {
	p, bad := ib.Parse(m.build(line))
	if bad != ib.OK {
		m.t.Fatal(bad)
	}
	before := m.counts.Load(NPCNPSent)
	m.q.Receive(now, &Inbound{Packet: p, Src: netip.MustParseAddr(src), Dst: rspSelf, TOS: rspTOS | 3, CE: true})
	m.q.TransmitControl(now, &m.out)
	return int(m.counts.Load(NPCNPSent) - before)
}

// The format is that of the CNP of a ConnectX-4 Lx: opcode 0x81, BECN, the queue pair of
// the sender, PSN 0, 16 zero bytes; DSCP 48 and ECT(0). It goes before acknowledgements.
func TestCNPFormat(t *testing.T) {
	m := newMarked(t, RC, &Notifier{Interval: 50 * us, TOS: 0xc2})
	m.action("recv 10")
	if m.mark(0, "192.0.2.2", "SEND_ONLY 0 1 ack") != 1 || len(m.out.sent) != 2 {
		t.Fatalf("%d packets", len(m.out.sent))
	}
	want, _ := hex.DecodeString("8100ffff4022222200000000" + "00000000000000000000000000000000")
	if b := m.out.sent[0]; len(b) != 32 || !bytes.Equal(b[:28], want) {
		t.Errorf("%x, want %x", b, want)
	}
	if via := m.out.via[0]; via != (Path{Dst: rspPeer, TOS: 0xc2}) {
		t.Errorf("path %+v", via)
	}
	if p, _ := ib.Parse(m.out.sent[1]); p.Info().Op != ib.KindAck || m.out.via[1].TOS == 0xc2 {
		t.Errorf("then %v by %+v", p.Opcode(), m.out.via[1])
	}
}

// One CNP at once, then at most one per interval, and only for packets that were
// marked (Zhu et al., SIGCOMM 2015, section 3.2). All marks are counted.
func TestCNPInterval(t *testing.T) {
	m := newMarked(t, RC, &Notifier{Interval: 50 * us})
	for i, s := range []struct {
		at   time.Duration
		cnps int
	}{{0, 1}, {0, 0}, {49 * us, 0}, {50*us - 1, 0}, {50 * us, 1}, {99 * us, 0}, {101 * us, 1}, {time.Second, 1}} {
		if n := m.mark(s.at, "192.0.2.2", "RDMA_WRITE_ONLY 0 1"); n != s.cnps {
			t.Errorf("packet %d at %v: %d CNPs, want %d", i, s.at, n, s.cnps)
		}
	}
	if n := m.counts.Load(NPECNMarked); n != 8 {
		t.Errorf("%d marks counted", n)
	}
	m.in(m.build("RDMA_WRITE_ONLY 0 1")) // not marked
	if m.q.Wants() != WantControl && m.q.Wants() != 0 || m.q.owesCNPs() {
		t.Error("a CNP for a packet that is not marked")
	}
}

// Queue pairs, peers or all flows of a device share the interval. A datagram's flow is
// its sender's queue pair.
func TestCNPModes(t *testing.T) {
	const a, b = "192.0.2.2", "192.0.2.9"
	for mode, want := range map[CNPMode]struct{ rc, ud [3]int }{
		//             once more, another queue pair, (UD) another host
		CNPPerQP:     {rc: [3]int{0, 1}, ud: [3]int{0, 1, 1}},
		CNPPerPeer:   {rc: [3]int{0, 0}, ud: [3]int{0, 0, 1}},
		CNPPerDevice: {rc: [3]int{0, 0}, ud: [3]int{0, 0, 0}},
	} {
		n := &Notifier{Interval: 50 * us, Mode: mode}
		x, y := newMarked(t, RC, n), newMarked(t, RC, n)
		if x.mark(0, a, "RDMA_WRITE_ONLY 0 1") != 1 {
			t.Errorf("%v: no CNP", mode)
		}
		if got := [3]int{x.mark(0, a, "RDMA_WRITE_ONLY 0 1"), y.mark(0, a, "RDMA_WRITE_ONLY 0 1")}; got != want.rc {
			t.Errorf("%v, RC: %v, want %v", mode, got, want.rc)
		}
		d := newMarked(t, UD, &Notifier{Interval: 50 * us, Mode: mode})
		if d.mark(0, a, "UD_SEND_ONLY 0 1 src=17") != 1 || d.out.via[0].Dst.String() != a {
			t.Errorf("%v, UD: no CNP", mode)
		}
		got := [3]int{d.mark(0, a, "UD_SEND_ONLY 0 1 src=17"), d.mark(0, a, "UD_SEND_ONLY 0 1 src=18"), d.mark(0, b, "UD_SEND_ONLY 0 1 src=17")}
		if got != want.ud {
			t.Errorf("%v, UD: %v, want %v", mode, got, want.ud)
		}
	}
}

// No CNP for acknowledgements, nor to who has no right to send, or no queue pair that
// could be told; and none without a notification point.
func TestNoCNP(t *testing.T) {
	for _, c := range []struct {
		name, line string
		typ        QPType
		n          *Notifier
	}{
		{"acknowledgement", "ACKNOWLEDGE 0", RC, new(Notifier)},
		{"another Q_Key", "UD_SEND_ONLY 0 1 qkey=0x99", UD, new(Notifier)},
		{"from queue pair 1", "UD_SEND_ONLY 0 1 src=1", UD, new(Notifier)},
		{"from the multicast queue pair", "UD_SEND_ONLY 0 1 src=0xffffff", UD, new(Notifier)},
		{"no notification point", "RDMA_WRITE_ONLY 0 1", RC, nil},
	} {
		m := newMarked(t, c.typ, c.n)
		if n := m.mark(0, "192.0.2.2", c.line); n != 0 || m.counts.Load(NPECNMarked) != 1 {
			t.Errorf("%s: %d CNPs, %d marks", c.name, n, m.counts.Load(NPECNMarked))
		}
	}
}

// CNPs that find no room stay due; of datagrams from three hosts at once two are told
// of, and the third with its next.
func TestCNPsWait(t *testing.T) {
	m := newMarked(t, UD, &Notifier{Interval: time.Second})
	m.out.room = 0
	for _, src := range []string{"192.0.2.2", "192.0.2.3", "192.0.2.4"} {
		m.mark(0, src, "UD_SEND_ONLY 0 1")
	}
	if m.q.Wants() != WantControl {
		t.Fatal("no CNP is due")
	}
	m.out.room = -1
	if m.q.TransmitControl(0, &m.out); len(m.out.sent) != 2 || m.q.Wants() != 0 {
		t.Fatalf("%d CNPs, wants %v", len(m.out.sent), m.q.Wants())
	}
	if n := m.mark(0, "192.0.2.4", "UD_SEND_ONLY 0 1"); n != 1 {
		t.Errorf("%d CNPs for the third", n)
	}
}

// What comes when the receive socket has overflowed causes CNPs if that is wanted, and
// they are counted apart.
func TestCNPOnOverflow(t *testing.T) {
	for _, on := range []bool{false, true} {
		m := newMarked(t, RC, &Notifier{Interval: 50 * us, Overflow: on})
		p, _ := ib.Parse(m.build("RDMA_WRITE_ONLY 0 1"))
		m.q.Receive(0, &Inbound{Packet: p, Src: rspPeer, Dst: rspSelf, Overflow: true})
		m.q.TransmitControl(0, &m.out)
		if n := m.counts.Load(NPCNPOverflow); (n == 1) != on || m.counts.Load(NPCNPSent) != 0 || len(m.out.sent) != int(n) {
			t.Errorf("wanted %v: %d for an overflow, %d for a mark, %d packets", on, n, m.counts.Load(NPCNPSent), len(m.out.sent))
		}
	}
}

// Packets are ECT(0) if that is wanted and the traffic class of the program has no ECN
// codepoint; its DSCP stays. Multicast is not.
func TestECN(t *testing.T) {
	for _, c := range []struct {
		ecn       bool
		dst       string
		tos, want uint8
	}{
		{false, "192.0.2.1", 0x68, 0x68}, {true, "192.0.2.1", 0x68, 0x6a}, {true, "192.0.2.1", 0, 2},
		{true, "192.0.2.1", 0x69, 0x69}, {true, "192.0.2.1", 3, 3}, {true, "224.0.0.5", 0x68, 0x68}, {true, "ff02::5", 0, 0},
	} {
		q := QP{cfg: QPConfig{ECN: c.ecn}}
		if got := q.ecn(Path{Dst: netip.MustParseAddr(c.dst), TOS: c.tos}); got.TOS != c.want {
			t.Errorf("%+v: TOS %#x", c, got.TOS)
		}
	}
	w := newReqWorld(t, 0)
	w.cfg.ECN = true
	w.connect()
	w.post([]string{"1", "SEND", "1"})
	if w.turn(0); w.out.via[0].TOS != 0x6a || w.q.Query().AV.TrafficClass != 0x68 {
		t.Errorf("TOS %#x, traffic class %#x", w.out.via[0].TOS, w.q.Query().AV.TrafficClass)
	}
}

// Pacing allocates nothing, nor does what makes and hears CNPs.
func TestCongestionAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w := newPaced(t, UC, cc.DCQCN{})
	w.cfg.SendCQ = nullCQ{}
	w.q.cfg.SendCQ, w.q.cfg.Notifier = nullCQ{}, new(Notifier)
	out, now := &fixedOutbox{}, time.Duration(0)
	list := []mem.SGE{{Addr: reqIOVA, Length: 500, LKey: w.src.Key()}}
	b := make([]byte, ib.CNPSize)
	ib.PutCNP(b, w.cfg.Num)
	p, _ := ib.Parse(b)
	cnp := Inbound{Packet: p, Src: reqPeer}
	if n := testing.AllocsPerRun(100, func() {
		now += 20 * us
		w.sq.post(SendWQE{Opcode: WRSend, Flags: Signaled}, list, nil)
		w.q.Kick(now)
		w.q.Expire(now)
		w.q.Transmit(now, out, 1<<16)
		w.q.Receive(now, &cnp)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if w.counts.Load(RPCNPHandled) != 101 || w.q.Congestion().Rate == cc.Unlimited {
		t.Errorf("%d CNPs, %+v", w.counts.Load(RPCNPHandled), w.q.Congestion())
	}
}

// FuzzCNP: whatever a CNP has in its fields, and however often it comes, it cuts a rate
// at most. What the queue pair was doing goes on and completes, and so does what it does
// next.
func FuzzCNP(f *testing.F) {
	b := make([]byte, ib.CNPSize)
	ib.PutCNP(b, 0x111111)
	f.Add(b, true, uint8(RC), uint8(1))
	f.Add(bytes.Repeat([]byte{0xff}, ib.CNPSize), false, uint8(UD), uint8(200))
	rng := rand.New(rand.NewPCG(1, 2))
	for k := range 20 {
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(bytes.Clone(b), true, uint8(k%3), uint8(rng.Uint32()))
	}
	f.Fuzz(func(t *testing.T, b []byte, forUs bool, service, times uint8) {
		if len(b) == 0 {
			return
		}
		b[0] = byte(ib.OpCNP)
		if forUs && len(b) >= ib.BTHSize {
			b[1] &= 0xf0 // transport header version
			copy(b[5:], []byte{0x11, 0x11, 0x11})
		}
		p, bad := ib.Parse(b)
		if bad != ib.OK {
			return
		}
		w := newPaced(t, []QPType{RC, UC, UD}[service%3], cc.DCQCN{})
		send := func(id string, now time.Duration) {
			w.post([]string{id, "SEND", "200", "ah=5", "qp=17"}[:3+2*(service%3/2)])
			if w.turn(now) == 0 {
				t.Fatalf("SEND %s did not leave at %v: %+v", id, now, w.q.Congestion())
			}
		}
		send("1", 0)
		before := len(w.out.sent)
		for k := range times {
			w.q.Receive(time.Duration(k)*us, &Inbound{Packet: p, Src: []netip.Addr{reqPeer, reqPeer, netip.MustParseAddr("192.0.2.5")}[service%3]})
		}
		if s := w.q.Congestion(); w.q.State() != RTS || len(w.out.sent) != before || s.Rate < 10*cc.Mbps || w.counts.Load(RPCNPHandled) != uint64(times) {
			t.Fatalf("state %v, %d packets, %d CNPs of %d handled, %+v", w.q.State(), len(w.out.sent)-before, w.counts.Load(RPCNPHandled), times, s)
		}
		send("2", 2*time.Millisecond) // 10 Mb/s send them both in less
		if w.q.cfg.Type == RC {
			w.ack(1)
		}
		if !slices.Equal(w.wcs, []string{"wc 1 SEND ok", "wc 2 SEND ok"}) {
			t.Fatalf("completions %q", w.wcs)
		}
	})
}
