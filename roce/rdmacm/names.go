package rdmacm

import (
	"fmt"

	"github.com/goroce/goroce/ib/mad"
)

// PortSpace says what a port number is relative to (enum rdma_port_space).
type PortSpace = mad.PortSpace

// Port spaces.
const (
	TCP = mad.PortSpaceTCP // connections
	UDP = mad.PortSpaceUDP // datagrams
	IB  = mad.PortSpaceIB  // any service; here: connections
)

// Reason says why a connection was refused by the peer's connection manager.
type Reason = mad.Reason

// UDPQKey is the Q_Key of the datagrams of port space UDP, and of multicast groups
// (RDMA_UDP_QKEY of Linux include/rdma/rdma_cm.h).
const UDPQKey = 0x01234567

// MaxPrivateData returns how many bytes of private data a message of a port space
// has room for: what Dial sends, what Accept answers, what Reject and Disconnect
// send. The receiver finds all of them, with zeros behind what was sent.
func MaxPrivateData(ps PortSpace) (dial, accept, reject, disconnect int) {
	if ps == UDP {
		return mad.SIDRREQPrivateData - mad.IPHeaderSize, mad.SIDRREPPrivateData, mad.SIDRREPPrivateData, 0
	}
	return mad.REQPrivateData - mad.IPHeaderSize, mad.REPPrivateData, mad.REJPrivateData, mad.DREQPrivateData
}

// EventType is the kind of an event, numbered as rdma_cm_event_type.
type EventType uint8

const (
	EventConnectRequest  EventType = 4
	EventConnectResponse EventType = 5
	EventConnectError    EventType = 6
	EventUnreachable     EventType = 7
	EventRejected        EventType = 8
	EventEstablished     EventType = 9
	EventDisconnected    EventType = 10
	EventDeviceRemoval   EventType = 11
	EventMulticastJoin   EventType = 12
	EventTimewaitExit    EventType = 15
)

var eventNames = map[EventType]string{
	EventConnectRequest: "CONNECT_REQUEST", EventConnectResponse: "CONNECT_RESPONSE", EventConnectError: "CONNECT_ERROR", EventUnreachable: "UNREACHABLE",
	EventRejected: "REJECTED", EventEstablished: "ESTABLISHED", EventDisconnected: "DISCONNECTED",
	EventDeviceRemoval: "DEVICE_REMOVAL", EventMulticastJoin: "MULTICAST_JOIN", EventTimewaitExit: "TIMEWAIT_EXIT",
}

// String names the event as rdma_event_str does.
func (t EventType) String() string {
	if s, ok := eventNames[t]; ok {
		return "RDMA_CM_EVENT_" + s
	}
	return fmt.Sprintf("EventType(%d)", uint8(t))
}

// Event tells what has happened to a connection, for those who want to follow it.
type Event struct {
	Type EventType
	Conn *Conn // the connection, or nil
	// Request is that of EventConnectRequest.
	Request *Request
	// Err says why, with EventConnectError, EventUnreachable and EventRejected.
	Err error
	// PrivateData is that of the peer's message, if one is the cause.
	PrivateData []byte
}
