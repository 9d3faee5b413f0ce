package roce_test

import (
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
