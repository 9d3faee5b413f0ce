package roce_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// xrcJob is a device with an XRC domain, as a process of a parallel job has it.
type xrcJob struct {
	dev  *roce.Device
	pd   *roce.PD
	cq   *roce.CQ
	mr   *roce.MR
	xrcd *roce.XRCD
}

// openXRCJob opens a device; without a fabric on a real socket, where several of one
// process may share an address.
func openXRCJob(fabric *netio.Fabric, addr string) (j xrcJob) {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	cfg := roce.Config{Addr: netip.MustParseAddr(addr), Port: 47913}
	var err error
	if fabric != nil {
		cfg.Backend, err = fabric.Open(netip.AddrPortFrom(cfg.Addr, 4791))
		check(err)
	}
	j.dev, err = roce.Open(cfg)
	check(err)
	j.pd, err = j.dev.AllocPD()
	check(err)
	j.cq, err = j.dev.CreateCQ(16)
	check(err)
	j.mr, err = j.pd.RegisterMR(make([]byte, 4096), roce.LocalWrite)
	check(err)
	j.xrcd, err = j.dev.OpenXRCD("job", os.O_CREATE)
	check(err)
	return j
}

// next waits for a completion.
func (j xrcJob) next() roce.WC {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var wc [1]roce.WC
	if _, err := j.cq.Wait(ctx, wc[:]); err != nil {
		log.Fatal(err)
	}
	return wc[0]
}

// A sender, a target, and a receive queue that the sender names.
func ExampleXRCD_CreateQP() {
	fabric := netio.NewFabric()
	a, b := openXRCJob(fabric, "10.0.0.1"), openXRCJob(fabric, "10.0.0.2")
	defer a.dev.Close()
	defer b.dev.Close()

	target, err := b.xrcd.CreateQP()
	if err != nil {
		log.Fatal(err)
	}
	srq, err := b.pd.CreateSRQ(roce.SRQConfig{XRCD: b.xrcd, CQ: b.cq})
	if err != nil {
		log.Fatal(err)
	}
	sender, err := a.pd.CreateQP(roce.QPConfig{Type: roce.XRCSend, SendCQ: a.cq, MaxInline: 64})
	if err != nil {
		log.Fatal(err)
	}
	// Out of band the sides tell each other addresses, numbers and first PSNs, and
	// the receiver the number of its receive queue.
	if err := target.Connect(roce.Remote{Addr: a.dev.Addr(), QPN: sender.Num(), PSN: sender.PSN()}, roce.Conn{}); err != nil {
		log.Fatal(err)
	}
	if err := sender.Connect(roce.Remote{Addr: b.dev.Addr(), QPN: target.Num(), PSN: target.PSN()}, roce.Conn{}); err != nil {
		log.Fatal(err)
	}
	if err := srq.PostRecv(roce.RecvWR{ID: 7, SGE: []roce.SGE{b.mr.SGE(0, 100)}}); err != nil {
		log.Fatal(err)
	}
	err = sender.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Inline, Data: []byte("hello"), RemoteSRQN: srq.Num()})
	if err != nil {
		log.Fatal(err)
	}
	wc := b.next()
	fmt.Printf("%d: %s, by the target: %v\n", wc.ID, b.mr.Bytes()[:wc.ByteLen], wc.QPN == target.Num())
	// Output: 7: hello, by the target: true
}

// Two devices on one address have the domain of a name in common: the target of the
// first receives for the receive queue of the second, too. One that nobody has made
// is not there.
func ExampleDevice_OpenXRCD() {
	first, second := openXRCJob(nil, "127.0.0.1"), openXRCJob(nil, "127.0.0.1")
	defer first.dev.Close()
	defer second.dev.Close()

	target, err := first.xrcd.CreateQP()
	if err != nil {
		log.Fatal(err)
	}
	srq, err := second.pd.CreateSRQ(roce.SRQConfig{XRCD: second.xrcd, CQ: second.cq})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("receive queue", srq.Num() != 0, "target", target.Num() != 0)
	_, err = second.dev.OpenXRCD("another job", 0)
	fmt.Println(err)
	// Output:
	// receive queue true target true
	// roce: XRC domain "another job": file does not exist
}

// A target is one for all who open it, and lasts as long as the last of them.
func ExampleXRCD_OpenQP() {
	j := openXRCJob(netio.NewFabric(), "10.0.0.1")
	defer j.dev.Close()
	target, err := j.xrcd.CreateQP()
	if err != nil {
		log.Fatal(err)
	}
	same, err := j.xrcd.OpenQP(target.Num())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(target.Init(0), same.State())
	fmt.Println(target.Destroy(), same.State())
	fmt.Println(j.xrcd.Close())
	// Output:
	// <nil> INIT
	// <nil> INIT
	// XRC domain: roce: object is in use
}
