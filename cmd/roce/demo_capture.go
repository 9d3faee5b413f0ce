package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/goroce/goroce/cmd/roce/internal/pcapng"
	"github.com/goroce/goroce/ib"
)

// captureCheck is what a look at the capture file found.
type captureCheck struct {
	File    string `json:"file"`
	Packets int    `json:"packets"`
}

// checkCapture reads a capture file of ours back: each packet must be whole, known
// and have the right ICRC.
func checkCapture(name string) (*captureCheck, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c := &captureCheck{File: name}
	r := pcapng.NewReader(bufio.NewReaderSize(f, 1<<20))
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if p.Len != len(p.Data) {
			return nil, fmt.Errorf("packet %d is cut: %d of %d bytes", c.Packets+1, len(p.Data), p.Len)
		}
		if err := checkIP(p.Data); err != nil {
			return nil, fmt.Errorf("packet %d: %w", c.Packets+1, err)
		}
		c.Packets++
	}
	if c.Packets == 0 {
		return nil, errors.New("no packet in it")
	}
	return c, nil
}

// checkIP checks an IP packet that carries RoCEv2.
func checkIP(b []byte) error {
	if len(b) < 20 {
		return fmt.Errorf("%d bytes are no IP packet", len(b))
	}
	var (
		src, dst netip.Addr
		id       uint16
		header   int
		proto    byte
	)
	switch b[0] >> 4 {
	case 4:
		header, proto, id = 20, b[9], binary.BigEndian.Uint16(b[4:])
		src, _ = netip.AddrFromSlice(b[12:16])
		dst, _ = netip.AddrFromSlice(b[16:20])
	case 6:
		if len(b) < 40 {
			return fmt.Errorf("%d bytes are no IPv6 packet", len(b))
		}
		header, proto = 40, b[6]
		src, _ = netip.AddrFromSlice(b[8:24])
		dst, _ = netip.AddrFromSlice(b[24:40])
	default:
		return fmt.Errorf("IP version %d", b[0]>>4)
	}
	if proto != 17 || len(b) < header+8 {
		return errors.New("not UDP")
	}
	udp := b[header:]
	if n := int(binary.BigEndian.Uint16(udp[4:])); n != len(udp) {
		return fmt.Errorf("UDP length %d, %d bytes are there", n, len(udp))
	}
	payload := udp[8:]
	if _, why := ib.Parse(payload); why != ib.OK {
		return fmt.Errorf("malformed: %v", why)
	}
	port := func(off int) uint16 { return binary.BigEndian.Uint16(udp[off:]) }
	flow := ib.NewFlow(netip.AddrPortFrom(src, port(0)), netip.AddrPortFrom(dst, port(2)))
	if !flow.Verify(id, payload) {
		return errors.New("the ICRC is wrong")
	}
	return nil
}
