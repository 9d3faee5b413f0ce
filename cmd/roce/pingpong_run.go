package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/goroce/goroce/cmd/roce/internal/exchange"
	"github.com/goroce/goroce/roce"
)

// pingpong plays one game as client or server.
func (a *app) pingpong(ctx context.Context, o *pingpongOptions) error {
	t := &pingpongGame{app: a, o: o}
	defer t.close()
	if o.addr.IsValid() {
		if err := t.sit(o.addr); err != nil {
			return err
		}
	}
	meet := t.meetClient
	if o.server != "" {
		meet = t.meetServer
	}
	if err := meet(ctx); err != nil {
		return err
	}
	for _, peer := range t.peers[:o.numQP] {
		t.show("  remote address: %s\n", peer.Line())
	}
	g := newGame(t.ep, o)
	took, err := g.play(ctx)
	if err != nil {
		return explain(err, o.service(), t.peers[0].GID.Addr(), t.ep.dev)
	}
	if err := t.report(took); err != nil {
		return err
	}
	linger(ctx, t.ep.dev)
	return nil
}

// pingpongGame is one game from the first address to the result.
type pingpongGame struct {
	app   *app
	o     *pingpongOptions
	ep    *endpoint
	peers []exchange.Dest // as many as were exchanged
}

// show prints a line, unless the result is wanted as JSON.
func (t *pingpongGame) show(format string, args ...any) {
	if !t.o.json {
		fmt.Fprintf(t.app.stdout, format, args...)
	}
}

// sit opens our endpoint on a local address.
func (t *pingpongGame) sit(addr netip.Addr) (err error) {
	if t.ep, err = t.app.openEndpoint(addr, t.o); err != nil {
		return err
	}
	for _, d := range t.ep.mine[:t.o.numQP] {
		t.show("  local address:  %s\n", d.Line())
	}
	return nil
}

// meetServer is the client's way to a connected endpoint.
func (t *pingpongGame) meetServer(ctx context.Context) error {
	t.app.progressf("connecting to %s, TCP port %d", t.o.server, t.o.port)
	conn, err := dial(ctx, tcpServer{t.o.server, t.o.port, t.o.timeout, "roce pingpong, or " + t.o.original() + " -g INDEX"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if t.ep == nil {
		if err := t.sit(clientAddr(conn)); err != nil {
			return err
		}
	}
	t.peers, err = exchange.Client(ctx, conn, t.o.timeout, t.ep.mine, t.ep.connect)
	return err
}

// meetClient is the server's way to a connected endpoint.
func (t *pingpongGame) meetClient(ctx context.Context) error {
	return t.app.acceptClients(ctx, t.o.port, 1, func(conn net.Conn) (err error) {
		defer conn.Close()
		t.peers, err = exchange.Server(ctx, conn, t.o.timeout, t.o.slots(), func(peers []exchange.Dest) ([]exchange.Dest, error) {
			return t.answer(conn, peers)
		})
		return err
	})
}

// acceptClients lets meet talk to n clients, one after the other; those who say
// nothing do not count.
func (a *app) acceptClients(ctx context.Context, port uint16, n int, meet func(net.Conn) error) error {
	l, err := a.listen(ctx, port)
	if err != nil {
		return err
	}
	defer l.Close()
	for met := 0; met < n; {
		a.progressf("waiting for a client on TCP port %d", port)
		conn, err := accept(ctx, l)
		if err != nil {
			return err
		}
		switch err := meet(conn); {
		case err == nil:
			met++
		case !errors.Is(err, exchange.ErrSilent):
			return err
		default:
			fmt.Fprintf(a.stderr, "roce: %s connected and said nothing; still waiting\n", conn.RemoteAddr())
		}
	}
	return nil
}

// answer connects our endpoint to a client's.
func (t *pingpongGame) answer(conn net.Conn, peers []exchange.Dest) ([]exchange.Dest, error) {
	if t.ep == nil {
		if peers[0].GID.IsZero() {
			return nil, t.o.checkPeer(netip.Addr{}, peers[0])
		}
		addr, err := serverAddr(conn, peers[0].GID)
		if err != nil {
			return nil, err
		}
		if err := t.sit(addr); err != nil {
			return nil, err
		}
	}
	return t.ep.mine, t.ep.connect(peers)
}

// silenceHint says what the counters of a device tell about a peer that does not
// acknowledge.
func silenceHint(peer netip.Addr, counters map[string]uint64) string {
	switch n := counters; {
	case n["tx_too_big"] > 0:
		return fmt.Sprintf("%d packets did not fit the path to %v: use a smaller -m on both sides", n["tx_too_big"], peer)
	case n["tx_refused"] > 0:
		return fmt.Sprintf("a firewall of this machine refused %d packets to %v: allow UDP port 4791", n["tx_refused"], peer)
	case n["drop_icrc"]+n["drop_ip_id"] > 0:
		return fmt.Sprintf("%d packets came with a wrong ICRC: something between us and %v changes packets (NAT does): 'roce doctor %v' says what", n["drop_icrc"]+n["drop_ip_id"], peer, peer)
	case n["tx_unreachable"]+n["icmp_errors"] > 0:
		return fmt.Sprintf("%v cannot be reached on UDP port 4791: is its program still running, is there a route, does no firewall block the port? 'roce doctor %v' looks", peer, peer)
	}
	return fmt.Sprintf("%v does not answer on UDP port 4791: is its program still running, does no firewall block the port, do both sides use the same -m? 'roce doctor %v' looks", peer, peer)
}

// pingpongResult is what --json prints.
type pingpongResult struct {
	Role        string            `json:"role"` // client or server
	Transport   string            `json:"transport"`
	NumQP       int               `json:"num_qp"`
	Local       jsonDest          `json:"local"`
	Remote      jsonDest          `json:"remote"`
	MTU         int               `json:"mtu"`  // bytes
	Size        int               `json:"size"` // bytes
	Iters       int               `json:"iters"`
	Bytes       int64             `json:"bytes"` // both directions
	Seconds     float64           `json:"seconds"`
	MbitPerSec  float64           `json:"mbit_per_sec"`
	UsecPerIter float64           `json:"usec_per_iter"`
	DataChecked bool              `json:"data_checked"`
	Counters    map[string]uint64 `json:"counters"` // those that are not 0
}

type jsonDest struct {
	LID uint16 `json:"lid"`
	QPN uint32 `json:"qpn"`
	PSN uint32 `json:"psn"`
	GID string `json:"gid"`
}

func newJSONDest(d exchange.Dest) jsonDest {
	return jsonDest{d.LID, uint32(d.QPN), uint32(d.PSN), d.GID.String()}
}

func (t *pingpongGame) report(took time.Duration) error {
	o := t.o
	t.show("%s", resultLines(o.size, o.iters, took))
	if o.check {
		t.show("data of all messages checked\n")
	}
	if !o.json {
		return nil
	}
	r := pingpongResult{
		Role: "server", Transport: o.transport, NumQP: o.numQP,
		Local: newJSONDest(t.ep.mine[0]), Remote: newJSONDest(t.peers[0]),
		MTU: o.mtu.Bytes(), Size: o.size, Iters: o.iters,
		Bytes:       2 * int64(o.size) * int64(o.iters),
		Seconds:     took.Seconds(),
		UsecPerIter: took.Seconds() * 1e6 / float64(o.iters),
		DataChecked: o.check,
		Counters:    nonZero(t.ep.dev.Counters()),
	}
	r.MbitPerSec = float64(r.Bytes) * 8 / (took.Seconds() * 1e6)
	if o.server != "" {
		r.Role = "client"
	}
	return printJSON(t.app.stdout, r)
}

func (t *pingpongGame) close() {
	if t.ep != nil {
		t.ep.close()
	}
}

// explain makes one line of what ended a game with a peer, with what to do about it.
func explain(err error, service roce.QPType, peer netip.Addr, dev *roce.Device) error {
	var (
		failed *completionError
		quiet  *quietError
	)
	switch {
	case errors.As(err, &quiet) && (service == roce.UC || service == roce.UD):
		return fmt.Errorf("%w, and %v does not repeat what is lost: %s", err, service, silenceHint(peer, dev.Counters()))
	case errors.As(err, &quiet):
		return fmt.Errorf("%w: is the other side's program still running, and do both sides use the same -n and -s?", err)
	case !errors.As(err, &failed):
		return err
	}
	hint := ""
	switch failed.status {
	case roce.WCRetryExcErr:
		hint = ": " + silenceHint(peer, dev.Counters())
	case roce.WCRemInvReqErr, roce.WCRemOpErr, roce.WCRemAccessErr:
		hint = ": the other side refused the message: do both sides use the same -m and -s?"
	case roce.WCLocLenErr:
		hint = ": the message is longer than our receives: do both sides use the same -s?"
	case roce.WCRNRRetryExcErr:
		hint = fmt.Sprintf(": %v posts no receives", peer)
	}
	return fmt.Errorf("%w%s", err, hint)
}

func nonZero(all map[string]uint64) map[string]uint64 {
	some := map[string]uint64{}
	for name, n := range all {
		if n != 0 {
			some[name] = n
		}
	}
	return some
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
