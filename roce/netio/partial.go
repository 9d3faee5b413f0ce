package netio

import "unsafe"

// partialRun remembers a run that is sent packet by packet and had to stop in the
// middle, so that no packet of it is sent twice.
type partialRun struct {
	buf  uintptr // where it is; kept for comparison only
	size int
	sent int // packets gone
}

// stop notes that the first sent packets of a run are gone.
func (p *partialRun) stop(r *Run, sent int) {
	*p = partialRun{uintptr(unsafe.Pointer(unsafe.SliceData(r.Buf))), len(r.Buf), sent}
}

// is reports whether r is the run that stopped.
func (p *partialRun) is(r *Run) bool {
	return p.size != 0 && p.size == len(r.Buf) && p.buf == uintptr(unsafe.Pointer(unsafe.SliceData(r.Buf)))
}

// resume returns the first packet of r that is not gone, and forgets it.
func (p *partialRun) resume(r *Run) (from int) {
	if p.is(r) {
		from = p.sent
	}
	*p = partialRun{}
	return from
}
