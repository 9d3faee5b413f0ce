package roce

import (
	"github.com/goroce/goroce/roce/netio"
)

// watch lets asynchronous events tell what becomes of the port: EventPortErr and
// EventPortActive when its interface goes down and up, EventGIDChange when the
// device's address is removed from this host or comes back (IBTA 11.6.3.3; Linux
// tells the same for its own devices). Its goroutine ends with Close. A device
// that is manual or has a backend of its own has no interface to watch, and
// systems other than Linux cannot.
func (d *Device) watch() {
	d.unwatch = func() {}
	if d.cfg.Manual || d.cfg.Backend != nil {
		return
	}
	var port portState
	stop, err := netio.WatchPort(d.addr, func(present, up bool) { port.change(d, portState{true, present, up}) })
	if err != nil {
		d.cfg.Logger.Info("no events of the port", "name", d.cfg.Name, "reason", err)
		return
	}
	d.unwatch = stop
}

// portState is what is known of the port.
type portState struct{ known, present, up bool }

// change reports how the port differs from before.
func (p *portState) change(d *Device, now portState) {
	before := *p
	*p = now
	if !before.known {
		return
	}
	if now.present != before.present {
		d.report(AsyncEvent{Type: EventGIDChange})
	}
	if now.up == before.up {
		return
	}
	ev := EventPortErr
	if now.up {
		ev = EventPortActive
	}
	d.report(AsyncEvent{Type: ev})
}
