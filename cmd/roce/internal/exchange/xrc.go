package exchange

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/goroce/goroce/ib"
)

// ibv_xsrq_pingpong has a conversation of its own: the client sends its address,
// the server answers with its own, and when all exchanges are done the client says
// "END", which the server answers when it has heard it of all its clients. An
// address is "lid:target:sender:psn:srqn:gid" in hex of fixed width, 66 bytes with the
// zero byte. Source: rdma-core, libibverbs/examples/xsrq_pingpong.c.

const (
	xrcLen = 4 + 1 + 6 + 1 + 6 + 1 + 6 + 1 + 6 + 1 + 32 + 1
	end    = "END\x00"
)

// XRCDest is where one side of ibv_xsrq_pingpong is: the target and the sender that
// belong to the other side, and the shared receive queue.
type XRCDest struct {
	LID            uint16
	Target, Sender ib.QPN
	PSN            ib.PSN // of the sender's first request
	SRQN           ib.QPN
	GID            ib.GID // zero when the peer named none
}

// String returns the text form, without the zero byte.
func (d XRCDest) String() string {
	return fmt.Sprintf("%04x:%06x:%06x:%06x:%06x:%x", d.LID, uint32(d.Target), uint32(d.Sender), uint32(d.PSN), uint32(d.SRQN), d.GID[:])
}

// Line returns the form in which ibv_xsrq_pingpong prints an address.
func (d XRCDest) Line() string {
	return fmt.Sprintf("LID %04x, QPN RECV %06x SEND %06x, PSN %06x, SRQN %06x, GID %s",
		d.LID, uint32(d.Target), uint32(d.Sender), uint32(d.PSN), uint32(d.SRQN), gidText(d.GID))
}

// ParseXRC reads the text form as Parse does.
func ParseXRC(b []byte) (d XRCDest, err error) {
	text, _, _ := bytes.Cut(b, []byte{0})
	f := strings.Split(string(text), ":")
	bad := fmt.Errorf("the peer sent %q, which is not lid:qpn:qpn:psn:srqn:gid in hex: is it an ibv_xsrq_pingpong?", text)
	if len(f) != 6 {
		return d, bad
	}
	lid, err := strconv.ParseUint(f[0], 16, 16)
	var n [4]uint64
	for i := range n {
		var e error
		n[i], e = strconv.ParseUint(f[i+1], 16, 24)
		err = errors.Join(err, e)
	}
	gid, e := hex.DecodeString(f[5])
	if errors.Join(err, e) != nil || len(gid) != len(ib.GID{}) {
		return d, bad
	}
	return XRCDest{uint16(lid), ib.QPN(n[0]), ib.QPN(n[1]), ib.PSN(n[2]), ib.QPN(n[3]), ib.GID(gid)}, nil
}

// XRCClient exchanges the addresses as the client. As all functions here it leaves
// conn open, and ends by timeout or with ctx.
func XRCClient(ctx context.Context, conn net.Conn, timeout time.Duration, mine XRCDest) (XRCDest, error) {
	defer Bound(ctx, conn, timeout)()
	if err := sayXRC(ctx, conn, mine); err != nil {
		return XRCDest{}, err
	}
	return readXRC(ctx, conn)
}

// XRCServer exchanges the addresses as the server: answer gets the client's and
// returns ours. The error is ErrSilent when the client said nothing at all.
func XRCServer(ctx context.Context, conn net.Conn, timeout time.Duration, answer func(peer XRCDest) (XRCDest, error)) (XRCDest, error) {
	defer Bound(ctx, conn, timeout)()
	peer, err := readXRC(ctx, conn)
	if err != nil {
		return peer, err
	}
	mine, err := answer(peer)
	if err != nil {
		return peer, err
	}
	return peer, sayXRC(ctx, conn, mine)
}

func sayXRC(ctx context.Context, conn net.Conn, d XRCDest) error {
	if _, err := io.WriteString(conn, d.String()+"\x00"); err != nil {
		return Explain(ctx, conn, "sending our address", err)
	}
	return nil
}

func readXRC(ctx context.Context, conn net.Conn) (d XRCDest, err error) {
	var b [xrcLen]byte
	if err := fill(ctx, conn, b[:], ""); err != nil {
		return d, err
	}
	return ParseXRC(b[:])
}

// SayEnd tells the other side that all exchanges are done.
func SayEnd(ctx context.Context, conn net.Conn, timeout time.Duration) error {
	defer Bound(ctx, conn, timeout)()
	if _, err := io.WriteString(conn, end); err != nil {
		return Explain(ctx, conn, "sending \"END\"", err)
	}
	return nil
}

// AwaitEnd waits for the other side's SayEnd.
func AwaitEnd(ctx context.Context, conn net.Conn, timeout time.Duration) error {
	defer Bound(ctx, conn, timeout)()
	var b [len(end)]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return Explain(ctx, conn, "waiting for \"END\"", err)
	}
	if string(b[:]) != end {
		return fmt.Errorf("the peer said %q instead of \"END\"", b[:])
	}
	return nil
}
