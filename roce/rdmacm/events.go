package rdmacm

import (
	"log/slog"
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

// note tells the device's logger of an event.
func (c *Conn) note(t EventType, err error) {
	level := slog.LevelInfo
	switch t {
	case EventConnectError, EventUnreachable, EventRejected, EventDeviceRemoval:
		level = slog.LevelWarn
	case EventTimewaitExit:
		level = slog.LevelDebug
	}
	if !c.dev.Listens(level) {
		return
	}
	attrs := []slog.Attr{slog.Any("local", c.local), slog.Any("remote", c.remote)}
	if c.qpn != 0 {
		attrs = append(attrs, slog.String("qpn", c.qpn.String()))
	}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	c.dev.Note(level, t.String(), attrs...)
}
