//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
)

// markRules sets "congestion experienced" (RFC 3168) in some of 1000 ECN-capable RoCE packets that arrive on a device.
func markRules(device string, perMille int) string {
	return fmt.Sprintf(`table netdev %[1]s {
	chain arriving {
		type filter hook ingress device "%[2]s" priority 0; policy accept;
		udp dport %[3]d ip ecn ect0 numgen random mod 1000 < %[4]d counter ip ecn set ce
		udp dport %[3]d ip6 ecn ect0 numgen random mod 1000 < %[4]d counter ip6 ecn set ce
	}
}
`, nftTable, device, rocePort, perMille)
}

// Marks is a running switch that marks RoCE packets between this machine and a guest, in both directions.
type Marks struct{ rules Loss }

// StartMarks makes nftables mark so many of 1000 ECN-capable RoCE packets, in each direction where they arrive.
func (g *Guest) StartMarks(ctx context.Context, perMille int) (*Marks, error) {
	m := &Marks{Loss{guest: g}}
	err := m.rules.host(ctx, markRules(Tap(g.Index), perMille))
	if err == nil {
		err = m.rules.inGuest(ctx, markRules("eth0", perMille))
	}
	if err != nil {
		return nil, errors.Join(err, m.Stop(ctx))
	}
	return m, nil
}

// Counts returns how many packets were marked on their way to this machine and to the guest.
func (m *Marks) Counts(ctx context.Context) (toUs, toGuest int, err error) {
	list := []string{"nft", "list", "table", "netdev", nftTable}
	out, err := m.rules.guest.ns.Run(ctx, list...)
	if err != nil {
		return 0, 0, err
	}
	if toUs, err = parseMarks(out); err != nil {
		return 0, 0, err
	}
	if out, err = m.rules.guest.Run(ctx, list...); err != nil {
		return 0, 0, err
	}
	toGuest, err = parseMarks(out)
	return toUs, toGuest, err
}

// Stop removes the rules.
func (m *Marks) Stop(ctx context.Context) error { return m.rules.Stop(ctx) }

var markLine = regexp.MustCompile(`ecn ect0 .*counter packets (\d+) bytes \d+ ip6? ecn set ce`)

// parseMarks adds up the counters of the rules in nft's listing.
func parseMarks(listing string) (n int, err error) {
	lines := markLine.FindAllStringSubmatch(listing, -1)
	if len(lines) != 2 {
		return 0, fmt.Errorf("unexpected listing of the nftables rules: %s", listing)
	}
	for _, l := range lines {
		k, _ := strconv.Atoi(l[1])
		n += k
	}
	return n, nil
}
