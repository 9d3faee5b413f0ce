package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/goroce/goroce/cmd/roce/internal/capture"
	"github.com/goroce/goroce/cmd/roce/internal/flows"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/layers"
	"github.com/goroce/goroce/ib/mad"
)

// dumpSum is the last part of what dump prints.
type dumpSum struct {
	Packets int    `json:"packets"` // frames of the capture; one that is several packets counts as so many
	RoCE    int    `json:"roce"`
	Right   int    `json:"icrc_ok"`
	Wrong   int    `json:"icrc_bad"`
	Dropped uint64 `json:"dropped"` // by the kernel, for which the capture was too slow
}

// dumpedJSON is one packet with --json.
type dumpedJSON struct {
	Frame   int                       `json:"frame"`
	Part    string                    `json:"part,omitempty"`
	Time    string                    `json:"time"`
	Link    string                    `json:"link"` // RoCEv2, RoCEv1, native
	Src     string                    `json:"src"`
	Dst     string                    `json:"dst"`
	Opcode  string                    `json:"opcode"`
	DestQP  string                    `json:"dest_qp"`
	PSN     ib.PSN                    `json:"psn"`
	Payload int                       `json:"payload"` // bytes
	ICRC    string                    `json:"icrc"`    // ok, bad, not judged
	Again   bool                      `json:"retransmitted"`
	Late    bool                      `json:"out_of_order"`
	CE      bool                      `json:"ce"`
	Bad     string                    `json:"malformed,omitempty"`
	Headers map[string]map[string]any `json:"headers"`
}

// dumper prints packets as they come and collects the summary.
type dumper struct {
	o       *dumpOptions
	out     *bufio.Writer
	sum     dumpSum
	tracker flows.Tracker
	frames  int
}

func newDumper(w io.Writer, o *dumpOptions) *dumper {
	d := &dumper{o: o, out: bufio.NewWriter(w)}
	if o.json {
		d.out.WriteString(`{"packets":[`)
	}
	return d
}

// full reports whether as many packets have come as were asked for.
func (d *dumper) full() bool { return d.o.count > 0 && d.sum.RoCE >= d.o.count }

// frame shows what is in one frame.
func (d *dumper) frame(f capture.Frame) error {
	d.frames++
	parts := capture.Packets(f)
	for i, part := range parts {
		d.sum.Packets++
		p := dissect(part, &f)
		if p == nil || d.full() {
			continue
		}
		d.sum.RoCE++
		p.frame = d.frames
		if len(parts) > 1 {
			p.part = fmt.Sprintf("%d/%d", i+1, len(parts))
		}
		switch p.verdict {
		case layers.Right:
			d.sum.Right++
		case layers.Wrong:
			d.sum.Wrong++
		}
		notes := d.tracker.Add(&p.Packet)
		switch {
		case d.o.summary:
		case d.o.json:
			d.packetJSON(p, notes)
		default:
			d.packetText(p, notes)
		}
	}
	if d.o.iface != "" {
		return d.out.Flush()
	}
	return nil
}

func (d *dumper) packetJSON(p *dumped, n flows.Notes) {
	j := dumpedJSON{
		Frame: p.frame, Part: p.part, Time: p.At.UTC().Format("2006-01-02T15:04:05.000000000Z"), Link: p.link, Src: p.src, Dst: p.dst,
		Opcode: p.BTH.Opcode.String(), DestQP: p.BTH.DestQP.String(), PSN: p.BTH.PSN, Payload: p.Payload, ICRC: p.verdict.String(),
		Again: n.Again, Late: n.Late, CE: p.CE, Headers: map[string]map[string]any{},
	}
	if p.Bad != ib.OK {
		j.Bad = p.Bad.String()
	}
	for _, h := range p.headers {
		fields := map[string]any{}
		for _, f := range fieldsOf(h) {
			fields[f.name] = f.value
		}
		j.Headers[strings.ToLower(h.LayerType().String())] = fields
	}
	if d.sum.RoCE > 1 {
		d.out.WriteByte(',')
	}
	b, _ := json.Marshal(j) // strings, numbers and maps of them
	d.out.WriteByte('\n')
	d.out.Write(b)
}

func (d *dumper) packetText(p *dumped, n flows.Notes) {
	fmt.Fprintf(d.out, "%s %s > %s %v qp %v psn %v", p.At.Format("15:04:05.000000"), p.src, p.dst, p.BTH.Opcode, p.BTH.DestQP, p.BTH.PSN)
	for _, h := range p.headers {
		d.out.WriteString(brief(h))
	}
	if p.Payload > 0 {
		fmt.Fprintf(d.out, " len %d", p.Payload)
	}
	for _, mark := range []struct {
		set  bool
		text string
	}{
		{p.BTH.AckReq, "ackreq"}, {p.BTH.Solicited, "solicited"}, {p.BTH.BECN, "BECN"}, {p.BTH.FECN, "FECN"}, {p.CE, "CE"},
		{n.Again, "RETRANSMITTED"}, {n.Late, "OUT OF ORDER"}, {p.part != "", "segment " + p.part},
		{p.Bad != ib.OK, "MALFORMED: " + p.Bad.String()}, {p.verdict == layers.NotJudged, "cut"}, {p.verdict == layers.Wrong, "WRONG ICRC"},
	} {
		if mark.set {
			d.out.WriteString(" " + mark.text)
		}
	}
	d.out.WriteByte('\n')
	if !d.o.verbose {
		return
	}
	for _, h := range p.headers {
		fmt.Fprintf(d.out, "    %v:", h.LayerType())
		for _, f := range fieldsOf(h) {
			fmt.Fprintf(d.out, " %s %v", f.name, f.value)
		}
		d.out.WriteByte('\n')
	}
}

// brief is what a line of text shows of a header.
func brief(h any) string {
	switch h := h.(type) {
	case *layers.RETH:
		return fmt.Sprintf(" va %#x rkey %#x dma %d", h.VA, h.RKey, h.Length)
	case *layers.AtomicETH:
		return fmt.Sprintf(" va %#x rkey %#x swap %#x compare %#x", h.VA, h.RKey, h.SwapAdd, h.Compare)
	case *layers.AETH:
		return fmt.Sprintf(" %v msn %d", h.Syndrome, h.MSN)
	case *layers.AtomicAckETH:
		return fmt.Sprintf(" was %#x", uint64(h.Value))
	case *layers.ImmDt:
		return fmt.Sprintf(" imm %#x", uint32(h.Value))
	case *layers.IETH:
		return fmt.Sprintf(" inv %#x", uint32(h.RKey))
	case *layers.DETH:
		return fmt.Sprintf(" from qp %v qkey %#x", h.SrcQP, h.QKey)
	case *layers.XRCETH:
		return fmt.Sprintf(" srq %v", h.SRQ)
	case *layers.MAD:
		return " " + madName(h)
	}
	return ""
}

// madName names a management datagram: "CM REQ", "PerfMgt PortCounters".
func madName(m *layers.MAD) string {
	name := fmt.Sprintf("%v attribute %#x", m.Header.Class, uint16(m.Header.Attr))
	if m.Message != nil {
		_, kind, _ := strings.Cut(fmt.Sprintf("%T", m.Message), ".")
		name = m.Header.Class.String() + " " + kind
	}
	switch msg := m.Message.(type) {
	case *mad.REQ:
		name += fmt.Sprintf(" service %v qp %v", msg.ServiceID, msg.LocalQPN)
	case *mad.REP:
		name += fmt.Sprintf(" qp %v", msg.LocalQPN)
	case *mad.REJ:
		name += fmt.Sprintf(" %v", msg.Reason)
	}
	return name
}

// finish prints the summary.
func (d *dumper) finish() error {
	list := d.tracker.Flows()
	if d.o.json {
		if list == nil {
			list = []*flows.Flow{}
		}
		d.out.WriteString("\n],\"flows\":")
		e := json.NewEncoder(d.out)
		if err := e.Encode(list); err != nil {
			return err
		}
		d.out.WriteString(",\"summary\":")
		if err := e.Encode(d.sum); err != nil {
			return err
		}
		d.out.WriteString("}\n")
		return d.out.Flush()
	}
	for _, f := range list {
		d.flowText(f)
	}
	if d.sum.Dropped > 0 {
		fmt.Fprintf(d.out, "the kernel dropped %d packets, for which the capture was too slow\n", d.sum.Dropped)
	}
	fmt.Fprintf(d.out, "packets %d roce %d icrc-ok %d icrc-bad %d\n", d.sum.Packets, d.sum.RoCE, d.sum.Right, d.sum.Wrong)
	return d.out.Flush()
}

func (d *dumper) flowText(f *flows.Flow) {
	from := ""
	if f.SrcQP != "" {
		from = " from qp " + f.SrcQP
	}
	fmt.Fprintf(d.out, "flow %s > %s %s qp %s%s: packets %d, payload %d bytes", f.Src, f.Dst, f.Transport, f.DestQP, from, f.Packets, f.Bytes)
	if f.Gbit > 0 {
		fmt.Fprintf(d.out, " in %.6f s, %s Gbit/s", f.Seconds, strconv.FormatFloat(f.Gbit, 'g', 3, 64))
	}
	fmt.Fprintf(d.out, "\n    opcodes: %s\n", counts(f.Opcodes))
	var marks []string
	for _, m := range []struct {
		n    int
		what string
	}{
		{f.Again, "retransmitted"}, {f.Late, "out of order"}, {f.Missing, "missing"}, {f.RNR, "RNR NAKs"}, {f.CNPs, "CNPs"},
		{f.CE, "CE marks"}, {f.Malformed, "malformed"}, {f.Wrong, "wrong ICRCs"},
	} {
		if m.n > 0 {
			marks = append(marks, fmt.Sprintf("%s %d", m.what, m.n))
		}
	}
	if len(f.NAKs) > 0 {
		marks = append(marks, "NAKs: "+counts(f.NAKs))
	}
	if len(marks) > 0 {
		fmt.Fprintf(d.out, "    %s\n", strings.Join(marks, ", "))
	}
	if r := f.RTT; r != nil {
		fmt.Fprintf(d.out, "    request to answer: min %.1f us, median %.1f us, 99 %% %.1f us, max %.1f us (%d)\n", r.Min, r.P50, r.P99, r.Max, r.Samples)
	}
}

// counts prints a map of counters, the largest first.
func counts(m map[string]int) string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int {
		if m[a] != m[b] {
			return m[b] - m[a]
		}
		return strings.Compare(a, b)
	})
	for i, n := range names {
		names[i] = n + " " + strconv.Itoa(m[n])
	}
	return strings.Join(names, ", ")
}
