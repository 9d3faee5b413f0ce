// Command roce is the tool box of goroce, a RoCEv2 channel adapter in user
// space: it lists the addresses that can be used, plays ping-pong with
// ibv_rc_pingpong or itself, measures with perftest or itself, and shows the
// stack at work in one process.
//
// Exit status: 0 success, 1 failure, 2 wrong usage.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := newApp(os.Stdout, os.Stderr).run(ctx, os.Args[1:])
	stop()
	os.Exit(status)
}
