package imports

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A test that a document names exists.
func TestDocumentsNameTests(t *testing.T) {
	defined, named := regexp.MustCompile(`(?m)^func (Test\w+)\(`), regexp.MustCompile(`\bTest[A-Z]\w+`)
	exists := map[string]bool{}
	var documents []string
	err := filepath.WalkDir(root(t), func(path string, _ os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.HasSuffix(path, "_test.go"):
			text, err := os.ReadFile(path)
			for _, m := range defined.FindAllSubmatch(text, -1) {
				exists[string(m[1])] = true
			}
			return err
		case strings.HasSuffix(path, ".md"):
			documents = append(documents, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(documents) < 10 || len(exists) < 100 {
		t.Fatalf("%d documents and %d tests found", len(documents), len(exists))
	}
	for _, path := range documents {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range defined.FindAllSubmatch(text, -1) {
			exists[string(m[1])] = true // an example of a test, for readers
		}
		for _, name := range named.FindAllString(string(text), -1) {
			if !exists[name] {
				t.Errorf("%s names %s, which does not exist", path, name)
			}
		}
	}
}
