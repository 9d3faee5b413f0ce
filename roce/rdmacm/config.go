package rdmacm

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/transport"
)

// Defaults of Config.
const (
	defaultAckTimeout      = 268 * time.Millisecond
	defaultResponseTimeout = time.Second
	defaultRetries         = 15
	defaultRdAtomic        = 16
)

// Config says how a connection is made, on either side. Its zero value works; a
// negative number means 0, where 0 means a default.
type Config struct {
	// PortSpace is that of the port; 0 means TCP. Request.Accept has that of the
	// listener.
	PortSpace PortSpace
	// Device is the device to use. Nil means the one of LocalAddr or, without
	// that, of the source address of the route to the peer: it is opened when it
	// is first needed, shared by all connections of this process, and closed with
	// the last of them. Request.Accept has that of the listener.
	Device *roce.Device
	// LocalAddr is where Dial comes from. The address 0.0.0.0 or :: means any, the
	// port 0 one that is chosen at random.
	LocalAddr netip.AddrPort

	// PD is the protection domain of the queue pair, of the same device; nil means
	// one of its own.
	PD *roce.PD
	// QP is what the queue pair is made of. Type 0 means what the port space says:
	// RC, or UD. Without SendCQ the connection has a completion queue of its own,
	// with room for both work queues.
	QP roce.QPConfig
	// UseQP is a queue pair that is used instead of a new one: of UD and ready to send
	// in the port space UDP, else of RC or UC in INIT, which is brought to RTS, by
	// Request.Answer before the peer hears of it. It stays the program's: neither the end of the connection nor Close changes it.
	UseQP *roce.QP
	// QPN, if not 0, is the number of a queue pair of the device that the program
	// connects by itself, instead of a new one; QP.Type is its type. In the port
	// spaces TCP and IB Request.Attr and Conn.Attr say how, Dial returns when the peer
	// has answered (EventConnectResponse), and Conn.Establish tells the peer that the
	// queue pair is ready.
	QPN ib.QPN
	// Access is what the peer may do to our memory regions, as far as they allow
	// it too.
	Access roce.Access
	// Prepare, if set, is called when the queue pair can take receive requests and
	// before the peer learns of it. An error ends the attempt.
	Prepare func(*Conn) error

	// PrivateData goes to the peer's program with the request, or with the answer
	// of Request.Accept: at most what MaxPrivateData says. It is read after Prepare,
	// which may fill it in: with a key that the peer has to know, say.
	PrivateData []byte
	// ResponderResources is how many READs and atomics of the peer may be under
	// way, up to 16; 0 means 16, and in Request.Accept not more than the peer asks for.
	ResponderResources int
	// InitiatorDepth is how many READs and atomics of ours may be under way, up to
	// 128; 0 means 16, and in Request.Accept as many as the peer allows. The peer may
	// lower what Dial asks for: see Conn.Params.
	InitiatorDepth int
	// FlowControl says that we would heed the credits of the peer. It is told to
	// the peer and changes nothing else.
	FlowControl bool
	// RetryCount is how often both sides retry without progress; 0 means 7. It is
	// Dial's to say.
	RetryCount int
	// RNRRetryCount is how often the peer retries when we have no receive request;
	// 0 means 7, which is for ever.
	RNRRetryCount int

	// PathMTU is the payload of a packet, for both sides; 0 means what our
	// interface allows. It is Dial's to say.
	PathMTU ib.MTU
	// TrafficClass is the IPv4 TOS or IPv6 traffic class of both sides. It is
	// Dial's to say.
	TrafficClass uint8
	// AckTimeout is how long both sides wait for an acknowledgement, rounded up to
	// 4.096 us times a power of two; 0 means 268 ms. It is Dial's to say.
	AckTimeout time.Duration
	// MinRNRTimer is how long the peer shall wait when we have no receive request;
	// 0 means 640 us.
	MinRNRTimer time.Duration
	// QKey is the Q_Key of a new UD queue pair; 0 means UDPQKey.
	QKey uint32

	// ResponseTimeout is how long the connection managers of both sides wait for an
	// answer before they repeat a message, rounded up like AckTimeout; 0 means 1 s.
	ResponseTimeout time.Duration
	// Retries is how often a message is repeated, up to 15; 0 means 15.
	Retries int
	// Linger is how long Close waits before it tells the peer, so that
	// acknowledgements that were lost can be repeated; 0 means as long as the peer
	// waits for one before it sends again, and half as long again. Negative means
	// not at all.
	Linger time.Duration

	// Events, if set, is told what happens, without waiting: what finds no room is
	// counted (Counters) and lost.
	Events chan<- Event
}

// Params are the parameters of a connection, as agreed (rdma_conn_param) or as the
// peer asks for them.
type Params struct {
	ResponderResources int // READs and atomics of the peer under way
	InitiatorDepth     int // READs and atomics of ours under way
	FlowControl        bool
	RetryCount         int
	RNRRetryCount      int // of our requests
	SRQ                bool
	PathMTU            ib.MTU
	AckTimeout         time.Duration // 0: for ever
	TrafficClass       uint8
}

// number fills a count in: its default, or 0 when it is negative.
func number(field string, n *int, def, most int) error {
	switch {
	case *n > most:
		return &roce.ConfigError{Field: field, Value: *n, Allowed: fmt.Sprintf("allowed are 0 to %d", most)}
	case *n < 0:
		*n = 0
	case *n == 0:
		*n = def
	}
	return nil
}

// fill puts defaults in place and checks. What the peer has asked for is the
// default of an answer.
func (c *Config) fill(peer Params, room int) error {
	if c.PortSpace == 0 {
		c.PortSpace = TCP
	}
	if c.PortSpace != TCP && c.PortSpace != UDP && c.PortSpace != IB {
		return &roce.ConfigError{Field: "PortSpace", Value: c.PortSpace, Allowed: "allowed are TCP, UDP and IB"}
	}
	if len(c.PrivateData) > room {
		return &roce.ConfigError{Field: "PrivateData", Value: fmt.Sprintf("%d bytes", len(c.PrivateData)),
			Allowed: fmt.Sprintf("allowed are up to %d in port space %v", room, c.PortSpace)}
	}
	for _, f := range []struct {
		name      string
		n         *int
		def, most int
	}{
		{"ResponderResources", &c.ResponderResources, min(peer.ResponderResources, transport.MaxDestRdAtomic), transport.MaxDestRdAtomic},
		{"InitiatorDepth", &c.InitiatorDepth, min(peer.InitiatorDepth, transport.MaxRdAtomic), transport.MaxRdAtomic},
		{"RetryCount", &c.RetryCount, 7, 7},
		{"RNRRetryCount", &c.RNRRetryCount, 7, 7},
		{"Retries", &c.Retries, defaultRetries, 15},
	} {
		if err := number(f.name, f.n, f.def, f.most); err != nil {
			return err
		}
	}
	if c.AckTimeout == 0 {
		c.AckTimeout = defaultAckTimeout
	}
	if c.ResponseTimeout <= 0 {
		c.ResponseTimeout = defaultResponseTimeout
	}
	if c.QKey == 0 {
		c.QKey = UDPQKey
	}
	return c.checkQP()
}

// checkQP makes the queue pair's type that of the port space.
func (c *Config) checkQP() error {
	kind := func(want string) error {
		return &roce.ConfigError{Field: "QP.Type", Value: c.QP.Type, Allowed: fmt.Sprintf("port space %v needs %s", c.PortSpace, want)}
	}
	if c.UseQP != nil {
		_, c.QP = c.UseQP.Query()
	}
	switch {
	case c.PortSpace == UDP && c.QP.Type == 0:
		c.QP.Type = roce.UD
	case c.QP.Type == 0:
		c.QP.Type = roce.RC
	case c.PortSpace == UDP && c.QP.Type != roce.UD:
		return kind("UD")
	case c.PortSpace != UDP && c.QP.Type != roce.RC && c.QP.Type != roce.UC:
		return kind("RC or UC")
	}
	return nil
}

// linger returns how long Close keeps the queue pair.
func (c *Config) linger(peerTimeout time.Duration) time.Duration {
	switch {
	case c.Linger < 0 || c.PortSpace == UDP:
		return 0
	case c.Linger > 0:
		return c.Linger
	case peerTimeout == 0:
		peerTimeout = defaultAckTimeout
	}
	return peerTimeout * 3 / 2
}

// transports are the transport service types of a REQ.
var transports = map[roce.QPType]mad.Transport{roce.RC: mad.TransportRC, roce.UC: mad.TransportUC}
