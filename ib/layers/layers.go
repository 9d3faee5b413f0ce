package layers

import (
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

// The layer types. Their numbers are in gopacket's range for private use.
const (
	LayerTypeERF gopacket.LayerType = 4791 + iota
	LayerTypeLRH
	LayerTypeGRH
	LayerTypeBTH
	LayerTypeXRCETH
	LayerTypeDETH
	LayerTypeFETH
	LayerTypeRETH
	LayerTypeAtomicETH
	LayerTypeAETH
	LayerTypeAtomicAckETH
	LayerTypeImmDt
	LayerTypeIETH
	LayerTypeMAD
	LayerTypeICRC
)

const (
	etherTypeRoCEv1    layers.EthernetType = 0x8915
	linkTypeERF        layers.LinkType     = 197
	linkTypeInfiniBand layers.LinkType     = 247
)

func init() {
	for _, t := range []struct {
		layer  gopacket.LayerType
		name   string
		decode gopacket.DecodeFunc // nil: the decoder of the BTH adds it
	}{
		{LayerTypeERF, "ERF", decodeERF},
		{LayerTypeLRH, "LRH", decodeLRH},
		{LayerTypeGRH, "GRH", decodeGRH},
		{LayerTypeBTH, "BTH", decodeUDP},
		{LayerTypeXRCETH, "XRCETH", nil},
		{LayerTypeDETH, "DETH", nil},
		{LayerTypeFETH, "FETH", nil},
		{LayerTypeRETH, "RETH", nil},
		{LayerTypeAtomicETH, "AtomicETH", nil},
		{LayerTypeAETH, "AETH", nil},
		{LayerTypeAtomicAckETH, "AtomicAckETH", nil},
		{LayerTypeImmDt, "ImmDt", nil},
		{LayerTypeIETH, "IETH", nil},
		{LayerTypeMAD, "MAD", nil},
		{LayerTypeICRC, "ICRC", nil},
	} {
		meta := gopacket.LayerTypeMetadata{Name: t.name, Decoder: gopacket.DecodePayload}
		if t.decode != nil {
			meta.Decoder = t.decode
		}
		gopacket.RegisterLayerType(int(t.layer), meta)
	}
	RegisterPort(ib.Port)
	layers.EthernetTypeMetadata[etherTypeRoCEv1] = layers.EnumMetadata{DecodeWith: LayerTypeGRH, Name: "RoCEv1", LayerType: LayerTypeGRH}
	layers.LinkTypeMetadata[linkTypeERF] = layers.EnumMetadata{DecodeWith: LayerTypeERF, Name: "ERF", LayerType: LayerTypeERF}
	layers.LinkTypeMetadata[linkTypeInfiniBand] = layers.EnumMetadata{DecodeWith: LayerTypeLRH, Name: "InfiniBand", LayerType: LayerTypeLRH}
}

// RegisterPort has RoCEv2 decoded behind one more UDP destination port, for
// devices that use another one than 4791. Like gopacket's registrations it must
// not be called while packets are decoded.
func RegisterPort(port uint16) {
	layers.RegisterUDPPortLayerType(layers.UDPPort(port), LayerTypeBTH)
}

// BTH is the base transport header.
type BTH struct {
	layers.BaseLayer
	ib.BTH
	// Malformed says why nothing behind the header can be read; ib.OK if it can.
	Malformed ib.Malformed
}

// LayerType returns LayerTypeBTH.
func (*BTH) LayerType() gopacket.LayerType { return LayerTypeBTH }

// XRCETH names the shared receive queue of an XRC request.
type XRCETH struct {
	layers.BaseLayer
	SRQ ib.QPN
}

// LayerType returns LayerTypeXRCETH.
func (*XRCETH) LayerType() gopacket.LayerType { return LayerTypeXRCETH }

// DETH is the header of a datagram.
type DETH struct {
	layers.BaseLayer
	ib.DETH
}

// LayerType returns LayerTypeDETH.
func (*DETH) LayerType() gopacket.LayerType { return LayerTypeDETH }

// FETH is the header of a FLUSH.
type FETH struct {
	layers.BaseLayer
	ib.FETH
}

// LayerType returns LayerTypeFETH.
func (*FETH) LayerType() gopacket.LayerType { return LayerTypeFETH }

// RETH says where a WRITE, READ, FLUSH or ATOMIC_WRITE goes in memory.
type RETH struct {
	layers.BaseLayer
	ib.RETH
}

// LayerType returns LayerTypeRETH.
func (*RETH) LayerType() gopacket.LayerType { return LayerTypeRETH }

// AtomicETH is the header of an atomic request.
type AtomicETH struct {
	layers.BaseLayer
	ib.AtomicETH
}

// LayerType returns LayerTypeAtomicETH.
func (*AtomicETH) LayerType() gopacket.LayerType { return LayerTypeAtomicETH }

// AETH is the header of an acknowledgement.
type AETH struct {
	layers.BaseLayer
	ib.AETH
}

// LayerType returns LayerTypeAETH.
func (*AETH) LayerType() gopacket.LayerType { return LayerTypeAETH }

// AtomicAckETH is what an atomic found in memory.
type AtomicAckETH struct {
	layers.BaseLayer
	Value ib.AtomicAckETH
}

// LayerType returns LayerTypeAtomicAckETH.
func (*AtomicAckETH) LayerType() gopacket.LayerType { return LayerTypeAtomicAckETH }

// ImmDt is immediate data.
type ImmDt struct {
	layers.BaseLayer
	Value ib.ImmDt
}

// LayerType returns LayerTypeImmDt.
func (*ImmDt) LayerType() gopacket.LayerType { return LayerTypeImmDt }

// IETH names the key that a SEND invalidates.
type IETH struct {
	layers.BaseLayer
	RKey ib.IETH
}

// LayerType returns LayerTypeIETH.
func (*IETH) LayerType() gopacket.LayerType { return LayerTypeIETH }

// MAD is a management datagram, such as a message of the connection manager.
type MAD struct {
	layers.BaseLayer
	Header  mad.Header
	Message mad.Message // nil when package mad does not know it
}

// LayerType returns LayerTypeMAD.
func (*MAD) LayerType() gopacket.LayerType { return LayerTypeMAD }

// ICRC is the invariant CRC and what has become of it.
type ICRC struct {
	layers.BaseLayer
	Value   uint32 // as ib.Packet.ICRC returns it
	Verdict Verdict
}

// LayerType returns LayerTypeICRC.
func (*ICRC) LayerType() gopacket.LayerType { return LayerTypeICRC }

// Verdict is what is known of the ICRC of a packet.
type Verdict uint8

// The verdicts.
const (
	NotJudged Verdict = iota // the capture does not have all of the packet
	Right
	Wrong
)

// String returns "not judged", "ok" or "bad".
func (v Verdict) String() string {
	switch v {
	case Right:
		return "ok"
	case Wrong:
		return "bad"
	}
	return "not judged"
}

func verdict(right bool) Verdict {
	if right {
		return Right
	}
	return Wrong
}
