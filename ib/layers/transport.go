package layers

import (
	"encoding/binary"
	"errors"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

var errBTH = errors.New("BTH is too short")

// decodeUDP decodes what is behind a UDP header. gopacket looks at the source port
// as well, which says nothing of RoCE.
func decodeUDP(b []byte, p gopacket.PacketBuilder) error {
	ip, udp := outer(p)
	if udp == nil {
		return transport(b, len(b), p, nil)
	}
	if udp.DstPort.LayerType() != LayerTypeBTH {
		return p.NextDecoder(gopacket.LayerTypePayload)
	}
	size := len(b)
	if udp.Length != 0 { // 0: as much as there is, to gopacket
		size = int(udp.Length) - len(udp.Contents)
	}
	if ip == nil {
		return transport(b, size, p, nil)
	}
	return transport(b, size, p, func(b []byte) bool { return ib.VerifyWire(ip, udp.Contents, b) })
}

// outer returns the headers right before what is being decoded: with tunnels there
// are others. The IP header is nil where it is not known.
func outer(p gopacket.PacketBuilder) (ip []byte, udp *layers.UDP) {
	packet, ok := p.(gopacket.Packet)
	if !ok {
		return nil, nil
	}
	all := packet.Layers()
	for i := len(all) - 1; i >= 0; i-- {
		switch l := all[i].(type) {
		case *layers.UDP:
			if udp != nil {
				return nil, udp
			}
			udp = l
		case *layers.IPv4:
			return l.Contents, udp
		case *layers.IPv6:
			return l.Contents, udp
		}
	}
	return nil, udp
}

// transport adds the layers from the BTH to the ICRC. size is how many bytes they
// have on the wire, of which b may be a part; right judges the ICRC of a whole
// packet, if anybody can.
func transport(b []byte, size int, p gopacket.PacketBuilder, right func([]byte) bool) error {
	if len(b) < ib.BTHSize {
		p.SetTruncated()
		return errBTH
	}
	l := &BTH{BaseLayer: layers.BaseLayer{Contents: b[:ib.BTHSize], Payload: b[ib.BTHSize:]}, BTH: ib.ParseBTH(b)}
	p.AddLayer(l)
	headers := ib.BTHSize
	view, bad := parse(b, size, l.BTH)
	if l.Malformed = bad; bad == ib.OK {
		headers = extended(view, b, p)
	}
	if len(b) < size {
		p.SetTruncated()
		payload(b[headers:], p)
		return nil
	}
	if end := len(b) - ib.ICRCSize; end >= headers {
		body := b[headers:end]
		if bad == ib.OK {
			body = b[headers : end-int(l.Pad)]
		}
		if !management(body, l.BTH, p) {
			payload(body, p)
		}
		crc := &ICRC{BaseLayer: layers.BaseLayer{Contents: b[end:]}, Value: binary.LittleEndian.Uint32(b[end:])}
		if right != nil {
			crc.Verdict = verdict(right(b))
		}
		p.AddLayer(crc)
	}
	return nil
}

// parse is ib.Parse for packets that a capture has cut, and for those to queue pair
// 0, the subnet management of native InfiniBand.
func parse(b []byte, size int, h ib.BTH) (ib.Packet, ib.Malformed) {
	if info := h.Opcode.Info(); len(b) < size && info != nil && len(b) >= info.HeaderLen {
		b = append(make([]byte, 0, size), b...)[:size]
	}
	p, bad := ib.Parse(b)
	if bad == ib.ReservedQPN && h.Opcode.Transport() == ib.TransportUD {
		b = append([]byte(nil), b...)
		h.DestQP = ib.GSIQPN
		h.Put(b)
		return ib.Parse(b)
	}
	return p, bad
}

// extended adds the headers that follow the BTH, in wire order, and returns where
// they end.
func extended(v ib.Packet, b []byte, p gopacket.PacketBuilder) int {
	info, at := v.Info(), ib.BTHSize
	base := func(n int) layers.BaseLayer {
		at += n
		return layers.BaseLayer{Contents: b[at-n : at], Payload: b[at:]}
	}
	if info.XRCETH {
		p.AddLayer(&XRCETH{base(ib.XRCETHSize), v.XRCSRQ()})
	}
	if info.DETH {
		p.AddLayer(&DETH{base(ib.DETHSize), v.DETH()})
	}
	if info.FETH {
		p.AddLayer(&FETH{base(ib.FETHSize), v.FETH()})
	}
	if info.RETH {
		p.AddLayer(&RETH{base(ib.RETHSize), v.RETH()})
	}
	if info.AtomicETH {
		p.AddLayer(&AtomicETH{base(ib.AtomicETHSize), v.AtomicETH()})
	}
	if info.AETH {
		p.AddLayer(&AETH{base(ib.AETHSize), v.AETH()})
	}
	if info.AtomicAckETH {
		p.AddLayer(&AtomicAckETH{base(ib.AtomicAckETHSize), v.AtomicAck()})
	}
	if info.Imm {
		p.AddLayer(&ImmDt{base(ib.ImmDtSize), v.Imm()})
	}
	if info.IETH {
		p.AddLayer(&IETH{base(ib.IETHSize), v.IETH()})
	}
	return at
}

// management adds a management datagram, if b is one: they go to queue pairs 0 and
// 1 alone.
func management(b []byte, h ib.BTH, p gopacket.PacketBuilder) bool {
	if h.Opcode.Transport() != ib.TransportUD || h.DestQP > ib.GSIQPN {
		return false
	}
	head, bad := mad.Parse(b)
	if bad != mad.OK {
		return false
	}
	l := &MAD{BaseLayer: layers.BaseLayer{Contents: b}, Header: head, Message: head.Message()}
	if l.Message != nil {
		mad.Decode(b, l.Message)
	}
	p.AddLayer(l)
	return true
}

func payload(b []byte, p gopacket.PacketBuilder) {
	if len(b) == 0 {
		return
	}
	l := gopacket.Payload(b)
	p.AddLayer(&l)
	p.SetApplicationLayer(&l)
}
