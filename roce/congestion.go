package roce

import (
	"errors"
	"fmt"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/transport"
	"github.com/goroce/goroce/transport/cc"
)

// CNPConfig says how a device tells its peers that a switch has marked their packets
// (ECN, "congestion experienced"): by congestion notification packets, which those
// with DCQCN obey. NICs have the same settings.
type CNPConfig struct {
	// Off sends none.
	Off bool
	// Interval is the least time between two to one flow (min_time_between_cnps of
	// mlx5, N of DCQCN); 0 means 50 us.
	Interval time.Duration
	// Mode says what a flow is.
	Mode CNPMode
	// TrafficClass is the IPv4 TOS or IPv6 traffic class of CNPs; 0 means 0xc2:
	// DSCP 48 and ECT(0), as ConnectX NICs send them.
	TrafficClass uint8
	// OnOverflow sends them also when the receive socket has dropped packets, so
	// that a peer with DCQCN slows down to what this host can take. A peer that
	// has a window of its own, as another goroce, slows down twice then.
	OnOverflow bool
}

// CNPMode says which flows share one interval between CNPs.
type CNPMode = transport.CNPMode

// Modes of CNPs.
const (
	CNPPerQP     = transport.CNPPerQP     // each queue pair of a peer has its own
	CNPPerPeer   = transport.CNPPerPeer   // those of one address share one
	CNPPerDevice = transport.CNPPerDevice // all do
)

// cnpInterval is the default of CNPConfig.Interval.
const cnpInterval = 50 * time.Microsecond

// check puts defaults in place and checks.
func (c *CNPConfig) check() error {
	if c.Interval == 0 {
		c.Interval = cnpInterval
	}
	if c.TrafficClass == 0 {
		c.TrafficClass = 48<<2 | 2
	}
	switch {
	case c.Interval < 0:
		return &ConfigError{"CNP.Interval", c.Interval, "a duration above 0 is needed, or 0 for 50 us"}
	case c.Mode > CNPPerDevice:
		return &ConfigError{"CNP.Mode", c.Mode, "allowed are CNPPerQP, CNPPerPeer and CNPPerDevice"}
	}
	return nil
}

// notifier returns the notification point of a device, nil for none.
func (c *CNPConfig) notifier() *transport.Notifier {
	if c.Off {
		return nil
	}
	return &transport.Notifier{Interval: c.Interval, Mode: c.Mode, TOS: c.TrafficClass, Overflow: c.OnOverflow}
}

// controller makes the controller of one queue pair.
func controller(a cc.Algorithm) (cc.Controller, error) {
	c, err := a.New()
	var p *cc.ParamError
	if errors.As(err, &p) {
		return nil, &ConfigError{"Congestion." + p.Param, p.Value, p.Allowed}
	}
	if err != nil {
		return nil, fmt.Errorf("roce: Congestion: %w", err)
	}
	return c, nil
}

// RateChange is what Config.OnRate is told.
type RateChange struct {
	QPN ib.QPN
	At  time.Duration // the device's time
	// Why is the signal that the controller got ("cnp", "ack", "timeout", "start"),
	// or "increase".
	Why          string
	Rate, Target cc.Rate
	Alpha        float64
}

// rates are the changes to be told when the lock is released.
type rates struct{ list []rateNote }

type rateNote struct {
	dev    *Device
	change RateChange
}

// maxRates is how many changes may wait to be told.
const maxRates = 4096

// trace returns what queues changes of the rate of a queue pair, nil if nobody wants
// to know. The lock of the engine is held when it is called.
func (q *QP) trace() func(now time.Duration, why string, s cc.State) {
	if q.dev.cfg.OnRate == nil {
		return nil
	}
	return func(now time.Duration, why string, s cc.State) {
		r := &q.e.rates
		if len(r.list) == maxRates {
			q.e.count(dropRate)
			return
		}
		r.list = append(r.list, rateNote{q.dev, RateChange{q.num, now, why, s.Rate, s.Target, s.Alpha}})
	}
}

// take appends to list what is to be told, and forgets it. The lock is held.
func (r *rates) take(list []rateNote) []rateNote {
	list = append(list[:0], r.list...)
	r.list = r.list[:0]
	return list
}

// tellRates tells the programs, with no lock held.
func tellRates(list []rateNote) {
	for _, n := range list {
		n.dev.cfg.OnRate(n.change)
	}
}
