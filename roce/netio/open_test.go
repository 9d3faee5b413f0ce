package netio

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
)

// Rule: an address that cannot be used is refused with the reason.
func TestUnusableAddress(t *testing.T) {
	for addr, want := range map[string]string{
		"0.0.0.0:1": "concrete", "[::]:1": "concrete", "224.0.0.1:1": "unicast", "[ff02::1]:1": "unicast", "255.255.255.255:1": "unicast",
	} {
		for name, open := range map[string]func(netip.AddrPort) (Backend, error){
			"udp":      func(a netip.AddrPort) (Backend, error) { return ListenUDP(UDPConfig{Addr: a}) },
			"portable": func(a netip.AddrPort) (Backend, error) { return ListenUDP(UDPConfig{Addr: a, Portable: true}) },
			"fabric":   NewFabric().Open,
		} {
			wantListenError(t, name+" "+addr, open, addr, want)
		}
	}
	if _, err := ListenUDP(UDPConfig{}); err == nil {
		t.Error("no address: no error")
	}
	f := NewFabric()
	fabricPair(t, f, "10.0.0.1:1", "10.0.0.1:2")
	wantListenError(t, "fabric", f.Open, "10.0.0.1:1", "in use")
}

func wantListenError(t *testing.T, name string, open func(netip.AddrPort) (Backend, error), addr, want string) {
	t.Helper()
	b, err := open(netip.MustParseAddrPort(addr))
	if err == nil {
		b.Close()
	}
	var le *ListenError
	if !errors.As(err, &le) || !bytes.Contains([]byte(err.Error()), []byte(want)) {
		t.Errorf("%s: %v, want a ListenError with %q", name, err, want)
	}
}

// Rule: port 0 is 4791.
func TestDefaultPort(t *testing.T) {
	b := open(t, NewFabric(), "10.0.0.1:0")
	if b.LocalAddr().Port() != 4791 {
		t.Error(b.LocalAddr())
	}
}
