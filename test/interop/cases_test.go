//go:build linux

package interop

import (
	"strings"
	"testing"
	"time"
)

// wantAll says which wanted values a list of cases does not have.
func wantAll[C any, V comparable](t *testing.T, what string, cases []C, value func(C) V, want ...V) {
	t.Helper()
	have := map[V]bool{}
	for _, c := range cases {
		have[value(c)] = true
	}
	for _, v := range want {
		if !have[v] {
			t.Errorf("no case of the subset has %s %v", what, v)
		}
	}
}

// make test runs the subset: each value of every parameter at least once per kernel.
func TestSubsetCoversEveryValue(t *testing.T) {
	wantAll(t, "role we serve", pingpongSubset, func(c pingpongCase) bool { return c.weServe }, true, false)
	wantAll(t, "transport", pingpongSubset, pingpongCase.transport, "rc", "uc", "ud", "srq")
	wantAll(t, "family", pingpongSubset, func(c pingpongCase) string { return c.family }, pingpongFamilies...)
	wantAll(t, "path MTU", pingpongSubset, func(c pingpongCase) int { return c.mtu }, pingpongMTUs...)
	wantAll(t, "size", pingpongSubset, func(c pingpongCase) int { return c.size }, pingpongSizes...)

	type testAndRole struct {
		test string
		we   bool
	}
	var tests []testAndRole
	for _, test := range perfTests {
		tests = append(tests, testAndRole{test, true}, testAndRole{test, false})
	}
	wantAll(t, "test and role", perfSubset, func(p perfCase) testAndRole { return testAndRole{p.test, p.weServe} }, tests...)
	wantAll(t, "family", perfSubset, func(p perfCase) string { return p.family }, pingpongFamilies...)
	wantAll(t, "service", perfSubset, func(p perfCase) string { return p.service }, "", "UC", "UD")
	wantAll(t, "rdma_cm and role", perfSubset, func(p perfCase) [2]bool { return [2]bool{p.rdmaCM, p.weServe} },
		[2]bool{true, true}, [2]bool{true, false})
	wantAll(t, "sender of marked packets is rxe", congestionSubset, congestionCase.rxeSends, true)
	wantAll(t, "size", perfSubset, func(p perfCase) int { return p.size }, perfSizes...)

	type programAndRole struct {
		program string
		we      bool
	}
	var programs []programAndRole
	for program := range rsocketKinds {
		programs = append(programs, programAndRole{program, true}, programAndRole{program, false})
	}
	wantAll(t, "program and role", rsocketSubset, func(c rsocketCase) programAndRole { return programAndRole{c.program, c.weServe} }, programs...)
	wantAll(t, "family", rsocketSubset, func(c rsocketCase) string { return c.family }, pingpongFamilies...)
	wantAll(t, "size", rsocketSubset, func(c rsocketCase) int { return c.size }, rsocketSizes...)
	wantAll(t, "option", rsocketSubset, func(c rsocketCase) string { return c.option }, rsocketWaits...)

	verbs := verbsSubset()
	wantAll(t, "role we request", verbs, func(v verbCase) bool { return v.weRequest }, true, false)
	wantAll(t, "family", verbs, func(v verbCase) string { return v.family }, pingpongFamilies...)
	wantAll(t, "path MTU", verbs, func(v verbCase) int { return v.mtu }, pingpongMTUs...)
	type roleVerbSize struct {
		we   bool
		verb string
		size int
	}
	var all []roleVerbSize
	for _, we := range []bool{true, false} {
		for _, verb := range verbNames {
			for _, size := range verbSizes(1024) {
				all = append(all, roleVerbSize{we, verb, size})
			}
		}
	}
	wantAll(t, "role, verb and size", verbs, func(v verbCase) roleVerbSize { return roleVerbSize{v.weRequest, v.verb, v.size} }, all...)
}

func TestFullIsTheWholeProduct(t *testing.T) {
	if got := len(pingpongFull()); got != 2*2*3*4+2*2*(3*3+4+3*2) {
		t.Errorf("%d pingpong cases per kernel, want 124", got)
	}
	if got := len(perfFull()); got != 6*2*2*3+2*2*2*2+(4+2)*2*2 {
		t.Errorf("%d perf cases per kernel, want 112", got)
	}
	if got := len(perfServices()); got != 2*2*(8*2+4+2*2) {
		t.Errorf("%d perf cases per kernel over all services, want 96", got)
	}
	if got := len(congestionFull()); got != 2*2*4 {
		t.Errorf("%d congestion cases per kernel, want 16", got)
	}
	if got := len(rsocketFull()); got != 2*2*2*3*2+2 {
		t.Errorf("%d rsocket cases per kernel, want 50", got)
	}
	if got := len(verbsFull()); got != 2*5*2*3*6 {
		t.Errorf("%d verbs cases per kernel, want 360", got)
	}
}

func TestTable(t *testing.T) {
	send, flush, theirs := use{"RC SEND", false}, use{"RC FLUSH global", true}, use{"ib_send_bw of perftest 4.5", true}
	results := []result{
		{"6.1", "verbs", "a", true, 1500 * time.Millisecond, "", []use{send}},
		{"6.1", "loss", "c", true, 0, "", []use{send}},
		{"7.2", "verbs", "a", false, time.Second, "", []use{send}},
		{"7.2", "loss", "b", true, time.Second, "dropped 3", []use{flush, theirs}},
	}
	passed := map[ownTest]bool{}
	for _, o := range operations {
		for _, test := range o.lack.own() {
			passed[test] = test.name != "TestMigration"
		}
	}
	d := document{full, results, passed, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	got := d.text()
	for _, want := range []string{
		"Run on 2026-01-02 by `make interop`, all cases: 3 of 4 cases passed.",
		"| verbs | a | ok 1.5 s | **failed** |", "| loss | b | not run | ok 1.0 s, dropped 3 |", "| | seconds in all | 2 | 2 |",
		"| RC SEND | us | 2 of 2 (verbs, loss) | **0 of 1** (verbs) |  |", "| RC SEND | rxe | **not run** | **not run** |  |",
		"| RC FLUSH global | rxe | rxe lacks it | 1 of 1 (loss) | came with Linux 6.2; IBTA A19; transport TestResponderFlush ok;",
		"| XRC | rxe | rxe lacks it | rxe lacks it |", "roce TestMigration **not passed** |",
		"| ib_send_bw of perftest 4.5 | it | not run | 1 of 1 (loss) |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
	if d.mode = subset; !strings.Contains(d.text(), "Run on 2026-01-02, of all cases the subset") {
		t.Errorf("the page does not say that it is of a subset:\n%s", d.text())
	}
	missing := strings.Join(uncovered(results, kernelsOf(results)), "\n")
	for operation, want := range map[string]bool{
		"RC SEND posted by rxe false on 6.1": false, "RC SEND posted by rxe true on 6.1": true,
		"RC FLUSH global posted by rxe false on 6.1": false, "RC FLUSH global posted by rxe false on 7.2": true, "XRC posted by rxe true on 7.2": false,
	} {
		if strings.Contains(missing, operation) != want {
			t.Errorf("%q is missing: want %t in\n%s", operation, want, missing)
		}
	}
}

func TestKernelVersionsCompareByNumber(t *testing.T) {
	for release, want := range map[string]bool{"6.1.0-50-amd64": false, "6.12.117+deb13-amd64": false, "6.13-rc1": true, "7.2.13+deb14-amd64": true} {
		if got := newerThan(release, 6, 12); got != want {
			t.Errorf("%s newer than 6.12: got %v", release, got)
		}
	}
}
