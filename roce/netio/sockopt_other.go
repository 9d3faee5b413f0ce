//go:build !linux && !darwin

package netio

import (
	"net"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// sockOptions are the options of a portable socket, on systems of which only what
// golang.org/x/net offers is used: no TOS of received packets.
type sockOptions struct {
	v6      bool
	recvTOS bool   // always false
	zone    string // of the local address
}

func setSockOptions(conn *net.UDPConn, v6 bool) (sockOptions, error) {
	o := sockOptions{v6: v6}
	if a, ok := conn.LocalAddr().(*net.UDPAddr); ok {
		o.zone = a.Zone
	}
	return o, nil
}

// setTOS asks for a TOS. A system that refuses is no reason not to send.
func (o sockOptions) setTOS(conn *net.UDPConn, tos uint8) error {
	if o.v6 {
		ipv6.NewPacketConn(conn).SetTrafficClass(int(tos))
	} else {
		ipv4.NewPacketConn(conn).SetTOS(int(tos))
	}
	return nil
}

func (o sockOptions) recvBuffer(*net.UDPConn) int { return 0 }
func (o sockOptions) parseTOS([]byte) uint8       { return 0 }
func isNoBufs(error) bool                         { return false }
func isTooBig(error) bool                         { return false }
