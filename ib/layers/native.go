package layers

import (
	"encoding/binary"
	"errors"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/goroce/goroce/ib"
)

// nextIBA is the GRH's next header of an InfiniBand transport header (IBTA 8.3).
const nextIBA = 0x1b

// GRH is the global route header of RoCEv1 and of routed native InfiniBand: the
// layout of an IPv6 header (IBTA 8.3).
type GRH struct {
	layers.BaseLayer
	Version       uint8
	TrafficClass  uint8
	FlowLabel     uint32
	PayloadLength uint16 // bytes from the BTH to the ICRC
	NextHeader    uint8
	HopLimit      uint8
	Src, Dst      ib.GID
}

// LayerType returns LayerTypeGRH.
func (*GRH) LayerType() gopacket.LayerType { return LayerTypeGRH }

// NetworkFlow returns the flow between the GIDs, which are IPv6 addresses.
func (g *GRH) NetworkFlow() gopacket.Flow {
	return gopacket.NewFlow(layers.EndpointIPv6, g.Src[:], g.Dst[:])
}

// LRH is the local route header of native InfiniBand (IBTA 7.7).
type LRH struct {
	layers.BaseLayer
	VirtualLane  uint8
	Version      uint8
	ServiceLevel uint8
	NextHeader   uint8 // 2: BTH, 3: GRH, others: raw
	DLID, SLID   uint16
	PacketLength int // bytes from the LRH to the ICRC
}

// LayerType returns LayerTypeLRH.
func (*LRH) LayerType() gopacket.LayerType { return LayerTypeLRH }

// ERF is the record header of a capture card (Endace's extensible record format).
type ERF struct {
	layers.BaseLayer
	Type uint8 // 21: InfiniBand
}

// LayerType returns LayerTypeERF.
func (*ERF) LayerType() gopacket.LayerType { return LayerTypeERF }

const (
	erfSize       = 16
	erfMore       = 0x80 // extension headers follow, of 8 bytes each
	erfExtension  = 8
	erfInfiniBand = 21

	lrhBTH = 2
	lrhGRH = 3
)

var (
	errERF = errors.New("ERF record header is too short")
	errLRH = errors.New("LRH is too short")
	errGRH = errors.New("GRH is too short")
)

func decodeERF(b []byte, p gopacket.PacketBuilder) error {
	if len(b) < erfSize {
		p.SetTruncated()
		return errERF
	}
	n := erfSize
	for more := b[8]&erfMore != 0; more; n += erfExtension {
		if len(b) < n+erfExtension {
			p.SetTruncated()
			return errERF
		}
		more = b[n]&erfMore != 0
	}
	e := &ERF{BaseLayer: layers.BaseLayer{Contents: b[:n], Payload: b[n:]}, Type: b[8] &^ erfMore}
	p.AddLayer(e)
	if e.Type != erfInfiniBand {
		return p.NextDecoder(gopacket.LayerTypePayload)
	}
	return p.NextDecoder(LayerTypeLRH)
}

func decodeLRH(b []byte, p gopacket.PacketBuilder) error {
	if len(b) < ib.LRHSize {
		p.SetTruncated()
		return errLRH
	}
	h := &LRH{
		BaseLayer:   layers.BaseLayer{Contents: b[:ib.LRHSize], Payload: b[ib.LRHSize:]},
		VirtualLane: b[0] >> 4, Version: b[0] & 0xf, ServiceLevel: b[1] >> 4, NextHeader: b[1] & 3,
		DLID: binary.BigEndian.Uint16(b[2:]), PacketLength: int(binary.BigEndian.Uint16(b[4:])&0x7ff) * 4, SLID: binary.BigEndian.Uint16(b[6:]),
	}
	size := h.PacketLength - ib.LRHSize
	if size < 0 {
		p.AddLayer(h)
		return errLRH
	}
	h.Payload = h.Payload[:min(size, len(h.Payload))] // without the VCRC
	p.AddLayer(h)
	switch h.NextHeader {
	case lrhBTH:
		return transport(h.Payload, size, p, func(b []byte) bool { return carries(b, ib.ICRCNative(h.Contents, b)) })
	case lrhGRH:
		return decodeGRH(h.Payload, p)
	}
	return p.NextDecoder(gopacket.LayerTypePayload)
}

func decodeGRH(b []byte, p gopacket.PacketBuilder) error {
	if len(b) < ib.GRHSize {
		p.SetTruncated()
		return errGRH
	}
	first := binary.BigEndian.Uint32(b)
	h := &GRH{
		BaseLayer: layers.BaseLayer{Contents: b[:ib.GRHSize], Payload: b[ib.GRHSize:]},
		Version:   uint8(first >> 28), TrafficClass: uint8(first >> 20), FlowLabel: first & 0xfffff,
		PayloadLength: binary.BigEndian.Uint16(b[4:]), NextHeader: b[6], HopLimit: b[7],
		Src: ib.GID(b[8:24]), Dst: ib.GID(b[24:40]),
	}
	h.Payload = h.Payload[:min(int(h.PayloadLength), len(h.Payload))] // without the padding of Ethernet
	p.AddLayer(h)
	p.SetNetworkLayer(h)
	if h.NextHeader != nextIBA {
		return p.NextDecoder(gopacket.LayerTypePayload)
	}
	return transport(h.Payload, int(h.PayloadLength), p, func(b []byte) bool { return carries(b, ib.ICRCv1(h.Contents, b)) })
}

// carries reports whether b ends with the ICRC.
func carries(b []byte, icrc uint32) bool {
	return binary.LittleEndian.Uint32(b[len(b)-ib.ICRCSize:]) == icrc
}
