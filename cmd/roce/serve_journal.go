package main

import (
	"context"
	"fmt"

	"github.com/goroce/goroce/roce"
)

// wrongClients says, of a server's clients, whose connections have ended by a mistake
// and by which: programs only find their requests flushed. It returns when ctx ends.
func (a *app) wrongClients(ctx context.Context, dev *roce.Device) {
	mistakes := map[roce.EventType]string{
		roce.EventQPReqErr:    "sent a request that is not valid here",
		roce.EventQPAccessErr: "named memory that it may not use",
		roce.EventQPFatal:     "was served wrongly: this is a failure of the server",
	}
	for {
		ev, err := dev.NextEvent(ctx)
		if err != nil {
			return
		}
		what := mistakes[ev.Type]
		if what == "" || ev.QP == nil {
			continue
		}
		attr, _ := ev.QP.Query()
		fmt.Fprintf(a.stderr, "roce: client %v %s: its connection is over (%v, queue pair %v)\n", attr.AV.DGID.Addr(), what, ev.Type, ev.QP.Num())
	}
}
