package sim

import (
	"math/rand/v2"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/test/sim/network"
)

// Config is one run. All of it but Seed and the hooks follows from the seed when
// made by Scenario. Script, Only and Soak are for other uses of a run.
type Config struct {
	Seed     uint64
	Nodes    int // devices
	Conns    int // connections, each between two different nodes
	Requests int // of each end of each connection
	MaxSize  int // bytes of a message
	Arena    int // bytes of the memory of a node
	IPv6     bool
	Window   int // see roce.Config
	Fabric   int // receive buffer of each node in bytes, 0 for the default
	Faults   netio.Faults
	Block    float64       // share of sends that find the socket full
	Drain    bool          // programs drain their send queue (SQD) now and then
	Lives    int           // so many connections, one after the other, in each place
	Services []roce.QPType // of connections, each as often as it stands here
	Shared   bool          // half of the queue pairs receive from a queue that those of their node share
	Roam     bool          // connections migrate to other paths and back
	Plain    uint          // bit i: node i keeps to the standard (roce.Config.NoSelective)
	Failure  Failure       // of the first connection

	Link   network.LinkConfig   // between each node and a switch; Rate 0: the nodes are next to each other
	Switch network.SwitchConfig // with a Link
	Cuts   []Fault              // with a Link: partitions

	Script []Fault             // not nil: exactly these packets suffer, Faults keeps its times
	Only   map[requestRef]bool // not nil: of the requests that the programs would make, these
	Soak   time.Duration       // connections follow each other for so long, whatever Lives is

	hooks hooks
}

// hooks let the tests of the checks interfere.
type hooks struct {
	backend     func(node int, b netio.Backend) netio.Backend
	completions func([]wcRef) []wcRef
	step        func(w *world)
	fault       func(Fault)      // a random fault happens
	plan        func(requestRef) // a program decides on a request
	mark        func(w *world)   // every virtual hour of a soak
	trace       func(e event)
}

// Scenario makes the run of a seed: a random mix of requests under 5 % loss,
// duplication and reordering each, bursts of loss and some damage; of every second
// seed over links with a rate and a switch, with partitions.
func Scenario(seed uint64) Config {
	c := adjacent(seed)
	rng := rand.New(rand.NewPCG(seed, 0x11e7))
	c.Faults.Burst, c.Faults.BurstTime = 0.001, time.Duration(1+rng.IntN(100))*time.Microsecond
	if c.Fabric > 0 {
		c.Fabric = 48 << 10 // less than a window
	}
	if rng.IntN(2) == 0 {
		c.wire(rng)
	}
	return c
}

// wire puts links, a switch and partitions between the nodes.
func (c *Config) wire(rng *rand.Rand) {
	c.Link = network.LinkConfig{
		Rate: []float64{100e6, 400e6, 1e9, 10e9, 100e9}[rng.IntN(5)], Delay: time.Duration(rng.IntN(20_000)),
		Queue: 16 << 10 << rng.IntN(3),
	}
	switch rng.IntN(4) {
	case 0:
		c.Switch = network.SwitchConfig{RED: network.RED{Kmin: 4_000, Kmax: 40_000, Pmax: 0.1}}
	case 1:
		c.Switch, c.Link.Queue = network.SwitchConfig{Pause: 8 << 10, Resume: 4 << 10}, 256<<10
	case 2:
		c.Switch = network.SwitchConfig{Buffer: 24 << 10}
	}
	for range rng.IntN(4) {
		c.Cuts = append(c.Cuts, cutOf(rng, rng.IntN(c.Nodes), time.Duration(rng.IntN(8_000_000))))
	}
}

// cutOf draws a partition that begins at a time.
func cutOf(rng *rand.Rand, node int, at time.Duration) Fault {
	return Fault{node, cutKinds[rng.IntN(len(cutKinds))], int(at), 10_000 + rng.IntN(2_000_000)}
}

// timer is the least ack timeout: long enough for full queues both ways, and for a cut.
func (c *Config) timer() ib.AckTimeout {
	t := 250 * time.Microsecond
	if c.Link.Rate > 0 {
		t += time.Duration(float64(4*8*c.Link.Queue) / c.Link.Rate * 1e9)
	}
	if len(c.Cuts) > 0 || c.Soak > 0 {
		t += 2 * time.Millisecond
	}
	return ib.AckTimeoutFor(4 * t)
}

// adjacent is the run of a seed with nothing between the nodes but faults.
func adjacent(seed uint64) Config {
	rng := rand.New(rand.NewPCG(seed, 0x5ce9a410))
	c := Config{
		Seed:     seed,
		Nodes:    2 + rng.IntN(2),
		Conns:    1 + rng.IntN(4),
		Requests: 4 + rng.IntN(20),
		MaxSize:  64 << 10,
		Arena:    1 << 20,
		IPv6:     rng.IntN(4) == 0,
		Window:   []int{0, 0, 32 << 10, 128 << 10, 1 << 20}[rng.IntN(5)],
		Fabric:   []int{0, 0, 200 << 10}[rng.IntN(3)],
		Faults:   netio.Faults{Loss: 0.05, Duplicate: 0.05, Reorder: 0.05, Corrupt: 0.01, CE: 0.01, ReorderBy: 1 + rng.IntN(8)},
	}
	if rng.IntN(2) == 0 {
		c.Faults.Delay = time.Duration(rng.IntN(100)) * time.Microsecond
		c.Faults.Jitter = time.Duration(rng.IntN(50)) * time.Microsecond
	}
	if rng.IntN(3) == 0 {
		c.Block = 0.1
	}
	c.Drain = rng.IntN(3) == 0
	c.Lives = 1 + rng.IntN(2)
	if rng.IntN(12) == 0 { // few, but long messages
		c.MaxSize, c.Arena = 1<<20, 8<<20
		c.Requests = 3
		c.Conns = 1
	}
	c.Shared = rng.IntN(3) == 0
	c.Roam = rng.IntN(3) == 0
	c.Services = []roce.QPType{roce.RC, roce.RC, roce.RC, roce.XRCSend, roce.UC, roce.UD}
	if rng.IntN(3) == 0 {
		c.Plain = 1 + rng.UintN(7)
	}
	return c
}

// size draws the length of a message: the edges of packets more often than others.
func (c *Config) size(rng *rand.Rand, mtu ib.MTU) int {
	m := mtu.Bytes()
	n := 0
	switch rng.IntN(10) {
	case 0:
		n = rng.IntN(2)
	case 1:
		n = rng.IntN(64)
	case 2:
		n = m - 1 + rng.IntN(3)
	case 3:
		n = m*(1+rng.IntN(8)) - 1 + rng.IntN(3)
	case 4, 5, 6:
		n = rng.IntN(4 * m)
	case 7, 8:
		n = rng.IntN(min(c.MaxSize, 16<<10) + 1)
	case 9:
		n = rng.IntN(c.MaxSize + 1)
		if c.MaxSize > 64<<10 && rng.IntN(2) == 0 {
			n = c.MaxSize
		}
	}
	return min(n, c.MaxSize)
}
