package roce

import (
	"strings"
	"sync/atomic"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/transport"
)

// drop names a reason for which the engine itself drops something.
type drop uint8

const (
	dropUnknownQP    drop = iota // no queue pair has this number
	dropICRC                     // the invariant CRC is wrong
	dropIPID                     // the ICRC explains no IPv4 Identification that the peer would send
	dropCQOverflow               // a completion found its queue full
	dropEvent                    // an asynchronous event found its queue full
	dropMADFormat                // a management datagram has the wrong length or version
	dropMADClass                 // nobody serves the class of a management datagram
	dropMADSend                  // a management datagram found the send queue full
	dropNotAllowed               // the sender is in no network of Config.AllowPeers
	dropRate                     // too many changes of rates wait to be told to Config.OnRate
	dropLog                      // a record for Config.Logger found too many waiting
	unknownQPLimited             // of dropUnknownQP: not looked at for the logger, see Config.UnknownQPRate
	numDrops
)

var dropNames = [numDrops]string{
	"drop_unknown_qp", "drop_icrc", "drop_ip_id", "drop_cq_overflow", "drop_event", "drop_mad_format", "drop_mad_class", "drop_mad_send",
	"drop_not_allowed", "drop_rate_change", "drop_log", "unknown_qp_rate_limited",
}

// drops counts, written under the engine lock, read by anyone.
type drops struct {
	reasons [numDrops]atomic.Uint64
	parse   [ib.NumMalformed]atomic.Uint64
}

func (e *engine) count(d drop) { e.drops.reasons[d].Add(1) }

func (d *drops) malformed(m ib.Malformed) { d.parse[m].Add(1) }

// Counters returns all counters by name: those of the transport with the names of
// rxe's and mlx5's hw_counters, every reason for a drop as drop_*, and those of
// the network backend. Counters of dropped packets, of the backend and of
// management datagrams belong to the port, which devices on one address share.
func (d *Device) Counters() map[string]uint64 {
	p := d.port
	all := make(map[string]uint64)
	for c := range transport.NumCounters {
		all[c.String()] = d.counters.Load(c)
	}
	if g := p.gsi.Load(); g != nil {
		for c := range transport.NumCounters {
			all[c.String()] += g.dev.counters.Load(c)
		}
	}
	for i, name := range dropNames {
		all[name] = p.dropped(drop(i))
	}
	for m := range ib.NumMalformed {
		if m != ib.OK {
			all["drop_"+strings.ReplaceAll(m.String(), " ", "_")] = p.malformed(m)
		}
	}
	stats := p.stats()
	for s := range netio.NumStats {
		all[s.String()] = stats[s]
	}
	return all
}
