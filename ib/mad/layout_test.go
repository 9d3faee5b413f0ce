package mad

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/goroce/goroce/ib"
)

// unhex makes bytes of hexadecimal digits; spaces are for the reader.
func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

var testPath = Path{
	LocalLID: 0x1122, RemoteLID: 0x3344, LocalGID: ib.GID{0: 0xa1, 15: 0xaf}, RemoteGID: ib.GID{0: 0xb1, 15: 0xbf},
	FlowLabel: 0xfedcb, PacketRate: 0x3f, TrafficClass: 0x5a, HopLimit: 0x40, SL: 0xe, SubnetLocal: true, LocalACKTimeout: 0x11,
}

const (
	testEnds = "1122 3344 a1 0000000000000000000000000000 af b1 0000000000000000000000000000 bf"
	inREQ    = testEnds + " fedcb03f 5a 40 e8 88"
	inLAP    = testEnds + " fedcb05a 40 3f e8 88"
)

// Each message byte by byte, laid out by hand from IBTA 12.6 and 12.11, 13.4.8.1 and
// 16.1 (Linux include/rdma/ibta_vol1_c12.h, ib_pma.h): all bits of all fields
// once, the bytes behind the header up to the last that is not 0.
func TestLayout(t *testing.T) {
	data := []byte{0xd1, 0xd2}
	zeroes := func(n int) string { return strings.Repeat("00", n) }
	const ids = "01020304 05060708"
	for _, c := range []struct {
		m    Message
		want string
	}{
		{&REQ{
			LocalCommID: 0x01020304, ServiceID: 0x1112131415161718, LocalCAGUID: 0x2122232425262728, LocalQKey: 0x31323334,
			LocalQPN: 0xabcdef, ResponderResources: 0x41, LocalEECN: 0x515253, InitiatorDepth: 0x42, RemoteEECN: 0x616263,
			RemoteCMResponseTimeout: 0x15, Transport: TransportExtended, FlowControl: true, StartingPSN: 0x717273,
			LocalCMResponseTimeout: 0x0a, RetryCount: 5, PKey: 0x8182, PathMTU: ib.MTU4096, RDCExists: true, RNRRetryCount: 6,
			MaxCMRetries: 9, SRQ: true, ExtendedTransport: ExtendedXRC, Primary: testPath, Alternate: testPath, PrivateData: data,
		}, "01020304 00000000 1112131415161718 2122232425262728 00000000 31323334 abcdef 41 515253 42 616263 af" +
			"717273 55 8182 5e 99" + inREQ + inREQ + "d1d2"},
		{&MRA{LocalCommID: 0x01020304, RemoteCommID: 0x05060708, MRAed: MsgOther, ServiceTimeout: 0x1f, PrivateData: data}, ids + "80 f8 d1d2"},
		{&REJ{
			LocalCommID: 0x01020304, RemoteCommID: 0x05060708, Rejected: MsgREP, Reason: 0x1234, ARI: []byte{9, 8, 7}, PrivateData: data,
		}, ids + "40 06 1234 090807" + zeroes(69) + "d1d2"},
		{&REP{
			LocalCommID: 0x01020304, RemoteCommID: 0x05060708, LocalQKey: 0x31323334, LocalQPN: 0xabcdef, LocalEECN: 0x515253,
			StartingPSN: 0x717273, ResponderResources: 0x41, InitiatorDepth: 0x42, TargetACKDelay: 0x15, FailoverAccepted: 2,
			FlowControl: true, RNRRetryCount: 5, SRQ: true, LocalCAGUID: 0x2122232425262728, PrivateData: data,
		}, ids + "31323334 abcdef00 51525300 71727300 41 42 ad b0 2122232425262728 d1d2"},
		{&RTU{LocalCommID: 0x01020304, RemoteCommID: 0x05060708, PrivateData: data}, ids + "d1d2"},
		{&DREQ{LocalCommID: 0x01020304, RemoteCommID: 0x05060708, RemoteQPN: 0xabcdef, PrivateData: data}, ids + "abcdef00 d1d2"},
		{&DREP{LocalCommID: 0x01020304, RemoteCommID: 0x05060708, PrivateData: data}, ids + "d1d2"},
		{&LAP{
			LocalCommID: 0x01020304, RemoteCommID: 0x05060708, RemoteQPN: 0xabcdef, RemoteCMResponseTimeout: 0x15,
			Alternate: testPath, PrivateData: data,
		}, ids + "00000000 abcdef a8 00000000" + inLAP + "d1d2"},
		{&APR{LocalCommID: 0x01020304, RemoteCommID: 0x05060708, Status: 0xd, Info: []byte{9, 8}, PrivateData: data},
			ids + "02 0d 0000 0908" + zeroes(70) + "d1d2"},
		{&SIDRREQ{RequestID: 0x01020304, PKey: 0x8182, ServiceID: 0x1112131415161718, PrivateData: data}, "01020304 8182 0000 1112131415161718 d1d2"},
		{&SIDRREP{
			RequestID: 0x01020304, Status: SIDRNoQP, Info: []byte{9}, QPN: 0xabcdef, ServiceID: 0x1112131415161718, QKey: 0x31323334, PrivateData: data,
		}, "01020304 03 01 0000 abcdef00 1112131415161718 31323334 09" + zeroes(71) + "d1d2"},
		{&ClassPortInfo{
			Class: ClassCM, ClassVersion: 2, CapabilityMask: CMCapRC | CMCapUD, RespTime: 18,
			Redirect: AgentAddress{GID: ib.GID{15: 1}, TrafficClass: 2, SLFlow: 0xabcdef, LID: 0x1122, PKey: 0x8182, HopLimit: 3, QPN: 0x717273, QKey: 0x31323334},
			Trap:     AgentAddress{GID: ib.GID{15: 4}, TrafficClass: 5},
		}, "01 02 2200 00000012" + zeroes(15) + "01 02 abcdef 1122 8182 03 717273 31323334" + zeroes(15) + "04 05"},
		{&ClassPortInfo{Class: ClassPerfMgt, ClassVersion: 1, CapabilityMask: PerfCapExtWidth | PerfCapXmitWait, RespTime: 18}, zeroes(40) + "01 01 1200 00000012"},
		{&PortCounters{
			PortSelect: 1, CounterSelect: 0x0203, SymbolErrors: 0x0405, LinkErrorRecovery: 6, LinkDowned: 7, RcvErrors: 0x0809,
			RcvRemotePhysicalErrors: 0x0a0b, RcvSwitchRelayErrors: 0x0c0d, XmitDiscards: 0x0e0f, XmitConstraintErrors: 0x10,
			RcvConstraintErrors: 0x11, LocalLinkIntegrityErrors: 0xa, ExcessiveBufferOverruns: 0xb, QP1Dropped: 0x1213, VL15Dropped: 0x1415,
			XmitData: 0x21222324, RcvData: 0x31323334, XmitPkts: 0x41424344, RcvPkts: 0x51525354, XmitWait: 0x61626364,
		}, zeroes(40) + "00 01 0203 0405 06 07 0809 0a0b 0c0d 0e0f 10 11 00 ab 1213 1415 21222324 31323334 41424344 51525354 61626364"},
		{&PortCountersExtended{
			PortSelect: 1, CounterSelect: 0x0203, XmitData: 1 << 56, RcvData: 2 << 56, XmitPkts: 3 << 56, RcvPkts: 4 << 56,
			UnicastXmitPkts: 5 << 56, UnicastRcvPkts: 6 << 56, MulticastXmitPkts: 7 << 56, MulticastRcvPkts: 8<<56 | 9,
		}, zeroes(40) + "00 01 0203 00000000 01" + zeroes(7) + "02" + zeroes(7) + "03" + zeroes(7) + "04" + zeroes(7) +
			"05" + zeroes(7) + "06" + zeroes(7) + "07" + zeroes(7) + "08" + zeroes(6) + "09"},
	} {
		name := fmt.Sprintf("%T", c.m)
		want := make([]byte, Size)
		copy(want, bytes.Repeat([]byte{0xa5}, HeaderSize))
		copy(want[HeaderSize:], unhex(t, c.want))
		b := bytes.Repeat([]byte{0xa5}, Size)
		if Put(b, c.m); !bytes.Equal(b, want) {
			t.Errorf("%s: Put writes\n%x, want\n%x", name, b, want)
		}
		got := reflect.New(reflect.TypeOf(c.m).Elem()).Interface().(Message)
		if info, ok := c.m.(*ClassPortInfo); ok {
			got.(*ClassPortInfo).Class = info.Class
		}
		Decode(b, got)
		trim(got)
		if !reflect.DeepEqual(got, c.m) {
			t.Errorf("%s: Decode finds\n%+v, want\n%+v", name, got, c.m)
		}
	}
}

// trim cuts the zeroes off the private data of a decoded message.
func trim(m Message) {
	if v := reflect.ValueOf(m).Elem().FieldByName("PrivateData"); v.IsValid() {
		v.SetBytes(bytes.TrimRight(v.Bytes(), "\x00"))
	}
}

// A receiver finds all of the private data, and no more than that.
func TestPrivateDataSizes(t *testing.T) {
	for a, want := range map[Attr]int{
		AttrREQ: 92, AttrMRA: 222, AttrREJ: 148, AttrREP: 196, AttrRTU: 224, AttrDREQ: 220, AttrDREP: 224,
		AttrSIDRREQ: 216, AttrSIDRREP: 136, AttrLAP: 168, AttrAPR: 148,
	} {
		m := Header{Class: ClassCM, Attr: a}.Message()
		field := reflect.ValueOf(m).Elem().FieldByName("PrivateData")
		field.SetBytes(bytes.Repeat([]byte{0xff}, 300))
		b := make([]byte, Size+1)
		Put(b[:Size], m)
		if n := bytes.Count(b, []byte{0xff}); n != want || b[Size] != 0 {
			t.Errorf("%T: %d bytes of private data written, want %d", m, n, want)
		}
		Decode(b[:Size], m)
		if got := field.Bytes(); len(got) != want || cap(got) != want {
			t.Errorf("%T: %d bytes of private data read with capacity %d, want %d", m, len(got), cap(got), want)
		}
	}
}

// IBTA 12.6.7, 12.8, 12.11: the length of additional information counts at
// most the 72 bytes that there are.
func TestInfoLength(t *testing.T) {
	for _, c := range []struct {
		m     Message
		field string
		at    int
		wire  byte
		want  int
	}{
		{&REJ{}, "ARI", 9, 0, 0}, {&REJ{}, "ARI", 9, 16, 8}, {&REJ{}, "ARI", 9, 144, 72}, {&REJ{}, "ARI", 9, 146, 72}, {&REJ{}, "ARI", 9, 255, 72},
		{&APR{}, "Info", 8, 8, 8}, {&APR{}, "Info", 8, 72, 72}, {&APR{}, "Info", 8, 255, 72},
		{&SIDRREP{}, "Info", 5, 1, 1}, {&SIDRREP{}, "Info", 5, 73, 72},
	} {
		b := make([]byte, Size)
		b[HeaderSize+c.at] = c.wire
		Decode(b, c.m)
		if got := reflect.ValueOf(c.m).Elem().FieldByName(c.field).Len(); got != c.want {
			t.Errorf("%T with length byte %d: %d bytes, want %d", c.m, c.wire, got, c.want)
		}
	}
	b := make([]byte, Size)
	Put(b, &REJ{ARI: bytes.Repeat([]byte{1}, 100)})
	if b[HeaderSize+9] != 72<<1 || bytes.Count(b[HeaderSize+12:], []byte{1}) != 72 {
		t.Errorf("100 bytes of ARI become %x", b)
	}
}

// IBTA 13.4.2.
func TestHeader(t *testing.T) {
	h := Header{
		Class: ClassPerfMgt, ClassVersion: 1, Method: MethodGetResp, Status: StatusBadMethodAttr, ClassSpecific: 0x1122,
		TID: 0x0102030405060708, Attr: AttrPortCountersExtended, AttrMod: 0x31323334,
	}
	b := bytes.Repeat([]byte{0xa5}, Size)
	if n := h.Put(b); n != 24 {
		t.Fatalf("Put returns %d", n)
	}
	if want := unhex(t, "01 04 01 81 000c 1122 0102030405060708 001d 0000 31323334 a5"); !bytes.Equal(b[:25], want) {
		t.Errorf("Put writes %x, want %x", b[:25], want)
	}
	if got, bad := Parse(b); bad != OK || got != h {
		t.Errorf("Parse: %+v, %v", got, bad)
	}
	for _, c := range []struct {
		b    []byte
		want Malformed
	}{
		{nil, BadSize}, {b[:24], BadSize}, {b[:255], BadSize}, {make([]byte, 257), BadSize},
		{make([]byte, 256), BadBaseVersion}, {append([]byte{2}, b[1:]...), BadBaseVersion},
	} {
		if _, bad := Parse(c.b); bad != c.want {
			t.Errorf("Parse of %d bytes: %v, want %v", len(c.b), bad, c.want)
		}
	}
	EncodeCM(b, 7, &RTU{LocalCommID: 1})
	if want := unhex(t, "01 07 02 03 0000 0000 0000000000000007 0014 0000 00000000 00000001 00000000"); !bytes.Equal(b[:32], want) {
		t.Errorf("EncodeCM writes %x, want %x", b[:32], want)
	}
}

// IBTA Annex A11; struct cma_hdr of Linux drivers/infiniband/core/cma.c.
func TestIPHeader(t *testing.T) {
	addr := netip.MustParseAddr
	for _, c := range []struct {
		h    IPHeader
		want string
	}{
		{IPHeader{0xba0a, addr("10.77.0.3"), addr("10.77.0.2")}, "00 40 ba0a" + strings.Repeat("00", 12) + "0a4d0003" + strings.Repeat("00", 12) + "0a4d0002"},
		{IPHeader{1, addr("fd77::3"), addr("fd77::2")}, "00 60 0001 fd770000000000000000000000000003 fd770000000000000000000000000002"},
	} {
		b := bytes.Repeat([]byte{0xa5}, IPHeaderSize+1)
		if n := c.h.Put(b); n != 36 || !bytes.Equal(b[:36], unhex(t, c.want)) || b[36] != 0xa5 {
			t.Errorf("Put(%+v) returns %d and writes %x", c.h, n, b)
		}
		if h, ok := ParseIPHeader(b); !ok || h != c.h {
			t.Errorf("ParseIPHeader(%x): %+v, %v", b, h, ok)
		}
		if _, ok := ParseIPHeader(b[:35]); ok {
			t.Error("ParseIPHeader accepts 35 bytes")
		}
	}
	for name, b := range map[string][]byte{
		"major version 1": append([]byte{1, 0x40}, make([]byte, 34)...),
		"minor version 1": append([]byte{1 << 4, 0x40}, make([]byte, 34)...),
		"IP version 5":    append([]byte{0, 0x50}, make([]byte, 34)...),
		"no header":       make([]byte, 92),
	} {
		if h, ok := ParseIPHeader(b); ok {
			t.Errorf("%s: ParseIPHeader finds %+v", name, h)
		}
	}
}

func TestServiceID(t *testing.T) {
	for _, c := range []struct {
		id    ServiceID
		space PortSpace
		port  uint16
		text  string
	}{
		{0x0000000001061d2f, PortSpaceTCP, 7471, "RDMA_PS_TCP port 7471"},
		{0x0000000001111c06, PortSpaceUDP, 7174, "RDMA_PS_UDP port 7174"},
		{0x00000000013fffff, PortSpaceIB, 65535, "RDMA_PS_IB port 65535"},
		{0x0000000000020001, PortSpaceIPoIB, 1, "RDMA_PS_IPOIB port 1"},
		{0x0000000101061d2f, 0, 0, "0x0000000101061d2f"},
		{0x0000000001071d2f, 0, 0, "0x0000000001071d2f"},
		{0x1000000000000405, 0, 0, "0x1000000000000405"},
	} {
		space, port, ok := c.id.Port()
		if space != c.space || port != c.port || ok != (c.space != 0) || c.id.String() != c.text {
			t.Errorf("%#x: %v, %d, %v, %q", uint64(c.id), space, port, ok, c.id)
		}
		if ok && space.ServiceID(port) != c.id {
			t.Errorf("%#x: taken apart and put together %#x", uint64(c.id), uint64(space.ServiceID(port)))
		}
	}
}

// Every number has a text, unknown ones included, and no two the same.
func TestStrings(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range []fmt.Stringer{
		ClassCM, ClassPerfMgt, Class(3), BadSize, BadBaseVersion, Malformed(9), PortSpace(1),
		SIDROK, SIDRUnsupported, SIDRRejected, SIDRNoQP, SIDRRedirect, SIDRBadClassVersion, SIDRStatus(6),
	} {
		if text := s.String(); text == "" || seen[text] {
			t.Errorf("%T %v: text %q is empty or not the only one", s, s, text)
		}
		seen[s.String()] = true
	}
	unknown := 0
	for r := range Reason(40) {
		text := r.String()
		if text == "" || seen[text] {
			t.Errorf("reason %d: text %q is empty or not the only one", r, text)
		}
		if seen[text] = true; strings.HasPrefix(text, "reject reason ") {
			unknown++
		}
	}
	if unknown != 40-34 { // 0, 34 and 36 to 39
		t.Errorf("%d reasons below 40 have no name, want 6", unknown)
	}
	if RejStaleConn != 10 || RejConsumer != 28 || RejStaleConn.String() != "stale connection" {
		t.Errorf("reason 10 is %v", Reason(10))
	}
}

// Neither direction allocates.
func TestAllocations(t *testing.T) {
	b := make([]byte, Size)
	var sum int
	req, rej := &REQ{}, &REJ{}
	if n := testing.AllocsPerRun(100, func() {
		EncodeCM(b, 1, req)
		if h, bad := Parse(b); bad != OK || h.Attr != AttrREQ {
			t.Error(h, bad)
		}
		Decode(b, req)
		EncodeCM(b, 1, rej)
		Decode(b, rej)
		sum += len(req.PrivateData) + len(rej.ARI)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
