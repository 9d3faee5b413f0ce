package mad

import "github.com/goroce/goroce/ib"

// perfData is where the attributes of ClassPerfMgt begin: behind 40 reserved
// bytes (IBTA 16.1.1).
const perfData = 40

// Capabilities of the agent of ClassPerfMgt (IBTA 16.1.3.1; Linux
// include/rdma/ib_pma.h).
const (
	PerfCapExtWidth       uint16 = 1 << 9  // has PortCountersExtended
	PerfCapExtWidthNoIETF uint16 = 1 << 10 // has it without the counters of unicast and multicast packets
	PerfCapXmitWait       uint16 = 1 << 12 // counts PortXmitWait
)

// Capabilities of the agent of ClassCM (IBTA 16.7; no public source has the
// numbers, and nobody is known to ask).
const (
	CMCapRC uint16 = 1 << 9  // reliable connections
	CMCapRD uint16 = 1 << 10 // reliable datagrams
	CMCapUC uint16 = 1 << 12 // unreliable connections
	CMCapUD uint16 = 1 << 13 // unreliable datagrams: service id resolution
)

// ClassPortInfo says what an agent can do and where to reach it (IBTA 13.4.8.1).
// Class is not part of it: it says where in the datagram the attribute stands,
// and is set before Decode.
type ClassPortInfo struct {
	Class          Class
	ClassVersion   uint8
	CapabilityMask uint16
	// RespTime is how soon the agent answers.
	RespTime ib.AckTimeout
	// Redirect and Trap tell of agents elsewhere; zero in what a RoCE port says.
	Redirect, Trap AgentAddress
}

// AgentAddress is where an agent is reached.
type AgentAddress struct {
	GID          ib.GID
	TrafficClass uint8
	SLFlow       uint32 // 24 bits: service level and flow label
	LID          uint16
	PKey         ib.PKey
	HopLimit     uint8 // of a trap; reserved in a redirection
	QPN          ib.QPN
	QKey         uint32
}

func (a *AgentAddress) layout(l layout, off int) {
	gid(l, off, &a.GID)
	u8(l, off+16, &a.TrafficClass)
	bits32(l, off+16, 0, 24, &a.SLFlow)
	u16(l, off+20, &a.LID)
	u16(l, off+22, &a.PKey)
	u8(l, off+24, &a.HopLimit)
	bits32(l, off+24, 0, 24, &a.QPN)
	u32(l, off+28, &a.QKey)
}

// Attr returns AttrClassPortInfo.
func (m *ClassPortInfo) Attr() Attr { return AttrClassPortInfo }

func (m *ClassPortInfo) layout(l layout) {
	off := 0
	if m.Class == ClassPerfMgt {
		off = perfData
	}
	base := uint8(baseVersion)
	u8(l, off, &base)
	u8(l, off+1, &m.ClassVersion)
	u16(l, off+2, &m.CapabilityMask)
	bits(l, off+7, 0, 5, &m.RespTime)
	m.Redirect.layout(l, off+8)
	m.Trap.layout(l, off+40)
}

// PortCounters are the counters of a port that stop at their largest value
// (IBTA 16.1.3.5). Data are counted in units of 4 bytes.
type PortCounters struct {
	PortSelect               uint8
	CounterSelect            uint16 // of a Set: which to reset, a bit each
	SymbolErrors             uint16
	LinkErrorRecovery        uint8
	LinkDowned               uint8
	RcvErrors                uint16
	RcvRemotePhysicalErrors  uint16
	RcvSwitchRelayErrors     uint16
	XmitDiscards             uint16
	XmitConstraintErrors     uint8
	RcvConstraintErrors      uint8
	LocalLinkIntegrityErrors uint8 // 4 bits
	ExcessiveBufferOverruns  uint8 // 4 bits
	QP1Dropped, VL15Dropped  uint16
	XmitData, RcvData        uint32
	XmitPkts, RcvPkts        uint32
	XmitWait                 uint32
}

// Attr returns AttrPortCounters.
func (m *PortCounters) Attr() Attr { return AttrPortCounters }

func (m *PortCounters) layout(l layout) {
	l.b = l.b[perfData:]
	u8(l, 1, &m.PortSelect)
	u16(l, 2, &m.CounterSelect)
	u16(l, 4, &m.SymbolErrors)
	u8(l, 6, &m.LinkErrorRecovery)
	u8(l, 7, &m.LinkDowned)
	u16(l, 8, &m.RcvErrors)
	u16(l, 10, &m.RcvRemotePhysicalErrors)
	u16(l, 12, &m.RcvSwitchRelayErrors)
	u16(l, 14, &m.XmitDiscards)
	u8(l, 16, &m.XmitConstraintErrors)
	u8(l, 17, &m.RcvConstraintErrors)
	bits(l, 19, 4, 4, &m.LocalLinkIntegrityErrors)
	bits(l, 19, 0, 4, &m.ExcessiveBufferOverruns)
	u16(l, 20, &m.QP1Dropped)
	u16(l, 22, &m.VL15Dropped)
	u32(l, 24, &m.XmitData)
	u32(l, 28, &m.RcvData)
	u32(l, 32, &m.XmitPkts)
	u32(l, 36, &m.RcvPkts)
	u32(l, 40, &m.XmitWait)
}

// PortCountersExtended are the counters of 64 bits (IBTA 16.1.4.11). Data are
// counted in units of 4 bytes.
type PortCountersExtended struct {
	PortSelect                          uint8
	CounterSelect                       uint16 // of a Set: which to reset, a bit each
	XmitData, RcvData                   uint64
	XmitPkts, RcvPkts                   uint64
	UnicastXmitPkts, UnicastRcvPkts     uint64
	MulticastXmitPkts, MulticastRcvPkts uint64
}

// Attr returns AttrPortCountersExtended.
func (m *PortCountersExtended) Attr() Attr { return AttrPortCountersExtended }

func (m *PortCountersExtended) layout(l layout) {
	l.b = l.b[perfData:]
	u8(l, 1, &m.PortSelect)
	u16(l, 2, &m.CounterSelect)
	for i, v := range [...]*uint64{
		&m.XmitData, &m.RcvData, &m.XmitPkts, &m.RcvPkts,
		&m.UnicastXmitPkts, &m.UnicastRcvPkts, &m.MulticastXmitPkts, &m.MulticastRcvPkts,
	} {
		u64(l, 8+8*i, v)
	}
}
