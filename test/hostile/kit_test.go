// Package hostile tests what strangers on the network, and peers that misbehave,
// can do to a whole device: packets that have killed others, every reason for a
// drop, what a spoofed packet costs, floods, and whatever fuzzing finds. Its tests
// run in seconds; `make hostile` gives them the sizes that docs/security.md quotes.
package hostile

import (
	"bytes"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// injector is a backend into which packets can be put that seem to come from
// anywhere. It remembers what was sent.
type injector struct {
	netio.Backend
	in   []netio.Received
	sent [][]byte
	mute bool // nothing is sent, so that no peer answers
	noID bool // the IPv4 Identification is not known, as with a UDP socket
}

func (i *injector) Recv(now time.Duration, dst []netio.Received) (int, error) {
	if len(i.in) == 0 {
		return i.Backend.Recv(now, dst)
	}
	n := copy(dst, i.in)
	i.in = i.in[n:]
	return n, nil
}

func (i *injector) Send(now time.Duration, runs []netio.Run) (int, error) {
	for r := range runs {
		for s := range runs[r].Segments() {
			i.sent = append(i.sent, bytes.Clone(runs[r].Segment(s)))
		}
	}
	if i.mute {
		return len(runs), nil
	}
	return i.Backend.Send(now, runs)
}

// victim is a device under attack, moved by hand, with a connected queue pair of
// each kind and a peer for them.
type victim struct {
	t          testing.TB
	dev        *roce.Device
	in         *injector
	peer       *roce.Device
	now        time.Duration
	rc, uc, ud *rocetest.Endpoint // of the victim
	xrc        *rocetest.Endpoint // ... whose QP is a target, and whose memory and CQ are those of srq
	srq        *roce.SRQ
	rcPeer     *rocetest.Endpoint
	other      *rocetest.Endpoint // a second connection, which nobody attacks
	otherPeer  *rocetest.Endpoint
	v6         bool // addresses are IPv6, see at
	asked      int  // PSNs that the attacked queue pair has used before
	fresh      byte // what the other connection has written last
}

var (
	victimAddr = netip.MustParseAddr("10.0.0.1")
	peerAddr   = netip.MustParseAddr("10.0.0.2")
	stranger   = netip.MustParseAddr("10.0.0.66")
)

const (
	victimQKey = 0x11
	startPSN   = 0xfffffe // of what the peer sends
)

// at is an address as this victim's network has it: over IPv6 the last four bytes are
// those of the IPv4 address by which tests call it.
func (v *victim) at(a netip.Addr) netip.Addr {
	if !v.v6 {
		return a
	}
	b := [16]byte{0: 0xfd}
	four := a.As4()
	copy(b[12:], four[:])
	return netip.AddrFrom16(b)
}

// port is the address with the port of RoCEv2.
func (v *victim) port(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(v.at(a), netio.Port) }

// overBoth runs a test with a victim on IPv4 and with one on IPv6.
func overBoth(t *testing.T, name string, f func(t *testing.T, v *victim)) {
	t.Run(name, func(t *testing.T) { f(t, newVictim(t)) })
	t.Run(name+", IPv6", func(t *testing.T) { f(t, newVictim6(t)) })
}

// newVictim returns a victim whose memory peers may do everything to, newVictim6 one
// whose network is IPv6.
func newVictim(t testing.TB) *victim { return makeVictim(t, false) }

func newVictim6(t testing.TB) *victim { return makeVictim(t, true) }

func makeVictim(t testing.TB, v6 bool) *victim {
	v := &victim{t: t, now: time.Second, v6: v6}
	fabric := netio.NewFabric()
	fabric.RecvBuffer = 64 << 10 // fuzzing makes many victims
	open := func(addr netip.Addr) (*roce.Device, *injector) {
		be, err := fabric.Open(v.port(addr))
		must(t, err)
		in := &injector{Backend: be}
		allow := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::a00:0/104")}
		d, err := roce.Open(roce.Config{Backend: in, Manual: true, AllowPeers: allow})
		must(t, err)
		t.Cleanup(func() { d.Close() })
		return d, in
	}
	v.dev, v.in = open(victimAddr)
	v.peer, _ = open(peerAddr)
	small := func(d *roce.Device, typ roce.QPType) *rocetest.Endpoint {
		return rocetest.New(t, d, rocetest.Options{Memory: 16 << 10, CQEntries: 512, QP: roce.QPConfig{Type: typ}})
	}
	v.rc, v.rcPeer = small(v.dev, roce.RC), small(v.peer, roce.RC)
	v.connect(v.rc, v.rcPeer)
	v.other, v.otherPeer = small(v.dev, roce.RC), small(v.peer, roce.RC)
	v.connect(v.other, v.otherPeer)
	v.uc = small(v.dev, roce.UC)
	v.connect(v.uc, small(v.peer, roce.UC))
	v.ud = small(v.dev, roce.UD)
	must(t, v.ud.QP.Activate(victimQKey))
	v.target()
	for _, e := range v.attacked() {
		fill(e.MR.Bytes())
	}
	return v
}

// attacked are the endpoints that packets are sent to.
func (v *victim) attacked() []*rocetest.Endpoint {
	return []*rocetest.Endpoint{v.rc, v.uc, v.ud, v.xrc}
}

// target makes a target of XRC, connected to a sender of the peer, and a receive
// queue for it.
func (v *victim) target() {
	dom, err := v.dev.OpenXRCD("", os.O_CREATE)
	must(v.t, err)
	v.xrc = rocetest.New(v.t, v.dev, rocetest.Options{Memory: 16 << 10, CQEntries: 512})
	must(v.t, v.xrc.QP.Destroy())
	v.xrc.QP, err = dom.CreateQP()
	must(v.t, err)
	v.srq, err = v.xrc.PD.CreateSRQ(roce.SRQConfig{XRCD: dom, CQ: v.xrc.CQ})
	must(v.t, err)
	v.connect(v.xrc, rocetest.New(v.t, v.peer, rocetest.Options{Memory: 8, CQEntries: 512, QP: roce.QPConfig{Type: roce.XRCSend}}))
}

// connect connects two queue pairs; what the victim expects has a fixed PSN.
func (v *victim) connect(own, peer *rocetest.Endpoint) {
	conn := roce.Conn{PathMTU: roce.MTU1024, Access: roce.RemoteWrite | roce.RemoteRead | roce.RemoteAtomic | roce.FlushGlobal}
	must(v.t, own.QP.Connect(roce.Remote{Addr: v.at(peerAddr), QPN: peer.QP.Num(), PSN: startPSN}, conn))
	must(v.t, peer.QP.Init(conn.Access))
	must(v.t, peer.QP.RTR(roce.Remote{Addr: v.at(victimAddr), QPN: own.QP.Num(), PSN: own.QP.PSN()}, conn))
	attr, mask := roce.Attr{State: roce.StateRTS, SQPSN: startPSN, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 4}, roce.MaskState|roce.MaskSQPSN
	if s := serviceOf(peer); s == ib.TransportRC || s == ib.TransportXRC {
		mask |= roce.MaskTimeout | roce.MaskRetryCnt | roce.MaskRNRRetry | roce.MaskMaxRdAtomic
	}
	must(v.t, peer.QP.Modify(&attr, mask))
}

func fill(b []byte) {
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
}

// settle lets both devices do what there is to do now.
func (v *victim) settle() {
	for range 1000 {
		if v.dev.Progress(v.now) > v.now && v.peer.Progress(v.now) > v.now && v.dev.Progress(v.now) > v.now {
			return
		}
	}
	v.t.Fatal("the devices do not come to rest")
}

// put hands the victim packets as they are, and lets it take them.
func (v *victim) put(src netip.Addr, packets ...[]byte) {
	for _, b := range packets {
		v.in.in = append(v.in.in, netio.Received{
			Src: v.port(src), Dst: v.port(victimAddr), IDKnown: !v.in.noID && !v.v6, Buf: b,
		})
	}
	for len(v.in.in) > 0 || v.dev.Progress(v.now) == v.now {
		v.dev.Progress(v.now)
	}
}

// attack hands the victim packets with a right ICRC.
func (v *victim) attack(src netip.Addr, packets ...[]byte) {
	for _, b := range packets {
		v.seal(src, b)
	}
	v.put(src, packets...)
}

// seal writes the ICRC of a packet from src, if there is room for one.
func (v *victim) seal(src netip.Addr, b []byte) {
	if len(b) >= ib.BTHSize+ib.ICRCSize && len(b) < 60000 {
		flow := ib.NewFlow(v.port(src), v.port(victimAddr))
		flow.Seal(0, b)
	}
}

// healthy fails unless the process is still a device that carries data for the
// connection which nobody attacks, and nothing has panicked.
func (v *victim) healthy(what string) {
	v.t.Helper()
	v.fresh++
	src, dst := v.otherPeer.MR.Bytes(), v.other.MR.Bytes()
	src[5], dst[5] = v.fresh, 0
	must(v.t, v.otherPeer.QP.PostSend(roce.SendWR{ID: 77, Opcode: roce.WRWrite, Flags: roce.Signaled,
		SGE: []roce.SGE{v.otherPeer.MR.SGE(0, 3000)}, RemoteAddr: v.other.MR.Addr(), RKey: v.other.MR.RKey()}))
	v.settle()
	var wc [1]roce.WC
	if n, err := v.otherPeer.CQ.Poll(wc[:]); n != 1 || err != nil || wc[0].Status != roce.WCSuccess || dst[5] != v.fresh {
		v.t.Fatalf("%s: another connection no longer works: %d completions, %v, %v", what, n, err, wc[0].Status)
	}
	if _, err := v.dev.CreateCQ(1); err != nil {
		v.t.Fatalf("%s: %v", what, err)
	}
}

// spec is a packet: a zero field is what a well-behaved peer sends.
type spec struct {
	op       ib.Opcode
	qpn      ib.QPN // 0: that of the queue pair of the opcode's service
	psn      int    // beyond the one that is expected next
	ack, mig bool
	pkey     ib.PKey
	va       uint64 // beyond the region of the queue pair
	rkey     uint32 // 0: that of the region
	length   uint32 // of the RETH
	n        int    // bytes of payload
	syndrome ib.Syndrome
	qkey     uint32 // 0: the right one
	inv      uint32 // key to invalidate
	compare  uint64
	feth     ib.FETH
}

// packet writes a packet to the victim, without its ICRC.
func (v *victim) packet(s spec) []byte {
	info := s.op.Info()
	end, to := v.rc, s.qpn
	switch info.Transport {
	case ib.TransportUC:
		end = v.uc
	case ib.TransportUD:
		end = v.ud
	case ib.TransportXRC:
		end = v.xrc
	}
	region := end.MR
	if to == 0 {
		to = end.QP.Num()
	}
	if s.pkey == 0 {
		s.pkey = ib.DefaultPKey
	}
	if s.rkey == 0 {
		s.rkey = region.RKey()
	}
	if s.qkey == 0 {
		s.qkey = victimQKey
	}
	pad := -s.n & 3
	b := make([]byte, info.HeaderLen+s.n+pad+ib.ICRCSize)
	at := ib.BTH{Opcode: s.op, MigReq: !s.mig, Pad: uint8(pad), PKey: s.pkey, DestQP: to, AckReq: s.ack, PSN: ib.PSN(startPSN).Add(s.psn)}.Put(b)
	for _, h := range []struct {
		has bool
		put func([]byte) int
	}{
		{info.DETH, ib.DETH{QKey: s.qkey, SrcQP: 9}.Put},
		{info.XRCETH, ib.XRCETH(v.srqn()).Put},
		{info.FETH, s.feth.Put},
		{info.RETH, ib.RETH{VA: region.Addr() + s.va, RKey: s.rkey, Length: s.length}.Put},
		{info.AtomicETH, ib.AtomicETH{VA: region.Addr() + s.va, RKey: s.rkey, SwapAdd: 1, Compare: s.compare}.Put},
		{info.AETH, ib.AETH{Syndrome: s.syndrome}.Put},
		{info.AtomicAckETH, ib.AtomicAckETH(0).Put},
		{info.IETH, ib.IETH(s.inv).Put},
		{info.Imm, ib.ImmDt(0).Put},
	} {
		if h.has {
			at += h.put(b[at:])
		}
	}
	if at != info.HeaderLen {
		v.t.Fatalf("%v has %d bytes of headers, %d were written", s.op, info.HeaderLen, at)
	}
	for i := range s.n {
		b[at+i] = 0xee
	}
	return b
}

// changed returns the counters that moved while f ran, but for those of traffic as
// such.
func (v *victim) changed(f func()) map[string]uint64 {
	before := v.dev.Counters()
	f()
	diff := map[string]uint64{}
	for name, n := range v.dev.Counters() {
		switch name {
		case "rcvd_pkts", "sent_pkts", "tx_calls", "tx_runs", "tx_packets", "tx_bytes", "rx_calls", "rx_packets", "rx_bytes":
		default:
			if n != before[name] {
				diff[name] = n - before[name]
			}
		}
	}
	return diff
}

// srqn is the number of the XRC receive queue, if there is one.
func (v *victim) srqn() ib.QPN {
	if v.srq == nil {
		return 5
	}
	return v.srq.Num()
}
