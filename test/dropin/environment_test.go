//go:build linux && !race

package dropin

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// perftest loads libmlx5 and libefa, which need all their symbols of IBVERBS_PRIVATE_34:
// here they are looked for when the program starts, not when they are called.
func TestProviders(t *testing.T) {
	out, _ := server.with("LD_BIND_NOW=1").try(t, "ib_write_bw", "--version") // which ends with status 1
	contains(t, out, "^Version: .*\n$")
}

// A program that finds no device, or cannot open it, is preceded by the reason.
func TestReasons(t *testing.T) {
	for _, c := range []struct{ addr, program, want string }{
		{"198.51.100.0/24", "ibv_devices", `(?m)^goroce: no device: UDP port 4791 is taken at each local address within 198\.51\.100\.0/24`},
		{"198.51.100", "ibv_devices", `(?m)^goroce: ROCE_ADDR is 198\.51\.100: an IP address or a prefix`},
		{"198.51.100.1", "ibv_devinfo", `(?m)^goroce: .*198\.51\.100\.1:4791: the address is not one of this machine's`},
	} {
		out, _ := side{addr: c.addr}.try(t, c.program) // some end well
		contains(t, out, c.want)
	}
	port := freePort(t)
	s := server.start(t, "ibv_rc_pingpong", "-g", "0", "-p", port)
	s.listening(port)
	out, err := server.try(t, "ibv_devinfo")
	if err == nil {
		t.Error("two processes have opened one address")
	}
	contains(t, out, `(?m)^goroce: .*`+regexp.QuoteMeta(server.addr)+`:4791.*in use`)
	s.kill()
}

// unprivileged is what nobody may do, who is no one else either.
const unprivileged = "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps -all --bounding-set -all --no-new-privs --reset-env"

// A user without any privilege.
func TestUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root: all other tests are without privileges")
	}
	dir := libraries(t)
	env := []string{"env", "LD_LIBRARY_PATH=" + dir, "LD_PRELOAD=" + filepath.Join(dir, "libibverbs.so.1")}
	words := func(addr string, args ...string) []string {
		return append(append(strings.Fields(unprivileged), append(env, "ROCE_ADDR="+addr)...), args...)
	}
	port := freePort(t)
	pingpong := []string{"ibv_rc_pingpong", "-c", "-g", "0", "-n", "100", "-p", port}
	s := server.start(t, words(server.addr, pingpong...)...)
	s.listening(port)
	contains(t, client.run(t, words(client.addr, append(pingpong, server.addr)...)...), "100 iters in ")
	s.wait()
}

// roceCommand builds the command, and returns it with the environment of a user who has
// set nothing but where the libraries are.
func roceCommand(t *testing.T) (roce string, plain side) {
	t.Helper()
	dir := libraries(t)
	roce = filepath.Join(t.TempDir(), "roce")
	if out, err := exec.Command("go", "build", "-o", roce, "../../cmd/roce").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return roce, side{env: []string{"LD_LIBRARY_PATH=", "LD_PRELOAD=", "ROCE_ADDR=", "ROCE_DROPIN=" + dir}}
}

// roce exec finds the libraries, and gives programs of one host an address each.
func TestExec(t *testing.T) {
	needAll(t)
	if _, err := exec.LookPath("ibv_rc_pingpong"); err != nil {
		t.Skip("no ibv_rc_pingpong: test/dropin/setup.sh installs the packages")
	}
	roce, plain := roceCommand(t)
	port := freePort(t)
	words := []string{roce, "exec", "--addr", ranks, "--name", "roce7", "--", "ibv_rc_pingpong", "-c", "-d", "roce7", "-g", "0", "-p", port}
	s := plain.start(t, words...)
	s.listening(port)
	out := plain.run(t, append(words, network+"129")...)
	contains(t, out, "local address: .* GID ::ffff:"+regexp.QuoteMeta(network+"130"), "remote address: .* GID ::ffff:"+regexp.QuoteMeta(network+"129"), "1000 iters in ")
	s.wait()
}

// roce doctor says what a program loads with roce exec, and what by itself. A library that
// the program names by an RPATH comes before those of roce exec.
func TestDoctor(t *testing.T) {
	needAll(t)
	if _, err := exec.LookPath("ibv_devices"); err != nil {
		t.Skip("no ibv_devices: test/dropin/setup.sh installs the packages")
	}
	roce, plain := roceCommand(t)
	doctor := []string{roce, "doctor", "--addr", network + "3", "--"}
	contains(t, plain.run(t, append(doctor, "ibv_devices")...), `(?m)^ok +dropin .* are in `+regexp.QuoteMeta(libraries(t)), `(?m)^ok +program .* is linked with glibc$`,
		`(?m)^ok +loader .*; by itself /.*libibverbs.so.1, which knows the devices of the kernel only$`, `(?m)^ok +device +roce0 would be at `+regexp.QuoteMeta(network+"3")+`$`, `(?m)^ok +port `)
	contains(t, plain.with("LD_LIBRARY_PATH="+libraries(t)).run(t, append(doctor, "ibv_devices")...), `(?m)^ok +loader .*; by itself as well$`)

	const system = "/usr/lib/x86_64-linux-gnu"
	program := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("gcc", "-o", program, "testdata/cmqp.c", "-Wl,--disable-new-dtags,-rpath,"+system, "-lrdmacm", "-libverbs", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := plain.try(t, append(doctor, program)...)
	if err == nil {
		t.Error("a program with an RPATH is called well")
	}
	contains(t, out, `(?m)^failure +loader +also with roce exec .* loads `+system+`/librdmacm.so.1: an RPATH in it comes first$`)
}

// isolated runs a script of sh in namespaces of its own, as unshare makes them with the
// flags. It is skipped where the script ends with status 77: it lacks what it needs.
func isolated(t *testing.T, s side, flags, script string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	words := append([]string{"unshare", "-r"}, strings.Fields(flags)...)
	out, err := s.command(ctx, t, append(append(words, "sh", "-c", script, "sh"), args...)...).CombinedOutput()
	if exit, ok := err.(*exec.ExitError); ok && exit.ExitCode() == 77 {
		t.Skipf("no namespaces: %s", out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// play plays two commands at the addresses $A and $B, in a script of isolated. Both begin
// anew when the client came before the server was there.
const play = `
for try in $(seq 10); do
	ROCE_ADDR=$A $1 & server=$!
	sleep 0.3
	if ROCE_ADDR=$B $2; then
		wait $server
		exit
	fi
	kill $server
	wait $server
done
exit 1`

// IPv6, by libibverbs and by librdmacm.
func TestIPv6(t *testing.T) {
	const ipv6 = "A=::1 B=fd81::2; ip link set lo up && ip addr add $B/128 dev lo nodad || exit 77" + play
	for i, c := range []struct{ server, client, want string }{
		{"ibv_rc_pingpong -c -g 0", "ibv_rc_pingpong -c -g 0 127.0.0.1", "1000 iters in "}, // its TCP knows no IPv6
		{"ibv_ud_pingpong -c -g 0", "ibv_ud_pingpong -c -g 0 127.0.0.1", "1000 iters in "},
		{"rping -s -a ::1 -C 10 -V", "rping -c -a ::1 -C 10 -V", "server DISCONNECT EVENT"},
		{"udaddy -f ip6 -b ::1", "udaddy -f ip6 -s ::1", "return status 0"},
		{"rstream -f 6 -b ::1 -S 1000 -C 50 -T v", "rstream -f 6 -s ::1 -S 1000 -C 50 -T v", `(?m)^custom +\S+ +50 `},
	} {
		t.Run(c.client, func(t *testing.T) {
			if i > 0 {
				needAll(t)
			}
			if _, err := exec.LookPath(strings.Fields(c.client)[0]); err != nil {
				t.Skipf("%v: test/dropin/setup.sh installs the packages", err)
			}
			contains(t, isolated(t, server, "-n", ipv6, c.server, c.client), c.want)
		})
	}
}

// For all programs of a machine: a file in /etc/ld.so.conf.d, and no variable.
func TestLdSoConf(t *testing.T) {
	needAll(t)
	const script = `unset LD_LIBRARY_PATH LD_PRELOAD
mount -t tmpfs tmpfs "$2" && mkdir "$2/upper" "$2/work" && mount -t tmpfs tmpfs /var/cache/ldconfig || exit 77
mount -t overlay -o lowerdir=/etc,upperdir="$2/upper",workdir="$2/work" overlay /etc || exit 77
echo "$1" >/etc/ld.so.conf.d/00-goroce.conf && ldconfig && exec ibv_devinfo -v`
	contains(t, isolated(t, server, "-m", script, libraries(t), t.TempDir()), `hca_id:\s+roce0`, `GID\[  0\]:\s+::ffff:`+regexp.QuoteMeta(server.addr)+`, RoCE v2`)
}

// trixie returns the root of Debian 13 that the tests of test/interop unpack.
func trixie(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(cache, "goroce", "roots", "trixie")
	if _, err := os.Stat(filepath.Join(root, "lib64", "ld-linux-x86-64.so.2")); err != nil {
		t.Skipf("no root of Debian 13, which the tests of test/interop unpack: %v", err)
	}
	return root
}

// A container: Debian 13 with the libraries in /usr/lib/goroce, as docs/dropin.md says
// for a Dockerfile, in namespaces of its own, with nothing in /dev and no /sys.
func TestContainer(t *testing.T) {
	needAll(t)
	const script = `unset LD_LIBRARY_PATH LD_PRELOAD
ip link set lo up && mount -t tmpfs tmpfs "$3" && cd "$3" && mkdir upper work root || exit 77
mount -t overlay -o lowerdir="$2",upperdir=upper,workdir=work overlay root && mount -t proc proc root/proc || exit 77
cp -r "$1" root/usr/lib/goroce
rm -rf root/dev/* root/sys
export LD_LIBRARY_PATH=/usr/lib/goroce
A=127.0.0.1 B=127.0.0.2
set -- "chroot root ib_write_bw -n 1000" "chroot root ib_write_bw -n 1000 127.0.0.1"` + play
	contains(t, isolated(t, server, "-m -n -p -f", script, libraries(t), trixie(t), t.TempDir()), `#bytes[^\n]*\n\s*65536 +1000 `)
}
