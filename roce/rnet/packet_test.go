package rnet

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
)

// packetHost opens PacketConns at one address: UDP sockets of the loopback interface,
// and devices of a network in memory.
type packetHost struct {
	t      *testing.T
	fabric *netio.Fabric
}

func (h *packetHost) open(addr string, to netip.AddrPort, cfg Config) *PacketConn {
	h.t.Helper()
	if err := cfg.fill(); err != nil {
		h.t.Fatal(err)
	}
	a := netip.MustParseAddr(addr)
	be, err := h.fabric.Open(netip.AddrPortFrom(a, netio.Port))
	if err != nil {
		h.t.Fatal(err)
	}
	dev, err := roce.Open(roce.Config{Backend: be})
	if err != nil {
		h.t.Fatal(err)
	}
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
	if err != nil {
		dev.Close()
		if runtime.GOOS == "linux" {
			h.t.Fatal(err)
		}
		h.t.Skipf("no address %v: %v", a, err)
	}
	c, err := newPacketConn(dev, func() { dev.Close() }, udp, to, cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		c.Close()
		select {
		case <-c.ended:
		case <-time.After(10 * time.Second):
			h.t.Error("the connection has not ended 10 s after Close")
		}
	})
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

func newPacketHost(t *testing.T) *packetHost { return &packetHost{t, netio.NewFabric()} }

// known waits until c knows the queue pair of an address.
func known(t *testing.T, c *PacketConn, addr netip.AddrPort) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		ok := c.peers[addr] != nil
		c.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the queue pair of %v is not known after 10 s", addr)
		}
	}
}

// The first datagram goes by the UDP sockets, those after the answer by the queue
// pairs, each with the address of the sender's socket.
func TestPacketConn(t *testing.T) {
	h := newPacketHost(t)
	server := h.open("127.0.0.1", netip.AddrPort{}, Config{})
	client := h.open("127.0.0.2", server.from, Config{})
	var _ net.PacketConn = server
	var _ net.Conn = client
	buf := make([]byte, 5000)
	for i, size := range []int{3, 0, 1, client.longest} {
		if n, err := client.Write(random(size, 1)); n != size || err != nil {
			t.Fatal(i, n, err)
		}
		n, from, err := server.ReadFrom(buf)
		if err != nil || !bytes.Equal(buf[:n], random(size, 1)) || from.String() != client.LocalAddr().String() {
			t.Fatal(i, n, from, err)
		}
		if n, err := server.WriteTo(random(size, 2), from); n != size || err != nil {
			t.Fatal(i, n, err)
		}
		if n, err := client.Read(buf); err != nil || !bytes.Equal(buf[:n], random(size, 2)) {
			t.Fatal(i, n, err)
		}
		known(t, client, server.from)
		sent := client.dev.Counters()["sent_pkts"]
		if (i == 0) != (sent == 0) {
			t.Errorf("datagram %d: %d packets from the queue pair", i, sent)
		}
	}
	// A longer datagram than the reader has room for loses its end.
	client.Write(random(100, 1))
	if n, err := io.ReadAtLeast(readOnce{server}, buf[:50], 1); n != 50 || err != nil {
		t.Error(n, err)
	}
	client.Write([]byte{7})
	if n, err := server.Read(buf); n != 1 || buf[0] != 7 || err != nil {
		t.Error(n, err)
	}
}

type readOnce struct{ *PacketConn }

// More datagrams than the receive buffer holds: some are lost, those that arrive are
// whole, and the connection goes on.
func TestPacketConnOverrun(t *testing.T) {
	h := newPacketHost(t)
	server := h.open("127.0.0.1", netip.AddrPort{}, Config{RecvBuffer: 4096})
	client := h.open("127.0.0.2", server.from, Config{})
	client.Write([]byte("hello"))
	known(t, client, server.from)
	for i := range 100 {
		if _, err := client.Write(random(1000, uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(10 * time.Second); server.dev.Counters()["drop_no_receive"] == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing was dropped")
		}
	}
	buf := make([]byte, 2000)
	server.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	got := 0
	for {
		n, err := server.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if n != 1000 && string(buf[:n]) != "hello" {
			t.Fatal(n, err)
		}
		got++
	}
	if got < 2 {
		t.Errorf("%d datagrams", got)
	}
	client.Write([]byte("more"))
	server.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := server.Read(buf); string(buf[:n]) != "more" || err != nil {
		t.Error(n, err)
	}
}

// What is dropped, and counted by its reason.
func TestPacketConnDrops(t *testing.T) {
	h := newPacketHost(t)
	server := h.open("127.0.0.1", netip.AddrPort{}, Config{RecvBuffer: 4096})
	client := h.open("127.0.0.2", server.from, Config{})
	stranger := netip.MustParseAddrPort("127.0.0.3:9")
	hello := func(c *PacketConn, from netip.AddrPort, op byte) bool {
		return c.hello(append(appendHello(nil, from.Addr(), op, 0x1234), "data"...), from)
	}
	arrive := func(b []byte, src netip.Addr) {
		server.mu.Lock()
		defer server.mu.Unlock()
		n := copy(server.recv.Bytes()[grhSize:pieceSize], b)
		ib.PutGRH(server.recv.Bytes(), src, server.from.Addr(), 0, n)
		if server.arrived(0, &roce.WC{ByteLen: uint32(grhSize + n)}) {
			t.Error("not dropped")
		}
	}
	for _, c := range []struct {
		reason string
		conn   *PacketConn
		f      func()
	}{
		{"drop_hello", server, func() { server.hello([]byte("no protocol of ours"), stranger) }},
		{"drop_hello", server, func() { hello(server, stranger, 5) }},
		{"drop_other_peer", client, func() { hello(client, stranger, opData) }},
		{"drop_header", server, func() { arrive([]byte{4, 8, 0}, stranger.Addr()) }},
		{"drop_header", server, func() {
			arrive([]byte{4, 24, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, stranger.Addr())
		}},
		{"drop_source", server, func() { arrive(appendHead(nil, stranger), client.from.Addr()) }},
		{"drop_queue_full", server, func() {
			for range 3 {
				hello(server, stranger, opData)
			}
		}},
		{"forgot_peer", server, func() {
			for i := range maxPeers {
				hello(server, netip.AddrPortFrom(stranger.Addr(), uint16(1000+i)), opCtrl)
			}
		}},
	} {
		before := c.conn.Counters()[c.reason]
		c.f()
		if got := c.conn.Counters()[c.reason]; got != before+1 {
			t.Errorf("%s counts %d after %d", c.reason, got, before)
		}
	}
	if n := len(server.peers); n != maxPeers {
		t.Errorf("%d peers are known", n)
	}
}

// A peer that comes back with another queue pair is found again.
func TestPacketConnPeerRestarts(t *testing.T) {
	h := newPacketHost(t)
	server := h.open("127.0.0.1", netip.AddrPort{}, Config{})
	client := h.open("127.0.0.2", netip.AddrPort{}, Config{})
	buf := make([]byte, 100)
	for qpn := range ib.QPN(3) {
		server.hello(appendHello(nil, client.from.Addr(), opCtrl, 0x1000+qpn), client.from)
	}
	client.WriteToAddrPort([]byte("hello"), server.from)
	if n, err := server.Read(buf); string(buf[:n]) != "hello" || err != nil {
		t.Fatal(n, err)
	}
	server.WriteToAddrPort([]byte("you"), client.from)
	if n, from, err := client.ReadFromAddrPort(buf); string(buf[:n]) != "you" || err != nil || from != server.from {
		t.Fatal(n, from, err)
	}
}

// Errors name what is wrong.
func TestPacketConnErrors(t *testing.T) {
	h := newPacketHost(t)
	server := h.open("127.0.0.1", netip.AddrPort{}, Config{})
	client := h.open("127.0.0.2", server.from, Config{})
	for want, err := range map[string]error{
		"use Write":            second(client.WriteToAddrPort(nil, server.from)),
		"use WriteTo":          second(server.Write(nil)),
		"addr is 1.2.3.4":      second(server.WriteTo(nil, &net.IPAddr{IP: net.IPv4(1, 2, 3, 4)})),
		"addr is [::1]:5":      second(server.WriteToAddrPort(nil, netip.MustParseAddrPort("[::1]:5"))),
		"len(p) is 3000":       second(client.Write(make([]byte, 3000))),
		"address is :5":        listenError("udp", ":5"),
		"unknown network tcp":  listenError("tcp", "127.0.0.1:5"),
		"unknown network udp5": listenError("udp5", "127.0.0.1:5"),
		"missing port":         listenError("udp", "127.0.0.1"),
		"address is 1.2.3.4:0": dialError("1.2.3.4:0"),
		"address is :4":        dialError(":4"),
		"unknown port":         dialError("1.2.3.4:nosuchservice"),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	server.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, _, err := server.ReadFrom(nil); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	done := make(chan error)
	server.SetReadDeadline(time.Time{})
	go func() { done <- second(server.Read(nil)) }()
	server.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := errors.Join(server.Close()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	client.dev.Close()
	if _, err := client.Read(nil); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("after the device's end:", err)
	}
}

func listenError(network, address string) error { _, err := ListenPacket(network, address); return err }
func dialError(address string) error            { _, err := DialPacket("udp", address); return err }

// The layout is that of struct ds_header and struct ds_udp_header (librdmacm,
// rsocket.c).
func TestDatagramHeaders(t *testing.T) {
	v4, v6 := netip.MustParseAddrPort("10.1.2.3:4660"), netip.MustParseAddrPort("[fd77::1]:4660")
	for _, c := range []struct {
		addr        netip.AddrPort
		head, hello string
	}{
		{v4, "0408" + "1234" + "0a010203", "55555555" + "04" + "00" + "10" + "00" + "00abcdef" + "0a010203"},
		{v6, "0618" + "1234" + "00000000" + "fd770000000000000000000000000001",
			"55555555" + "06" + "00" + "1c" + "00" + "00abcdef" + "fd770000000000000000000000000001"},
	} {
		head, hello := appendHead(nil, c.addr), appendHello(nil, c.addr.Addr(), opData, 0xabcdef)
		if hex.EncodeToString(head) != c.head || hex.EncodeToString(hello) != c.hello {
			t.Errorf("%x\n%x", head, hello)
		}
		if from, data, ok := parseHead(append(head, 9)); from != c.addr || !bytes.Equal(data, []byte{9}) || !ok {
			t.Error(from, data, ok)
		}
		if op, qpn, data, ok := parseHello(append(hello, 9), c.addr.Addr()); op != opData || qpn != 0xabcdef || !bytes.Equal(data, []byte{9}) || !ok {
			t.Error(op, qpn, data, ok)
		}
		for n := range len(head) {
			if _, _, ok := parseHead(head[:n]); ok {
				t.Errorf("header of %d bytes", n)
			}
		}
		for n := range len(hello) {
			if _, _, _, ok := parseHello(hello[:n], c.addr.Addr()); ok {
				t.Errorf("hello of %d bytes", n)
			}
		}
	}
	if _, _, _, ok := parseHello(appendHello(nil, v4.Addr(), opData, 1), v4.Addr()); ok {
		t.Error("queue pair 1")
	}
	if _, _, _, ok := parseHello(appendHello(nil, v4.Addr(), opData, 5), v6.Addr()); ok {
		t.Error("the other IP version")
	}
}

// A datagram is sent and read without an allocation.
func TestPacketConnNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	h := newPacketHost(t)
	server := h.open("127.0.0.1", netip.AddrPort{}, Config{})
	client := h.open("127.0.0.2", server.from, Config{})
	buf := make([]byte, 500)
	round := func() {
		if _, err := client.Write(buf); err != nil {
			t.Fatal(err)
		}
		if _, _, err := server.ReadFromAddrPort(buf); err != nil {
			t.Fatal(err)
		}
	}
	round()
	known(t, client, server.from)
	if n := testing.AllocsPerRun(200, round); n >= 1 {
		t.Errorf("%v allocations for a datagram", n)
	}
}
