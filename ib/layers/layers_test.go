package layers_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/gopacket/gopacket"
	glayers "github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/layers"
	"github.com/goroce/goroce/ib/mad"
)

// frame is a packet of a capture.
type frame struct {
	data []byte
	link glayers.LinkType
}

func readCapture(tb testing.TB, path string) []frame {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	var out []frame
	for {
		data, _, err := r.ReadPacketData()
		if err != nil {
			return out
		}
		out = append(out, frame{data, r.LinkType()})
	}
}

// find returns the layer of the type of the pointer T, nil when there is none.
func find[T gopacket.Layer](p gopacket.Packet) T {
	var none T
	for _, l := range p.Layers() {
		if t, ok := l.(T); ok {
			return t
		}
	}
	return none
}

// The layers of each captured packet of rxe say what package ib says, eagerly and
// lazily decoded, and every ICRC is right.
func TestLayersSayWhatIBSays(t *testing.T) {
	for file, want := range map[string]int{"rxe-linux-6.1.pcap": 1328, "rxe-linux-6.12.pcap": 1317} {
		got := 0
		for n, f := range readCapture(t, filepath.Join("..", "testdata", "rxe", file)) {
			p := gopacket.NewPacket(f.data, f.link, gopacket.Default)
			bth := find[*layers.BTH](p)
			if bth == nil {
				continue
			}
			got++
			agrees(t, file+" frame "+strconv.Itoa(n+1), p)
			lazy := gopacket.NewPacket(f.data, f.link, gopacket.DecodeOptions{Lazy: true})
			if a, b := find[*layers.ICRC](p), find[*layers.ICRC](lazy); b == nil || a.Verdict != b.Verdict {
				t.Errorf("%s frame %d: lazily decoded it has ICRC %+v", file, n+1, b)
			}
		}
		if got != want {
			t.Errorf("%s: %d packets with a BTH, want %d", file, got, want)
		}
	}
}

// agrees compares the layers of an intact packet with the view of package ib.
func agrees(t *testing.T, name string, p gopacket.Packet) {
	t.Helper()
	bth, crc := find[*layers.BTH](p), find[*layers.ICRC](p)
	if bth == nil || crc == nil || crc.Verdict != layers.Right {
		t.Fatalf("%s: BTH %+v, ICRC %+v", name, bth, crc)
	}
	b := append(append([]byte(nil), bth.Contents...), bth.Payload...)
	v, bad := ib.Parse(b)
	if bad == ib.ReservedQPN { // subnet management of native InfiniBand
		if m := find[*layers.MAD](p); bth.Malformed != ib.OK || m == nil {
			t.Fatalf("%s: to queue pair 0: %v, MAD %+v", name, bth.Malformed, m)
		}
		return
	}
	if bad != ib.OK || bth.Malformed != ib.OK || bth.BTH != v.BTH() || crc.Value != v.ICRC() {
		t.Fatalf("%s: %v, %+v, ICRC %#x", name, bad, bth, crc.Value)
	}
	i := v.Info()
	var got, want []any
	add := func(has bool, layer any, value any) {
		if has {
			want = append(want, value)
		}
		if layer != nil {
			got = append(got, layer)
		}
	}
	if l := find[*layers.XRCETH](p); l != nil || i.XRCETH {
		add(i.XRCETH, l.SRQ, v.XRCSRQ())
	}
	if l := find[*layers.DETH](p); l != nil || i.DETH {
		add(i.DETH, l.DETH, v.DETH())
	}
	if l := find[*layers.FETH](p); l != nil || i.FETH {
		add(i.FETH, l.FETH, v.FETH())
	}
	if l := find[*layers.RETH](p); l != nil || i.RETH {
		add(i.RETH, l.RETH, v.RETH())
	}
	if l := find[*layers.AtomicETH](p); l != nil || i.AtomicETH {
		add(i.AtomicETH, l.AtomicETH, v.AtomicETH())
	}
	if l := find[*layers.AETH](p); l != nil || i.AETH {
		add(i.AETH, l.AETH, v.AETH())
	}
	if l := find[*layers.AtomicAckETH](p); l != nil || i.AtomicAckETH {
		add(i.AtomicAckETH, l.Value, v.AtomicAck())
	}
	if l := find[*layers.ImmDt](p); l != nil || i.Imm {
		add(i.Imm, l.Value, v.Imm())
	}
	if l := find[*layers.IETH](p); l != nil || i.IETH {
		add(i.IETH, l.RKey, v.IETH())
	}
	if len(got) != len(want) {
		t.Fatalf("%s: headers %+v, want %+v", name, got, want)
	}
	for k := range got {
		if got[k] != want[k] {
			t.Errorf("%s: header %+v, want %+v", name, got[k], want[k])
		}
	}
	body := []byte(nil)
	if l := find[*gopacket.Payload](p); l != nil {
		body = l.LayerContents()
	}
	if m := find[*layers.MAD](p); m != nil {
		body = m.Contents
		if m.Header.Class == mad.ClassCM && m.Message == nil {
			t.Errorf("%s: unknown message %+v", name, m.Header)
		}
	}
	if !bytes.Equal(body, v.Payload()) {
		t.Errorf("%s: payload %x, want %x", name, body, v.Payload())
	}
}

// wild returns a file of the captures that are not part of the repository, or skips.
func wild(t *testing.T, pattern string) []string {
	dir := os.Getenv("GOROCE_CAPTURES")
	if dir == "" {
		t.Skip("set GOROCE_CAPTURES to the folder of captures (with wild/ in it) to run this test")
	}
	files, err := filepath.Glob(filepath.Join(dir, "wild", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s in wild/ (%v)", pattern, err)
	}
	return files
}

// Packets of NICs, of RoCEv1, with VLAN tags and of native InfiniBand are found in
// captures, and their ICRCs are right.
func TestWildCaptures(t *testing.T) {
	for _, file := range wild(t, "*.pcap") {
		found := 0
		for n, f := range readCapture(t, file) {
			p := gopacket.NewPacket(f.data, f.link, gopacket.Default)
			if find[*layers.BTH](p) == nil {
				continue
			}
			found++
			agrees(t, filepath.Base(file)+" frame "+strconv.Itoa(n+1), p)
		}
		if found == 0 {
			t.Errorf("%s: no BTH", file)
		}
	}
}

// The same for single packets whose source and ICRC are known.
func TestWildVectors(t *testing.T) {
	text, err := os.ReadFile(wild(t, "vectors.json")[0])
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name, Bytes string
		LinkType    glayers.LinkType
		ICRC        string `json:"icrc_wire"`
		Verified    bool   `json:"icrc_verified"`
	}
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) == 0 {
		t.Fatalf("%d vectors, %v", len(vectors), err)
	}
	for _, v := range vectors {
		raw, err := hex.DecodeString(v.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		crc := find[*layers.ICRC](gopacket.NewPacket(raw, v.LinkType, gopacket.Default))
		if crc == nil || (crc.Verdict == layers.Right) != v.Verified || hex.EncodeToString(crc.Contents) != v.ICRC {
			t.Errorf("%s: ICRC %+v, want %s, verified %v", v.Name, crc, v.ICRC, v.Verified)
		}
		raw[len(raw)-5] ^= 1 // payload, or a header of those without
		if crc := find[*layers.ICRC](gopacket.NewPacket(raw, v.LinkType, gopacket.Default)); v.LinkType == 1 && (crc == nil || crc.Verdict == layers.Right) {
			t.Errorf("%s: damaged it has ICRC %+v", v.Name, crc)
		}
	}
}

// samples returns captured packets, one of each opcode and IP version.
func samples(tb testing.TB) (out []frame) {
	seen := map[string]bool{}
	for _, f := range readCapture(tb, filepath.Join("..", "testdata", "rxe", "rxe-linux-6.12.pcap")) {
		p := gopacket.NewPacket(f.data, f.link, gopacket.Default)
		if bth := find[*layers.BTH](p); bth != nil && len(f.data) < 600 {
			key := bth.Opcode.String() + p.NetworkLayer().LayerType().String()
			if !seen[key] {
				seen[key] = true
				out = append(out, f)
			}
		}
	}
	return out
}

// What a capture cuts off is not judged, wherever it cuts, and headers that are
// still there are read.
func TestCutPackets(t *testing.T) {
	for _, f := range samples(t) {
		whole := gopacket.NewPacket(f.data, f.link, gopacket.Default)
		bth := find[*layers.BTH](whole)
		headers := len(f.data) - len(bth.Payload) - ib.BTHSize
		for n := range len(f.data) - 1 {
			p := gopacket.NewPacket(f.data[:n], f.link, gopacket.Default)
			if crc := find[*layers.ICRC](p); crc != nil && crc.Verdict != layers.NotJudged {
				t.Fatalf("%v cut to %d of %d bytes: ICRC %v", bth.Opcode, n, len(f.data), crc.Verdict)
			}
			cut := find[*layers.BTH](p)
			if n < headers+ib.BTHSize {
				if cut != nil {
					t.Fatalf("%v cut to %d bytes has a BTH", bth.Opcode, n)
				}
				continue
			}
			if cut == nil || cut.BTH != bth.BTH || !p.Metadata().Truncated {
				t.Fatalf("%v cut to %d bytes: BTH %+v, truncated %v", bth.Opcode, n, cut, p.Metadata().Truncated)
			}
			if reth := find[*layers.RETH](whole); reth != nil && n >= headers+bth.Opcode.Info().HeaderLen {
				if l := find[*layers.RETH](p); l == nil || l.RETH != reth.RETH {
					t.Fatalf("%v cut to %d bytes: RETH %+v", bth.Opcode, n, l)
				}
			}
		}
	}
}

// Only what goes to the registered port is RoCE: the source port says nothing.
func TestSourcePortSaysNothing(t *testing.T) {
	f := samples(t)[0]
	p := gopacket.NewPacket(f.data, f.link, gopacket.Default)
	udp := find[*glayers.UDP](p)
	at := len(f.data) - len(udp.Payload) - 8
	data := bytes.Clone(f.data)
	copy(data[at:], []byte{4791 >> 8, 4791 & 0xff, 0x30, 0x39})
	if l := find[*layers.BTH](gopacket.NewPacket(data, f.link, gopacket.Default)); l != nil {
		t.Errorf("a packet from port 4791 to 12345 has a BTH: %+v", l)
	}
	layers.RegisterPort(12345)
	if l := find[*layers.BTH](gopacket.NewPacket(data, f.link, gopacket.Default)); l == nil {
		t.Error("port 12345 is registered, and a packet to it has no BTH")
	}
}

// Whatever arrives, on whatever link, decoding does not panic, and a layer is
// within the packet.
func FuzzDecode(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(uint16(s.link), s.data)
		f.Add(uint16(247), append([]byte{0, 2, 0, 1, 0, 40, 0, 2}, s.data[42:]...))
		f.Add(uint16(197), append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 21, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0, 60, 0, 2, 0x60, 0, 0, 0, 0, 200, 27, 1}, s.data[10:]...))
		f.Add(uint16(1), append([]byte{1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 0x89, 0x15, 0x60, 0, 0, 0, 0, 200, 27, 1}, s.data[10:]...))
	}
	options := gopacket.DecodeOptions{NoCopy: true, SkipDecodeRecovery: true}
	f.Fuzz(func(t *testing.T, link uint16, b []byte) {
		switch link {
		case 1, 101, 197, 247:
		default:
			return
		}
		for _, l := range gopacket.NewPacket(b, glayers.LinkType(link), options).Layers() {
			if n := len(l.LayerContents()) + len(l.LayerPayload()); n > len(b) {
				t.Fatalf("%v has %d of %d bytes", l.LayerType(), n, len(b))
			}
		}
	})
}
