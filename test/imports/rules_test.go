package imports

import (
	"fmt"
	"slices"
	"strings"
)

const module = "github.com/goroce/goroce"

// A pkg is what the rules need to know about one package of the module, in the
// words of `go list -json`.
type pkg struct {
	ImportPath   string
	Imports      []string
	Deps         []string // all packages reached through Imports
	TestImports  []string
	XTestImports []string
	Error        *struct{ Err string }
}

// A layer says what one part of the tree may import of the rest of it.
// Packages of a layer may import packages of the same layer.
type layer struct {
	prefix string   // package path below the module, with everything below it
	below  []string // prefixes of the other layers that it may import
	pure   bool     // standard library only, and of it nothing that knows a network, a clock or an operating system
	atomic bool     // pure, but with sync/atomic
	cgo    bool     // may import C
}

// layers is docs/architecture.md, "Imports". The longest prefix that fits a
// package decides.
var layers = []layer{
	{prefix: "ib", pure: true},
	{prefix: "ib/layers", below: []string{"ib"}},
	{prefix: "mem", pure: true, atomic: true},
	{prefix: "transport", below: []string{"mem", "ib"}, pure: true, atomic: true},
	{prefix: "roce/netio", below: []string{"mem", "ib"}},
	{prefix: "roce", below: []string{"transport", "roce/netio", "mem", "ib"}},
	{prefix: "roce/rdmacm", below: []string{"roce", "roce/rnet", "transport", "roce/netio", "mem", "ib"}},
	{prefix: "roce/rnet", below: []string{"roce", "roce/rdmacm", "transport", "roce/netio", "mem", "ib"}},
	{prefix: "roce/rocetest", below: []string{"roce", "roce/rdmacm", "roce/rnet", "transport", "roce/netio", "mem", "ib"}},
	{prefix: "cmd", below: []string{"*"}},
	{prefix: "cmd/dropin", below: []string{"*"}, cgo: true},
	{prefix: "test", below: []string{"*"}, cgo: true},
}

// pureForbidden is what a pure layer imports neither directly nor as a
// subpackage; pureAllowed are the exceptions. "sync" covers sync/atomic, which
// layers with atomic set may have.
var (
	pureForbidden = []string{"net", "log", "os", "sync", "syscall", "context", "runtime/cgo", "plugin", "testing"}
	pureAllowed   = []string{"net/netip"}
)

// thirdParty says which layers may import a foreign package directly. A
// foreign package that no line names is for cmd and test alone.
var thirdParty = []struct {
	prefix string
	layers []string
}{
	{"github.com/gopacket/gopacket", []string{"ib/layers", "cmd", "test"}},
	{"golang.org/x/sys", []string{"roce", "roce/netio", "cmd", "test"}},
	{"golang.org/x/net", []string{"roce", "roce/netio", "cmd", "test"}},
	{"github.com/vishvananda/netlink", []string{"roce", "roce/netio", "cmd", "test"}},
	{"github.com/vishvananda/netns", []string{"roce", "roce/netio", "cmd", "test"}},
	{"", []string{"cmd", "test"}},
}

// testTools may be imported by the tests of any package.
var testTools = []string{"github.com/google/go-cmp", "pgregory.net/rapid", "golang.org/x/net/nettest"}

// under reports whether path is prefix or a package below it.
func under(path, prefix string) bool {
	return prefix == "" || path == prefix || strings.HasPrefix(path, prefix+"/")
}

// local returns the path below the module, and whether path is in the module.
func local(path string) (string, bool) {
	return strings.TrimPrefix(path, module+"/"), under(path, module)
}

// layerOf returns the layer of a package of the module, nil when it has none.
func layerOf(path string) *layer {
	rel, _ := local(path)
	var best *layer
	for i := range layers {
		if l := &layers[i]; under(rel, l.prefix) && (best == nil || len(l.prefix) > len(best.prefix)) {
			best = l
		}
	}
	return best
}

// isStandard reports whether path is a package of the standard library: the
// first element of any other has a dot.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// check returns one line for each violation in the packages of the module;
// packages of others are looked at only as what these import.
func check(pkgs []pkg) []string {
	var bad []string
	say := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	for _, p := range pkgs {
		if _, ours := local(p.ImportPath); !ours {
			continue
		}
		l := layerOf(p.ImportPath)
		if l == nil {
			say("%s is in no layer: the top level is fixed, and a new part needs a line in docs/architecture.md and here", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			if why := judge(l, imp); why != "" {
				say("%s imports %s: %s", p.ImportPath, imp, why)
			}
		}
		for _, dep := range p.Deps {
			if why := judgeDep(l, dep); why != "" && !slices.Contains(p.Imports, dep) {
				say("%s depends on %s: %s", p.ImportPath, dep, why)
			}
		}
		for _, imp := range slices.Concat(p.TestImports, p.XTestImports) {
			if why := judgeTest(l, imp); why != "" {
				say("the tests of %s import %s: %s", p.ImportPath, imp, why)
			}
		}
	}
	return bad
}

// judge says what is wrong with a direct import, or "".
func judge(l *layer, imp string) string {
	if _, ours := local(imp); ours {
		return judgeLocal(l, imp)
	}
	if imp == "C" {
		if l.cgo {
			return ""
		}
		return "cgo belongs to cmd/dropin and test alone"
	}
	if !isStandard(imp) {
		return judgeForeign(l, imp)
	}
	if !l.pure || slices.Contains(pureAllowed, imp) || l.atomic && imp == "sync/atomic" {
		return ""
	}
	for _, f := range pureForbidden {
		if under(imp, f) {
			return l.prefix + " is pure: no network, clock, log, lock or operating system"
		}
	}
	return ""
}

func judgeLocal(l *layer, imp string) string {
	to := layerOf(imp)
	if to == nil || to == l || slices.Contains(l.below, to.prefix) || slices.Contains(l.below, "*") {
		return ""
	}
	return fmt.Sprintf("imports point down only, and %s is not below %s", to.prefix, l.prefix)
}

func judgeForeign(l *layer, imp string) string {
	for _, t := range thirdParty {
		if !under(imp, t.prefix) {
			continue
		}
		if slices.ContainsFunc(t.layers, func(name string) bool { return name == l.prefix || name == "cmd" && under(l.prefix, name) }) {
			return ""
		}
		return "only " + strings.Join(t.layers, ", ") + " may"
	}
	return ""
}

// judgeDep says what is wrong with an indirect dependency, or "". What the
// standard library or an allowed foreign package imports is their business,
// except that gopacket stays out of everything that users link, and that pure
// layers have no foreign dependency by any way.
func judgeDep(l *layer, dep string) string {
	if _, ours := local(dep); ours {
		return judgeLocal(l, dep)
	}
	switch {
	case isStandard(dep):
		return ""
	case l.pure:
		return l.prefix + " depends on the standard library alone"
	case under(dep, "github.com/gopacket/gopacket"), under(dep, "github.com/google/gopacket"):
		return judgeForeign(l, dep)
	}
	return ""
}

// judgeTest says what is wrong with an import of a test file, or "". Tests may
// use the whole standard library and every package of the module (the compiler
// refuses cycles), but of foreign packages only the test tools and what their
// package may import anyway.
func judgeTest(l *layer, imp string) string {
	if _, ours := local(imp); ours || isStandard(imp) {
		return ""
	}
	for _, t := range testTools {
		if under(imp, t) {
			return ""
		}
	}
	return judgeForeign(l, imp)
}
