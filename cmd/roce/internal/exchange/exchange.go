// Package exchange is the conversation over TCP with which ibv_rc_pingpong and
// its relatives (uc, ud, srq; for xsrq see xrc.go) tell each other where their queue pairs are.
//
// The client connects and sends its address as text, the server answers with
// its own, the client says "done". Each of the three is one write, zero byte
// included, because the original reads with one call: "lid:qpn:psn:gid" in hex
// of fixed width (52 bytes with the zero byte), and "done" (5 bytes).
// ibv_srq_pingpong has many queue pairs: both sides send SRQSlots addresses, those
// they do not use zero.
//
// Source of the format: rdma-core, libibverbs/examples/rc_pingpong.c,
// srq_pingpong.c and pingpong.c, as Debian 12 and newer ship them.
package exchange

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/goroce/goroce/ib"
)

// Port is the TCP port of the ibv_*_pingpong programs.
const Port = 18515

// SRQSlots is how many addresses ibv_srq_pingpong sends.
const SRQSlots = 256

const (
	textLen = 4 + 1 + 6 + 1 + 6 + 1 + 32
	msgLen  = textLen + 1 // with the zero byte
	done    = "done\x00"
)

// ErrSilent says that the peer closed the connection before it said anything: a
// port scanner, a health check, or a client that failed on its side.
var ErrSilent = errors.New("the peer closed the connection without a word")

// Dest is where a queue pair is. On RoCE the LID is 0 and the GID an IP address.
type Dest struct {
	LID uint16
	QPN ib.QPN
	PSN ib.PSN // of its first request
	GID ib.GID // zero when the peer named none
}

// String returns the text form, without the zero byte.
func (d Dest) String() string {
	return fmt.Sprintf("%04x:%06x:%06x:%x", d.LID, uint32(d.QPN), uint32(d.PSN), d.GID[:])
}

// Line returns the form in which ibv_rc_pingpong prints an address.
func (d Dest) Line() string {
	return fmt.Sprintf("LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s", d.LID, uint32(d.QPN), uint32(d.PSN), gidText(d.GID))
}

// gidText is inet_ntop's form: "::" for none, "::ffff:10.0.0.1" for IPv4.
func gidText(g ib.GID) string { return g.String() }

// Parse reads the text form; everything from a zero byte on is ignored. Numbers
// may be shorter than their field, as for the scanf of the original, but must
// fit it.
func Parse(b []byte) (Dest, error) {
	text, _, _ := bytes.Cut(b, []byte{0})
	f := strings.Split(string(text), ":")
	if len(f) != 4 {
		return Dest{}, notAnAddress(text)
	}
	lid, err1 := strconv.ParseUint(f[0], 16, 16)
	qpn, err2 := strconv.ParseUint(f[1], 16, 24)
	psn, err3 := strconv.ParseUint(f[2], 16, 24)
	gid, err4 := hex.DecodeString(f[3])
	if err := errors.Join(err1, err2, err3, err4); err != nil || len(gid) != len(ib.GID{}) {
		return Dest{}, notAnAddress(text)
	}
	return Dest{LID: uint16(lid), QPN: ib.QPN(qpn), PSN: ib.PSN(psn), GID: ib.GID(gid)}, nil
}

func notAnAddress(text []byte) error {
	return fmt.Errorf("the peer sent %q, which is not lid:qpn:psn:gid in hex: is it an ibv_*_pingpong?", text)
}

// Client runs the client's side on conn, which it does not close; the peer has
// as many addresses as we. ready is called between the peer's answer and our
// "done", so that a queue pair that cannot be connected is reported to the server
// by a missing "done". The whole conversation ends by timeout or with ctx.
func Client(ctx context.Context, conn net.Conn, timeout time.Duration, mine []Dest, ready func(peers []Dest) error) ([]Dest, error) {
	defer Bound(ctx, conn, timeout)()
	if _, err := conn.Write(message(mine)); err != nil {
		return nil, Explain(ctx, conn, "sending our address", err)
	}
	peers, err := read(ctx, conn, len(mine))
	if err != nil {
		return nil, err
	}
	if err := ready(peers); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(conn, done); err != nil {
		return nil, Explain(ctx, conn, "sending \"done\"", err)
	}
	return peers, nil
}

// Server runs the server's side on conn, which it does not close, for n
// addresses on each side. prepare gets the client's and returns ours: the queue
// pairs must be ready to receive when it returns. The error is ErrSilent when the
// client said nothing at all.
func Server(ctx context.Context, conn net.Conn, timeout time.Duration, n int, prepare func(peers []Dest) (mine []Dest, err error)) ([]Dest, error) {
	defer Bound(ctx, conn, timeout)()
	peers, err := read(ctx, conn, n)
	if err != nil {
		return nil, err
	}
	mine, err := prepare(peers)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(message(mine)); err != nil {
		return nil, Explain(ctx, conn, "sending our address", err)
	}
	var answer [len(done)]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return nil, Explain(ctx, conn, "waiting for \"done\"", err)
	}
	if string(answer[:]) != done {
		return nil, fmt.Errorf("the client answered %q instead of \"done\"", answer[:])
	}
	return peers, nil
}

func message(all []Dest) (b []byte) {
	for _, d := range all {
		b = append(b, d.String()...)
		b = append(b, 0)
	}
	return b
}

// read reads the peer's n addresses.
func read(ctx context.Context, conn net.Conn, n int) ([]Dest, error) {
	b := make([]byte, n*msgLen)
	if err := fill(ctx, conn, b, ", which may have one queue pair only"); err != nil {
		return nil, err
	}
	peers := make([]Dest, n)
	for i := range peers {
		var err error
		if peers[i], err = Parse(b[i*msgLen:][:msgLen]); err != nil {
			return nil, err
		}
	}
	return peers, nil
}

// fill reads what the peer says of itself; hint is added when that ends after one
// address. The error is ErrSilent when the peer says nothing.
func fill(ctx context.Context, conn net.Conn, b []byte, hint string) error {
	got, err := io.ReadFull(conn, b)
	if got == 0 && errors.Is(err, io.EOF) {
		return ErrSilent
	}
	if err == nil {
		return nil
	}
	doing := fmt.Sprintf("waiting for the peer's address (%d of %d bytes came)", got, len(b))
	if got == msgLen {
		doing += hint
	}
	return Explain(ctx, conn, doing, err)
}

// Conn is what a conversation goes over: a TCP connection, or what is like one.
type Conn interface {
	io.ReadWriter
	SetDeadline(t time.Time) error
	RemoteAddr() net.Addr
}

// Bound gives the conversation on conn a deadline, none with timeout 0, and ends
// it with ctx. The function that it returns undoes both.
func Bound(ctx context.Context, conn Conn, timeout time.Duration) (undo func()) {
	if timeout > 0 {
		conn.SetDeadline(time.Now().Add(timeout))
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	return func() {
		if stop() {
			conn.SetDeadline(time.Time{})
		}
	}
}

// Explain says what a failed read or write of the conversation means: the cause
// of ctx if that has ended.
func Explain(ctx context.Context, conn Conn, doing string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errors.New("no answer in time; if the other side only takes long, as with large messages, give a longer --timeout")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		err = errors.New("the peer closed the connection; its own output says why")
	}
	over := conn.RemoteAddr()
	return fmt.Errorf("%s exchange with %s: %s: %w", strings.ToUpper(over.Network()), over, doing, err)
}
