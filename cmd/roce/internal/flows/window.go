package flows

import "github.com/goroce/goroce/ib"

// windowSize is how many PSNs below the highest are remembered.
const windowSize = 4096

// window knows which PSNs of one direction have been seen.
type window struct {
	begun   bool
	resumed bool // the last packet asks for the rest of a READ
	lowest  ib.PSN
	highest ib.PSN
	seen    [windowSize / 64]uint64 // by PSN modulo windowSize
	missing int
	read    ib.RETH // of the highest packet, when that is a READ
}

// see notes a PSN. The packet is nil for a response.
func (w *window) see(psn ib.PSN, p *Packet) Notes {
	var read ib.RETH
	if p != nil && p.BTH.Opcode.Info().Op == ib.KindReadRequest {
		read = p.RETH
	}
	d := psn.Sub(w.highest)
	w.resumed = false
	switch {
	case !w.begun:
		w.begun, w.lowest = true, psn
	case d <= -windowSize:
		return Notes{Again: true}
	case d <= 0 && w.has(psn):
		return Notes{Again: true}
	case d <= 0:
		w.mark(psn, true)
		if psn.Before(w.lowest) { // of the time before the capture
			w.missing += w.lowest.Sub(psn) - 1
			w.lowest = psn
		} else {
			w.missing--
		}
		return Notes{Late: true}
	default:
		w.pass(d)
		w.resumed = w.read.Length > read.Length && read.Length > 0 && read.RKey == w.read.RKey &&
			read.VA+uint64(read.Length) == w.read.VA+uint64(w.read.Length)
	}
	w.highest, w.read = psn, read
	w.mark(psn, true)
	return Notes{Again: w.resumed}
}

// pass moves on over d PSNs. A READ has as many as it will have responses, so that
// none is missing behind one.
func (w *window) pass(d int) {
	wasRead := w.read.Length > 0
	if !wasRead {
		w.missing += d - 1
	}
	for i := max(1, d-windowSize); i < d; i++ {
		w.mark(w.highest.Add(i), wasRead)
	}
}

func (w *window) has(psn ib.PSN) bool {
	i := uint32(psn) % windowSize
	return w.seen[i/64]>>(i%64)&1 != 0
}

func (w *window) mark(psn ib.PSN, on bool) {
	i := uint32(psn) % windowSize
	w.seen[i/64] &^= 1 << (i % 64)
	if on {
		w.seen[i/64] |= 1 << (i % 64)
	}
}
