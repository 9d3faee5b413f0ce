//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
)

// replaceBetween puts text between the markers of a name in a document:
// <!-- bench NAME --> and <!-- end NAME -->, each on a line of its own.
func replaceBetween(file, name string, text []byte) error {
	doc, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := []byte("<!-- bench "+name+" -->\n"), []byte("<!-- end "+name+" -->\n")
	head, rest, ok := bytes.Cut(doc, begin)
	if !ok {
		return fmt.Errorf("%s has no line %q", file, begin)
	}
	_, tail, ok := bytes.Cut(rest, end)
	if !ok {
		return fmt.Errorf("%s has no line %q behind %q", file, end, begin)
	}
	return os.WriteFile(file, bytes.Join([][]byte{head, begin, text, end, tail}, nil), 0o644)
}
