package roce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// manyPairs are connected queue pairs of two devices with several engines. Those of a
// device share a completion queue and a shared receive queue.
type manyPairs struct {
	devs [2]*roce.Device
	pds  [2]*roce.PD
	cqs  [2]*roce.CQ
	mrs  [2]*roce.MR
	srqs [2]*roce.SRQ
	qps  [2][]*roce.QP
}

const pairMemory = 64 << 10 // of each queue pair

func newManyPairs(t testing.TB, n, entries int, devs [2]*roce.Device) *manyPairs {
	t.Helper()
	m := &manyPairs{devs: devs}
	for i, d := range devs {
		var err error
		m.pds[i], err = d.AllocPD()
		must(t, err)
		m.cqs[i], err = d.CreateCQ(entries)
		must(t, err)
		m.mrs[i], err = m.pds[i].RegisterMR(make([]byte, n*pairMemory), roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic)
		must(t, err)
		m.srqs[i], err = m.pds[i].CreateSRQ(roce.SRQConfig{})
		must(t, err)
		for range n {
			q, err := m.pds[i].CreateQP(roce.QPConfig{SendCQ: m.cqs[i], SRQ: m.srqs[i]})
			must(t, err)
			m.qps[i] = append(m.qps[i], q)
		}
	}
	for i := range m.qps {
		for k, q := range m.qps[i] {
			peer := m.qps[1-i][k]
			must(t, q.Connect(roce.Remote{Addr: devs[1-i].Addr(), QPN: peer.Num(), PSN: peer.PSN()},
				roce.Conn{Access: roce.RemoteWrite | roce.RemoteRead | roce.RemoteAtomic, AckTimeout: 268 * time.Millisecond}))
		}
	}
	return m
}

// request is one of n bytes of pair k, from device i to the other.
func (m *manyPairs) request(i, k int, op roce.WROpcode, n int) roce.SendWR {
	return roce.SendWR{
		ID: uint64(k), Opcode: op, Flags: roce.Signaled, SGE: []roce.SGE{m.mrs[i].SGE(k*pairMemory, n)},
		RemoteAddr: m.mrs[1-i].Addr() + uint64(k*pairMemory), RKey: m.mrs[1-i].RKey(), CompareAdd: 5,
	}
}

// completions takes n completions of device i, all of them successful.
func (m *manyPairs) completions(t testing.TB, i, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wcs [4]roce.WC
	for n > 0 {
		k, err := m.cqs[i].Wait(ctx, wcs[:min(n, len(wcs))])
		must(t, err)
		for _, wc := range wcs[:k] {
			if wc.Status != roce.WCSuccess {
				t.Fatalf("completion %+v", wc)
			}
		}
		n -= k
	}
}

// engineKinds opens two devices with several engines in each way there is.
func engineKinds(t *testing.T, f func(t *testing.T, devs [2]*roce.Device)) {
	for name, open := range map[string]func(t *testing.T) [2]*roce.Device{
		"fabric": func(t *testing.T) (devs [2]*roce.Device) {
			fabric := netio.NewFabric()
			for i := range devs {
				d, err := roce.Open(roce.Config{Backend: openFabric(t, fabric, fmt.Sprintf("10.0.0.%d", i+1)), Engines: 3 + i})
				must(t, err)
				t.Cleanup(func() { d.Close() })
				devs[i] = d
			}
			return devs
		},
		"udp": func(t *testing.T) (devs [2]*roce.Device) {
			for i := range devs {
				devs[i] = openUDP(t, fmt.Sprintf("127.0.0.%d", i+1), roce.Config{Engines: 3 + i})
			}
			return devs
		},
	} {
		t.Run(name, func(t *testing.T) { f(t, open(t)) })
	}
}

// TestEngines: queue pairs are spread evenly; those of all engines share completion and
// receive queues, and every byte arrives.
func TestEngines(t *testing.T) {
	engineKinds(t, func(t *testing.T, devs [2]*roce.Device) {
		const pairs = 12
		m := newManyPairs(t, pairs, 256, devs)
		for i, d := range devs {
			s := d.Stats()
			if len(s.Engines) != 3+i {
				t.Fatalf("device %d has %d engines", i, len(s.Engines))
			}
			on := make([]int, len(s.Engines))
			for _, q := range s.QPs {
				on[q.Engine]++
			}
			for e, n := range on {
				if n != pairs/len(on) || s.Engines[e].QPs != n {
					t.Errorf("device %d, engine %d has %d queue pairs, and counts %d", i, e, n, s.Engines[e].QPs)
				}
			}
		}
		for round := range 3 {
			fill(m.mrs[0].Bytes(), round)
			for k := range pairs {
				must(t, m.qps[0][k].PostSend(m.request(0, k, roce.WRWrite, pairMemory)))
			}
			m.completions(t, 0, pairs)
			if !bytes.Equal(m.mrs[0].Bytes(), m.mrs[1].Bytes()) {
				t.Fatal("WRITE: bytes differ")
			}
			fill(m.mrs[1].Bytes(), 100+round)
			for k := range pairs {
				must(t, m.qps[0][k].PostSend(m.request(0, k, roce.WRRead, pairMemory)))
			}
			m.completions(t, 0, pairs)
			if !bytes.Equal(m.mrs[0].Bytes(), m.mrs[1].Bytes()) {
				t.Fatal("READ: bytes differ")
			}
			for k := range pairs {
				must(t, m.srqs[1].PostRecv(roce.RecvWR{SGE: []roce.SGE{m.mrs[1].SGE(k*pairMemory+8, 3000)}}))
			}
			for k := range pairs {
				must(t, m.qps[0][k].PostSend(m.request(0, k, roce.WRSend, 3000), m.request(0, k, roce.WRAtomicFetAdd, 8)))
			}
			m.completions(t, 0, 2*pairs)
			m.completions(t, 1, pairs)
		}
		for i, d := range devs {
			for name, n := range d.Counters() {
				switch name {
				case "drop_icrc", "drop_ip_id", "drop_unknown_qp", "drop_source_address", "rx_pass_dropped":
					if n > 0 {
						t.Errorf("device %d: %s = %d", i, name, n)
					}
				}
			}
		}
	})
}

// TestEnginesOverflow: a completion queue that overflows puts its queue pairs into
// error, whatever their engines are, and is told of once.
func TestEnginesOverflow(t *testing.T) {
	engineKinds(t, func(t *testing.T, devs [2]*roce.Device) {
		m := newManyPairs(t, 6, 2, devs)
		for k := range m.qps[0] {
			must(t, m.qps[0][k].PostSend(m.request(0, k, roce.WRWrite, 8)))
		}
		next(t, devs[0], roce.EventCQErr)
		eventually(t, "all queue pairs are in error", func() bool {
			return !slices.ContainsFunc(m.qps[0], func(q *roce.QP) bool { return q.State() != roce.StateErr })
		})
		if err := func() (err error) {
			for err == nil {
				_, err = m.cqs[0].Poll(make([]roce.WC, 1))
			}
			return err
		}(); !errors.Is(err, roce.ErrCQOverflow) {
			t.Errorf("Poll: %v", err)
		}
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		for {
			ev, err := devs[0].NextEvent(gone)
			if err != nil {
				break
			}
			if ev.Type == roce.EventCQErr {
				t.Error("the overflow is told of twice")
			}
		}
	})
}

// TestEnginesPanic: when one engine panics, the queue pairs of all are flushed, and then
// nothing can be used any more.
func TestEnginesPanic(t *testing.T) {
	for _, manual := range []bool{false, true} {
		t.Run(fmt.Sprintf("manual=%t", manual), func(t *testing.T) {
			fuse := &bomb{Backend: openFabric(t, netio.NewFabric(), "10.0.0.1")}
			d, err := roce.Open(roce.Config{Backend: fuse, Manual: manual, Engines: 3})
			must(t, err)
			defer d.Close()
			const n = 6
			var qps [n]*rocetest.Endpoint
			for i := range qps {
				qps[i] = rocetest.New(t, d, rocetest.Options{QP: roce.QPConfig{Type: roce.UD}, Memory: 64})
				must(t, qps[i].QP.Activate(1))
				must(t, qps[i].QP.PostRecv(roce.RecvWR{ID: 7}))
			}
			ah, err := qps[4].PD.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(d.Addr())})
			must(t, err)
			fuse.send.Store(true)
			must(t, qps[4].QP.PostSend(roce.SendWR{Opcode: roce.WRSend, AH: ah, RemoteQPN: 9}))
			if manual {
				if next := d.Progress(1); next != roce.Never {
					t.Errorf("next %v", next)
				}
			}
			next(t, d, roce.EventDeviceFatal)
			for _, q := range qps {
				wc := q.Next(t)
				if wc.ID != 7 {
					wc = q.Next(t)
				}
				want(t, wc, 7, 0, roce.WCWRFlushErr)
				var fatal *roce.FatalError
				if _, err := q.CQ.Wait(context.Background(), make([]roce.WC, 1)); !errors.As(err, &fatal) {
					t.Errorf("Wait: %v", err)
				}
				if err := q.QP.Modify(&roce.Attr{}, 0); !errors.Is(err, roce.ErrClosed) {
					t.Errorf("Modify: %v", err)
				}
			}
		})
	}
}

// TestEnginesDeregister: when a region is deregistered, no engine touches its memory any
// more (the race detector would tell).
func TestEnginesDeregister(t *testing.T) {
	engineKinds(t, func(t *testing.T, devs [2]*roce.Device) {
		const pairs = 8
		m := newManyPairs(t, pairs, 1024, devs)
		for k := range pairs {
			for range 8 {
				must(t, m.qps[0][k].PostSend(m.request(0, k, roce.WRWrite, pairMemory)))
			}
		}
		m.completions(t, 0, pairs)
		must(t, m.mrs[1].Deregister())
		fill(m.mrs[1].Bytes(), 1)
		before := bytes.Clone(m.mrs[1].Bytes())
		for k := range pairs { // the others may all be over by now
			must(t, m.qps[0][k].PostSend(m.request(0, k, roce.WRWrite, pairMemory)))
		}
		denied := 0
		for range 8 * pairs {
			wc := (&rocetest.Endpoint{CQ: m.cqs[0]}).Next(t)
			if wc.Status == roce.WCRemAccessErr {
				denied++
			}
		}
		if !bytes.Equal(m.mrs[1].Bytes(), before) {
			t.Error("the memory was written to after Deregister")
		}
		if denied == 0 {
			t.Error("no request was denied")
		}
	})
}

// TestEnginesClose: Close beside those who post and poll completes every request once.
func TestEnginesClose(t *testing.T) {
	engineKinds(t, func(t *testing.T, devs [2]*roce.Device) {
		const pairs, each = 6, 40
		m := newManyPairs(t, pairs, 1024, devs)
		var wg sync.WaitGroup
		posted := make([]int, pairs)
		for k := range pairs {
			wg.Go(func() {
				for range each {
					if m.qps[0][k].PostSend(m.request(0, k, roce.WRWrite, 20000)) != nil {
						return
					}
					posted[k]++
				}
			})
		}
		completed, first := make([]int, pairs), make(chan struct{}, 1)
		wg.Go(func() {
			var wcs [8]roce.WC
			for {
				n, err := m.cqs[0].Wait(context.Background(), wcs[:])
				if err != nil {
					return
				}
				for _, wc := range wcs[:n] {
					completed[wc.ID]++
				}
				select {
				case first <- struct{}{}:
				default:
				}
			}
		})
		<-first
		must(t, devs[0].Close())
		wg.Wait()
		var wcs [8]roce.WC
		for n, err := m.cqs[0].Poll(wcs[:]); err == nil; n, err = m.cqs[0].Poll(wcs[:]) {
			for _, wc := range wcs[:n] {
				completed[wc.ID]++
			}
		}
		for k := range pairs {
			if completed[k] != posted[k] {
				t.Errorf("pair %d: %d requests, %d completions", k, posted[k], completed[k])
			}
		}
	})
}

// TestEnginesConfig: the number of engines is checked, and a queue pair has the engine
// that it asks for.
func TestEnginesConfig(t *testing.T) {
	d, err := roce.Open(roce.Config{Backend: openFabric(t, netio.NewFabric(), "10.0.0.1"), Engines: 3})
	must(t, err)
	defer d.Close()
	for _, n := range []int{2, 2, 3, 2, 1} {
		e := rocetest.New(t, d, rocetest.Options{QP: roce.QPConfig{Engine: n}, Memory: 64})
		if _, cfg := e.QP.Query(); cfg.Engine != n || e.QP.Stats().Engine != n-1 {
			t.Errorf("asked for %d: it has %d, %d of Stats", n, cfg.Engine, e.QP.Stats().Engine)
		}
	}
	e := rocetest.New(t, d, rocetest.Options{Memory: 64})
	for _, n := range []int{-1, 4} {
		var bad *roce.ConfigError
		if _, err := e.PD.CreateQP(roce.QPConfig{SendCQ: e.CQ, Engine: n}); !errors.As(err, &bad) || bad.Field != "Engine" {
			t.Errorf("engine %d: %v", n, err)
		}
	}
	for _, n := range []int{-1, 65} {
		var bad *roce.ConfigError
		if _, err := roce.Open(roce.Config{Addr: netip.MustParseAddr("127.0.0.1"), Engines: n}); !errors.As(err, &bad) || bad.Field != "Engines" {
			t.Errorf("%d: %v", n, err)
		}
	}
}
