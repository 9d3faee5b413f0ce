package rdmacm

import (
	"sync/atomic"

	"github.com/goroce/goroce/transport/cm"
)

// counters are those of all connection managers of this process.
var counters cm.Counters

// lostEvents counts events that found no room.
var lostEvents atomic.Uint64

// Counters returns the counters of the connection managers of this process by
// name: messages sent and received, repeated and dropped by reason, and as
// drop_event events that found no room in the channel of a Config.
func Counters() map[string]uint64 {
	all := map[string]uint64{"drop_event": lostEvents.Load()}
	for c := range cm.NumCounters {
		all[c.String()] = counters.Load(c)
	}
	return all
}

// tell hands an event to a channel, without waiting.
func tell(ch chan<- Event, ev Event) {
	if ch == nil {
		return
	}
	select {
	case ch <- ev:
	default:
		lostEvents.Add(1)
	}
}
