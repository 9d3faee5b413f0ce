package perftest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/goroce/goroce/ib"
)

// Dest is where a queue pair and its buffer are. On RoCE the LID is 0 and the GID
// an IP address.
type Dest struct {
	LID      uint16
	OutReads uint16 // READs and atomics that may be under way
	QPN      ib.QPN
	PSN      ib.PSN // of its first request
	RKey     uint32
	VAddr    uint64
	GID      ib.GID
	SRQN     uint32
}

// destLen is the length of a record: hex numbers of fixed width, each of the
// GID's bytes for itself, separated and ended by ":", and a zero byte. (Without a
// GID, on InfiniBand, there is a shorter one.)
const destLen = 4 + 1 + 4 + 1 + 6 + 1 + 6 + 1 + 8 + 1 + 16 + 1 + 16*3 + 8 + 1 + 1

// append appends the record to b.
func (d Dest) append(b []byte) []byte {
	b = fmt.Appendf(b, "%04x:%04x:%06x:%06x:%08x:%016x:", d.LID, d.OutReads, uint32(d.QPN), uint32(d.PSN), d.RKey, d.VAddr)
	for _, v := range d.GID {
		b = fmt.Appendf(b, "%02x:", v)
	}
	return append(fmt.Appendf(b, "%08x:", d.SRQN), 0)
}

// ParseDest reads a record; everything from a zero byte on is ignored.
func ParseDest(record []byte) (Dest, error) {
	text, _, _ := bytes.Cut(record, []byte{0})
	f := strings.Split(string(text), ":")
	if len(f) != 6+16+2 || f[len(f)-1] != "" {
		return Dest{}, notADest(text)
	}
	bad := false
	number := func(i, bits int) uint64 {
		v, err := strconv.ParseUint(f[i], 16, bits)
		bad = bad || err != nil
		return v
	}
	d := Dest{
		LID: uint16(number(0, 16)), OutReads: uint16(number(1, 16)),
		QPN: ib.QPN(number(2, 24)), PSN: ib.PSN(number(3, 24)),
		RKey: uint32(number(4, 32)), VAddr: number(5, 64),
		SRQN: uint32(number(6+16, 32)),
	}
	for i := range d.GID {
		d.GID[i] = byte(number(6+i, 8))
	}
	if bad {
		return Dest{}, notADest(text)
	}
	return d, nil
}

// binaryLen is the length of a record over a queue pair: struct pingpong_dest of
// perftest_resources.h with numbers in network byte order. At its end is the index of
// the GID, which means nothing to others.
const binaryLen = 56

// appendBinary appends the record of that form to b.
func (d Dest) appendBinary(b []byte) []byte {
	for _, v := range [...]uint32{uint32(d.LID), uint32(d.OutReads), uint32(d.QPN), uint32(d.PSN), d.RKey, 0} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	b = binary.BigEndian.AppendUint64(b, d.VAddr)
	b = append(b, d.GID[:]...)
	b = binary.BigEndian.AppendUint32(b, d.SRQN)
	return append(b, 0, 0, 0, 0)
}

// parseBinary reads a record of that form. What is between the fields and behind them
// may be anything.
func parseBinary(b []byte) (Dest, error) {
	if len(b) != binaryLen {
		return Dest{}, notADest(b)
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(b[i:]) }
	if word(0) > math.MaxUint16 || word(4) > math.MaxUint16 || word(8) >= 1<<24 || word(12) >= 1<<24 {
		return Dest{}, notADest(b)
	}
	return Dest{
		LID: uint16(word(0)), OutReads: uint16(word(4)), QPN: ib.QPN(word(8)), PSN: ib.PSN(word(12)), RKey: word(16),
		VAddr: binary.BigEndian.Uint64(b[24:]), GID: ib.GID(b[32:48]), SRQN: word(48),
	}, nil
}

func notADest(text []byte) error {
	return fmt.Errorf("the peer sent %q, which is not an address record of perftest: does its device have a GID, the same test and the same -q?", text)
}

// Report is the result of a bandwidth test. Rates are in the unit that the peer
// prints: MiB/s, or Gbit/s with --report_gbits.
type Report struct {
	Size    uint64 // bytes of a message
	Iters   uint64 // messages
	Peak    float64
	Average float64
	Rate    float64 // millions of messages per second
}

const reportWords = 5

func (r Report) words() [reportWords]uint64 {
	return [...]uint64{r.Size, r.Iters, math.Float64bits(r.Peak), math.Float64bits(r.Average), math.Float64bits(r.Rate)}
}

func (r *Report) setWords(w [reportWords]uint64) {
	*r = Report{w[0], w[1], math.Float64frombits(w[2]), math.Float64frombits(w[3]), math.Float64frombits(w[4])}
}
