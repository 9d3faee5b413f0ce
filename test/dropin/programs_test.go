//go:build linux && !race

package dropin

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// contains checks that a program has printed what matches.
func contains(t *testing.T, out string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(p).MatchString(out) {
			t.Errorf("no %q in\n%s", p, out)
		}
	}
}

// ibv_devices lists one device, with a GUID that is made of its address.
func TestDevices(t *testing.T) {
	contains(t, server.run(t, "ibv_devices"), fmt.Sprintf(`roce0\s+020012b77f%02x%02x01\n`, pair[0], pair[1]))
}

// ibv_devinfo -v says what the device is.
func TestDevinfo(t *testing.T) {
	contains(t, server.run(t, "ibv_devinfo", "-v"), `hca_id:\s+roce0`, `state:\s+PORT_ACTIVE \(4\)`, `link_layer:\s+Ethernet`,
		`GID\[  0\]:\s+::ffff:`+regexp.QuoteMeta(server.addr)+`, RoCE v2`, `max_qp_rd_atom:\s+16\n`, `atomic_cap:\s+ATOMIC_GLOB`, `\bXRC\n`)
}

// ibv_asyncwatch waits for events until it is killed.
func TestAsyncwatch(t *testing.T) {
	out, err := server.try(t, "timeout", "1", "stdbuf", "-oL", "ibv_asyncwatch")
	if err == nil || err.Error() != "exit status 124" {
		t.Errorf("%v, want a program that had to be ended", err)
	}
	contains(t, out, `^roce0: async event FD \d+\n$`)
}

// The pingpong programs of ibverbs-utils: each ends well at both ends, after all its
// messages. With -c they check each byte.
func TestPingpong(t *testing.T) {
	for _, c := range []struct {
		core bool
		args string
	}{
		{true, "ibv_rc_pingpong -c -n 100"},
		{true, "ibv_rc_pingpong -c -e -n 100"},
		{false, "ibv_rc_pingpong -c -N -n 1000"},
		{false, "ibv_rc_pingpong -c -s 1048576 -n 100"},
		{false, "ibv_uc_pingpong -c -n 1000"},
		{false, "ibv_uc_pingpong -c -e -n 1000"},
		{false, "ibv_ud_pingpong -c -n 1000"},
		{false, "ibv_ud_pingpong -c -e -n 1000"},
		{false, "ibv_srq_pingpong -c -n 100"},
		{false, "ibv_srq_pingpong -c -e -n 100"},
	} {
		t.Run(c.args, func(t *testing.T) {
			if !c.core {
				needAll(t)
			}
			args := append(strings.Fields(c.args), "-g", "0")
			a, b := both(t, args...)
			for _, out := range []string{a, b} {
				contains(t, out, `\d+ iters in `)
				if strings.Contains(out, "invalid data") {
					t.Errorf("wrong data:\n%s", out)
				}
			}
		})
	}
}

// ibv_xsrq_pingpong: an XRC connection each way.
func TestXSRQ(t *testing.T) {
	needAll(t)
	a, b := both(t, "ibv_xsrq_pingpong", "-g", "0")
	contains(t, a, "success")
	contains(t, b, "success")
}

// patient has programs of perftest wait for an acknowledgement for a second instead of
// 67 ms, eight times: a busy machine may stop either side for longer than that.
const patient = " -u 18"

// perftest plays a program of perftest. It measures the clock rate of the processor
// before it reports, and gives up on a machine that is too busy for that: then it is
// played again.
func perftest(t *testing.T, args []string) string {
	for range 5 {
		port := freePort(t)
		at := append(args[:len(args):len(args)], strings.Fields("-p "+port+patient)...)
		s := server.start(t, at...)
		s.listening(port)
		out, err := client.try(t, append(at, server.addr)...)
		atServer, serverErr := s.end()
		if err == nil && serverErr == nil {
			return out
		}
		if !strings.Contains(out+atServer, "Correlation coefficient r^2") {
			t.Fatalf("%v, at the server %v\n%s\n%s", err, serverErr, out, atServer)
		}
	}
	t.Fatal("perftest does not find out the clock rate of the processor")
	return ""
}

// The programs of perftest, bandwidth and latency of all operations: all iterations
// come to a result. Measurements are not judged.
func TestPerftest(t *testing.T) {
	var list []string
	for _, c := range []string{"RC", "UC"} {
		for _, op := range []string{"send", "write"} {
			list = append(list, fmt.Sprintf("ib_%s_lat -c %s -n 1000", op, c))
		}
	}
	list = append(list,
		"ib_send_bw -n 1000", "ib_write_bw -n 1000", "ib_write_bw -c UC -n 1000",
		"ib_send_bw -c UC -s 1024 -n 1000", // all of it fits into the socket's buffer: what is lost of UC is waited for for ever
		"ib_send_bw -c UD -s 1024 -n 1000", "ib_send_lat -c UD -n 1000",
		"ib_read_bw -n 1000", "ib_read_lat -n 1000", "ib_atomic_bw -n 1000", "ib_atomic_lat -n 1000",
		"ib_atomic_bw -A CMP_AND_SWAP -n 1000",
		"ib_write_bw -a -n 10", "ib_send_bw -a -n 10", "ib_read_bw -a -n 10", "ib_send_lat -a -n 10",
		"ib_write_bw -b -n 1000", "ib_send_bw -b -n 1000", "ib_read_bw -b -n 1000",
		"ib_write_bw -q 4 -n 1000", "ib_send_bw -q 4 -n 1000", "ib_read_bw -q 4 -n 1000", "ib_atomic_bw -q 4 -n 1000",
		"ib_write_bw -l 16 -n 1600", "ib_send_bw -l 16 -n 1600",
		"ib_send_bw -e -n 1000", "ib_send_lat -e -n 1000", "ib_read_lat -e -n 1000",
		"ib_send_bw --use-srq -n 1000", "ib_send_bw --use-srq -q 4 -n 1000", "ib_send_lat --use-srq -n 1000",
		"ib_send_bw -c XRC -n 1000", "ib_write_bw -c XRC -n 1000",
		"ib_write_lat -I 64 -s 64 -n 1000", "ib_send_bw -I 128 -s 128 -n 1000", "ib_send_lat -c UD -I 64 -s 64 -n 1000",
	)
	for _, args := range list {
		t.Run(args, func(t *testing.T) {
			needAll(t)
			out := perftest(t, strings.Fields(args))
			contains(t, out, `#bytes[^\n]*\n\s*\d+ +\d+ `)
		})
	}
}
