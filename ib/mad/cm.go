package mad

import "github.com/goroce/goroce/ib"

// Bytes of private data in each message (IBTA 12.6; Linux include/rdma/ib_cm.h).
// A receiver always finds all of them, with zeroes behind what was sent.
const (
	REQPrivateData     = 92
	MRAPrivateData     = 222
	REJPrivateData     = 148
	REPPrivateData     = 196
	RTUPrivateData     = 224
	DREQPrivateData    = 220
	DREPPrivateData    = 224
	SIDRREQPrivateData = 216
	SIDRREPPrivateData = 136
	LAPPrivateData     = 168
	APRPrivateData     = 148

	// InfoSize is the most additional information in REJ, APR and SIDR_REP.
	InfoSize = 72
)

// PermissiveLID stands for a LID that nobody knows; RoCE has none.
const PermissiveLID uint16 = 0xffff

// Transport is the transport service type of a REQ (IBTA 12.6.5).
type Transport uint8

// The transport services. TransportExtended leaves it to
// REQ.ExtendedTransport, of which only ExtendedXRC is defined (IBTA Annex A14).
const (
	TransportRC Transport = iota
	TransportUC
	TransportRD
	TransportExtended

	ExtendedXRC uint8 = 1
)

// REQ asks for a connection (IBTA 12.6.5; Linux include/rdma/ibta_vol1_c12.h has
// the offsets of all messages). The vendor identifier of Linux's enhanced
// connection establishment, which sits in reserved bytes of REQ and REP, is
// neither read nor written.
type REQ struct {
	LocalCommID               uint32 // the sender's name for the connection
	ServiceID                 ServiceID
	LocalCAGUID               uint64
	LocalQKey                 uint32
	LocalQPN                  ib.QPN
	ResponderResources        uint8 // READs and atomics that the sender can answer at a time
	InitiatorDepth            uint8 // READs and atomics that it would like to send at a time
	LocalEECN, RemoteEECN     uint32
	RemoteCMResponseTimeout   ib.AckTimeout // how soon the receiver shall answer
	LocalCMResponseTimeout    ib.AckTimeout // how soon the sender will answer
	Transport                 Transport
	ExtendedTransport         uint8
	FlowControl               bool // end to end, by credits
	StartingPSN               ib.PSN
	RetryCount, RNRRetryCount uint8 // 3 bits; RNR retry 7 is without limit
	PKey                      ib.PKey
	PathMTU                   ib.MTU
	RDCExists                 bool
	MaxCMRetries              uint8 // 4 bits: of each message of the connection manager
	SRQ                       bool
	Primary, Alternate        Path
	PrivateData               []byte
}

// Attr returns AttrREQ.
func (m *REQ) Attr() Attr { return AttrREQ }

func (m *REQ) layout(l layout) {
	u32(l, 0, &m.LocalCommID)
	u64(l, 8, &m.ServiceID)
	u64(l, 16, &m.LocalCAGUID)
	u32(l, 28, &m.LocalQKey)
	u24(l, 32, &m.LocalQPN)
	u8(l, 35, &m.ResponderResources)
	u24(l, 36, &m.LocalEECN)
	u8(l, 39, &m.InitiatorDepth)
	u24(l, 40, &m.RemoteEECN)
	bits(l, 43, 3, 5, &m.RemoteCMResponseTimeout)
	bits(l, 43, 1, 2, &m.Transport)
	flag(l, 43, 0, &m.FlowControl)
	u24(l, 44, &m.StartingPSN)
	bits(l, 47, 3, 5, &m.LocalCMResponseTimeout)
	bits(l, 47, 0, 3, &m.RetryCount)
	u16(l, 48, &m.PKey)
	bits(l, 50, 4, 4, &m.PathMTU)
	flag(l, 50, 3, &m.RDCExists)
	bits(l, 50, 0, 3, &m.RNRRetryCount)
	bits(l, 51, 4, 4, &m.MaxCMRetries)
	flag(l, 51, 3, &m.SRQ)
	bits(l, 51, 0, 3, &m.ExtendedTransport)
	m.Primary.inREQ(l, 52)
	m.Alternate.inREQ(l, 96)
	data(l, 140, REQPrivateData, &m.PrivateData)
}

// Msg says which message a REJ or MRA answers (IBTA 12.6.6, 12.6.7).
type Msg uint8

// The messages that can be answered so.
const (
	MsgREQ   Msg = iota
	MsgREP       //
	MsgOther     // LAP in an MRA, none in a REJ
)

// MRA asks the sender of a message for time: the answer is going to come within
// ServiceTimeout (IBTA 12.6.6).
type MRA struct {
	LocalCommID, RemoteCommID uint32
	MRAed                     Msg
	ServiceTimeout            ib.AckTimeout
	PrivateData               []byte
}

// Attr returns AttrMRA.
func (m *MRA) Attr() Attr { return AttrMRA }

func (m *MRA) layout(l layout) {
	u32(l, 0, &m.LocalCommID)
	u32(l, 4, &m.RemoteCommID)
	bits(l, 8, 6, 2, &m.MRAed)
	bits(l, 9, 3, 5, &m.ServiceTimeout)
	data(l, 10, MRAPrivateData, &m.PrivateData)
}

// REJ refuses or ends the making of a connection (IBTA 12.6.7). LocalCommID is 0
// in the answer to a REQ whose sender has been given no identifier. What ARI,
// the additional reject information, holds depends on the reason.
type REJ struct {
	LocalCommID, RemoteCommID uint32
	Rejected                  Msg
	Reason                    Reason
	ARI                       []byte // at most InfoSize bytes
	PrivateData               []byte
}

// Attr returns AttrREJ.
func (m *REJ) Attr() Attr { return AttrREJ }

func (m *REJ) layout(l layout) {
	u32(l, 0, &m.LocalCommID)
	u32(l, 4, &m.RemoteCommID)
	bits(l, 8, 6, 2, &m.Rejected)
	info(l, 9, 1, 12, InfoSize, &m.ARI)
	u16(l, 10, &m.Reason)
	data(l, 84, REJPrivateData, &m.PrivateData)
}

// REP accepts a REQ (IBTA 12.6.8).
type REP struct {
	LocalCommID, RemoteCommID uint32
	LocalQKey                 uint32
	LocalQPN                  ib.QPN
	LocalEECN                 uint32 // of an XRC target: its queue pair number
	StartingPSN               ib.PSN
	ResponderResources        uint8
	InitiatorDepth            uint8
	TargetACKDelay            ib.AckTimeout
	FailoverAccepted          uint8 // 2 bits: 0 alternate path accepted, 1 not supported, 2 rejected
	FlowControl               bool
	RNRRetryCount             uint8
	SRQ                       bool
	LocalCAGUID               uint64
	PrivateData               []byte
}

// Attr returns AttrREP.
func (m *REP) Attr() Attr { return AttrREP }

func (m *REP) layout(l layout) {
	u32(l, 0, &m.LocalCommID)
	u32(l, 4, &m.RemoteCommID)
	u32(l, 8, &m.LocalQKey)
	u24(l, 12, &m.LocalQPN)
	u24(l, 16, &m.LocalEECN)
	u24(l, 20, &m.StartingPSN)
	u8(l, 24, &m.ResponderResources)
	u8(l, 25, &m.InitiatorDepth)
	bits(l, 26, 3, 5, &m.TargetACKDelay)
	bits(l, 26, 1, 2, &m.FailoverAccepted)
	flag(l, 26, 0, &m.FlowControl)
	bits(l, 27, 5, 3, &m.RNRRetryCount)
	flag(l, 27, 4, &m.SRQ)
	u64(l, 28, &m.LocalCAGUID)
	data(l, 36, REPPrivateData, &m.PrivateData)
}

// RTU says that a connection is ready to use (IBTA 12.6.9).
type RTU struct {
	LocalCommID, RemoteCommID uint32
	PrivateData               []byte
}

// Attr returns AttrRTU.
func (m *RTU) Attr() Attr { return AttrRTU }

func (m *RTU) layout(l layout) {
	u32(l, 0, &m.LocalCommID)
	u32(l, 4, &m.RemoteCommID)
	data(l, 8, RTUPrivateData, &m.PrivateData)
}

// DREQ asks for the end of a connection (IBTA 12.6.10).
type DREQ struct {
	LocalCommID, RemoteCommID uint32
	RemoteQPN                 ib.QPN // the receiver's
	PrivateData               []byte
}

// Attr returns AttrDREQ.
func (m *DREQ) Attr() Attr { return AttrDREQ }

func (m *DREQ) layout(l layout) {
	u32(l, 0, &m.LocalCommID)
	u32(l, 4, &m.RemoteCommID)
	u24(l, 8, &m.RemoteQPN)
	data(l, 12, DREQPrivateData, &m.PrivateData)
}

// DREP answers a DREQ (IBTA 12.6.11).
type DREP struct {
	LocalCommID, RemoteCommID uint32
	PrivateData               []byte
}

// Attr returns AttrDREP.
func (m *DREP) Attr() Attr { return AttrDREP }

func (m *DREP) layout(l layout) {
	u32(l, 0, &m.LocalCommID)
	u32(l, 4, &m.RemoteCommID)
	data(l, 8, DREPPrivateData, &m.PrivateData)
}
