package capture

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	glayers "github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/layers"
)

// run returns the packets of one run, sealed with the Identifications that step
// counts up, and the frame with all of them behind one header.
func run(t *testing.T, src, dst string, op ib.Opcode, sizes []int, step uint16) ([][]byte, Frame) {
	t.Helper()
	from, to := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	flow := ib.NewFlow(from, to)
	var all [][]byte
	for i, n := range sizes {
		b := make([]byte, op.Info().HeaderLen+n+ib.ICRCSize)
		ib.BTH{Opcode: op, PKey: ib.DefaultPKey, DestQP: 17, PSN: ib.PSN(i)}.Put(b)
		for j := range n {
			b[op.Info().HeaderLen+j] = byte(i*j + j)
		}
		flow.Seal(100+uint16(i)*step, b)
		all = append(all, b)
	}
	buf := gopacket.NewSerializeBuffer()
	udp := &glayers.UDP{SrcPort: glayers.UDPPort(from.Port()), DstPort: glayers.UDPPort(to.Port())}
	var ip gopacket.SerializableLayer
	link := glayers.EthernetTypeIPv4
	if from.Addr().Is4() {
		v4 := &glayers.IPv4{Version: 4, TTL: 64, Id: 100, Flags: glayers.IPv4DontFragment, Protocol: glayers.IPProtocolUDP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
		udp.SetNetworkLayerForChecksum(v4)
		ip = v4
	} else {
		v6 := &glayers.IPv6{Version: 6, HopLimit: 64, NextHeader: glayers.IPProtocolUDP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
		udp.SetNetworkLayerForChecksum(v6)
		ip, link = v6, glayers.EthernetTypeIPv6
	}
	eth := &glayers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: glayers.EthernetTypeDot1Q}
	vlan := &glayers.Dot1Q{VLANIdentifier: 5, Type: link}
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, vlan, ip, udp, gopacket.Payload(bytes.Join(all, nil))); err != nil {
		t.Fatal(err)
	}
	return all, Frame{Data: buf.Bytes(), Link: glayers.LinkTypeEthernet, Len: len(buf.Bytes())}
}

// A frame with several packets becomes those packets, each with its ICRC right, be
// the size of the segments known or not, and the Identifications counted or equal.
func TestPacketsSplits(t *testing.T) {
	for _, c := range []struct {
		name     string
		src, dst string
		op       ib.Opcode
		sizes    []int
		segment  int
		step     uint16
	}{
		{"one packet", "10.0.0.1:4791", "10.0.0.2:4791", ib.OpRCSendOnly, []int{64}, 0, 1},
		{"size known", "10.0.0.1:4791", "10.0.0.2:4791", ib.OpRCSendMiddle, []int{1024, 1024, 1024}, ib.BTHSize + 1024 + ib.ICRCSize, 1},
		{"size not known", "10.0.0.1:49152", "10.0.0.2:4791", ib.OpRCSendMiddle, []int{4096, 4096, 4096, 4096}, 0, 1},
		{"the last one is shorter", "10.0.0.1:49152", "10.0.0.2:4791", ib.OpRCSendFirst, []int{256, 256, 12}, 0, 1},
		{"small messages", "10.0.0.1:4791", "10.0.0.2:4791", ib.OpRCSendOnly, []int{8, 8, 8, 8, 8}, 0, 1},
		{"empty messages", "10.0.0.1:4791", "10.0.0.2:4791", ib.OpRCSendOnly, []int{0, 0}, 0, 1},
		{"equal Identifications", "10.0.0.1:4791", "10.0.0.2:4791", ib.OpRCSendMiddle, []int{1024, 1024, 1024}, 0, 0},
		{"IPv6", "[fd00::1]:4791", "[fd00::2]:4791", ib.OpRCSendMiddle, []int{2048, 2048, 512}, 0, 1},
	} {
		want, f := run(t, c.src, c.dst, c.op, c.sizes, c.step)
		f.Segment = c.segment
		got := Packets(f)
		if len(got) != len(want) {
			t.Errorf("%s: %d packets, want %d", c.name, len(got), len(want))
			continue
		}
		for i, p := range got {
			udp := p.Layer(glayers.LayerTypeUDP).(*glayers.UDP)
			if !bytes.Equal(udp.Payload, want[i]) || verdictOf(p) != layers.Right {
				t.Errorf("%s: packet %d has ICRC %v", c.name, i, verdictOf(p))
			}
			if ip, ok := p.Layer(glayers.LayerTypeIPv4).(*glayers.IPv4); ok && ip.Id != 100+c.step*uint16(i) {
				t.Errorf("%s: packet %d has Identification %d", c.name, i, ip.Id)
			}
		}
	}
}

// A damaged packet of a run stays wrong and leaves the others right; a damaged
// packet alone is no run.
func TestDamagedPackets(t *testing.T) {
	_, f := run(t, "10.0.0.1:4791", "10.0.0.2:4791", ib.OpRCSendMiddle, []int{1024, 1024, 1024}, 1)
	f.Data[len(f.Data)-1500]++
	got := Packets(f)
	if len(got) != 3 || verdictOf(got[0]) != layers.Right || verdictOf(got[1]) != layers.Wrong || verdictOf(got[2]) != layers.Right {
		t.Errorf("%d packets", len(got))
	}
	_, f = run(t, "10.0.0.1:4791", "10.0.0.2:4791", ib.OpRCSendOnly, []int{4096}, 1)
	f.Data[len(f.Data)-1500]++
	if got := Packets(f); len(got) != 1 || verdictOf(got[0]) != layers.Wrong {
		t.Errorf("%d packets of a damaged one", len(got))
	}
	f.Segment = 3
	if got := Packets(f); len(got) != 1 {
		t.Errorf("%d packets of 3 bytes", len(got))
	}
}

func readAll(t *testing.T, r io.Reader) (all []Frame) {
	t.Helper()
	src, err := Read(r)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	for {
		f, err := src.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
}

// pcap and pcapng, plain and gzipped, hold the same frames.
func TestReadFormats(t *testing.T) {
	plain, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "ib", "testdata", "rxe", "rxe-linux-6.12.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	want := readAll(t, bytes.NewReader(plain))
	var ng bytes.Buffer
	w, err := pcapgo.NewNgWriter(&ng, glayers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range want {
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: f.At, CaptureLength: len(f.Data), Length: f.Len}, f.Data); err != nil {
			t.Fatal(err)
		}
	}
	w.Flush()
	zip := func(b []byte) []byte {
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		w.Write(b)
		w.Close()
		return z.Bytes()
	}
	for name, b := range map[string][]byte{"pcapng": ng.Bytes(), "pcap.gz": zip(plain), "pcapng.gz": zip(ng.Bytes())} {
		got := readAll(t, bytes.NewReader(b))
		if len(got) != len(want) {
			t.Fatalf("%s: %d frames, want %d", name, len(got), len(want))
		}
		for i := range got {
			if !bytes.Equal(got[i].Data, want[i].Data) || got[i].Link != want[i].Link || got[i].Len != want[i].Len || got[i].At.Sub(want[i].At).Abs() > time.Microsecond {
				t.Fatalf("%s: frame %d is %+v, want %+v", name, i, got[i], want[i])
			}
		}
	}
	for _, b := range [][]byte{nil, []byte("abc"), []byte("this is text"), {0x1f, 0x8b, 0, 0}, binary.LittleEndian.AppendUint64(nil, magicSection)} {
		if _, err := Read(bytes.NewReader(b)); err == nil {
			t.Errorf("%q is a capture", b)
		}
	}
}
