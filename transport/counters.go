package transport

import "sync/atomic"

// Counter names one of the counters of an engine. Names that rxe or mlx5 have
// in hw_counters are theirs; the others follow the same style.
type Counter uint8

// Counters is one set of counters. Add may be called by the owner of the
// engine only; Load by anyone.
type Counters struct {
	v [NumCounters]atomic.Uint64
}

// Add adds n to counter c.
func (c *Counters) Add(k Counter, n uint64) { c.v[k].Add(n) }

// Inc adds one to counter c.
func (c *Counters) Inc(k Counter) { c.v[k].Add(1) }

// Load returns the value of counter c.
func (c *Counters) Load(k Counter) uint64 { return c.v[k].Load() }

func (k Counter) String() string { return counterNames[k] }

const (
	SentPkts Counter = iota
	RcvdPkts
	DuplicateRequest
	OutOfSequence // out_of_seq_request: a sequence NAK for a PSN beyond the expected one
	RcvdRNR
	SendRNR
	RcvdSeqErr // packet_seq_err received: sequence NAKs
	AckDeferred
	RetryExceeded
	RNRRetryExceeded
	CompleterRetry
	SendErr
	RDMASends
	RDMARecvs
	LocalAckTimeout
	ImpliedNAK
	ReqRemoteAccessErr
	ReqRemoteInvalid
	ReqRemoteOpErr
	RespRemoteAccessErr
	RespRemoteInvalid
	RespRemoteOpErr
	RespLocalLengthErr
	ReqCQEErr
	RespCQEErr
	ReqCQEFlush
	RespCQEFlush
	DropState       // the QP's state takes no such packet
	DropSource      // packet not from the QP's peer
	DropPKey        // P_Key does not match
	DropTransport   // opcode of another transport service than the QP's, or (XRC) of its other direction
	DropBadResponse // response that belongs to no outstanding request
	DropGhost       // ACK outside the window of outstanding PSNs
	DropAfterNAK    // out of order while a NAK or RNR NAK is outstanding, and not kept
	DropNoResource  // duplicate READ or atomic whose resources were recycled
	DropDuplicate   // other duplicate that needs no answer
	NPECNMarked     // np_ecn_marked_roce_packets
	NPCNPSent       // np_cnp_sent: CNPs for packets that were marked
	NPCNPOverflow   // np_cnp_overflow: CNPs because the receive socket overflowed
	RPCNPHandled    // rp_cnp_handled: CNPs received that were acted upon
	RPCNPIgnored    // rp_cnp_ignored: CNPs received while nothing controls the rate
	RetransPkts     // request packets sent again
	DropMessage     // UC: packet of a message of which another is missing
	DropNoReceive   // UC, UD: message that found no receive request
	DropQKey        // UD: Q_Key does not match
	PathMigrations  // changes to the alternate path
	DropMigReq      // request to migrate that does not come by the alternate path
	// OutOfSequenceKept counts packets beyond the expected PSN that were kept for their turn.
	OutOfSequenceKept
	AckProbes       // packets sent again because an acknowledgement was late, before the ack timer expired
	SpuriousRetrans // ... or for another reason, and the first transmission had arrived
	NumCounters     // not a counter
)

var counterNames = [NumCounters]string{
	"sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err",
	"rcvd_seq_err", "ack_deferred", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err",
	"send_err", "rdma_sends", "rdma_recvs", "local_ack_timeout_err", "implied_nak_seq_err",
	"req_remote_access_errors", "req_remote_invalid_request", "req_remote_op_errors",
	"resp_remote_access_errors", "resp_remote_invalid_request", "resp_remote_op_errors",
	"resp_local_length_error", "req_cqe_error", "resp_cqe_error", "req_cqe_flush_error", "resp_cqe_flush_error",
	"drop_qp_state", "drop_source_address", "drop_pkey", "drop_transport", "drop_bad_response", "drop_ghost_ack",
	"drop_after_nak", "drop_no_resource", "drop_duplicate", "np_ecn_marked_roce_packets",
	"np_cnp_sent", "np_cnp_overflow", "rp_cnp_handled", "rp_cnp_ignored", "retransmitted_pkts",
	"drop_broken_message", "drop_no_receive", "drop_qkey",
	"path_migrations", "drop_mig_req", "out_of_seq_kept", "ack_probes", "spurious_retrans",
}
