package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goroce/goroce/roce/netio"
)

// Fault is one thing that the network does to a run: to packet At of those that a
// node sends, counted from 1, or, of a partition, at the time At in nanoseconds.
type Fault struct {
	Node int
	What string // of faultNames or cutKinds
	At   int
	Arg  int // of "reorder" how many overtake, of a partition how long it lasts in nanoseconds
}

var faultNames = [...]string{
	netio.Drop: "drop", netio.Duplicate: "duplicate", netio.Corrupt: "corrupt", netio.MarkCE: "ce", netio.Reorder: "reorder",
}

// cutKinds are what of a node's link is cut.
var cutKinds = []string{"cut", "cut-out", "cut-in"}

func (f Fault) isCut() bool { return strings.HasPrefix(f.What, "cut") }

// span is when a partition begins and ends.
func (f Fault) span() (from, to time.Duration) {
	return time.Duration(f.At), time.Duration(f.At + f.Arg)
}

// script is the faults of packets of a node for its backend.
func script(faults []Fault, node int) (l []netio.Fault) {
	for _, f := range faults {
		for action, name := range faultNames {
			if name == f.What && name != "" && f.Node == node {
				l = append(l, netio.Fault{Action: netio.Action(action), Nth: f.At, By: f.Arg})
			}
		}
	}
	return l
}

// requestRef is request n that the program of a side makes, as its plan has it.
type requestRef struct{ side, n int }

// Schedule is a run in which the network does what is listed, and nothing else. It is
// text, by String and ParseSchedule.
type Schedule struct {
	Seed     uint64
	Failure  Failure
	Without  []string // what of the scenario is left out, of simplifications
	Faults   []Fault
	Requests []requestRef
}

// simplifications are what may be left out of a scenario.
var simplifications = map[string]func(*Config){
	"block":    func(c *Config) { c.Block = 0 },
	"ce":       func(c *Config) { c.Switch.Kmax = 0 },
	"delay":    func(c *Config) { c.Faults.Delay, c.Faults.Jitter = 0, 0 },
	"drain":    func(c *Config) { c.Drain = false },
	"lives":    func(c *Config) { c.Lives = 1 },
	"overflow": func(c *Config) { c.Fabric = 0 },
	"roam":     func(c *Config) { c.Roam = false },
	"shared":   func(c *Config) { c.Shared = false },
	"standard": func(c *Config) { c.Plain = 0 },
	"window":   func(c *Config) { c.Window = 0 },
}

// Config is the run.
func (s Schedule) Config() Config {
	c := Scenario(s.Seed)
	c.Failure = s.Failure
	for _, what := range s.Without {
		simplifications[what](&c)
	}
	f := c.Faults
	c.Faults = netio.Faults{Delay: f.Delay, Jitter: f.Jitter, ReorderBy: f.ReorderBy, ReorderTo: f.ReorderTo}
	c.Cuts, c.Script, c.Only = nil, []Fault{}, map[requestRef]bool{}
	for _, f := range s.Faults {
		if f.isCut() {
			c.Cuts = append(c.Cuts, f)
		} else {
			c.Script = append(c.Script, f)
		}
	}
	for _, r := range s.Requests {
		c.Only[r] = true
	}
	return c
}

// Record runs a scenario, with hooks of the caller, and returns what happened in it.
// The error is that of the run.
func Record(cfg Config) (Schedule, error) {
	s := Schedule{Seed: cfg.Seed, Failure: cfg.Failure, Faults: cfg.Cuts}
	cfg.hooks.fault = func(f Fault) { s.Faults = append(s.Faults, f) }
	cfg.hooks.plan = func(r requestRef) { s.Requests = append(s.Requests, r) }
	_, err := Run(cfg)
	return s, err
}

func (s Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed=%d failure=%d", s.Seed, s.Failure)
	list := func(name string, n int, item func(i int) string) {
		var l []string
		for i := range n {
			l = append(l, item(i))
		}
		fmt.Fprintf(&b, " %s=%s", name, strings.Join(l, ","))
	}
	list("without", len(s.Without), func(i int) string { return s.Without[i] })
	list("faults", len(s.Faults), func(i int) string {
		f := s.Faults[i]
		return fmt.Sprintf("%d.%s.%d.%d", f.Node, f.What, f.At, f.Arg)
	})
	list("requests", len(s.Requests), func(i int) string { return fmt.Sprintf("%d.%d", s.Requests[i].side, s.Requests[i].n) })
	return b.String()
}

// ParseSchedule reads what String has written.
func ParseSchedule(text string) (s Schedule, err error) {
	for _, field := range strings.Fields(text) {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "seed":
			s.Seed, err = strconv.ParseUint(value, 10, 64)
		case "failure":
			var n int
			if n, err = strconv.Atoi(value); n < 0 || n >= int(NumFailures) {
				err = fmt.Errorf("failure %d: there are %d", n, NumFailures)
			}
			s.Failure = Failure(n)
		case "without", "faults", "requests":
			for _, item := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' }) {
				if err = s.add(name, item); err != nil {
					break
				}
			}
		default:
			err = fmt.Errorf("no field %q", name)
		}
		if err != nil {
			return s, fmt.Errorf("schedule: %s: %w", field, err)
		}
	}
	return s, nil
}

// add reads one item of a list.
func (s *Schedule) add(list, item string) error {
	part := strings.Split(item, ".")
	number := func(i int) (n int) {
		if i < len(part) {
			n, _ = strconv.Atoi(part[i])
		}
		return n
	}
	switch {
	case list == "without":
		if simplifications[item] == nil {
			return fmt.Errorf("nothing called %q can be left out", item)
		}
		s.Without = append(s.Without, item)
	case list == "faults" && len(part) == 4:
		f := Fault{number(0), part[1], number(2), number(3)}
		if !f.isCut() && len(script([]Fault{f}, f.Node)) == 0 {
			return fmt.Errorf("no fault is called %q", f.What)
		}
		s.Faults = append(s.Faults, f)
	case list == "requests" && len(part) == 2:
		s.Requests = append(s.Requests, requestRef{number(0), number(1)})
	default:
		return fmt.Errorf("%q has not the parts that one of %s has", item, list)
	}
	return nil
}
