package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goroce/goroce/cmd/roce/internal/echo"
	"github.com/goroce/goroce/roce/netio"
)

// doctorNetwork is three namespaces: a, the router r, and b, where 'roce serve' runs.
const doctorNetwork = `
for n in a r b; do ip netns add $n; ip -n $n link set lo up; done
ip link add va netns a type veth peer name ra netns r
ip link add vb netns b type veth peer name rb netns r
for l in "a va 10.9.0.1" "r ra 10.9.0.2" "r rb 10.9.1.1" "b vb 10.9.1.2"; do
	set -- $l
	ip -n $1 addr add $3/24 dev $2; ip -n $1 link set $2 mtu 9000 up
done
ip -n a route add default via 10.9.0.2; ip -n b route add default via 10.9.1.1
ip netns exec r sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
serve() { ip netns exec b "$@" >served 2>&1 & server=$!; until grep -q serving served || ! kill -0 $server; do sleep 0.02; done; }
doctor() { ip netns exec a $ROCE doctor --timeout 400ms "$@" 2>&1 || echo "exit $?"; }
rule() { ip netns exec $1 nft "add table ip t; add chain ip t c { type $2; }; add rule ip t c $3"; }
serve $ROCE serve --addr 10.9.1.2
`

// doctorNetwork6 gives it addresses of IPv6 as well, after all that ends them: a link that
// is down, or has a small MTU.
const doctorNetwork6 = `
ip netns exec r sh -c 'echo 1 >/proc/sys/net/ipv6/conf/all/forwarding'
for l in "a va fd09::1" "r ra fd09::2" "r rb fd09:1::1" "b vb fd09:1::2"; do
	set -- $l
	ip -n $1 addr add $3/64 dev $2 nodad
done
ip -n a route add default via fd09::2; ip -n b route add default via fd09:1::1
ip netns exec b $ROCE serve --addr fd09:1::2 >served6 2>&1 & server6=$!; until grep -q serving served6; do sleep 0.02; done
rule6() { ip netns exec $1 nft "add table ip6 t; add chain ip6 t c { type $2; }; add rule ip6 t c $3"; }
`

// doctorCase is something that is broken, and mended.
type doctorCase struct {
	name, breaks, args, mends string
	want                      string // in the output
	not                       string // not in it
}

// Each thing that doctor looks at is broken, and found: by the line that begins with
// want, and by the exit status.
func TestDoctorFinds(t *testing.T) {
	t.Parallel()
	cases := []doctorCase{
		{"nothing", "", "10.9.1.2", "", "ok       ecn-path ECN bits arrive at 10.9.1.2", "failure"},
		{"small path MTU wanted", "ip -n a link set va mtu 1500", "-m 1024 10.9.1.2", "ip -n a link set va mtu 9000", "ok       path-mtu packets of path MTU 1024 come through", "failure"},
		{"port in use", "ip netns exec a $ROCE serve --addr 10.9.0.1 >held & held=$!; until grep -q serving held; do sleep 0.02; done", "10.9.1.2", "kill $held; wait $held || :",
			"failure  port     10.9.0.1 port 4791: the port is in use by ", "exit 0"},
		{"interface MTU", "ip -n a link set va mtu 1500", "10.9.1.2", "ip -n a link set va mtu 9000", "warning  mtu      va has MTU 1500: path MTU 4096 does not fit, 1024 does", "failure"},
		{"interface MTU too small", "ip -n a link set va mtu 300", "10.9.1.2", "ip -n a link set va mtu 9000", "failure  mtu      va has MTU 300", "exit 0"},
		{"interface down", "ip -n a link set va down", "-a 10.9.0.1", "ip -n a link set va up; ip -n a route add default via 10.9.0.2", "failure  link     va is down", "exit 0"},
		{"no such address", "", "-a 10.9.0.77", "", "failure  address  10.9.0.77 is not an address of this machine", "exit 0"},
		{"no route", "ip -n a route del default", "10.9.1.2", "ip -n a route add default via 10.9.0.2", "failure  route    no route to 10.9.1.2", "exit 0"},
		{"no such name", "", "nowhere.invalid", "", "failure  name     ", "exit 0"},
		{"loopback down", "ip -n a link set lo down", "10.9.1.2", "ip -n a link set lo up", "failure  icrc     no packet came through on loopback", "exit 0"},
		{"firewall there", "rule b 'filter hook input priority 0' 'udp dport 4791 drop'", "10.9.1.2", "ip netns exec b nft flush ruleset", "failure  cm       10.9.1.2 answers nothing", "exit 0"},
		{"firewall here", "rule a 'filter hook output priority 0' 'udp dport 4791 ip daddr 10.9.1.2 drop'", "10.9.1.2", "ip netns exec a nft flush ruleset", "failure  cm       10.9.1.2 answers nothing", "exit 0"},
		{"firewall on loopback", "rule a 'filter hook input priority 0' 'iif lo drop'", "10.9.1.2", "ip netns exec a nft flush ruleset", "failure  icrc     no packet came through on loopback", "exit 0"},
		{"address translation", "rule r 'nat hook postrouting priority 100' 'oif rb masquerade'", "10.9.1.2", "ip netns exec r nft flush ruleset", "failure  nat      10.9.1.2 sees 10.9.1.1:", "exit 0"},
		{"destination translation", "rule r 'nat hook prerouting priority -100' 'ip daddr 10.9.7.7 dnat to 10.9.1.2'", "10.9.7.7", "ip netns exec r nft flush ruleset; ip netns exec r conntrack -F >/dev/null 2>&1 || :",
			"failure  nat      packets to 10.9.7.7:4791 arrive at 10.9.1.2:4791", "exit 0"},
		{"path MTU", "ip -n r link set rb mtu 1500", "10.9.1.2", "ip -n r link set rb mtu 9000", "failure  path-mtu packets of path MTU 4096 are lost on the way, those of 1024 come through", "exit 0"},
		{"ECN bits removed", "rule r 'filter hook prerouting priority -300' 'iif ra udp dport 4791 ip ecn set not-ect'", "10.9.1.2", "ip netns exec r nft flush ruleset", "warning  ecn-path the ECN bits are gone at 10.9.1.2", "exit"},
		{"ECN packets dropped", "rule r 'filter hook prerouting priority -300' 'iif ra @nh,14,2 != 0 drop'", "10.9.1.2", "ip netns exec r nft flush ruleset", "failure  ecn-path 10.9.1.2 answers packets without ECN bits", "exit 0"},
		{"no echo there", "kill $server; wait $server || :; serve sh -c 'echo serving; exec $ROCE ping -s -a 10.9.1.2'; sleep 0.5", "10.9.1.2", "", "ok       cm       10.9.1.2 speaks RoCEv2, and refuses", "failure"},
		{"nobody there", "kill $server; wait $server || :", "10.9.1.2", "", "failure  cm       10.9.1.2 answers nothing", "exit 0"},
	}
	if _, err := exec.LookPath("nft"); err != nil && os.Geteuid() == 0 {
		t.Skip("needs the command nft")
	}
	script := doctorNetwork
	cases = append(cases, []doctorCase{
		{"nothing, IPv6", doctorNetwork6, "fd09:1::2", "", "ok       ecn-path ECN bits arrive at fd09:1::2", "failure"},
		{"path MTU, IPv6", "ip -n r link set rb mtu 1500", "fd09:1::2", "ip -n r link set rb mtu 9000", "failure  path-mtu packets of path MTU 4096 are lost on the way, those of 1024 come through", "exit 0"},
		{"address translation, IPv6", "rule6 r 'nat hook postrouting priority 100' 'oif rb masquerade'", "fd09:1::2", "ip netns exec r nft flush ruleset",
			"failure  nat      fd09:1::2 sees [fd09:1::1]:", "exit 0"},
		{"firewall there, IPv6", "rule6 b 'filter hook input priority 0' 'udp dport 4791 drop'", "fd09:1::2", "ip netns exec b nft flush ruleset; kill $server6; wait $server6 || :", "failure  cm       fd09:1::2 answers nothing", "exit 0"},
	}...)
	for i, c := range cases {
		script += fmt.Sprintf("echo '== %d'\n%s\ndoctor %s\n%s\n", i, c.breaks, c.args, c.mends)
	}
	parts := strings.Split(inNamespace(t, script), "== ")
	if len(parts) != len(cases)+1 {
		t.Fatalf("%d outputs of %d cases", len(parts)-1, len(cases))
	}
	for i, c := range cases {
		out := parts[i+1]
		if !strings.Contains(out, "\n"+c.want) || strings.Contains(out, c.not) && c.not != "exit 0" || c.not == "exit 0" && !strings.Contains(out, "exit 1") {
			t.Errorf("%s: no line %q (or %q) in\n%s", c.name, c.want, c.not, out)
		}
		for _, line := range strings.Split(out, "\n") {
			if strings.HasPrefix(line, "failure") || strings.HasPrefix(line, "warning") {
				if !strings.Contains(out, "  means: ") || !strings.Contains(out, "  do: ") {
					t.Errorf("%s: %q without what it means and what to do", c.name, line)
				}
			}
		}
	}
}

// fakeCaps is a backend that cannot do much.
type fakeCaps struct {
	netio.Backend
	caps netio.Caps
}

func (f fakeCaps) Caps() netio.Caps { return f.caps }

// findings runs checks that need no network.
func findings(t *testing.T, be netio.Backend, check func(*diagnosis)) []finding {
	t.Helper()
	a, _, _ := newWorld(t).app()
	d := &diagnosis{app: a, o: &doctorOptions{}, be: be, local: addr("127.0.0.1")}
	check(d)
	return d.list
}

// What the kernel does not grant is a warning each.
func TestDoctorSocket(t *testing.T) {
	for _, f := range findings(t, fakeCaps{caps: netio.Caps{MaxSegments: 1, RecvBuffer: 425984}}, (*diagnosis).checkSocket) {
		if f.Status != statusWarning || f.Means == "" || f.Do == "" {
			t.Errorf("%+v", f)
		}
	}
	for _, f := range findings(t, fakeCaps{caps: netio.Caps{MaxSegments: 64, ECN: true, RecvBuffer: 16 << 20}}, (*diagnosis).checkSocket) {
		if f.Status != statusOK {
			t.Errorf("%+v", f)
		}
	}
}

// Modules that take RoCE packets for themselves are named.
func TestDoctorModules(t *testing.T) {
	old := sysModule
	defer func() { sysModule = old }()
	for module, want := range map[string]string{"ext4": "kernel ok", "rdma_rxe": "rxe warning", "mlx5_ib": "nic warning"} {
		sysModule = t.TempDir()
		if err := os.Mkdir(filepath.Join(sysModule, module), 0o700); err != nil {
			t.Fatal(err)
		}
		f := findings(t, nil, (*diagnosis).checkKernel)
		if len(f) != 1 || f[0].Check+" "+f[0].Status != want {
			t.Errorf("%s: %+v", module, f)
		}
	}
}

// A run whose ICRCs are wrong, or whose Identifications do not count up, is a failure
// that says which packet.
func TestDoctorJudgesICRC(t *testing.T) {
	src := netip.MustParseAddrPort("10.0.0.1:4791")
	right := func(id uint16) *echo.Seen { return &echo.Seen{Src: src, ICRC: true, ID: id} }
	for _, c := range []struct {
		seen []*echo.Seen
		want string
	}{
		{[]*echo.Seen{right(0), right(1), nil, right(3)}, "ICRCs are right"},
		{[]*echo.Seen{{Src: src}, right(1)}, "wrong ICRC of the first packet"},
		{[]*echo.Seen{right(0), {Src: src}}, "wrong ICRC of packet 2"},
		{[]*echo.Seen{right(0), right(0)}, "packet 2 of a segmented run has the Identification 0"},
	} {
		f := findings(t, fakeCaps{caps: netio.Caps{MaxSegments: 64}}, func(d *diagnosis) { d.judgeICRC("icrc", "here", c.seen) })
		if len(f) != 1 || !strings.Contains(f[0].What, c.want) {
			t.Errorf("%+v, want %q", f, c.want)
		}
	}
}

func TestDoctorJSON(t *testing.T) {
	o := newWorld(t).run("doctor", "--json", "-a", "127.0.0.1", "-m", "1024")
	o.want(t, "doctor", 0)
	wantSchema(t, schema(t, strings.ReplaceAll(o.out, `"status"`, `"means":"","do":"","status"`)), `
		checks[].check string
		checks[].status string
		checks[].what string
		checks[].means string
		checks[].do string
		failures number
		warnings number`)
}

func TestDoctorMistakes(t *testing.T) {
	w := newWorld(t)
	for args, want := range map[string]string{
		"doctor a b": "one host at a time", "doctor -m 1000": "path MTUs are", "doctor --timeout 1ms": "at least 100ms",
		"serve x": "the address is --addr", "serve -p 0": "-p 0", "serve --clients 0": "--clients 0", "serve --allow x": "--allow x", "serve --timeout 1ms": "at least 100ms",
		"stat x": "--dir", "stat": "where are the sockets", "stat --dir x -w 1ms": "at least 10ms", "stat --dir x -n 1": "-n 1", "stat --dir x --listen :0 --json": "--listen goes without",
	} {
		t.Setenv(statEnv, "")
		o := w.run(strings.Fields(args)...)
		o.want(t, args, 2)
		if !strings.Contains(o.err, want) {
			t.Errorf("%s: %q, want %q", args, o.err, want)
		}
	}
}
