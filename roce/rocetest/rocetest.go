// Package rocetest helps users of package roce to test their own code: a pair of
// connected endpoints over an in-memory network, with faults if wanted. No root,
// no socket, no second process.
package rocetest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// everything is what a peer may do to memory that is not that of a file.
const everything = roce.RemoteWrite | roce.RemoteRead | roce.RemoteAtomic | roce.FlushGlobal

// Endpoint is one side of a connection: a device with one connected queue pair,
// whose sends and receives complete on CQ, and a registered buffer.
type Endpoint struct {
	Dev *roce.Device
	PD  *roce.PD
	CQ  *roce.CQ
	QP  *roce.QP
	MR  *roce.MR
}

// Options change what Pair makes. The zero value is what Pair makes by itself.
type Options struct {
	// Memory is the size of each endpoint's MR in bytes; 0 means 1 MiB.
	Memory int
	// Device, CQ entries and QP are used for both ends; Device.Backend, QP.SendCQ
	// and QP.RecvCQ are overwritten. QP.Type is RC or UC, which connect alike.
	Device    roce.Config
	CQEntries int // 0 means 1024
	QP        roce.QPConfig
	// Conn is used for both ends; Access 0 means everything remote, and without
	// Faults AckTimeout 0 is 268 ms instead of 67: a busy machine may stop one side
	// for half a second.
	Conn roce.Conn
	// Faults, if not nil, is what the network does to packets of both
	// directions; the second end gets the seed plus one.
	Faults *netio.FaultConfig
}

// Pair returns two connected endpoints, closed at the end of the test.
func Pair(tb testing.TB) (a, b *Endpoint) {
	tb.Helper()
	return Options{}.Pair(tb)
}

// Pair returns two endpoints connected as o says, closed at the end of the test.
func (o Options) Pair(tb testing.TB) (a, b *Endpoint) {
	tb.Helper()
	fabric := netio.NewFabric()
	a = o.endpoint(tb, fabric, "10.0.0.1", 0)
	b = o.endpoint(tb, fabric, "10.0.0.2", 1)
	if o.Faults != nil && o.Conn.AckTimeout == 0 {
		o.Conn.AckTimeout = 67 * time.Millisecond
	}
	Connect(tb, a, b, o.Conn)
	return a, b
}

// Connect connects the queue pairs of two endpoints, with the defaults that
// Options.Conn has without faults.
func Connect(tb testing.TB, a, b *Endpoint, c roce.Conn) {
	tb.Helper()
	if c.Access == 0 {
		c.Access = everything
	}
	if c.AckTimeout == 0 {
		c.AckTimeout = 268 * time.Millisecond
	}
	for _, end := range [][2]*Endpoint{{a, b}, {b, a}} {
		peer := roce.Remote{Addr: end[1].Dev.Addr(), QPN: end[1].QP.Num(), PSN: end[1].QP.PSN()}
		must(tb, end[0].QP.Connect(peer, c))
	}
}

func (o Options) endpoint(tb testing.TB, fabric *netio.Fabric, addr string, n uint64) *Endpoint {
	tb.Helper()
	be, err := fabric.Open(netip.AddrPortFrom(netip.MustParseAddr(addr), netio.Port))
	must(tb, err)
	if o.Faults != nil {
		f := *o.Faults
		f.Seed += n
		be = netio.WithFaults(be, f)
	}
	o.Device.Backend = be
	dev, err := roce.Open(o.Device)
	must(tb, err)
	tb.Cleanup(func() { dev.Close() })
	return New(tb, dev, o)
}

// New makes an endpoint on a device, not yet connected.
func New(tb testing.TB, dev *roce.Device, o Options) *Endpoint {
	tb.Helper()
	if o.Memory == 0 {
		o.Memory = 1 << 20
	}
	if o.CQEntries == 0 {
		o.CQEntries = 1024
	}
	e := &Endpoint{Dev: dev}
	var err error
	e.PD, err = dev.AllocPD()
	must(tb, err)
	e.CQ, err = dev.CreateCQ(o.CQEntries)
	must(tb, err)
	o.QP.SendCQ, o.QP.RecvCQ = e.CQ, e.CQ
	e.QP, err = e.PD.CreateQP(o.QP)
	must(tb, err)
	e.MR, err = e.PD.RegisterMR(make([]byte, o.Memory), roce.LocalWrite|everything)
	must(tb, err)
	return e
}

// Next returns the next completion; the test ends when there is none in ten
// seconds.
func (e *Endpoint) Next(tb testing.TB) roce.WC {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var wc [1]roce.WC
	if _, err := e.CQ.Wait(ctx, wc[:]); err != nil {
		tb.Fatalf("waiting for a completion: %v", err)
	}
	return wc[0]
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
