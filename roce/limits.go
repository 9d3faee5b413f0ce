package roce

import (
	"fmt"
)

// Limits bounds what a device holds, so that neither its program nor a peer that
// makes it create things can take all memory. The names are those of
// ibv_device_attr, where that has them, and Device.Query reports the values. 0 means
// the value given below, which is also the most unless that is given.
//
// The connection manager (package rdmacm) is one for all devices on an address: the
// limits of the first that uses it are its own.
//
// Whatever exceeds a limit is refused with a *LimitError; what exists already goes
// on. The queues of a queue pair and of a completion queue have sizes of their own.
type Limits struct {
	MaxQP        int // queue pairs; 1048576
	MaxCQ        int // completion queues; 1048576
	MaxMR        int // memory regions and windows together; 8388608
	MaxAH        int // address handles; 1048576
	MaxResRdAtom int // responder resources of all queue pairs together (Attr.MaxDestRdAtomic); 16777216

	MaxCMID       int // connections and resolutions of addresses, in any state; 65536, at most 1048576
	MaxCMHalfOpen int // ... of these requests of peers that are no connections yet: the oldest gives way; 4096, at most 1048576
	MaxCMTimeWait int // closed connections whose numbers are not used again yet: the oldest gives way; 16384, at most 1048576
}

// LimitError says that a device has as much as it may have (ENOMEM of libibverbs).
type LimitError struct {
	Limit string // the field of Limits
	Most  int    // its value
	What  string // what there are so many of
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("roce: the device has %d %s, the most it may have: free some, or raise Config.Limits.%s", e.Most, e.What, e.Limit)
}

// fill puts defaults in place and checks.
func (l *Limits) fill() error {
	return fillLimits([]limit{
		{"Limits.MaxQP", &l.MaxQP, maxQP, maxQP},
		{"Limits.MaxCQ", &l.MaxCQ, maxCQ, maxCQ},
		{"Limits.MaxMR", &l.MaxMR, maxMR, maxMR},
		{"Limits.MaxAH", &l.MaxAH, maxAH, maxAH},
		{"Limits.MaxResRdAtom", &l.MaxResRdAtom, maxResRdAtom, maxResRdAtom},
		{"Limits.MaxCMID", &l.MaxCMID, 1 << 16, maxCM},
		{"Limits.MaxCMHalfOpen", &l.MaxCMHalfOpen, 1 << 12, maxCM},
		{"Limits.MaxCMTimeWait", &l.MaxCMTimeWait, 1 << 14, maxCM},
	})
}

// usage is what a device has of what Limits bounds. The device's lock guards it.
type usage struct {
	qps       int
	resRdAtom int
	cqs       int
}

// addQP counts one queue pair more, of an engine.
func (d *Device) addQP(e *engine) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used.qps >= d.cfg.Limits.MaxQP {
		return &LimitError{"MaxQP", d.cfg.Limits.MaxQP, "queue pairs"}
	}
	d.used.qps++
	e.used.Add(1)
	return nil
}

// removeQP counts one queue pair less.
func (d *Device) removeQP(e *engine) {
	d.mu.Lock()
	d.used.qps--
	d.mu.Unlock()
	e.used.Add(-1)
}

// checkMR refuses one region or window too many. The device is locked.
func (d *Device) checkMR() error {
	if d.mem.Len() >= d.cfg.Limits.MaxMR {
		return &LimitError{"MaxMR", d.cfg.Limits.MaxMR, "memory regions and windows"}
	}
	return nil
}

// addCQ counts one completion queue more.
func (d *Device) addCQ() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used.cqs >= d.cfg.Limits.MaxCQ {
		return &LimitError{"MaxCQ", d.cfg.Limits.MaxCQ, "completion queues"}
	}
	d.used.cqs++
	return nil
}

// removeCQ counts one completion queue less.
func (d *Device) removeCQ() {
	d.mu.Lock()
	d.used.cqs--
	d.mu.Unlock()
}

// takeResources takes the responder resources that a change of attributes asks for,
// unless the device has not so many left. The engine is locked.
func (q *QP) takeResources(a *Attr, mask AttrMask) error {
	d, n := q.dev, int(a.MaxDestRdAtomic)
	limit := d.cfg.Limits.MaxResRdAtom
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case mask&MaskMaxDestRdAtomic == 0:
		return nil
	case d.used.resRdAtom-q.resources+n > limit:
		return &LimitError{"MaxResRdAtom", limit, "responder resources for READs and atomics"}
	}
	d.used.resRdAtom += n - q.resources
	q.resources = n
	return nil
}

// setResources notes how many responder resources the queue pair has after all. The
// engine is locked.
func (q *QP) setResources(n int) {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	q.dev.used.resRdAtom += n - q.resources
	q.resources = n
}
