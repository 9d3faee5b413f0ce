package netio

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// explainListen turns an error of socket or bind into one that says who or what is
// in the way.
func explainListen(addr netip.AddrPort, err error) error {
	e := &ListenError{Addr: addr, Err: err, Why: err.Error()}
	switch {
	case errors.Is(err, unix.EADDRNOTAVAIL):
		e.Why = "the address is not one of this machine's" + ownAddresses(addr.Addr())
	case errors.Is(err, unix.EADDRINUSE):
		e.Why = "the port is in use by " + portOwner(addr) + "; a second user needs an address of its own" + loopbackHint(addr.Addr())
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		e.Why = "permission denied"
		if addr.Port() < 1024 {
			e.Why += ": ports below 1024 need CAP_NET_BIND_SERVICE"
		}
	case errors.Is(err, unix.EAFNOSUPPORT):
		e.Why = "this machine has no IPv6"
		if addr.Addr().Is4() {
			e.Why = "this machine has no IPv4"
		}
	case errors.Is(err, unix.EINVAL) && addr.Addr().IsLinkLocalUnicast() && addr.Addr().Is6():
		e.Why = "a link-local address needs its interface, as in fe80::1%eth0"
	}
	return e
}

// ownAddresses lists the addresses that could have been meant.
func ownAddresses(like netip.Addr) string {
	all, err := LocalAddrs()
	if err != nil {
		return ""
	}
	var own []string
	for _, a := range all {
		if a.Is4() == like.Is4() {
			own = append(own, a.String())
		}
	}
	if len(own) == 0 {
		return ""
	}
	if len(own) > 8 {
		own = append(own[:8], "...")
	}
	return " (those are " + strings.Join(own, ", ") + ")"
}

func loopbackHint(a netip.Addr) string {
	if a.Is4() && a.IsLoopback() {
		return ", such as another one of 127.0.0.0/8"
	}
	return ""
}

// portOwner names who holds the UDP port: a process, the rxe module, or as much as
// can be found out without privileges.
func portOwner(addr netip.AddrPort) string {
	holders := udpHolders(addr)
	inodes := make(map[string]bool)
	for _, h := range holders {
		inodes[h.inode] = true
	}
	if pid, name := processWith(inodes); pid == os.Getpid() {
		return fmt.Sprintf("this very process (%s, pid %d)", name, pid)
	} else if pid != 0 {
		return fmt.Sprintf("%s (pid %d)", name, pid)
	}
	_, err := os.Stat("/sys/module/rdma_rxe")
	rxe := err == nil && addr.Port() == Port
	switch {
	case rxe && os.Geteuid() == 0:
		return "the kernel's rxe module (rmmod rdma_rxe, or rdma link delete, frees it)"
	case len(holders) > 0 && holders[0].uid != strconv.Itoa(os.Geteuid()) && !rxe:
		return "a process of user " + holders[0].uid
	case rxe:
		return "another user's process or the kernel's rxe module, which is loaded"
	}
	return "a socket whose process could not be found"
}

// udpHolder is a line of /proc/net/udp.
type udpHolder struct{ uid, inode string }

// udpHolders returns the UDP sockets that keep addr from being bound.
func udpHolders(addr netip.AddrPort) []udpHolder {
	var found []udpHolder
	for _, name := range []string{"udp", "udp6"} {
		b, err := os.ReadFile("/proc/thread-self/net/" + name)
		if err != nil {
			continue
		}
		sc := bufio.NewScanner(bytes.NewReader(b))
		for sc.Scan() {
			f := strings.Fields(sc.Text())
			if len(f) < 10 {
				continue
			}
			a, ok := parseProcAddr(f[1])
			if ok && a.Port() == addr.Port() && (a.Addr() == addr.Addr().WithZone("") || a.Addr().IsUnspecified()) {
				found = append(found, udpHolder{uid: f[7], inode: f[9]})
			}
		}
	}
	return found
}

// parseProcAddr reads an address as /proc/net/udp writes it: 32-bit words of the
// address in host order, in hexadecimal, a colon and the port.
func parseProcAddr(s string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(s, ":")
	if !ok {
		return netip.AddrPort{}, false
	}
	b, err := hex.DecodeString(host)
	if err != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, false
	}
	if hostLittleEndian {
		for i := 0; i < len(b); i += 4 {
			b[i], b[i+1], b[i+2], b[i+3] = b[i+3], b[i+2], b[i+1], b[i]
		}
	}
	ip, ok := netip.AddrFromSlice(b)
	n, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(n)), true
}

// processWith finds a process that has one of the sockets open, this one rather
// than another. 0 means that none was found, or none may be looked at.
func processWith(inodes map[string]bool) (pid int, name string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		fds, err := os.ReadDir(dir + "/fd")
		if err != nil {
			continue
		}
		for _, fd := range fds {
			link, err := os.Readlink(dir + "/fd/" + fd.Name())
			if err != nil || !strings.HasPrefix(link, "socket:[") || !inodes[strings.Trim(link, "socket:[]")] {
				continue
			}
			pid, _ = strconv.Atoi(filepath.Base(dir))
			comm, _ := os.ReadFile(dir + "/comm")
			name = strings.TrimSpace(string(comm))
			if pid == os.Getpid() {
				return pid, name
			}
		}
	}
	return pid, name
}
