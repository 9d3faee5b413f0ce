package roce_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// Two devices in one process, over real sockets of the loopback interface, and a
// WRITE from one to the other.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	type end struct {
		dev *roce.Device
		cq  *roce.CQ
		qp  *roce.QP
		mr  *roce.MR
	}
	open := func(addr string) (e end) {
		var err error
		check := func() {
			if err != nil {
				log.Fatal(err)
			}
		}
		e.dev, err = roce.Open(roce.Config{Addr: netip.MustParseAddr(addr), Port: 47912})
		check()
		pd, err := e.dev.AllocPD()
		check()
		e.cq, err = e.dev.CreateCQ(16)
		check()
		e.qp, err = pd.CreateQP(roce.QPConfig{SendCQ: e.cq})
		check()
		e.mr, err = pd.RegisterMR(make([]byte, 4096), roce.LocalWrite|roce.RemoteWrite)
		check()
		return e
	}
	a, b := open("127.0.0.1"), open("127.0.0.2")
	defer a.dev.Close()
	defer b.dev.Close()

	// Out of band, the two ends tell each other address, queue pair number and
	// first PSN, and for a WRITE the address and key of the memory.
	conn := roce.Conn{Access: roce.RemoteWrite}
	if err := a.qp.Connect(roce.Remote{Addr: b.dev.Addr(), QPN: b.qp.Num(), PSN: b.qp.PSN()}, conn); err != nil {
		log.Fatal(err)
	}
	if err := b.qp.Connect(roce.Remote{Addr: a.dev.Addr(), QPN: a.qp.Num(), PSN: a.qp.PSN()}, conn); err != nil {
		log.Fatal(err)
	}

	n := copy(a.mr.Bytes(), "hello, remote memory")
	err := a.qp.PostSend(roce.SendWR{
		ID: 1, Opcode: roce.WRWrite, Flags: roce.Signaled, SGE: []roce.SGE{a.mr.SGE(0, n)},
		RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	})
	if err != nil {
		log.Fatal(err)
	}
	var wc [1]roce.WC
	if _, err := a.cq.Wait(ctx, wc[:]); err != nil {
		log.Fatal(err)
	}
	fmt.Println(wc[0].Opcode, wc[0].Status)
	fmt.Println(string(b.mr.Bytes()[:n]))
	// Output:
	// RDMA_WRITE success
	// hello, remote memory
}

// Errors name the field and what is allowed.
func ExampleOpen() {
	_, err := roce.Open(roce.Config{})
	fmt.Println(err)
	// Output:
	// roce: Addr is invalid IP: give a local address, or a Peer whose route decides it
}

// A queue has room for at least what was asked for.
func ExampleDevice_CreateCQ() {
	dev, _, _ := exampleDevice()
	defer dev.Close()
	cq, err := dev.CreateCQ(100)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cq.Cap())
	// Output:
	// 128
}

// A domain that is still used is not freed.
func ExampleDevice_AllocPD() {
	dev, pd, _ := exampleDevice()
	defer dev.Close()
	mr, err := pd.RegisterMR(make([]byte, 8), roce.LocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(errors.Is(pd.Dealloc(), roce.ErrBusy))
	fmt.Println(mr.Deregister(), pd.Dealloc())
	// Output:
	// true
	// <nil> <nil>
}

func ExamplePD_CreateQP() {
	dev, pd, cq := exampleDevice()
	defer dev.Close()
	qp, err := pd.CreateQP(roce.QPConfig{SendCQ: cq, MaxSendWR: 100, MaxSendSGE: 2})
	if err != nil {
		log.Fatal(err)
	}
	attr, capacity := qp.Query()
	fmt.Println(attr.State, capacity.MaxSendWR, capacity.MaxSendSGE)
	// Output:
	// RESET 128 2
}

func ExamplePD_RegisterMR() {
	dev, pd, _ := exampleDevice()
	defer dev.Close()
	// Peers name the first byte by address 0x1000.
	mr, err := pd.RegisterMR(make([]byte, 512), roce.LocalWrite|roce.RemoteRead, roce.IOVA(0x1000))
	if err != nil {
		log.Fatal(err)
	}
	sge := mr.SGE(16, 32)
	fmt.Printf("%#x, %d bytes; segment at %#x, %d bytes\n", mr.Addr(), mr.Len(), sge.Addr, sge.Length)
	// Output:
	// 0x1000, 512 bytes; segment at 0x1010, 32 bytes
}

// Two paths through a network that chooses by UDP ports: when one dies, the
// connection goes on by the other.
func ExampleQP_Arm() {
	be, err := netio.NewFabric().Open(netip.MustParseAddrPort("10.0.0.1:4791"))
	if err != nil {
		log.Fatal(err)
	}
	dev, err := roce.Open(roce.Config{Backend: be})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	cq, err := dev.CreateCQ(16)
	if err != nil {
		log.Fatal(err)
	}
	var ends [2]*roce.QP
	for i := range ends {
		if ends[i], err = pd.CreateQP(roce.QPConfig{SendCQ: cq}); err != nil {
			log.Fatal(err)
		}
	}
	for i, q := range ends {
		peer := ends[1-i]
		if err := q.Connect(roce.Remote{Addr: dev.Addr(), QPN: peer.Num(), PSN: peer.PSN()}, roce.Conn{}); err != nil {
			log.Fatal(err)
		}
		if err := q.Arm(roce.Alternate{SourcePort: 0xc123}); err != nil {
			log.Fatal(err)
		}
	}
	attr, _ := ends[0].Query()
	fmt.Println(attr.PathMigState, attr.AltAV.SourcePort)
	// Output:
	// REARM 49443
}
