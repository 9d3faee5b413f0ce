package imports

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
)

// clocks are the names of package time that read a clock or wait for one. The
// pure layers are told the time and hand back deadlines.
var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// checkSource returns one line for each use of a clock, each go statement and
// each go:linkname (the back door to both) in a file of a pure layer. src is as
// for parser.ParseFile: nil reads the file.
func checkSource(name string, src any) ([]string, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var bad []string
	say := func(at token.Pos, what string) {
		bad = append(bad, fmt.Sprintf("%s: %s", fset.Position(at), what))
	}

	timeName := "" // what the file calls package time
	for _, imp := range file.Imports {
		path, err := strconv.Unquote(imp.Path.Value)
		if err != nil || path != "time" {
			continue
		}
		timeName = "time"
		if imp.Name != nil {
			timeName = imp.Name.Name
		}
		if timeName == "." {
			say(imp.Pos(), "dot import of time hides its clocks")
		}
	}
	for _, group := range file.Comments {
		for _, c := range group.List {
			if len(c.Text) >= 13 && c.Text[:13] == "//go:linkname" {
				say(c.Pos(), "go:linkname")
			}
		}
	}

	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			say(n.Pos(), "go statement: the pure layers have no goroutine")
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if ok && timeName != "" && x.Name == timeName && slices.Contains(clocks, n.Sel.Name) {
				say(n.Pos(), "time."+n.Sel.Name+": the pure layers get the time as an argument")
			}
		}
		return true
	})
	return bad, nil
}
