package rnet_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/goroce/goroce/roce/rnet"
)

// A server and a client in one process, each with an address of the loopback
// interface.
func Example() {
	l, err := rnet.Listen("tcp", "127.0.7.3:7471")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		io.Copy(c, c)
		c.Close()
	}()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cfg := rnet.Config{LocalAddr: netip.MustParseAddrPort("127.0.7.4:0")}
	c, err := cfg.Dial(ctx, "tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.Write([]byte("there and back")); err != nil {
		log.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		log.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", b)
	if err := c.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: there and back
}

// A web server, and a client that finds it by RDMA.
func ExampleConfig_Dial() {
	l, err := rnet.Listen("tcp", "127.0.7.5:80")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))

	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return rnet.Config{LocalAddr: netip.MustParseAddrPort("127.0.7.6:0")}.Dial(ctx, network, address)
	}}}
	r, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	b, err := io.ReadAll(r.Body)
	fmt.Println(r.Status, string(b), err)
	client.CloseIdleConnections()
	// Output: 200 OK hello <nil>
}

// Datagrams.
func ExampleListenPacket() {
	server, err := rnet.ListenPacket("udp", "127.0.7.7:0")
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	cfg := rnet.Config{LocalAddr: netip.MustParseAddrPort("127.0.7.8:0")}
	client, err := cfg.DialPacket(context.Background(), "udp", server.LocalAddr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	if _, err := client.Write([]byte("hello")); err != nil {
		log.Fatal(err)
	}
	var b [100]byte
	n, from, err := server.ReadFrom(b[:])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(b[:n]), from.String() == client.LocalAddr().String())
	// Output: hello true
}
