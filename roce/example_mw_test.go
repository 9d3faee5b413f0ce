package roce_test

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// onePD opens a device over an in-memory network, with a protection domain, and a
// queue pair that is connected to itself.
func onePD() (*roce.Device, *roce.PD, *roce.QP, *roce.CQ) {
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
	qp, err := pd.CreateQP(roce.QPConfig{SendCQ: cq, SigAll: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := qp.Connect(roce.Remote{Addr: dev.Addr(), QPN: qp.Num(), PSN: qp.PSN()}, roce.Conn{Access: roce.RemoteWrite}); err != nil {
		log.Fatal(err)
	}
	return dev, pd, qp, cq
}

func nextWC(cq *roce.CQ) roce.WC {
	var wc [1]roce.WC
	for {
		if n, err := cq.Poll(wc[:]); n > 0 || err != nil {
			return wc[0]
		}
	}
}

// A window opens part of a region to a peer; the peer closes it with the message
// that says it is done.
func ExamplePD_AllocMW() {
	dev, pd, qp, cq := onePD()
	defer dev.Close()
	mr, err := pd.RegisterMR(make([]byte, 4096), roce.LocalWrite|roce.MWBind)
	if err != nil {
		log.Fatal(err)
	}
	mw, err := pd.AllocMW(roce.MWType2B)
	if err != nil {
		log.Fatal(err)
	}
	err = qp.PostSend(roce.SendWR{
		Opcode: roce.WRBindMW, MW: mw, RKey: roce.IncRKey(mw.RKey()),
		MR: mr, Addr: mr.Addr() + 1024, Length: 512, Access: roce.RemoteWrite,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(nextWC(cq).Opcode, mw.Bound())
	fmt.Println(mr.Deregister())

	if err := qp.PostRecv(roce.RecvWR{}); err != nil {
		log.Fatal(err)
	}
	if err := qp.PostSend(roce.SendWR{Opcode: roce.WRSendWithInv, InvalidateRKey: mw.RKey()}); err != nil {
		log.Fatal(err)
	}
	wc := nextWC(cq)
	fmt.Println(wc.Opcode, wc.Flags&roce.WCWithInv != 0, wc.Imm == mw.RKey(), mw.Bound())
	// Output:
	// BIND_MW true
	// roce: object is in use: memory windows are bound to the memory region
	// RECV true true false
}

func ExampleQP_BindMW() {
	dev, pd, qp, cq := onePD()
	defer dev.Close()
	mr, err := pd.RegisterMR(make([]byte, 4096), roce.LocalWrite|roce.MWBind)
	if err != nil {
		log.Fatal(err)
	}
	mw, err := pd.AllocMW(roce.MWType1)
	if err != nil {
		log.Fatal(err)
	}
	before := mw.RKey()
	if err := qp.BindMW(mw, roce.BindWR{MR: mr, Addr: mr.Addr(), Length: 64, Access: roce.RemoteRead}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(nextWC(cq).Status, mw.RKey() == roce.IncRKey(before))
	// Output:
	// success true
}

// A region gets its memory in the send queue.
func ExamplePD_AllocMR() {
	dev, pd, qp, cq := onePD()
	defer dev.Close()
	mr, err := pd.AllocMR(1 << 20)
	if err != nil {
		log.Fatal(err)
	}
	if err := mr.Map(make([]byte, 4096), roce.IOVA(0x1000)); err != nil {
		log.Fatal(err)
	}
	err = qp.PostSend(roce.SendWR{Opcode: roce.WRRegMR, MR: mr, RKey: roce.IncRKey(mr.RKey()), Access: roce.LocalWrite | roce.RemoteWrite})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(nextWC(cq).Opcode, mr.Valid(), mr.Len())
	if err := qp.PostSend(roce.SendWR{Opcode: roce.WRLocalInv, InvalidateRKey: mr.RKey()}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(nextWC(cq).Opcode, mr.Valid())
	// Output:
	// REG_MR true 4096
	// LOCAL_INV false
}

func ExampleMR_Reregister() {
	dev, pd, _, _ := onePD()
	defer dev.Close()
	mr, err := pd.RegisterMR(make([]byte, 4096), roce.LocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	key := mr.RKey()
	if err := mr.Reregister(roce.ReregAccess, nil, nil, roce.LocalWrite|roce.RemoteWrite); err != nil {
		log.Fatal(err)
	}
	fmt.Println(mr.Access(), mr.RKey() == key)
	// Output:
	// LOCAL_WRITE|REMOTE_WRITE true
}
