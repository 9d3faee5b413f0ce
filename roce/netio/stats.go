package netio

import (
	"fmt"
	"sync/atomic"
)

// Stat names one counter of a backend.
type Stat uint8

const (
	TxCalls        Stat = iota // successful calls that sent something (system calls, where there are any)
	TxRuns                     // runs gone to the network
	TxPackets                  // packets gone to the network
	TxBytes                    // their bytes, without IP and UDP headers
	TxWouldBlock               // times that Send had to return ErrWouldBlock
	TxNoBufs                   // of these, for a full device queue (ENOBUFS)
	TxRefused                  // packets lost because a firewall refused them (EPERM, EACCES)
	TxUnreachable              // packets lost for want of a route or an answering neighbour or port
	TxTooBig                   // packets lost because they do not fit the interface (EMSGSIZE)
	TxError                    // packets lost for any other reason that the host gave
	TxResealed                 // packets sealed anew because they were sent alone
	TxPortFailed               // packets sent from the own port because their source port could not be had
	GSOOff                     // times that GSO had to be switched off
	RxCalls                    // successful calls that received something
	RxPackets                  // packets received
	RxBytes                    // their bytes, without IP and UDP headers
	RxOverflow                 // packets dropped because the receive buffer was full
	RxTruncated                // datagrams dropped because they were longer than any RoCE packet
	RxPassed                   // packets that came by another queue of the same address
	RxPassDropped              // ... and were dropped, because too many waited
	RxError                    // errors that receiving reported
	ICMPErrors                 // errors that the network or this host reported for packets sent earlier
	FaultDrop                  // packets lost on purpose
	FaultDuplicate             // packets duplicated on purpose
	FaultReorder               // packets held back on purpose so that later ones overtake
	FaultDelay                 // packets delayed on purpose
	FaultCorrupt               // packets damaged on purpose
	FaultCE                    // packets marked "congestion experienced" on purpose
	FaultEdit                  // packets changed on purpose and sealed again
	FaultOverflow              // packets dropped because too many were held
	TapPackets                 // packets written to the tap
	TapDropped                 // packets that the tap missed because its writer was too slow, or failed
	NumStats                   // not a counter
)

var statNames = [NumStats]string{
	"tx_calls", "tx_runs", "tx_packets", "tx_bytes", "tx_would_block", "tx_nobufs", "tx_refused", "tx_unreachable",
	"tx_too_big", "tx_error", "tx_resealed", "tx_port_failed", "gso_off",
	"rx_calls", "rx_packets", "rx_bytes", "rx_overflow", "rx_truncated", "rx_passed", "rx_pass_dropped", "rx_error", "icmp_errors",
	"fault_drop", "fault_duplicate", "fault_reorder", "fault_delay", "fault_corrupt", "fault_ce", "fault_edit", "fault_overflow",
	"tap_packets", "tap_dropped",
}

func (s Stat) String() string {
	if s < NumStats {
		return statNames[s]
	}
	return fmt.Sprintf("Stat(%d)", uint8(s))
}

// Stats is a snapshot of all counters of a backend, indexed by Stat; a Stat's
// String is its name.
type Stats [NumStats]uint64

// counters are live counters: written by the backend, read by anybody.
type counters struct{ v [NumStats]atomic.Uint64 }

func (c *counters) add(s Stat, n int) { c.v[s].Add(uint64(n)) }

// addTo adds the counters to a snapshot.
func (c *counters) addTo(s *Stats) {
	for i := range c.v {
		s[i] += c.v[i].Load()
	}
}
