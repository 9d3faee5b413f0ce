//go:build linux

package interop

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/goroce/goroce/test/interop/wire"
)

// use is an operation, or a program, that a case has used.
type use struct {
	name string
	rxe  bool // posted, or the program served, by rxe's side
}

// Names of uses that are no verbs.
const (
	usesSRQ       = "receives of a shared queue"
	usesMulticast = "UD multicast"
	usesMigration = "path migration on request"
)

// lack says that rxe has no such operation: two of us do it, in tests that name the rule.
type lack struct {
	newest string // the newest kernel that lacks it; empty: all do
	why    string
	tests  []ownTest
}

// own are its tests; none of no lack.
func (l *lack) own() []ownTest {
	if l == nil {
		return nil
	}
	return l.tests
}

type ownTest struct{ pkg, name string }

func (t ownTest) String() string { return t.pkg + " " + t.name }

// operation is a row of the table: what a queue pair can be asked for, posted by rxe or by us.
type operation struct {
	use
	lack *lack
}

var (
	atomicWriteLack = &lack{"6.1", "came with Linux 6.2; IBTA A19", []ownTest{{"transport", "TestRequesterAtomics"}, {"transport", "TestResponderAtomics"}, {"roce", "TestAtomics"}}}
	flushLack       = &lack{"6.1", "came with Linux 6.2; IBTA A19", []ownTest{{"transport", "TestResponderFlush"}, {"roce", "TestAtomics"}, {"roce", "TestPersistentFlush"}}}
	regLack         = &lack{"", "programs in user space cannot post it (rdma-core has no such verb); IBTA 10.6.3", []ownTest{{"transport", "TestLocalOperations"}, {"roce", "TestFastRegistration"}}}
	migrationLack   = &lack{"", "it answers one (IBTA 17.2.8), but has no alternate path", []ownTest{{"transport", "TestMigrationStates"}, {"roce", "TestMigration"}}}
	escapeLack      = &lack{"", "it has no alternate path; IBTA 17.2.8", []ownTest{{"transport", "TestMigrationExhausted"}, {"transport", "TestMigrationPathCut"}}}
	xrcLack         = &lack{"", "its queue pairs are RC, UC, UD and GSI (rxe_qp.c); IBTA A14", []ownTest{{"transport", "TestXRCInitiator"}, {"transport", "TestXRCTarget"}, {"roce", "TestXRCOperations"}}}
)

// operations are all rows, in the order of the table.
var operations = func() (all []operation) {
	add := func(ours, rxes *lack, names ...string) {
		for _, n := range names {
			all = append(all, operation{use{n, false}, ours}, operation{use{n, true}, rxes})
		}
	}
	add(nil, nil, "RC SEND", "RC SEND_IMM", "RC SEND_INV", "RC WRITE", "RC WRITE_IMM", "RC READ", "RC FETCH_ADD", "RC CMP_SWAP")
	add(atomicWriteLack, atomicWriteLack, "RC ATOMIC_WRITE")
	add(flushLack, flushLack, "RC FLUSH global", "RC FLUSH persistent")
	add(nil, nil, "RC BIND_MW type 1", "RC BIND_MW type 2", "RC LOCAL_INV")
	add(regLack, regLack, "RC REG_MR")
	add(nil, nil, "UC SEND", "UC SEND_IMM", "UC WRITE", "UC WRITE_IMM", "UD SEND", "UD SEND_IMM", usesMulticast, usesSRQ)
	add(nil, migrationLack, usesMigration)
	add(escapeLack, escapeLack, "path migration after lost retries")
	add(xrcLack, xrcLack, "XRC")
	return all
}()

// lacks says whether the kernel has no such operation.
func (o operation) lacks(release string) bool {
	if o.lack == nil || o.lack.newest == "" {
		return o.lack != nil
	}
	var major, minor int
	fmt.Sscanf(o.lack.newest, "%d.%d", &major, &minor)
	return !newerThan(release, major, minor)
}

// note remembers what a request to a verbs peer uses.
func (e *end) note(c *testCase, r wire.Request) {
	switch r.Op {
	case "qp":
		e.services[r.QP] = "RC"
		if r.Service != "" {
			e.services[r.QP] = r.Service
		}
	case "mw":
		e.windows[r.MW] = r.Type
	case "migrate":
		c.use(usesMigration, e.side.rxe)
	case "recv":
		if r.SRQ != 0 {
			c.use(usesSRQ, e.side.rxe)
		}
	case "send":
		for _, wr := range r.WRs {
			name := e.services[r.QP] + " " + wr.Verb
			switch wr.Verb {
			case "BIND_MW":
				name += fmt.Sprintf(" type %d", e.windows[wr.MW])
			case "FLUSH":
				for _, place := range wr.Access {
					c.use(name+strings.Replace(place, "flush_", " ", 1), e.side.rxe)
				}
				continue
			}
			c.use(name, e.side.rxe)
		}
	}
}

// use remembers that the case uses an operation.
func (c *testCase) use(name string, rxe bool) {
	if u := (use{name, rxe}); !slices.Contains(c.uses, u) {
		c.uses = append(c.uses, u)
	}
}

// runOwnTests runs the tests that stand for what rxe lacks, and says which passed.
func runOwnTests(t *testing.T, ctx context.Context) map[ownTest]bool {
	t.Helper()
	names := map[string][]string{}
	for _, o := range operations {
		for _, test := range o.lack.own() {
			if !slices.Contains(names[test.pkg], test.name) {
				names[test.pkg] = append(names[test.pkg], test.name)
			}
		}
	}
	passed := map[ownTest]bool{}
	for pkg, tests := range names {
		cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-run", "^("+strings.Join(tests, "|")+")$", "./"+pkg)
		cmd.Dir = root(t)
		out, err := cmd.CombinedOutput()
		sc := bufio.NewScanner(bytes.NewReader(out))
		for sc.Scan() {
			if f := strings.Fields(sc.Text()); len(f) > 2 && strings.HasPrefix(sc.Text(), "--- PASS: ") {
				passed[ownTest{pkg, f[2]}] = true
			}
		}
		for _, name := range tests {
			if !passed[ownTest{pkg, name}] {
				t.Errorf("%s %s has not passed (%v):\n%s", pkg, name, err, out)
			}
		}
	}
	return passed
}

// operationTable is the part of the document that says of each operation where it was tried.
func operationTable(b *strings.Builder, results []result, kernels []string, passed map[ownTest]bool) {
	b.WriteString("| operation | posted by |" + headings(kernels) + " what rxe lacks: two of us |\n|---|---|---|" + strings.Repeat("---|", len(kernels)) + "\n")
	for _, o := range operations {
		by, own := "us", ""
		if o.rxe {
			by = "rxe"
		}
		if o.lack != nil {
			own = o.lack.why
			for _, test := range o.lack.tests {
				verdict := "ok"
				if !passed[test] {
					verdict = "**not passed**"
				}
				own += fmt.Sprintf("; %v %s", test, verdict)
			}
		}
		fmt.Fprintf(b, "| %s | %s |", o.name, by)
		for _, k := range kernels {
			cell := tally(results, k, o.use)
			if cell == "" {
				cell = "**not run**"
				if o.lacks(k) {
					cell = "rxe lacks it"
				}
			}
			b.WriteString(" " + cell + " |")
		}
		b.WriteString(" " + own + " |\n")
	}
}

// programTable is the same for programs of others.
func programTable(b *strings.Builder, results []result, kernels []string) {
	var rows []use
	for _, r := range results {
		for _, u := range r.uses {
			if !slices.ContainsFunc(operations, func(o operation) bool { return o.name == u.name }) && !slices.Contains(rows, u) {
				rows = append(rows, u)
			}
		}
	}
	b.WriteString("| program | serves |" + headings(kernels) + "\n|---|---|" + strings.Repeat("---|", len(kernels)) + "\n")
	for _, u := range rows {
		serves := "we"
		if u.rxe {
			serves = "it"
		}
		fmt.Fprintf(b, "| %s | %s |", u.name, serves)
		for _, k := range kernels {
			cell := tally(results, k, u)
			if cell == "" {
				cell = "not run"
			}
			b.WriteString(" " + cell + " |")
		}
		b.WriteString("\n")
	}
}

func headings(kernels []string) (s string) {
	for _, k := range kernels {
		s += " " + k + " |"
	}
	return s
}

// tally says how many cases of a kernel that use u have passed, and in which groups they are.
func tally(results []result, kernel string, u use) string {
	passed, all := 0, 0
	var groups []string
	for _, r := range results {
		if r.kernel != kernel || !slices.Contains(r.uses, u) {
			continue
		}
		all++
		if r.ok {
			passed++
		}
		if !slices.Contains(groups, r.group) {
			groups = append(groups, r.group)
		}
	}
	switch {
	case all == 0:
		return ""
	case passed < all:
		return fmt.Sprintf("**%d of %d** (%s)", passed, all, strings.Join(groups, ", "))
	}
	return fmt.Sprintf("%d of %d (%s)", passed, all, strings.Join(groups, ", "))
}

// uncovered names the operations that a whole run has not tried although the kernel has them.
func uncovered(results []result, kernels []string) (missing []string) {
	for _, o := range operations {
		for _, k := range kernels {
			if !o.lacks(k) && tally(results, k, o.use) == "" {
				missing = append(missing, fmt.Sprintf("%s posted by rxe %t on %s", o.name, o.rxe, k))
			}
		}
	}
	return missing
}
