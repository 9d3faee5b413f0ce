package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each command that help lists has a man page with its flags, and the date that a
// reproducible build asks for.
func TestManPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1764374400")
	dir := t.TempDir()
	w := newWorld(t)
	w.run("man", dir).want(t, "man", 0)
	help := w.run("--help")
	help.want(t, "--help", 0)
	_, list, _ := strings.Cut(help.out, "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	commands := 0
	for _, line := range strings.Split(list, "\n") {
		name := strings.Fields(line)[0]
		if name == "help" {
			continue
		}
		commands++
		page, err := os.ReadFile(filepath.Join(dir, "roce-"+name+".1"))
		if err != nil {
			t.Error(err)
			continue
		}
		if text := string(page); !strings.Contains(text, "Nov 2025") || !strings.HasPrefix(text, ".nh\n.TH \"ROCE-"+strings.ToUpper(name)+"\" \"1\"") || !strings.Contains(text, ".SH SYNOPSIS") || !strings.Contains(text, "roce-"+name) && !strings.Contains(text, `roce\-`+name) {
			t.Errorf("%s:\n%s", name, page)
		}
	}
	if commands < 9 {
		t.Errorf("%d commands in\n%s", commands, help.out)
	}
	w.run("man").want(t, "man without a directory", 2)
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	w.run("man", dir).want(t, "man of no date", 1)
}
