// Command peer is a verbs peer on this stack: the JSON requests of wire/verbs.go on standard input, the answers on standard output.
// guest/verbs.py is its counterpart on rdma-core.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/test/interop/wire"
)

func main() {
	p := &peer{mrs: map[int]*roce.MR{}, mws: map[int]*roce.MW{}, qps: map[int]*roce.QP{}, srqs: map[int]*roce.SRQ{}, ahs: map[int]*roce.AH{}}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var r wire.Request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			os.Exit(2)
		}
		res, err := p.do(&r)
		if err != nil {
			res.Err = r.Op + ": " + err.Error()
		}
		if err := out.Encode(res); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			os.Exit(1)
		}
		if r.Op == "quit" {
			break
		}
	}
}

// peer is an open device with its objects by number.
type peer struct {
	dev  *roce.Device
	pd   *roce.PD
	cq   *roce.CQ
	mrs  map[int]*roce.MR
	mws  map[int]*roce.MW
	qps  map[int]*roce.QP
	srqs map[int]*roce.SRQ
	ahs  map[int]*roce.AH

	datagram roce.WC // the last datagram received
}

// do answers one request.
func (p *peer) do(r *wire.Request) (res wire.Response, err error) {
	if p.dev == nil && r.Op != "open" && r.Op != "quit" {
		return res, errors.New("no device is open")
	}
	mr, qp, srq := p.mrs[r.MR], p.qps[r.QP], p.srqs[r.SRQ]
	switch r.Op {
	case "word", "setword":
		if mr == nil || r.Off < 0 || r.Off&7 != 0 || r.Off+8 > len(mr.Bytes()) {
			return res, fmt.Errorf("no memory region %d with a word at %d", r.MR, r.Off)
		}
	case "fill", "check":
		if mr == nil || r.Off < 0 || r.Len < 0 || r.Off+r.Len > len(mr.Bytes()) {
			return res, fmt.Errorf("no memory region %d with bytes %d to %d", r.MR, r.Off, r.Off+r.Len)
		}
	case "connect", "send", "state", "arm", "migrate":
		if qp == nil {
			return res, fmt.Errorf("no queue pair %d", r.QP)
		}
	case "limit", "recv":
		if srq == nil && (qp == nil || r.Op == "limit") {
			return res, fmt.Errorf("no queue pair %d and no shared receive queue %d", r.QP, r.SRQ)
		}
	}
	switch r.Op {
	case "open":
		return p.open(r)
	case "mr":
		return p.register(r)
	case "mw":
		return p.window(r)
	case "srq":
		p.srqs[r.SRQ], err = p.pd.CreateSRQ(roce.SRQConfig{MaxWR: r.Depth})
		return res, err
	case "limit":
		return res, srq.Modify(roce.SRQAttr{Limit: r.N}, roce.SRQLimit)
	case "qp":
		return p.create(r)
	case "connect":
		return res, connect(qp, r)
	case "ah", "back":
		p.ahs[r.AH], err = p.address(r)
		return res, err
	case "fill":
		content(mr.Bytes()[r.Off:r.Off+r.Len], r)
	case "check":
		want := make([]byte, r.Len)
		content(want, r)
		res.Bad, res.First = compare(mr.Bytes()[r.Off:r.Off+r.Len], want)
	case "setword":
		mr.StoreUint64(r.Off, r.Word)
	case "word":
		res.Word = mr.LoadUint64(r.Off)
	case "recv":
		if srq != nil {
			return res, p.postRecv(srq.PostRecv, r.WRs)
		}
		return res, p.postRecv(qp.PostRecv, r.WRs)
	case "send":
		return p.postSend(qp, r.WRs)
	case "poll":
		return p.poll(r)
	case "events":
		return p.events(r)
	case "state":
		attr, _ := qp.Query()
		res.State, res.PathMigState = attr.State.String(), attr.PathMigState.String()
	case "arm":
		return res, qp.Arm(roce.Alternate{SourcePort: r.SrcPort})
	case "migrate":
		return res, qp.Migrate()
	case "destroy":
		return res, p.destroy(r)
	case "quit":
		if p.dev != nil {
			return res, p.dev.Close()
		}
	default:
		return res, errors.New("unknown request")
	}
	return res, nil
}

func (p *peer) open(r *wire.Request) (res wire.Response, err error) {
	addr, err := netip.ParseAddr(r.Addr)
	if err != nil {
		return res, err
	}
	plain := os.Getenv("GOROCE_OFFLOAD") == "off" // as the commands of roce
	if p.dev, err = roce.Open(roce.Config{Addr: addr, NoGSO: plain, NoGRO: plain}); err != nil {
		return res, err
	}
	if p.pd, err = p.dev.AllocPD(); err != nil {
		return res, err
	}
	if p.cq, err = p.dev.CreateCQ(1024); err != nil {
		return res, err
	}
	port, err := p.dev.QueryPort()
	if err != nil {
		return res, err
	}
	// Eight groups of four digits, as the kernel prints a GID.
	b := addr.As16()
	for i := 0; i < 16; i += 2 {
		res.GID += fmt.Sprintf(":%02x%02x", b[i], b[i+1])
	}
	res.GID = res.GID[1:]
	res.MTU = port.ActiveMTU.Bytes()
	return res, nil
}

func (p *peer) register(r *wire.Request) (res wire.Response, err error) {
	acc, err := access(r.Access)
	if err != nil {
		return res, err
	}
	mem := make([]byte, r.Len)
	if acc&roce.FlushPersistent != 0 {
		if mem, err = persistent(r.Len); err != nil {
			return res, err
		}
	}
	mr, err := p.pd.RegisterMR(mem, acc)
	if err != nil {
		return res, err
	}
	p.mrs[r.MR] = mr
	return wire.Response{VA: mr.Addr(), RKey: mr.RKey()}, nil
}

// persistent is memory that the mapping of a file is; it stays until the program ends.
func persistent(n int) ([]byte, error) {
	f, err := os.CreateTemp("", "goroce-peer-")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	defer os.Remove(f.Name())
	if err := f.Truncate(int64(n)); err != nil {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func (p *peer) window(r *wire.Request) (res wire.Response, err error) {
	mw, err := p.pd.AllocMW(roce.MWType(r.Type))
	if err != nil {
		return res, err
	}
	p.mws[r.MW] = mw
	return wire.Response{RKey: mw.RKey()}, nil
}

func (p *peer) create(r *wire.Request) (res wire.Response, err error) {
	qp, err := p.pd.CreateQP(roce.QPConfig{Type: services[r.Service], SendCQ: p.cq, MaxSendWR: r.Depth, MaxRecvWR: r.Depth, SRQ: p.srqs[r.SRQ], SigAll: true})
	if err != nil {
		return res, err
	}
	p.qps[r.QP] = qp
	return wire.Response{QPN: uint32(qp.Num())}, nil
}

func (p *peer) destroy(r *wire.Request) error {
	if qp := p.qps[r.QP]; qp != nil {
		delete(p.qps, r.QP)
		return qp.Destroy()
	}
	if mr := p.mrs[r.MR]; mr != nil {
		delete(p.mrs, r.MR)
		return mr.Deregister()
	}
	if mw := p.mws[r.MW]; mw != nil {
		delete(p.mws, r.MW)
		return mw.Dealloc()
	}
	if srq := p.srqs[r.SRQ]; srq != nil {
		delete(p.srqs, r.SRQ)
		return srq.Destroy()
	}
	if ah := p.ahs[r.AH]; ah != nil {
		delete(p.ahs, r.AH)
		return ah.Destroy()
	}
	return errors.New("no such object")
}

// poll waits for r.N completions and returns those that came.
func (p *peer) poll(r *wire.Request) (res wire.Response, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.TimeoutMS)*time.Millisecond)
	defer cancel()
	wcs := make([]roce.WC, r.N)
	for len(res.WCs) < r.N {
		n, err := p.cq.Wait(ctx, wcs[:r.N-len(res.WCs)])
		for _, wc := range wcs[:n] {
			res.WCs = append(res.WCs, completion(wc))
			if wc.Flags&roce.WCGRH != 0 {
				p.datagram = wc
			}
		}
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return res, err
		}
	}
	return res, nil
}

// events waits for r.N asynchronous events and returns those that came.
func (p *peer) events(r *wire.Request) (res wire.Response, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.TimeoutMS)*time.Millisecond)
	defer cancel()
	for len(res.Events) < r.N {
		e, err := p.dev.NextEvent(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return res, err
		}
		name := eventNames[e.Type]
		if name == "" {
			name = e.Type.String()
		}
		res.Events = append(res.Events, name)
	}
	return res, nil
}

// content writes what the request describes.
func content(b []byte, r *wire.Request) {
	if r.Seed != "" {
		wire.Pattern(b, r.Seed)
		return
	}
	for i := range b {
		b[i] = r.Byte
	}
}

// compare counts the bytes that differ and finds the first.
func compare(got, want []byte) (bad, first int) {
	for i := range got {
		if got[i] != want[i] {
			if bad == 0 {
				first = i
			}
			bad++
		}
	}
	return bad, first
}
