package roce

import (
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
	"github.com/goroce/goroce/transport"
)

// The vocabulary of verbs; see the packages that define it.
type (
	// WC is a work completion (ibv_wc).
	WC = transport.WC
	// WCStatus is the status of a completion (ibv_wc_status).
	WCStatus = transport.WCStatus
	// WCOpcode is the operation that completed (ibv_wc_opcode).
	WCOpcode = transport.WCOpcode
	// WROpcode is the operation of a send request (ibv_wr_opcode).
	WROpcode = transport.WROpcode
	// SendFlags are the flags of a send request (ibv_send_flags).
	SendFlags = transport.SendFlags
	// QPType is a transport service (ibv_qp_type).
	QPType = transport.QPType
	// State is a queue pair state (ibv_qp_state).
	State = transport.State
	// Attr holds queue pair attributes (ibv_qp_attr).
	Attr = transport.Attr
	// AttrMask selects fields of Attr (ibv_qp_attr_mask).
	AttrMask = transport.AttrMask
	// AttrError says which attribute Modify refused and what is allowed.
	AttrError = transport.AttrError
	// MigState is a path migration state (ibv_mig_state).
	MigState = transport.MigState
	// AddressVector says how to reach a peer (ibv_ah_attr).
	AddressVector = transport.AddressVector
	// EventType is the kind of an asynchronous event (ibv_event_type).
	EventType = transport.Event
	// Access is a set of access rights (ibv_access_flags).
	Access = mem.Access
	// Placement says what a FLUSH asks for (ibv_placement_type).
	Placement = transport.Placement
	// FlushLevel says how much a FLUSH covers (ibv_selectivity_level).
	FlushLevel = transport.FlushLevel
	// SGE is one local segment of a request (ibv_sge).
	SGE = mem.SGE
)

// Access rights of memory regions, memory windows and queue pairs.
const (
	LocalWrite      = mem.LocalWrite
	RemoteWrite     = mem.RemoteWrite
	RemoteRead      = mem.RemoteRead
	RemoteAtomic    = mem.RemoteAtomic
	MWBind          = mem.MWBind          // memory windows may be bound to the region
	ZeroBased       = mem.ZeroBased       // the first byte has address 0
	OnDemand        = mem.OnDemand        // no effect: nothing is ever pinned
	HugeTLB         = mem.HugeTLB         // no effect
	RelaxedOrdering = mem.RelaxedOrdering // no effect: memory changes in PSN order
	// FlushGlobal lets peers FLUSH so that everybody sees what was written.
	FlushGlobal = mem.FlushGlobal
	// FlushPersistent lets peers FLUSH so that what was written survives a loss
	// of power: the memory is a mapping of a file (mmap with MAP_SHARED), and a
	// FLUSH does an msync, for whose duration the device may stand still.
	FlushPersistent = mem.FlushPersistent
)

// Queue pair states.
const (
	StateReset = transport.Reset
	StateInit  = transport.Init
	StateRTR   = transport.RTR
	StateRTS   = transport.RTS
	StateSQD   = transport.SQD
	StateSQE   = transport.SQE
	StateErr   = transport.Err
)

// Path migration states.
const (
	MigMigrated = transport.MigMigrated
	MigRearm    = transport.MigRearm
	MigArmed    = transport.MigArmed
)

// Transport services.
const (
	RC = transport.RC
	UC = transport.UC
	UD = transport.UD

	XRCSend = transport.XRCSend // initiator: sends requests
	XRCRecv = transport.XRCRecv // target: takes them for shared receive queues
)

// Operations of send requests.
const (
	WRWrite        = transport.WRWrite
	WRWriteWithImm = transport.WRWriteWithImm
	WRSend         = transport.WRSend
	WRSendWithImm  = transport.WRSendWithImm
	WRRead         = transport.WRRead
	WRSendWithInv  = transport.WRSendWithInv // SEND that closes a key of the peer
	WRLocalInv     = transport.WRLocalInv    // closes a window of type 2 or a fast registration
	WRBindMW       = transport.WRBindMW      // opens a window of type 2
	WRRegMR        = transport.WRRegMR       // registers a region made by AllocMR
	WRAtomicCmpSwp = transport.WRAtomicCmpSwp
	WRAtomicFetAdd = transport.WRAtomicFetAdd
	WRFlush        = transport.WRFlush
	WRAtomicWrite  = transport.WRAtomicWrite
)

// What a FLUSH asks for, and of how much memory.
const (
	PlaceGlobal     = transport.PlaceGlobal
	PlacePersistent = transport.PlacePersistent
	FlushRange      = transport.FlushRange
	FlushMR         = transport.FlushMR
)

// Flags of send requests.
const (
	Fence     = transport.Fence
	Signaled  = transport.Signaled
	Solicited = transport.Solicited
	Inline    = transport.Inline
)

// Completion statuses, all of ibv_wc_status.
const (
	WCSuccess          = transport.WCSuccess
	WCLocLenErr        = transport.WCLocLenErr
	WCLocQPOpErr       = transport.WCLocQPOpErr
	WCLocEECOpErr      = transport.WCLocEECOpErr
	WCLocProtErr       = transport.WCLocProtErr
	WCWRFlushErr       = transport.WCWRFlushErr
	WCMWBindErr        = transport.WCMWBindErr
	WCBadRespErr       = transport.WCBadRespErr
	WCLocAccessErr     = transport.WCLocAccessErr
	WCRemInvReqErr     = transport.WCRemInvReqErr
	WCRemAccessErr     = transport.WCRemAccessErr
	WCRemOpErr         = transport.WCRemOpErr
	WCRetryExcErr      = transport.WCRetryExcErr
	WCRNRRetryExcErr   = transport.WCRNRRetryExcErr
	WCLocRDDViolErr    = transport.WCLocRDDViolErr
	WCRemInvRDReqErr   = transport.WCRemInvRDReqErr
	WCRemAbortErr      = transport.WCRemAbortErr
	WCInvEECNErr       = transport.WCInvEECNErr
	WCInvEECStateErr   = transport.WCInvEECStateErr
	WCFatalErr         = transport.WCFatalErr
	WCRespTimeoutErr   = transport.WCRespTimeoutErr
	WCGeneralErr       = transport.WCGeneralErr
	WCTMErr            = transport.WCTMErr
	WCTMRndvIncomplete = transport.WCTMRndvIncomplete
)

// Operations of completions.
const (
	WCSend            = transport.WCSend
	WCWrite           = transport.WCWrite
	WCRead            = transport.WCRead
	WCBindMW          = transport.WCBindMW
	WCLocalInv        = transport.WCLocalInv
	WCRegMR           = transport.WCRegMR
	WCCompSwap        = transport.WCCompSwap
	WCFetchAdd        = transport.WCFetchAdd
	WCFlush           = transport.WCFlush
	WCAtomicWrite     = transport.WCAtomicWrite
	WCRecv            = transport.WCRecv
	WCRecvRDMAWithImm = transport.WCRecvRDMAWithImm
)

// Flags of completions.
const (
	WCWithImm = transport.WCWithImm
	WCGRH     = transport.WCGRH // the 40 bytes before the payload are there (UD)
	WCWithInv = transport.WCWithInv
)

// Asynchronous events.
const (
	EventCQErr       = transport.EventCQErr
	EventQPFatal     = transport.EventQPFatal
	EventQPReqErr    = transport.EventQPReqErr
	EventQPAccessErr = transport.EventQPAccessErr
	EventCommEst     = transport.EventCommEst
	EventSQDrained   = transport.EventSQDrained
	EventDeviceFatal = transport.EventDeviceFatal
	EventPathMig     = transport.EventPathMig
	EventPathMigErr  = transport.EventPathMigErr
	EventPortActive  = transport.EventPortActive
	EventPortErr     = transport.EventPortErr
	EventSRQErr      = transport.EventSRQErr
	EventSRQLimit    = transport.EventSRQLimit
	EventQPLastWQE   = transport.EventQPLastWQE
	EventGIDChange   = transport.EventGIDChange
)

// Masks of Modify.
const (
	MaskState           = transport.MaskState
	MaskCurState        = transport.MaskCurState
	MaskSQDNotify       = transport.MaskSQDNotify
	MaskAccess          = transport.MaskAccess
	MaskPKeyIndex       = transport.MaskPKeyIndex
	MaskPort            = transport.MaskPort
	MaskQKey            = transport.MaskQKey
	MaskAV              = transport.MaskAV
	MaskPathMTU         = transport.MaskPathMTU
	MaskTimeout         = transport.MaskTimeout
	MaskRetryCnt        = transport.MaskRetryCnt
	MaskRNRRetry        = transport.MaskRNRRetry
	MaskRQPSN           = transport.MaskRQPSN
	MaskMaxRdAtomic     = transport.MaskMaxRdAtomic
	MaskMinRNRTimer     = transport.MaskMinRNRTimer
	MaskSQPSN           = transport.MaskSQPSN
	MaskMaxDestRdAtomic = transport.MaskMaxDestRdAtomic
	MaskDestQPN         = transport.MaskDestQPN
	MaskAltPath         = transport.MaskAltPath
	MaskPathMigState    = transport.MaskPathMigState
)

// Path MTUs.
const (
	MTU256  = ib.MTU256
	MTU512  = ib.MTU512
	MTU1024 = ib.MTU1024
	MTU2048 = ib.MTU2048
	MTU4096 = ib.MTU4096
)
