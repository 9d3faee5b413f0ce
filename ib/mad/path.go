package mad

import "github.com/goroce/goroce/ib"

// Path is one path as the sender of a message sees it: local is the sender's
// end (IBTA 12.6.5, 12.8). An unused path is zero.
type Path struct {
	LocalLID, RemoteLID uint16 // PermissiveLID on RoCE
	LocalGID, RemoteGID ib.GID
	FlowLabel           uint32 // 20 bits
	PacketRate          uint8  // 6 bits
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	LocalACKTimeout     ib.AckTimeout
}

// ends is the part of a path that REQ and LAP place alike.
func (p *Path) ends(l layout, off int) {
	u16(l, off, &p.LocalLID)
	u16(l, off+2, &p.RemoteLID)
	gid(l, off+4, &p.LocalGID)
	gid(l, off+20, &p.RemoteGID)
	bits32(l, off+36, 12, 20, &p.FlowLabel)
	bits(l, off+42, 4, 4, &p.SL)
	flag(l, off+42, 3, &p.SubnetLocal)
	bits(l, off+43, 3, 5, &p.LocalACKTimeout)
}

func (p *Path) inREQ(l layout, off int) {
	p.ends(l, off)
	bits(l, off+39, 0, 6, &p.PacketRate)
	u8(l, off+40, &p.TrafficClass)
	u8(l, off+41, &p.HopLimit)
}

func (p *Path) inLAP(l layout, off int) {
	p.ends(l, off)
	u8(l, off+39, &p.TrafficClass)
	u8(l, off+40, &p.HopLimit)
	bits(l, off+41, 0, 6, &p.PacketRate)
}

// LAP proposes an alternate path for an established connection (IBTA 12.8).
type LAP struct {
	LocalCommID, RemoteCommID uint32
	RemoteQPN                 ib.QPN // the receiver's
	RemoteCMResponseTimeout   ib.AckTimeout
	Alternate                 Path
	PrivateData               []byte
}

// Attr returns AttrLAP.
func (m *LAP) Attr() Attr { return AttrLAP }

func (m *LAP) layout(l layout) {
	u32(l, 0, &m.LocalCommID)
	u32(l, 4, &m.RemoteCommID)
	u24(l, 12, &m.RemoteQPN)
	bits(l, 15, 3, 5, &m.RemoteCMResponseTimeout)
	m.Alternate.inLAP(l, 20)
	data(l, 64, LAPPrivateData, &m.PrivateData)
}

// APR answers a LAP (IBTA 12.8).
type APR struct {
	LocalCommID, RemoteCommID uint32
	Status                    APStatus
	Info                      []byte // at most InfoSize bytes
	PrivateData               []byte
}

// Attr returns AttrAPR.
func (m *APR) Attr() Attr { return AttrAPR }

func (m *APR) layout(l layout) {
	u32(l, 0, &m.LocalCommID)
	u32(l, 4, &m.RemoteCommID)
	info(l, 8, 0, 12, InfoSize, &m.Info)
	u8(l, 9, &m.Status)
	data(l, 84, APRPrivateData, &m.PrivateData)
}

// APStatus is the answer to a proposed alternate path (IBTA 12.8; Linux
// include/rdma/ib_cm.h).
type APStatus uint8

// The answers.
const (
	APROK APStatus = iota
	APRInvalidCommID
	APRUnsupported
	APRRejected
	APRRedirect
	APRIsCurrent
	APRInvalidQPN
	APRInvalidLID
	APRInvalidGID
	APRInvalidFlowLabel
	APRInvalidTrafficClass
	APRInvalidHopLimit
	APRInvalidPacketRate
	APRInvalidSL
)
