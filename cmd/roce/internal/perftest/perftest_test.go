package perftest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/exchange"
	"github.com/goroce/goroce/ib"
)

const goldenDest = "0000:0080:000016:6e6f22:000006f4:000055841b757000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:02:00000000:\x00"

func TestDest(t *testing.T) {
	want := Dest{
		OutReads: 0x80, QPN: 0x16, PSN: 0x6e6f22, RKey: 0x6f4, VAddr: 0x55841b757000,
		GID: ib.GIDFromAddr(netip.MustParseAddr("10.77.0.2")),
	}
	d, err := ParseDest([]byte(goldenDest))
	if err != nil || d != want {
		t.Errorf("ParseDest: %+v, %v, want %+v", d, err, want)
	}
	if s := string(want.append(nil)); s != goldenDest {
		t.Errorf("append: %q, want %q", s, goldenDest)
	}
	full := Dest{0xffff, 0xffff, 0xffffff, 0xffffff, 0xffffffff, 1<<64 - 1, ib.GIDFromAddr(netip.MustParseAddr("fd77::2")), 0xffffffff}
	b := full.append(nil)
	if back, err := ParseDest(b); len(b) != destLen || err != nil || back != full {
		t.Errorf("%d bytes, %+v, %v", len(b), back, err)
	}
}

// The form of struct pingpong_dest: what is behind the rkey and at the end means nothing.
func TestBinaryDest(t *testing.T) {
	const golden = "\x00\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00\x16\x00\x6e\x6f\x22\x00\x00\x06\xf4????\x00\x00\x55\x84\x1b\x75\x70\x00" +
		"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x0a\x4d\x00\x02\x00\x00\x00\x00????"
	want, err := ParseDest([]byte(goldenDest))
	if d, err2 := parseBinary([]byte(golden)); err != nil || err2 != nil || d != want {
		t.Errorf("%+v, %v, want %+v, %v", d, err2, want, err)
	}
	if b := want.appendBinary(nil); string(b) != strings.ReplaceAll(golden, "????", "\x00\x00\x00\x00") {
		t.Errorf("%q", b)
	}
	for _, at := range []int{0, 4, 8, 12, binaryLen} { // the high byte of a number that is too large, and a byte too many
		b := append([]byte(golden), 0)[:max(binaryLen, at+1)]
		b[at] = 1
		if d, err := parseBinary(b); err == nil {
			t.Errorf("byte %d: %+v", at, d)
		}
	}
}

// Each field is checked for its form and its range.
func TestParseDestRefuses(t *testing.T) {
	for _, bad := range []string{
		"", "done", "GET / HTTP/1.1",
		strings.Replace(goldenDest, "0000:0080", "10000:0080", 1),
		strings.Replace(goldenDest, ":0080:", ":10000:", 1),
		strings.Replace(goldenDest, ":000016:", ":1000016:", 1),
		strings.Replace(goldenDest, ":000016:", ":-00016:", 1),
		strings.Replace(goldenDest, ":6e6f22:", ":16e6f22:", 1),
		strings.Replace(goldenDest, ":000006f4:", ":1000006f4:", 1),
		strings.Replace(goldenDest, ":000055841b757000:", ":1000055841b757000:", 1),
		strings.Replace(goldenDest, ":0a:4d", ":10a:4d", 1),
		strings.Replace(goldenDest, ":0a:4d", ":zz:4d", 1),
		strings.Replace(goldenDest, ":0a:4d", ":4d", 1),
		strings.Replace(goldenDest, ":00000000:", ":00000000:00:", 1),
		strings.Replace(goldenDest, ":00000000:", ":00000000:0", 1),
		"0000:0001:000012:12156b:000003a9:00005566dc75e000:00000000\x00", // without a GID
	} {
		if d, err := ParseDest([]byte(bad)); err == nil {
			t.Errorf("%q is %+v", bad, d)
		}
	}
}

func FuzzParseDest(f *testing.F) {
	f.Add([]byte(goldenDest))
	f.Add([]byte(strings.ToUpper(goldenDest)))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseDest(b)
		if err != nil {
			return
		}
		again := d.append(nil)
		if back, err := ParseDest(again); len(again) != destLen || err != nil || back != d {
			t.Errorf("%q: %+v became %+v, %v", b, d, back, err)
		}
	})
}

// hello has our side say hello to a peer that says these records, as server.
func hello(records ...string) (Peer, error) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() {
		defer theirs.Close()
		var b [versionLen]byte
		for _, r := range records {
			if _, err := theirs.Write([]byte(r)); err != nil || r == "6.06" {
				return
			}
			if _, err := theirs.Read(b[:]); err != nil {
				return
			}
		}
	}()
	return NewSession(ours, false).Hello(context.Background(), 5*time.Second, ib.MTU1024, VerifyEach)
}

// Hostile or foreign peers are refused with what is wrong.
func TestHelloRefuses(t *testing.T) {
	v := "6.06" + strings.Repeat("\x00", 12)
	for _, tt := range []struct {
		name    string
		records []string
		want    string
	}{
		{"too old", []string{"5.69" + strings.Repeat("\x00", 12)}, "version 5.69"},
		{"a pingpong", []string{"0000:000011:303c"}, "not a version"},
		{"HTTP", []string{"GET / HTTP/1.1\r\n"}, "not a version"},
		{"not a number", []string{"NaN" + strings.Repeat("\x00", 13)}, "not a version"},
		{"infinite", []string{"Inf" + strings.Repeat("\x00", 13)}, "not a version"},
		{"half a version", []string{"6.06"}, "4 of 16 bytes"},
		{"pages of 0 bytes", []string{v, "\x00\x00\x00\x00"}, "0 bytes"},
		{"pages of 4 GiB", []string{v, "\xff\xff\xff\xff"}, "4294967295 bytes"},
		{"MTU 0", []string{v, "\x00\x00\x10\x00", "\x00\x00\x00@", "0\x00"}, "path MTU"},
		{"MTU 6", []string{v, "\x00\x00\x10\x00", "\x00\x00\x00@", "6\x00"}, "path MTU"},
		{"MTU 55", []string{v, "\x00\x00\x10\x00", "\x00\x00\x00@", "55"}, "path MTU"},
		{"gone", []string{v, "\x00\x00\x10\x00"}, "the peer closed the connection"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if p, err := hello(tt.records...); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%+v, %v, want %q", p, err, tt.want)
			}
		})
	}
	if _, err := hello(); !errors.Is(err, exchange.ErrSilent) {
		t.Errorf("a port scanner: %v", err)
	}
}

// Two of us know each other by what perftest does not look at.
func TestHelloOfOurs(t *testing.T) {
	for _, verify := range []Verify{VerifyNothing, VerifyEach, VerifyLast} {
		a, b := net.Pipe()
		type result struct {
			p   Peer
			err error
		}
		results := make(chan result)
		go func() {
			p, err := NewSession(a, false).Hello(context.Background(), 5*time.Second, ib.MTU1024, verify)
			results <- result{p, err}
		}()
		p, err := NewSession(b, true).Hello(context.Background(), 5*time.Second, ib.MTU4096, VerifyNothing)
		if want := (Peer{version, true, verify, CycleBuffer, ib.MTU1024}); err != nil || p != want {
			t.Errorf("server is %+v, %v, want %+v", p, err, want)
		}
		r := <-results
		if want := (Peer{version, true, VerifyNothing, CycleBuffer, ib.MTU4096}); r.err != nil || r.p != want {
			t.Errorf("client is %+v, %v, want %+v", r.p, r.err, want)
		}
	}
}

// A peer that says nothing more is given up; a cancelled context ends the wait.
func TestSilence(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	if _, err := NewSession(ours, false).Hello(context.Background(), 10*time.Millisecond, ib.MTU1024, VerifyNothing); err == nil || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("the cause")
	cancel(cause)
	if _, err := NewSession(ours, false).Swap(ctx, 0, Dest{}); !errors.Is(err, cause) {
		t.Errorf("%v, want the cause", err)
	}
	if err := NewSession(ours, false).Await(ctx); !errors.Is(err, cause) {
		t.Errorf("Await: %v, want the cause", err)
	}
}

// Await sees the peer's words and leaves them to the next swap.
func TestAwait(t *testing.T) {
	ours, theirs := net.Pipe()
	go func() {
		theirs.Write([]byte(goldenDest))
		theirs.Read(make([]byte, destLen))
		theirs.Close()
	}()
	s := NewSession(ours, false)
	if err := s.Await(context.Background()); err != nil {
		t.Fatal(err)
	}
	if d, err := s.Swap(context.Background(), 5*time.Second, Dest{}); err != nil || d.QPN != 0x16 {
		t.Errorf("%+v, %v", d, err)
	}
	if err := s.Await(context.Background()); err == nil || !strings.Contains(err.Error(), "closed the connection") {
		t.Errorf("after the end: %v", err)
	}
}
