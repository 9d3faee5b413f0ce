package cm

import (
	"sync/atomic"

	"github.com/goroce/goroce/ib/mad"
)

// Counter names one of the counters of an agent. Those of messages are named
// after the groups of Linux's cm counters in sysfs.
type Counter uint8

// numMessages is the number of messages of the connection manager.
const numMessages = int(mad.AttrAPR-mad.AttrREQ) + 1

// The groups of counters, one counter for each message in each of them.
const (
	groupRx        = Counter(numMessages) * iota // cm_rx_msgs
	groupTx                                      // cm_tx_msgs, without retries
	groupRetries                                 // cm_tx_retries
	groupDuplicate                               // cm_rx_duplicates
	afterGroups
)

// The other counters.
const (
	DropFormat      = afterGroups + iota // size, base version, class or class version
	DropMethod                           // method or attribute that nobody serves
	DropUnknownID                        // names no connection
	DropSource                           // does not come from the connection's peer
	DropState                            // the connection's state takes no such message
	DropQPN                              // DREQ or LAP for another queue pair, REQ without one
	DropPeer                             // REQ of a peer-to-peer connection that the other side answers
	StaleConn                            // connections that turned out to be stale
	RejectedREQ                          // REQs that the agent itself refused
	BacklogOverflow                      // requests that gave way to newer ones
	PendingExpired                       // requests whose sender has stopped asking
	TimeWaitCut                          // connections that left time-wait early
	NumCounters                          // not a counter
)

var messageNames = [numMessages]string{"req", "mra", "rej", "rep", "rtu", "dreq", "drep", "sidr_req", "sidr_rep", "lap", "apr"}

var otherNames = [NumCounters - afterGroups]string{
	"drop_format", "drop_method", "drop_unknown_id", "drop_source", "drop_state", "drop_qpn", "drop_peer_to_peer",
	"stale_conn", "rejected_req", "backlog_overflow", "pending_expired", "time_wait_cut",
}

var groupNames = [...]string{"rx_", "tx_", "tx_retries_", "rx_duplicates_"}

// String returns the name: "cm_rx_req", "cm_drop_state".
func (c Counter) String() string {
	if c >= afterGroups {
		return "cm_" + otherNames[c-afterGroups]
	}
	return "cm_" + groupNames[int(c)/numMessages] + messageNames[int(c)%numMessages]
}

// Rx, Tx, Retries and Duplicates return the counters of one message of the
// connection manager: received, sent for the first time, sent again, and
// received again.
func Rx(a mad.Attr) Counter         { return groupRx + Counter(a-mad.AttrREQ) }
func Tx(a mad.Attr) Counter         { return groupTx + Counter(a-mad.AttrREQ) }
func Retries(a mad.Attr) Counter    { return groupRetries + Counter(a-mad.AttrREQ) }
func Duplicates(a mad.Attr) Counter { return groupDuplicate + Counter(a-mad.AttrREQ) }

// Counters is one set of counters. Load may be called by anyone.
type Counters struct {
	v [NumCounters]atomic.Uint64
}

// Load returns the value of counter c.
func (s *Counters) Load(c Counter) uint64 { return s.v[c].Load() }

func (s *Counters) inc(c Counter) { s.v[c].Add(1) }
