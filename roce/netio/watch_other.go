//go:build !linux

package netio

import (
	"errors"
	"fmt"
	"net/netip"
)

// WatchPort tells what holds for the interface of a local address, now and when it
// changes, on Linux; elsewhere the error is errors.ErrUnsupported.
func WatchPort(addr netip.Addr, changed func(present, up bool)) (stop func(), err error) {
	return nil, fmt.Errorf("netio: watch %v: %w on this system", addr, errors.ErrUnsupported)
}
