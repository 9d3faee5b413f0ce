//go:build linux

package interop

import (
	"context"
	"fmt"
	"testing"

	"github.com/goroce/goroce/test/interop/lab"
)

// lossCase is a transfer under packet loss.
type lossCase struct {
	link
	verb   string
	output bool // drop what we send at our output hook, where the sender sees EPERM, instead of at the guest's device
}

const (
	lossIterations = 100
	lossList       = 10   // messages posted at once
	lossSize       = 5000 // five packets at MTU 1024
)

// lossCases has every role and verb on the given families, and one case of the output hook.
func lossCases(families ...string) (all []lossCase) {
	for _, family := range families {
		for _, we := range []bool{true, false} {
			for _, verb := range []string{"SEND", "WRITE", "READ"} {
				all = append(all, lossCase{link{family: family, mtu: 1024, weRequest: we, ackTimeout: 17}, verb, false})
			}
		}
	}
	return append(all, lossCase{link{family: ipv6, mtu: 1024, weRequest: true, ackTimeout: 17}, "WRITE", true})
}

func (l lossCase) name() string {
	n := fmt.Sprintf("%s %s %s", l.role(), l.verb, l.family)
	if l.output {
		n += " dropped at our output"
	}
	return n
}

func (s *session) loss(t *testing.T) {
	families := []string{ipv4}
	if s.mode == full {
		families = pingpongFamilies
	}
	t.Run("loss", func(t *testing.T) {
		for _, l := range lossCases(families...) {
			if l.output && s.mode == reference {
				continue // the output hook belongs to this stack's side
			}
			s.run(t, "loss", l.name(), func(c *testCase) { c.lossy(l) })
		}
	})
}

// lossy moves 100 messages while nftables drops packets in both directions; all complete and all bytes are right.
func (c *testCase) lossy(l lossCase) {
	b := c.newBatch(l.link, l.verb, lossSize, lossList)
	faults := c.startLoss(l.output)
	for round := range lossIterations / lossList {
		b.transfer(round, 60000)
		if c.Failed() {
			c.Fatalf("in round %d of %d", round, lossIterations/lossList)
		}
	}
	b.states("RTS", "RTS")
	toUs, toGuest, err := faults.Counts(c.s.ctx)
	if err != nil {
		c.Fatal(err)
	}
	c.note = fmt.Sprintf("dropped %d of %d to us, %d of %d to rxe", toUs.Dropped, toUs.Dropped+toUs.Passed, toGuest.Dropped, toGuest.Dropped+toGuest.Passed)
	c.Log(c.note)
	if toUs.Dropped+toGuest.Dropped == 0 {
		c.Error("nothing was dropped: the case has shown nothing")
	}
}

// startLoss drops packets in both directions until the case ends.
func (c *testCase) startLoss(output bool) *lab.Loss {
	c.Helper()
	faults, err := c.s.guest.StartLoss(c.s.ctx, lossPerMille, output)
	if err != nil {
		c.Fatal(err)
	}
	// The rules must go even when the run is being interrupted.
	c.Cleanup(func() {
		if err := faults.Stop(context.WithoutCancel(c.s.ctx)); err != nil {
			c.Errorf("remove the loss: %v", err)
		}
	})
	return faults
}

// untilDropped runs rounds of a transfer under loss, at least five and until three packets were dropped.
func (c *testCase) untilDropped(transfer func(round int)) {
	c.Helper()
	faults := c.startLoss(false)
	dropped := 0
	for round := 0; round < 40 && (round < 5 || dropped < 3) && !c.Failed(); round++ {
		transfer(round)
		toUs, toGuest, err := faults.Counts(c.s.ctx)
		if err != nil {
			c.Fatal(err)
		}
		dropped = toUs.Dropped + toGuest.Dropped
	}
	c.note = fmt.Sprintf("dropped %d", dropped)
	if dropped == 0 {
		c.Error("nothing was dropped: the case has shown nothing")
	}
}
