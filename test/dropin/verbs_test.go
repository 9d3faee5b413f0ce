//go:build linux && !race

package dropin

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// compile builds testdata/NAME.c with both libraries, and more flags.
func compile(t *testing.T, name string, flags ...string) string {
	t.Helper()
	dir := libraries(t)
	program := filepath.Join(t.TempDir(), name)
	if *sanitize {
		flags = append(flags, sanitizers...)
	}
	args := append([]string{"-Wall", "-O1", "-o", program, "testdata/" + name + ".c"}, flags...)
	build := exec.Command("gcc", append(args, filepath.Join(dir, "librdmacm.so.1"), filepath.Join(dir, "libibverbs.so.1"), "-lpthread")...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// A program of ours, testdata/loads.c, that loads libibverbs by dlopen and has signal
// handlers of its own: with the library preloaded, and without.
func TestLoads(t *testing.T) {
	program := compile(t, "loads", "-Wl,--as-needed")
	contains(t, client.run(t, program), "^right\n$")
	contains(t, client.with("LD_PRELOAD=").run(t, program), "^right\n$")
}

// A program of ours, testdata/verbs.c: operations by both ways of posting with each
// byte compared, refusals, asynchronous events, forks before and after the device is
// opened, a thousand signals a second, a device that is closed before its objects, an exit
// with all open.
func TestVerbs(t *testing.T) {
	program := compile(t, "verbs")
	for _, mode := range []string{"ops", "events", "fork", "signals", "close", "exit"} {
		t.Run(mode, func(t *testing.T) { contains(t, client.run(t, program, mode), "^right\n$") })
	}
}

// A program of ours, testdata/unsupported.c: what is not there answers with the errno that
// rdma-core has for it.
func TestUnsupported(t *testing.T) {
	contains(t, client.run(t, compile(t, "unsupported", "-ldl")), "^right\n$")
}
