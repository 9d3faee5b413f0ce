package netio_test

import (
	"bytes"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce/netio"
)

// sealed returns one packet from src to dst, ready to be sent.
func sealed(src, dst netip.AddrPort) []byte {
	b := make([]byte, ib.BTHSize+ib.ICRCSize)
	ib.BTH{Opcode: ib.OpRCSendOnly, PKey: ib.DefaultPKey, DestQP: 17, PSN: 1}.Put(b)
	flow := ib.NewFlow(src, dst)
	flow.Seal(0, b)
	return b
}

// move sends one packet from a to b and says what arrived.
func move(a, b netio.Backend) {
	run := netio.Run{Dst: b.LocalAddr(), Buf: sealed(a.LocalAddr(), b.LocalAddr())}
	if _, err := a.Send(0, []netio.Run{run}); err != nil {
		fmt.Println(err)
		return
	}
	b.Wait(time.Second, false)
	received := make([]netio.Received, 8)
	n, err := b.Recv(0, received)
	fmt.Println(n, "received,", err)
}

func ExampleNewFabric() {
	fabric := netio.NewFabric()
	a, _ := fabric.Open(netip.MustParseAddrPort("10.0.0.1:4791"))
	b, _ := fabric.Open(netip.MustParseAddrPort("10.0.0.2:4791"))
	move(a, b)
	// Output: 1 received, <nil>
}

// An address belongs to one backend at a time.
func ExampleFabric_Open() {
	fabric, addr := netio.NewFabric(), netip.MustParseAddrPort("10.0.0.1:4791")
	a, _ := fabric.Open(addr)
	_, err := fabric.Open(addr)
	fmt.Println(err)
	a.Close()
	_, err = fabric.Open(addr)
	fmt.Println(err)
	// Output:
	// listen on UDP 10.0.0.1:4791: the address is in use on this fabric
	// <nil>
}

func ExampleListenUDP() {
	// An address that is not ours shows the error; one that is needs no
	// privileges.
	_, err := netio.ListenUDP(netio.UDPConfig{Addr: netip.MustParseAddrPort("0.0.0.0:4791")})
	fmt.Println(err)
	// Output: listen on UDP 0.0.0.0:4791: the address must be a concrete one, as the ICRC of each packet covers it
}

func ExampleListenQueues() {
	// As ListenUDP: nobody else may have the address.
	cfg := netio.UDPConfig{Addr: netip.MustParseAddrPort("127.0.0.1:47910")}
	all, err := netio.ListenQueues(cfg, 2)
	if err != nil {
		log.Fatal(err)
	}
	for _, q := range all {
		defer q.Close()
	}
	_, err = netio.ListenQueues(cfg, 2)
	fmt.Println(len(all), "queues; once more:", err != nil)
	// Output: 2 queues; once more: true
}

func ExampleWithFaults() {
	fabric := netio.NewFabric()
	a, _ := fabric.Open(netip.MustParseAddrPort("10.0.0.1:4791"))
	b, _ := fabric.Open(netip.MustParseAddrPort("10.0.0.2:4791"))
	// Lose the first SEND, and every hundredth packet at random.
	a = netio.WithFaults(a, netio.FaultConfig{
		Seed:   1,
		Tx:     netio.Faults{Loss: 0.01},
		Script: []netio.Fault{{Match: netio.OfKind(ib.KindSend), Nth: 1, Action: netio.Drop}},
	})
	move(a, b)
	move(a, b)
	// Output:
	// 0 received, <nil>
	// 1 received, <nil>
}

func ExampleTap() {
	fabric := netio.NewFabric()
	a, _ := fabric.Open(netip.MustParseAddrPort("10.0.0.1:4791"))
	b, _ := fabric.Open(netip.MustParseAddrPort("10.0.0.2:4791"))
	var file bytes.Buffer // most often an os.File
	a = netio.Tap(a, &file)
	move(a, b)
	err := a.Close() // writes what is left
	fmt.Println(file.Len() > 0, err)
	// Output:
	// 1 received, <nil>
	// true <nil>
}
