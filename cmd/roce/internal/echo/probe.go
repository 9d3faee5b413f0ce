package echo

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
)

// Prober sends probes to a host and collects answers.
type Prober struct {
	b     netio.Backend
	dst   netip.AddrPort
	flow  ib.Flow
	start time.Time
	wait  time.Duration
	next  uint16
	nonce uint64
}

// NewProber returns a Prober that uses the backend alone. A probe without an answer
// is sent three times in the time wait.
func NewProber(b netio.Backend, dst netip.AddrPort, wait time.Duration) *Prober {
	var nonce [8]byte
	rand.Read(nonce[:])
	return &Prober{b: b, dst: dst, flow: ib.NewFlow(b.LocalAddr(), dst), start: time.Now(), wait: wait, nonce: binary.BigEndian.Uint64(nonce[:])}
}

// Probe sends count probes of size bytes, as one run if the backend can, and returns
// what the host saw of them, in their order: nil for those without an answer.
func (p *Prober) Probe(ctx context.Context, size, count int, tos uint8) []*Seen {
	got := make([]*Seen, count)
	first := p.next
	p.next += uint16(count)
	for range 3 {
		p.send(size, count, first, tos)
		if p.collect(ctx, got, first, time.Now().Add(p.wait/3)) || ctx.Err() != nil {
			break
		}
	}
	return got
}

func (p *Prober) send(size, count int, first uint16, tos uint8) {
	run := netio.Run{Dst: p.dst, TOS: tos, SegSize: size, Buf: make([]byte, size*count)}
	if caps := p.b.Caps(); count > caps.MaxSegments || len(run.Buf) > caps.MaxRun {
		run.SegSize, run.Buf = 0, run.Buf[:size]
		for i := range count {
			Put(run.Buf, p.nonce, first+uint16(i), p.flow, 0)
			p.b.Send(time.Since(p.start), []netio.Run{run})
		}
		return
	}
	for i := range count {
		Put(run.Segment(i), p.nonce, first+uint16(i), p.flow, uint16(i))
	}
	p.b.Send(time.Since(p.start), []netio.Run{run}) // or it is lost, and repeated
}

// collect takes answers until all are there or the time is over.
func (p *Prober) collect(ctx context.Context, got []*Seen, first uint16, until time.Time) bool {
	var in [16]netio.Received
	for {
		n, err := p.b.Recv(time.Since(p.start), in[:])
		if err != nil {
			return false
		}
		for i := range n {
			for k := range in[i].Segments() {
				s, ok := Answer(in[i].Segment(k), p.nonce)
				if at := int(s.Number - first); ok && at >= 0 && at < len(got) && got[at] == nil {
					got[at] = &s
				}
			}
		}
		missing := 0
		for _, s := range got {
			if s == nil {
				missing++
			}
		}
		left := time.Until(until)
		if missing == 0 || left <= 0 || ctx.Err() != nil {
			return missing == 0
		}
		if n == 0 {
			p.b.Wait(min(left, 50*time.Millisecond), false)
		}
	}
}
