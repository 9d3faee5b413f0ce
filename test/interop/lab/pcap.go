package lab

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"
)

// pcapWriter writes the classic pcap format with nanosecond time stamps and Ethernet frames.
type pcapWriter struct {
	f *os.File
	w *bufio.Writer
}

const (
	pcapMagicNano  = 0xa1b23c4d
	pcapMagicMicro = 0xa1b2c3d4
	linkEthernet   = 1
)

func createPcap(path string) (*pcapWriter, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	p := &pcapWriter{f, bufio.NewWriterSize(f, 1<<20)}
	h := make([]byte, 24)
	binary.LittleEndian.PutUint32(h[0:], pcapMagicNano)
	binary.LittleEndian.PutUint16(h[4:], 2)
	binary.LittleEndian.PutUint16(h[6:], 4)
	binary.LittleEndian.PutUint32(h[16:], 1<<18)
	binary.LittleEndian.PutUint32(h[20:], linkEthernet)
	p.w.Write(h)
	return p, nil
}

// write appends one frame. wireLen is its length on the wire, which is more than len(frame) when it was cut.
func (p *pcapWriter) write(at time.Time, frame []byte, wireLen int) {
	var h [16]byte
	binary.LittleEndian.PutUint32(h[0:], uint32(at.Unix()))
	binary.LittleEndian.PutUint32(h[4:], uint32(at.Nanosecond()))
	binary.LittleEndian.PutUint32(h[8:], uint32(len(frame)))
	binary.LittleEndian.PutUint32(h[12:], uint32(wireLen))
	p.w.Write(h[:])
	p.w.Write(frame)
}

// close writes out what is buffered; bufio remembers the first error of all writes.
func (p *pcapWriter) close() error {
	err := p.w.Flush()
	if cerr := p.f.Close(); err == nil {
		err = cerr
	}
	return err
}

// Datagram is a UDP datagram to port 4791 in a capture.
type Datagram struct {
	Number   int // of the frame in the file, from 1
	At       time.Time
	Src, Dst netip.AddrPort
	ID       uint16 // IPv4 Identification
	Payload  []byte // BTH to ICRC; valid until the next call
	Err      string // why the frame is not a whole, unfragmented datagram of the form that the ICRC covers; else ""
}

const rocePort = 4791

// ReadRoCE calls f for each RoCEv2 datagram in a little-endian pcap file of Ethernet frames, as pcapWriter and tcpdump write them, in order, until f returns an error.
func ReadRoCE(path string, f func(d *Datagram) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	r := bufio.NewReaderSize(file, 1<<20)
	var h [24]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	unit := int64(1) // of the second half of a time stamp, in nanoseconds
	switch binary.LittleEndian.Uint32(h[:]) {
	case pcapMagicNano:
	case pcapMagicMicro:
		unit = 1000
	default:
		return fmt.Errorf("%s: not a little-endian pcap file", path)
	}
	var frame []byte
	for n := 1; ; n++ {
		if _, err := io.ReadFull(r, h[:16]); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: frame %d: %w", path, n, err)
		}
		size := int(binary.LittleEndian.Uint32(h[8:]))
		if size > 1<<20 {
			return fmt.Errorf("%s: frame %d has %d bytes", path, n, size)
		}
		if cap(frame) < size {
			frame = make([]byte, size)
		}
		frame = frame[:size]
		if _, err := io.ReadFull(r, frame); err != nil {
			return fmt.Errorf("%s: frame %d: %w", path, n, err)
		}
		d, ok := parseRoCE(frame)
		if !ok {
			continue
		}
		d.Number = n
		d.At = time.Unix(int64(binary.LittleEndian.Uint32(h[0:])), unit*int64(binary.LittleEndian.Uint32(h[4:])))
		if wire := int(binary.LittleEndian.Uint32(h[12:])); wire != size {
			d.Err = fmt.Sprintf("cut to %d of %d bytes", size, wire)
		}
		if err := f(&d); err != nil {
			return err
		}
	}
}

// parseRoCE recognises UDP to port 4791 in an Ethernet frame, over IPv4 or IPv6 without extension headers.
func parseRoCE(b []byte) (Datagram, bool) {
	if len(b) < 14 {
		return Datagram{}, false
	}
	ip := b[14:]
	switch binary.BigEndian.Uint16(b[12:]) {
	case 0x0800:
		if len(ip) < 28 || ip[9] != 17 {
			return Datagram{}, false
		}
		ihl := int(ip[0]&15) * 4
		if ihl < 20 || len(ip) < ihl+8 {
			return Datagram{}, false
		}
		src, dst := netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		d, ok := udp(ip[ihl:], src, dst, int(binary.BigEndian.Uint16(ip[2:]))-ihl)
		d.ID = binary.BigEndian.Uint16(ip[4:])
		switch frag := binary.BigEndian.Uint16(ip[6:]); {
		case frag&0x3fff != 0:
			d.Err = "an IP fragment"
		case frag&0x4000 == 0:
			d.Err = "DF is not set"
		case ihl != 20:
			d.Err = "IP options"
		}
		return d, ok
	case 0x86dd:
		if len(ip) < 48 || ip[6] != 17 {
			return Datagram{}, false
		}
		return udp(ip[40:], netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:])), int(binary.BigEndian.Uint16(ip[4:])))
	}
	return Datagram{}, false
}

// udp reads a UDP header; length is what the IP header says that follows it, which may be less than a padded frame holds.
func udp(b []byte, src, dst netip.Addr, length int) (Datagram, bool) {
	if binary.BigEndian.Uint16(b[2:]) != rocePort {
		return Datagram{}, false
	}
	d := Datagram{Src: netip.AddrPortFrom(src, binary.BigEndian.Uint16(b)), Dst: netip.AddrPortFrom(dst, rocePort)}
	if n := int(binary.BigEndian.Uint16(b[4:])); n != length || n < 8 || n > len(b) {
		d.Err = fmt.Sprintf("UDP length %d, IP has %d, the frame %d", n, length, len(b))
		d.Payload = b[8:]
		return d, true
	}
	d.Payload = b[8:length]
	return d, true
}
