package perftest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
)

// record is one write of a side.
type record struct {
	client bool
	data   []byte
}

// recording is what a program of perftest and its peer said to each other.
type recording struct {
	command string
	records []record
}

func (r recording) test() string { return strings.TrimPrefix(strings.Fields(r.command)[0], "ib_") }

func (r recording) qps() int {
	_, n, ok := strings.Cut(r.command, "-q ")
	if !ok {
		return 1
	}
	q, _ := strconv.Atoi(n)
	return q
}

func readRecordings(t *testing.T, file string) (all []recording) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if command, ok := strings.CutPrefix(line, "# ib_"); ok {
			all = append(all, recording{command: "ib_" + command})
		} else if side, quoted, ok := strings.Cut(line, " "); ok && (side == "C" || side == "S") {
			s, err := strconv.Unquote(quoted)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			last := &all[len(all)-1]
			last.records = append(last.records, record{side == "C", []byte(s)})
		}
	}
	if len(all) < 6 {
		t.Fatalf("%s has %d recordings", file, len(all))
	}
	return all
}

// dests returns the addresses of a side, as it exchanges them first.
func (r recording) dests(t *testing.T, client bool) (all []Dest) {
	t.Helper()
	skip := r.order().Early
	for _, rec := range r.records {
		if rec.client != client || len(rec.data) != destLen {
			continue
		}
		if skip {
			skip = false
			continue
		}
		d, err := ParseDest(rec.data)
		if err != nil {
			t.Fatal(err)
		}
		if all = append(all, d); len(all) == r.qps() {
			return all
		}
	}
	t.Fatal("too few addresses")
	return nil
}

func (r recording) order() Order {
	switch test := r.test(); {
	case test == "send_bw":
		return Order{Between: true}
	case strings.HasSuffix(test, "_lat") && test != "send_lat":
		return Order{Early: true}
	}
	return Order{}
}

// replay plays the other side: it says what was recorded and compares what it hears.
func (r recording) replay(conn net.Conn, client bool) error {
	defer conn.Close()
	reports := 0
	for i, rec := range r.records {
		if string(rec.data) == "done\x00" {
			continue // written and never read
		}
		if rec.client == client {
			if _, err := conn.Write(rec.data); err != nil {
				return fmt.Errorf("record %d: %w", i, err)
			}
			continue
		}
		got := make([]byte, len(rec.data))
		if _, err := io.ReadFull(conn, got); err != nil {
			return fmt.Errorf("record %d: %w", i, err)
		}
		switch {
		case len(got) == versionLen:
			if v, _, _ := bytes.Cut(got, []byte{0}); string(v) != version {
				return fmt.Errorf("we said to be version %q", got)
			}
			continue
		case len(got) == 8 && client: // results of a server: what happened to be in its memory
			if reports++; reports > reportWords {
				return fmt.Errorf("record %d: one result too many", i)
			}
			continue
		}
		if !bytes.Equal(got, rec.data) {
			return fmt.Errorf("record %d is\n%q, the original sent\n%q", i, got, rec.data)
		}
	}
	rest, err := io.ReadAll(conn)
	if s := string(rest); err != nil || s != "" && s != "done\x00" {
		return fmt.Errorf("%q (%v) after the last record", rest, err)
	}
	return nil
}

// converse is one side of a test, up to its end.
func (r recording) converse(t *testing.T, conn net.Conn, client bool) error {
	ctx, timeout := context.Background(), 10*time.Second
	s := NewSession(conn, client)
	peer, err := s.Hello(ctx, timeout, ib.MTU4096, VerifyNothing)
	if err != nil {
		return err
	}
	if peer.Ours || peer.MTU != ib.MTU4096 || peer.CycleBuffer != 4096 || (peer.Version != "6.06" && peer.Version != "6.24") {
		return fmt.Errorf("peer is %+v", peer)
	}
	mine, theirs := r.dests(t, client), r.dests(t, !client)
	connected := false
	err = s.Connect(ctx, timeout, r.order(), mine, func(peers []Dest) error {
		connected = true
		if fmt.Sprint(peers) != fmt.Sprint(theirs) {
			return fmt.Errorf("peers are %v, want %v", peers, theirs)
		}
		return nil
	})
	if err != nil || !connected {
		return fmt.Errorf("connected %v: %v", connected, err)
	}
	test := r.test()
	if oneSidedBW := strings.HasSuffix(test, "_bw") && test != "send_bw"; oneSidedBW || strings.HasPrefix(test, "send_") {
		if _, err := s.Swap(ctx, timeout, mine[0]); err != nil {
			return err
		}
		if oneSidedBW {
			if err := r.swapReports(s, ctx, timeout, client); err != nil {
				return err
			}
		}
	}
	if test == "write_lat" {
		return nil
	}
	return s.Close(ctx, timeout, mine[0])
}

// swapReports sends the recorded results of a client, or compares them.
func (r recording) swapReports(s *Session, ctx context.Context, timeout time.Duration, client bool) error {
	var words []uint64
	for _, rec := range r.records {
		if rec.client && len(rec.data) == 8 {
			words = append(words, binary.BigEndian.Uint64(rec.data))
		}
	}
	want := Report{Size: words[0], Iters: words[1], Peak: math.Float64frombits(words[2]), Average: math.Float64frombits(words[3]), Rate: math.Float64frombits(words[4])}
	var mine Report
	if client {
		mine = want
	}
	theirs, err := s.SwapReport(ctx, timeout, mine)
	if err != nil {
		return err
	}
	if size := map[bool]uint64{false: 256, true: 8}[strings.HasPrefix(r.test(), "atomic")]; want.Size != size || want.Iters != uint64(20*r.qps()) {
		return fmt.Errorf("recorded %+v", want)
	}
	if !client && theirs != want {
		return fmt.Errorf("results %+v, want %+v", theirs, want)
	}
	return nil
}

// We say, byte for byte, what perftest says in the same place, in both roles, and
// understand all it says.
func TestGolden(t *testing.T) {
	for _, file := range []string{"testdata/perftest-4.5-0.17.txt", "testdata/perftest-25.01.txt"} {
		for _, r := range readRecordings(t, file) {
			for _, client := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s client %v", r.command, client), func(t *testing.T) {
					ours, theirs := net.Pipe()
					done := make(chan error, 1)
					go func() { done <- r.replay(theirs, !client) }()
					if err := r.converse(t, ours, client); err != nil {
						t.Error(err)
					}
					ours.Close()
					if err := <-done; err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}
