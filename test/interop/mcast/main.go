// Command mcast sends to a multicast group, or receives from it, on this stack: the counterpart of mckey of librdmacm.
// As a receiver it ends with status 0 when -n messages of -size bytes have come to the group from -from; as a sender it sends one
// each 10 ms until it has sent -n or is killed.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/roce"
)

// qkey is the default of rdma_cm (RDMA_UDP_QKEY), which mckey uses.
const qkey = 0x01234567

func main() {
	var addr, group, from netip.Addr
	flag.TextVar(&addr, "addr", addr, "local address")
	flag.TextVar(&group, "group", group, "multicast group")
	flag.TextVar(&from, "from", from, "receive what this address sends; without it, send")
	n := flag.Int("n", 10, "messages")
	size := flag.Int("size", 100, "bytes of a message")
	flag.Parse()
	if err := run(addr, group, from, *n, *size); err != nil {
		fmt.Fprintln(os.Stderr, "mcast:", err)
		os.Exit(1)
	}
}

func run(addr, group, from netip.Addr, n, size int) error {
	dev, err := roce.Open(roce.Config{Addr: addr})
	if err != nil {
		return err
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	if !from.IsValid() {
		return send(dev, pd, group, n, size)
	}
	// Two queue pairs of one process in one group: each gets everything.
	var members [2]*member
	for i := range members {
		if members[i], err = join(dev, pd, group, n, size); err != nil {
			return err
		}
	}
	fmt.Println("joined")
	for _, m := range members {
		if err := m.receive(group, from, n, size); err != nil {
			return err
		}
	}
	return nil
}

// member is a queue pair in the group.
type member struct {
	cq *roce.CQ
	mr *roce.MR
}

func create(dev *roce.Device, pd *roce.PD, n int) (*roce.CQ, *roce.QP, error) {
	cq, err := dev.CreateCQ(2 * n)
	if err != nil {
		return nil, nil, err
	}
	qp, err := pd.CreateQP(roce.QPConfig{Type: roce.UD, SendCQ: cq, MaxSendWR: n, MaxRecvWR: n, MaxInline: 1024})
	if err != nil {
		return nil, nil, err
	}
	return cq, qp, qp.Activate(qkey)
}

func join(dev *roce.Device, pd *roce.PD, group netip.Addr, n, size int) (*member, error) {
	cq, qp, err := create(dev, pd, n)
	if err != nil {
		return nil, err
	}
	slot := ib.GRHSize + size
	mr, err := pd.RegisterMR(make([]byte, n*slot), roce.LocalWrite)
	if err != nil {
		return nil, err
	}
	for i := range n {
		if err := qp.PostRecv(roce.RecvWR{ID: uint64(i), SGE: []roce.SGE{mr.SGE(i*slot, slot)}}); err != nil {
			return nil, err
		}
	}
	return &member{cq, mr}, qp.AttachMulticast(group)
}

func (m *member) receive(group, from netip.Addr, n, size int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	slot := ib.GRHSize + size
	for got := 0; got < n; got++ {
		var wc [1]roce.WC
		if _, err := m.cq.Wait(ctx, wc[:]); err != nil {
			return fmt.Errorf("after %d messages: %w", got, err)
		}
		grh, ok := ib.ParseGRH(m.mr.Bytes()[int(wc[0].ID)*slot:])
		if wc[0].Status != roce.WCSuccess || int(wc[0].ByteLen) != slot || !ok || grh.Src != from || grh.Dst != group {
			return fmt.Errorf("message %d: %+v from %v to %v", got, wc[0], grh.Src, grh.Dst)
		}
	}
	return nil
}

func send(dev *roce.Device, pd *roce.PD, group netip.Addr, n, size int) error {
	cq, qp, err := create(dev, pd, 64)
	if err != nil {
		return err
	}
	ah, err := pd.CreateAH(roce.AddressVector{DGID: ib.GIDFromAddr(group), HopLimit: 64})
	if err != nil {
		return err
	}
	data := bytes.Repeat([]byte{0x5a}, size)
	for range n {
		if err := qp.PostSend(roce.SendWR{
			Opcode: roce.WRSend, Flags: roce.Inline | roce.Signaled, Data: data, AH: ah, RemoteQPN: ib.MulticastQPN, QKey: qkey,
		}); err != nil {
			return err
		}
		var wc [1]roce.WC
		if _, err := cq.Wait(context.Background(), wc[:]); err != nil || wc[0].Status != roce.WCSuccess {
			return fmt.Errorf("%v: %w", wc[0].Status, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}
