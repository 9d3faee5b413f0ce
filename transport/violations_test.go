package transport

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goroce/goroce/ib"
)

// This file is the table of all requests on the wire, every opcode of every service,
// times all violations: what the peer is told, how its request completes, how the
// receive completes, which event there is, which counter, which state. The rules are
// IBTA 9.9.3 (responder error classes; 9.8.2 and 9.8.3 for UC and UD) and, for what
// programs see, the man pages ibv_poll_cq(3) and ibv_get_async_event(3). A cell that
// cannot occur says why. What rxe does otherwise is said where it is expected.

// wireRow is a request packet.
type wireRow struct {
	info *ib.OpcodeInfo
	typ  QPType
	lead string // the packet before it in its message
	psn  int
	n    string // payload
	opts string
}

// cell is what a violation makes of a row.
type cell struct {
	never  string // why there is no such packet
	before string // lines before the packet
	packet string
	recv   string // posts the receive
	attr   func(*Attr)
	on     QPType // the service of the queue pair, if not that of the row
	outcome
}

// outcome is what comes of a packet.
type outcome struct {
	answer string // ACK, NAK or RNR NAK; "" for silence
	wc     string // error of receive 1; "" for none
	// delivered is how receive 1 completes, if with success.
	delivered string
	taken     bool // into memory
	events    []string
	counts    []string
	state     State
}

// wireRows are the requests of all services.
func wireRows() (rows []*wireRow) {
	for o := range 0x100 {
		info := ib.Opcode(o).Info()
		if info == nil || !info.Request {
			continue
		}
		typ, ok := map[ib.Transport]QPType{ib.TransportRC: RC, ib.TransportUC: UC, ib.TransportUD: UD, ib.TransportXRC: XRCRecv}[info.Transport]
		if !ok {
			continue
		}
		s := &wireRow{info: info, typ: typ, n: "8"}
		prefix := info.Transport.String() + "_"
		first := prefix + map[ib.OpKind]string{ib.KindSend: "SEND_FIRST 0 256", ib.KindWrite: "RDMA_WRITE_FIRST 0 256"}[info.Op]
		length := "len=300"
		switch info.Pos {
		case ib.PosFirst:
			s.n, s.opts = "256", length
		case ib.PosMiddle:
			length = "len=600"
			s.lead, s.psn, s.n = "> "+first+" "+length, 1, "256"
		case ib.PosLast:
			s.lead, s.psn, s.n = "> "+first+" "+length, 1, "44"
		}
		if info.Op == ib.KindFlush {
			s.opts = "global"
		}
		rows = append(rows, s)
	}
	return rows
}

func (s *wireRow) starts() bool { return s.info.Pos.Starts() }
func (s *wireRow) sends() bool  { return s.info.Op == ib.KindSend }
func (s *wireRow) writes() bool { return s.info.Op == ib.KindWrite }
func (s *wireRow) silent() bool { return s.typ == UC || s.typ == UD }

// fetches says whether the row is one of those that take a responder resource.
func (s *wireRow) resource() bool {
	switch s.info.Op {
	case ib.KindReadRequest, ib.KindFetchAdd, ib.KindCmpSwap, ib.KindAtomicWrite:
		return true
	}
	return false
}

// with is the packet of the row with n bytes and more options.
func (s *wireRow) with(n string, opts ...string) *cell {
	c := &cell{recv: "! recv 10000"}
	c.before = s.lead
	c.packet = fmt.Sprintf("> %s %d %s %s %s", s.info.Name, s.psn, n, s.opts, strings.Join(opts, " "))
	return c
}

// as is the packet of the row with more options.
func (s *wireRow) as(opts ...string) *cell { return s.with(s.n, opts...) }

func never(why string) *cell { return &cell{never: why} }

// told is the answer of a kind to the packet of a cell.
func (s *wireRow) told(kind, what string) string { return fmt.Sprintf("< %s %d %s", kind, s.psn, what) }

const (
	flushErr  = "Work Request Flushed Error"
	reqErr    = "invalid request local work queue error"
	accessErr = "local access violation work queue error"
)

// fatal is the end of a connection: a NAK, an event, and the receives flushed. With
// XRC only one that a message has taken is the queue pair's own to flush (IBTA
// 10.2.9.3). rxe completes a receive that was taken with the status of the NAK
// (rxe_resp.c, do_class_ac_error), which IBTA gives to the requester alone.
func (s *wireRow) fatal(c *cell, nak, event, count string) *cell {
	c.outcome = outcome{answer: s.told("NAK", nak), wc: flushErr, counts: []string{count}, state: Err}
	if event != "" {
		c.events = []string{event}
	}
	if s.typ == XRCRecv {
		c.events = append(c.events, "last WQE reached")
		if taken := s.sends() || s.info.Imm; !taken {
			c.wc = ""
		}
	}
	return c
}

// invalid is IBTA 9.9.3 class C, invalid request; with UC and UD class D, dropped.
func (s *wireRow) invalid(c *cell) *cell {
	if s.silent() {
		return s.dropped(c, RespRemoteInvalid)
	}
	return s.fatal(c, "invalid request", reqErr, RespRemoteInvalid.String())
}

// denied is class C, remote access error; with UC class D, dropped.
func (s *wireRow) denied(c *cell) *cell {
	if s.silent() {
		return s.dropped(c, RespRemoteAccessErr)
	}
	return s.fatal(c, "remote access error", accessErr, RespRemoteAccessErr.String())
}

// badReceive is class A: an error of the receiver's own buffers.
func (s *wireRow) badReceive(c *cell, nak, wc string, counts ...Counter) *cell {
	if s.silent() {
		c.outcome = outcome{state: Err}
	} else {
		s.fatal(c, nak, "", "")
	}
	c.wc, c.counts = wc, nil
	for _, k := range append(counts, RespCQEErr) {
		c.counts = append(c.counts, k.String())
	}
	return c
}

// notClosed is class J: a SEND names a key that the peer may not close. The message
// is acknowledged.
func (s *wireRow) notClosed(c *cell) *cell {
	s.fatal(c, "", "", RespCQEErr.String())
	c.answer, c.wc = s.told("ACK", "msn=1"), "remote invalid request error"
	c.packet += " ack"
	c.taken = true
	return c
}

// dropped is a packet that is only counted.
func (s *wireRow) dropped(c *cell, why Counter) *cell {
	c.outcome = outcome{counts: []string{why.String()}, state: RTS}
	return c
}

// names is the outcome of a packet that names memory, or a key to close, which opts
// make wrong.
func (s *wireRow) names(opts ...string) *cell {
	switch {
	case s.info.IETH:
		return s.notClosed(s.as(opts...))
	case s.sends():
		return never("a SEND names no memory of its receiver")
	case !s.starts():
		return never("only the first packet of a WRITE names memory (IBTA 9.7.4.1.5)")
	}
	return s.denied(s.as(opts...))
}

// violation is a column of the table.
type violation struct {
	name, rule string
	cell       func(s *wireRow) *cell
}

// check runs one cell.
func (s *wireRow) check(t *testing.T, c *cell, base ib.PSN) {
	a := rspAttr()
	a.QKey, a.RQPSN = 0x11111111, base
	if c.attr != nil {
		c.attr(&a)
	}
	w := newRspWorldOf(t, cmp.Or(c.on, s.typ), a)
	lines := []string{c.recv, c.before, c.packet}
	if c.answer != "" {
		lines = append(lines, c.answer)
	}
	if c.wc != "" {
		lines = append(lines, "wc RECV 1 "+c.wc)
	}
	if c.delivered != "" {
		lines = append(lines, c.delivered)
	}
	for _, e := range c.events {
		lines = append(lines, "event "+e)
	}
	if !c.taken {
		lines = append(lines, "mem rb@0"+led(c.before, "SEND"), "mem mr@0"+led(c.before, "WRITE"))
	}
	w.run(strings.Join(append(lines, "nothing", "state "+c.state.String()), "\n"))
	w.wantCounts(c.counts...)
}

// led is what a packet of an operation before the one at fault has left in memory.
func led(before, op string) string {
	if strings.Contains(before, op+"_FIRST") {
		return " 0:256"
	}
	return ""
}

// wantCounts wants these counters, of all that count what is wrong, to be 1, and the
// others to be 0.
func (w *rspWorld) wantCounts(counts ...string) {
	for k := range NumCounters {
		switch k {
		case RcvdPkts, SentPkts, RDMARecvs, RespCQEFlush, AckDeferred:
			continue
		}
		want := uint64(0)
		if slices.Contains(counts, k.String()) {
			want = 1
		}
		if n := w.counts.Load(k); n != want {
			w.t.Errorf("%v counted %d, want %d", k, n, want)
		}
	}
}

// TestViolationsOfNothing: the packets of the table, when nothing is wrong with them,
// are taken. Keys that a SEND may close are those of TestResponderWindows.
func TestViolationsOfNothing(t *testing.T) {
	for _, s := range wireRows() {
		if s.info.IETH {
			continue
		}
		t.Run(s.info.Name, func(t *testing.T) {
			a := rspAttr()
			a.QKey = 0x11111111
			w := newRspWorldOf(t, s.typ, a)
			w.action("recv 10000")
			for _, line := range []string{s.lead, s.as().packet} {
				if line != "" {
					w.in(w.build(line[1:]))
				}
			}
			w.transmit()
			if ends := s.info.Pos.Ends() && (s.sends() || s.info.Imm); ends != (len(w.wcs) == 1) || w.q.State() != RTS {
				t.Errorf("completions %q, state %v", w.wcs, w.q.State())
			}
			w.wantCounts()
		})
	}
}

// request is what the peer has posted, in the language of reqWorld.
func (s *wireRow) request() string {
	n := s.n
	if s.info.Pos != ib.PosOnly {
		n = "600"
	}
	op := map[ib.OpKind]string{
		ib.KindSend: "SEND", ib.KindWrite: "WRITE", ib.KindReadRequest: "READ", ib.KindFetchAdd: "FADD",
		ib.KindCmpSwap: "CAS", ib.KindAtomicWrite: "AWRITE", ib.KindFlush: "FLUSH",
	}[s.info.Op]
	switch {
	case s.info.Imm:
		op += "I"
	case s.info.IETH:
		op += "INV"
	case s.info.Op == ib.KindFlush:
		return "1 FLUSH 0 a=8 imm=2"
	}
	return "1 " + op + " " + n + " ah=5 qp=17 srq=1"
}

// checkPeer says how the request of the peer completes that gets an answer: the
// statuses of ibv_poll_cq(3). A NAK is fatal; silence is, in the end, for services
// that wait for answers.
func (s *wireRow) checkPeer(t *testing.T, answer string) {
	w := newReqWorld(t, 5)
	w.cfg.Type, w.cfg.AHs, w.cfg.MTU = s.typ, testAHs{}, 512
	if s.typ == XRCRecv {
		w.cfg.Type = XRCSend
	}
	w.attr.RetryCnt, w.attr.RNRRetry = 0, 0
	w.connect()
	w.post(strings.Fields(s.request()))
	w.pump()
	reply := map[string][]string{
		"invalid request": {"NAK", "0", "inv"}, "remote access error": {"NAK", "0", "acc"}, "remote operational error": {"NAK", "0", "op"},
	}
	want, count, state := "transport retry counter exceeded", RetryExceeded, Err
	f := strings.Fields(answer)
	switch what := strings.Join(f[min(len(f), 3):], " "); {
	case s.silent():
		want, state = "ok", RTS
	case answer == "":
		for w.q.Deadline() != Never {
			w.now = w.q.Deadline()
			w.q.Expire(w.now)
			w.pump()
		}
	case f[1] == "RNR":
		w.q.Receive(w.now, w.packet([]string{"RNR", "0", "1"}))
		want, count = "RNR retry counter exceeded", RNRRetryExceeded
	case f[1] == "ACK":
		w.q.Receive(w.now, w.packet([]string{"ACK", fmt.Sprint(w.nextPSN - 1)}))
		want, state = "ok", RTS
	default:
		w.q.Receive(w.now, w.packet(reply[what]))
		want = map[string]string{"invalid request": "remote invalid request error", "remote operational error": "remote operation error"}[what]
		want = cmp.Or(want, what)
		count = map[string]Counter{"invalid request": ReqRemoteInvalid, "remote access error": ReqRemoteAccessErr}[what]
		count = cmp.Or(count, ReqRemoteOpErr)
	}
	if len(w.wcs) != 1 || !strings.HasSuffix(w.wcs[0], want) || w.q.State() != state || len(w.events) > 0 {
		t.Errorf("the peer, told %q: completions %q, state %v, events %q; want %q, %v", answer, w.wcs, w.q.State(), w.events, want, state)
	}
	if state == Err && w.counts.Load(count) != 1 {
		t.Errorf("the peer, told %q: %v is %d", answer, count, w.counts.Load(count))
	}
}

// TestViolations is the whole product. Each cell has an outcome or a reason why it
// cannot occur.
func TestViolations(t *testing.T) {
	bases := []ib.PSN{0, 0xffffff}
	if raceEnabled {
		bases = bases[1:]
	}
	cells, reasons := 0, 0
	for _, v := range violations {
		used := false
		for _, s := range wireRows() {
			c := v.cell(s)
			if c.never != "" {
				reasons++
				continue
			}
			used = true
			for _, base := range bases {
				cells++
				t.Run(fmt.Sprintf("%s/%s/%v", v.name, s.info.Name, base), func(t *testing.T) {
					s.check(t, c, base)
					s.checkPeer(t, c.answer)
					if t.Failed() {
						t.Logf("rule: %s\n%s\n%s\n%s", v.rule, c.recv, c.before, c.packet)
					}
				})
			}
		}
		if !used {
			t.Errorf("%s: never occurs", v.name)
		}
	}
	t.Logf("%d cells of %d rows and %d violations, and %d that cannot occur", cells, len(wireRows()), len(violations), reasons)
}
