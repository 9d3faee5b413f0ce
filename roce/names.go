package roce

import (
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
	"github.com/goroce/goroce/transport"
)

// The vocabulary of verbs; see the packages that define it.
type (
	// WC is a work completion (ibv_wc): the ID of the request, its Status and Opcode,
	// QPN, the queue pair, and of a success ByteLen, the bytes received or read; of a
	// receive Flags (WCWithImm, WCWithInv, WCGRH), Imm, immediate data in host order or
	// the key that was closed, Solicited, and SrcQP, the sender's queue pair. With
	// a Status other than WCSuccess only ID, Status, VendorErr and QPN mean
	// something.
	WC = transport.WC
	// WCStatus is the status of a completion (ibv_wc_status).
	WCStatus = transport.WCStatus
	// WCOpcode is the operation that completed (ibv_wc_opcode).
	WCOpcode = transport.WCOpcode
	// WROpcode is the operation of a send request (ibv_wr_opcode).
	WROpcode = transport.WROpcode
	// SendFlags are the flags of a send request (ibv_send_flags).
	SendFlags = transport.SendFlags
	// QPType is a transport service (ibv_qp_type). Its method Sends says which
	// operations a queue pair of the service can post.
	QPType = transport.QPType
	// State is a queue pair state (ibv_qp_state; IBTA 10.3.1). What QP.Modify
	// allows from each is in the table of ibv_modify_qp(3).
	State = transport.State
	// Attr holds queue pair attributes (ibv_qp_attr): State, CurState, PathMTU, QKey,
	// RQPSN, SQPSN, DestQPN, Access, PKeyIndex (0), PortNum (1), AV, MaxRdAtomic,
	// MaxDestRdAtomic, MinRNRTimer, Timeout (codes of the wire, types of package
	// ib), RetryCnt and RNRRetry (0 to 7; 7 RNR retries are for ever),
	// SQDrainNotify, SQDraining (only told), and of path migration PathMigState,
	// AltAV, AltPKeyIndex, AltPortNum, AltTimeout.
	Attr = transport.Attr
	// AttrMask selects fields of Attr (ibv_qp_attr_mask).
	AttrMask = transport.AttrMask
	// AttrError says which attribute Modify refused and what is allowed.
	AttrError = transport.AttrError
	// MigState is a path migration state (ibv_mig_state).
	MigState = transport.MigState
	// AddressVector says how to reach a peer (ibv_ah_attr): DGID, its IP address
	// (ib.GIDFromAddr), TrafficClass, and SourcePort, the UDP port to send from,
	// where 0 is the device's.
	AddressVector = transport.AddressVector
	// EventType is the kind of an asynchronous event (ibv_event_type).
	EventType = transport.Event
	// Access is a set of access rights (ibv_access_flags).
	Access = mem.Access
	// Placement says what a FLUSH asks for (ibv_placement_type), one or both.
	Placement = transport.Placement
	// FlushLevel says how much a FLUSH covers (ibv_selectivity_level).
	FlushLevel = transport.FlushLevel
	// SGE is one local segment of a request (ibv_sge): Addr, as the region names it,
	// Length in bytes, and LKey. MR.SGE makes one.
	SGE = mem.SGE
)

// Access rights of memory regions, memory windows and queue pairs.
const (
	LocalWrite      = mem.LocalWrite      // receives, READs and atomics may put something there
	RemoteWrite     = mem.RemoteWrite     // peers may WRITE; needs LocalWrite
	RemoteRead      = mem.RemoteRead      // peers may READ
	RemoteAtomic    = mem.RemoteAtomic    // peers may FetchAdd and CmpSwap; needs LocalWrite
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
	StateReset = transport.Reset // new, or emptied
	StateInit  = transport.Init  // receive requests may be posted
	StateRTR   = transport.RTR   // ready to receive
	StateRTS   = transport.RTS   // ready to send as well
	StateSQD   = transport.SQD   // begins no more requests; EventSQDrained tells when none is under way
	StateSQE   = transport.SQE   // UC and UD after an error of a send request: still receives
	StateErr   = transport.Err   // takes no packets; all requests complete as flushed
)

// Path migration states.
const (
	MigMigrated = transport.MigMigrated // on its path, with none to change to
	MigRearm    = transport.MigRearm    // has an alternate path, and waits for the peer to have one
	MigArmed    = transport.MigArmed    // both ends are ready to change over
)

// Transport services.
const (
	RC = transport.RC // reliable connection: all operations, each message once and in order
	UC = transport.UC // unreliable connection: SEND and WRITE, what is lost is lost
	UD = transport.UD // unreliable datagrams: SENDs of one packet to anybody

	XRCSend = transport.XRCSend // initiator: sends requests
	XRCRecv = transport.XRCRecv // target: takes them for shared receive queues
)

// Operations of send requests.
const (
	WRWrite        = transport.WRWrite
	WRWriteWithImm = transport.WRWriteWithImm // WRITE that consumes a receive and brings Imm with it
	WRSend         = transport.WRSend
	WRSendWithImm  = transport.WRSendWithImm
	WRRead         = transport.WRRead
	WRSendWithInv  = transport.WRSendWithInv  // SEND that closes a key of the peer
	WRLocalInv     = transport.WRLocalInv     // closes a window of type 2 or a fast registration
	WRBindMW       = transport.WRBindMW       // opens a window of type 2
	WRRegMR        = transport.WRRegMR        // registers a region made by AllocMR
	WRAtomicCmpSwp = transport.WRAtomicCmpSwp // stores Swap if CompareAdd is there; brings back what was there
	WRAtomicFetAdd = transport.WRAtomicFetAdd // adds CompareAdd; brings back what was there
	WRFlush        = transport.WRFlush        // completes when what was written before is where Flush.Placement says
	WRAtomicWrite  = transport.WRAtomicWrite  // WRITE of 8 bytes at once
)

// What a FLUSH asks for, and of how much memory.
const (
	PlaceGlobal     = transport.PlaceGlobal     // everybody sees it
	PlacePersistent = transport.PlacePersistent // it survives a loss of power
	FlushRange      = transport.FlushRange      // RemoteAddr and Flush.Length
	FlushMR         = transport.FlushMR         // all of the region
)

// Flags of send requests.
const (
	Fence     = transport.Fence     // begin only when all earlier READs and atomics have completed (IBTA 10.8.3.3)
	Signaled  = transport.Signaled  // complete a success on the CQ, too; errors always do
	Solicited = transport.Solicited // the receive that it consumes raises a solicited event
	Inline    = transport.Inline    // the payload is Data, copied when posted
)

// Completion statuses, all of ibv_wc_status; those without a comment never come.
// All but success and WCWRFlushErr put the queue pair in the error state, or, of a send
// request of UC and UD, in SQE.
const (
	WCSuccess          = transport.WCSuccess
	WCLocLenErr        = transport.WCLocLenErr  // message too long for the service, or for the receive
	WCLocQPOpErr       = transport.WCLocQPOpErr // operation that the queue pair cannot do, or to a bad address
	WCLocEECOpErr      = transport.WCLocEECOpErr
	WCLocProtErr       = transport.WCLocProtErr // a local segment names no memory that the request may use
	WCWRFlushErr       = transport.WCWRFlushErr // not executed: the queue pair is in the error state, or in SQE
	WCMWBindErr        = transport.WCMWBindErr  // bind, registration or invalidation that is not allowed
	WCBadRespErr       = transport.WCBadRespErr // answer of the peer that makes no sense
	WCLocAccessErr     = transport.WCLocAccessErr
	WCRemInvReqErr     = transport.WCRemInvReqErr   // the peer takes no such request; or, of a receive, a key that the sender may not close
	WCRemAccessErr     = transport.WCRemAccessErr   // remote key, address, length or rights are wrong
	WCRemOpErr         = transport.WCRemOpErr       // the peer failed: its receive, or its memory, was bad
	WCRetryExcErr      = transport.WCRetryExcErr    // no answer, after all retries
	WCRNRRetryExcErr   = transport.WCRNRRetryExcErr // the peer posted no receive, after all retries
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
	WCWithImm = transport.WCWithImm // Imm is immediate data
	WCGRH     = transport.WCGRH     // the 40 bytes before the payload are there (UD)
	WCWithInv = transport.WCWithInv // Imm is the key that the sender has closed
)

// Asynchronous events, as AsyncEvent.Type has them (ibv_get_async_event(3)).
const (
	EventCQErr       = transport.EventCQErr       // completions were lost: ErrCQOverflow
	EventQPFatal     = transport.EventQPFatal     // in the error state, by a failure of this side
	EventQPReqErr    = transport.EventQPReqErr    // in the error state: the peer's request was invalid
	EventQPAccessErr = transport.EventQPAccessErr // in the error state: the peer may not access what it named
	EventCommEst     = transport.EventCommEst     // a packet came in RTR: the peer is ready to send
	EventSQDrained   = transport.EventSQDrained   // in SQD, and no request is under way
	EventDeviceFatal = transport.EventDeviceFatal
	EventPathMig     = transport.EventPathMig    // it has migrated to its alternate path
	EventPathMigErr  = transport.EventPathMigErr // the peer has migrated to another path than ours
	EventPortActive  = transport.EventPortActive // the interface is up
	EventPortErr     = transport.EventPortErr    // ... is down
	EventSRQErr      = transport.EventSRQErr     // of XRC: its CQ has overflowed, and it takes nothing any more
	EventSRQLimit    = transport.EventSRQLimit   // fewer requests are left than SRQAttr.Limit
	EventQPLastWQE   = transport.EventQPLastWQE  // in the error state, and will take nothing from its SRQ any more
	EventGIDChange   = transport.EventGIDChange  // the address has gone from this host, or is back
)

// Masks of Modify: which fields of Attr, mostly of the same name, are meant.
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
