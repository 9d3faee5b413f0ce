package netio

import (
	"errors"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// A socket bound to a unicast address receives no multicast: each group has a
// socket of its own, bound to the group and joined to it on the interface of the
// backend's address.

// hopLimit is the TTL of multicast packets, as of all others.
const hopLimit = 64

// setMulticast makes a sending socket use the backend's interface for groups.
func (u *udp) setMulticast(fd int) error {
	if u.index == 0 {
		return nil // the system's choice
	}
	if u.local.Addr().Is4() {
		return errors.Join(
			unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(u.index), Address: as4(u.local.Addr())}),
			unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, hopLimit))
	}
	return errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, u.index),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, hopLimit))
}

func (u *udp) Join(group netip.Addr) error {
	if err := checkGroup(u.local.Addr(), group); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.fd < 0 {
		return errClosed(u.local)
	}
	for i := range u.rx.socks {
		if u.rx.socks[i].addr.Addr() == group {
			return nil
		}
	}
	fd, err := u.groupSocket(group)
	if err == nil {
		if err = u.p.watch(fd); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return &ListenError{Addr: netip.AddrPortFrom(group, u.local.Port()), Why: "the group cannot be joined: " + err.Error(), Err: err}
	}
	u.rx.socks = append(u.rx.socks, rxSocket{fd: fd, addr: netip.AddrPortFrom(group, u.local.Port())})
	return nil
}

func (u *udp) Leave(group netip.Addr) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := 1; i < len(u.rx.socks); i++ {
		if s := u.rx.socks[i]; s.addr.Addr() == group {
			u.rx.socks = append(u.rx.socks[:i], u.rx.socks[i+1:]...)
			return unix.Close(s.fd) // which leaves the group and the set of the poller
		}
	}
	return errNotJoined(group)
}

// groupSocket opens a socket that receives what is sent to a group. Other programs,
// and other devices of this one, may have theirs.
func (u *udp) groupSocket(group netip.Addr) (int, error) {
	family := unix.AF_INET
	if group.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := u.joinSocket(fd, group); err != nil {
		unix.Close(fd)
		return -1, err
	}
	u.setBuffers(fd)
	if u.gro {
		unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	}
	return fd, nil
}

// joinSocket binds a socket to a group and joins it.
func (u *udp) joinSocket(fd int, group netip.Addr) error {
	port := int(u.local.Port())
	type option struct{ level, name, value int }
	options := []option{
		{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1},
		{unix.IPPROTO_IP, unix.IP_RECVTOS, 1},
		{unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0}, // not what others have joined on other interfaces
	}
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: port, Addr: as4(group)}
	if group.Is6() {
		options = []option{
			{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 0},
			{unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1},
		}
		sa = &unix.SockaddrInet6{Port: port, Addr: group.As16(), ZoneId: uint32(u.index)}
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if err := unix.Bind(fd, sa); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if group.Is6() {
		err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(u.index)})
		return os.NewSyscallError("setsockopt IPV6_JOIN_GROUP", err)
	}
	err := unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
		&unix.IPMreqn{Multiaddr: as4(group), Address: as4(u.local.Addr()), Ifindex: int32(u.index)})
	return os.NewSyscallError("setsockopt IP_ADD_MEMBERSHIP", err)
}
