package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// With --use-srq all queue pairs receive by one queue, in each test of SEND and in both
// directions; its size is that of all.
func TestPerfSRQ(t *testing.T) {
	for _, args := range []string{
		"send_bw -q 3 -n 300 -s 5000 -r 40", "send_bw -b -q 2 -n 200 -s 100", "send_lat -n 50", "send_bw -c UD -n 50 -r 64",
	} {
		t.Run(args, func(t *testing.T) {
			server, client := newWorld(t).play(pingpong{
				command: "perf " + strings.Fields(args)[0], server: append(strings.Fields(args)[1:], "--use-srq", "--json", "--addr", "127.0.0.1"),
				client: append(strings.Fields(args)[1:], "--use-srq", "--json"),
			})
			server.want(t, "server", 0)
			client.want(t, "client", 0)
			var r struct {
				Results  []struct{ Iters int }
				Counters map[string]uint64
			}
			if err := json.Unmarshal([]byte(server.out), &r); err != nil || len(r.Results) != 1 || r.Results[0].Iters == 0 {
				t.Errorf("%v, the server reports %s", err, server.out)
			}
		})
	}
	for _, args := range []string{"send_bw -q 2 -n 100 -s 3000", "send_bw -b -q 2 -n 100 -c UD", "send_lat -n 50 -c UD"} {
		o := newWorld(t).perfLocal(args + " -R --use-srq --addr 127.0.0.1")
		o.want(t, "-R "+args, 0)
	}
}
