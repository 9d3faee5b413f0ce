package exchange

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
)

// What ibv_rc_pingpong 44.0 (Debian 12) on rxe sent, byte for byte.
const (
	goldenV4   = "0000:000011:303ca1:00000000000000000000ffff0a4d0002"
	goldenV6   = "0000:000012:a7888c:fd770000000000000000000000000002"
	goldenNone = "0000:000013:b6186c:00000000000000000000000000000000" // without -g
)

func TestText(t *testing.T) {
	for _, tt := range []struct {
		name, text, line string
		dest             Dest
	}{
		{"IPv4", goldenV4, "LID 0x0000, QPN 0x000011, PSN 0x303ca1, GID ::ffff:10.77.0.2",
			Dest{0, 0x11, 0x303ca1, ib.GIDFromAddr(netip.MustParseAddr("10.77.0.2"))}},
		{"IPv6", goldenV6, "LID 0x0000, QPN 0x000012, PSN 0xa7888c, GID fd77::2",
			Dest{0, 0x12, 0xa7888c, ib.GIDFromAddr(netip.MustParseAddr("fd77::2"))}},
		{"no GID", goldenNone, "LID 0x0000, QPN 0x000013, PSN 0xb6186c, GID ::",
			Dest{0, 0x13, 0xb6186c, ib.GID{}}},
		{"InfiniBand", "00fe:ffffff:000000:fe800000000000000002c90300a0b0c1", "LID 0x00fe, QPN 0xffffff, PSN 0x000000, GID fe80::2:c903:a0:b0c1",
			Dest{0xfe, 0xffffff, 0, ib.GIDFromAddr(netip.MustParseAddr("fe80::2:c903:a0:b0c1"))}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse([]byte(tt.text + "\x00"))
			if err != nil || got != tt.dest {
				t.Errorf("Parse(%q) = %v, %v", tt.text, got, err)
			}
			if s := tt.dest.String(); s != tt.text {
				t.Errorf("String() = %q, want %q", s, tt.text)
			}
			if n := len(message([]Dest{tt.dest})); n != 52 {
				t.Errorf("message of %d bytes, the original reads 52", n)
			}
			if s := tt.dest.Line(); s != tt.line {
				t.Errorf("Line() = %q, want %q", s, tt.line)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"", "done", "GET / HTTP/1.1", ":::", "0:1:2", "0:1:2:3",
		"10000:000011:303ca1:00000000000000000000ffff0a4d0002",
		"0000:1000011:303ca1:00000000000000000000ffff0a4d0002",
		"0000:000011:-03ca1:00000000000000000000ffff0a4d0002",
		"0000:000011:303ca1:00000000000000000000ffff0a4d00",
		"0000:000011:303ca1:00000000000000000000ffff0a4d0002:00",
		"0000:000011:303ca1:zz000000000000000000ffff0a4d0002",
	} {
		if d, err := Parse([]byte(text)); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", text, d)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(goldenV4))
	f.Add([]byte("0:1:2:fd770000000000000000000000000002\x00rest"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Parse(b)
		if err != nil {
			return
		}
		if again, err := Parse(message([]Dest{d})); err != nil || again != d {
			t.Errorf("%q: %v became %v, %v", b, d, again, err)
		}
	})
}

// pair is a TCP connection over the loopback interface.
func pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp4", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

const patience = 10 * time.Second

func TestClientBytes(t *testing.T) {
	client, server := pair(t)
	mine, _ := Parse([]byte(goldenV6))
	var said string
	finished := make(chan error, 1)
	go func() {
		b := make([]byte, 52)
		if _, err := io.ReadFull(server, b); err != nil {
			finished <- err
			return
		}
		server.Write([]byte(goldenV4 + "\x00"))
		rest, err := io.ReadAll(server)
		said = string(b) + string(rest)
		finished <- err
	}()
	var order []string
	peers, err := Client(context.Background(), client, patience, []Dest{mine}, func(peers []Dest) error {
		order = append(order, peers[0].String())
		return nil
	})
	client.Close()
	if err := errors.Join(err, <-finished); err != nil {
		t.Fatal(err)
	}
	if len(peers) != 1 || peers[0].String() != goldenV4 || len(order) != 1 || order[0] != goldenV4 {
		t.Errorf("peers %v, ready saw %v", peers, order)
	}
	if want := goldenV6 + "\x00done\x00"; said != want {
		t.Errorf("the client wrote %q, want %q", said, want)
	}
}

func TestServerBytes(t *testing.T) {
	client, server := pair(t)
	mine, _ := Parse([]byte(goldenV4))
	answer := make(chan string, 1)
	go func() {
		client.Write([]byte(goldenV6 + "\x00"))
		b := make([]byte, 128)
		n, _ := client.Read(b) // one call, as the original
		client.Write([]byte("done\x00"))
		client.Close()
		answer <- string(b[:n])
	}()
	peers, err := Server(context.Background(), server, patience, 1, func([]Dest) ([]Dest, error) { return []Dest{mine}, nil })
	if err != nil || len(peers) != 1 || peers[0].String() != goldenV6 {
		t.Errorf("Server = %v, %v", peers, err)
	}
	if got, want := <-answer, goldenV4+"\x00"; got != want {
		t.Errorf("the server wrote %q, want %q", got, want)
	}
}

// TestSRQSlots: ibv_srq_pingpong says 256 addresses in each direction, those that
// it does not use zero; a peer with one is told from one that is slow.
func TestSRQSlots(t *testing.T) {
	one, _ := Parse([]byte(goldenV4))
	mine := make([]Dest, SRQSlots)
	mine[0], mine[255] = one, one
	client, server := pair(t)
	said := make(chan string, 1)
	go func() {
		b := make([]byte, SRQSlots*52)
		io.ReadFull(server, b)
		server.Write(b)
		rest, _ := io.ReadAll(server)
		said <- string(b) + string(rest)
	}()
	peers, err := Client(context.Background(), client, patience, mine, func([]Dest) error { return nil })
	client.Close()
	if err != nil || len(peers) != SRQSlots || peers[0] != one || peers[1] != (Dest{}) || peers[255] != one {
		t.Errorf("peers %v, %v", peers, err)
	}
	none := "0000:000000:000000:00000000000000000000000000000000\x00"
	if want := goldenV4 + "\x00" + strings.Repeat(none, 254) + goldenV4 + "\x00done\x00"; <-said != want {
		t.Error("the client wrote something else than the original")
	}

	client, server = pair(t)
	client.Write([]byte(goldenV4 + "\x00"))
	_, err = Server(context.Background(), server, 20*time.Millisecond, SRQSlots, nil)
	if err == nil || !strings.Contains(err.Error(), "52 of 13312 bytes came), which may have one queue pair only") {
		t.Errorf("a peer with one address: %v", err)
	}
}

func TestBadPeers(t *testing.T) {
	accept := func([]Dest) ([]Dest, error) { return []Dest{{}}, nil }
	refuse := func([]Dest) ([]Dest, error) { return nil, errors.New("no such path") }
	for _, tt := range []struct {
		name, says string
		prepare    func([]Dest) ([]Dest, error)
		want       string
	}{
		{"silent", "", accept, ErrSilent.Error()},
		{"other protocol", strings.Repeat("GET / HTTP/1.1\r\n", 4), accept, "is it an ibv_*_pingpong?"},
		{"half an address", goldenV4[:20], accept, "20 of 52 bytes"},
		{"gone before done", goldenV4 + "\x00", accept, "closed the connection"},
		{"wrong last word", goldenV4 + "\x00DONE\x00", accept, `instead of "done"`},
		{"we cannot connect", goldenV4 + "\x00done\x00", refuse, "no such path"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client, server := pair(t)
			client.Write([]byte(tt.says))
			client.(*net.TCPConn).CloseWrite()
			_, err := Server(context.Background(), server, patience, 1, tt.prepare)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// A client whose queue pair cannot be connected must not say "done".
func TestClientRefuses(t *testing.T) {
	client, server := pair(t)
	server.Write([]byte(goldenV4 + "\x00"))
	no := errors.New("no such path")
	if _, err := Client(context.Background(), client, patience, []Dest{{}}, func([]Dest) error { return no }); !errors.Is(err, no) {
		t.Errorf("error %v", err)
	}
	client.Close()
	if b, _ := io.ReadAll(server); len(b) != 52 {
		t.Errorf("the client wrote %q", b)
	}
}

func TestNothingHangs(t *testing.T) {
	t.Run("timeout", func(t *testing.T) {
		_, server := pair(t)
		_, err := Server(context.Background(), server, 20*time.Millisecond, 1, nil)
		if err == nil || !strings.Contains(err.Error(), "no answer in time") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("context", func(t *testing.T) {
		client, server := pair(t)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { io.ReadFull(server, make([]byte, 52)); cancel() }()
		if _, err := Client(ctx, client, patience, []Dest{{}}, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}
