package network

// RED marks packets by the bytes that wait before them (RED on ECN, as switches do for
// DCQCN): none up to Kmin, all above Kmax, and between them a share that grows from 0 to
// Pmax. Kmax 0 marks nothing.
type RED struct {
	Kmin, Kmax int
	Pmax       float64
}

// Marks says whether a packet is marked that finds so many bytes. A random number from 0
// to 1, without 1, is drawn when it takes one.
func (r *RED) Marks(backlog int, draw func() float64) bool {
	switch {
	case r.Kmax == 0 || backlog <= r.Kmin:
		return false
	case backlog > r.Kmax:
		return true
	}
	return draw()*float64(r.Kmax-r.Kmin) < r.Pmax*float64(backlog-r.Kmin)
}
