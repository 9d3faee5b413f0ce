package rocetest_test

import (
	"fmt"
	"log"
	"net/netip"
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rocetest"
)

// t stands for the *testing.T of a test, which an example has none of.
var t exampleT

type exampleT struct {
	testing.TB
	cleanups []func()
}

func (t *exampleT) Helper()                           {}
func (t *exampleT) Cleanup(f func())                  { t.cleanups = append(t.cleanups, f) }
func (t *exampleT) Fatal(args ...any)                 { log.Fatal(args...) }
func (t *exampleT) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }

// end is the end of the test.
func (t *exampleT) end() {
	for _, f := range t.cleanups {
		f()
	}
	t.cleanups = nil
}

// What users of the package write first.
func ExamplePair() {
	defer t.end()
	a, b := rocetest.Pair(&t)
	b.QP.PostRecv(roce.RecvWR{SGE: []roce.SGE{b.MR.SGE(0, 64)}})
	copy(a.MR.Bytes(), "hello")
	a.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 5)}})
	wc := b.Next(&t)
	fmt.Println(wc.Opcode, wc.Status, string(b.MR.Bytes()[:wc.ByteLen]))
	// Output: RECV success hello
}

// The same over a network that loses every fifth packet.
func ExampleOptions_Pair() {
	defer t.end()
	loss := netio.Faults{Loss: 0.2}
	a, b := rocetest.Options{Faults: &netio.FaultConfig{Seed: 1, Tx: loss, Rx: loss}}.Pair(&t)
	for i := range 20 {
		b.QP.PostRecv(roce.RecvWR{ID: uint64(i), SGE: []roce.SGE{b.MR.SGE(0, 64)}})
		a.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, SGE: []roce.SGE{a.MR.SGE(0, 5)}})
		if wc := b.Next(&t); wc.Status != roce.WCSuccess || wc.ID != uint64(i) {
			fmt.Printf("received %+v\n", wc)
		}
	}
	fmt.Println("some were lost:", a.Dev.Counters()["fault_drop"]+b.Dev.Counters()["fault_drop"] > 0)
	// Output: some were lost: true
}

// exampleDevice opens a device, as a program would its own.
func exampleDevice(fabric *netio.Fabric, addr string) *roce.Device {
	be, err := fabric.Open(netip.AddrPortFrom(netip.MustParseAddr(addr), netio.Port))
	if err != nil {
		log.Fatal(err)
	}
	dev, err := roce.Open(roce.Config{Backend: be})
	if err != nil {
		log.Fatal(err)
	}
	return dev
}

// Endpoints on devices that exist already, here for unreliable datagrams.
func ExampleNew() {
	dev := exampleDevice(netio.NewFabric(), "10.0.0.1")
	defer dev.Close()
	e := rocetest.New(&t, dev, rocetest.Options{QP: roce.QPConfig{Type: roce.UD}, Memory: 4096})
	if err := e.QP.Activate(0x1234); err != nil {
		log.Fatal(err)
	}
	fmt.Println(e.QP.State(), e.MR.Len())
	// Output: RTS 4096
}

// Two endpoints on one device are connected to each other.
func ExampleConnect() {
	dev := exampleDevice(netio.NewFabric(), "10.0.0.1")
	defer dev.Close()
	a, b := rocetest.New(&t, dev, rocetest.Options{}), rocetest.New(&t, dev, rocetest.Options{})
	rocetest.Connect(&t, a, b, roce.Conn{PathMTU: roce.MTU1024})
	copy(a.MR.Bytes(), "there")
	a.QP.PostSend(roce.SendWR{
		Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 5)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(),
	})
	fmt.Println(a.Next(&t).Status, string(b.MR.Bytes()[:5]))
	// Output: success there
}
