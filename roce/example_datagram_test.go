package roce_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// datagramEnd is a device with a UD queue pair that is ready.
type datagramEnd struct {
	dev *roce.Device
	pd  *roce.PD
	cq  *roce.CQ
	qp  *roce.QP
	mr  *roce.MR
}

const exampleQKey = 0x1234

func openDatagramEnd(fabric *netio.Fabric, addr string) (e datagramEnd) {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	be, err := fabric.Open(netip.AddrPortFrom(netip.MustParseAddr(addr), 4791))
	check(err)
	e.dev, err = roce.Open(roce.Config{Backend: be})
	check(err)
	e.pd, err = e.dev.AllocPD()
	check(err)
	e.cq, err = e.dev.CreateCQ(16)
	check(err)
	e.mr, err = e.pd.RegisterMR(make([]byte, 4096), roce.LocalWrite)
	check(err)
	e.qp, err = e.pd.CreateQP(roce.QPConfig{Type: roce.UD, SendCQ: e.cq, MaxInline: 64})
	check(err)
	check(e.qp.Activate(exampleQKey))
	check(e.qp.PostRecv(roce.RecvWR{SGE: []roce.SGE{e.mr.SGE(0, 40+1024)}}))
	return e
}

// receive waits for a datagram, or for a send that has completed.
func (e datagramEnd) receive() roce.WC {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var wc [1]roce.WC
	if _, err := e.cq.Wait(ctx, wc[:]); err != nil {
		log.Fatal(err)
	}
	return wc[0]
}

// A queue pair of type UD, made ready, and a datagram to another one.
func ExamplePD_CreateAH() {
	fabric := netio.NewFabric()
	a, b := openDatagramEnd(fabric, "10.0.0.1"), openDatagramEnd(fabric, "10.0.0.2")
	defer a.dev.Close()
	defer b.dev.Close()

	ah, err := a.pd.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(b.dev.Addr())})
	if err != nil {
		log.Fatal(err)
	}
	err = a.qp.PostSend(roce.SendWR{
		Opcode: roce.WRSend, Flags: roce.Inline, Data: []byte("hello"),
		AH: ah, RemoteQPN: b.qp.Num(), QKey: exampleQKey,
	})
	if err != nil {
		log.Fatal(err)
	}
	wc := b.receive()
	fmt.Printf("%s, %d bytes with the header\n", b.mr.Bytes()[40:wc.ByteLen], wc.ByteLen)
	// Output: hello, 45 bytes with the header
}

// A datagram is answered by the address in the 40 bytes before its payload.
func ExamplePD_CreateAHFromWC() {
	fabric := netio.NewFabric()
	client, server := openDatagramEnd(fabric, "10.0.0.1"), openDatagramEnd(fabric, "10.0.0.2")
	defer client.dev.Close()
	defer server.dev.Close()

	ah, err := client.pd.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(server.dev.Addr())})
	if err != nil {
		log.Fatal(err)
	}
	if err := client.qp.PostSend(roce.SendWR{
		Opcode: roce.WRSend, Flags: roce.Inline, Data: []byte("who is there?"),
		AH: ah, RemoteQPN: server.qp.Num(), QKey: exampleQKey,
	}); err != nil {
		log.Fatal(err)
	}

	wc := server.receive()
	back, err := server.pd.CreateAHFromWC(&wc, server.mr.Bytes()[:40])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("from", back.AddressVector().DGID.Addr())
	if err := server.qp.PostSend(roce.SendWR{
		Opcode: roce.WRSend, Flags: roce.Inline, Data: []byte("me"),
		AH: back, RemoteQPN: wc.SrcQP, QKey: exampleQKey,
	}); err != nil {
		log.Fatal(err)
	}
	wc = client.receive()
	fmt.Printf("%s\n", client.mr.Bytes()[40:wc.ByteLen])
	// Output:
	// from 10.0.0.1
	// me
}

// A datagram to everybody who is attached to a multicast group.
func ExampleQP_AttachMulticast() {
	fabric := netio.NewFabric()
	a, b := openDatagramEnd(fabric, "10.0.0.1"), openDatagramEnd(fabric, "10.0.0.2")
	defer a.dev.Close()
	defer b.dev.Close()

	group := netip.MustParseAddr("239.1.2.3")
	if err := b.qp.AttachMulticast(group); err != nil {
		log.Fatal(err)
	}
	ah, err := a.pd.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(group)})
	if err != nil {
		log.Fatal(err)
	}
	if err := a.qp.PostSend(roce.SendWR{
		Opcode: roce.WRSend, Flags: roce.Inline, Data: []byte("hello, all"),
		AH: ah, RemoteQPN: ib.MulticastQPN, QKey: exampleQKey,
	}); err != nil {
		log.Fatal(err)
	}
	wc := b.receive()
	fmt.Printf("%s\n", b.mr.Bytes()[40:wc.ByteLen])
	// Output: hello, all
}
