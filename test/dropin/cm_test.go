//go:build linux && !race

package dropin

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const group = "239.81.81.81"

// bound waits until the program has a device at an address, or is in a group.
func (p *started) bound(addr string) {
	p.t.Helper()
	ip := netip.MustParseAddr(addr).As4()
	entry := fmt.Sprintf(": %08X:%04X ", binary.LittleEndian.Uint32(ip[:]), 4791)
	for {
		sockets, err := os.ReadFile("/proc/net/udp")
		if err != nil {
			p.t.Fatal(err)
		}
		if strings.Contains(string(sockets), entry) {
			return
		}
		p.alive()
		time.Sleep(10 * time.Millisecond) // a poll: start has set the deadline
	}
}

// alive ends the test when the program has ended.
func (p *started) alive() {
	p.t.Helper()
	select {
	case err := <-p.done:
		p.t.Fatalf("%s has ended: %v\n%s", p.name, err, &p.out)
	default:
	}
}

// meet runs the client of a server. A device is there before its program listens:
// until then clients are refused, and try again.
func (p *started) meet(args ...string) string {
	p.t.Helper()
	for tries := 1; ; tries++ {
		ctx, cancel := context.WithTimeout(p.t.Context(), patience)
		out, err := client.command(ctx, p.t, args...).CombinedOutput()
		cancel()
		if err == nil {
			return string(out)
		}
		if _, ended := err.(*exec.ExitError); !ended || tries == 20 {
			p.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
		p.alive()
	}
}

// A program of ours, testdata/cmqp.c, that connects queue pairs of its own with
// rdma_init_qp_attr and rdma_establish.
func TestOwnQP(t *testing.T) {
	program := compile(t, "cmqp")
	port := freePort(t)
	s := server.start(t, program, server.addr, port, "server")
	s.bound(server.addr)
	contains(t, s.meet(program, server.addr, port), "^right\n$")
	contains(t, s.wait(), "^right\n$")
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
			s := server.start(t, strings.Fields(words.Replace(c.server))...)
			at := server.addr
			if strings.Contains(c.server, " G") {
				at = group
			}
			s.bound(at)
			contains(t, s.meet(strings.Fields(words.Replace(c.client))...), c.want)
			if strings.HasPrefix(c.server, "cmtime") {
				s.cmd.Process.Kill() // its server does not end
				return
			}
			s.wait()
		})
	}
}
