package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/goroce/goroce/cmd/roce/internal/capture"
)

// recorder is the end of a tap that keeps the first and the last packets.
type recorder struct {
	mu          sync.Mutex
	head        []byte   // what stands before the packets, and the first of them
	first, last [][]byte // blocks of the file
	left        int      // packets between them, forgotten
}

// How many packets are shown of what has failed.
const (
	excerptFirst = 30
	excerptLast  = 30
)

// blockEnhanced is the type of a pcapng block with a packet.
const blockEnhanced = 6

// Write takes blocks of a pcapng file, whole ones as netio.Tap writes them.
func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for rest := b; len(rest) >= 12; {
		n := int(binary.LittleEndian.Uint32(rest[4:]))
		if n < 12 || n > len(rest) {
			return 0, errors.New("not a block of a capture")
		}
		block := bytes.Clone(rest[:n])
		switch {
		case binary.LittleEndian.Uint32(block) != blockEnhanced:
			r.head = append(r.head, block...)
		case len(r.first) < excerptFirst:
			r.first = append(r.first, block)
		default:
			if r.last = append(r.last, block); len(r.last) > excerptLast {
				r.last = r.last[1:]
				r.left++
			}
		}
		rest = rest[n:]
	}
	return len(b), nil
}

// excerpt decodes what has been kept, as `roce dump` does. The tap is closed.
func (r *recorder) excerpt() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.decode(r.first)
	if r.left > 0 {
		lines = append(lines, "...")
	}
	return append(lines, r.decode(r.last)...)
}

func (r *recorder) decode(blocks [][]byte) (lines []string) {
	if len(blocks) == 0 {
		return nil
	}
	src, err := capture.Read(io.MultiReader(bytes.NewReader(r.head), bytes.NewReader(bytes.Join(blocks, nil))))
	if err != nil {
		return []string{err.Error()}
	}
	var text strings.Builder
	d := newDumper(&text, &dumpOptions{})
	if err := dumpSource(src, d); err != nil {
		return []string{err.Error()}
	}
	d.out.Flush()
	s := bufio.NewScanner(strings.NewReader(text.String()))
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	return lines
}
