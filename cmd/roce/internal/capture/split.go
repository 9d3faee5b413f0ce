package capture

import (
	"bytes"
	"encoding/binary"

	"github.com/gopacket/gopacket"
	glayers "github.com/gopacket/gopacket/layers"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/layers"
)

// Packets decodes a frame and takes it apart if it is what a kernel hands to its
// network card, or gets from it, in one piece: several packets of one size behind
// one header (UDP segmentation and receive offload). Where the capture does not say
// how long each is, the ICRC of the first one does.
func Packets(f Frame) []gopacket.Packet {
	whole := decode(f.Data, f.Link)
	s := superPacket(whole)
	if s == nil {
		return []gopacket.Packet{whole}
	}
	size := f.Segment
	if size == 0 {
		size = s.infer()
	}
	if size < ib.BTHSize+ib.ICRCSize || size >= len(s.payload) {
		return []gopacket.Packet{whole}
	}
	var out []gopacket.Packet
	for i := 0; i*size < len(s.payload); i++ {
		b := s.payload[i*size : min(i*size+size, len(s.payload))]
		// Segmentation counts the Identifications up; receive offload also takes
		// packets that have the same.
		p := decode(s.packet(b, uint16(i)), f.Link)
		if i > 0 && verdictOf(p) == layers.Wrong {
			if same := decode(s.packet(b, 0), f.Link); verdictOf(same) == layers.Right {
				p = same
			}
		}
		out = append(out, p)
	}
	return out
}

func decode(b []byte, link glayers.LinkType) gopacket.Packet {
	return gopacket.NewPacket(b, link, gopacket.DecodeOptions{NoCopy: true})
}

func verdictOf(p gopacket.Packet) layers.Verdict {
	if l, ok := p.Layer(layers.LayerTypeICRC).(*layers.ICRC); ok {
		return l.Verdict
	}
	return layers.NotJudged
}

// super is a frame that may be several packets.
type super struct {
	data        []byte
	ip          []byte // header
	atIP, atUDP int    // where the headers are in data
	payload     []byte // of UDP
}

// superPacket returns what a RoCEv2 packet with a wrong ICRC is made of; nil for
// all others.
func superPacket(p gopacket.Packet) *super {
	if p.Metadata().Truncated || verdictOf(p) != layers.Wrong {
		return nil
	}
	s := &super{data: p.Data()}
	at := 0
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *glayers.IPv4:
			s.ip, s.atIP = l.Contents, at
		case *glayers.IPv6:
			s.ip, s.atIP = l.Contents, at
		case *glayers.UDP:
			s.payload, s.atUDP = l.Payload, at
		case *layers.BTH:
			if s.ip == nil || s.payload == nil {
				return nil // RoCEv1, native InfiniBand
			}
			return s
		}
		at += len(l.LayerContents())
	}
	return nil
}

// infer returns the size of the first packet by its ICRC, 0 if nothing fits.
func (s *super) infer() int {
	bth := ib.ParseBTH(s.payload)
	info := bth.Opcode.Info()
	if info == nil {
		return 0
	}
	if info.Pos == ib.PosFirst || info.Pos == ib.PosMiddle { // they are full
		for m := ib.MTU256; m <= ib.MTU4096; m++ {
			if n := info.HeaderLen + m.Bytes() + ib.ICRCSize; n < len(s.payload) && s.right(n) {
				return n
			}
		}
		return 0
	}
	for n := info.HeaderLen + ib.ICRCSize; n < len(s.payload) && n <= ib.MaxHeaderSize+ib.MTU4096.Bytes()+ib.ICRCSize; n += 4 {
		if s.right(n) {
			return n
		}
	}
	return 0
}

// right reports whether the first n bytes of the payload are a packet.
func (s *super) right(n int) bool {
	b := s.packet(s.payload[:n], 0)
	return ib.VerifyWire(b[s.atIP:s.atIP+len(s.ip)], b[s.atUDP:s.atUDP+8], b[s.atUDP+8:])
}

// packet returns a copy of the frame with payload in place of all of them, and
// lengths and Identification as they are on the wire.
func (s *super) packet(payload []byte, i uint16) []byte {
	b := append(bytes.Clone(s.data[:s.atUDP+8]), payload...)
	ip := b[s.atIP:]
	if ip[0]>>4 == 4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])+i)
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-len(s.ip)))
	}
	binary.BigEndian.PutUint16(b[s.atUDP+4:], uint16(8+len(payload)))
	return b
}
