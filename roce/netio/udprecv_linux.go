package netio

import (
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// receiver is the receiving half of a udp: as many buffers as one recvmmsg may
// fill. How many it offers follows what arrives: few where GRO brings tens of
// kilobytes at once, so that they stay in the cache, many where packets come
// singly, one when nothing was there last time: a second one is looked for after
// the first, which costs its time, but little of that of large ones.
type receiver struct {
	hdr   []mmsghdr
	iov   []unix.Iovec
	name  []sockaddr
	oob   []control
	buf   [][]byte
	first int // batch after a call in vain
	batch int
	socks []rxSocket // the backend's own, then those of groups
	turn  int        // which is read first
}

// rxSocket is a socket to receive from.
type rxSocket struct {
	fd       int
	addr     netip.AddrPort // where its packets are sent to
	overflow uint32         // the kernel's count of dropped datagrams, as last seen
}

const largeDatagram = 8 << 10

func (r *receiver) init(u *udp) {
	n, size := recvBatch, maxPacket
	if u.gro {
		n, size = groBatch, 1<<16
	}
	r.hdr = make([]mmsghdr, n)
	r.iov = make([]unix.Iovec, n)
	r.name = make([]sockaddr, n)
	r.oob = make([]control, n)
	r.buf = make([][]byte, n)
	mem := make([]byte, n*size)
	for i := range n {
		r.buf[i] = mem[i*size : (i+1)*size : (i+1)*size]
		r.iov[i].Base = &r.buf[i][0]
		r.iov[i].SetLen(size)
		h := &r.hdr[i].Hdr
		h.Iov = &r.iov[i]
		h.SetIovlen(1)
		h.Name = (*byte)(unsafe.Pointer(&r.name[i]))
		h.Control = (*byte)(unsafe.Pointer(&r.oob[i]))
	}
	r.first, r.batch = 1, 1
	r.socks = []rxSocket{{fd: u.fd, addr: u.local}}
}

func (u *udp) Recv(_ time.Duration, dst []Received) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.fd < 0 {
		return 0, errClosed(u.local)
	}
	if u.sockErr.Load() && u.sockErr.Swap(false) {
		u.drainErrors(u.fd)
	}
	r := &u.rx
	want := min(len(dst), r.batch)
	if want == 0 {
		return 0, nil
	}
	// Sockets take turns, so that none starves; one call reads one socket.
	n := 0
	var s *rxSocket
	for range r.socks {
		r.turn = (r.turn + 1) % len(r.socks)
		s = &r.socks[r.turn]
		if n = u.receive(s.fd, want); n > 0 {
			break
		}
	}
	if n == 0 {
		r.batch = r.first
		return 0, nil
	}
	wireReceive()
	u.c.add(RxCalls, 1)
	k, packets, bytes := 0, 0, 0
	for i := range n {
		d := &dst[k]
		if !u.take(s, i, d) {
			continue
		}
		k++
		packets += d.Segments()
		bytes += len(d.Buf)
	}
	u.c.add(RxPackets, packets)
	u.c.add(RxBytes, bytes)
	r.adapt(n, want, bytes)
	return k, nil
}

// receive reads up to want datagrams and returns how many there were. Errors are
// those of packets sent earlier: reading collects one at a time.
func (u *udp) receive(fd, want int) int {
	r := &u.rx
	for range 16 {
		for i := range want {
			r.hdr[i].Hdr.Namelen = uint32(unsafe.Sizeof(sockaddr{}))
			r.hdr[i].Hdr.SetControllen(int(unsafe.Sizeof(control{})))
		}
		n, errno := u.recvmmsg(fd, r.hdr[:want])
		switch errno {
		case 0:
			return n
		case unix.EAGAIN:
			return 0
		case unix.EINTR:
		default:
			if !u.drainErrors(fd) {
				u.c.add(RxError, 1)
			}
		}
	}
	return 0
}

// take describes datagram i, or drops one that cannot be used.
func (u *udp) take(s *rxSocket, i int, d *Received) bool {
	h := &u.rx.hdr[i]
	a := u.rx.oob[i].parse(int(h.Hdr.Controllen))
	if a.hasOvfl && a.overflow != s.overflow {
		u.c.add(RxOverflow, int(a.overflow-s.overflow)) // modulo 2^32
		s.overflow = a.overflow
	}
	if h.Hdr.Flags&unix.MSG_TRUNC != 0 || int(h.Len) > len(u.rx.buf[i]) {
		u.c.add(RxTruncated, 1)
		return false
	}
	if a.segSize >= int(h.Len) || a.segSize < 0 {
		a.segSize = 0
	}
	*d = Received{
		Src: u.rx.name[i].get(h.Hdr.Namelen), Dst: s.addr, TOS: a.tos,
		SegSize: a.segSize, Buf: u.rx.buf[i][:h.Len:h.Len],
	}
	return true
}

// adapt chooses the size of the next batch from n datagrams of want that came.
func (r *receiver) adapt(n, want, bytes int) {
	if bytes > n*largeDatagram {
		r.first, r.batch = 2, 2
		return
	}
	r.first = 1
	if n == want && n == r.batch {
		r.batch = min(2*r.batch, len(r.hdr))
	}
}
