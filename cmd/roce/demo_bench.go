package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/pattern"
	"github.com/goroce/goroce/roce"
)

// demoOps are the operations of the demo.
var demoOps = []struct {
	name   string
	opcode roce.WROpcode
}{
	{"SEND", roce.WRSend}, {"WRITE", roce.WRWrite}, {"READ", roce.WRRead},
}

// effort bounds how often one operation of one size is repeated.
type effort struct {
	budget time.Duration // for each of two parts: one at a time, many at a time
	most   int           // operations in the first part, rounds in the second; 0: no bound
	depth  int           // requests outstanding in the second part, at most
}

// cell is what was measured of one operation and size, both directions together.
type cell struct {
	ops     int
	bytes   int64         // moved and checked
	spent   time.Duration // moving them with many requests outstanding
	moved   int64         // bytes in that time
	latency []time.Duration
	retries uint64
}

// demoRun moves data over one rig and checks every byte.
type demoRun struct {
	*rig
	ctx  context.Context
	pass uint64 // makes the data of each pass different
}

// measure repeats one operation with one size in both directions.
func (r *demoRun) measure(op int, size int, e effort) (*cell, error) {
	c := &cell{}
	before := r.retries()
	for dir, ends := range [][2]*side{{r.a, r.b}, {r.b, r.a}} {
		t := &transfer{demoRun: r, op: op, size: size, dir: dir, from: ends[0], to: ends[1], cell: c, most: e.depth}
		if err := t.oneByOne(e); err != nil {
			return nil, err
		}
		if err := t.manyAtATime(e); err != nil {
			return nil, err
		}
	}
	c.retries = r.retries() - before
	slices.Sort(c.latency)
	return c, nil
}

// percentile returns the p-th percentile of the sorted latencies.
func (c *cell) percentile(p int) time.Duration {
	if len(c.latency) == 0 {
		return 0
	}
	return c.latency[min(len(c.latency)*p/100, len(c.latency)-1)]
}

// gbitPerSec returns the throughput in Gbit/s.
func (c *cell) gbitPerSec() float64 {
	if c.spent <= 0 {
		return 0
	}
	return float64(c.moved) * 8 / float64(c.spent.Nanoseconds())
}

// transfer is one operation and size in one direction: from posts the requests.
type transfer struct {
	*demoRun
	op, size, dir int
	from, to      *side
	most          int // requests outstanding
	cell          *cell
	count         uint64 // operations so far
	wrs           []roce.SendWR
	recvs         []roce.RecvWR
}

// oneByOne measures the time from post to completion.
func (t *transfer) oneByOne(e effort) error {
	for begin, n := time.Now(), 0; n == 0 || (time.Since(begin) < e.budget && (e.most == 0 || n < e.most)); n++ {
		took, err := t.round(1)
		if err != nil {
			return err
		}
		t.cell.latency = append(t.cell.latency, took)
		if t.depth() == 1 {
			t.cell.spent += took
			t.cell.moved += int64(t.size)
		}
	}
	return nil
}

// manyAtATime measures throughput, with as many requests outstanding as fit.
func (t *transfer) manyAtATime(e effort) error {
	if t.depth() == 1 {
		return nil
	}
	for begin, n := time.Now(), 0; n == 0 || (time.Since(begin) < e.budget && (e.most == 0 || n < e.most)); n++ {
		took, err := t.round(t.depth())
		if err != nil {
			return err
		}
		t.cell.spent += took
		t.cell.moved += int64(t.depth() * t.size)
	}
	return nil
}

// depth is how many requests of this size may be outstanding.
func (t *transfer) depth() int {
	return max(1, min(t.most, pipelined/max(t.size, 1)))
}

// round moves n messages at once, checks them and returns how long they were
// under way.
func (t *transfer) round(n int) (time.Duration, error) {
	source, target := t.from, t.to
	if demoOps[t.op].opcode == roce.WRRead {
		source, target = t.to, t.from
	}
	for i := range n {
		pattern.Fill(t.slot(source, i), t.key(i))
	}
	if err := t.postRecvs(n); err != nil {
		return 0, err
	}
	t.wrs = t.wrs[:0]
	for i := range n {
		t.wrs = append(t.wrs, t.request(i))
	}
	begin := time.Now()
	if err := t.from.qp.PostSend(t.wrs...); err != nil {
		return 0, err
	}
	if err := t.wait(n); err != nil {
		return 0, t.errorf("%w", err)
	}
	took := time.Since(begin)
	for i := range n {
		b := t.slot(target, i)
		if at := pattern.Check(b, t.key(i)); at >= 0 {
			return 0, t.errorf("byte %d is %#02x, expected %#02x", at, b[at], pattern.At(t.key(i), at))
		}
	}
	t.count += uint64(n)
	t.cell.ops += n
	t.cell.bytes += int64(n * t.size)
	return took, nil
}

func (t *transfer) errorf(format string, args ...any) error {
	return fmt.Errorf("%s of %s, %v to %v, operation %d: %w", demoOps[t.op].name, bytesText(int64(t.size)),
		t.from.dev.Addr(), t.to.dev.Addr(), t.count+1, fmt.Errorf(format, args...))
}

// key is the key of the data of message i of this round.
func (t *transfer) key(i int) uint64 {
	return pattern.Key(t.pass, uint64(t.op), uint64(t.size), uint64(t.dir), t.count+uint64(i))
}

// stride is the distance between slots: no two share a cache line.
func (t *transfer) stride() int { return (t.size + 63) &^ 63 }

func (t *transfer) slot(s *side, i int) []byte {
	return s.buf[i*t.stride():][:t.size]
}

func (t *transfer) segment(s *side, i int) []roce.SGE {
	if t.size == 0 {
		return nil
	}
	return []roce.SGE{s.mr.SGE(i*t.stride(), t.size)}
}

func (t *transfer) request(i int) roce.SendWR {
	wr := roce.SendWR{ID: uint64(i), Opcode: demoOps[t.op].opcode, Flags: roce.Signaled, SGE: t.segment(t.from, i)}
	if wr.Opcode != roce.WRSend {
		wr.RemoteAddr = t.to.mr.Addr() + uint64(i*t.stride())
		wr.RKey = t.to.mr.RKey()
	}
	return wr
}

func (t *transfer) postRecvs(n int) error {
	if demoOps[t.op].opcode != roce.WRSend {
		return nil
	}
	t.recvs = t.recvs[:0]
	for i := range n {
		t.recvs = append(t.recvs, roce.RecvWR{ID: uint64(i), SGE: t.segment(t.to, i)})
	}
	return t.to.qp.PostRecv(t.recvs...)
}

// wait polls both sides until n messages have completed on both.
func (t *transfer) wait(n int) error {
	sent, received, expected := 0, 0, 0
	if demoOps[t.op].opcode == roce.WRSend {
		expected = n
	}
	var wcs [demoDepth]roce.WC
	for polls := 0; sent < n || received < expected; polls++ {
		if polls%256 == 255 && t.ctx.Err() != nil {
			return context.Cause(t.ctx)
		}
		for _, s := range []*side{t.from, t.to} {
			k, err := s.cq.Poll(wcs[:])
			if err != nil {
				return err
			}
			for i := range wcs[:k] {
				if err := t.completed(s, &wcs[i], &sent, &received); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// completed checks one completion: requests complete in the order of posting.
func (t *transfer) completed(s *side, wc *roce.WC, sent, received *int) error {
	n, what := sent, "request"
	if s == t.to {
		n, what = received, "receive"
	}
	switch {
	case wc.Status != roce.WCSuccess:
		return fmt.Errorf("%s %d failed: %v (%d)", what, wc.ID+1, wc.Status, int(wc.Status))
	case wc.ID != uint64(*n):
		return fmt.Errorf("%s %d completed when %d was due", what, wc.ID+1, *n+1)
	case s == t.to && int(wc.ByteLen) != t.size:
		return fmt.Errorf("receive %d got %d bytes", wc.ID+1, wc.ByteLen)
	}
	*n++
	return nil
}
