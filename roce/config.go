package roce

import (
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"time"

	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/transport/cc"
)

// defaultEngines is the default of Config.Engines. The tests also run with more.
var defaultEngines = 1

// Never is the deadline of a device that waits for nothing.
const Never = time.Duration(math.MaxInt64)

// Config says how a device is opened. Its zero value needs only Addr or Peer.
type Config struct {
	// Addr is the local address, which has to be one of this host. The zero
	// value means the source address of the route to Peer.
	Addr netip.Addr
	// Peer is an address to be reached, used when Addr is not given.
	Peer netip.Addr
	// Port is the UDP port, of both sides; 0 means 4791.
	Port uint16
	// Name is the device's name; empty means "roce0".
	Name string

	// NoGSO and NoGRO switch off segmentation and coalescing of UDP.
	NoGSO, NoGRO bool
	// RecvBuffer and SendBuffer are sizes of the socket's buffers in bytes; 0
	// means what netio.UDPConfig says.
	RecvBuffer, SendBuffer int
	// Wrap, if set, is put around the UDP backend: a tap, a fault wrapper.
	Wrap func(netio.Backend) netio.Backend
	// Backend replaces UDP altogether. The device closes it.
	Backend netio.Backend

	// Manual makes a device without a goroutine, but for one that Logger needs:
	// packets move only inside Device.Progress, and Poll only looks.
	Manual bool
	// Clock returns the time since an arbitrary start; nil means the
	// monotonic clock. A manual device has the time of its last Progress.
	Clock func() time.Duration
	// Rand is where queue pair numbers, keys and first PSNs come from; nil
	// means crypto/rand.
	Rand io.Reader
	// Spin is how long CQ.Wait polls before it blocks, and the device's own
	// goroutine while packets follow each other within four times that; 0 means
	// 50 us, negative not at all.
	Spin time.Duration
	// Engines is how many sockets and locks the queue pairs are spread over, so that
	// as many processors can work for the device at once; 0 means 1, at most 64. One
	// is best for few queue pairs and for those that share completion queues: a poller
	// polls each engine that its queue has to do with. Peers should send from a source
	// port for each queue pair, see Conn.SourcePort and netio.ListenQueues. With Wrap or
	// Backend all engines share one backend. Each engine has its part of Stash and of
	// what Window says of one host. Of devices on one address the first decides.
	Engines int
	// Window bounds the bytes of packets that one queue pair may have
	// unacknowledged, and all that are connected to one host together four times as
	// many; 0 means 1 MiB. The window in use adapts below it.
	Window int
	// AllowPeers are the networks that peers may be in; empty means all. Packets
	// from elsewhere are dropped before anything else is done with them, and an
	// address elsewhere is refused as a peer or address handle. Each prefix is
	// compared with each arriving batch: it is meant for a few. The devices of one
	// process on one address need the same.
	AllowPeers []netip.Prefix
	// Limits bounds what the device holds.
	Limits Limits
	// UnknownQPRate is how many packets for queue pairs that do not exist are
	// looked at per second and, if their ICRC is right, told to Logger as a
	// warning; 0 means 10, negative none, at most 1000. All are dropped and
	// counted. Of devices on one address the first decides.
	UnknownQPRate int
	// CloseTimeout bounds how long Close takes; 0 means one second.
	CloseTimeout time.Duration
	// NoSelective keeps queue pairs to the standard: they neither send nor believe
	// what docs/selective-repeat.md says.
	NoSelective bool
	// Stash bounds the bytes of request packets that the device keeps because one
	// before them is missing, StashQP those of one queue pair; 0 means 16 MiB and
	// 2 MiB, negative none: they are dropped and have to come again. Memory is
	// taken when it is first needed, and then kept.
	Stash, StashQP int
	// StatDir is a directory in which the device has a Unix socket that tells its
	// Stats to whoever connects, as `roce stat` does: one JSON object. Only the own
	// user may. Empty means none.
	StatDir string
	// Congestion says how queue pairs adapt their rate to the network, unless their
	// QPConfig does; nil means cc.DCQCN with its defaults, which limits nothing
	// before a peer sends CNPs. cc.None never does. See docs/congestion.md.
	Congestion cc.Algorithm
	// NoECN sends packets that switches drop and do not mark. Otherwise those of
	// queue pairs with a controller are ECT(0), unless their traffic class has
	// another ECN codepoint (RFC 3168, section 5); multicast never is.
	NoECN bool
	// CNP says how peers are told that their packets were marked.
	CNP CNPConfig
	// OnRate is told of each change of a queue pair's rate, in order, by a goroutine
	// of its engine (of a manual device, inside Progress), with no lock held: with
	// several engines two may call it at once. It should be quick: 4096 changes wait,
	// further ones are counted as drop_rate_change.
	OnRate func(RateChange)
	// Logger is told of what operators want to know; nil is silent. It is never called
	// with a lock held. Levels: Error, the engine has panicked; Warn, events that end
	// something, packets for queue pairs that do not exist, requests for connections
	// that failed; Info, devices that open and close, all other asynchronous events
	// (migrations, the port), connections made and ended, queue pairs in an error
	// state; Debug, all other changes of a queue pair's state.
	Logger *slog.Logger
}

// filled returns the configuration with defaults in place. The error is a
// *ConfigError.
func (c Config) filled() (Config, error) {
	if c.Name == "" {
		c.Name = "roce0"
	}
	if c.Port == 0 {
		c.Port = netio.Port
	}
	if c.Engines == 0 {
		c.Engines = defaultEngines
	}
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = time.Second
	}
	switch {
	case c.Spin == 0:
		c.Spin = spinDefault
	case c.Spin < 0:
		c.Spin = 0
	}
	if c.Window == 0 {
		c.Window = 1 << 20
	}
	if c.Stash == 0 {
		c.Stash = 16 << 20
	}
	if c.StashQP == 0 {
		c.StashQP = 2 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Congestion == nil {
		c.Congestion = cc.DCQCN{}
	}
	if c.UnknownQPRate == 0 {
		c.UnknownQPRate = unknownQPRate
	}
	if err := c.check(); err != nil {
		return c, err
	}
	return c, c.Limits.fill()
}

// check puts defaults of CNPs in place, and returns a *ConfigError for a field that is out of its range.
func (c *Config) check() error {
	if c.CloseTimeout < 0 {
		return &ConfigError{"CloseTimeout", c.CloseTimeout, "a duration above 0 is needed, or 0 for one second"}
	}
	if c.Engines < 1 || c.Engines > netio.MaxQueues {
		return &ConfigError{"Engines", c.Engines, fmt.Sprintf("allowed are 1 to %d", netio.MaxQueues)}
	}
	if c.UnknownQPRate > maxUnknownQPRate {
		return &ConfigError{"UnknownQPRate", c.UnknownQPRate, fmt.Sprintf("allowed are up to %d packets per second", maxUnknownQPRate)}
	}
	if _, err := controller(c.Congestion); err != nil {
		return err
	}
	return c.CNP.check()
}

// address returns the local address that is asked for.
func (c Config) address() (netip.Addr, error) {
	switch {
	case c.Backend != nil:
		return c.Backend.LocalAddr().Addr(), nil
	case c.Addr.IsValid():
		return c.Addr.Unmap(), nil
	case c.Peer.IsValid():
		return netio.SourceFor(c.Peer.Unmap())
	}
	return netip.Addr{}, &ConfigError{"Addr", c.Addr, "give a local address, or a Peer whose route decides it"}
}
