//go:build linux

package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// udpStream is a stream of datagrams without any protocol but a window, so that
// nothing is lost. It is what the socket allows:
//
//	plain  one datagram at a time, 32 with a system call
//	gso    UDP_SEGMENT and UDP_GRO
//	limit  the same, with what nobody gets around who speaks RoCE: a header for each
//	       datagram, the payload copied once on either side, and a CRC-32 over all
//
// Arguments: the mode, and the bytes of a datagram.
type udpStream struct {
	mode   string
	size   int    // bytes of a datagram
	window uint64 // datagrams under way
	every  uint64 // so many are acknowledged at a time
}

const (
	udpPort   = 4791
	headBytes = 12      // of a BTH
	crcBytes  = 4       // of an ICRC
	udpBatch  = 32      // datagrams of a system call in mode plain
	udpRun    = 65507   // bytes of one with UDP_SEGMENT
	udpMost   = 64      // and datagrams
	appBytes  = 1 << 20 // of what is sent and received, over and over
)

func parseStream(args []string) (u udpStream, err error) {
	if u.mode = args[0]; u.mode != "plain" && u.mode != "gso" && u.mode != "limit" {
		return u, fmt.Errorf("no such mode: %q", args)
	}
	u.size, err = strconv.Atoi(args[1])
	u.window, u.every = 256, 32 // about a megabyte
	if u.size < 2048 {
		u.window, u.every = 1024, 128
	}
	return u, err
}

// udpSocket returns a socket with large buffers.
func udpSocket(bind netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 16<<20)
	// A datagram that is lost ends the test.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
		return -1, err
	}
	return fd, unix.Bind(fd, &unix.SockaddrInet4{Addr: bind.Addr().As4(), Port: int(bind.Port())})
}

func addrOf(a net.Addr) netip.Addr { return a.(*net.TCPAddr).AddrPort().Addr().Unmap() }

// udpStreamServer receives until the client says on control that it has sent all, and
// tells it there what has come.
func udpStreamServer(control net.Conn, args []string) error {
	u, err := parseStream(args)
	if err != nil {
		return err
	}
	fd, err := udpSocket(netip.AddrPortFrom(addrOf(control.LocalAddr()), udpPort))
	if err != nil {
		return err
	}
	client := &unix.SockaddrInet4{Addr: addrOf(control.RemoteAddr()).As4(), Port: udpPort}
	if _, err := control.Write([]byte{0}); err != nil { // ready
		return err
	}
	runtime.LockOSThread()
	r := &udpReceiver{udpStream: u, fd: fd, app: make([]byte, appBytes)}
	r.reply = func(b []byte) error { return unix.Sendto(fd, b, 0, client) }
	receive := r.gro
	if u.mode == "plain" {
		receive = r.batches
	}
	if err := receive(); err != nil {
		return err
	}
	return json.NewEncoder(control).Encode(roleReport{Messages: r.got, Bytes: r.bytes, Took: r.last.Sub(r.first)})
}

type udpReceiver struct {
	udpStream
	fd          int
	reply       func(b []byte) error
	app         []byte // where the payload goes
	at          int
	got, acked  uint64
	bytes       uint64
	first, last time.Time
}

// The last datagram is shorter than any other.
const endBytes = 1

// gro receives what GRO has coalesced.
func (r *udpReceiver) gro() error {
	if err := unix.SetsockoptInt(r.fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
		return err
	}
	b, oob := make([]byte, 1<<16), make([]byte, 64)
	for {
		n, oobn, _, _, err := unix.Recvmsg(r.fd, b, oob, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("after %d datagrams: %w", r.got, err)
		}
		if n == endBytes {
			return nil
		}
		size := n
		if oobn >= unix.CmsgLen(4) {
			size = int(binary.NativeEndian.Uint32(oob[unix.CmsgLen(0):]))
		}
		for off := 0; off < n; off += size {
			if err := r.take(b[off:min(off+size, n)]); err != nil {
				return err
			}
		}
		if err := r.acknowledge(); err != nil {
			return err
		}
	}
}

// batches receives several datagrams with one call.
func (r *udpReceiver) batches() error {
	f, err := packetConn(r.fd)
	if err != nil {
		return err
	}
	conn, batch := ipv4.NewPacketConn(f), newBatch(r.size, nil)
	for {
		k, err := conn.ReadBatch(batch, 0)
		if err != nil {
			return err
		}
		r.reply = func(b []byte) error {
			_, err := f.WriteTo(b, batch[0].Addr)
			return err
		}
		for _, m := range batch[:k] {
			if m.N == endBytes {
				return nil
			}
			if err := r.take(m.Buffers[0][:m.N]); err != nil {
				return err
			}
		}
		if err := r.acknowledge(); err != nil {
			return err
		}
	}
}

// take does what the mode wants with a datagram.
func (r *udpReceiver) take(b []byte) error {
	if len(b) != r.size {
		return fmt.Errorf("a datagram of %d bytes came instead of %d", len(b), r.size)
	}
	if r.mode == "limit" {
		end := len(b) - crcBytes
		if crc32.ChecksumIEEE(b[:end]) != binary.LittleEndian.Uint32(b[end:]) {
			return fmt.Errorf("datagram %d is damaged", r.got)
		}
		if r.at+len(b) > len(r.app) {
			r.at = 0
		}
		r.at += copy(r.app[r.at:], b[headBytes:end])
	}
	r.got++
	r.bytes += uint64(len(b) - headBytes - crcBytes)
	return nil
}

// acknowledge tells the sender how many have come, now and then.
func (r *udpReceiver) acknowledge() error {
	r.last = time.Now()
	if r.first.IsZero() {
		r.first = r.last
	}
	if r.got-r.acked < r.every {
		return nil
	}
	r.acked = r.got
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], r.got)
	return r.reply(b[:])
}

func udpStreamClient(control net.Conn, args []string) (report roleReport, err error) {
	u, err := parseStream(args)
	if err != nil {
		return report, err
	}
	fd, err := udpSocket(netip.AddrPortFrom(addrOf(control.LocalAddr()), udpPort))
	if err != nil {
		return report, err
	}
	if _, err := control.Read(make([]byte, 1)); err != nil {
		return report, err
	}
	runtime.LockOSThread()
	server := &unix.SockaddrInet4{Addr: addrOf(control.RemoteAddr()).As4(), Port: udpPort}
	s := &udpSender{udpStream: u, fd: fd, server: server, app: make([]byte, appBytes)}
	send := s.runs
	if u.mode == "plain" {
		send = s.batches
	}
	if err := send(); err != nil {
		return report, err
	}
	if err := json.NewDecoder(control).Decode(&report); err != nil {
		return report, fmt.Errorf("the server's report: %w", err)
	}
	if report.Messages != s.sent {
		return report, fmt.Errorf("%d of %d datagrams arrived", report.Messages, s.sent)
	}
	return report, nil
}

type udpSender struct {
	udpStream
	fd          int
	server      unix.Sockaddr
	app         []byte // where the payload comes from
	at          int
	receive     func(b []byte) error // blocks
	sent, acked uint64
}

// runs sends with UDP_SEGMENT.
func (s *udpSender) runs() error {
	s.receive = func(b []byte) error {
		for {
			if _, _, err := unix.Recvfrom(s.fd, b, 0); !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	}
	segments := min(udpRun/s.size, udpMost)
	if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, s.size); err != nil {
		return err
	}
	b := make([]byte, segments*s.size)
	for begin := time.Now(); time.Since(begin) < streamFor; {
		if err := s.wait(uint64(segments)); err != nil {
			return err
		}
		if s.mode == "limit" {
			for off := 0; off < len(b); off += s.size {
				s.fill(b[off : off+s.size])
			}
		}
		if err := unix.Sendto(s.fd, b, 0, s.server); err != nil {
			return err
		}
		s.sent += uint64(segments)
	}
	return unix.Sendto(s.fd, make([]byte, endBytes), 0, s.server) // less than a segment
}

// fill makes a datagram.
func (s *udpSender) fill(b []byte) {
	if s.at+len(b) > len(s.app) {
		s.at = 0
	}
	end := len(b) - crcBytes
	binary.LittleEndian.PutUint64(b, s.sent)
	s.at += copy(b[headBytes:end], s.app[s.at:])
	binary.LittleEndian.PutUint32(b[end:], crc32.ChecksumIEEE(b[:end]))
}

// batches sends several datagrams with one call.
func (s *udpSender) batches() error {
	f, err := packetConn(s.fd)
	if err != nil {
		return err
	}
	s.receive = func(b []byte) error {
		_, _, err := f.ReadFrom(b)
		return err
	}
	to := s.server.(*unix.SockaddrInet4)
	conn, batch := ipv4.NewPacketConn(f), newBatch(s.size, &net.UDPAddr{IP: to.Addr[:], Port: to.Port})
	for begin := time.Now(); time.Since(begin) < streamFor; {
		if err := s.wait(uint64(len(batch))); err != nil {
			return err
		}
		k, err := conn.WriteBatch(batch, 0)
		if err != nil {
			return err
		}
		s.sent += uint64(k)
	}
	_, err = f.WriteTo(make([]byte, endBytes), batch[0].Addr)
	return err
}

// wait waits until n more datagrams fit the window.
func (s *udpSender) wait(n uint64) error {
	var b [8]byte
	for s.sent+n-s.acked > s.window {
		if err := s.receive(b[:]); err != nil {
			return fmt.Errorf("%d of %d datagrams are acknowledged: %w", s.acked, s.sent, err)
		}
		s.acked = binary.LittleEndian.Uint64(b[:])
	}
	return nil
}

func newBatch(size int, to net.Addr) []ipv4.Message {
	batch := make([]ipv4.Message, udpBatch)
	for i := range batch {
		batch[i] = ipv4.Message{Buffers: [][]byte{make([]byte, size)}, Addr: to}
	}
	return batch
}

// The ping-pong polls, as we do, with system calls that Go's scheduler does not see.
// Argument: "spin" or "block".

func udpPingPongServer(control net.Conn, args []string) error {
	p, err := newPing(control, args)
	if err != nil {
		return err
	}
	if _, err := control.Write([]byte{0}); err != nil {
		return err
	}
	for {
		n, err := p.receive()
		if err != nil || n == endBytes {
			return err
		}
		if err := p.send(pingBytes); err != nil {
			return err
		}
	}
}

func udpPingPongClient(control net.Conn, args []string) (report roleReport, err error) {
	p, err := newPing(control, args)
	if err != nil {
		return report, err
	}
	if _, err := control.Read(make([]byte, 1)); err != nil {
		return report, err
	}
	report, err = pingPong(func() error {
		if err := p.send(pingBytes); err != nil {
			return err
		}
		_, err := p.receive()
		return err
	})
	if err != nil {
		return report, err
	}
	return report, p.send(endBytes)
}

type ping struct {
	fd    uintptr
	flags uintptr
	peer  unix.RawSockaddrInet4
	b     [64]byte
}

func newPing(control net.Conn, args []string) (*ping, error) {
	fd, err := udpSocket(netip.AddrPortFrom(addrOf(control.LocalAddr()), udpPort))
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	p := &ping{fd: uintptr(fd), peer: unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: addrOf(control.RemoteAddr()).As4()}}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&p.peer.Port))[:], udpPort)
	if args[0] == "spin" {
		p.flags = unix.MSG_DONTWAIT
	}
	return p, nil
}

func (p *ping) send(n uintptr) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, p.fd, uintptr(unsafe.Pointer(&p.b)), n, 0, uintptr(unsafe.Pointer(&p.peer)), unix.SizeofSockaddrInet4)
	if errno != 0 {
		return errno
	}
	return nil
}

// receive gives up after two seconds.
func (p *ping) receive() (n uintptr, err error) {
	for tries := 0; ; tries++ {
		var from unix.RawSockaddrInet4
		length := uint32(unix.SizeofSockaddrInet4)
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, p.fd, uintptr(unsafe.Pointer(&p.b)), uintptr(len(p.b)), p.flags, uintptr(unsafe.Pointer(&from)), uintptr(unsafe.Pointer(&length)))
		switch {
		case errno == 0:
			return n, nil
		case errno == unix.EAGAIN && p.flags == 0, tries > 50_000_000:
			return 0, errors.New("a datagram is lost")
		case errno != unix.EAGAIN && errno != unix.EINTR:
			return 0, errno
		}
	}
}

// packetConn makes what package net knows of a socket, which it takes.
func packetConn(fd int) (net.PacketConn, error) {
	f := os.NewFile(uintptr(fd), "udp")
	defer f.Close()
	conn, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetReadDeadline(time.Now().Add(10 * time.Second))
}
