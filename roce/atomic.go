package roce

import (
	"errors"
	"fmt"

	"github.com/goroce/goroce/mem"
	"github.com/goroce/goroce/transport"
)

// Flush says what a request WRFlush is about (the arguments of ibv_wr_flush).
// The peer answers when all WRITEs before it, in the memory that it covers, are
// where Placement wants them.
type Flush struct {
	Placement Placement  // PlaceGlobal, PlacePersistent or both
	Level     FlushLevel // FlushRange, or FlushMR: the whole region of RKey
	Length    uint32     // bytes from RemoteAddr, with FlushRange
}

var (
	errWord         = errors.New("an atomic works on exactly 8 bytes")
	errAtomicInline = errors.New("an atomic has no payload to be inline")
	errFlushData    = errors.New("a FLUSH has no local memory")
)

// checkWord returns the field of an atomic, an ATOMIC_WRITE or a FLUSH that is
// wrong, and why; other requests are right. The alignment of the remote address
// is for the peer to judge.
func checkWord(wr *SendWR) (field string, err error) {
	switch wr.Opcode {
	case WRAtomicCmpSwp, WRAtomicFetAdd:
		if wr.Flags&Inline != 0 {
			return "Flags", errAtomicInline
		}
		return checkWordSGE(wr.SGE)
	case WRAtomicWrite:
		if wr.Flags&Inline == 0 {
			return checkWordSGE(wr.SGE)
		}
		if len(wr.Data) != mem.WordSize {
			return "Data", fmt.Errorf("%w, not %d", errWord, len(wr.Data))
		}
	case WRFlush:
		switch f := &wr.Flush; {
		case len(wr.SGE) > 0:
			return "SGE", errFlushData
		case wr.Data != nil || wr.Flags&Inline != 0:
			return "Data", errFlushData
		case f.Placement == 0 || f.Placement&^(PlaceGlobal|PlacePersistent) != 0:
			return "Flush.Placement", fmt.Errorf("%#x: allowed are PlaceGlobal, PlacePersistent or both", uint8(f.Placement))
		case f.Level > transport.FlushMR:
			return "Flush.Level", fmt.Errorf("%d: allowed are FlushRange and FlushMR", f.Level)
		}
	}
	return "", nil
}

func checkWordSGE(sges []SGE) (field string, err error) {
	sum := uint64(0)
	for i := range sges {
		sum += uint64(sges[i].Length)
	}
	if sum != mem.WordSize {
		return "SGE", fmt.Errorf("%w, not %d", errWord, sum)
	}
	return "", nil
}
