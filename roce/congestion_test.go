package roce_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
	"github.com/goroce/goroce/transport/cc"
)

// progress drives manual devices in virtual time until done says so, or for a while.
func progress(t testing.TB, now *time.Duration, done func() bool, ends ...*rocetest.Endpoint) {
	t.Helper()
	for end := *now + time.Minute; !done(); {
		next := end
		for _, e := range ends {
			next = min(next, e.Dev.Progress(*now))
		}
		if next >= end {
			t.Fatal("nothing happens any more")
		}
		*now = max(*now, next)
	}
}

// marking is a network that marks all packets, between manual devices.
func marking(cfg roce.Config) rocetest.Options {
	cfg.Manual = true
	return rocetest.Options{Device: cfg, Faults: &netio.FaultConfig{Tx: netio.Faults{CE: 1}}}
}

// write lets a WRITE to b and waits for it.
func write(t testing.TB, now *time.Duration, a, b *rocetest.Endpoint, n int) {
	t.Helper()
	must(t, a.QP.PostSend(roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, n)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}))
	var wc [1]roce.WC
	progress(t, now, func() bool {
		k, err := a.CQ.Poll(wc[:])
		must(t, err)
		return k == 1
	}, a, b)
	if wc[0].Status != roce.WCSuccess {
		t.Fatal(wc[0].Status)
	}
}

// Marked packets bring CNPs, and those slow the sender down, which its statistics and
// OnRate show; the default is DCQCN.
func TestCongestionControl(t *testing.T) {
	var changes []roce.RateChange
	a, b := marking(roce.Config{OnRate: func(c roce.RateChange) { changes = append(changes, c) }}).Pair(t)
	if s := a.QP.Stats(); s.Rate != cc.Unlimited || s.Target != cc.Unlimited {
		t.Errorf("at first %+v", s)
	}
	now := time.Second
	write(t, &now, a, b, 256<<10)
	sent, got := a.Dev.Counters(), b.Dev.Counters()
	if got["np_ecn_marked_roce_packets"] < 64 || got["np_cnp_sent"] == 0 || sent["rp_cnp_handled"] != got["np_cnp_sent"] || sent["rp_cnp_ignored"] != 0 {
		t.Errorf("%d marked, %d CNPs sent, %d handled, %d ignored", got["np_ecn_marked_roce_packets"], got["np_cnp_sent"], sent["rp_cnp_handled"], sent["rp_cnp_ignored"])
	}
	if sent["retransmitted_pkts"] != 0 {
		t.Errorf("%d packets sent again", sent["retransmitted_pkts"])
	}
	s := a.QP.Stats()
	if s.Rate < 10*cc.Mbps || s.Rate > s.Target || s.Target == cc.Unlimited || !(s.Alpha > 0 && s.Alpha <= 1) {
		t.Errorf("at last %+v", s)
	}
	if len(changes) == 0 || changes[0].Why != "start" {
		t.Fatalf("changes %+v", changes)
	}
	why := map[string]int{}
	for i, c := range changes {
		why[c.Why]++
		if i > 0 && c.At < changes[i-1].At {
			t.Errorf("change %d is out of order", i)
		}
	}
	last := changes[len(changes)-1]
	if why["cnp"] != int(sent["rp_cnp_handled"]) || why["increase"] == 0 || last.QPN != a.QP.Num() || last.Rate != s.Rate || last.Target != s.Target {
		t.Errorf("%v, the last %+v; now %+v", why, last, s)
	}
}

// tosSpy notes the traffic classes of what is sent.
type tosSpy struct {
	netio.Backend
	tos map[uint8]int
}

func (s *tosSpy) Send(now time.Duration, runs []netio.Run) (int, error) {
	n, err := s.Backend.Send(now, runs)
	for _, r := range runs[:n] {
		s.tos[r.TOS] += r.Segments()
	}
	return n, err
}

// spied are two connected endpoints on manual devices, and what the first sends.
func spied(t *testing.T, cfg roce.Config, o rocetest.Options) (a, b *rocetest.Endpoint, spy *tosSpy) {
	fabric := netio.NewFabric()
	spy = &tosSpy{openFabric(t, fabric, "10.0.0.1"), map[uint8]int{}}
	open := func(cfg roce.Config, be netio.Backend) *rocetest.Endpoint {
		cfg.Backend, cfg.Manual = be, true
		d, err := roce.Open(cfg)
		must(t, err)
		t.Cleanup(func() { d.Close() })
		return rocetest.New(t, d, o)
	}
	a, b = open(cfg, spy), open(roce.Config{}, openFabric(t, fabric, "10.0.0.2"))
	rocetest.Connect(t, a, b, o.Conn)
	return a, b, spy
}

// Packets are ECT(0) when something controls the rate, on the device or the queue pair,
// and the program has not chosen another codepoint; its DSCP stays in any case.
func TestECT(t *testing.T) {
	for _, c := range []struct {
		name    string
		dev     roce.Config
		qp      roce.QPConfig
		traffic uint8
		want    uint8
	}{
		{name: "default", want: 2},
		{name: "none on the device", dev: roce.Config{Congestion: cc.None{}}},
		{name: "none on the queue pair", qp: roce.QPConfig{Congestion: cc.None{}}},
		{name: "Swift on the queue pair alone", dev: roce.Config{Congestion: cc.None{}}, qp: roce.QPConfig{Congestion: cc.Swift{}}, want: 2},
		{name: "no ECN on the device", dev: roce.Config{NoECN: true}},
		{name: "no ECN on the queue pair", qp: roce.QPConfig{NoECN: true}},
		{name: "DSCP 26", traffic: 26 << 2, want: 26<<2 | 2},
		{name: "ECT(1)", traffic: 1, want: 1},
		{name: "DSCP 26, none", qp: roce.QPConfig{Congestion: cc.None{}}, traffic: 26 << 2, want: 26 << 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b, spy := spied(t, c.dev, rocetest.Options{QP: c.qp, Conn: roce.Conn{TrafficClass: c.traffic}})
			now := time.Second
			write(t, &now, a, b, 4096)
			if fmt.Sprint(spy.tos) != fmt.Sprint(map[uint8]int{c.want: 1}) {
				t.Errorf("packets by traffic class: %v, want %#x", spy.tos, c.want)
			}
			attr, cfg := a.QP.Query()
			if attr.AV.TrafficClass != c.traffic || cfg.NoECN != (c.qp.NoECN || c.dev.NoECN) || c.qp.Congestion != nil && cfg.Congestion != c.qp.Congestion {
				t.Errorf("Query: traffic class %#x, %+v", attr.AV.TrafficClass, cfg)
			}
		})
	}
}

// A controller of the program's own is obeyed.
func TestOwnController(t *testing.T) {
	a, b, _ := spied(t, roce.Config{Congestion: steady(8 * cc.Mbps)}, rocetest.Options{})
	now := time.Second
	write(t, &now, a, b, 100_000)
	if took := now - time.Second; took < 90*time.Millisecond || took > 120*time.Millisecond {
		t.Errorf("100,000 bytes at 8 Mb/s took %v of virtual time", took)
	}
	if s := a.QP.Stats(); s.Rate != 8*cc.Mbps {
		t.Errorf("%+v", s)
	}
}

// steady is an algorithm that knows one rate.
type steady cc.Rate

func (r steady) New() (cc.Controller, error)     { return r, nil }
func (r steady) Rate(time.Duration) cc.Rate      { return cc.Rate(r) }
func (r steady) Sent(time.Duration, int)         {}
func (r steady) Signal(time.Duration, cc.Signal) {}
func (r steady) State() cc.State                 { return cc.State{Rate: cc.Rate(r), Target: cc.Rate(r)} }

// broken is an algorithm whose parameters are wrong.
type broken struct{}

func (broken) New() (cc.Controller, error) { return nil, errBroken }

var errBroken = errors.New("broken")

// What is wrong is refused by name, when the device is opened or the queue pair made.
func TestCongestionErrors(t *testing.T) {
	for _, c := range []struct {
		cfg  roce.Config
		want string // field
	}{
		{roce.Config{Congestion: cc.DCQCN{G: 2}}, "Congestion.G"},
		{roce.Config{CNP: roce.CNPConfig{Interval: -1}}, "CNP.Interval"},
		{roce.Config{CNP: roce.CNPConfig{Mode: 3}}, "CNP.Mode"},
	} {
		c.cfg.Backend = openFabric(t, netio.NewFabric(), "10.0.0.1")
		_, err := roce.Open(c.cfg)
		if e := (*roce.ConfigError)(nil); !errors.As(err, &e) || e.Field != c.want || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
	if _, err := roce.Open(roce.Config{Backend: openFabric(t, netio.NewFabric(), "10.0.0.1"), Congestion: broken{}}); !errors.Is(err, errBroken) {
		t.Errorf("a program's own error: %v", err)
	}
	a, _ := rocetest.Pair(t)
	_, err := a.PD.CreateQP(roce.QPConfig{SendCQ: a.CQ, Congestion: cc.Swift{Beta: 2}})
	if e := (*roce.ConfigError)(nil); !errors.As(err, &e) || e.Field != "Congestion.Beta" {
		t.Errorf("queue pair: %v", err)
	}
}

// CNPs leave with their own traffic class, and not at all if they are off.
func TestCNPConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  roce.CNPConfig
		want uint8 // 0 for none
	}{{roce.CNPConfig{}, 0xc2}, {roce.CNPConfig{TrafficClass: 0x40}, 0x40}, {roce.CNPConfig{Off: true}, 0}} {
		a, b, spy := spied(t, roce.Config{CNP: c.cfg}, rocetest.Options{Conn: roce.Conn{TrafficClass: 3}}) // all come marked
		now := time.Second
		write(t, &now, b, a, 4096)
		if n := spy.tos[c.want]; c.want != 0 && n != 1 || c.want == 0 && len(spy.tos) != 1 {
			t.Errorf("%+v: packets by traffic class: %v", c.cfg, spy.tos)
		}
		if n := a.Dev.Counters()["np_cnp_sent"]; (n == 1) != (c.want != 0) {
			t.Errorf("%+v: %d CNPs", c.cfg, n)
		}
	}
}

// A receive socket that overflows brings CNPs if that is wanted.
func TestOverflowCNPs(t *testing.T) {
	for _, on := range []bool{false, true} {
		a, b, spy := spied(t, roce.Config{CNP: roce.CNPConfig{OnOverflow: on}}, rocetest.Options{})
		full := &fullBackend{Backend: spy.Backend}
		spy.Backend = full
		now := time.Second
		write(t, &now, b, a, 4096)
		full.drops = 7
		write(t, &now, b, a, 4096)
		write(t, &now, b, a, 4096)
		want := uint64(0)
		if on {
			want = 1
		}
		if n := a.Dev.Counters()["np_cnp_overflow"]; n != want || b.Dev.Counters()["rp_cnp_handled"] != want {
			t.Errorf("wanted %v: %d sent, %d handled", on, n, b.Dev.Counters()["rp_cnp_handled"])
		}
	}
}

// The kernel tells of packets that a real socket had no room for with the next one that
// it takes: that brings CNPs, if they are wanted.
func TestOverflowOfSocket(t *testing.T) {
	for _, on := range []bool{false, true} {
		t.Run(fmt.Sprint("wanted ", on), func(t *testing.T) {
			open := func(addr string, cfg roce.Config) *rocetest.Endpoint {
				cfg.Addr, cfg.Port, cfg.Manual = netip.MustParseAddr(addr), 4797, true
				d, err := roce.Open(cfg)
				must(t, err)
				t.Cleanup(func() { d.Close() })
				return rocetest.New(t, d, rocetest.Options{})
			}
			a := open("127.0.0.21", roce.Config{RecvBuffer: 1, CNP: roce.CNPConfig{OnOverflow: on}})
			b := open("127.0.0.22", roce.Config{})
			rocetest.Connect(t, a, b, roce.Conn{PathMTU: roce.MTU1024, AckTimeout: 10 * time.Millisecond})
			must(t, b.QP.PostSend(roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{b.MR.SGE(0, 256<<10)}, RemoteAddr: a.MR.Addr(), RKey: a.MR.RKey()}))
			now := time.Second
			var wc [1]roce.WC
			for n := 0; n == 0; {
				for range 50 { // all that it may send comes before the receiver looks
					b.Dev.Progress(now)
				}
				next := min(a.Dev.Progress(now), b.Dev.Progress(now))
				now = max(now+time.Microsecond, min(next, now+10*time.Millisecond))
				var err error
				n, err = b.CQ.Poll(wc[:])
				must(t, err)
			}
			got, heard := a.Dev.Counters(), b.Dev.Counters()["rp_cnp_handled"]
			if wc[0].Status != roce.WCSuccess || got["rx_overflow"] == 0 {
				t.Fatalf("status %v, %d packets found no room", wc[0].Status, got["rx_overflow"])
			}
			if sent := got["np_cnp_overflow"]; (sent > 0) != on || (heard > 0) != on || got["np_cnp_sent"] != 0 {
				t.Errorf("wanted %v: %d sent for overflows, %d for marks, %d handled", on, sent, got["np_cnp_sent"], heard)
			}
		})
	}
}

// fullBackend says that packets were dropped.
type fullBackend struct {
	netio.Backend
	drops uint64
}

func (f *fullBackend) Stats() netio.Stats {
	s := f.Backend.Stats()
	s[netio.RxOverflow] += f.drops
	return s
}

// BenchmarkControl is a WRITE of 1 MiB between devices on the fabric, where nothing is
// congested, by what controls the rate.
func BenchmarkControl(b *testing.B) {
	for _, c := range []struct {
		name string
		a    cc.Algorithm
	}{{"none", cc.None{}}, {"dcqcn", cc.DCQCN{}}, {"swift", cc.Swift{}}} {
		b.Run(c.name, func(b *testing.B) {
			x, y := rocetest.Options{Device: roce.Config{Manual: true, Congestion: c.a}, Conn: roce.Conn{PathMTU: roce.MTU4096}}.Pair(b)
			now := time.Second
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				write(b, &now, x, y, 1<<20)
			}
		})
	}
}
