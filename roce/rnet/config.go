package rnet

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/goroce/goroce/roce"
)

// Config changes how connections are made. Its zero value has the defaults of
// librdmacm. The two sides need not agree.
type Config struct {
	// SendBuffer and RecvBuffer are how many bytes may be under way in either
	// direction; 0 means 128 KiB. Each half of RecvBuffer is offered to the peer as
	// soon as it is free.
	SendBuffer, RecvBuffer int
	// SendQueue and RecvQueue are how many messages may be under way; 0 means 384.
	// A Write is at least one message, of at most 32 KiB.
	SendQueue, RecvQueue int
	// Maps is how many areas of its memory the peer may map for WriteAt; 0 means 8,
	// negative none. Above 128 it is rounded down to a multiple of 256.
	Maps int
	// Device is the device to use. Nil means the one of the local address, which is
	// opened for as long as it is needed.
	Device *roce.Device
	// LocalAddr is where Dial and DialPacket come from. The zero value means the source
	// address of the route to the peer, and a port that is free.
	LocalAddr netip.AddrPort
	// Linger is how long Close goes on, in the background, to deliver what was
	// written; 0 means 5 s.
	Linger time.Duration
}

func (c *Config) fill() error {
	for _, f := range []struct {
		name             string
		v                *int
		zero, low, limit int
	}{
		{"SendBuffer", &c.SendBuffer, 128 << 10, 4096, 1 << 30},
		{"RecvBuffer", &c.RecvBuffer, 128 << 10, 4096, 1 << 30},
		{"SendQueue", &c.SendQueue, 384, 16, 1 << 15},
		{"RecvQueue", &c.RecvQueue, 384, 16, 1<<15 - ctrlSlots},
		{"Maps", &c.Maps, 8, 0, maxMaps},
	} {
		switch {
		case *f.v == 0:
			*f.v = f.zero
		case f.v == &c.Maps && *f.v < 0:
			*f.v = 0
		case *f.v < f.low || *f.v > f.limit:
			return &roce.ConfigError{Field: f.name, Value: *f.v, Allowed: fmt.Sprintf("allowed are %d to %d", f.low, f.limit)}
		}
	}
	if c.Linger < 0 {
		return &roce.ConfigError{Field: "Linger", Value: c.Linger, Allowed: "it is a time, or 0 for the default"}
	}
	if c.Linger == 0 {
		c.Linger = 5 * time.Second
	}
	c.Maps = fromScale(toScale(c.Maps))
	c.RecvBuffer &^= 15 // two halves, and the lists behind it aligned
	return nil
}

// device returns the device at a local address or, without one, by which the peer is
// reached. Who calls release needs it no more.
func (c *Config) device(local, peer netip.Addr) (dev *roce.Device, release func(), err error) {
	if c.Device != nil {
		return c.Device, func() {}, nil
	}
	if local.IsUnspecified() {
		local = netip.Addr{}
	}
	if dev, err = roce.Open(roce.Config{Addr: local, Peer: peer}); err != nil {
		return nil, nil, err
	}
	return dev, func() { dev.Close() }, nil
}
