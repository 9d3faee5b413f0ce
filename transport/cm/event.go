package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/goroce/goroce/ib/mad"
)

// ID is the local communication identifier of a connection, or the request
// identifier of a service id resolution: the handle for commands. It is never 0
// and not used again soon.
type ID uint32

// Kind says what an event is about.
type Kind uint8

// The kinds of events. Each identifier ends with exactly one event that has
// Gone set, unless a command has ended it.
const (
	EventREQ          Kind = iota // passive: a request; SendREP, Reject or Cancel it
	EventREP                      // active: it is accepted; SendRTU, Reject or Cancel it
	EventEstablished              // passive: the RTU came, or Established was called
	EventMRA                      // the peer asks for time
	EventRejected                 // before the connection was established, by REJ
	EventDisconnected             // by DREQ of the peer, by REJ, or by Disconnect; time-wait has begun
	EventTimeWaitExit             // the queue pair number is free
	EventUnreachable              // nobody answers Event.Attr
	EventDropped                  // gave way to a newer request, or its peer started again or stopped asking
	EventSIDRREQ                  // passive: Answer or Cancel it
	EventSIDRREP                  // the answer
	EventLAP                      // AnswerAlternate it
	EventAPR                      // the answer
)

var kindNames = [...]string{
	"REQ", "REP", "established", "MRA", "rejected", "disconnected", "time-wait exit", "unreachable", "dropped",
	"SIDR_REQ", "SIDR_REP", "LAP", "APR",
}

// String returns the kind in words.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "event " + strconv.Itoa(int(k))
}

// Event is something that the user has to know. It and all it points to belong
// to the user.
type Event struct {
	Kind Kind
	ID   ID
	Peer netip.Addr
	// Gone says that the identifier is unknown from now on, and its queue pair
	// number free.
	Gone bool
	// TimedOut says of EventDisconnected that nobody answered the DREQ.
	TimedOut bool
	// Context is that of the listener, for EventREQ and EventSIDRREQ.
	Context any
	// Attr is the message that the event is about.
	Attr mad.Attr
	// The message, for the kinds that have one. EventDisconnected has a REJ when
	// the connection ended by one.
	REQ     *mad.REQ
	REP     *mad.REP
	REJ     *mad.REJ
	MRA     *mad.MRA
	SIDRREQ *mad.SIDRREQ
	SIDRREP *mad.SIDRREP
	LAP     *mad.LAP
	APR     *mad.APR
	// Private is the private data of an RTU, DREQ or DREP.
	Private []byte
}

// State is where a connection or a resolution stands (IBTA 12.9).
type State uint8

// The states.
const (
	StateNone State = iota // no such identifier
	StateREQSent
	StateREQReceived
	StateREPSent
	StateREPReceived
	StateEstablished
	StateDREQSent
	StateTimeWait
	StateSIDRREQSent
	StateSIDRREQReceived
)

var stateNames = [...]string{
	"none", "REQ sent", "REQ received", "REP sent", "REP received", "established", "DREQ sent", "time-wait",
	"SIDR_REQ sent", "SIDR_REQ received",
}

// String returns the state in words.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "state " + strconv.Itoa(int(s))
}

var (
	// ErrUnknownID says that no connection or resolution has the identifier:
	// it has ended.
	ErrUnknownID = errors.New("cm: unknown identifier")
	// ErrInUse says that somebody listens for the service already.
	ErrInUse = errors.New("cm: service is in use")
	// ErrLimit says that there are Config.MaxIDs identifiers already.
	ErrLimit = errors.New("cm: too many connections")
)

// StateError says that a command does not fit the state.
type StateError struct {
	Op    string // the command
	State State
}

func (e *StateError) Error() string { return fmt.Sprintf("cm: %s in state %v", e.Op, e.State) }

// FieldError says which parameter is wrong and what is allowed.
type FieldError struct {
	Field   string
	Value   any
	Allowed string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("cm: %s is %v: %s", e.Field, e.Value, e.Allowed)
}

// checkLen says what is wrong with the length of a field.
func checkLen(field string, b []byte, most int) error {
	if len(b) > most {
		return &FieldError{field, fmt.Sprintf("%d bytes long", len(b)), fmt.Sprintf("at most %d", most)}
	}
	return nil
}
