package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/goroce/goroce/roce/rnet"
)

// Commands of rcopy. The answer has respond set.
const (
	cmdOpen  = 1
	cmdClose = 2
	cmdWrite = 3
	respond  = 0x80
)

const headerSize = 16

// header begins each message of rcopy. Its byte order is that of the host, and both are little-endian.
type header struct {
	command byte
	length  uint16 // with what follows, but the contents of the file
	data    uint32 // mode of the file, or status
}

func (h header) bytes() []byte {
	b := []byte{0, h.command}
	b = binary.LittleEndian.AppendUint16(b, h.length)
	b = binary.LittleEndian.AppendUint32(b, h.data)
	return binary.LittleEndian.AppendUint64(b, 0)
}

// receive reads a message with what follows.
func receive(c *rnet.Conn) (h header, rest []byte, err error) {
	var b [headerSize]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return h, nil, err
	}
	h = header{command: b[1], length: binary.LittleEndian.Uint16(b[2:]), data: binary.LittleEndian.Uint32(b[4:])}
	if b[0] != 0 || h.length < headerSize {
		return h, nil, fmt.Errorf("message of version %d and %d bytes", b[0], h.length)
	}
	rest = make([]byte, h.length-headerSize)
	_, err = io.ReadFull(c, rest)
	return h, rest, err
}

func copyFile(o options) error {
	c, err := connect(o)
	if err != nil {
		return err
	}
	if o.to != "" {
		err = sendFile(c, o)
	} else {
		err = storeFile(c, o)
	}
	if err != nil {
		return err
	}
	return c.Shutdown(context.Background())
}

func sendFile(c *rnet.Conn, o options) error {
	data, err := os.ReadFile(o.file)
	if err != nil {
		return err
	}
	path := append([]byte(o.target), make([]byte, 8-len(o.target)%8)...)
	size := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	const regular = syscall.S_IFREG | 0o644
	for _, m := range []struct {
		command      byte
		data         uint32
		rest, behind []byte
	}{{cmdOpen, regular, path, nil}, {cmdWrite, 0, size, data}, {cmdClose, 0, nil, nil}} {
		h := header{m.command, uint16(headerSize + len(m.rest)), m.data}
		if _, err := c.Write(append(h.bytes(), m.rest...)); err != nil {
			return err
		}
		if _, err := c.Write(m.behind); err != nil {
			return err
		}
		if got, _, err := receive(c); err != nil || got.command != m.command|respond || got.data != 0 {
			return fmt.Errorf("command %d is answered by %+v: %w", m.command, got, err)
		}
	}
	return nil
}

func storeFile(c *rnet.Conn, o options) error {
	for open := true; open; {
		h, rest, err := receive(c)
		if err != nil {
			return err
		}
		switch {
		case h.command == cmdOpen:
			fmt.Printf("opening %s\n", bytes.TrimRight(rest, "\x00"))
		case h.command == cmdWrite && len(rest) == 8:
			data := make([]byte, binary.LittleEndian.Uint64(rest))
			if _, err := io.ReadFull(c, data); err != nil {
				return err
			}
			if err := os.WriteFile(o.file, data, 0o644); err != nil {
				return err
			}
		case h.command == cmdClose:
			open = false
		default:
			return fmt.Errorf("command %d with %d bytes", h.command, len(rest))
		}
		if _, err := c.Write(header{h.command | respond, headerSize, 0}.bytes()); err != nil {
			return err
		}
	}
	return nil
}
