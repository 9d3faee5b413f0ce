package transport

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/goroce/goroce/ib"
)

// violations are the columns of the table, in the order of the responder's checks
// (IBTA 9.7.4; Linux rxe_resp.c).
var violations = []violation{
	{"another service", "IBTA 9.6.1: dropped", func(s *wireRow) *cell {
		c := s.as()
		c.before, c.on = "", map[QPType]QPType{RC: UC, UC: RC, UD: RC, XRCRecv: RC}[s.typ]
		return s.dropped(c, DropTransport)
	}},
	{"another partition", "IBTA 10.9.3: dropped", func(s *wireRow) *cell { return s.dropped(s.as("pkey=0x8001"), DropPKey) }},
	{"another Q_Key", "IBTA 10.2.5: dropped", func(s *wireRow) *cell {
		if s.typ != UD {
			return never("connected services have no Q_Key")
		}
		return s.dropped(s.as("qkey=5"), DropQKey)
	}},
	{"in RESET", "IBTA 10.3.1.1: dropped", inState(Reset)},
	{"in INIT", "IBTA 10.3.1.2: dropped", inState(Init)},
	{"in ERR", "IBTA 10.3.1.7: dropped", inState(Err)},
	{"opcode out of sequence", "IBTA 9.7.4.1.3 class C; UC 9.8.2.2.1 class D: the message before is dropped", outOfSequence},
	{"queue pair without the right", "IBTA 9.7.4.1.4, 9.9.3 class C; rxe_resp.c check_op_valid", func(s *wireRow) *cell {
		switch {
		case s.sends():
			return never("a SEND needs no right")
		case !s.starts():
			return never("the first packet had the right")
		}
		need := map[ib.OpKind]string{ib.KindReadRequest: "read ", ib.KindWrite: "write ", ib.KindAtomicWrite: "write ", ib.KindFlush: "global "}[s.info.Op]
		c := s.invalid(s.as())
		c.before = "! access " + strings.Replace("read write atomic global persistent", cmp.Or(need, "atomic "), "", 1)
		if s.typ == XRCRecv {
			c.wc = "" // the right is judged before a receive is taken
		}
		return c
	}},
	{"no receive", "IBTA 9.7.5.2.8, 9.9.3 class B: RNR NAK; UC and UD class D, dropped", func(s *wireRow) *cell {
		switch {
		case s.sends() && !s.starts():
			return never("the first packet has taken the receive")
		case !s.sends() && !s.info.Imm:
			return never("consumes no receive")
		}
		c := s.dropped(s.as(), DropNoReceive)
		if !s.silent() {
			c.answer, c.counts = s.told("RNR", "640µs"), []string{SendRNR.String()}
		}
		c.recv = ""
		return c
	}},
	{"no responder resources", "IBTA 9.4.4, 9.9.3 class C; rxe_resp.c check_resource", func(s *wireRow) *cell {
		if !s.resource() {
			return never("takes no responder resource")
		}
		c := s.invalid(s.as())
		c.attr = func(a *Attr) { a.MaxDestRdAtomic = 0 }
		return c
	}},
	{"payload longer than the path MTU", "IBTA 9.7.4.1.6, 9.9.3 class C; UC and UD class D", func(s *wireRow) *cell {
		switch {
		case s.info.Payload != ib.PayloadAllowed:
			return never("its payload has one length, and ib.Parse refuses any other")
		case s.typ == UD:
			return s.invalid(s.with("4097"))
		}
		return s.invalid(s.with("257"))
	}},
	{"payload shorter than its place asks for", "IBTA 9.7.4.1.6, 9.9.3 class C; UC class D", func(s *wireRow) *cell {
		switch s.info.Pos {
		case ib.PosOnly:
			return never("a message of one packet has any length up to the path MTU")
		case ib.PosLast:
			return s.invalid(s.with("0"))
		}
		return s.invalid(s.with("255"))
	}},
	{"other length than announced", "IBTA 9.7.4.1.6, 9.9.3 class C; UC class D", func(s *wireRow) *cell {
		switch {
		case s.info.Op == ib.KindAtomicWrite:
			return s.invalid(s.as("len=7")) // IBTA A19: 8 bytes
		case !s.writes():
			return never("announces no length of its payload")
		case s.info.Pos == ib.PosFirst:
			return s.invalid(s.as("len=256")) // nothing would be left
		case s.info.Pos == ib.PosMiddle:
			c := s.as()
			c.before = strings.Replace(s.lead, "len=600", "len=512", 1)
			return s.invalid(c)
		case s.info.Pos == ib.PosLast:
			return s.invalid(s.with("45"))
		}
		return s.invalid(s.as("len=9"))
	}},
	{"message longer than 2^31", "IBTA 9.7.5.2, 9.9.3 class C; UC class D", func(s *wireRow) *cell {
		const long = "len=2147483649"
		switch {
		case s.sends():
			return never("a SEND announces no length: it is as long as its receive allows")
		case !s.starts():
			return never("only the first packet announces the length")
		case s.info.AtomicETH:
			return never("an atomic has 8 bytes")
		case s.info.Op == ib.KindFlush:
			return s.denied(s.as(long)) // a FLUSH is no message: it is behind the region
		}
		return s.invalid(s.as(long))
	}},
	{"receive too short", "IBTA 9.7.4.1.7, 9.9.3 class A: NAK invalid request; UC and UD class D. rxe completes the receive with IB_WC_REM_INV_REQ_ERR, " +
		"ibv_poll_cq(3) has IBV_WC_LOC_LEN_ERR for it", func(s *wireRow) *cell {
		room := map[ib.Position]string{ib.PosFirst: "255", ib.PosMiddle: "511", ib.PosLast: "299", ib.PosOnly: "7"}[s.info.Pos]
		if s.typ == UD {
			room = "47"
		}
		if !s.sends() {
			return never("its receive, if it takes one, needs no room")
		}
		c := s.as()
		if s.silent() {
			s.dropped(c, RespLocalLengthErr)
		} else {
			s.badReceive(c, "invalid request", "local length error", RespLocalLengthErr, RespRemoteInvalid)
		}
		c.recv = "! recv " + room
		return c
	}},
	{"receive without memory", "IBTA 9.9.3 class A: NAK remote operational error, and IBV_WC_LOC_PROT_ERR. rxe has IB_WC_LOC_QP_OP_ERR " +
		"(rxe_resp.c, ERR_MALFORMED_WQE)", func(s *wireRow) *cell {
		if !s.sends() {
			return never("the memory of its receive, if it takes one, is not touched")
		}
		var counts []Counter
		if !s.silent() {
			counts = []Counter{RespRemoteOpErr}
		}
		c := s.badReceive(s.as(), "remote operational error", "local protection error", counts...)
		if s.starts() {
			c.recv = "! recvbad"
		} else {
			c.before += "\n! dereg rb"
		}
		return c
	}},
	{"unknown key", "IBTA 9.7.5.2, 9.9.3 class C; UC class D; SEND with invalidate class J", func(s *wireRow) *cell { return s.names("key=bad") }},
	{"key of another protection domain", "IBTA 10.2.3, 9.9.3 class C, D and J", func(s *wireRow) *cell { return s.names("key=pd") }},
	{"region without the right", "IBTA 9.7.5.2, 9.9.3 class C and D", func(s *wireRow) *cell {
		switch {
		case s.info.IETH:
			return s.names("key=mr") // IBTA 10.6.5: a region is not the peer's to close
		case s.info.Op == ib.KindReadRequest:
			return s.names("key=wo")
		}
		return s.names("key=ro")
	}},
	{"window that is closed", "IBTA 10.6.7.2, 9.9.3 class C and D", func(s *wireRow) *cell {
		if s.info.IETH {
			return never("what is closed already stays so, and that is no error, as with rxe")
		}
		return s.window("! bind 2B\n! close 2B")
	}},
	{"window of another queue pair", "IBTA 10.6.7.2, 9.9.3 class C, D and J", func(s *wireRow) *cell { return s.window("! bind 2B other") }},
	{"before the region", "IBTA 9.7.4.1.5, 9.9.3 class C; UC class D", func(s *wireRow) *cell { return s.outside("va=0x6ffffff8") }},
	{"behind the region", "IBTA 9.7.4.1.5, 9.9.3 class C; UC class D", func(s *wireRow) *cell {
		switch {
		case s.info.Pos == ib.PosFirst:
			return s.outside("@65237") // all of it is checked with the first packet
		case s.info.AtomicETH || s.info.Op == ib.KindAtomicWrite:
			return s.outside("@65536")
		}
		return s.outside("@65529")
	}},
	{"range that wraps", "IBTA 9.7.4.1.5, 9.9.3 class C; UC class D", func(s *wireRow) *cell { return s.outside("va=0xfffffffffffffff8") }},
	{"address that is no multiple of 8", "IBTA 9.4.5, A19, 9.9.3 class C; rxe_resp.c ERR_MISALIGNED_ATOMIC", func(s *wireRow) *cell {
		if !s.info.AtomicETH && s.info.Op != ib.KindAtomicWrite {
			return never("any address will do")
		}
		return s.invalid(s.as("@4"))
	}},
}

// outside is a packet that names a range beyond its region.
func (s *wireRow) outside(where string) *cell {
	if s.info.IETH {
		return never("a key to close has no range")
	}
	return s.names(where)
}

// inState is a packet for a queue pair that takes none.
func inState(to State) func(s *wireRow) *cell {
	return func(s *wireRow) *cell {
		c := s.dropped(s.as(), DropState)
		c.before += "\n! state " + to.String()
		c.state = to
		return c
	}
}

// window is a packet that names a window, which before has made one that it may not
// use.
func (s *wireRow) window(before string) *cell {
	if s.typ == XRCRecv {
		return never("an XRC target has no send queue to bind windows of type 2 in")
	}
	c := s.names("key=2B")
	c.before += "\n" + before
	return c
}

// outOfSequence is a packet that begins a message inside of another, or goes on with
// none. UC takes the former: what is broken is the message before.
func outOfSequence(s *wireRow) *cell {
	if s.typ == UD {
		return never("every message is one packet")
	}
	if !s.starts() {
		last := *s
		last.psn = 0
		c := last.as()
		c.before = ""
		if s.silent() {
			return s.dropped(c, DropMessage)
		}
		if last.invalid(c); s.typ == XRCRecv {
			c.wc = "" // none was taken
		}
		return c
	}
	next := *s
	next.psn = 1
	c := next.as()
	c.before = "> " + s.info.Transport.String() + "_SEND_FIRST 0 256"
	if !s.silent() {
		next.invalid(c)
		c.wc = flushErr // the other message has taken it
		return c
	}
	s.dropped(c, DropMessage)
	c.taken = true
	imm := ""
	if s.info.Imm {
		imm = " imm=0"
	}
	switch {
	case s.sends() && s.info.Pos.Ends():
		c.delivered = fmt.Sprintf("wc RECV 1 %s%s", s.n, imm)
	case s.info.Imm:
		c.delivered = fmt.Sprintf("wc RECV_RDMA_WITH_IMM 1 %s%s", s.n, imm)
	}
	return c
}
