//go:build linux

package interop

import (
	"fmt"
	"testing"

	"github.com/goroce/goroce/test/interop/wire"
)

// verbCase moves data by one verb.
type verbCase struct {
	link
	verb string
	size int
}

// verbNames are the verbs of the data cases.
var verbNames = []string{"SEND", "SEND_IMM", "WRITE", "WRITE_IMM", "READ"}

// verbSizes are the sizes at which segmentation changes: nothing, one byte, around the path MTU, many packets.
func verbSizes(mtu int) []int { return []int{0, 1, mtu - 1, mtu, mtu + 1, 1 << 20} }

func (v verbCase) name() string {
	return fmt.Sprintf("%s %s %s mtu %d size %d", v.role(), v.verb, v.family, v.mtu, v.size)
}

// verbsFull is the whole product.
func verbsFull() (all []verbCase) {
	for _, we := range []bool{true, false} {
		for _, verb := range verbNames {
			for _, family := range pingpongFamilies {
				for _, mtu := range pingpongMTUs {
					for _, size := range verbSizes(mtu) {
						all = append(all, verbCase{link{family: family, mtu: mtu, weRequest: we}, verb, size})
					}
				}
			}
		}
	}
	return all
}

// verbsSubset has every role, verb and size at one path MTU, and every role and verb at MTU+1 over the other family and MTUs.
func verbsSubset() (some []verbCase) {
	for _, v := range verbsFull() {
		switch {
		case v.family == ipv4 && v.mtu == 1024,
			v.family == ipv6 && v.mtu != 1024 && v.size == v.mtu+1:
			some = append(some, v)
		}
	}
	return some
}

func (s *session) verbs(t *testing.T) {
	cases := verbsSubset()
	if s.mode == full {
		cases = verbsFull()
	}
	t.Run("verbs", func(t *testing.T) {
		for _, v := range cases {
			s.run(t, "verbs", v.name(), func(c *testCase) {
				b := c.newBatch(v.link, v.verb, v.size, 3)
				b.transfer(0, 30000)
				b.conn.states("RTS", "RTS")
			})
		}
	})
}

// batch is a connection with memory for a number of messages of one verb and size that are posted as one list.
type batch struct {
	*conn
	mark     bool // a SEND goes behind the messages, because nothing tells the responder of them
	verb     string
	size     int
	n        int
	src, dst region
}

// Each message has its own slot; the slots are at odd distances and have guard bytes around them.
const (
	guardByte = 0xa5
	guardLen  = 67
)

func (b *batch) slot(i int) int { return guardLen + i*(b.size+guardLen) }
func (b *batch) total() int     { return b.slot(b.n) }

// carriesImm and consumesRecv are properties of the verbs.
func carriesImm(verb string) bool { return verb == "SEND_IMM" || verb == "WRITE_IMM" }
func consumesRecv(verb string) bool {
	return verb == "SEND" || verb == "SEND_IMM" || verb == "WRITE_IMM"
}

func (c *testCase) newBatch(l link, verb string, size, n int) *batch {
	c.Helper()
	b := &batch{conn: c.connect(l), verb: verb, size: size, n: n, mark: l.service == "UC" && verb == "WRITE"}
	if verb == "READ" {
		b.src = b.region(b.rsp, b.total(), "local_write", "remote_read")
		b.dst = b.region(b.req, b.total(), "local_write")
	} else {
		b.src = b.region(b.req, b.total(), "local_write")
		b.dst = b.region(b.rsp, b.total(), "local_write", "remote_write")
	}
	return b
}

// seed names the content of message i of a round, so that data of another message or round is told apart.
func (b *batch) seed(round, i int) string { return fmt.Sprintf("%s/%d/%d", b.verb, round, i) }

// imm is the immediate data of message i: both ends and the byte order must agree on it.
func (b *batch) imm(round, i int) uint32 { return 0x80ff0100 + uint32(round<<8+i) }

// transfer moves one round of messages, waits for all completions and compares all memory.
func (b *batch) transfer(round, timeoutMS int) {
	b.c.Helper()
	b.prepare(round)
	if consumesRecv(b.verb) {
		b.postRecvs()
	}
	b.postSends(round)
	b.finish(round, timeoutMS)
}

// prepare writes the contents to send and clears the place where they go.
func (b *batch) prepare(round int) {
	b.c.Helper()
	for i := range b.n {
		b.src.fill(b.c, b.slot(i), b.size, b.seed(round, i), 0)
	}
	b.dst.fill(b.c, 0, b.total(), "", guardByte)
}

// postRecvs posts a receive per message. A WRITE with immediate consumes one without touching its memory.
func (b *batch) postRecvs() {
	b.c.Helper()
	var wrs []wire.WR
	for i := range b.n {
		wr := wire.WR{ID: uint64(1000 + i)}
		if b.verb != "WRITE_IMM" {
			wr.SGEs = b.dst.sges(b.slot(i), b.size, 1+i%3)
		}
		wrs = append(wrs, wr)
	}
	b.rsp.do(b.c, wire.Request{Op: "recv", QP: b.rspQP, WRs: wrs})
}

// postSends posts the requests as one list. The local side of message i has 1 to 3 segments.
func (b *batch) postSends(round int) {
	b.c.Helper()
	local, remote := b.src, b.dst
	if b.verb == "READ" {
		local, remote = b.dst, b.src
	}
	var wrs []wire.WR
	for i := range b.n {
		wr := wire.WR{ID: uint64(i), Verb: b.verb, SGEs: local.sges(b.slot(i), b.size, 1+i%3)}
		if carriesImm(b.verb) {
			wr.Imm = b.imm(round, i)
		}
		if b.verb != "SEND" && b.verb != "SEND_IMM" {
			wr.RemoteVA, wr.RKey = remote.va+uint64(b.slot(i)), remote.rkey
		}
		wrs = append(wrs, wr)
	}
	if b.mark {
		b.rsp.do(b.c, wire.Request{Op: "recv", QP: b.rspQP, WRs: []wire.WR{{ID: 999}}})
		wrs = append(wrs, wire.WR{ID: 999, Verb: "SEND"})
	}
	b.req.do(b.c, wire.Request{Op: "send", QP: b.reqQP, WRs: wrs})
}

// finish waits for the completions of a round on both sides and compares memory.
func (b *batch) finish(round, timeoutMS int) {
	b.c.Helper()
	wantOp := map[string]string{"SEND": "SEND", "SEND_IMM": "SEND", "WRITE": "WRITE", "WRITE_IMM": "WRITE", "READ": "READ"}[b.verb]
	for i, wc := range b.poll(b.req, b.n, timeoutMS) {
		if wc.Status != 0 || wc.ID != uint64(i) || wc.Opcode != wantOp {
			b.c.Fatalf("requester (%s): completion %d is %+v, want success of %s", b.req.Name, i, wc, wantOp)
		}
	}
	if consumesRecv(b.verb) {
		b.received(round, timeoutMS)
	}
	if b.mark {
		for _, e := range []*end{b.req, b.rsp} {
			if wc := b.poll(e, 1, timeoutMS)[0]; wc.Status != 0 || wc.ID != 999 {
				b.c.Fatalf("%s: completion %+v of the SEND behind the messages", e.Name, wc)
			}
		}
	}
	for i := range b.n {
		b.src.check(b.c, fmt.Sprintf("source of message %d", i), b.slot(i), b.size, b.seed(round, i), 0)
		b.dst.check(b.c, fmt.Sprintf("message %d", i), b.slot(i), b.size, b.seed(round, i), 0)
		b.dst.check(b.c, fmt.Sprintf("guard before message %d", i), b.slot(i)-guardLen, guardLen, "", guardByte)
	}
	b.dst.check(b.c, "guard at the end", b.slot(b.n)-guardLen, guardLen, "", guardByte)
}

// received looks at the responder's completions of one round.
func (b *batch) received(round, timeoutMS int) {
	b.c.Helper()
	for i, wc := range b.poll(b.rsp, b.n, timeoutMS) {
		want := wire.WC{ID: uint64(1000 + i), Opcode: "RECV", Len: b.size, Text: wc.Text, QPN: wc.QPN}
		if carriesImm(b.verb) {
			want.HasImm, want.Imm = true, b.imm(round, i)
		}
		if b.verb == "WRITE_IMM" {
			want.Opcode = "RECV_IMM"
		}
		want.GRH, want.SrcQP = wc.GRH, wc.SrcQP // rxe sets the flag on UC as well
		if wc != want {
			b.c.Fatalf("responder (%s): completion %d is %+v, want %+v", b.rsp.Name, i, wc, want)
		}
	}
}
