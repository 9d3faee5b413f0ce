//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// nftTable is the name of our table, on both sides.
const nftTable = "goroce_interop"

// lossRules drops some of 1000 RoCE packets that arrive on a device, each by its own throw. The hook is the device's ingress, where a
// segmented send has already become single packets and where the sender learns nothing.
func lossRules(device string, perMille int) string {
	return fmt.Sprintf(`table netdev %[1]s {
	chain arriving {
		type filter hook ingress device "%[2]s" priority 0; policy accept;
		udp dport %[3]d numgen random mod 1000 < %[4]d counter drop
		udp dport %[3]d counter
	}
}
`, nftTable, device, rocePort, perMille)
}

// outputRules drops some of 1000 RoCE sends that leave the namespace at its output hook, where the sender gets EPERM and a segmented
// send is dropped as a whole.
func outputRules(perMille int) string {
	return fmt.Sprintf(`table inet %[1]s {
	chain leaving {
		type filter hook output priority 0; policy accept;
		udp dport %[2]d numgen random mod 1000 < %[3]d counter drop
		udp dport %[2]d counter
	}
}
`, nftTable, rocePort, perMille)
}

// Loss is a running fault: RoCE packets between this machine and a guest are dropped in both directions.
type Loss struct {
	guest  *Guest
	output bool
}

// LossCount says how many packets the rules have dropped and passed.
type LossCount struct{ Dropped, Passed int }

// StartLoss makes nftables drop so many of 1000 RoCE packets in each direction: those from the guest where they arrive in the namespace,
// those to the guest where they arrive in the guest, or, with output, where they leave the namespace.
func (g *Guest) StartLoss(ctx context.Context, perMille int, output bool) (*Loss, error) {
	l := &Loss{g, output}
	if err := l.host(ctx, lossRules(Tap(g.Index), perMille)); err != nil {
		return nil, err
	}
	var err error
	if output {
		err = l.host(ctx, outputRules(perMille))
	} else {
		err = l.inGuest(ctx, lossRules("eth0", perMille))
	}
	if err != nil {
		return nil, errors.Join(err, l.Stop(ctx))
	}
	return l, nil
}

func (l *Loss) host(ctx context.Context, rules string) error {
	_, err := l.guest.ns.Run(ctx, "nft", rules)
	return err
}

func (l *Loss) inGuest(ctx context.Context, rules string) error {
	_, err := l.guest.Run(ctx, "nft", rules)
	return err
}

// Counts returns what was dropped and passed towards this machine and towards the guest.
func (l *Loss) Counts(ctx context.Context) (toUs, toGuest LossCount, err error) {
	out, err := l.guest.ns.Run(ctx, "nft", "list", "table", "netdev", nftTable)
	if err != nil {
		return toUs, toGuest, err
	}
	if toUs, err = parseCounts(out); err != nil {
		return toUs, toGuest, err
	}
	if l.output {
		out, err = l.guest.ns.Run(ctx, "nft", "list", "table", "inet", nftTable)
	} else {
		out, err = l.guest.Run(ctx, "nft", "list", "table", "netdev", nftTable)
	}
	if err != nil {
		return toUs, toGuest, err
	}
	toGuest, err = parseCounts(out)
	return toUs, toGuest, err
}

// Stop removes the rules.
func (l *Loss) Stop(ctx context.Context) error {
	// Deleting needs the table to exist; adding one that exists is no error.
	remove := func(family string) string {
		return strings.NewReplacer("T", family+" "+nftTable).Replace("add table T; delete table T")
	}
	errs := []error{l.host(ctx, remove("netdev"))}
	if l.output {
		errs = append(errs, l.host(ctx, remove("inet")))
	} else {
		errs = append(errs, l.inGuest(ctx, remove("netdev")))
	}
	return errors.Join(errs...)
}

var counterLine = regexp.MustCompile(`counter packets (\d+) bytes \d+( drop)?`)

// parseCounts reads the counters of the drop rule and of the rule behind it from nft's listing.
func parseCounts(listing string) (LossCount, error) {
	m := counterLine.FindAllStringSubmatch(listing, -1)
	if len(m) != 2 || m[0][2] == "" || m[1][2] != "" {
		return LossCount{}, fmt.Errorf("unexpected listing of the nftables rules: %s", listing)
	}
	var c LossCount
	c.Dropped, _ = strconv.Atoi(m[0][1])
	c.Passed, _ = strconv.Atoi(m[1][1])
	return c, nil
}
