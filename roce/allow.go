package roce

import (
	"fmt"
	"net/netip"
	"slices"
)

// allowList are the networks that peers may be in. An empty one allows all.
type allowList []netip.Prefix

// newAllowList returns the list of a configuration, in an order of its own.
func newAllowList(prefixes []netip.Prefix) (allowList, error) {
	list := make(allowList, 0, len(prefixes))
	for _, p := range prefixes {
		switch {
		case !p.IsValid():
			return nil, &ConfigError{"AllowPeers", p, "valid prefixes are needed, as netip.ParsePrefix returns them"}
		case p.Addr().Is4In6():
			return nil, &ConfigError{"AllowPeers", p, "IPv4 networks are named by IPv4 prefixes"}
		}
		list = append(list, p.Masked())
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list), nil
}

// has reports whether a peer may have an address, which is not IPv4 in IPv6 and has
// no zone.
func (l allowList) has(a netip.Addr) bool {
	for _, p := range l {
		if p.Contains(a) {
			return true
		}
	}
	return len(l) == 0
}

// checkPeer refuses a destination that no answer would be taken from. The error is
// a *ConfigError for the field of that name.
func (d *Device) checkPeer(field string, a netip.Addr) error {
	if a.IsMulticast() || d.allow.has(a) {
		return nil
	}
	return &ConfigError{field, a, fmt.Sprintf("Config.AllowPeers allows %v", []netip.Prefix(d.allow))}
}
