package transport

import (
	"fmt"

	"github.com/goroce/goroce/ib"
)

// WCStatus is the status of a work completion, numbered as ibv_wc_status.
type WCStatus uint8

const (
	WCSuccess WCStatus = iota
	WCLocLenErr
	WCLocQPOpErr
	WCLocEECOpErr
	WCLocProtErr
	WCWRFlushErr
	WCMWBindErr
	WCBadRespErr
	WCLocAccessErr
	WCRemInvReqErr
	WCRemAccessErr
	WCRemOpErr
	WCRetryExcErr
	WCRNRRetryExcErr
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
	WCTMErr
	WCTMRndvIncomplete
)

// The texts are those of ibv_wc_status_str.
var wcStatusNames = [...]string{
	"success", "local length error", "local QP operation error", "local EE context operation error",
	"local protection error", "Work Request Flushed Error", "memory management operation error",
	"bad response error", "local access error", "remote invalid request error", "remote access error",
	"remote operation error", "transport retry counter exceeded", "RNR retry counter exceeded",
	"local RDD violation error", "remote invalid RD request", "aborted error", "invalid EE context number",
	"invalid EE context state", "fatal error", "response timeout error", "general error",
	"TM error", "TM software rendezvous",
}

func (s WCStatus) String() string {
	if int(s) < len(wcStatusNames) {
		return wcStatusNames[s]
	}
	return "unknown"
}

// WCOpcode is the operation that completed, numbered as ibv_wc_opcode.
type WCOpcode uint8

const (
	WCSend            WCOpcode = 0
	WCWrite           WCOpcode = 1
	WCRead            WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCBindMW          WCOpcode = 5
	WCLocalInv        WCOpcode = 6
	WCFlush           WCOpcode = 8
	WCAtomicWrite     WCOpcode = 9
	WCRegMR           WCOpcode = 10 // numbered as in the Linux kernel (ib_wc_opcode)
	WCRecv            WCOpcode = 128
	WCRecvRDMAWithImm WCOpcode = 129
)

func (o WCOpcode) String() string {
	switch o {
	case WCSend:
		return "SEND"
	case WCWrite:
		return "RDMA_WRITE"
	case WCRead:
		return "RDMA_READ"
	case WCCompSwap:
		return "COMP_SWAP"
	case WCFetchAdd:
		return "FETCH_ADD"
	case WCBindMW:
		return "BIND_MW"
	case WCLocalInv:
		return "LOCAL_INV"
	case WCFlush:
		return "FLUSH"
	case WCAtomicWrite:
		return "ATOMIC_WRITE"
	case WCRegMR:
		return "REG_MR"
	case WCRecv:
		return "RECV"
	case WCRecvRDMAWithImm:
		return "RECV_RDMA_WITH_IMM"
	}
	return fmt.Sprintf("WCOpcode(%d)", uint8(o))
}

// completion returns the operation that the completion of a send request names.
func (op WROpcode) completion() WCOpcode {
	switch op {
	case WRWrite, WRWriteWithImm:
		return WCWrite
	case WRRead:
		return WCRead
	case WRAtomicCmpSwp:
		return WCCompSwap
	case WRAtomicFetAdd:
		return WCFetchAdd
	case WRFlush:
		return WCFlush
	case WRAtomicWrite:
		return WCAtomicWrite
	case WRLocalInv:
		return WCLocalInv
	case WRBindMW:
		return WCBindMW
	case WRRegMR:
		return WCRegMR
	}
	return WCSend
}

// WCFlags say which optional fields of a completion are set, numbered as
// ibv_wc_flags.
type WCFlags uint8

const (
	WCGRH     WCFlags = 1 << 0
	WCWithImm WCFlags = 1 << 1
	WCWithInv WCFlags = 1 << 3
)

// WC is a work completion. With a Status other than WCSuccess only ID, Status,
// VendorErr and QPN are meaningful.
type WC struct {
	ID        uint64
	Status    WCStatus
	Opcode    WCOpcode
	Flags     WCFlags
	Solicited bool // the message asked for a solicited event (receive completions)
	VendorErr uint32
	ByteLen   uint32 // bytes received or read
	Imm       uint32 // immediate data in host order, or the invalidated key
	QPN       ib.QPN // the local queue pair
	SrcQP     ib.QPN // the sender (UD)
}
