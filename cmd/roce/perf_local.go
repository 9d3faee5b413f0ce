package main

import (
	"context"
	"io"
)

// perfLocal runs both ends of a test in this process, on addr or, without one, on
// 127.0.0.1 and 127.0.0.2 where that exists. What the client sees is printed.
func (a *app) perfLocal(ctx context.Context, o *perfOptions) error {
	client, server := *o, *o
	if server.addr = o.addr; !o.addr.IsValid() {
		server.addr, client.addr = a.demoAddrs[0], a.demoAddrs[1]
	}
	client.server, server.server = server.addr.String(), ""

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mute := *a
	mute.stdout, mute.progress = io.Discard, false
	listening := make(chan uint16, 1)
	done := make(chan error, 1)
	go func() { done <- mute.perf(ctx, &server, listening) }()
	select {
	case err := <-done:
		return err // it cannot listen
	case client.port = <-listening:
	}
	if err := a.perf(ctx, &client, nil); err != nil {
		cancel()
		<-done
		return err
	}
	return <-done
}
