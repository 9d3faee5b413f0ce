package mad

import "strconv"

// Reason says why a REJ was sent (IBTA 12.6.7.2; Linux include/rdma/ib_cm.h).
type Reason uint16

// The reasons.
const (
	RejNoQP                   Reason = 1
	RejNoEEC                  Reason = 2
	RejNoResources            Reason = 3
	RejTimeout                Reason = 4 // ARI: CA GUID of the sender
	RejUnsupported            Reason = 5
	RejInvalidCommID          Reason = 6
	RejInvalidCommInstance    Reason = 7
	RejInvalidServiceID       Reason = 8 // nobody listens
	RejInvalidTransport       Reason = 9
	RejStaleConn              Reason = 10
	RejRDCNotExist            Reason = 11
	RejInvalidGID             Reason = 12 // ARI: the right GID
	RejInvalidLID             Reason = 13
	RejInvalidSL              Reason = 14
	RejInvalidTrafficClass    Reason = 15
	RejInvalidHopLimit        Reason = 16
	RejInvalidPacketRate      Reason = 17
	RejInvalidAltGID          Reason = 18
	RejInvalidAltLID          Reason = 19
	RejInvalidAltSL           Reason = 20
	RejInvalidAltTrafficClass Reason = 21
	RejInvalidAltHopLimit     Reason = 22
	RejInvalidAltPacketRate   Reason = 23
	RejPortCMRedirect         Reason = 24
	RejPortRedirect           Reason = 25
	RejInvalidMTU             Reason = 26 // ARI: the largest MTU code, one byte
	RejInsufficientResources  Reason = 27 // responder resources
	RejConsumer               Reason = 28 // the program refuses; the reason is in the private data
	RejRNRRetry               Reason = 29
	RejDuplicateCommID        Reason = 30
	RejInvalidClassVersion    Reason = 31
	RejInvalidFlowLabel       Reason = 32
	RejInvalidAltFlowLabel    Reason = 33
	RejVendorOption           Reason = 35 // enhanced connection establishment
)

var reasonNames = [...]string{
	RejNoQP: "no QP available", RejNoEEC: "no EE context available", RejNoResources: "no resources available",
	RejTimeout: "timeout", RejUnsupported: "unsupported request",
	RejInvalidCommID: "invalid communication ID", RejInvalidCommInstance: "invalid communication instance",
	RejInvalidServiceID: "invalid service ID", RejInvalidTransport: "invalid transport type",
	RejStaleConn: "stale connection", RejRDCNotExist: "RDC does not exist",
	RejInvalidGID: "invalid GID", RejInvalidLID: "invalid LID", RejInvalidSL: "invalid SL",
	RejInvalidTrafficClass: "invalid traffic class", RejInvalidHopLimit: "invalid hop limit",
	RejInvalidPacketRate: "invalid packet rate", RejInvalidAltGID: "invalid alternate GID",
	RejInvalidAltLID: "invalid alternate LID", RejInvalidAltSL: "invalid alternate SL",
	RejInvalidAltTrafficClass: "invalid alternate traffic class", RejInvalidAltHopLimit: "invalid alternate hop limit",
	RejInvalidAltPacketRate: "invalid alternate packet rate",
	RejPortCMRedirect:       "port and CM redirect", RejPortRedirect: "port redirect",
	RejInvalidMTU: "invalid path MTU", RejInsufficientResources: "insufficient responder resources",
	RejConsumer: "consumer defined", RejRNRRetry: "invalid RNR retry", RejDuplicateCommID: "duplicate local communication ID",
	RejInvalidClassVersion: "invalid class version", RejInvalidFlowLabel: "invalid flow label",
	RejInvalidAltFlowLabel: "invalid alternate flow label", RejVendorOption: "vendor option is not supported",
}

// String returns the reason in the words of Linux's rdma_reject_msg.
func (r Reason) String() string {
	if int(r) < len(reasonNames) && reasonNames[r] != "" {
		return reasonNames[r]
	}
	return "reject reason " + strconv.Itoa(int(r))
}
