package rnet

import (
	"net"
	"time"

	"github.com/goroce/goroce/roce"
)

// keepAliveDefault is tcp_keepalive_time of Linux, which rsocket.c takes.
const keepAliveDefault = 2 * time.Hour

// SetKeepAlive says whether a dead peer shall be noticed while nothing is sent: from
// time to time a WRITE of 0 bytes asks the peer's adapter for an acknowledgement.
func (c *Conn) SetKeepAlive(on bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	c.setKeepAlive(0)
	if on {
		c.setKeepAlive(c.keepAliveTime)
	}
	return nil
}

// SetKeepAlivePeriod says how often, at least 1 ms; without it every two hours.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.opError("set", net.ErrClosed)
	case d < time.Millisecond:
		return c.opError("set", &roce.ConfigError{Field: "period", Value: d, Allowed: "at least 1ms"})
	}
	c.keepAliveTime = d
	if c.keep != nil {
		c.setKeepAlive(d)
	}
	return nil
}

// setKeepAlive starts asking, or with 0 stops it. The mutex is held.
func (c *Conn) setKeepAlive(d time.Duration) {
	if c.keep != nil {
		c.keep.Stop()
		c.keep = nil
	}
	if d == 0 {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.keep == timer && !c.s.gone {
			c.s.tell(ctrlKeepAlive)
			timer.Reset(d)
		}
	})
	c.keep = timer
}
