//go:build linux

package interop

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestPerftest runs each program of perftest 4.5 and 25.01 on rxe against roce perf, over each service, and writes a page per kernel into
// docs/reports. These cases are part of the whole product as well.
func TestPerftest(t *testing.T) {
	if os.Getenv("GOROCE_INTEROP") != perftests {
		t.Skip("GOROCE_INTEROP is not perftest: no guest is booted")
	}
	ctx, cancel := needGuests(t)
	defer cancel()
	bin := build(t, ctx, perftests)
	head, err := exec.CommandContext(ctx, "git", "-C", root(t), "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		t.Fatalf("git: %v", err)
	}
	commit := strings.TrimSpace(string(head))
	for _, k := range suites {
		t.Run(k.suite, func(t *testing.T) {
			s := newSession(t, ctx, perftests, k.suite, bin)
			s.perf(t)
			kept := filepath.Join(root(t), "build/interop", "perftest-"+k.version+".json")
			cells := s.perftestCells(t, kept, commit)
			if ctx.Err() != nil || len(cells) != len(perfServices()) {
				t.Logf("%d of %d cases have run at %s: %s waits for the others", len(cells), len(perfServices()), commit, kept)
				return
			}
			page := filepath.Join(root(t), "docs/reports", "perftest-"+k.version+".md")
			if err := os.WriteFile(page, []byte(perftestPage(s.kernel.Release, commit, cells)), 0o644); err != nil {
				t.Fatal(err)
			}
			t.Logf("wrote %s", page)
		})
	}
}

// perftestCell is what the page shows of a case.
type perftestCell struct {
	OK     bool
	Text   string
	Day    string
	Commit string
}

// perftestCells adds the results to those that earlier runs at the same commit, of other cases, have kept in a file.
func (s *session) perftestCells(t *testing.T, file, commit string) map[string]perftestCell {
	cells := map[string]perftestCell{}
	if text, err := os.ReadFile(file); err == nil {
		if err := json.Unmarshal(text, &cells); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	maps.DeleteFunc(cells, func(_ string, c perftestCell) bool { return c.Commit != commit })
	for _, r := range s.results {
		text := "**failed**"
		if r.ok {
			text = fmt.Sprintf("ok %.1f s", r.took.Seconds())
		}
		if r.note != "" {
			text += ", " + r.note
		}
		cells[r.name] = perftestCell{r.ok, text, time.Now().UTC().Format(time.DateOnly), commit}
	}
	text, err := json.MarshalIndent(cells, "", " ")
	if err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return cells
}

const perftestIntro = `# perftest on rxe of Linux %s against roce perf

Run on %s by ` + "`make perftest`" + ` at %s, which writes this page: %d of %d cases passed. The program of perftest runs on rxe in a guest, "we" is
` + "`roce perf`" + ` on the other side; IPv4, messages of %d bytes, of 8 for atomics; "-R" connects the queue pairs by rdma_cm. Data that come
from a server of perftest are verified. "none": perftest has no such test.

`

// perftestPage has a row for each program and role, and a column for each service.
func perftestPage(release, commit string, cells map[string]perftestCell) string {
	passed, first, last := 0, "9999", ""
	for _, c := range cells {
		if c.OK {
			passed++
		}
		first, last = min(first, c.Day), max(last, c.Day)
	}
	days := first
	if last != first {
		days += " to " + last
	}
	var b strings.Builder
	fmt.Fprintf(&b, perftestIntro, release, days, commit, passed, len(cells), perfServices()[0].size)
	b.WriteString("| program | perftest | serves | RC | RC -R | UC | UD | UD -R |\n|---|---|---|---|---|---|---|---|\n")
	for _, p := range perfServices() {
		if p.service != "" || p.rdmaCM {
			continue // one row for all of them
		}
		role, version := "rxe", "4.5"
		if p.weServe {
			role = "we"
		}
		if p.newer {
			version = "25.01"
		}
		fmt.Fprintf(&b, "| ib_%s | %s | %s |", p.test, version, role)
		for _, c := range []struct {
			service string
			rdmaCM  bool
		}{{"", false}, {"", true}, {"UC", false}, {"UD", false}, {"UD", true}} {
			p.service, p.rdmaCM = c.service, c.rdmaCM
			cell := cells[p.name()].Text
			if cell == "" {
				cell = "none"
			}
			b.WriteString(" " + cell + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// The page has every case, and shows a failure.
func TestPerftestPage(t *testing.T) {
	cells := map[string]perftestCell{}
	for i, p := range perfServices() {
		cells[p.name()] = perftestCell{OK: i != 3, Text: "ok 1.5 s", Day: "2026-01-02"}
		if i == 3 {
			cells[p.name()] = perftestCell{Text: "**failed**", Day: "2026-01-03"}
		}
	}
	got := perftestPage("6.1.0-50-amd64", "abc1234", cells)
	for _, want := range []string{
		"rxe of Linux 6.1.0-50-amd64 against", "Run on 2026-01-02 to 2026-01-03 by `make perftest` at abc1234, which writes this page: 95 of 96 cases passed.",
		"| ib_send_bw | 4.5 | we | ok 1.5 s | ok 1.5 s | ok 1.5 s | **failed** | ok 1.5 s |\n",
		"| ib_write_lat | 25.01 | rxe | ok 1.5 s | ok 1.5 s | ok 1.5 s | none | none |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if n := strings.Count(got, "ok 1.5 s"); n != 95 {
		t.Errorf("%d cells, want 95", n)
	}
}
