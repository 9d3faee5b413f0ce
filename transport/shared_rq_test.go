package transport

import "testing"

// TestSharedReceiveQueue: a queue pair that goes to ERR flushes of a shared
// receive queue only the receive that it has taken for a message, and tells that
// no other will complete (IBTA 10.2.9.3, 11.6.3.1; Linux rxe_resp.c).
func TestSharedReceiveQueue(t *testing.T) {
	for _, c := range []struct{ name, script string }{
		{"forced to ERR, idle", `
			! recv 10
			! err
			event last WQE reached
			state ERR`},
		{"forced to ERR in a message", `
			! recv 300
			! recv 300
			> SEND_FIRST 0 256
			nothing
			! err
			wc RECV 1 Work Request Flushed Error
			event last WQE reached
			count resp_cqe_flush_error 1`},
		{"told once", `
			! err
			event last WQE reached
			! err
			nothing
			! recv 10
			nothing`},
		{"its own error", `
			! recv 4
			! recv 10
			> SEND_ONLY 0 5 ack
			< NAK 0 invalid request
			wc RECV 1 local length error
			event last WQE reached
			state ERR`},
		{"error of the peer", `
			! recv 4
			> RDMA_WRITE_ONLY 0 4 key=bad
			< NAK 0 remote access error
			event local access violation work queue error
			event last WQE reached
			state ERR`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newRspWorld(t, rspAttr())
			w.q.cfg.SharedRQ = true
			w.run(c.script)
			if w.q.state != Err {
				t.Error("not in ERR at the end")
			}
		})
	}
}

// TestSharedReceiveQueueOfUnreliable: the same rules for UC and UD, which take
// receives one message at a time: one that finds none is dropped, and what a broken
// message of UC had taken serves the next.
func TestSharedReceiveQueueOfUnreliable(t *testing.T) {
	for _, c := range []struct {
		name   string
		typ    QPType
		script string
	}{
		{"UC in a message", UC, `
			! recv 300
			! recv 300
			> UC_SEND_FIRST 0 256
			nothing
			! err
			wc RECV 1 Work Request Flushed Error
			event last WQE reached`},
		{"UC with what a broken message had taken", UC, `
			! recv 300
			! recv 300
			> UC_SEND_FIRST 0 256
			> UC_SEND_ONLY 2 3
			wc RECV 1 3
			! err
			event last WQE reached`},
		{"UC with a bad buffer", UC, `
			! recvbad
			! recv 300
			> UC_SEND_ONLY 0 3
			wc RECV 1 local protection error
			event last WQE reached
			state ERR`},
		{"UC, empty", UC, `
			> UC_SEND_ONLY 0 3
			count drop_no_receive 1
			state RTS
			! err
			event last WQE reached`},
		{"UD, one that was too small", UD, `
			! recv 40
			! recv 300
			> UD_SEND_ONLY 0 3
			count resp_local_length_error 1
			! err
			wc RECV 1 Work Request Flushed Error
			event last WQE reached`},
		{"UD, empty", UD, `
			> UD_SEND_ONLY 0 3
			count drop_no_receive 1
			state RTS
			! err
			event last WQE reached`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newRspWorldOf(t, c.typ, rspAttr())
			w.q.cfg.SharedRQ = true
			w.run(c.script)
			if w.q.state != Err {
				t.Error("not in ERR at the end")
			}
		})
	}
}

// TestSharedReceiveQueueReset: RESET and destruction leave the shared queue as it
// is and give up what was taken from it, without a completion.
func TestSharedReceiveQueueReset(t *testing.T) {
	w := newRspWorld(t, rspAttr())
	w.q.cfg.SharedRQ = true
	w.run(`
		! recv 300
		! recv 300
		> SEND_FIRST 0 256
		nothing`)
	if err := w.q.Modify(0, &Attr{State: Reset}, MaskState); err != nil {
		t.Fatal(err)
	}
	w.q.Destroy()
	if len(w.rq) != 1 || len(w.wcs) != 0 || len(w.events) != 0 {
		t.Errorf("%d receives left, completions %v, events %v; want 1 and none", len(w.rq), w.wcs, w.events)
	}
}
