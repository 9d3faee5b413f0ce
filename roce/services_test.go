package roce_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// TestUCOperations: each operation of UC arrives, completes on both sides as verbs
// say, and leaves every byte in place.
func TestUCOperations(t *testing.T) {
	a, b := rocetest.Options{QP: roce.QPConfig{Type: roce.UC}, Conn: roce.Conn{PathMTU: roce.MTU1024}}.Pair(t)
	for _, size := range []int{0, 1, 1024, 1025, 70000} {
		for _, op := range []roce.WROpcode{roce.WRSend, roce.WRSendWithImm, roce.WRWrite, roce.WRWriteWithImm} {
			src, dst := a.MR.Bytes()[:size], b.MR.Bytes()[100:][:size]
			fill(src, int(op)+size)
			clear(dst)
			if op != roce.WRWrite {
				must(t, b.QP.PostRecv(roce.RecvWR{ID: 9, SGE: []roce.SGE{b.MR.SGE(100, size)}}))
			}
			must(t, a.QP.PostSend(roce.SendWR{ID: 5, Opcode: op, Flags: roce.Signaled, Imm: 0xabcdef01,
				SGE: []roce.SGE{a.MR.SGE(0, size)}, RemoteAddr: b.MR.Addr() + 100, RKey: b.MR.RKey()}))
			sent, got := roce.WCSend, roce.WCRecv
			if op == roce.WRWrite || op == roce.WRWriteWithImm {
				sent, got = roce.WCWrite, roce.WCRecvRDMAWithImm
			}
			want(t, a.Next(t), 5, sent, roce.WCSuccess)
			if op == roce.WRWrite { // nothing tells of it but the message behind it
				must(t, b.QP.PostRecv(roce.RecvWR{ID: 9}))
				must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRSendWithImm, Imm: 0xabcdef01}))
				got, size = roce.WCRecv, 0
			}
			wc := b.Next(t)
			want(t, wc, 9, got, roce.WCSuccess)
			imm := op != roce.WRSend
			if int(wc.ByteLen) != size || (wc.Flags&roce.WCWithImm != 0) != imm || imm && wc.Imm != 0xabcdef01 || wc.SrcQP != a.QP.Num() {
				t.Errorf("operation %d: completion %+v", op, wc)
			}
			if !bytes.Equal(src, dst) {
				t.Errorf("operation %d, %d bytes: the memory differs", op, len(src))
			}
			size = len(src)
		}
	}
}

// TestUCOperationsOfRC: what UC does not have is refused when posted.
func TestUCOperationsOfRC(t *testing.T) {
	a, _ := rocetest.Options{QP: roce.QPConfig{Type: roce.UC}}.Pair(t)
	var bad *roce.PostError
	if err := a.QP.PostSend(roce.SendWR{Opcode: roce.WRRead}); !errors.As(err, &bad) || bad.Field != "Opcode" {
		t.Errorf("READ: %v", err)
	}
}

// TestUCLoss: over a network that loses, duplicates and reorders, what arrives is
// whole and right, and both sides stay in RTS.
func TestUCLoss(t *testing.T) {
	faults := netio.Faults{Loss: 0.05, Duplicate: 0.02, Reorder: 0.02}
	a, b := rocetest.Options{
		QP: roce.QPConfig{Type: roce.UC, MaxSendWR: 512, MaxRecvWR: 512}, Conn: roce.Conn{PathMTU: roce.MTU256},
		Faults: &netio.FaultConfig{Seed: 3, Rx: faults},
	}.Pair(t)
	const n, size = 400, 1000
	for i := range n {
		must(t, b.QP.PostRecv(roce.RecvWR{ID: uint64(i), SGE: []roce.SGE{b.MR.SGE(i*size, size)}}))
	}
	for i := range n {
		fill(a.MR.Bytes()[i*size:][:size], i)
		must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRSendWithImm, Flags: roce.Signaled, Imm: uint32(i), SGE: []roce.SGE{a.MR.SGE(i*size, size)}}))
	}
	for range n {
		want(t, a.Next(t), 0, roce.WCSend, roce.WCSuccess)
	}
	// What comes behind the messages ends them: one is sent again until it is not lost.
	const last = n
	must(t, b.QP.PostRecv(roce.RecvWR{ID: n}))
	got := 0
	for tries, ended := 0, false; !ended; tries++ {
		if tries == 1000 {
			t.Fatalf("none of %d last messages arrived in 20 s", tries)
		}
		must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRSendWithImm, Imm: last}))
		for deadline := time.Now().Add(20 * time.Millisecond); !ended && time.Now().Before(deadline); {
			var wcs [16]roce.WC
			k, err := b.CQ.Poll(wcs[:])
			must(t, err)
			for _, wc := range wcs[:k] {
				want(t, wc, uint64(got), roce.WCRecv, roce.WCSuccess) // in the order of posting, none skipped
				if ended = wc.Imm == last; ended {
					break
				}
				got++
				if i := int(wc.Imm); !bytes.Equal(a.MR.Bytes()[i*size:][:size], b.MR.Bytes()[int(wc.ID)*size:][:size]) {
					t.Fatalf("message %d is not what was sent", i)
				}
			}
		}
	}
	if got < n/2 || got == n || b.Dev.Counters()["drop_broken_message"] == 0 {
		t.Errorf("%d of %d messages arrived, %d packets of broken ones were dropped", got, n, b.Dev.Counters()["drop_broken_message"])
	}
	if a.QP.State() != roce.StateRTS || b.QP.State() != roce.StateRTS {
		t.Errorf("states %v and %v", a.QP.State(), b.QP.State())
	}
}

// datagrams are two or more endpoints with UD queue pairs.
func datagrams(t testing.TB, addrs []string, cfg roce.QPConfig, wrap func(netio.Backend) netio.Backend) (ends []*rocetest.Endpoint) {
	t.Helper()
	fabric := netio.NewFabric()
	cfg.Type = roce.UD
	for _, addr := range addrs {
		be, err := fabric.Open(netip.AddrPortFrom(netip.MustParseAddr(addr), netio.Port))
		must(t, err)
		if wrap != nil {
			be = wrap(be)
		}
		dev, err := roce.Open(roce.Config{Backend: be})
		must(t, err)
		t.Cleanup(func() { dev.Close() })
		e := rocetest.New(t, dev, rocetest.Options{QP: cfg})
		must(t, e.QP.Activate(0x11111111))
		ends = append(ends, e)
	}
	return ends
}

func handle(t testing.TB, from, to *rocetest.Endpoint) *roce.AH {
	t.Helper()
	ah, err := from.PD.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(to.Dev.Addr()), TrafficClass: 0x28})
	must(t, err)
	return ah
}

// TestDatagrams: one queue pair sends to several, the 40 bytes before the payload
// say where from, and the answer goes to the address made of them.
func TestDatagrams(t *testing.T) {
	for _, addrs := range [][]string{{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, {"2001:db8::1", "2001:db8::2", "2001:db8::3"}} {
		ends := datagrams(t, addrs, roce.QPConfig{MaxInline: 64}, nil)
		a := ends[0]
		for i, b := range ends[1:] {
			for _, size := range []int{0, 1, 39, 4096} {
				fill(a.MR.Bytes()[:size], i+size)
				must(t, b.QP.PostRecv(roce.RecvWR{ID: 7, SGE: []roce.SGE{b.MR.SGE(0, 40), b.MR.SGE(1000, size)}}))
				must(t, a.QP.PostSend(roce.SendWR{ID: 1, Opcode: roce.WRSendWithImm, Flags: roce.Signaled, Imm: 3, SGE: []roce.SGE{a.MR.SGE(0, size)},
					AH: handle(t, a, b), RemoteQPN: b.QP.Num(), QKey: 0x11111111}))
				want(t, a.Next(t), 1, roce.WCSend, roce.WCSuccess)
				wc := b.Next(t)
				want(t, wc, 7, roce.WCRecv, roce.WCSuccess)
				if int(wc.ByteLen) != 40+size || wc.Flags != roce.WCGRH|roce.WCWithImm || wc.Imm != 3 || wc.SrcQP != a.QP.Num() {
					t.Errorf("completion %+v", wc)
				}
				if !bytes.Equal(a.MR.Bytes()[:size], b.MR.Bytes()[1000:][:size]) {
					t.Errorf("%d bytes: the payload differs", size)
				}
				grh := b.MR.Bytes()[:40]
				av, err := b.Dev.AddressFromWC(&wc, grh)
				must(t, err)
				if av.DGID.Addr() != a.Dev.Addr() || av.TrafficClass != 0x28 {
					t.Errorf("address %v", av)
				}
				back, err := b.PD.CreateAHFromWC(&wc, grh)
				must(t, err)
				must(t, a.QP.PostRecv(roce.RecvWR{ID: 8, SGE: []roce.SGE{a.MR.SGE(8192, 100)}}))
				must(t, b.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Inline, Data: []byte("answer"), AH: back, RemoteQPN: wc.SrcQP, QKey: 0x11111111}))
				wc = a.Next(t)
				want(t, wc, 8, roce.WCRecv, roce.WCSuccess)
				if got := string(a.MR.Bytes()[8192+40:][:wc.ByteLen-40]); got != "answer" || wc.SrcQP != b.QP.Num() {
					t.Errorf("answer %q from %#x", got, wc.SrcQP)
				}
				must(t, back.Destroy())
			}
		}
	}
}

// TestDatagramQKey: the Q_Key is checked by the receiver; the high bit sends the
// queue pair's own (IBTA 10.2.5).
func TestDatagramQKey(t *testing.T) {
	ends := datagrams(t, []string{"10.0.0.1", "10.0.0.2"}, roce.QPConfig{}, nil)
	a, b := ends[0], ends[1]
	must(t, b.QP.PostRecv(roce.RecvWR{SGE: []roce.SGE{b.MR.SGE(0, 100)}}))
	for i, qkey := range []uint32{0, 0x11111110, 0x91111111} {
		must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRSendWithImm, Imm: uint32(i), AH: handle(t, a, b), RemoteQPN: b.QP.Num(), QKey: qkey}))
	}
	if wc := b.Next(t); wc.Imm != 2 {
		t.Errorf("the datagram with Q_Key number %d came through", wc.Imm)
	}
	if n := b.Dev.Counters()["drop_qkey"]; n != 2 {
		t.Errorf("drop_qkey is %d", n)
	}
}

// TestDatagramPostErrors: what cannot be posted is named.
func TestDatagramPostErrors(t *testing.T) {
	ends := datagrams(t, []string{"10.0.0.1", "10.0.0.2"}, roce.QPConfig{MaxInline: 1024}, func(be netio.Backend) netio.Backend { return smallMTU{be} })
	a, b := ends[0], ends[1]
	ah, gone, foreign := handle(t, a, b), handle(t, a, b), handle(t, b, a)
	must(t, gone.Destroy())
	for _, tt := range []struct {
		name, field string
		change      func(wr *roce.SendWR)
	}{
		{"none", "", func(*roce.SendWR) {}},
		{"largest", "", func(wr *roce.SendWR) { wr.SGE = []roce.SGE{a.MR.SGE(0, 500), a.MR.SGE(0, 12)} }},
		{"too long", "SGE", func(wr *roce.SendWR) { wr.SGE = []roce.SGE{a.MR.SGE(0, 500), a.MR.SGE(0, 13)} }},
		{"too long inline", "Data", func(wr *roce.SendWR) { wr.SGE, wr.Data, wr.Flags = nil, make([]byte, 513), roce.Inline }},
		{"no handle", "AH", func(wr *roce.SendWR) { wr.AH = nil }},
		{"destroyed handle", "AH", func(wr *roce.SendWR) { wr.AH = gone }},
		{"foreign handle", "AH", func(wr *roce.SendWR) { wr.AH = foreign }},
		{"queue pair 0", "RemoteQPN", func(wr *roce.SendWR) { wr.RemoteQPN = 0 }},
		{"queue pair too high", "RemoteQPN", func(wr *roce.SendWR) { wr.RemoteQPN = 1 << 24 }},
		{"WRITE", "Opcode", func(wr *roce.SendWR) { wr.Opcode = roce.WRWrite }},
		{"READ", "Opcode", func(wr *roce.SendWR) { wr.Opcode = roce.WRRead }},
	} {
		wr := roce.SendWR{Opcode: roce.WRSend, AH: ah, RemoteQPN: b.QP.Num(), SGE: []roce.SGE{a.MR.SGE(0, 5)}}
		tt.change(&wr)
		err := a.QP.PostSend(wr)
		var bad *roce.PostError
		if tt.field == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
		} else if !errors.As(err, &bad) || bad.Field != tt.field {
			t.Errorf("%s: error %v, want one of field %s", tt.name, err, tt.field)
		}
	}
}

// smallMTU is a backend on an interface for packets of 512 bytes of payload.
type smallMTU struct{ netio.Backend }

func (s smallMTU) Caps() netio.Caps {
	c := s.Backend.Caps()
	c.MTU = 600
	return c
}

// TestSendError: a request that fails locally puts a UD queue pair into SQE, in
// which it receives, flushes what is posted, and from which it comes back (IBTA
// 10.3.1.6).
func TestSendError(t *testing.T) {
	ends := datagrams(t, []string{"10.0.0.1", "10.0.0.2"}, roce.QPConfig{}, nil)
	a, b := ends[0], ends[1]
	ah := handle(t, a, b)
	send := func(id uint64, sge ...roce.SGE) {
		t.Helper()
		must(t, a.QP.PostSend(roce.SendWR{ID: id, Opcode: roce.WRSend, Flags: roce.Signaled, SGE: sge, AH: ah, RemoteQPN: b.QP.Num(), QKey: 0x11111111}))
	}
	bad := a.MR.SGE(0, 8)
	bad.LKey ^= 1
	send(1, bad)
	want(t, a.Next(t), 1, roce.WCSend, roce.WCLocProtErr)
	send(2)
	want(t, a.Next(t), 2, roce.WCSend, roce.WCWRFlushErr)
	if s := a.QP.State(); s != roce.StateSQE {
		t.Fatalf("state %v", s)
	}
	must(t, a.QP.PostRecv(roce.RecvWR{ID: 3, SGE: []roce.SGE{a.MR.SGE(0, 40)}}))
	must(t, b.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, AH: handle(t, b, a), RemoteQPN: a.QP.Num(), QKey: 0x11111111}))
	want(t, a.Next(t), 3, roce.WCRecv, roce.WCSuccess)
	must(t, a.QP.Modify(&roce.Attr{State: roce.StateRTS}, roce.MaskState))
	must(t, b.QP.PostRecv(roce.RecvWR{ID: 4, SGE: []roce.SGE{b.MR.SGE(0, 40)}}))
	send(5)
	want(t, a.Next(t), 5, roce.WCSend, roce.WCSuccess)
	want(t, b.Next(t), 4, roce.WCRecv, roce.WCSuccess)
}

// TestAddressHandles: what they refuse, and that they hold their domain.
func TestAddressHandles(t *testing.T) {
	ends := datagrams(t, []string{"10.0.0.1", "10.0.0.2"}, roce.QPConfig{}, nil)
	a := ends[0]
	for _, tt := range []struct {
		av    roce.AddressVector
		field string
	}{
		{roce.AddressVector{}, "AV.DGID"},
		{roce.AddressVector{DGID: ib.GIDFromAddr(netip.MustParseAddr("2001:db8::1"))}, "AV.DGID"},
		{roce.AddressVector{DGID: ib.GIDFromAddr(netip.MustParseAddr("0.0.0.0"))}, "AV.DGID"},
		{roce.AddressVector{DGID: ib.GIDFromAddr(ends[1].Dev.Addr()), SGIDIndex: 1}, "AV.SGIDIndex"},
	} {
		var bad *roce.ConfigError
		if _, err := a.PD.CreateAH(tt.av); !errors.As(err, &bad) || bad.Field != tt.field {
			t.Errorf("%+v: error %v", tt.av, err)
		}
	}
	good := roce.WC{Flags: roce.WCGRH}
	grh := make([]byte, 40)
	for name, try := range map[string]func() error{
		"a completion without GRH": func() error { _, err := a.PD.CreateAHFromWC(&roce.WC{}, grh); return err },
		"a failed completion": func() error {
			_, err := a.PD.CreateAHFromWC(&roce.WC{Flags: roce.WCGRH, Status: roce.WCLocProtErr}, grh)
			return err
		},
		"no header":     func() error { _, err := a.PD.CreateAHFromWC(&good, grh); return err },
		"too few bytes": func() error { _, err := a.PD.CreateAHFromWC(&good, grh[:39]); return err },
		"a datagram to another": func() error {
			ib.PutGRH(grh, ends[1].Dev.Addr(), netip.MustParseAddr("10.0.0.9"), 0, 28)
			_, err := a.PD.CreateAHFromWC(&good, grh)
			return err
		},
	} {
		var bad *roce.ConfigError
		if err := try(); !errors.As(err, &bad) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	pd, err := a.Dev.AllocPD()
	must(t, err)
	ah, err := pd.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(ends[1].Dev.Addr())})
	must(t, err)
	if err := pd.Dealloc(); !errors.Is(err, roce.ErrBusy) {
		t.Errorf("Dealloc with a handle: %v", err)
	}
	must(t, ah.Destroy())
	if err := ah.Destroy(); !errors.Is(err, roce.ErrClosed) {
		t.Errorf("Destroy twice: %v", err)
	}
	must(t, pd.Dealloc())
}

// TestDatagramsFromManyHosts: whatever addresses datagrams come from, the device
// keeps no more of them than before, and takes them.
func TestDatagramsFromManyHosts(t *testing.T) {
	fabric := netio.NewFabric()
	be, err := fabric.Open(netip.MustParseAddrPort("10.0.0.1:4791"))
	must(t, err)
	dev, err := roce.Open(roce.Config{Backend: hideIDs{be}})
	must(t, err)
	defer dev.Close()
	e := rocetest.New(t, dev, rocetest.Options{QP: roce.QPConfig{Type: roce.UD, MaxRecvWR: 1}})
	must(t, e.QP.Activate(5))
	packet := func(imm uint32) []byte {
		b := make([]byte, ib.BTHSize+ib.DETHSize+ib.ImmDtSize+ib.ICRCSize)
		ib.BTH{Opcode: ib.OpUDSendOnlyImm, PKey: ib.DefaultPKey, DestQP: e.QP.Num(), PSN: ib.PSN(imm)}.Put(b)
		ib.DETH{QKey: 5, SrcQP: 9}.Put(b[ib.BTHSize:])
		binary.BigEndian.PutUint32(b[ib.BTHSize+ib.DETHSize:], imm)
		return b
	}
	for i := range uint32(2000) {
		must(t, e.QP.PostRecv(roce.RecvWR{SGE: []roce.SGE{e.MR.SGE(0, 40)}}))
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 0x0b000000+i*7)
		src, err := fabric.Open(netip.AddrPortFrom(netip.AddrFrom4(a), 4791))
		must(t, err)
		b := packet(i)
		flow := ib.NewFlow(src.LocalAddr(), be.LocalAddr())
		flow.Seal(uint16(i), b)
		_, err = src.Send(0, []netio.Run{{Dst: be.LocalAddr(), SegSize: len(b), Buf: b}})
		must(t, err)
		must(t, src.Close())
		if wc := e.Next(t); wc.Imm != i {
			t.Fatalf("datagram %d: %+v", i, wc)
		}
	}
}

// hideIDs is a backend that does not know the IPv4 Identification of what it
// receives, as a UDP socket.
type hideIDs struct{ netio.Backend }

func (h hideIDs) Recv(now time.Duration, dst []netio.Received) (int, error) {
	n, err := h.Backend.Recv(now, dst)
	for i := range dst[:n] {
		dst[i].IDKnown = false
	}
	return n, err
}

// TestServicesOfQueuePairs: which kinds there are.
func TestServicesOfQueuePairs(t *testing.T) {
	a, _ := rocetest.Pair(t)
	for typ, ok := range map[roce.QPType]bool{roce.RC: true, roce.UC: true, roce.UD: true, roce.XRCSend: true, roce.XRCRecv: false, 1: false} {
		_, err := a.PD.CreateQP(roce.QPConfig{Type: typ, SendCQ: a.CQ})
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "RC, UC, UD and XRCSend") {
			t.Errorf("%v: %v", typ, err)
		}
	}
	if err := func() error {
		q, err := a.PD.CreateQP(roce.QPConfig{Type: roce.UD, SendCQ: a.CQ})
		must(t, err)
		return q.Init(0)
	}(); err == nil || !strings.Contains(fmt.Sprint(err), "QKey") {
		t.Errorf("Init of UD without a Q_Key: %v", err)
	}
}
