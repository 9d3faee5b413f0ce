//go:build linux || darwin

package netio

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// sockOptions are the options of a portable socket.
type sockOptions struct {
	v6      bool
	recvTOS bool   // the TOS of received packets is known
	zone    string // of the local address
}

// setSockOptions makes the socket tell the TOS of what it receives, and send with
// DF set and, where the system allows to ask for it, the Identification 0.
func setSockOptions(conn *net.UDPConn, v6 bool) (sockOptions, error) {
	o := sockOptions{v6: v6}
	if a, ok := conn.LocalAddr().(*net.UDPAddr); ok {
		o.zone = a.Zone
	}
	err := control1(conn, func(fd int) error {
		level, name := unix.IPPROTO_IP, unix.IP_RECVTOS
		if v6 {
			level, name = unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS
		}
		o.recvTOS = unix.SetsockoptInt(fd, level, name, 1) == nil
		return setDontFragment(fd, v6)
	})
	return o, err
}

func control1(conn *net.UDPConn, f func(fd int) error) error {
	rc, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := rc.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func (o sockOptions) setTOS(conn *net.UDPConn, tos uint8) error {
	return control1(conn, func(fd int) error {
		if o.v6 {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int(tos))
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, int(tos))
	})
}

// recvBuffer returns the size of the receive buffer, in the system's accounting.
func (o sockOptions) recvBuffer(conn *net.UDPConn) (n int) {
	control1(conn, func(fd int) (err error) {
		n, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
		return err
	})
	return n
}

// parseTOS finds the TOS in control messages.
func (o sockOptions) parseTOS(oob []byte) uint8 {
	for len(oob) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return 0
		}
		switch {
		case len(data) == 0:
		case h.Level == unix.IPPROTO_IP && (h.Type == unix.IP_TOS || h.Type == unix.IP_RECVTOS),
			h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && hostLittleEndian:
			return data[0]
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS:
			return data[len(data)-1]
		}
		oob = rest
	}
	return 0
}

// isNoBufs reports whether an error only says that there is no room now.
func isNoBufs(err error) bool {
	return errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EAGAIN)
}

func isTooBig(err error) bool { return errors.Is(err, unix.EMSGSIZE) }
