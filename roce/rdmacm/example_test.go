package rdmacm_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rdmacm"
)

// host returns a device on a network in memory. Without Config.Device the devices
// of the host's own addresses are used.
func host(network *netio.Fabric, addr string) *roce.Device {
	be, err := network.Open(netip.AddrPortFrom(netip.MustParseAddr(addr), netio.Port))
	if err != nil {
		log.Fatal(err)
	}
	dev, err := roce.Open(roce.Config{Backend: be})
	if err != nil {
		log.Fatal(err)
	}
	return dev
}

// A server takes one connection and one message.
func serve(ctx context.Context, l *rdmacm.Listener) {
	req, err := l.Accept(ctx)
	if err != nil {
		log.Fatal(err)
	}
	var mr *roce.MR
	conn, err := req.Accept(ctx, rdmacm.Config{
		PrivateData: []byte("welcome"),
		Prepare: func(c *rdmacm.Conn) (err error) {
			if mr, err = c.PD().RegisterMR(make([]byte, 100), roce.LocalWrite); err != nil {
				return err
			}
			return c.QP().PostRecv(roce.RecvWR{SGE: []roce.SGE{mr.SGE(0, 100)}})
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	var wc [1]roce.WC
	if _, err := conn.CQ().Wait(ctx, wc[:]); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("server: %s\n", mr.Bytes()[:wc[0].ByteLen])
}

// A client connects and sends a message.
func ExampleDial() {
	network := netio.NewFabric()
	here, there := host(network, "10.0.0.1"), host(network, "10.0.0.2")
	defer here.Close()
	defer there.Close()
	l, err := rdmacm.Listen("10.0.0.2:7471", rdmacm.ListenConfig{Device: there})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	ctx := context.Background()
	served := make(chan struct{})
	go func() {
		defer close(served)
		serve(ctx, l)
	}()

	conn, err := rdmacm.Dial(ctx, "10.0.0.2:7471", rdmacm.Config{Device: here, QP: roce.QPConfig{MaxInline: 64}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("client: %s\n", conn.PrivateData()[:7])
	err = conn.QP().PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Inline, Data: []byte("hello")})
	if err != nil {
		log.Fatal(err)
	}
	<-served
	<-conn.Done()
	fmt.Println(conn.Err())
	conn.Close()
	// Output:
	// client: welcome
	// server: hello
	// rdmacm: disconnected by the peer
}

// A server that does not want a client says why.
func ExampleRequest_Reject() {
	network := netio.NewFabric()
	here, there := host(network, "10.0.0.1"), host(network, "10.0.0.2")
	defer here.Close()
	defer there.Close()
	l, err := rdmacm.Listen(":7471", rdmacm.ListenConfig{Device: there})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		if req, err := l.Accept(context.Background()); err == nil {
			req.Reject([]byte("come back tomorrow"))
		}
	}()
	_, err = rdmacm.Dial(context.Background(), "10.0.0.2:7471", rdmacm.Config{Device: here})
	fmt.Println(err)
	// Output: rdmacm: 10.0.0.2:7471 refuses: the program there rejects the connection
}

// Datagrams to whoever has joined a group.
func ExampleJoinMulticast() {
	network := netio.NewFabric()
	dev := host(network, "10.0.0.1")
	defer dev.Close()
	var mr *roce.MR
	conn, err := rdmacm.JoinMulticast(netip.MustParseAddr("239.1.2.3"), rdmacm.Config{
		Device: dev, QP: roce.QPConfig{MaxInline: 64},
		Prepare: func(c *rdmacm.Conn) (err error) {
			if mr, err = c.PD().RegisterMR(make([]byte, 100), roce.LocalWrite); err != nil {
				return err
			}
			return c.QP().PostRecv(roce.RecvWR{SGE: []roce.SGE{mr.SGE(0, 100)}})
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	err = conn.QP().PostSend(roce.SendWR{
		Opcode: roce.WRSend, Flags: roce.Inline, Data: []byte("hello, all"),
		AH: conn.AH(), RemoteQPN: conn.RemoteQPN(), QKey: conn.QKey(),
	})
	if err != nil {
		log.Fatal(err)
	}
	var wc [1]roce.WC
	if _, err := conn.CQ().Wait(context.Background(), wc[:]); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", mr.Bytes()[40:wc[0].ByteLen]) // we are a member, too
	// Output: hello, all
}
