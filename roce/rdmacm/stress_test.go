package rdmacm_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rdmacm"
)

// small is a queue pair for many connections.
var small = roce.QPConfig{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}

// serveAll accepts whatever comes until the listener is closed, and closes each
// connection when the peer has disconnected. The channel is closed when all is over.
func serveAll(c context.Context, l *rdmacm.Listener, cfg rdmacm.Config) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		var all sync.WaitGroup
		defer all.Wait()
		for {
			r, err := l.Accept(c)
			if err != nil {
				return
			}
			all.Go(func() {
				conn, err := r.Accept(c, cfg)
				if err != nil {
					return // the peer has gone
				}
				<-conn.Done()
				conn.Shutdown(c)
			})
		}
	}()
	return over
}

// settled waits until nothing is left of any connection.
func settled(t testing.TB, devs ...*roce.Device) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for _, d := range devs {
		for rdmacm.Left(d) > 0 {
			if time.Now().After(end) {
				t.Fatalf("%d connections are left on %v", rdmacm.Left(d), d.Addr())
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// heap returns the bytes in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMany: thousands of connections are set up and torn down, many at a time, and
// leave nothing behind: no id, no goroutine, no memory.
func TestMany(t *testing.T) {
	total, atATime := 10000, 1000
	if raceEnabled {
		total, atATime = 500, 100
	}
	a, b := pair(t)
	l := listen(t, b, rdmacm.TCP)
	c, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cfg := rdmacm.Config{QP: small, Linger: -1, AckTimeout: 20 * time.Millisecond, Device: a, ResponseTimeout: 2 * time.Second}
	over := serveAll(c, l, rdmacm.Config{QP: small, Linger: -1})
	rdmacm.Left(a) // makes the manager of its port
	memory, goroutines := heap(), runtime.NumGoroutine()
	began := time.Now()
	var all sync.WaitGroup
	var left atomic.Int32
	left.Store(int32(total))
	for range atATime {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				conn, err := rdmacm.Dial(c, l.Addr().String(), cfg)
				if err != nil {
					t.Error(err)
					return
				}
				if err := conn.Disconnect(c, nil); err != nil && !errors.Is(err, rdmacm.ErrDisconnected) {
					t.Error(err)
				}
				conn.Close()
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	t.Logf("%d connections set up and torn down, %d at a time: %.0f per second", total, atATime, float64(total)/took.Seconds())
	settled(t, a, b)
	must(t, l.Close())
	<-over
	if grown := heap() - memory; grown > 16<<20 {
		t.Errorf("%d bytes are left", grown)
	}
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines are left, there were %d", runtime.NumGoroutine(), goroutines)
		}
	}
}

// TestLoss: when one message of twenty is lost in each direction, connections come
// about and end all the same.
func TestLoss(t *testing.T) {
	devs := devices(t, netio.Faults{Loss: 0.05}, "10.0.0.1", "10.0.0.2")
	l := listen(t, devs[1], rdmacm.TCP)
	c, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cfg := rdmacm.Config{Device: devs[0], QP: small, Linger: -1, AckTimeout: 5 * time.Millisecond, ResponseTimeout: 200 * time.Millisecond}
	over := serveAll(c, l, rdmacm.Config{QP: small, Linger: -1})
	before := rdmacm.Counters()["cm_tx_retries_req"]
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 10 {
				conn, err := rdmacm.Dial(c, l.Addr().String(), cfg)
				if err != nil {
					t.Error(err)
					return
				}
				if err := conn.Disconnect(c, nil); err != nil {
					t.Error(err)
				}
				conn.Close()
			}
		})
	}
	all.Wait()
	settled(t, devs...)
	must(t, l.Close())
	<-over
	if t.Failed() {
		t.Logf("counters %v\n%v\n%v", rdmacm.Counters(), devs[0].Counters(), devs[1].Counters())
	}
	lost, repeated := devs[0].Counters()["fault_drop"]+devs[1].Counters()["fault_drop"], rdmacm.Counters()["cm_tx_retries_req"]-before
	if lost == 0 || repeated == 0 {
		t.Errorf("%d messages were lost, %d requests repeated", lost, repeated)
	}
}

// TestFlood: forged requests in any number leave memory bounded, and somebody who
// means it connects while they come.
func TestFlood(t *testing.T) {
	total := int64(100000)
	if raceEnabled {
		total = 5000
	}
	devs := devices(t, netio.Faults{}, "10.0.0.1", "10.0.0.2", "10.0.0.66")
	l := listen(t, devs[1], rdmacm.TCP)
	c, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	over := serveAll(c, l, rdmacm.Config{QP: small, Linger: -1})
	memory := heap()
	g, err := devs[2].GSI()
	must(t, err)
	var connected atomic.Bool
	flooded := make(chan int64)
	go func() {
		rng := rand.New(rand.NewPCG(1, 2))
		n := int64(0)
		for ; n < total || !connected.Load() && c.Err() == nil; n++ {
			if err := ask(g, addrPort("10.0.0.66"), l.Addr(), mad.REQ{LocalCommID: rng.Uint32(), LocalCAGUID: rng.Uint64(), LocalQPN: ib.QPN(2 + rng.Uint32N(1<<23))}); errors.Is(err, roce.ErrQueueFull) {
				time.Sleep(time.Millisecond) // its network is busy
			} else if err != nil {
				t.Error(err)
				break
			}
			if n%256 == 0 {
				runtime.Gosched()
			}
		}
		flooded <- n
	}()
	conn, err := rdmacm.Dial(c, l.Addr().String(), rdmacm.Config{Device: devs[0], QP: small, Linger: -1, ResponseTimeout: 50 * time.Millisecond, Retries: 15})
	connected.Store(true)
	if err != nil {
		t.Errorf("connecting during the flood: %v", err)
	} else {
		must(t, conn.Close())
	}
	n := <-flooded
	if grown := heap() - memory; grown > 128<<20 {
		t.Errorf("%d forged requests take %d MiB", n, grown>>20)
	}
	t.Logf("%d forged requests, %d known at the end, %d MiB of memory", n, rdmacm.Left(devs[1]), (heap()-memory)>>20)
	must(t, l.Close())
	cancel()
	<-over
}
