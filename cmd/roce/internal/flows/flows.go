// Package flows makes a summary of captured RoCE packets by flow: what was sent,
// what again, what was refused, and how long answers took. It looks at no clock
// but the packets' time stamps.
package flows

import (
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

// Packet is what the summary wants to know of a packet.
type Packet struct {
	At       time.Time
	Src, Dst string // addresses, in any notation
	CE       bool   // "congestion experienced"
	Wrong    bool   // the ICRC is
	BTH      ib.BTH
	Bad      ib.Malformed // of the BTH; then the rest is empty
	RETH     ib.RETH
	AETH     ib.AETH
	SrcQP    ib.QPN // of datagrams
	Payload  int    // bytes
	Message  mad.Message
}

// Notes is what is remarkable about a packet in the light of those before it.
type Notes struct {
	Again bool // its PSN was there before
	Late  bool // its PSN comes after a higher one, and was not there before
}

// Flow is the packets from one host to one queue pair of another; datagrams from
// different queue pairs are different flows.
type Flow struct {
	Transport string         `json:"transport"`
	Src       string         `json:"src"`
	Dst       string         `json:"dst"`
	DestQP    string         `json:"dest_qp"`
	SrcQP     string         `json:"src_qp,omitempty"` // of connections: found out by the answers, if it could be
	Packets   int            `json:"packets"`
	Bytes     int64          `json:"bytes"` // of payload
	Seconds   float64        `json:"seconds"`
	Gbit      float64        `json:"gbit_per_sec"` // of payload
	Opcodes   map[string]int `json:"opcodes"`
	Again     int            `json:"retransmitted"` // PSN seen before; with connections only, like the next two
	Late      int            `json:"out_of_order"`  // PSN below one seen before, and itself not seen
	Missing   int            `json:"missing"`       // PSNs that were passed over and never came
	NAKs      map[string]int `json:"naks,omitempty"`
	RNR       int            `json:"rnr_naks"`
	CNPs      int            `json:"cnps"`
	CE        int            `json:"ce_marks"`
	Malformed int            `json:"malformed"`
	Wrong     int            `json:"icrc_bad"`
	RTT       *RTT           `json:"rtt,omitempty"` // from requests of this flow to their answers

	key         key
	first, last time.Time
	peer        *Flow // the other direction of a connection
	requests    window
	responses   window
	sent        []request // not yet answered, in the order of PSNs
	rtt         *hdrhistogram.Histogram
}

// RTT is how long answers took, in microseconds, at the place of the capture.
type RTT struct {
	Samples int64   `json:"samples"`
	Min     float64 `json:"min_usec"`
	P50     float64 `json:"p50_usec"`
	P99     float64 `json:"p99_usec"`
	Max     float64 `json:"max_usec"`
}

type key struct {
	src, dst string
	dest     ib.QPN
	from     ib.QPN // of datagrams
}

type request struct {
	psn   ib.PSN
	at    time.Time
	again bool // sent more than once: nobody knows which one is answered
}

// sentMax bounds the requests that wait for an answer in a capture without any.
const sentMax = 1 << 16

// Tracker collects packets. Its zero value is ready.
type Tracker struct {
	flows map[key]*Flow
	order []*Flow
	hosts map[[2]string][]*Flow // those without a peer, by source and destination
	comm  map[comm]ib.QPN       // who asked for a connection
	pairs map[key]key           // what the connection manager has connected
}

// comm is a connection that is being made, as its active side names it.
type comm struct {
	host string
	id   uint32
}

// Add adds a packet. Packets come in the order of the capture.
func (t *Tracker) Add(p *Packet) Notes {
	f := t.flow(p)
	if f.Packets++; f.Packets == 1 {
		f.first = p.At
	}
	f.last = p.At
	if p.CE {
		f.CE++
	}
	if p.Wrong {
		f.Wrong++
	}
	if p.Bad != ib.OK {
		f.Malformed++
		f.Opcodes["malformed"]++
		return Notes{}
	}
	f.Bytes += int64(p.Payload)
	f.Opcodes[p.BTH.Opcode.String()]++
	if p.Message != nil {
		t.connection(p)
	}
	info := p.BTH.Opcode.Info()
	switch info.Transport {
	case ib.TransportCNP:
		f.CNPs++
		return Notes{}
	case ib.TransportUD:
		return Notes{} // a PSN counts what goes to all destinations
	}
	f.Transport = info.Transport.String()
	if info.Request {
		return f.request(p)
	}
	return t.response(f, p)
}

func (t *Tracker) flow(p *Packet) *Flow {
	k := key{src: p.Src, dst: p.Dst, dest: p.BTH.DestQP}
	transport := p.BTH.Opcode.Transport()
	if transport == ib.TransportUD {
		k.from = p.SrcQP
	}
	if f := t.flows[k]; f != nil {
		return f
	}
	f := &Flow{Transport: transport.String(), Src: p.Src, Dst: p.Dst, DestQP: k.dest.String(), Opcodes: map[string]int{}, key: k}
	if t.flows == nil {
		t.flows, t.hosts = map[key]*Flow{}, map[[2]string][]*Flow{}
		t.comm, t.pairs = map[comm]ib.QPN{}, map[key]key{}
	}
	t.flows[k] = f
	t.order = append(t.order, f)
	if transport == ib.TransportUD {
		f.SrcQP = p.SrcQP.String()
		return f
	}
	t.hosts[[2]string{p.Src, p.Dst}] = append(t.hosts[[2]string{p.Src, p.Dst}], f)
	if other, ok := t.pairs[k]; ok && t.flows[other] != nil {
		t.pair(f, t.flows[other])
	}
	return f
}

// connection learns from the connection manager which queue pairs belong together.
func (t *Tracker) connection(p *Packet) {
	switch m := p.Message.(type) {
	case *mad.REQ:
		t.comm[comm{p.Src, m.LocalCommID}] = m.LocalQPN
	case *mad.REP:
		if active, ok := t.comm[comm{p.Dst, m.RemoteCommID}]; ok {
			to := key{src: p.Dst, dst: p.Src, dest: m.LocalQPN}
			from := key{src: p.Src, dst: p.Dst, dest: active}
			t.pairs[to], t.pairs[from] = from, to
		}
	}
}

func (t *Tracker) pair(a, b *Flow) {
	a.peer, b.peer = b, a
	a.SrcQP, b.SrcQP = b.DestQP, a.DestQP
	for _, f := range []*Flow{a, b} {
		hosts := [2]string{f.Src, f.Dst}
		t.hosts[hosts] = slices.DeleteFunc(t.hosts[hosts], func(other *Flow) bool { return other == f })
	}
}

// request notes a request packet.
func (f *Flow) request(p *Packet) Notes {
	n := f.requests.see(p.BTH.PSN, p)
	f.note(n)
	if t := p.BTH.Opcode.Transport(); t == ib.TransportUC {
		return n
	}
	if n.Again || n.Late {
		for i := range f.sent {
			if f.sent[i].psn == p.BTH.PSN {
				f.sent[i].again = true
			}
		}
		return n
	}
	if len(f.sent) == sentMax {
		f.sent = f.sent[1:]
	}
	f.sent = append(f.sent, request{psn: p.BTH.PSN, at: p.At, again: f.requests.resumed})
	return n
}

func (f *Flow) note(n Notes) {
	if n.Again {
		f.Again++
	}
	if n.Late {
		f.Late++
	}
}

// response notes an answer: it belongs to requests of the other direction.
func (t *Tracker) response(f *Flow, p *Packet) (n Notes) {
	op := p.BTH.Opcode.Info().Op
	positive := true
	switch {
	case op == ib.KindReadResponse:
		n = f.responses.see(p.BTH.PSN, nil)
		f.note(n)
	case p.AETH.Syndrome.Kind() == ib.SynNAK:
		if f.NAKs == nil {
			f.NAKs = map[string]int{}
		}
		f.NAKs[p.AETH.Syndrome.NAK().String()]++
		positive = false
	case p.AETH.Syndrome.Kind() == ib.SynRNR:
		f.RNR++
		positive = false
	}
	if f.peer == nil {
		t.match(f, p)
	}
	if f.peer != nil && positive {
		f.peer.answered(p.BTH.PSN, p.At)
	}
	return n
}

// match finds the other direction of a flow by the PSN of an answer, if only one
// has sent it.
func (t *Tracker) match(f *Flow, p *Packet) {
	var found *Flow
	for _, other := range t.hosts[[2]string{f.Dst, f.Src}] {
		if _, ok := slices.BinarySearchFunc(other.sent, p.BTH.PSN, func(r request, psn ib.PSN) int { return r.psn.Sub(psn) }); ok {
			if found != nil {
				return
			}
			found = other
		}
	}
	if found != nil {
		t.pair(f, found)
	}
}

// answered notes the answer to the request with the PSN, and to all before it.
func (f *Flow) answered(psn ib.PSN, at time.Time) {
	for len(f.sent) > 0 && !f.sent[0].psn.After(psn) {
		if r := f.sent[0]; r.psn == psn && !r.again {
			if f.rtt == nil {
				f.rtt = hdrhistogram.New(1, int64(time.Minute), 3)
			}
			f.rtt.RecordValue(max(1, int64(at.Sub(r.at))))
		}
		f.sent = f.sent[1:]
	}
}

// Flows returns the flows in the order of their first packets.
func (t *Tracker) Flows() []*Flow {
	for _, f := range t.order {
		f.Missing = f.requests.missing + f.responses.missing
		if f.Seconds = f.last.Sub(f.first).Seconds(); f.Seconds > 0 {
			f.Gbit = float64(f.Bytes) * 8 / f.Seconds / 1e9
		}
		if f.rtt != nil {
			usec := func(ns int64) float64 { return float64(ns) / 1e3 }
			f.RTT = &RTT{f.rtt.TotalCount(), usec(f.rtt.Min()), usec(f.rtt.ValueAtQuantile(50)), usec(f.rtt.ValueAtQuantile(99)), usec(f.rtt.Max())}
		}
	}
	return t.order
}
