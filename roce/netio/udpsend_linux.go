package netio

import (
	"net/netip"
	"time"
	"unsafe"

	"github.com/goroce/goroce/ib"
	"golang.org/x/sys/unix"
)

// sender is the sending half of a udp.
type sender struct {
	hdr  [sendBatch]mmsghdr
	iov  [sendBatch]unix.Iovec
	name [sendBatch]sockaddr
	oob  [sendBatch]control

	ports portSet[int]

	part partialRun
}

// Places of the control messages: the segment size before the TOS, so that each
// can be left out.
var (
	oobSegment = 0
	oobTOS     = cmsgSlot
)

func (s *sender) init(u *udp) {
	s.ports.open, s.ports.close = u.openPort, unix.Close
	for i := range s.hdr {
		h := &s.hdr[i].Hdr
		h.Iov = &s.iov[i]
		h.SetIovlen(1)
		h.Name = (*byte)(unsafe.Pointer(&s.name[i]))
		// The lengths and types stay; only the values change from run to run.
		s.oob[i].put(oobSegment, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0, 2)
		if u.local.Addr().Is4() {
			s.oob[i].put(oobTOS, unix.IPPROTO_IP, unix.IP_TOS, 0, 4)
		} else {
			s.oob[i].put(oobTOS, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 0, 4)
		}
	}
}

// fill makes message i of a run or of one packet of it.
func (s *sender) fill(i int, r *Run, b []byte, segSize int, scope uint32) {
	h := &s.hdr[i].Hdr
	h.Namelen = s.name[i].set(r.Dst, scope)
	s.iov[i].Base = unsafe.SliceData(b)
	s.iov[i].SetLen(len(b))
	oob := unsafe.Pointer(&s.oob[i])
	*(*uint16)(unsafe.Add(oob, oobSegment+cmsgHead)) = uint16(segSize)
	*(*int32)(unsafe.Add(oob, oobTOS+cmsgHead)) = int32(r.TOS)
	from, to := 0, cmsgSlot
	if segSize == 0 {
		from = oobTOS
	}
	if r.TOS != 0 {
		to = oobTOS + cmsgSlot
	}
	if from >= to {
		h.Control = nil
		h.SetControllen(0)
		return
	}
	h.Control = (*byte)(unsafe.Add(oob, from))
	h.SetControllen(to - from)
}

// verdict is what became of a run that the kernel did not take.
type verdict uint8

const (
	again   verdict = iota // try once more
	blocked                // keep it
	lost                   // counted as lost
	singly                 // send packet by packet
)

func (u *udp) Send(now time.Duration, runs []Run) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.fd < 0 {
		return 0, errClosed(u.local)
	}
	defer u.tx.forget()
	if len(runs) > 0 && !u.tx.part.is(&runs[0]) {
		u.tx.part = partialRun{}
	}
	wireSend()
	tries := 0
	for done := 0; done < len(runs); {
		r := &runs[done]
		fd, own := u.socketFor(now, r)
		n := u.prepare(runs[done:], own)
		if n == 0 || u.tx.part.is(r) {
			if v, _ := u.sendSingly(fd, r); v == blocked {
				return done, ErrWouldBlock
			}
			done++
			continue
		}
		sent, errno := u.sendmmsg(fd, u.tx.hdr[:n])
		if errno == 0 && sent > 0 {
			u.countSent(runs[done : done+sent])
			done += sent
			tries = 0
			continue
		}
		tries++
		switch u.judge(fd, errno, r.Segments(), tries) {
		case blocked:
			return done, ErrWouldBlock
		case lost:
			done++
			tries = 0
		case singly:
			if u.fallBack(fd, r, errno) == blocked {
				return done, ErrWouldBlock
			}
			done++
			tries = 0
		}
	}
	if u.noBufs.Load() {
		u.noBufs.Store(false)
	}
	return len(runs), nil
}

// prepare fills messages with the first runs that can go in one call: all by the
// same socket as the first and each in one piece. It returns how many; 0 when the
// first run has to go packet by packet.
func (u *udp) prepare(runs []Run, own bool) (n int) {
	for n < min(len(runs), sendBatch) {
		r := &runs[n]
		k := r.Segments()
		if r.SrcPort != runs[0].SrcPort || k > 1 && !u.gso || k > gsoSegments || len(r.Buf) == 0 {
			break
		}
		if !own {
			u.resealRun(r)
		}
		seg := 0
		if k > 1 {
			seg = r.SegSize
		}
		u.tx.fill(n, r, r.Buf, seg, u.scope)
		n++
	}
	return n
}

// forget drops the references to the caller's buffers.
func (s *sender) forget() {
	for i := range s.iov {
		if s.iov[i].Base == nil {
			return
		}
		s.iov[i].Base = nil
	}
}

// judge decides about a run of k packets that the kernel refused with errno for
// the tries-th time.
func (u *udp) judge(fd int, errno unix.Errno, k, tries int) verdict {
	switch errno {
	case unix.EINTR:
		return again
	case unix.EAGAIN:
		// A socket for another port is not watched: look again in a moment.
		u.noBufs.Store(fd != u.fd)
		u.c.add(TxWouldBlock, 1)
		return blocked
	case unix.ENOBUFS, unix.ENOMEM:
		u.noBufs.Store(true)
		u.c.add(TxWouldBlock, 1)
		u.c.add(TxNoBufs, 1)
		return blocked
	case unix.EPERM:
		u.c.add(TxRefused, k)
		return lost
	}
	// The kernel also reports here what became of packets sent earlier, one
	// error at a time, and then has not looked at this run.
	if pending := u.drainErrors(fd); tries == 1 || pending && tries < 8 {
		return again
	}
	if k > 1 && (errno == unix.EIO || errno == unix.EMSGSIZE || errno == unix.EINVAL) {
		return singly
	}
	switch errno {
	case unix.EACCES:
		u.c.add(TxRefused, k)
	case unix.EMSGSIZE:
		u.c.add(TxTooBig, k)
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EHOSTDOWN, unix.ECONNREFUSED, unix.EADDRNOTAVAIL:
		u.c.add(TxUnreachable, k)
	default:
		u.c.add(TxError, k)
	}
	return lost
}

// fallBack sends packet by packet a run that the kernel refused to segment. When
// the first packet can go alone, segmentation was at fault and is not used again;
// EMSGSIZE for that one too means that it is too big for the interface.
func (u *udp) fallBack(fd int, r *Run, errno unix.Errno) verdict {
	v, first := u.sendSingly(fd, r)
	if errno == unix.EIO || first {
		u.setGSO(false)
		u.c.add(GSOOff, 1)
	}
	return v
}

// sendSingly sends each packet of a run by itself, sealed for the Identification
// 0. When it has to stop (blocked), the next Send goes on from there if it is
// offered the same run first. It reports whether the first packet is gone to the
// network.
func (u *udp) sendSingly(fd int, r *Run) (v verdict, first bool) {
	flow := ib.NewFlow(u.source(fd, r), r.Dst)
	sent, bytes := 0, 0
	for i := u.tx.part.resume(r); i < r.Segments(); i++ {
		b := r.Segment(i)
		if i > 0 || r.SrcPort != 0 {
			u.reseal(&flow, 0, b)
		}
		if v = u.sendOne(fd, r, b); v == blocked {
			u.tx.part.stop(r, i)
			break
		}
		if v != lost {
			sent++
			bytes += len(b)
			first = first || i == 0
		}
	}
	u.c.add(TxPackets, sent)
	u.c.add(TxBytes, bytes)
	if v != blocked {
		u.c.add(TxRuns, 1)
	}
	return v, first
}

// sendOne sends one packet: again means that it is gone.
func (u *udp) sendOne(fd int, r *Run, b []byte) verdict {
	for tries := 1; ; tries++ {
		u.tx.fill(0, r, b, 0, u.scope)
		n, errno := u.sendmmsg(fd, u.tx.hdr[:1])
		if errno == 0 && n == 1 {
			u.c.add(TxCalls, 1)
			return again
		}
		if v := u.judge(fd, errno, 1, tries); v != again {
			return v
		}
	}
}

// resealRun seals a run for the own port, because its source port cannot be had.
func (u *udp) resealRun(r *Run) {
	flow := r.Flow(u.local)
	for i := range r.Segments() {
		u.reseal(&flow, uint16(i), r.Segment(i))
	}
	u.c.add(TxPortFailed, r.Segments())
}

func (u *udp) reseal(flow *ib.Flow, id uint16, b []byte) {
	if len(b) >= ib.BTHSize+ib.ICRCSize {
		flow.Seal(id, b)
		u.c.add(TxResealed, 1)
	}
}

func (u *udp) countSent(runs []Run) {
	packets, bytes := 0, 0
	for i := range runs {
		packets += runs[i].Segments()
		bytes += len(runs[i].Buf)
	}
	u.c.add(TxCalls, 1)
	u.c.add(TxRuns, len(runs))
	u.c.add(TxPackets, packets)
	u.c.add(TxBytes, bytes)
}

// socketFor returns the socket that sends from the run's source port. When the
// port cannot be had, the own socket sends: own is false, and the packets have to
// be sealed anew.
func (u *udp) socketFor(now time.Duration, r *Run) (fd int, own bool) {
	if r.SrcPort == 0 || r.SrcPort == u.local.Port() {
		return u.fd, true
	}
	if fd, own = u.tx.ports.get(now, r.SrcPort); !own {
		return u.fd, false
	}
	return fd, true
}

// openPort opens a socket that only sends, from another port of the address.
func (u *udp) openPort(port uint16) (fd int, err error) {
	if fd, err = u.socket(port); err != nil {
		return -1, err
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0) // nobody reads it
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, u.cfg.SendBuffer)
	return fd, nil
}

// source is the address that packets of a run come from when fd sends them.
func (u *udp) source(fd int, r *Run) netip.AddrPort {
	if fd == u.fd || r.SrcPort == 0 {
		return u.local
	}
	return netip.AddrPortFrom(u.local.Addr(), r.SrcPort)
}
