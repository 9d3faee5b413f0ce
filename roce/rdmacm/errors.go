package rdmacm

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/roce"
)

var (
	// ErrClosed says that the connection, the listener or the device is closed. It
	// is net.ErrClosed to errors.Is.
	ErrClosed = roce.ErrClosed
	// ErrGone says that a request, or a connection, is no more: the peer has given
	// up, or newer requests have taken its place.
	ErrGone = errors.New("rdmacm: the peer does not wait any more")
	// ErrDisconnected says that the peer has ended the connection.
	ErrDisconnected = errors.New("rdmacm: disconnected by the peer")
	// ErrAddrInUse says that a port has a listener already. It is
	// syscall.EADDRINUSE to errors.Is.
	ErrAddrInUse = fmt.Errorf("rdmacm: the port has a listener: %w", syscall.EADDRINUSE)
)

// RejectedError says that the peer has refused a connection (REJ, or SIDR_REP with
// a status). It is syscall.ECONNREFUSED to errors.Is.
type RejectedError struct {
	Addr   netip.AddrPort
	Reason Reason         // port spaces TCP and IB
	Status mad.SIDRStatus // port space UDP
	ARI    []byte         // additional reject information
	// PrivateData is what the peer's program has sent with it.
	PrivateData []byte
}

func (e *RejectedError) Error() string {
	switch {
	case e.Reason == mad.RejInvalidServiceID, e.Status == mad.SIDRUnsupported:
		return fmt.Sprintf("rdmacm: %v refuses: nobody listens on this port (port space and number have to match)", e.Addr)
	case e.Reason == mad.RejConsumer, e.Status == mad.SIDRRejected:
		return fmt.Sprintf("rdmacm: %v refuses: the program there rejects the connection", e.Addr)
	case e.Reason != 0:
		return fmt.Sprintf("rdmacm: %v refuses: %v (reason %d)", e.Addr, e.Reason, uint16(e.Reason))
	}
	return fmt.Sprintf("rdmacm: %v refuses: %v (status %d)", e.Addr, e.Status, uint8(e.Status))
}

// Is makes errors.Is(err, syscall.ECONNREFUSED) true.
func (e *RejectedError) Is(target error) bool { return target == syscall.ECONNREFUSED }

// messages are those that want an answer, in words.
var messages = map[mad.Attr]string{mad.AttrREQ: "request", mad.AttrREP: "reply to its request", mad.AttrSIDRREQ: "request"}

// UnreachableError says that the peer has not answered. It is a net.Error that has
// timed out.
type UnreachableError struct {
	Addr  netip.AddrPort
	After time.Duration
	What  mad.Attr // the message that was not answered
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("rdmacm: no answer from %v in %v to our %s: is there a RoCEv2 device at this address, and does the network let UDP port 4791 through?",
		e.Addr, e.After.Round(10*time.Millisecond), messages[e.What])
}

// Timeout reports true.
func (e *UnreachableError) Timeout() bool { return true }

// Temporary reports true: to try again may help.
func (e *UnreachableError) Temporary() bool { return true }
