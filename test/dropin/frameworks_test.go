//go:build linux && !race

package dropin

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// UCX over transports of verbs: all operations of ucx_perftest come to a result.
func TestUCX(t *testing.T) {
	for _, tls := range []string{"rc_verbs,ud_verbs:aux", "ud_verbs"} {
		for i, args := range []string{
			"tag_lat -s 8 -n 1000", "tag_bw -s 65536 -n 200", "tag_bw -s 1048576 -n 20", "ucp_am_lat -s 64 -n 500", "ucp_am_bw -s 65536 -n 200",
			"ucp_put_lat -s 8 -n 500", "ucp_put_bw -s 65536 -n 200", "ucp_get -s 65536 -n 200", "ucp_fadd -s 8 -n 200", "stream_bw -s 4096 -n 200",
		} {
			t.Run(tls+"/"+args, func(t *testing.T) {
				if i > 0 {
					needAll(t)
				}
				ucx := []string{"UCX_TLS=" + tls, "UCX_NET_DEVICES=roce0:1", "UCX_LOG_LEVEL=warn", "UCX_WARN_UNUSED_ENV_VARS=n"}
				port := freePort(t)
				s := server.with(ucx...).start(t, "ucx_perftest", "-p", port)
				s.listening(port)
				out := client.with(ucx...).run(t, append([]string{"ucx_perftest", "127.0.0.1", "-p", port, "-w", "10", "-t"}, strings.Fields(args)...)...)
				contains(t, out, `(?m)^Final: +\d+`)
				if strings.Contains(out, " UCX  WARN") || strings.Contains(out, " UCX  ERROR") {
					t.Errorf("UCX complains:\n%s", out)
				}
				s.wait()
			})
		}
	}
}

// A program of ours, testdata/ucx.c: what ucx_perftest does not do, compare each byte.
func TestUCXChecked(t *testing.T) {
	needAll(t)
	if exec.Command("sh", "-c", "echo '#include <ucp/api/ucp.h>' | gcc -E -").Run() != nil {
		t.Skip("no ucp/api/ucp.h: test/dropin/setup.sh installs the packages")
	}
	program := compile(t, "ucx", "-lucp", "-lucs")
	for _, tls := range []string{"rc_verbs,ud_verbs:aux", "ud_verbs"} {
		t.Run(tls, func(t *testing.T) {
			ucx := []string{"UCX_TLS=" + tls, "UCX_NET_DEVICES=roce0:1", "UCX_LOG_LEVEL=warn"}
			port := freePort(t)
			s := server.with(ucx...).start(t, program, port)
			s.listening(port)
			contains(t, client.with(ucx...).run(t, program, port, "127.0.0.1"), "^right\n$")
			contains(t, s.wait(), "^right\n$")
		})
	}
}

// Open MPI over UCX: each rank has an address of its own, and all bytes are right.
func TestMPI(t *testing.T) {
	needAll(t)
	if _, err := exec.LookPath("mpicc"); err != nil {
		t.Skip("no mpicc: test/dropin/setup.sh installs the packages")
	}
	program := filepath.Join(t.TempDir(), "allreduce")
	if out, err := exec.Command("mpicc", "-Wall", "-O1", "-o", program, "testdata/allreduce.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	hosts := side{addr: ranks}
	for _, tls := range []string{"rc_verbs,ud_verbs:aux,self", "ud_verbs,self"} {
		for _, n := range []string{"2", "4"} {
			t.Run(n+" "+tls, func(t *testing.T) {
				out := hosts.run(t, "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", n, "--mca", "pml", "ucx", "--mca", "osc", "^ucx", "--mca", "btl", "self",
					"-x", "UCX_TLS="+tls, "-x", "UCX_NET_DEVICES=roce0:1", "-x", "LD_LIBRARY_PATH", "-x", "LD_PRELOAD", "-x", "ROCE_ADDR", program)
				contains(t, out, "(?m)^"+n+" ranks, right$")
			})
		}
	}
}

// libfabric's datagrams: every byte is compared.
func TestLibfabric(t *testing.T) {
	for i, size := range []string{"64", "4096"} {
		t.Run("dgram/"+size, func(t *testing.T) {
			if i > 0 {
				needAll(t)
			}
			port := freePort(t)
			args := []string{"fi_pingpong", "-p", "verbs", "-e", "dgram", "-c", "-I", "20", "-S", size}
			s := server.start(t, append(args, "-B", port)...)
			s.listening(port)
			contains(t, client.run(t, append(args, "-P", port, server.addr)...), `(?m)^`+strings.Replace(size, "4096", "4k", 1)+` +20 +=20 `)
			s.wait()
		})
	}
}

// networked is a network: libfabric looks for devices at interfaces, and leaves the
// loopback interface out.
const networked = `ip link set lo up && ip link add d0 type veth peer name d1 && ip link set d0 up && ip link set d1 up || exit 77
A=10.81.0.1 B=10.81.0.2; ip addr add $A/24 dev d0 && ip addr add $B/24 dev d0 || exit 77` + play

// libfabric's connections, by rdma_cm, and its reliable datagrams on top of them.
func TestLibfabricNetworked(t *testing.T) {
	needAll(t)
	for _, ep := range []string{"msg", "rdm"} {
		for _, size := range []string{"64", "4096", "1048576"} {
			t.Run(fmt.Sprint(ep, "/", size), func(t *testing.T) {
				if _, err := exec.LookPath("fi_pingpong"); err != nil {
					t.Skip("no fi_pingpong: test/dropin/setup.sh installs the packages")
				}
				args := fmt.Sprint("fi_pingpong -p verbs -I 20 -e ", ep, " -S ", size)
				if size != "1048576" { // of which it takes seconds to look at each byte
					args += " -c"
				}
				contains(t, isolated(t, server, "-n", networked, args, args+" 10.81.0.1"), `(?m)^\d+[km]? +20 +=20 `)
			})
		}
	}
}
