package capture

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

const (
	liveBuffer = 64 << 20 // of the socket, if the system allows it
	liveSnap   = 256 << 10
	livePause  = 200 * time.Millisecond // how soon the end of the context is seen

	// struct virtio_net_hdr of Linux include/uapi/linux/virtio_net.h.
	vnetSize    = 10
	vnetUDPL4   = 5
	vnetECN     = 0x80
	vnetType    = 1
	vnetSegment = 4
)

// live captures on an interface.
type live struct {
	ctx      context.Context
	fd       int
	link     layers.LinkType
	loopback bool
	vnet     bool // frames begin with a virtio_net_hdr
	buf      []byte
	dropped  uint64
}

// Live captures on an interface until ctx ends, which is io.EOF. It needs root or
// CAP_NET_RAW.
func Live(ctx context.Context, name string) (Source, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("there is no interface %s: 'roce devinfo' lists those with addresses", name)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			return nil, errors.New("capturing needs root or CAP_NET_RAW; files can be read without")
		}
		return nil, os.NewSyscallError("socket", err)
	}
	l := &live{ctx: ctx, fd: fd, buf: make([]byte, liveSnap), link: layers.LinkTypeEthernet, loopback: iface.Flags&net.FlagLoopback != 0}
	if len(iface.HardwareAddr) == 0 && !l.loopback {
		l.link = layers.LinkTypeRaw // a tunnel
	}
	if err := l.setup(iface.Index); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return l, nil
}

func (l *live) setup(index int) error {
	if unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, liveBuffer) != nil {
		unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, liveBuffer) // as much as there is
	}
	l.vnet = unix.SetsockoptInt(l.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1) == nil
	if err := unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	pause := unix.NsecToTimeval(int64(livePause))
	if err := unix.SetsockoptTimeval(l.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &pause); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	return os.NewSyscallError("bind", unix.Bind(l.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}))
}

func (l *live) Next() (Frame, error) {
	oob := make([]byte, 128)
	for {
		if l.ctx.Err() != nil {
			return Frame{}, io.EOF
		}
		n, oobn, flags, from, err := unix.Recvmsg(l.fd, l.buf, oob, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EINVAL) && l.vnet:
			// Linux before 6.2 cannot say in the header that a packet is UDP
			// segments; without it, their ICRCs do.
			l.vnet = false
			if err := unix.SetsockoptInt(l.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 0); err != nil {
				return Frame{}, os.NewSyscallError("setsockopt", err)
			}
			l.dropped++
			continue
		case err != nil:
			return Frame{}, os.NewSyscallError("recvmsg", err)
		}
		if sa, ok := from.(*unix.SockaddrLinklayer); ok && l.loopback && sa.Pkttype == unix.PACKET_OUTGOING {
			continue // it comes again
		}
		f := Frame{Link: l.link, At: arrival(oob[:oobn]), Len: n}
		data := l.buf[:min(n, len(l.buf))]
		if flags&unix.MSG_TRUNC != 0 && len(data) < n {
			f.Len = n
		}
		if l.vnet {
			if len(data) < vnetSize {
				continue
			}
			if data[vnetType]&^vnetECN == vnetUDPL4 {
				f.Segment = int(binary.NativeEndian.Uint16(data[vnetSegment:]))
			}
			data, f.Len = data[vnetSize:], f.Len-vnetSize
		}
		f.Data = append([]byte(nil), data...)
		return f, nil
	}
}

// arrival returns the kernel's time stamp, or else the present.
func arrival(oob []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Now()
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return time.Now()
}

// Dropped returns how many frames the kernel had no room for.
func (l *live) Dropped() uint64 {
	if s, err := unix.GetsockoptTpacketStats(l.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		l.dropped += uint64(s.Drops) // reading sets it to 0
	}
	return l.dropped
}

func (l *live) Close() error { return unix.Close(l.fd) }
