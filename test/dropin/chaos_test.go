//go:build linux && !race

package dropin

import (
	"os/exec"
	"strings"
	"testing"
)

// A program of ours, testdata/chaos.c: threads that make, use and destroy everything,
// each byte compared.
func TestChaos(t *testing.T) {
	program, threads, seconds := compile(t, "chaos"), "8", "1"
	if *all {
		threads, seconds = "32", "60"
	}
	contains(t, client.run(t, program, threads, seconds), `^\d+ rounds, right\n$`)
}

// The C side built with the address and undefined behaviour sanitizers: our programs,
// and the pingpong programs, run clean on it.
func TestSanitized(t *testing.T) {
	needAll(t)
	libraries(t) // or it says why there are none
	sanitize := []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"}
	dir := t.TempDir()
	if out, err := exec.Command(source+"/build.sh", append([]string{dir}, sanitize...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var runtimes []string
	for _, name := range []string{"libasan.so", "libubsan.so"} {
		out, err := exec.Command("gcc", "-print-file-name="+name).Output()
		if err != nil {
			t.Fatal(err)
		}
		runtimes = append(runtimes, strings.TrimSpace(string(out)))
	}
	// Faults of memory are Go's, and so are most pointers to it: leaks cannot be told.
	env := []string{"LD_LIBRARY_PATH=" + dir, "LD_PRELOAD=" + strings.Join(runtimes, " "), "ASAN_OPTIONS=handle_segv=0:detect_leaks=0", "UBSAN_OPTIONS=print_stacktrace=1"}
	from, to := server.with(env...), client.with(env...)
	verbs, chaos := compile(t, "verbs", sanitize...), compile(t, "chaos", sanitize...)
	for _, mode := range []string{"ops", "fork", "signals", "close", "exit"} {
		t.Run("verbs "+mode, func(t *testing.T) { contains(t, to.run(t, verbs, mode), "(?m)^right$") })
	}
	t.Run("chaos", func(t *testing.T) { contains(t, to.run(t, chaos, "8", "5"), "rounds, right") })
	for _, args := range []string{"ibv_rc_pingpong -c", "ibv_rc_pingpong -c -e -N", "ibv_uc_pingpong -c", "ibv_ud_pingpong -c", "ibv_srq_pingpong -c -e", "ibv_xsrq_pingpong"} {
		t.Run(args, func(t *testing.T) {
			port := freePort(t)
			words := append(strings.Fields(args), "-g", "0", "-p", port)
			s := from.start(t, words...)
			s.listening(port)
			to.run(t, append(words, server.addr)...)
			s.wait()
		})
	}
}
