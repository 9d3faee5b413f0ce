// Package capture reads packets from capture files and from interfaces, and takes
// apart those that the kernel has put together, so that each is as it is on the
// wire.
package capture

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Frame is a packet as it was captured.
type Frame struct {
	Data    []byte // of its own
	Link    layers.LinkType
	At      time.Time
	Len     int // bytes on the wire, of which Data may be a part
	Segment int // bytes of each UDP payload when this is several packets, 0 if not known
}

// Source is where frames come from. Next returns io.EOF at the end.
type Source interface {
	Next() (Frame, error)
	Close() error
}

// Types of the first block of a pcapng file and of gzip; all else is pcap.
const (
	magicSection = 0x0a0d0d0a
	magicGzip    = 0x8b1f
)

// Read reads a capture file in the format pcap or pcapng, also gzipped. Closing
// the source leaves r open.
func Read(r io.Reader) (Source, error) {
	b := bufio.NewReaderSize(r, 1<<20)
	head, err := b.Peek(4)
	if err != nil {
		return nil, errors.New("not a capture: it has less than 4 bytes")
	}
	if binary.LittleEndian.Uint16(head) == magicGzip {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, err
		}
		b = bufio.NewReaderSize(z, 1<<20)
		if head, err = b.Peek(4); err != nil {
			return nil, fmt.Errorf("not a capture: %w", err)
		}
	}
	if binary.LittleEndian.Uint32(head) == magicSection {
		ng, err := pcapgo.NewNgReader(b, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
		if err != nil {
			return nil, fmt.Errorf("not a pcapng file: %w", err)
		}
		return &file{data: ng.ReadPacketData}, nil
	}
	p, err := pcapgo.NewReader(b)
	if err != nil {
		return nil, fmt.Errorf("neither a pcap nor a pcapng file: %w", err)
	}
	return &file{data: p.ReadPacketData, link: p.LinkType}, nil
}

type file struct {
	data func() ([]byte, gopacket.CaptureInfo, error)
	link func() layers.LinkType // nil: each packet says it
}

func (f *file) Next() (Frame, error) {
	data, info, err := f.data()
	if err != nil {
		return Frame{}, err
	}
	fr := Frame{Data: data, At: info.Timestamp, Len: info.Length}
	if f.link != nil {
		fr.Link = f.link()
	} else if link, ok := info.AncillaryData[0].(layers.LinkType); ok {
		fr.Link = link
	}
	return fr, nil
}

func (f *file) Close() error { return nil }
