package transport

import (
	"fmt"
	"testing"

	"github.com/goroce/goroce/mem"
)

// reqLocal are the objects of the requester's world that local operations change:
// windows "1", "2A" and "2B", a region "fast" for fast registration.
type reqLocal struct {
	windows map[string]*mem.Window
	fast    *mem.Region
}

func newWindows(t testing.TB, tab *mem.Table) map[string]*mem.Window {
	list := map[string]*mem.Window{}
	for _, typ := range []mem.WindowType{mem.WindowType1, mem.WindowType2A, mem.WindowType2B} {
		w, err := tab.AllocWindow(1, typ)
		if err != nil {
			t.Fatal(err)
		}
		list[typ.String()] = w
	}
	return list
}

func (l *reqLocal) init(w *reqWorld) {
	l.windows = newWindows(w.t, w.tab)
	var err error
	if l.fast, err = w.tab.AllocRegion(8192, 1); err == nil {
		err = l.fast.Map(make([]byte, 8192), reqIOVA)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// key is that of a window, of "fast", of "src", or of nothing.
func (w *reqWorld) key(name string) uint32 {
	switch {
	case w.local.windows[name] != nil:
		return w.local.windows[name].Key()
	case name == "fast":
		return w.local.fast.Key()
	case name == "src":
		return w.src.Key()
	}
	return 0xdeadbe00
}

func (l *reqLocal) bound(name string) string {
	ok := name == "fast" && l.fast.Valid() || name != "fast" && l.windows[name].Bound()
	return fmt.Sprintf("bound %s %v", name, ok)
}

// postLocal: id BIND|INV|REG object [uns] [fence] [bad]. bad is a bind of no region.
func (w *reqWorld) postLocal(f []string) bool {
	var e SendWQE
	key := w.key(f[2])
	bad := f[len(f)-1] == "bad"
	switch f[1] {
	case "BIND":
		b := &mem.Bind{LKey: w.src.Key(), Addr: reqIOVA, Length: 100, Access: mem.RemoteRead}
		if bad {
			b.LKey ^= 1
		}
		e.SetBind(mem.NextKey(key), b)
	case "INV":
		e.SetLocalInv(key)
	case "REG":
		e.SetRegMR(mem.NextKey(key), mem.LocalWrite)
	default:
		return false
	}
	fmt.Sscan(f[0], &e.ID)
	e.Flags = Signaled
	for _, o := range f[3:] {
		switch o {
		case "uns":
			e.Flags &^= Signaled
		case "fence":
			e.Flags |= Fence
		}
	}
	w.posted[e.ID] = &reqPosted{first: w.nextPSN, op: e.Opcode}
	if !w.sq.post(e, nil, nil) {
		w.t.Fatal("send queue is full")
	}
	w.q.Kick(w.now)
	return true
}

// bind opens a window for all of region wr and makes its name that of its key.
func (w *rspWorld) bind(typ string, other bool) {
	who := w.q.self()
	if other {
		who.Num++
	}
	win := newWindows(w.t, w.tab)[typ]
	key := mem.NextKey(win.Key())
	r := w.reg["wr"]
	if s := w.tab.Bind(who, key, &mem.Bind{LKey: r.Key(), Addr: r.Addr(), Length: r.Len(), Access: mem.RemoteRead | mem.RemoteWrite}); s != mem.OK {
		w.t.Fatal(s)
	}
	w.alias[typ] = key
}

// Local operations take their place in the queue but no PSN.
func TestLocalOperations(t *testing.T) {
	runReqCases(t, []reqCase{
		{"IBTA 10.6.7.2: a bind on an idle queue completes at once", `
			post 1 BIND 2B
			wc 1 BIND_MW ok
			bound 2B true
			freed 1
			deadline never`},
		{"an invalidation, a fast registration, a window of each type", `
			post 1 BIND 1
			post 2 BIND 2A
			post 3 BIND 2B
			post 4 REG fast
			post 5 INV fast
			wc 1 BIND_MW ok
			wc 2 BIND_MW ok
			wc 3 BIND_MW ok
			wc 4 REG_MR ok
			wc 5 memory management operation error
			bound fast true
			state ERR`},
		{"... by its new key", `
			post 1 REG fast
			wc 1 REG_MR ok
			bound fast true
			post 2 INV fast
			wc 2 LOCAL_INV ok
			bound fast false`},
		{"IBTA 10.8.3.3: it is executed in its turn, and completes in order", `
			post 1 SEND 1
			post 2 BIND 2B
			post 3 SEND 2
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 2 ack
			bound 2B true
			< ACK 0
			wc 1 SEND ok
			wc 2 BIND_MW ok
			freed 2
			< ACK 1
			wc 3 SEND ok`},
		{"it is not executed before what is before it has begun", `
			room 1
			post 1 SEND 600
			post 2 BIND 2B
			> SEND_FIRST 0 256
			bound 2B false
			room 9
			> SEND_MIDDLE 1 256
			> SEND_LAST 2 88 ack
			bound 2B true
			< ACK 2
			wc 1 SEND ok
			wc 2 BIND_MW ok`},
		{"unsignaled ones complete silently", `
			post 1 BIND 2B uns
			freed 1
			post 2 SEND 1
			post 3 BIND 1 uns
			post 4 SEND 1
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 1 ack
			< ACK 1
			wc 2 SEND ok
			wc 4 SEND ok
			freed 4`},
		{"IBTA 10.8.3.3: with the fence it waits for earlier READs", `
			post 1 READ 1
			post 2 BIND 1
			post 3 BIND 2B fence
			post 4 SEND 1
			> READ 0 va=0 len=1 ack
			bound 1 true
			bound 2B false
			< RONLY 0 1
			> SEND_ONLY 1 1 ack
			wc 1 READ 1 ok
			wc 2 BIND_MW ok
			wc 3 BIND_MW ok
			bound 2B true
			< ACK 1
			wc 4 SEND ok`},
		{"IBTA 10.6.5.1: an invalidation waits for all before it", `
			post 1 BIND 2B
			wc 1 BIND_MW ok
			post 2 SEND 1
			post 3 INV 2B
			post 4 SEND 1
			> SEND_ONLY 0 1 ack
			bound 2B true
			< ACK 0
			> SEND_ONLY 1 1 ack
			wc 2 SEND ok
			wc 3 LOCAL_INV ok
			bound 2B false
			< ACK 1
			wc 4 SEND ok`},
		{"going back does not repeat it", `
			post 1 SEND 1
			post 2 BIND 2A
			post 3 BIND 2B
			post 4 SEND 2
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 2 ack
			at 16.777216ms
			> SEND_ONLY 0 1 ack
			> SEND_ONLY 1 2 ack
			< ACK 1
			wc 1 SEND ok
			wc 2 BIND_MW ok
			wc 3 BIND_MW ok
			wc 4 SEND ok
			state RTS`},
		{"... at the end of the queue", `
			post 1 SEND 1
			post 2 BIND 2A
			> SEND_ONLY 0 1 ack
			at 16.777216ms
			> SEND_ONLY 0 1 ack
			post 3 SEND 1
			> SEND_ONLY 1 1 ack
			< ACK 1
			wc 1 SEND ok
			wc 2 BIND_MW ok
			wc 3 SEND ok`},
		{"IBTA 11.6.2: a failure completes in order and ends the connection", `
			post 1 SEND 1
			post 2 BIND 2B bad
			post 3 SEND 1
			> SEND_ONLY 0 1 ack
			bound 2B false
			< ACK 0
			wc 1 SEND ok
			wc 2 memory management operation error
			wc 3 Work Request Flushed Error
			state ERR
			count req_cqe_error 1
			count req_cqe_flush_error 1`},
		{"each kind of failure has that status", `
			post 1 INV nothing
			wc 1 memory management operation error
			state ERR`},
		{"... of a bind", `
			post 1 BIND 2B bad
			wc 1 memory management operation error
			state ERR`},
		{"... of a registration", `
			post 1 REG src
			wc 1 memory management operation error
			state ERR`},
		{"... unsignaled as well", `
			post 1 INV src uns
			wc 1 memory management operation error`},
		{"what was executed, but not completed, is flushed with the others", `
			post 1 SEND 1
			post 2 BIND 2B
			> SEND_ONLY 0 1 ack
			bound 2B true
			< NAK 0 acc
			wc 1 remote access error
			wc 2 Work Request Flushed Error
			bound 2B true
			count req_cqe_flush_error 1`},
		{"IBTA 10.3.1.5: in SQD none begins, and one that was executed is not given back", `
			post 1 SEND 1
			post 2 BIND 2B
			post 3 BIND 1
			> SEND_ONLY 0 1 ack
			bound 1 true
			modify sqd notify
			post 4 BIND 2A
			bound 2A false
			< ACK 0
			wc 1 SEND ok
			wc 2 BIND_MW ok
			wc 3 BIND_MW ok
			event send queue drained
			bound 2A false
			modify rts
			wc 4 BIND_MW ok
			bound 2A true`},
		{"... with nothing before it", `
			post 1 BIND 2B
			wc 1 BIND_MW ok
			modify sqd notify
			event send queue drained
			post 2 BIND 1
			modify rts
			wc 2 BIND_MW ok`},
		{"in ERR they are flushed", `
			modify err
			post 1 BIND 2B
			wc 1 Work Request Flushed Error
			bound 2B false`},
	})
}

// On UC there is nothing to wait for.
func TestLocalOperationsUC(t *testing.T) {
	runUnreliable(t, UC, []reqCase{
		{"IBTA 10.6.7.2: they take their place in the queue", `
			post 1 SEND 1
			post 2 BIND 2B
			post 3 INV src
			post 4 SEND 1
			> SEND_ONLY 0 1
			wc 1 SEND ok
			wc 2 BIND_MW ok
			wc 3 memory management operation error
			wc 4 Work Request Flushed Error
			bound 2B true
			freed 4
			state SQE`},
	})
	runUnreliable(t, UD, []reqCase{
		{"IBTA 9.2: a datagram queue pair has none", `
			post 1 BIND 1
			wc 1 local QP operation error
			bound 1 false`},
	})
}

// A turn executes a bounded number of local operations.
func TestLocalOperationsTakeTurns(t *testing.T) {
	w := newReqWorld(t, 0)
	w.connect()
	for i := range 64 {
		w.postLocal([]string{fmt.Sprint(i), "BIND", "1"})
	}
	if n := w.q.Transmit(w.now, &w.out, 10*minCharge); n != 10*minCharge || len(w.wcs) != 10 {
		t.Errorf("a turn of %d bytes: %d, and %d completions", 10*minCharge, n, len(w.wcs))
	}
	if w.q.Wants()&WantData == 0 {
		t.Error("does not want to go on")
	}
	if w.pump(); len(w.wcs) != 64 {
		t.Errorf("%d completions in the end", len(w.wcs))
	}
}

func TestSendWithInvalidate(t *testing.T) {
	runReqCases(t, []reqCase{
		{"IBTA 9.4.1: the key is in the last packet", `
			post 1 SENDINV 300 imm=77 se
			> SEND_FIRST 0 256
			> SEND_LAST_INV 1 44 inv=77 ack se
			< ACK 1
			wc 1 SEND ok
			count rdma_sends 1`},
		{"IBTA 9.4.1: or in the only one", `
			post 1 SENDINV 0 imm=99
			> SEND_ONLY_INV 0 0 inv=99 ack
			< ACK 0
			wc 1 SEND ok`},
		{"... inline", `
			post 1 SENDINV 5 imm=99 inline
			> SEND_ONLY_INV 0 5 inv=99 ack
			< ACK 0
			wc 1 SEND ok`},
	})
}

// The responder's side of windows and of SEND with invalidate.
func TestResponderWindows(t *testing.T) {
	const denied = `
		event local access violation work queue error
		state ERR`
	read := func(a *Attr) { a.MaxDestRdAtomic = 4 }
	runTalks(t, []rspTalk{
		{name: "WRITE through a window", rule: "IBTA 10.6.7.2", script: `
			! bind 1
			> RDMA_WRITE_ONLY 0 10 @100 key=1 ack
			< ACK 0 msn=1
			mem wr@100 0:10
			! bind 2A
			! bind 2B
			> RDMA_WRITE_ONLY 1 10 @100 key=2A
			> RDMA_WRITE_ONLY 2 10 @100 key=2B ack
			< ACK 2 msn=3
			mem wr@100 2:10`},
		{name: "READ through a window", rule: "IBTA 10.6.7.2", script: `
			! bind 2B
			> RDMA_READ_REQUEST 0 @512 len=300 key=2B
			< FIRST 0 256 msn=1 @512
			< LAST 1 44 msn=1 @768`},
		{name: "a window of another queue pair, 2A", rule: "IBTA 10.6.7.2", script: `
			! bind 2A other
			> RDMA_WRITE_ONLY 0 10 key=2A
			< NAK 0 remote access error` + denied},
		{name: "a window of another queue pair, 2B", rule: "IBTA 10.6.7.2", script: `
			! bind 2B other
			> RDMA_READ_REQUEST 0 len=10 key=2B
			< NAK 0 remote access error` + denied},
		{name: "a window of another queue pair, type 1", rule: "IBTA 10.6.7.2", script: `
			! bind 1 other
			> RDMA_WRITE_ONLY 0 10 key=1 ack
			< ACK 0 msn=1`},
		{name: "SEND with invalidate", rule: "IBTA 9.4.1: the window is closed before the receive completes", script: `
			! bind 2B
			! recv 100
			> SEND_ONLY_WITH_INVALIDATE 0 10 key=2B ack se
			< ACK 0 msn=1
			wc RECV 1 10 inv=2B se
			mem rb@0 0:10
			> RDMA_WRITE_ONLY 1 10 key=2B
			< NAK 1 remote access error` + denied},
		{name: "SEND with invalidate of several packets", rule: "IBTA 9.4.1: the last packet has the key", script: `
			! bind 2A
			! recv 600
			> SEND_FIRST 0 256
			> SEND_MIDDLE 1 256
			> SEND_LAST_WITH_INVALIDATE 2 7 key=2A ack
			< ACK 2 msn=1
			wc RECV 1 519 inv=2A
			state RTS`},
		{name: "a duplicate of it", rule: "IBTA C9-105: acknowledged, not executed", script: `
			! bind 2B
			! recv 100
			! recv 100
			> SEND_ONLY_WITH_INVALIDATE 0 10 key=2B ack
			< ACK 0 msn=1
			wc RECV 1 10 inv=2B
			! bind 2B
			> SEND_ONLY_WITH_INVALIDATE 0 10 key=2B ack
			< ACK 0 msn=1
			> RDMA_WRITE_ONLY 1 10 key=2B ack
			< ACK 1 msn=2`},
		{name: "a key that it may not close", rule: "IBTA 9.9.3.1 class J: ACK, the receive ends in error", script: `
			! recv 100
			! recv 100
			> SEND_ONLY_WITH_INVALIDATE 0 10 key=bad ack
			< ACK 0 msn=1
			wc RECV 1 remote invalid request error
			wc RECV 2 Work Request Flushed Error
			state ERR
			count resp_cqe_error 1`},
		{name: "... a region", rule: "IBTA 9.9.3.1 class J", script: `
			! recv 100
			> SEND_ONLY_WITH_INVALIDATE 0 10 key=mr ack
			< ACK 0 msn=1
			wc RECV 1 remote invalid request error
			state ERR`},
		{name: "... a type 1 window", rule: "o10-37.2.26, IBTA 9.9.3.1 class J", script: `
			! bind 1
			! recv 100
			> SEND_ONLY_WITH_INVALIDATE 0 10 key=1
			wc RECV 1 remote invalid request error
			state ERR`},
		{name: "... the window of another queue pair", rule: "IBTA 10.6.7.2, 9.9.3.1 class J", script: `
			! bind 2B other
			! recv 100
			> SEND_ONLY_WITH_INVALIDATE 0 10 key=2B ack
			< ACK 0 msn=1
			wc RECV 1 remote invalid request error
			state ERR`},
		{name: "no receive for it", rule: "IBTA 9.7.5.2.8: nothing is closed before the message is taken", script: `
			! bind 2B
			> SEND_ONLY_WITH_INVALIDATE 0 10 key=2B ack
			< RNR 0 640µs
			> RDMA_WRITE_ONLY 0 10 key=2B ack
			< ACK 0 msn=1`},
		{name: "closed in the middle of a WRITE", rule: "IBTA 9.7.4.1.5: an old cursor is of no use", script: `
			! bind 2B
			> RDMA_WRITE_FIRST 0 256 len=300 key=2B
			mem wr@0 0:256
			! close 2B
			> RDMA_WRITE_LAST 1 44 ack
			< NAK 1 remote access error
			mem wr@0 0:256` + denied},
		{name: "closed in the middle of a READ", rule: "IBTA 9.7.4.1.5", attr: read, script: `
			! bind 2B
			! hold
			> RDMA_READ_REQUEST 0 len=600 key=2B
			! data 1
			< FIRST 0 256 msn=1 @0
			! close 2B
			< NAK 1 remote access error` + denied},
		{name: "a READ again after its window was closed", rule: "IBTA 9.9.3 class D: a late duplicate does no harm", attr: read, script: `
			! bind 2B
			! recv 100
			> RDMA_READ_REQUEST 0 len=10 key=2B
			< ONLY 0 10 msn=1 @0
			> SEND_ONLY_WITH_INVALIDATE 1 10 key=2B ack
			< ACK 1 msn=2
			wc RECV 1 10 inv=2B
			> RDMA_READ_REQUEST 0 len=10 key=2B
			nothing
			count drop_no_resource 1
			state RTS
			> RDMA_WRITE_ONLY 2 10 ack
			< ACK 2 msn=3`},
	})
}

// Nothing that the packet path does with windows allocates.
func TestLocalOperationsAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w := newReqWorld(t, 0)
	sink := &reqSink{}
	w.cfg.SendCQ, w.cfg.RecvCQ = sink, sink
	w.connect()
	win, fast := w.local.windows["2B"].Key(), w.local.fast.Key()
	bind := &mem.Bind{LKey: w.src.Key(), Addr: reqIOVA, Length: 100, Access: mem.RemoteRead}
	cycle := func() {
		var list [4]SendWQE
		list[0].SetBind(win, bind)
		list[1].SetLocalInv(win)
		list[2].SetRegMR(fast, mem.LocalWrite)
		list[3].SetLocalInv(fast)
		for _, e := range list {
			e.Flags = Signaled
			w.sq.post(e, nil, nil)
		}
		w.q.Kick(w.now)
		for w.q.Wants() != 0 {
			w.q.Transmit(w.now, &w.out, 1<<16)
		}
		win, fast = mem.NextKey(win), mem.NextKey(fast)
	}
	cycle()
	if n := testing.AllocsPerRun(200, cycle); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if sink.n != 4*202 || sink.wc.Status != WCSuccess {
		t.Errorf("%d completions, the last %v", sink.n, sink.wc.Status)
	}
}
