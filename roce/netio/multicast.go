package netio

import (
	"errors"
	"fmt"
	"net/netip"
)

// ErrNotJoined says that a group that shall be left was not joined.
var ErrNotJoined = errors.New("not joined")

func errNotJoined(group netip.Addr) error {
	return fmt.Errorf("netio: group %v: %w", group, ErrNotJoined)
}

// checkGroup refuses what is no group of a backend's IP version.
func checkGroup(local, group netip.Addr) error {
	switch {
	case !group.IsMulticast():
		return &ListenError{Addr: netip.AddrPortFrom(group, Port), Why: "the address is no multicast group"}
	case group.Is4() != local.Is4():
		return &ListenError{Addr: netip.AddrPortFrom(group, Port), Why: fmt.Sprintf("a group of the IP version of %v is needed", local)}
	}
	return nil
}
