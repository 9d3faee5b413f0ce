package imports

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// constructor matches the names by which packages for users make things.
var constructor = regexp.MustCompile(`^(Alloc|Connect|Create|Listen|New|Open|Pair|Register|Tap|With)([A-Z]|$)`)

// silent returns one line for each exported constructor of a package that has no
// Example with output, and so is not run. The files are those of the package and of
// its tests, each with its text; nil reads it.
func silent(t *testing.T, sources map[string]any) []string {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	for name, src := range sources {
		f, err := parser.ParseFile(fset, name, src, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	p, err := doc.NewFromFiles(fset, files, "p")
	if err != nil {
		t.Fatal(err)
	}
	var bad []string
	check := func(recv string, list []*doc.Func) {
		for _, f := range list {
			run := false
			for _, e := range f.Examples {
				run = run || e.Output != "" || e.EmptyOutput
			}
			if constructor.MatchString(f.Name) && !run {
				bad = append(bad, recv+f.Name+" has no Example with output")
			}
		}
	}
	check("", p.Funcs)
	for _, t := range p.Types {
		check("", t.Funcs)
		if t.Name != "QP" { // Connect makes nothing
			check(t.Name+".", t.Methods)
		}
	}
	return bad
}

// Each constructor of what programs import has an Example that is run.
func TestConstructorsHaveExamples(t *testing.T) {
	for _, dir := range []string{"roce", "roce/netio", "roce/rocetest"} {
		names, err := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(names), err)
		}
		sources := map[string]any{}
		for _, name := range names {
			sources[name] = nil
		}
		for _, line := range silent(t, sources) {
			t.Errorf("%s: %s", dir, line)
		}
	}
}

// The checker itself.
func TestExampleCheckerFinds(t *testing.T) {
	const p = `package p
type T struct{}
func NewT() *T { return nil }
func (T) CreateU() {}
func (T) Newly() {}
`
	for _, c := range []struct{ name, tests, want string }{
		{"none", ``, "NewT T.CreateU"},
		{"one", "func ExampleNewT() {\n\t// Output: 1\n}", "T.CreateU"},
		{"compiled only", "func ExampleNewT() {}\nfunc ExampleT_CreateU() {\n\t// Output:\n}", "NewT"},
	} {
		bad := silent(t, map[string]any{"p.go": p, "p_test.go": "package p_test\n" + c.tests + "\n"})
		for i := range bad {
			bad[i] = strings.Fields(bad[i])[0]
		}
		if got := strings.Join(bad, " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
