package roce_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
	"golang.org/x/sys/unix"
)

// readable says whether a descriptor polls readable within a time.
func readable(t *testing.T, fd int, wait time.Duration) bool {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, int(wait.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		must(t, err)
		return n == 1 && p[0].Revents == unix.POLLIN
	}
}

// TestEventDescriptors: the descriptors poll readable exactly while there is an
// event, whether it was there before the descriptor or not.
func TestEventDescriptors(t *testing.T) {
	w := newWatched(t)
	must(t, w.cq.ReqNotify(false))
	w.send(0)
	fd, err := w.ch.FD()
	must(t, err)
	if again, err := w.ch.FD(); again != fd || err != nil {
		t.Errorf("second descriptor %d, %v, want %d", again, err, fd)
	}
	if !readable(t, fd, 0) {
		t.Error("not readable with an event that was there before")
	}
	w.want("the event", 1)
	if readable(t, fd, 0) {
		t.Error("readable without an event")
	}
	for range 3 {
		must(t, w.cq.ReqNotify(false))
		w.send(0)
	}
	for left := 3; left > 0; left-- {
		if !readable(t, fd, 0) {
			t.Errorf("not readable with %d events", left)
		}
		cq, err := w.ch.GetEvent(context.Background())
		must(t, err)
		must(t, cq.AckEvents(1))
	}
	if readable(t, fd, 0) {
		t.Error("readable without an event")
	}
	must(t, w.cq.ReqNotify(false))
	w.send(0)
	must(t, w.qb.Destroy())
	must(t, w.cq.Destroy())
	if readable(t, fd, 0) {
		t.Error("readable although the only event went with its queue")
	}

	async, err := w.a.Dev.EventFD()
	must(t, err)
	none(t, w.a.Dev)
	if readable(t, async, 0) {
		t.Error("readable without an asynchronous event")
	}
	must(t, w.qa.Modify(&roce.Attr{State: roce.StateSQD, SQDrainNotify: true}, roce.MaskState|roce.MaskSQDNotify))
	w.progress()
	if !readable(t, async, 0) {
		t.Error("not readable with an asynchronous event")
	}
	next(t, w.a.Dev, roce.EventSQDrained)
	if readable(t, async, 0) {
		t.Error("readable after the asynchronous event")
	}

	must(t, w.b.Dev.Close())
	if !readable(t, fd, 0) {
		t.Error("not readable after Close")
	}
	must(t, w.ch.Destroy())
	if _, err := w.ch.FD(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("FD after Destroy: %v", err)
	}
}

// descriptors returns what the open descriptors of the process are.
func descriptors(t *testing.T) map[string]int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	kinds := map[string]int{}
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			kinds[to]++
		}
	}
	return kinds
}

// TestCloseLeavesNothing: a device that is closed with everything in use, requests
// under way and goroutines waiting on all that can be waited on, leaves no
// goroutine and no descriptor, and flushes every request.
func TestCloseLeavesNothing(t *testing.T) {
	use := func(port uint16) {
		d, err := roce.Open(roce.Config{Addr: netip.MustParseAddr("127.0.0.1"), Port: port})
		must(t, err)
		ch, err := d.CreateCompChannel()
		must(t, err)
		fd, err := ch.FD()
		must(t, err)
		_, err = d.EventFD()
		must(t, err)
		cq, err := d.CreateCQ(64, roce.OnChannel(ch))
		must(t, err)
		must(t, cq.Moderate(50, 60*time.Millisecond))
		e := rocetest.New(t, d, rocetest.Options{})
		srq, err := e.PD.CreateSRQ(roce.SRQConfig{})
		must(t, err)
		shared, err := e.PD.CreateQP(roce.QPConfig{SendCQ: e.CQ, RecvCQ: cq, SRQ: srq})
		must(t, err)
		silent := roce.Remote{Addr: netip.MustParseAddr("127.0.0.3"), QPN: 99, PSN: 1}
		must(t, e.QP.Connect(silent, roce.Conn{}))
		must(t, shared.Connect(silent, roce.Conn{}))
		must(t, srq.PostRecv(roce.RecvWR{}, roce.RecvWR{}))
		for i := range 10 {
			must(t, e.QP.PostSend(roce.SendWR{ID: uint64(i), Opcode: roce.WRSend, SGE: []roce.SGE{e.MR.SGE(0, 100000)}}))
			must(t, e.QP.PostRecv(roce.RecvWR{ID: 100}))
		}
		var waiting sync.WaitGroup
		closed := func(what string, f func() error) {
			waiting.Go(func() {
				for {
					if err := f(); err != nil {
						if !errors.Is(err, net.ErrClosed) {
							t.Errorf("%s: %v", what, err)
						}
						return
					}
				}
			})
		}
		flushed := make(chan int, 1)
		waiting.Go(func() {
			var wc [8]roce.WC
			total := 0
			for {
				n, err := e.CQ.Wait(context.Background(), wc[:])
				if err != nil {
					flushed <- total
					return
				}
				for _, c := range wc[:n] {
					if c.Status != roce.WCWRFlushErr {
						t.Errorf("completion %+v", c)
					}
				}
				total += n
			}
		})
		for range 2 {
			closed("NextEvent", func() error { _, err := d.NextEvent(context.Background()); return err })
			closed("GetEvent", func() error { _, err := ch.GetEvent(context.Background()); return err })
			closed("Wait", func() error { _, err := cq.Wait(context.Background(), make([]roce.WC, 1)); return err })
		}
		time.Sleep(2 * time.Millisecond) // let them wait; right either way
		must(t, d.Close())
		waiting.Wait()
		if n := <-flushed; n != 20 {
			t.Errorf("%d requests were flushed, want 20", n)
		}
		if !readable(t, fd, 0) {
			t.Error("the channel's descriptor is not readable")
		}
		must(t, ch.Destroy())
		if err := srq.PostRecv(roce.RecvWR{}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("SRQ.PostRecv after Close: %v", err)
		}
		// What is left can be taken down in any order, or not at all.
		must(t, srq.Destroy())
		must(t, cq.Destroy())
	}
	use(freePort()) // what the runtime and netlink keep
	before, goroutines := descriptors(t), runtime.NumGoroutine()
	for range 3 {
		use(freePort())
	}
	noMoreGoroutines(t, goroutines)
	for to, n := range descriptors(t) {
		if n > before[to] {
			t.Errorf("descriptor %s: %d, %d before", to, n, before[to])
		}
	}
}

// TestPanicRings: the descriptor of a completion channel is readable for ever once
// the engine has panicked.
func TestPanicRings(t *testing.T) {
	fuse := &bomb{Backend: openFabric(t, netio.NewFabric(), "10.0.0.1")}
	d, err := roce.Open(roce.Config{Backend: fuse, Manual: true})
	must(t, err)
	defer d.Close()
	ch, err := d.CreateCompChannel()
	must(t, err)
	defer ch.Destroy()
	fd, err := ch.FD()
	must(t, err)
	fuse.recv.Store(true)
	d.Progress(1)
	if !readable(t, fd, 0) {
		t.Error("not readable after the panic")
	}
	if _, err := ch.GetEvent(context.Background()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("GetEvent: %v", err)
	}
}
