package mad

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/goroce/goroce/ib"
)

// readCaptured returns the datagrams of the connection manager in a pcap file,
// whatever its link type: it looks for the Q_Key and source of QP1 in front of
// a datagram's first bytes. Package ib's tests judge the packets around them.
func readCaptured(tb testing.TB, path string) [][]byte {
	tb.Helper()
	d, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	mark := []byte{0x80, 0x01, 0, 0, 0, 0, 0, 1, 1, byte(ClassCM), 2, byte(MethodSend)}
	var out [][]byte
	for d = d[24:]; len(d) > 0; {
		size := binary.LittleEndian.Uint32(d[8:])
		frame := d[16 : 16+size]
		d = d[16+size:]
		if at := bytes.Index(frame, mark); at >= 0 && at+8+Size <= len(frame) {
			out = append(out, frame[at+8:at+8+Size])
		}
	}
	return out
}

// again decodes b and encodes what it found.
func again(tb testing.TB, b []byte) (Message, []byte) {
	tb.Helper()
	h, bad := Parse(b)
	m := h.Message()
	if bad != OK || h.Class != ClassCM || h.ClassVersion != ClassCM.Version() || m == nil {
		tb.Fatalf("%x: %v, %+v", b, bad, h)
	}
	Decode(b, m)
	out := bytes.Repeat([]byte{0xa5}, Size)
	if n := h.Put(out); n != HeaderSize {
		tb.Fatalf("Put returns %d", n)
	}
	Put(out, m)
	return m, out
}

// Every message that Linux sent, over IPv4 and IPv6, is the same bytes after
// decoding and encoding.
func TestRXECaptures(t *testing.T) {
	for file, want := range map[string]map[Attr]int{
		"rxe-linux-6.1.pcap":  {AttrREQ: 6, AttrREP: 6, AttrRTU: 6, AttrDREQ: 7, AttrDREP: 6, AttrSIDRREQ: 1, AttrSIDRREP: 1},
		"rxe-linux-6.12.pcap": {AttrREQ: 6, AttrREP: 6, AttrRTU: 6, AttrDREQ: 6, AttrDREP: 6, AttrSIDRREQ: 1, AttrSIDRREP: 1},
	} {
		got := map[Attr]int{}
		for _, b := range readCaptured(t, filepath.Join("..", "testdata", "rxe", file)) {
			m, out := again(t, b)
			if got[m.Attr()]++; !bytes.Equal(out, b) {
				t.Errorf("%s: %+v encoded again\n%x, want\n%x", file, m, out, b)
			}
		}
		for a, n := range want {
			if got[a] != n {
				t.Errorf("%s: %d messages with attribute %#x, want %d", file, got[a], uint16(a), n)
			}
		}
	}
}

// The fields of one exchange, as tshark shows them too.
func TestRXEExchange(t *testing.T) {
	var seen int
	for _, b := range readCaptured(t, filepath.Join("..", "testdata", "rxe", "rxe-linux-6.12.pcap")) {
		m, _ := again(t, b)
		switch m := m.(type) {
		case *REQ:
			if m.LocalCommID != 0xae9eb786 {
				continue
			}
			if m.ServiceID != PortSpaceTCP.ServiceID(7174) || m.LocalCAGUID != 0x505400fffe000003 || m.LocalQPN != 0x20 ||
				m.ResponderResources != 1 || m.InitiatorDepth != 1 || m.RemoteCMResponseTimeout != 20 || m.LocalCMResponseTimeout != 20 ||
				m.Transport != TransportRC || m.FlowControl || m.StartingPSN != 0x1427a8 || m.RetryCount != 7 || m.RNRRetryCount != 7 ||
				m.PKey != ib.DefaultPKey || m.PathMTU != ib.MTU4096 || m.MaxCMRetries != 15 || m.SRQ {
				t.Errorf("REQ %+v", m)
			}
			src, dst := netip.MustParseAddr("fd77::3"), netip.MustParseAddr("fd77::2")
			p := Path{
				LocalLID: PermissiveLID, RemoteLID: PermissiveLID, LocalGID: ib.GIDFromAddr(src), RemoteGID: ib.GIDFromAddr(dst),
				FlowLabel: 0x0c457, HopLimit: 64, LocalACKTimeout: 17,
			}
			if m.Primary != p || m.Alternate != (Path{}) {
				t.Errorf("primary path %+v, alternate %+v", m.Primary, m.Alternate)
			}
			if h, ok := ParseIPHeader(m.PrivateData); !ok || h != (IPHeader{SrcPort: 35215, Src: src, Dst: dst}) {
				t.Errorf("rdma_cm header %+v, %v", h, ok)
			}
			seen++
		case *REP:
			if m.RemoteCommID != 0xae9eb786 {
				continue
			}
			if m.LocalCommID != 0x679f6e28 || m.LocalQPN != 0x20 || m.StartingPSN != 0xf6a336 || m.ResponderResources != 1 ||
				m.InitiatorDepth != 1 || m.TargetACKDelay != 15 || m.FailoverAccepted != 0 || m.FlowControl || m.RNRRetryCount != 7 ||
				m.SRQ || m.LocalCAGUID != 0x505400fffe000002 {
				t.Errorf("REP %+v", m)
			}
			seen++
		case *SIDRREP:
			if m.Status != SIDROK || m.QPN != 0x22 || m.ServiceID != PortSpaceUDP.ServiceID(7174) || m.QKey != 0x01234567 {
				t.Errorf("SIDR_REP %+v", m)
			}
			seen++
		}
	}
	if seen != 3 {
		t.Errorf("%d messages of the exchange found, want 3", seen)
	}
}

// The same for ConnectX and for native InfiniBand. ConnectX announces enhanced
// connection establishment in reserved bytes of the REQ, which stay behind.
func TestWildCaptures(t *testing.T) {
	dir := os.Getenv("GOROCE_CAPTURES")
	if dir == "" {
		t.Skip("set GOROCE_CAPTURES to the folder of captures (with wild/ in it) to run this test")
	}
	files, err := filepath.Glob(filepath.Join(dir, "wild", "*.pcap"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no capture in wild/ (%v)", err)
	}
	messages, vendors := 0, 0
	for _, file := range files {
		for _, b := range readCaptured(t, file) {
			m, out := again(t, b)
			messages++
			want := bytes.Clone(b)
			if _, ok := m.(*REQ); ok && be.Uint32(b[HeaderSize+4:]) != 0 {
				vendors++
				clear(want[HeaderSize+4 : HeaderSize+8])
			}
			if !bytes.Equal(out, want) {
				t.Errorf("%s: %+v encoded again\n%x, want\n%x", file, m, out, want)
			}
		}
	}
	if messages < 10 || vendors != 1 {
		t.Errorf("%d messages, %d with a vendor identifier; want at least 10 and 1", messages, vendors)
	}
}
