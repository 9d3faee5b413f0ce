package rocetest_test

import (
	_ "embed"
	"os"
	"strings"
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rocetest"
)

//go:embed readme_test.go
var thisFile string

// The lines of README.md and of docs/quickstart.md.
func TestHello(t *testing.T) {
	a, b := rocetest.Pair(t)
	b.QP.PostRecv(roce.RecvWR{SGE: []roce.SGE{b.MR.SGE(0, 64)}})
	copy(a.MR.Bytes(), "hello")
	a.QP.PostSend(roce.SendWR{Opcode: roce.WRSend, Flags: roce.Signaled, SGE: []roce.SGE{a.MR.SGE(0, 5)}})
	wc := b.Next(t) // wc.ByteLen bytes are in b.MR.Bytes()
	if got := string(b.MR.Bytes()[:wc.ByteLen]); got != "hello" {
		t.Errorf("%q came", got)
	}
}

// The documents have the lines of TestHello, and no others.
func TestDocumentsSayHello(t *testing.T) {
	_, body, _ := strings.Cut(thisFile, "func TestHello(t *testing.T) {\n")
	body, _, _ = strings.Cut(body, "\tif got")
	for file, want := range map[string]string{
		"../../README.md":          strings.ReplaceAll(body[1:], "\n\t", "\n"),
		"../../docs/quickstart.md": "func TestHello(t *testing.T) {\n" + body + "}\n",
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\n```go\n"+want+"```\n") {
			t.Errorf("%s has not\n%s", file, want)
		}
	}
}
