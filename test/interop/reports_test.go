//go:build linux

package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// reportFlags are those of roce interop: three path MTUs, and time for emulation.
var reportFlags = []string{"-m", "256,1024,4096", "-u", "16", "--timeout", "20s"}

// TestReports runs roce interop against the rxe of each kernel, behind rping and perftest, and writes what it says into docs/reports. What
// rxe fails there is a result; the test fails when there is none.
func TestReports(t *testing.T) {
	if os.Getenv("GOROCE_INTEROP") != reports {
		t.Skip("GOROCE_INTEROP is not reports: no guest is booted")
	}
	ctx, cancel := needGuests(t)
	defer cancel()
	bin := build(t, ctx, subset)
	for _, k := range suites {
		t.Run(k.suite, func(t *testing.T) { report(t, ctx, k.suite, k.version, bin) })
	}
}

func report(t *testing.T, ctx context.Context, suite, version string, bin binaries) {
	ns, g := oneGuest(t, ctx, suite, reports, bin)
	us, rxe := ourSide(ns, bin), guestSide(ctx, "rxe", g)
	index, err := g.GIDIndex(ctx, rxe.addr4)
	if err != nil {
		t.Fatal(err)
	}
	run := func(s *side, argv ...string) program {
		p, err := s.start(argv...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		return p
	}
	script := run(us, bin.roce, "interop", "--script", rxe.addr4)
	if exit, err := script.Wait(10 * time.Second); exit != 0 || err != nil {
		t.Fatal(exit, err, script.Stderr())
	}
	run(rxe, "sh", "-c", fmt.Sprintf("GID=%d; %s", index, script.Stdout()))
	run(rxe, "rping", "-s", "-P", "-S", "65535")
	for ready := false; !ready; { // it takes its time to start
		ping := run(us, bin.roce, "ping", "-c", "-a", rxe.addr4, "-C", "1")
		exit, err := ping.Wait(time.Minute)
		if ready = exit == 0 && err == nil; !ready && (err != nil || ctx.Err() != nil || !strings.Contains(ping.Stderr(), "nobody listens")) {
			t.Fatal(exit, err, ping.Stderr())
		}
	}

	began := time.Now()
	name := filepath.Join(root(t), "docs/reports", "rxe-"+version)
	interop := func(more ...string) string {
		p := run(us, append(append([]string{bin.roce, "interop", "--peer", "rping,perftest"}, reportFlags...), append(more, rxe.addr4)...)...)
		exit, err := p.Wait(15 * time.Minute)
		if err != nil || exit > 1 {
			t.Fatalf("exit status %d (%v): %s", exit, err, p.Stderr())
		}
		return p.Stdout()
	}
	out := interop("--json", "--html", name+".html", "--label", "Linux "+g.Kernel.Release+", rxe")
	var r struct{ Passed, Failed int }
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	t.Logf("Linux %s: passed %d, failed %d in %.0f s", g.Kernel.Release, r.Passed, r.Failed, time.Since(began).Seconds())
	if r.Passed < 50 {
		t.Errorf("that is no report: %s", out)
	}
	if err := os.WriteFile(filepath.Join(root(t), "build/interop", reports, version+".json"), []byte(out), 0o644); err != nil {
		t.Fatal(err)
	}
}
