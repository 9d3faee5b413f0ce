package roce_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// exampleDevice opens a device on a network of its own.
func exampleDevice() (*roce.Device, *roce.PD, *roce.CQ) {
	be, err := netio.NewFabric().Open(netip.MustParseAddrPort("10.0.0.1:4791"))
	if err != nil {
		log.Fatal(err)
	}
	dev, err := roce.Open(roce.Config{Backend: be})
	if err != nil {
		log.Fatal(err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	cq, err := dev.CreateCQ(16)
	if err != nil {
		log.Fatal(err)
	}
	return dev, pd, cq
}

// Two queue pairs that receive from one queue; the event says when to refill it.
func ExamplePD_CreateSRQ() {
	dev, pd, cq := exampleDevice()
	defer dev.Close()
	srq, err := pd.CreateSRQ(roce.SRQConfig{MaxWR: 64, MaxSGE: 1, Limit: 16})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		if _, err := pd.CreateQP(roce.QPConfig{SendCQ: cq, SRQ: srq}); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(srq.PostRecv(roce.RecvWR{ID: 1}, roce.RecvWR{ID: 2}))
	fmt.Printf("%+v\n", srq.Query())
	fmt.Println(srq.Destroy())
	// Output:
	// <nil>
	// {MaxWR:64 MaxSGE:1 Limit:16}
	// shared receive queue: roce: object is in use
}

// The loop of a program that sleeps: wait, acknowledge, arm again, poll until the
// queue is empty.
func ExampleDevice_CreateCompChannel() {
	dev, pd, _ := exampleDevice()
	defer dev.Close()
	ch, err := dev.CreateCompChannel()
	if err != nil {
		fmt.Println(err)
		return
	}
	cq, err := dev.CreateCQ(16, roce.OnChannel(ch))
	if err != nil {
		fmt.Println(err)
		return
	}
	qp, err := pd.CreateQP(roce.QPConfig{SendCQ: cq})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := cq.ReqNotify(false); err != nil {
		fmt.Println(err)
		return
	}
	// Something completes: a receive that is flushed.
	qp.Init(0)
	qp.PostRecv(roce.RecvWR{ID: 7})
	qp.Modify(&roce.Attr{State: roce.StateErr}, roce.MaskState)

	ready, err := ch.GetEvent(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	ready.AckEvents(1)
	ready.ReqNotify(false)
	wc := make([]roce.WC, 4)
	for {
		n, err := ready.Poll(wc)
		if n == 0 || err != nil {
			break
		}
		for _, c := range wc[:n] {
			fmt.Println(c.ID, c.Status)
		}
	}
	// Output:
	// 7 Work Request Flushed Error
}
