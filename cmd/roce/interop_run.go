package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/mirror"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/goroce/goroce/roce/rdmacm"
)

// interopOffer is an operation that a peer offers.
type interopOffer struct {
	op      *interopOp
	service roce.QPType
	sizes   func(mtu int) []int
	fixed   bool // no other sizes
	most    int  // the longest message in bytes; 0 is mirror.Size
	play    func(context.Context, *app, *interopCell) error
}

// interopCell is one thing that is tried, and what came of it.
type interopCell struct {
	Peer      string   `json:"peer"`      // serve, rping, perftest
	Transport string   `json:"transport"` // RC, UC, UD
	Operation string   `json:"operation"`
	By        string   `json:"requested_by"` // us, peer
	MTU       int      `json:"mtu"`          // bytes
	Size      int      `json:"size"`         // bytes
	Fault     string   `json:"fault,omitempty"`
	Expected  string   `json:"expected,omitempty"`
	Rule      string   `json:"rule,omitempty"`
	Result    string   `json:"result"` // ok, failed, not offered
	Reason    string   `json:"reason,omitempty"`
	Seconds   float64  `json:"seconds"`
	Packets   []string `json:"packets,omitempty"` // of what has failed

	service roce.QPType
	mtu     ib.MTU
	fault   *interopFault
	offer   *interopOffer
	run     *interopRun

	traceless bool // the fault was there, and nothing has shown it
}

// The results of a cell.
const (
	resultOK         = "ok"
	resultFailed     = "failed"
	resultNotOffered = "not offered"
)

// notOffered says that a peer lacks something.
type notOffered struct{ why string }

func (e *notOffered) Error() string { return e.why }

// interopRun is one run.
type interopRun struct {
	app     *app
	o       *interopOptions
	peer    netip.Addr
	local   netip.Addr
	fits    ib.MTU // the largest path MTU of our interface
	kinds   []string
	present map[uint16]bool // TCP ports at which somebody has listened
	report  interopReport
}

// interop tests a peer and reports.
func (a *app) interop(ctx context.Context, o *interopOptions) error {
	r := &interopRun{app: a, o: o, present: map[uint16]bool{}}
	if err := r.begin(ctx); err != nil {
		return err
	}
	for _, kind := range r.kinds {
		if err := r.test(ctx, kind); err != nil {
			break // interrupted: what there is, is reported
		}
	}
	a.status("")
	r.report.finish()
	if o.html != "" {
		if err := r.report.writeHTML(o.html); err != nil {
			return err
		}
	}
	if o.json {
		if err := printJSON(a.stdout, &r.report); err != nil {
			return err
		}
	} else {
		r.report.print(a.stdout)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if n := r.report.Failed; n > 0 {
		return fmt.Errorf("%d of %d failed", n, n+r.report.Passed)
	}
	if r.report.Passed == 0 {
		return errors.New("the peer offers nothing of all that was to be tested")
	}
	return nil
}

// begin finds the addresses, the path MTUs and what answers.
func (r *interopRun) begin(ctx context.Context) (err error) {
	if r.peer, err = addrOf(ctx, r.o.host); err != nil {
		return err
	}
	if r.local = r.o.addr; !r.local.IsValid() {
		if r.local, err = sourceFor(ctx, r.o.host); err != nil {
			return err
		}
	}
	info, err := describe(r.local)
	if err != nil {
		return err
	}
	var ok bool
	if r.fits, ok = ib.MTUFromBytes(info.ActiveMTU); !ok {
		return fmt.Errorf("the MTU of interface %s is %d: that is too small for any path MTU", info.Interface, info.LinkMTU)
	}
	if r.o.mtus == nil {
		for m := ib.MTU256; m <= r.fits; m++ {
			r.o.mtus = append(r.o.mtus, m)
		}
	}
	if r.o.html != "" { // before all that it is to tell of
		page, err := os.OpenFile(r.o.html, os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return fmt.Errorf("cannot write the report: %w", err)
		}
		page.Close()
	}
	if r.kinds, err = r.ask(ctx); err != nil {
		return err
	}
	r.report = interopReport{Host: r.o.host, Label: r.o.label, Peer: r.peer.String(), Local: r.local.String(), Version: versionText(), Began: time.Now().UTC().Truncate(time.Second), Kinds: r.kinds, began: time.Now()}
	return nil
}

// ask finds out what runs at the peer. What --peer names has to be there; perftest, which
// comes and goes, is looked for cell by cell then.
func (r *interopRun) ask(ctx context.Context) (kinds []string, err error) {
	if wanted := r.o.peers; wanted != nil {
		if !slices.ContainsFunc(wanted, func(kind string) bool { return kind != peerPerftest }) {
			return wanted, nil
		}
		kinds, cmErr, err := r.askCM(ctx)
		if err != nil {
			return nil, err
		}
		for _, kind := range wanted {
			if kind != peerPerftest && !slices.Contains(kinds, kind) {
				return nil, r.missing(kind, cmErr)
			}
		}
		return wanted, nil
	}
	kinds, cmErr, err := r.askCM(ctx)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: min(r.o.timeout, 2*time.Second)}
	tcp, tcpErr := d.DialContext(ctx, "tcp", net.JoinHostPort(r.peer.String(), strconv.Itoa(int(r.o.tcpPort))))
	if tcpErr == nil {
		tcp.Close() // its program starts again
		r.present[r.o.tcpPort] = true
		kinds = append(kinds, peerPerftest)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if len(kinds) == 0 {
		return nil, fmt.Errorf("nothing at %v answers, neither on port %d of rdma_cm (%s) nor on TCP port %d: start one of these there: 'roce serve --addr %v'; 'rping -s -P -S 65535'; what 'roce interop --script %s' prints",
			r.peer, r.o.port, oneLine(cmErr), r.o.tcpPort, r.peer, r.o.host)
	}
	return kinds, nil
}

// askCM finds out what answers at the port of rdma_cm: nothing, for the reason cmErr,
// rping, or what serves both. The error is that of our side.
func (r *interopRun) askCM(ctx context.Context) (kinds []string, cmErr, err error) {
	dev, err := r.app.open(roce.Config{Addr: r.local})
	if err != nil {
		return nil, nil, err
	}
	defer dev.Close()
	limited, cancel := context.WithTimeout(ctx, r.o.timeout)
	defer cancel()
	conn, cmErr := rdmacm.Dial(limited, net.JoinHostPort(r.peer.String(), strconv.Itoa(int(r.o.port))), rdmacm.Config{Device: dev, PrivateData: mirror.Hello()})
	if cmErr != nil {
		return nil, cmErr, ctx.Err()
	}
	kinds = []string{peerRping}
	if _, ok := mirror.ParseRoom(conn.PrivateData()); ok {
		kinds = []string{peerServe, peerRping}
	}
	conn.Disconnect(limited, nil) // it has answered
	return kinds, nil, nil
}

// missing says how to start what --peer names.
func (r *interopRun) missing(kind string, cmErr error) error {
	how := "rping -s -P -S 65535"
	if kind == peerServe {
		how = fmt.Sprintf("roce serve --addr %v", r.peer)
	}
	if cmErr == nil {
		return fmt.Errorf("what answers at %v on port %d of rdma_cm is not 'roce serve': start that there ('%s'), or leave --peer out to test what there is", r.peer, r.o.port, how)
	}
	return fmt.Errorf("nothing at %v answers on port %d of rdma_cm (%s): start '%s' there, and see 'roce doctor %s'", r.peer, r.o.port, oneLine(cmErr), how, r.o.host)
}

// test tries all that a kind of peer offers.
func (r *interopRun) test(ctx context.Context, kind string) error {
	offers := map[string]func() []interopOffer{peerServe: serveOffers, peerRping: rpingOffers, peerPerftest: perftestOffers}[kind]()
	r.report.lacks(kind, offers)
	for i := range offers {
		for _, mtu := range r.mtusFor(&offers[i]) {
			for _, size := range r.sizesFor(&offers[i], mtu.Bytes()) {
				if err := r.try(ctx, kind, &offers[i], mtu, size, nil); err != nil {
					return err
				}
			}
		}
	}
	for _, f := range r.o.faults {
		for i := range offers {
			o := &offers[i]
			if o.service == roce.RC && !strings.HasSuffix(o.op.name, "_IMM") && f.concerns(o.op) && f.possible(o) {
				mtu := r.faultMTU()
				if err := r.try(ctx, kind, o, mtu, r.faultSize(o, mtu.Bytes()), &f); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// mtusFor are the path MTUs that matter: a datagram has that of the interface.
func (r *interopRun) mtusFor(o *interopOffer) []ib.MTU {
	if o.service == roce.UD {
		return []ib.MTU{r.fits}
	}
	return r.o.mtus
}

// sizesFor are the sizes to try.
func (r *interopRun) sizesFor(o *interopOffer, mtu int) (sizes []int) {
	usual := o.sizes(mtu)
	if r.o.sizes == nil || o.fixed || len(usual) == 1 {
		return usual
	}
	most := slices.Max(usual)
	for _, s := range r.o.sizes {
		if s <= most && s >= slices.Min(usual) {
			sizes = append(sizes, s)
		}
	}
	return sizes
}

// faultMTU is the path MTU of the faults, and faultSize makes messages of five packets.
func (r *interopRun) faultMTU() ib.MTU {
	if slices.Contains(r.o.mtus, ib.MTU1024) {
		return ib.MTU1024
	}
	return r.o.mtus[0]
}

func (r *interopRun) faultSize(o *interopOffer, mtu int) int {
	if usual := o.sizes(mtu); o.fixed || len(usual) == 1 {
		return usual[0]
	}
	return 5 * mtu
}

// tries is how often a cell is tried whose fault leaves no trace: a peer that is away for
// longer than our own timer waits has both, the fault and its repair, before it answers.
const tries = 3

// try tries one cell. The error is the end of the run, not that of the cell.
func (r *interopRun) try(ctx context.Context, kind string, o *interopOffer, mtu ib.MTU, size int, f *interopFault) error {
	for n := 1; ; n++ {
		c, err := r.attempt(ctx, kind, o, mtu, size, f)
		if err != nil {
			return err
		}
		if !c.traceless || n == tries {
			r.report.Cells = append(r.report.Cells, c)
			return nil
		}
	}
}

func (r *interopRun) attempt(ctx context.Context, kind string, o *interopOffer, mtu ib.MTU, size int, f *interopFault) (*interopCell, error) {
	c := &interopCell{
		Peer: kind, Transport: o.service.String(), Operation: o.op.name, By: o.op.by(), MTU: mtu.Bytes(), Size: size,
		service: o.service, mtu: mtu, fault: f, offer: o, run: r,
	}
	if f != nil {
		c.Fault, c.Expected, c.Rule = f.name, f.expect, f.rule
		if f.nth > 0 {
			c.Fault += "=" + strconv.Itoa(f.nth)
		}
	}
	r.app.status("%s: %s %s by %s, path MTU %d, %d bytes %s", kind, c.Transport, c.Operation, c.By, c.MTU, c.Size, c.Fault)
	began := time.Now()
	seen := new(recorder)
	limited, cancel := context.WithTimeoutCause(ctx, r.o.timeout, &lateError{r.o.timeout})
	defer cancel()
	var (
		dev    *roce.Device
		faulty *netio.Faulty
	)
	a := *r.app
	a.stdout, a.stderr, a.progress = io.Discard, io.Discard, false
	a.open = func(cfg roce.Config) (_ *roce.Device, err error) {
		inner := cfg.Wrap
		cfg.Wrap = func(be netio.Backend) netio.Backend {
			be = netio.Tap(be, seen)
			if f != nil {
				faulty = netio.WithFaults(be, netio.FaultConfig{Seed: 1, Script: []netio.Fault{f.script(o.op, f.nth, r.o.ackWait())}})
				be = faulty
			}
			if inner != nil {
				be = inner(be)
			}
			return be
		}
		dev, err = r.app.open(cfg)
		return dev, err
	}
	err := o.play(limited, &a, c)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if limited.Err() != nil && errors.Is(err, limited.Err()) {
		err = context.Cause(limited)
	}
	var counters map[string]uint64
	if dev != nil {
		counters = dev.Counters()
	}
	var lacking *notOffered
	switch err := c.judge(err, counters); {
	case errors.As(err, &lacking):
		c.Result, c.Reason = resultNotOffered, oneLine(err)
	case err != nil:
		c.Result, c.Reason, c.Packets = resultFailed, oneLine(err), seen.excerpt()
	default:
		c.Result = resultOK
	}
	c.Seconds = time.Since(began).Seconds()
	return c, nil
}

// lateError says that an operation takes too long.
type lateError struct{ limit time.Duration }

func (e *lateError) Error() string { return fmt.Sprintf("it has not ended within %v", e.limit) }

// judge says what is wrong with the end of a cell: nil if it is as it should be.
func (c *interopCell) judge(err error, counters map[string]uint64) error {
	var (
		lacking *notOffered
		failed  *completionError
	)
	f := c.fault
	if rejected := (*rdmacm.RejectedError)(nil); errors.As(err, &rejected) && (rejected.Reason == mad.RejInvalidServiceID || rejected.Status == mad.SIDRUnsupported) {
		return &notOffered{fmt.Sprintf("nobody listens on port %d of rdma_cm", c.run.o.port)}
	}
	if f == nil || errors.As(err, &lacking) {
		return err
	}
	if counters["fault_drop"]+counters["fault_duplicate"]+counters["fault_reorder"]+counters["fault_delay"]+counters["fault_corrupt"]+counters["fault_edit"] == 0 {
		if err != nil {
			return err
		}
		return &notOffered{"the operation has too few packets for the fault"}
	}
	ended := errors.As(err, &failed)
	switch {
	case f.orFails && ended:
		return nil
	case f.status != roce.WCSuccess && err == nil:
		return fmt.Errorf("the request has succeeded instead of ending with %v", f.status)
	case f.status != roce.WCSuccess && ended && failed.status == f.status:
		return nil
	case err != nil:
		return err
	}
	// A gap is seen when another packet follows: of a long message, in its middle.
	shows := f.alwaysShows || f.nth == 0 && c.offer.op.sendsMany() && !c.offer.op.byPeer && c.Size > 3*c.MTU
	if c.traceless = f.shows != "" && shows && counters[f.shows] == 0; c.traceless {
		return fmt.Errorf("all has arrived, but %s", f.missing())
	}
	return nil
}

// missing says what a counter that has not moved means.
func (f *interopFault) missing() string {
	if f.shows == "rcvd_seq_err" {
		return "the peer has sent no sequence NAK"
	}
	return "the peer has sent nothing again"
}

// possible reports whether an operation of this size can suffer the fault.
func (f *interopFault) possible(o *interopOffer) bool {
	return f.name != "bad-opcode" || !o.fixed && len(o.sizes(1024)) > 1
}
