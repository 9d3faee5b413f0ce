//go:build linux

package interop

import (
	"fmt"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/test/interop/wire"
)

// ucVerbs are those of UC. A WRITE is acknowledged to nobody, so a SEND goes behind it.
var ucVerbs = []string{"SEND", "SEND_IMM", "WRITE", "WRITE_IMM"}

// udSizes are payloads of datagrams: nothing, with and without pad bytes, a full packet of path MTU 1024 and of 4096.
var udSizes = []int{0, 1, 1024, 4093, 4096}

// services runs verbs over UC and UD, and what rxe drops of them.
func (s *session) services(t *testing.T) {
	t.Run("services", func(t *testing.T) {
		for _, family := range pingpongFamilies {
			for _, we := range []bool{true, false} {
				for _, size := range []int{0, 1025, 65537} {
					if s.mode == subset && (family == ipv6) != (size == 1025) {
						continue
					}
					for _, verb := range ucVerbs {
						v := verbCase{link{family: family, mtu: 1024, weRequest: we, service: "UC"}, verb, size}
						s.run(t, "services", v.name(), func(c *testCase) {
							b := c.newBatch(v.link, v.verb, v.size, 3)
							b.transfer(0, 30000)
							b.conn.states("RTS", "RTS")
						})
					}
				}
				l := link{family: family, mtu: 1024, weRequest: we, service: "UD"}
				s.run(t, "services", fmt.Sprintf("%s %s: datagrams there and back", l.role(), family), func(c *testCase) { c.datagrams(l) })
				s.run(t, "services", fmt.Sprintf("%s %s: wrong Q_Key, no receive, too small a receive", l.role(), family), func(c *testCase) { c.datagramsDropped(l) })
			}
		}
	})
}

// datagramTalk is a UD queue pair on each side, with an address handle for the other and memory for one message and its 40 bytes.
type datagramTalk struct {
	*conn
	src, dst region
	ah       int
}

func (c *testCase) datagramTalk(l link) *datagramTalk {
	d := &datagramTalk{conn: c.connect(l)}
	d.src = d.region(d.req, 2*ib.GRHSize+4096, "local_write")
	d.dst = d.region(d.rsp, 2*ib.GRHSize+4096, "local_write")
	d.ah = d.handle(d.req, wire.Request{Op: "ah", DestGID: d.rsp.gid})
	return d
}

// handle makes an address handle that lives as long as the case.
func (d *datagramTalk) handle(e *end, r wire.Request) int {
	d.c.Helper()
	r.AH = e.number()
	e.do(d.c, r)
	d.regions = append(d.regions, func() {
		if e.Alive() {
			e.Do(wire.Request{Op: "destroy", AH: r.AH})
		}
	})
	return r.AH
}

// receive posts a receive of size bytes behind the 40.
func (d *datagramTalk) receive(e *end, qp int, r region, id, size int) {
	d.c.Helper()
	r.fill(d.c, 0, 2*ib.GRHSize+4096, "", guardByte)
	e.do(d.c, wire.Request{Op: "recv", QP: qp, WRs: []wire.WR{{ID: uint64(id), SGEs: r.sges(0, ib.GRHSize+size, 1)}}})
}

// send sends size bytes of the requester's memory as one datagram, with immediate data unless imm is 0.
func (d *datagramTalk) send(size int, imm, key uint32) {
	d.c.Helper()
	d.src.fill(d.c, 0, size, fmt.Sprint("datagram ", size), 0)
	verb := "SEND_IMM"
	if imm == 0 {
		verb = "SEND"
	}
	d.req.do(d.c, wire.Request{Op: "send", QP: d.reqQP, WRs: []wire.WR{{ID: 1, Verb: verb, Imm: imm, SGEs: d.src.sges(0, size, 1), AH: d.ah, QPN: d.rspQPN, QKey: key}}})
	if wc := d.poll(d.req, 1, 30000)[0]; wc.Status != 0 || wc.Opcode != "SEND" {
		d.c.Fatalf("requester (%s): completion %+v", d.req.Name, wc)
	}
}

// received checks the datagram that send sent.
func (d *datagramTalk) received(id, size int, imm uint32) {
	d.c.Helper()
	wc := d.poll(d.rsp, 1, 30000)[0]
	want := wire.WC{ID: uint64(id), Opcode: "RECV", Text: wc.Text, Len: ib.GRHSize + size, HasImm: imm != 0, Imm: imm, QPN: wc.QPN, GRH: true, SrcQP: d.reqQPN}
	if wc != want {
		d.c.Fatalf("responder (%s): completion %+v, want %+v", d.rsp.Name, wc, want)
	}
	d.dst.check(d.c, "datagram", ib.GRHSize, size, fmt.Sprint("datagram ", size), 0)
	d.dst.check(d.c, "guard", ib.GRHSize+size, ib.GRHSize, "", guardByte)
}

// datagrams sends two of each size. When we receive, the answer goes to the address that the 40 bytes tell.
func (c *testCase) datagrams(l link) {
	d := c.datagramTalk(l)
	for i, size := range udSizes {
		for n, imm := range []uint32{0, 0x80ff0100 + uint32(i)} {
			d.receive(d.rsp, d.rspQP, d.dst, 100+2*i+n, size)
			d.send(size, imm, qkey)
			d.received(100+2*i+n, size, imm)
		}
	}
	if !d.rsp.side.rxe {
		d.answer()
	}
	d.states("RTS", "RTS")
}

func (d *datagramTalk) answer() {
	d.c.Helper()
	back := d.handle(d.rsp, wire.Request{Op: "back", MR: d.dst.id})
	d.receive(d.req, d.reqQP, d.src, 7, 100)
	d.dst.fill(d.c, 0, 100, "answer", 0)
	d.rsp.do(d.c, wire.Request{Op: "send", QP: d.rspQP, WRs: []wire.WR{{ID: 8, Verb: "SEND", SGEs: d.dst.sges(0, 100, 2), AH: back, QPN: d.reqQPN, QKey: qkey}}})
	d.poll(d.rsp, 1, 30000)
	if wc := d.poll(d.req, 1, 30000)[0]; wc.Status != 0 || wc.ID != 7 || wc.Len != ib.GRHSize+100 || wc.SrcQP != d.rspQPN {
		d.c.Fatalf("the answer completes as %+v", wc)
	}
	d.src.check(d.c, "answer", ib.GRHSize, 100, "answer", 0)
}

// datagramsDropped sends what the other side must drop without a word, and one good datagram behind it.
func (c *testCase) datagramsDropped(l link) {
	d := c.datagramTalk(l)
	d.send(10, 1, qkey) // no receive
	d.settle(l)
	d.receive(d.rsp, d.rspQP, d.dst, 100, 10)
	d.send(10, 2, qkey+1)
	// rxe of 6.1 sees only while it copies that a receive is too short, takes that for a malformed request (rxe_resp.c, send_data_in) and
	// puts its queue pair into ERR. Newer ones look before (rxe_resp_check_length) and drop the packet.
	if !d.rsp.side.rxe || newerThan(c.s.kernel.Release, 6, 1) {
		d.send(11, 3, qkey) // too long for the receive, which waits for the next
	}
	d.send(10, 4, qkey)
	d.received(100, 10, 4)
	d.states("RTS", "RTS")
}

// settle waits until the responder has dealt with all datagrams sent so far: it has, when a message of another connection behind them arrives.
func (d *datagramTalk) settle(l link) {
	d.c.Helper()
	l.service = ""
	n := d.c.connect(l)
	n.rsp.do(d.c, wire.Request{Op: "recv", QP: n.rspQP, WRs: []wire.WR{{ID: 2}}})
	n.req.do(d.c, wire.Request{Op: "send", QP: n.reqQP, WRs: []wire.WR{{ID: 2, Verb: "SEND"}}})
	for _, e := range []*end{n.req, n.rsp} {
		if wc := n.poll(e, 1, 30000)[0]; wc.ID != 2 || wc.Status != 0 {
			d.c.Fatalf("%s: completion %+v of the SEND behind the datagrams", e.Name, wc)
		}
	}
}
