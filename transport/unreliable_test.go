package transport

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/mem"
)

// testAHs are address handles 5 and 6, in protection domain 1.
type testAHs struct{}

func (testAHs) Path(h uint32, pd mem.PD) (Path, bool) {
	switch {
	case h == 5 && pd == 1:
		return Path{Dst: netip.MustParseAddr("192.0.2.5")}, true
	case h == 6 && pd == 1:
		return Path{Dst: netip.MustParseAddr("2001:db8::6"), TOS: 4}, true
	}
	return Path{}, false
}

// runUnreliable runs each script with PSNs that wrap and with others.
func runUnreliable(t *testing.T, typ QPType, cases []reqCase) {
	for _, c := range cases {
		for _, base := range []ib.PSN{1000, 0xffffff} {
			t.Run(fmt.Sprintf("%s/%v", c.rule, base), func(t *testing.T) {
				w := newReqWorld(t, base)
				w.cfg.Type, w.cfg.AHs, w.cfg.MTU = typ, testAHs{}, 512
				w.attr.QKey = 0x80000009
				w.run(c.script)
			})
		}
	}
}

func TestUCSender(t *testing.T) {
	runUnreliable(t, UC, []reqCase{
		{"IBTA 9.8.2.1: a request completes when its last packet has left, nothing asks for an ACK", `
			post 1 SEND 600 se
			> SEND_FIRST 0 256
			> SEND_MIDDLE 1 256
			> SEND_LAST 2 88 se
			wc 1 SEND ok
			freed 1
			deadline never
			post 2 SENDI 0 imm=7
			> SEND_ONLY_IMM 3 0 imm=7
			wc 2 SEND ok
			post 3 SENDI 257 imm=8 se
			> SEND_FIRST 4 256
			> SEND_LAST_IMM 5 1 imm=8 se
			wc 3 SEND ok
			count rdma_sends 3`},
		{"IBTA 9.3.3.1, 9.2.3: the RETH names the whole message; a WRITE without immediate solicits nothing", `
			post 1 WRITE 300 va=16 se
			post 2 WRITE 3 sges=3
			post 3 WRITEI 256 imm=5 se
			post 4 WRITEI 512 imm=6
			> WRITE_FIRST 0 256 va=16 len=300
			> WRITE_LAST 1 44
			> WRITE_ONLY 2 3 va=0 len=3
			> WRITE_ONLY_IMM 3 256 va=0 len=256 imm=5 se
			> WRITE_FIRST 4 256 va=0 len=512
			> WRITE_LAST_IMM 5 256 imm=6
			wc 1 WRITE ok
			wc 2 WRITE ok
			wc 3 WRITE ok
			wc 4 WRITE ok`},
		{"libibverbs: without Signaled no completion, and the entry is free all the same", `
			post 1 SEND 1 uns
			post 2 SEND 1 inline
			> SEND_ONLY 0 1
			> SEND_ONLY 1 1
			wc 2 SEND ok
			freed 2`},
		{"an outbox without room stops a message in its middle", `
			room 2
			post 1 SEND 600
			> SEND_FIRST 0 256
			> SEND_MIDDLE 1 256
			freed 0
			room -1
			> SEND_LAST 2 88
			wc 1 SEND ok`},
		{"IBTA 10.3.1.6: a request that fails locally completes with its error, the rest flushed, and sending stops in SQE", `
			post 1 SEND 1
			post 2 SEND 10 key=4
			post 3 SEND 1 uns
			> SEND_ONLY 0 1
			wc 1 SEND ok
			wc 2 local protection error
			wc 3 Work Request Flushed Error
			state SQE
			freed 3
			post 4 SEND 1
			wc 4 Work Request Flushed Error
			modify rts
			post 5 SEND 2 psn=1
			> SEND_ONLY 1 2
			wc 5 SEND ok
			state RTS`},
		{"memory that goes away in the middle of a message", `
			room 1
			post 1 SEND 600
			> SEND_FIRST 0 256
			dereg src
			room -1
			wc 1 local protection error
			state SQE`},
		{"IBTA 9.2, table of operations: UC has no READ and no atomics", `
			post 1 READ 1
			wc 1 local QP operation error
			state SQE
			modify rts
			post 2 FADD 8
			wc 2 local QP operation error
			count req_cqe_error 2`},
		{"IBTA 10.3.1.5: SQD finishes the message that was begun, then tells", `
			room 1
			post 1 SEND 600
			post 2 SEND 1
			> SEND_FIRST 0 256
			modify sqd notify
			room -1
			> SEND_MIDDLE 1 256
			> SEND_LAST 2 88
			wc 1 SEND ok
			event send queue drained
			post 3 SEND 1
			modify rts
			> SEND_ONLY 3 1
			> SEND_ONLY 4 1
			wc 2 SEND ok
			wc 3 SEND ok`},
		{"IBTA 10.3.1.5: an idle queue is drained at once", `
			modify sqd notify
			event send queue drained`},
		{"IBTA 10.3.1.7: ERR flushes, also in the middle of a message", `
			room 1
			post 1 SEND 600
			post 2 SEND 1
			> SEND_FIRST 0 256
			modify err
			wc 1 Work Request Flushed Error
			wc 2 Work Request Flushed Error
			post 3 SEND 1
			wc 3 Work Request Flushed Error
			modify reset
			state RESET`},
	})
}

func TestUDSender(t *testing.T) {
	runUnreliable(t, UD, []reqCase{
		{"IBTA 9.8.3.1: each datagram goes where its request says", `
			post 1 SEND 512 ah=5 qp=17 qkey=0x11111111 se
			> UD_SEND_ONLY 0 512 se to {192.0.2.5 0 0 false} qp=17 qkey=0x11111111 src=0x111111
			wc 1 SEND ok
			post 2 SENDI 0 ah=6 qp=1 qkey=2 imm=9
			> UD_SEND_ONLY_IMM 1 0 imm=9 to {2001:db8::6 0 4 false} qp=1 qkey=0x2 src=0x111111
			wc 2 SEND ok
			freed 2
			deadline never`},
		{"IBTA 10.2.5: the high bit of the Q_Key stands for the queue pair's own", `
			post 1 SEND 1 ah=5 qp=17 qkey=0x80000001
			> UD_SEND_ONLY 0 1 to {192.0.2.5 0 0 false} qp=17 qkey=0x80000009 src=0x111111
			wc 1 SEND ok`},
		{"IBTA 9.8.3: more than one packet is no datagram; SQE, and RTS goes on with the next PSN", `
			post 1 SEND 1 ah=5 qp=17
			post 2 SEND 513 ah=5 qp=17
			post 3 SEND 1 ah=5 qp=17
			> UD_SEND_ONLY 0 1 to {192.0.2.5 0 0 false} qp=17 qkey=0x0 src=0x111111
			wc 1 SEND ok
			wc 2 local length error
			wc 3 Work Request Flushed Error
			state SQE
			modify rts
			post 4 SEND 512 ah=5 qp=17 psn=1
			> UD_SEND_ONLY 1 512 to {192.0.2.5 0 0 false} qp=17 qkey=0x0 src=0x111111
			wc 4 SEND ok`},
		{"an address handle that is not there, or of another domain", `
			post 1 SEND 1 ah=7 qp=17
			wc 1 local QP operation error
			state SQE`},
		{"no queue pair 0", `
			post 1 SEND 1 ah=5
			wc 1 local QP operation error
			state SQE`},
		{"UD has no WRITE", `
			post 1 WRITE 1 ah=5 qp=17
			wc 1 local QP operation error
			state SQE`},
		{"SQE flushes and ERR after it, too", `
			post 1 WRITE 1
			wc 1 local QP operation error
			modify err
			post 2 SEND 1 ah=5 qp=17
			wc 2 Work Request Flushed Error
			state ERR`},
	})
}

// Of another protection domain an address handle is as good as none.
func TestUDForeignHandle(t *testing.T) {
	w := newReqWorld(t, 0)
	w.cfg.Type, w.cfg.AHs, w.cfg.MTU, w.cfg.PD = UD, testAHs{}, 512, 2
	w.run(`
		post 1 SEND 0 ah=5 qp=17
		wc 1 local QP operation error`)
}

// Posting, sending and completing allocates nothing.
func TestUnreliableAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, typ := range []QPType{UC, UD} {
		w := newReqWorld(t, 0)
		w.cfg.Type, w.cfg.AHs, w.cfg.MTU = typ, testAHs{}, 512
		w.cfg.SendCQ, w.cfg.RecvCQ = nullCQ{}, nullCQ{}
		w.connect()
		out := &fixedOutbox{}
		list := []mem.SGE{{Addr: reqIOVA, Length: 500, LKey: w.src.Key()}}
		if n := testing.AllocsPerRun(100, func() {
			w.sq.post(SendWQE{Opcode: WRSend, Flags: Signaled, AH: 5, RemoteQPN: 17}, list, nil)
			w.q.Kick(0)
			w.q.Transmit(0, out, 1<<16)
		}); n != 0 {
			t.Errorf("%v: %v allocations", typ, n)
		}
		if packets := map[QPType]int{UC: 2, UD: 1}[typ]; out.n != 101*packets {
			t.Errorf("%v: %d packets", typ, out.n)
		}
	}
}

type nullCQ struct{}

func (nullCQ) Push(*WC) {}

// fixedOutbox has room for one packet, again and again.
type fixedOutbox struct {
	buf [8192]byte
	n   int
}

func (o *fixedOutbox) Packet(_ *Path, n int) []byte { return o.buf[:n] }
func (o *fixedOutbox) Commit()                      { o.n++ }
