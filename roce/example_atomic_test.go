package roce_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// A counter that clients share: each adds to it and learns what it was. Here the
// client is the same device, over an in-memory network.
func ExampleQP_PostSend() {
	be, err := netio.NewFabric().Open(netip.MustParseAddrPort("10.0.0.1:4791"))
	if err != nil {
		log.Fatal(err)
	}
	dev, err := roce.Open(roce.Config{Backend: be})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	pd, _ := dev.AllocPD()
	cq, _ := dev.CreateCQ(16)
	counter, err := pd.RegisterMR(make([]byte, 8), roce.LocalWrite|roce.RemoteAtomic)
	if err != nil {
		log.Fatal(err)
	}
	found, err := pd.RegisterMR(make([]byte, 8), roce.LocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	var qp [2]*roce.QP
	for i := range qp {
		if qp[i], err = pd.CreateQP(roce.QPConfig{SendCQ: cq}); err != nil {
			log.Fatal(err)
		}
	}
	for i := range qp {
		peer := roce.Remote{Addr: dev.Addr(), QPN: qp[1-i].Num(), PSN: qp[1-i].PSN()}
		if err := qp[i].Connect(peer, roce.Conn{Access: roce.RemoteAtomic}); err != nil {
			log.Fatal(err)
		}
	}

	counter.StoreUint64(0, 41)
	err = qp[0].PostSend(roce.SendWR{
		Opcode: roce.WRAtomicFetAdd, Flags: roce.Signaled, SGE: []roce.SGE{found.SGE(0, 8)},
		RemoteAddr: counter.Addr(), RKey: counter.RKey(), CompareAdd: 1,
	})
	if err != nil {
		log.Fatal(err)
	}
	var wc [1]roce.WC
	if _, err := cq.Wait(context.Background(), wc[:]); err != nil {
		log.Fatal(err)
	}
	fmt.Println(wc[0].Opcode, wc[0].Status)
	fmt.Println("found", found.LoadUint64(0), "and left", counter.LoadUint64(0))
	// Output:
	// FETCH_ADD success
	// found 41 and left 42
}
