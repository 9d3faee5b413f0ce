package transport

import (
	"fmt"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// QPType is a transport service, numbered as ibv_qp_type.
type QPType uint8

const (
	RC QPType = 2 // reliable connection
	UC QPType = 3 // unreliable connection
	UD QPType = 4 // unreliable datagram

	// Extended reliable connection: one way each, so an initiator has no
	// receiver and a target no sender (IBTA A14).
	XRCSend QPType = 9
	XRCRecv QPType = 10
)

func (t QPType) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	case XRCSend:
		return "XRC_SEND"
	case XRCRecv:
		return "XRC_RECV"
	}
	return fmt.Sprintf("QPType(%d)", uint8(t))
}

// State is a queue pair state, numbered as ibv_qp_state (IBTA 10.3.1).
type State uint8

const (
	Reset State = iota
	Init
	RTR // ready to receive
	RTS // ready to send
	SQD // send queue drained or draining
	SQE // send queue error (UC, UD)
	Err
)

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// WROpcode is the operation of a send work request, numbered as ibv_wr_opcode.
type WROpcode uint8

const (
	WRWrite        WROpcode = 0
	WRWriteWithImm WROpcode = 1
	WRSend         WROpcode = 2
	WRSendWithImm  WROpcode = 3
	WRRead         WROpcode = 4
	WRAtomicCmpSwp WROpcode = 5
	WRAtomicFetAdd WROpcode = 6
	WRLocalInv     WROpcode = 7
	WRBindMW       WROpcode = 8
	WRSendWithInv  WROpcode = 9
	WRFlush        WROpcode = 14
	WRAtomicWrite  WROpcode = 15
	WRRegMR        WROpcode = 32 // fast registration, numbered as in the Linux kernel (ib_wr_opcode)
)

// sendOps are the operations that each transport service has for send requests,
// as bits (IBTA 9.2, table of transport functions supported for specific
// transport services).
var sendOps = [...]uint64{
	RC: connectedOps | 1<<WRFlush | 1<<WRAtomicWrite | localOps,
	UC: 1<<WRWrite | 1<<WRWriteWithImm | 1<<WRSend | 1<<WRSendWithImm | localOps,
	UD: 1<<WRSend | 1<<WRSendWithImm,
	// Nobody has given FLUSH and ATOMIC_WRITE operation codes of XRC (Linux
	// include/rdma/ib_pack.h), though ibv_wr_post(3) lists them for it.
	XRCSend: connectedOps | localOps,
}

const (
	connectedOps = 1<<WRWrite | 1<<WRWriteWithImm | 1<<WRSend | 1<<WRSendWithImm | 1<<WRRead | 1<<WRSendWithInv |
		1<<WRAtomicCmpSwp | 1<<WRAtomicFetAdd
	localOps = 1<<WRLocalInv | 1<<WRBindMW | 1<<WRRegMR
)

// Sends says whether queue pairs of type t take send requests of operation op.
func (t QPType) Sends(op WROpcode) bool {
	return int(t) < len(sendOps) && op < 64 && sendOps[t]>>op&1 != 0
}

// Placement says what a FLUSH asks for, numbered as ib_placement_type
// (IBTA A19).
type Placement uint8

const (
	PlaceGlobal     Placement = 1 << 0 // visible to everybody
	PlacePersistent Placement = 1 << 1 // survives loss of power
)

// FlushLevel says how much a FLUSH covers, numbered as ib_selectivity_level
// (IBTA A19).
type FlushLevel uint8

const (
	FlushRange FlushLevel = 0 // the range of the request
	FlushMR    FlushLevel = 1 // the whole memory region, whatever the range is
)

// FlushImm is SendWQE.Imm of a FLUSH.
func FlushImm(p Placement, l FlushLevel) uint32 { return uint32(p&3) | uint32(l&3)<<4 }

// SendFlags are the flags of a send work request, numbered as ibv_send_flags.
type SendFlags uint8

const (
	Fence     SendFlags = 1 << 0 // start only after all earlier READs and atomics have completed
	Signaled  SendFlags = 1 << 1 // deliver a completion on success
	Solicited SendFlags = 1 << 2 // set the solicited event bit of the last packet
	Inline    SendFlags = 1 << 3 // the payload was copied when the request was posted
)

// SendWQE is the header of one entry of a send queue: fixed layout and no
// pointer, so that a ring in C memory can hold it
// (docs/decisions/0005-post-rings.md). The poster fills it; the requester reads
// it until it consumes the entry.
type SendWQE struct {
	ID         uint64
	Opcode     WROpcode
	Flags      SendFlags
	NumSGE     uint16
	Imm        uint32 // immediate data, the key to invalidate, FlushImm of a FLUSH; host order; see also SetBind
	RemoteAddr uint64
	RKey       uint32 // ... of the peer, or the new key of SetBind and SetRegMR
	InlineLen  uint32 // bytes of payload stored in the entry, with Inline
	CompareAdd uint64 // operand of an atomic, or the length of a FLUSH
	Swap       uint64
	AH         uint32 // address handle number (UD)
	RemoteQPN  ib.QPN // (UD)
	QKey       uint32 // (UD), see ControlledQKey
	SRQN       ib.QPN // the peer's shared receive queue (XRC)
}

// RecvWQE is one receive request as the responder holds it.
type RecvWQE struct {
	ID  uint64
	SGE []mem.SGE
}

// SQ is what the requester needs of a send queue: entries numbered by a
// free-running index. Entries in [consumed, Produced) belong to the requester.
type SQ interface {
	// Produced returns the index after the last posted entry.
	Produced() uint32
	// Posted says whether there are entries from taken on, all before having been
	// taken up. If there are none whoever posts the next one has to call QP.Kick;
	// otherwise nobody has to while the state is RTS: they are looked at in their
	// turn.
	Posted(taken uint32) bool
	// Entry returns the header of entry i; it stays valid and unchanged until
	// consumed.
	Entry(i uint32) *SendWQE
	// SGEs returns the local segments of entry i, none with Inline.
	SGEs(i uint32) []mem.SGE
	// Inline returns the payload that was copied when entry i was posted.
	Inline(i uint32) []byte
	// Consume returns all entries before upTo to the poster. It is called
	// before the completion of the last of them is pushed.
	Consume(upTo uint32)
}

// RQ is what the responder needs of a receive queue, its own or a shared one.
type RQ interface {
	// Pop copies the oldest entry into dst, reusing the capacity of dst.SGE,
	// and frees its slot. It reports false when the queue is empty.
	Pop(dst *RecvWQE) bool
}

// CQ takes completions. Push never blocks; what happens on overflow is the
// queue's business.
type CQ interface {
	Push(wc *WC)
}

// SRQ is a receive queue and what the messages to it need: where they complete,
// and the protection domain whose memory they may use. Other services have one
// for each queue pair; a message of XRC names its own. XRC target queue pairs keep
// what they were given while a message or a READ needs it, so that it must not
// change, except to Closed.
type SRQ struct {
	Num    ib.QPN // in an XRC domain
	RQ     RQ
	CQ     CQ
	Mem    *mem.Table
	PD     mem.PD
	Closed bool // destroyed: nothing of it is used any more. Set by the owner of the engine
}

// SRQs finds the shared receive queues of an XRC domain.
type SRQs interface {
	// SRQ returns the receive queue with this number, or nil if the domain has
	// none. It must not wait or allocate.
	SRQ(num ib.QPN) *SRQ
}

// AHs resolves the address handles of datagrams.
type AHs interface {
	// Path returns where the address handle with this number leads; false if
	// there is none in the protection domain. It must not wait or allocate.
	Path(handle uint32, pd mem.PD) (Path, bool)
}

// ControlledQKey is the bit of a Q_Key that stands in a send request for "the
// Q_Key of the queue pair itself" (IBTA 10.2.5).
const ControlledQKey = 1 << 31

// Event is an asynchronous event, numbered as ibv_event_type.
type Event uint8

const (
	EventCQErr          Event = 0
	EventQPFatal        Event = 1
	EventQPReqErr       Event = 2
	EventQPAccessErr    Event = 3
	EventCommEst        Event = 4
	EventSQDrained      Event = 5
	EventPathMig        Event = 6
	EventPathMigErr     Event = 7
	EventDeviceFatal    Event = 8
	EventPortActive     Event = 9
	EventPortErr        Event = 10
	EventLIDChange      Event = 11
	EventPKeyChange     Event = 12
	EventSMChange       Event = 13
	EventSRQErr         Event = 14
	EventSRQLimit       Event = 15
	EventQPLastWQE      Event = 16
	EventClientReregist Event = 17
	EventGIDChange      Event = 18
)

var eventNames = [...]string{
	"CQ error", "local work queue catastrophic error", "invalid request local work queue error",
	"local access violation work queue error", "communication established", "send queue drained",
	"path migrated", "path migration request error", "local catastrophic error", "port active", "port error",
	"LID change", "P_Key change", "SM change", "SRQ catastrophic error", "SRQ limit reached",
	"last WQE reached", "client reregistration", "GID table change",
}

func (e Event) String() string {
	if int(e) < len(eventNames) {
		return eventNames[e]
	}
	return fmt.Sprintf("Event(%d)", uint8(e))
}

// AddressVector says how to reach the peer of a queue pair (ibv_ah_attr with
// its global route). On RoCEv2 the addresses are IP addresses written as GIDs.
type AddressVector struct {
	DGID         ib.GID
	SGIDIndex    uint8
	TrafficClass uint8 // IPv4 TOS or IPv6 traffic class of what we send
	HopLimit     uint8
	FlowLabel    uint32
	// SourcePort is the UDP source port of what we send; 0 means the device's
	// own, 4791 (ib.SourcePort has another where flows shall spread).
	SourcePort uint16
}

// Path returns where packets go.
func (v *AddressVector) Path() Path {
	return Path{Dst: v.DGID.Addr(), SrcPort: v.SourcePort, TOS: v.TrafficClass}
}

// Attr is ibv_qp_attr: which fields Modify looks at is said by its mask.
type Attr struct {
	State           State
	CurState        State
	PathMTU         ib.MTU
	QKey            uint32
	RQPSN           ib.PSN // PSN expected first from the peer
	SQPSN           ib.PSN // PSN of our first request
	DestQPN         ib.QPN
	Access          mem.Access // remote operations the QP allows
	PKeyIndex       uint16
	PortNum         uint8
	SQDrainNotify   bool
	AV              AddressVector
	MaxRdAtomic     uint8 // READs and atomics outstanding as initiator
	MaxDestRdAtomic uint8 // resources kept for READs and atomics as responder
	MinRNRTimer     ib.RNRTimer
	Timeout         ib.AckTimeout
	RetryCnt        uint8 // 0..7
	RNRRetry        uint8 // 0..7, 7 means for ever
	SQDraining      bool  // query only

	// The alternate path, selected together by MaskAltPath: what is in AV,
	// PKeyIndex, PortNum and Timeout once the queue pair has migrated to it.
	AltAV        AddressVector
	AltPKeyIndex uint16
	AltPortNum   uint8
	AltTimeout   ib.AckTimeout
	PathMigState MigState // to be set to MigRearm or MigMigrated
}

// AttrMask selects fields of Attr, numbered as ibv_qp_attr_mask.
type AttrMask uint32

const (
	MaskState           AttrMask = 1 << 0
	MaskCurState        AttrMask = 1 << 1
	MaskSQDNotify       AttrMask = 1 << 2
	MaskAccess          AttrMask = 1 << 3
	MaskPKeyIndex       AttrMask = 1 << 4
	MaskPort            AttrMask = 1 << 5
	MaskQKey            AttrMask = 1 << 6
	MaskAV              AttrMask = 1 << 7
	MaskPathMTU         AttrMask = 1 << 8
	MaskTimeout         AttrMask = 1 << 9
	MaskRetryCnt        AttrMask = 1 << 10
	MaskRNRRetry        AttrMask = 1 << 11
	MaskRQPSN           AttrMask = 1 << 12
	MaskMaxRdAtomic     AttrMask = 1 << 13
	MaskAltPath         AttrMask = 1 << 14
	MaskMinRNRTimer     AttrMask = 1 << 15
	MaskSQPSN           AttrMask = 1 << 16
	MaskMaxDestRdAtomic AttrMask = 1 << 17
	MaskPathMigState    AttrMask = 1 << 18
	MaskCap             AttrMask = 1 << 19
	MaskDestQPN         AttrMask = 1 << 20
)
