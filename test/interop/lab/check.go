//go:build linux

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/goroce/goroce/ib"
)

// Verdict is what the checks of a capture found.
type Verdict struct {
	Packets  map[netip.Addr]int // RoCE packets by their source
	Problems []string           // at most maxProblems, each naming its frame
	More     int                // problems beyond those
}

const maxProblems = 20

func (v *Verdict) problem(format string, args ...any) {
	if len(v.Problems) < maxProblems {
		v.Problems = append(v.Problems, fmt.Sprintf(format, args...))
	} else {
		v.More++
	}
}

// CheckICRC verifies every RoCE packet of a capture: a whole datagram, well formed by ib.Parse, and with the ICRC that its headers
// demand, the IPv4 Identification being the captured one.
func CheckICRC(path string) (*Verdict, error) {
	v := &Verdict{Packets: map[netip.Addr]int{}}
	err := ReadRoCE(path, func(d *Datagram) error {
		v.Packets[d.Src.Addr()]++
		if d.Err != "" {
			v.problem("frame %d from %v: %s", d.Number, d.Src, d.Err)
			return nil
		}
		p, bad := ib.Parse(d.Payload)
		if bad != ib.OK {
			v.problem("frame %d from %v: malformed: %v", d.Number, d.Src, bad)
			return nil
		}
		flow := ib.NewFlow(d.Src, d.Dst)
		if !flow.Verify(d.ID, d.Payload) {
			v.problem("frame %d from %v: wrong ICRC (opcode %#x, PSN %d, IP ID %d, %d bytes)", d.Number, d.Src, uint8(p.Opcode()), p.PSN(), d.ID, len(d.Payload))
		}
		return nil
	})
	return v, err
}

// CheckTshark lets tshark dissect a capture: it must see as many RoCE packets as we do (so that it did look) and none malformed.
func CheckTshark(ctx context.Context, path string, packets int) ([]string, error) {
	// Three of its guesses at what user data might be call clean packets malformed: RPC over RDMA some SEND_ONLY packets, Ethernet over
	// InfiniBand those whose payload is one byte that, with the pad, looks like an EtherType, and Mellanox' EoIB empty datagrams.
	// ICMP errors quote packets that came after their program had ended. What goes to the agent over TCP may look like anything.
	out, err := command(ctx, "/", "tshark", "-n", "-r", path, "--disable-protocol", "rpcordma", "--disable-protocol", "infiniband.eoib", "--disable-heuristic", "eth_over_ib", "-Y", "udp && !icmp && !icmpv6 && (infiniband || _ws.malformed)",
		"-T", "fields", "-e", "frame.number", "-e", "_ws.malformed", "-E", "separator=/t")
	if err != nil {
		return nil, err
	}
	var problems []string
	seen := 0
	for line := range strings.Lines(out) {
		seen++
		number, malformed, _ := strings.Cut(strings.TrimRight(line, "\n"), "\t")
		if malformed != "" {
			problems = append(problems, fmt.Sprintf("frame %s: tshark calls it malformed: %s", number, malformed))
		}
	}
	if seen != packets {
		problems = append(problems, fmt.Sprintf("tshark sees %d RoCE packets, the capture has %d", seen, packets))
	}
	return problems, nil
}

// Syndromes counts the AETH syndromes that a sender put on the wire, ACKs aside.
func Syndromes(path string, src netip.Addr) (map[ib.Syndrome]int, error) {
	found := map[ib.Syndrome]int{}
	err := ReadRoCE(path, func(d *Datagram) error {
		p, bad := ib.Parse(d.Payload)
		if d.Src.Addr() != src || bad != ib.OK || !p.Info().AETH {
			return nil
		}
		if s := p.AETH().Syndrome; s.Kind() != ib.SynAck {
			found[s]++
		}
		return nil
	})
	return found, err
}
