package transport

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// This file is the other half of the table: every operation of a send queue, of every
// service, times what can be wrong with it on its own side. Requests complete by
// ibv_poll_cq(3); RC and XRC go to ERR, UC and UD to SQE (IBTA 10.3.1.6, 9.9.2), and
// what is posted behind the request is flushed. No event tells of it: the completion
// does (IBTA 9.9.2.2).

// postedRow is a request of a service, in the language of reqWorld.
type postedRow struct {
	typ    QPType
	name   string // of the operation
	object string // of a local operation
	op     WROpcode
}

func postedRows() (rows []*postedRow) {
	local := map[string]*postedRow{
		"BIND": {op: WRBindMW, object: "2B"}, "INV": {op: WRLocalInv, object: "2B"}, "REG": {op: WRRegMR, object: "fast"},
	}
	for _, typ := range []QPType{RC, UC, UD, XRCSend} {
		for _, name := range slices.Sorted(maps.Keys(reqOps)) {
			if name != "NONE" {
				rows = append(rows, &postedRow{typ: typ, name: name, op: reqOps[name]})
			}
		}
		for _, name := range slices.Sorted(maps.Keys(local)) {
			r := *local[name]
			r.typ, r.name = typ, name
			rows = append(rows, &r)
		}
	}
	return rows
}

// size is the payload of the request.
func (s *postedRow) size() int {
	switch {
	case s.op.is(opEmpty):
		return 0
	case s.op.is(opWord):
		return mem.WordSize
	}
	return 300
}

// line posts the request with more options.
func (s *postedRow) line(opts ...string) string {
	if s.object != "" {
		return fmt.Sprintf("1 %s %s %s", s.name, s.object, strings.Join(opts, " "))
	}
	return s.sized(s.size(), opts...)
}

func (s *postedRow) sized(n int, opts ...string) string {
	return fmt.Sprintf("1 %s %d ah=5 qp=17 srq=1 %s", s.name, n, strings.Join(opts, " "))
}

// postedCell is what a violation makes of a row.
type postedCell struct {
	never  string // why it cannot occur
	before func(w *reqWorld)
	line   string
	status WCStatus
	pd     mem.PD // of the queue pair, 0 for that of everything else
}

// postedViolation is a column; rows that the service does not have are in the first
// alone.
type postedViolation struct {
	name, rule string
	cell       func(s *postedRow) postedCell
}

var postedViolations = []postedViolation{
	{"not of the service", "IBTA 9.2, 11.6.2", func(s *postedRow) postedCell {
		if s.typ.Sends(s.op) {
			return postedCell{never: "the service has it"}
		}
		return postedCell{line: s.line(), status: WCLocQPOpErr}
	}},
	{"in ERR", "IBTA 10.3.1.7", func(s *postedRow) postedCell {
		return postedCell{before: func(w *reqWorld) { w.modify([]string{"err"}) }, line: s.line(), status: WCWRFlushErr}
	}},
	{"in SQE", "IBTA 10.3.1.6", func(s *postedRow) postedCell {
		if s.typ == RC || s.typ == XRCSend {
			return postedCell{never: "an error ends in ERR"}
		}
		return postedCell{before: func(w *reqWorld) { w.q.become(SQE) }, line: s.line(), status: WCWRFlushErr}
	}},
	{"unknown key", "IBTA 10.8.5, 11.6.2", func(s *postedRow) postedCell {
		switch {
		case s.name == "BIND":
			return postedCell{line: s.line("bad"), status: WCMWBindErr}
		case s.object != "":
			return postedCell{line: strings.Replace(s.line(), s.object, "nothing", 1), status: WCMWBindErr}
		}
		return s.memory(s.line("key=99"), nil)
	}},
	{"deregistered memory", "IBTA 10.8.5, 11.6.2", func(s *postedRow) postedCell {
		gone := func(w *reqWorld) { w.set2Regions(w.tab.Deregister) }
		switch {
		case s.name == "BIND":
			return postedCell{before: gone, line: s.line(), status: WCMWBindErr}
		case s.object != "":
			return postedCell{never: "names no memory"}
		}
		return s.memory(s.line(), gone)
	}},
	{"another protection domain", "IBTA 10.2.3, 11.6.2", func(s *postedRow) postedCell {
		c := s.memory(s.line(), nil)
		if c.pd = 2; s.object != "" {
			c.status = WCMWBindErr
		}
		return c
	}},
	{"region without local write", "IBTA 10.6.3.1, 11.6.2", func(s *postedRow) postedCell {
		if !s.op.is(opFetches) {
			return postedCell{never: "writes nothing to its memory"}
		}
		return s.memory(s.line(), func(w *reqWorld) { w.readOnly() })
	}},
	{"of a wrong length", "IBTA 9.4.5, 9.7.2, 9.8.3, 11.6.2", func(s *postedRow) postedCell {
		switch {
		case s.object != "" || s.op.is(opEmpty):
			return postedCell{never: "has no payload: roce.PostSend refuses one"}
		case s.op.is(opWord):
			return postedCell{line: s.sized(mem.WordSize - 1), status: WCLocLenErr}
		case s.typ == UD:
			return postedCell{line: s.sized(513), status: WCLocLenErr}
		}
		return postedCell{never: "has any length up to 2^31: see TestRequesterTooLong"}
	}},
	{"no initiator depth", "IBTA 9.7.3.1, 11.6.2", func(s *postedRow) postedCell {
		if !s.op.is(opDepth) {
			return postedCell{never: "takes none of the depth"}
		}
		return postedCell{before: func(w *reqWorld) { w.q.attr.MaxRdAtomic = 0 }, line: s.line(), status: WCLocQPOpErr}
	}},
	{"unknown address handle", "IBTA 11.6.2", func(s *postedRow) postedCell {
		if s.typ != UD {
			return postedCell{never: "the connection has the address"}
		}
		return postedCell{line: strings.Replace(s.line(), "ah=5", "ah=7", 1), status: WCLocQPOpErr}
	}},
	{"queue pair 0", "IBTA 9.8.3, 11.6.2", func(s *postedRow) postedCell {
		if s.typ != UD {
			return postedCell{never: "the connection has the queue pair number"}
		}
		return postedCell{line: strings.Replace(s.line(), "qp=17", "qp=0", 1), status: WCLocQPOpErr}
	}},
}

// memory is a request whose memory is not there.
func (s *postedRow) memory(line string, before func(w *reqWorld)) postedCell {
	if s.op.is(opEmpty) {
		return postedCell{never: "has no memory of its own"}
	}
	return postedCell{before: before, line: line, status: WCLocProtErr}
}

// set2Regions does something to both regions.
func (w *reqWorld) set2Regions(f func(r *mem.Region) error) {
	for _, r := range []*mem.Region{w.src, w.dst} {
		if err := f(r); err != nil {
			w.t.Fatal(err)
		}
	}
}

// readOnly makes dst a region that nothing may be written to.
func (w *reqWorld) readOnly() {
	var err error
	if w.dst, err = w.tab.Register(w.dst.Bytes(), 1, 0, reqIOVA); err != nil {
		w.t.Fatal(err)
	}
}

func newPostedWorld(t *testing.T, typ QPType, pd mem.PD) *reqWorld {
	w := newReqWorld(t, ib.PSN(0xffffff))
	w.cfg.Type, w.cfg.AHs, w.cfg.MTU, w.cfg.PD = typ, testAHs{}, 512, pd
	w.connect()
	return w
}

// TestPostedViolations is the whole product. What a service does not have only the
// first columns have.
func TestPostedViolations(t *testing.T) {
	cells := 0
	for _, v := range postedViolations {
		for _, s := range postedRows() {
			c := v.cell(s)
			if c.never != "" || v.name != postedViolations[0].name && !s.typ.Sends(s.op) {
				continue
			}
			cells++
			t.Run(fmt.Sprintf("%s/%v %s", v.name, s.typ, s.name), func(t *testing.T) { s.check(t, v, &c) })
		}
	}
	t.Logf("%d cells", cells)
}

func (s *postedRow) check(t *testing.T, v postedViolation, c *postedCell) {
	w := newPostedWorld(t, s.typ, cmp.Or(c.pd, 1))
	if c.before != nil {
		c.before(w)
	}
	w.post(strings.Fields(c.line))
	w.post(strings.Fields("2 SEND 1 ah=5 qp=17 srq=1"))
	w.pump()
	want := []string{"wc 1 " + c.status.String(), "wc 2 " + WCWRFlushErr.String()}
	state, flushes := Err, uint64(1)
	if s.typ == UC || s.typ == UD {
		state = SQE
	}
	if c.status == WCWRFlushErr {
		flushes = 2
	}
	if v.name == "in ERR" {
		state = Err
	}
	if got := w.take(); !slices.Equal(got, want) || w.q.State() != state {
		t.Errorf("%s: %q, state %v, want %q, %v (%s)", c.line, got, w.q.State(), want, state, v.rule)
	}
	if e, f := w.counts.Load(ReqCQEErr), w.counts.Load(ReqCQEFlush); e+f != 2 || f != flushes {
		t.Errorf("%v is %d, %v is %d", ReqCQEErr, e, ReqCQEFlush, f)
	}
}

// TestPostedViolationsOfNothing: the requests of the table, when nothing is wrong with
// them, end no queue pair.
func TestPostedViolationsOfNothing(t *testing.T) {
	for _, s := range postedRows() {
		if !s.typ.Sends(s.op) {
			continue
		}
		w := newPostedWorld(t, s.typ, 1)
		w.post(strings.Fields(s.line()))
		if w.pump(); w.q.State() != RTS {
			t.Errorf("%v %s: %q, state %v", s.typ, s.name, w.take(), w.q.State())
		}
	}
}
