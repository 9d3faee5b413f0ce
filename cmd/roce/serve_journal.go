package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/goroce/goroce/roce"
)

// clientJournal is told what has ended a client's connection. It may be called from any
// goroutine.
type clientJournal func(client fmt.Stringer, what string)

// plainJournal prints a line on stderr.
func (a *app) plainJournal(client fmt.Stringer, what string) {
	fmt.Fprintf(a.stderr, "roce: client %v: %s\n", client, what)
}

// serveLine is what --json prints: one object for each line.
type serveLine struct {
	Time   time.Time `json:"time"`
	Event  string    `json:"event"`            // serving, or client_error
	Addr   string    `json:"addr"`             // of the server
	Client string    `json:"client,omitempty"` // address, and port of rdma_cm where it is known
	Error  string    `json:"error,omitempty"`
}

// say prints that serve is there, or what has ended a client's connection.
func (o *serveOptions) say(a *app, l serveLine) {
	l.Time, l.Addr = time.Now().UTC(), o.addr.String()
	b, err := json.Marshal(l)
	if err != nil {
		panic(err) // strings and a time
	}
	a.stdout.Write(append(b, '\n')) // at once: lines of several clients do not mix
}

// journal is that of the options.
func (o *serveOptions) journal(a *app) clientJournal {
	if !o.json {
		return a.plainJournal
	}
	return func(client fmt.Stringer, what string) {
		o.say(a, serveLine{Event: "client_error", Client: client.String(), Error: what})
	}
}

// wrongClients tells whose connections have ended by a mistake of theirs and by which:
// programs only find their requests flushed. It returns when ctx has
// ended and all is told.
func wrongClients(ctx context.Context, dev *roce.Device, journal clientJournal) {
	mistakes := map[roce.EventType]string{
		roce.EventQPReqErr:    "it sent a request that is not valid here",
		roce.EventQPAccessErr: "it named memory that it may not use",
		roce.EventQPFatal:     "a failure of this side",
	}
	for {
		ev, err := dev.NextEvent(ctx)
		if err != nil {
			return
		}
		if what := mistakes[ev.Type]; what != "" && ev.QP != nil {
			attr, _ := ev.QP.Query()
			journal(attr.AV.DGID.Addr(), fmt.Sprintf("%s: its connection is over (%v, queue pair %v)", what, ev.Type, ev.QP.Num()))
		}
	}
}
