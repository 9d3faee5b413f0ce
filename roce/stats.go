package roce

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/transport/cc"
)

// Stats is a device at one moment, in a form that encoding/json prints; so does
// package expvar:
//
//	expvar.Publish("roce0", expvar.Func(func() any { return dev.Stats() }))
type Stats struct {
	Name     string            `json:"name"`
	Addr     netip.AddrPort    `json:"addr"`
	Backend  string            `json:"backend"`
	Seconds  float64           `json:"seconds"` // on the device's clock
	Counters map[string]uint64 `json:"counters"`
	Engines  []EngineStats     `json:"engines"` // of the port, which devices on one address share
	QPs      []QPStats         `json:"qps"`     // by number
	Events   []EventStats      `json:"events"`  // the last ones, oldest first
}

// EngineStats is an engine at one moment (see Config.Engines). With one backend for all,
// its packets are those of the first.
type EngineStats struct {
	QPs           int    `json:"qps"`
	RxPackets     uint64 `json:"rx_packets"`
	TxPackets     uint64 `json:"tx_packets"`
	RxPassed      uint64 `json:"rx_passed"`       // packets that another one has received for it
	RxPassDropped uint64 `json:"rx_pass_dropped"` // ... and dropped, because too many waited
}

// QPStats is a queue pair at one moment.
type QPStats struct {
	QPN     string     `json:"qpn"`
	Engine  int        `json:"engine"` // its place in Stats.Engines
	Type    string     `json:"type"`
	State   string     `json:"state"`
	Peer    netip.Addr `json:"peer"` // of a connection, else the zero value
	PeerQPN string     `json:"peer_qpn,omitempty"`
	PathMTU int        `json:"path_mtu"` // bytes, 0 before there is one

	// Rate is how fast it may send, Target the rate that it comes back to, in bits
	// per second; cc.Unlimited, null in JSON, means that only the window limits it.
	// Alpha is DCQCN's estimate of the congestion, between 0 and 1.
	Rate   cc.Rate `json:"rate_bit_per_sec"`
	Target cc.Rate `json:"target_bit_per_sec"`
	Alpha  float64 `json:"alpha"`
}

// EventStats is an asynchronous event that has happened.
type EventStats struct {
	Time time.Time `json:"time"`
	Type string    `json:"type"`
	QPN  string    `json:"qpn,omitempty"` // of the queue pair that it is about, if any
}

// Stats returns what Counters and Query of each queue pair say, and the last
// asynchronous events, whether NextEvent has returned them or not.
func (d *Device) Stats() Stats {
	s := Stats{Name: d.cfg.Name, Addr: d.port.addr, Counters: d.Counters(), QPs: []QPStats{}, Events: d.recent.list()}
	s.Backend = d.port.first().be.Caps().Name
	for _, e := range d.port.engines {
		s.Seconds = e.lock().Seconds()
		for _, q := range e.own(d) {
			s.QPs = append(s.QPs, q.stats())
		}
		e.unlock()
		s.Engines = append(s.Engines, e.stats())
	}
	slices.SortFunc(s.QPs, func(a, b QPStats) int {
		if a.QPN < b.QPN {
			return -1
		}
		return 1
	})
	return s
}

// own returns the queue pairs of a device. The lock is held.
func (e *engine) own(d *Device) (list []*QP) {
	for _, q := range e.qps {
		of := []*QP{q}
		if q.typ == XRCRecv {
			of = q.opens
		}
		for _, q := range of {
			if q.dev == d {
				list = append(list, q)
			}
		}
	}
	return list
}

// stats may be called by anybody.
func (e *engine) stats() EngineStats {
	c := e.be.Stats()
	return EngineStats{
		QPs: int(e.used.Load()), RxPackets: c[netio.RxPackets], TxPackets: c[netio.TxPackets], RxPassed: c[netio.RxPassed], RxPassDropped: c[netio.RxPassDropped],
	}
}

// Stats returns how the queue pair is doing, as Device.Stats does.
func (q *QP) Stats() QPStats {
	q.e.lock()
	defer q.e.unlock()
	return q.stats()
}

// stats is called under the engine lock.
func (q *QP) stats() QPStats {
	a, c := q.t.Query(), q.core.t.Congestion()
	s := QPStats{
		QPN: q.num.String(), Engine: q.e.index, Type: q.typ.String(), State: a.State.String(), PathMTU: a.PathMTU.Bytes(),
		Rate: c.Rate, Target: c.Target, Alpha: c.Alpha,
	}
	if q.typ != UD && a.DestQPN != 0 {
		s.Peer, s.PeerQPN = a.AV.DGID.Addr(), ib.QPN(a.DestQPN).String()
	}
	return s
}

// maxRecent is how many events Stats tells of.
const maxRecent = 32

// recentEvents are the last events of a device. Its lock is a leaf.
type recentEvents struct {
	mu   sync.Mutex
	last []EventStats
}

func (r *recentEvents) add(a AsyncEvent) {
	e := EventStats{Time: time.Now(), Type: a.Type.String()}
	if a.QP != nil {
		e.QPN = a.QP.num.String()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.last) == maxRecent {
		r.last = slices.Delete(r.last, 0, 1)
	}
	r.last = append(r.last, e)
}

func (r *recentEvents) list() []EventStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]EventStats{}, r.last...)
}
