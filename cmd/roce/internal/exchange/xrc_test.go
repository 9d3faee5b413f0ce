package exchange

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/goroce/goroce/ib"
)

// What the format of ibv_xsrq_pingpong, "%04x:%06x:%06x:%06x:%06x:%32s", makes of
// an address.
const (
	xrcV4   = "0000:000011:000012:303ca1:000013:00000000000000000000ffff0a4d0002"
	xrcNone = "00fe:ffffff:000012:000000:ffffff:00000000000000000000000000000000"
)

var xrcHere = XRCDest{Target: 0x11, Sender: 0x12, PSN: 0x303ca1, SRQN: 0x13, GID: ib.GIDFromAddr(netip.MustParseAddr("10.77.0.2"))}

func TestXRCText(t *testing.T) {
	for _, tt := range []struct {
		text, line string
		dest       XRCDest
	}{
		{xrcV4, "LID 0000, QPN RECV 000011 SEND 000012, PSN 303ca1, SRQN 000013, GID ::ffff:10.77.0.2", xrcHere},
		{xrcNone, "LID 00fe, QPN RECV ffffff SEND 000012, PSN 000000, SRQN ffffff, GID ::",
			XRCDest{LID: 0xfe, Target: 0xffffff, Sender: 0x12, SRQN: 0xffffff}},
	} {
		if len(tt.text)+1 != xrcLen || xrcLen != 66 {
			t.Errorf("%d bytes, the original sends 66", len(tt.text)+1)
		}
		if got, err := ParseXRC([]byte(tt.text + "\x00")); err != nil || got != tt.dest {
			t.Errorf("ParseXRC(%q) = %v, %v", tt.text, got, err)
		}
		if s := tt.dest.String(); s != tt.text {
			t.Errorf("String() = %q, want %q", s, tt.text)
		}
		if s := tt.dest.Line(); s != tt.line {
			t.Errorf("Line() = %q, want %q", s, tt.line)
		}
	}
	for _, text := range []string{
		"", goldenV4, ":::::", "1:2:3:4:5:6",
		"10000" + xrcV4[4:], xrcV4[:5] + "1" + xrcV4[5:], xrcV4[:len(xrcV4)-2], xrcV4 + ":00", strings.Replace(xrcV4, "303ca1", "-03ca1", 1),
	} {
		if d, err := ParseXRC([]byte(text)); err == nil || !strings.Contains(err.Error(), "ibv_xsrq_pingpong") {
			t.Errorf("ParseXRC(%q) = %v, %v, want an error", text, d, err)
		}
	}
}

func FuzzParseXRC(f *testing.F) {
	f.Add([]byte(xrcV4))
	f.Add([]byte("0:1:2:3:4:fd770000000000000000000000000002\x00rest"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseXRC(b)
		if err != nil {
			return
		}
		if again, err := ParseXRC([]byte(d.String())); err != nil || again != d {
			t.Errorf("%q: %v became %v, %v", b, d, again, err)
		}
	})
}

// script reads and writes what one side of the original does: "<" and ">" lines.
func script(c net.Conn, lines ...string) error {
	for _, l := range lines {
		text := l[1:] + "\x00"
		if l[0] == '>' {
			if _, err := io.WriteString(c, text); err != nil {
				return err
			}
			continue
		}
		b := make([]byte, len(text))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != text {
			return fmt.Errorf("read %q, %v, want %q", b, err, text)
		}
	}
	return nil
}

// The conversation of each side with the original's other one, byte for byte.
func TestXRCConversation(t *testing.T) {
	client, server := pair(t)
	done := make(chan error, 1)
	go func() { done <- script(server, "<"+xrcV4, ">"+xrcNone, "<END", ">END") }()
	if peer, err := XRCClient(t.Context(), client, patience, xrcHere); err != nil || peer.String() != xrcNone {
		t.Errorf("client: %v, %v", peer, err)
	}
	if err := errors.Join(SayEnd(t.Context(), client, patience), AwaitEnd(t.Context(), client, patience), <-done); err != nil {
		t.Error(err)
	}

	client, server = pair(t)
	go func() { done <- script(client, ">"+xrcNone, "<"+xrcV4, ">END", "<END") }()
	peer, err := XRCServer(t.Context(), server, patience, func(peer XRCDest) (XRCDest, error) {
		if peer.String() != xrcNone {
			t.Errorf("the server is told %v", peer)
		}
		return xrcHere, nil
	})
	if err != nil || peer.String() != xrcNone {
		t.Errorf("server: %v, %v", peer, err)
	}
	if err := errors.Join(AwaitEnd(t.Context(), server, patience), SayEnd(t.Context(), server, patience), <-done); err != nil {
		t.Error(err)
	}
}

// What goes wrong is told.
func TestXRCConversationFails(t *testing.T) {
	refused := errors.New("no")
	for _, tt := range []struct {
		name, says string
		want       func(error) bool
	}{
		{"silent", "", func(err error) bool { return errors.Is(err, ErrSilent) }},
		{"half an address", xrcV4[:20], func(err error) bool { return strings.Contains(err.Error(), "20 of 66 bytes came") }},
		{"no address", strings.Repeat("x", 66), func(err error) bool { return strings.Contains(err.Error(), "ibv_xsrq_pingpong") }},
		{"refused by us", xrcV4 + "\x00", func(err error) bool { return errors.Is(err, refused) }},
	} {
		client, server := pair(t)
		io.WriteString(client, tt.says)
		client.Close()
		_, err := XRCServer(t.Context(), server, patience, func(XRCDest) (XRCDest, error) { return XRCDest{}, refused })
		if err == nil || !tt.want(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	client, server := pair(t)
	io.WriteString(client, "done")
	if err := AwaitEnd(t.Context(), server, patience); err == nil || !strings.Contains(err.Error(), `said "done"`) {
		t.Errorf("another word: %v", err)
	}
	client.Close()
	if err := AwaitEnd(t.Context(), server, patience); err == nil || !strings.Contains(err.Error(), "closed the connection") {
		t.Errorf("no word: %v", err)
	}
}
