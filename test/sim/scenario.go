package sim

import (
	"math/rand/v2"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// Config is one run. All of it but Seed and the hooks follows from the seed when
// made by Scenario.
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

	hooks hooks
}

// hooks let the tests of the checks interfere.
type hooks struct {
	backend     func(node int, b netio.Backend) netio.Backend
	completions func([]wcRef) []wcRef
	step        func(w *world)
	trace       func(line string)
}

// Scenario makes the run of a seed: a random mix under 5 % loss, duplication and
// reordering each, and some damage.
func Scenario(seed uint64) Config {
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
