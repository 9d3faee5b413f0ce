package main

import (
	"net"
	"strconv"

	"github.com/gopacket/gopacket"
	glayers "github.com/gopacket/gopacket/layers"
	"github.com/goroce/goroce/cmd/roce/internal/capture"
	"github.com/goroce/goroce/cmd/roce/internal/flows"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/layers"
)

// dumped is a RoCE packet as dump knows it.
type dumped struct {
	flows.Packet
	frame   int // number in the capture, counted from 1
	length  int // bytes of the frame on the wire
	link    string
	src     string // with the UDP port
	dst     string
	headers []gopacket.Layer // from the BTH on, without payload and ICRC
	verdict layers.Verdict
	part    string // "2/8" of a frame with several packets
}

// ecnCE are the bits of "congestion experienced" (RFC 3168).
const ecnCE = 3

// dissect finds what dump shows of a decoded packet; nil when it is no RoCE.
func dissect(p gopacket.Packet, f *capture.Frame) *dumped {
	d := &dumped{link: "native", length: f.Len}
	d.At = f.At
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *glayers.IPv4:
			d.addresses(l.SrcIP.String(), l.DstIP.String(), l.TOS)
		case *glayers.IPv6:
			d.addresses(l.SrcIP.String(), l.DstIP.String(), l.TrafficClass)
		case *glayers.UDP:
			d.link = "RoCEv2"
			d.src = net.JoinHostPort(d.Src, strconv.Itoa(int(l.SrcPort)))
			d.dst = net.JoinHostPort(d.Dst, strconv.Itoa(int(l.DstPort)))
		case *layers.LRH:
			d.addresses("lid "+strconv.Itoa(int(l.SLID)), "lid "+strconv.Itoa(int(l.DLID)), 0)
		case *layers.GRH:
			if p.Layer(layers.LayerTypeLRH) == nil {
				d.link = "RoCEv1"
			}
			d.addresses(l.Src.String(), l.Dst.String(), l.TrafficClass)
		case *layers.BTH:
			d.BTH, d.Bad = l.BTH, l.Malformed
			d.headers = append(d.headers, l)
		case *layers.DETH:
			d.SrcQP = l.SrcQP
			d.headers = append(d.headers, l)
		case *layers.RETH:
			d.RETH = l.RETH
			d.headers = append(d.headers, l)
		case *layers.AETH:
			d.AETH = l.AETH
			d.headers = append(d.headers, l)
		case *layers.MAD:
			d.Message, d.Payload = l.Message, len(l.Contents)
			d.headers = append(d.headers, l)
		case *gopacket.Payload:
			d.Payload = len(*l)
		case *layers.ICRC:
			d.verdict, d.Wrong = l.Verdict, l.Verdict == layers.Wrong
		default:
			if d.headers != nil {
				d.headers = append(d.headers, l)
			}
		}
	}
	if d.headers == nil {
		return nil
	}
	if d.BTH.Opcode == ib.OpCNP {
		d.Payload = 0 // reserved bytes
	}
	return d
}

func (d *dumped) addresses(src, dst string, tos uint8) {
	d.Src, d.Dst, d.src, d.dst = src, dst, src, dst
	d.CE = tos&ecnCE == ecnCE
}
