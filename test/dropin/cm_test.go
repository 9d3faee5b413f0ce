//go:build linux && !race

package dropin

import (
	"strings"
	"testing"
)

// converse plays a program of librdmacm at both ends and returns the outputs. Its device
// is there before it listens, which nobody sees: a client that comes too early is
// refused, and then both begin anew. A server that does not end is killed.
func converse(t *testing.T, at string, atServer, atClient []string) (out, serverOut string) {
	t.Helper()
	for tries := 1; ; tries++ {
		s := server.start(t, atServer...)
		s.bound(at)
		out, err := client.try(t, atClient...)
		switch {
		case err == nil && (atServer[0] == "cmtime" || atServer[0] == "rcopy"): // whose servers do not end
			s.kill()
			return out, ""
		case err == nil:
			return out, s.wait()
		}
		s.kill()
		if tries == 10 {
			t.Fatalf("%s: %v\n%s\nserver:\n%s", strings.Join(atClient, " "), err, out, &s.out)
		}
	}
}

// A program of ours, testdata/cmqp.c, that connects queue pairs of its own with
// rdma_init_qp_attr and rdma_establish.
func TestOwnQP(t *testing.T) {
	program := compile(t, "cmqp")
	port := freePort(t)
	out, atServer := converse(t, server.addr, []string{program, server.addr, port, "server"}, []string{program, server.addr, port})
	contains(t, out, "^right\n$")
	contains(t, atServer, "^right\n$")
}

// testdata/cmqp.c, in processes that fork before they have the engine, and after.
func TestCMFork(t *testing.T) {
	contains(t, server.run(t, compile(t, "cmqp"), server.addr, freePort(t), "fork"), "^right\n$")
}

// The programs of librdmacm: each ends well at both ends.
func TestCM(t *testing.T) {
	for _, c := range []struct {
		core           bool
		server, client string
		want           string // of the client
	}{
		{true, "rping -s -a S -p P -C 10 -V -S 1000", "rping -c -a S -p P -C 10 -V -S 1000", ""},
		{false, "ucmatose -b S -p P -c 10 -C 100", "ucmatose -b C -s S -p P -c 10 -C 100", "return status 0"},
		{false, "udaddy -b S -c 3", "udaddy -b C -s S -c 3", "return status 0"},
		{false, "rdma_server -p P", "rdma_client -s S -p P", "rdma_client: end 0"},
		{false, "cmtime -b S -p P -c 20", "cmtime -b C -s S -p P -c 20", "connect +:"},
		{false, "mckey -b S -m G", "mckey -b C -m G -s", "return status 0"},
		{false, "ib_send_bw -R -p P -n 1000", "ib_send_bw -R -p P -n 1000 S", "#bytes"},
		{false, "ib_write_bw -R -p P -n 1000 -q 4", "ib_write_bw -R -p P -n 1000 -q 4 S", "#bytes"},
		{false, "ib_read_lat -R -p P -n 1000", "ib_read_lat -R -p P -n 1000 S", "#bytes"},
		{false, "ib_send_lat -R -c UD -p P -n 1000", "ib_send_lat -R -c UD -p P -n 1000 S", "#bytes"},
	} {
		t.Run(c.client, func(t *testing.T) {
			if !c.core {
				needAll(t)
			}
			words := strings.NewReplacer(" S", " "+server.addr, " C ", " "+client.addr+" ", " P", " "+freePort(t), " G", " "+group)
			at := server.addr
			if strings.Contains(c.server, " G") {
				at = group
			}
			out, _ := converse(t, at, strings.Fields(words.Replace(c.server)), strings.Fields(words.Replace(c.client)))
			contains(t, out, c.want)
		})
	}
}
