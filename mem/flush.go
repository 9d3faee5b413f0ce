package mem

import "errors"

// Sync makes memory persistent: afterwards the contents of b survive a loss of
// power, as after msync(2). It may block. An error says that they may not.
type Sync func(b []byte) error

// SetSync says how FLUSH makes regions with FlushPersistent persistent; without
// it none can be registered. check, if not nil, says why some memory cannot be
// made persistent, when it is to be registered. SetSync is to be called before
// anything is registered.
func (t *Table) SetSync(f Sync, check func(b []byte) error) { t.sync, t.checkSync = f, check }

// checkPersistent says why memory cannot be registered with FlushPersistent.
func (t *Table) checkPersistent(b []byte) error {
	err := errNoSync
	if t.sync != nil {
		err = nil
		if t.checkSync != nil {
			err = t.checkSync(b)
		}
	}
	if err != nil {
		return &RegisterError{"access", "FLUSH_PERSISTENT: " + err.Error()}
	}
	return nil
}

var errNoSync = errors.New("memory cannot be made persistent here")

// RemoteRegion opens all of the region, or window, that a peer named with rkey, as
// FLUSH of a whole region does (IBTA A19, selectivity level). It checks and answers as
// Remote does.
func (c *Cursor) RemoteRegion(t *Table, pd PD, rkey uint32, need Access) Status {
	var g grant
	o, _ := t.lookup(rkey, &g)
	if o == nil {
		c.Reset()
		return BadKey
	}
	if s := o.knows(&g, QP{pd, c.qpn}); s != OK {
		c.Reset()
		return s
	}
	return c.Remote(t, pd, rkey, g.iova, g.size, need)
}

// Persist makes n bytes from offset off persistent. It answers AccessDenied if
// the cursor was not opened with FlushPersistent, Fault if the memory could not
// be made persistent, OutOfRange and BadKey as CopyOut does.
func (c *Cursor) Persist(off, n uint64) Status {
	if off > c.size || n > c.size-off {
		return OutOfRange
	}
	if c.persist == nil {
		return AccessDenied
	}
	for n > 0 {
		b := c.seek(off)
		if b == nil {
			return BadKey
		}
		b = b[:min(n, uint64(len(b)))]
		if c.persist(b) != nil {
			return Fault
		}
		off += uint64(len(b))
		n -= uint64(len(b))
	}
	return OK
}
