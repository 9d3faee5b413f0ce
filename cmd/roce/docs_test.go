package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var consoleBlock = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

// The commands in the console blocks of the documents run. "&" at the end of a
// line puts it beside the next one; other programs belong into other blocks. The
// demo is shortened, TCP and UDP ports are ones that no other test uses.
func TestDocuments(t *testing.T) {
	blocks := 0
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../../README.md", "../../CONTRIBUTING.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range consoleBlock.FindAllStringSubmatch(string(text), -1) {
			blocks++
			t.Run(strconv.Itoa(blocks), func(t *testing.T) { runBlock(t, m[1]) })
		}
	}
	if blocks < 4 {
		t.Errorf("%d console blocks, the documents had more", blocks)
	}
}

func runBlock(t *testing.T, block string) {
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	type finished struct {
		line string
		outcome
	}
	results := make(chan finished)
	beside := 0
	for _, line := range strings.Split(strings.TrimSpace(block), "\n") {
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue // output
		}
		args, background := strings.CutSuffix(command, " &")
		if server, ok := strings.CutPrefix(args, "roce serve "); ok && background {
			defer w.serving(strings.Fields(server)...)()
			continue
		}
		start := func() finished {
			a, out, err := w.app()
			a.listen = func(context.Context, uint16) (net.Listener, error) { return l, nil }
			args := shorten(t, args, port)
			if args[0] == "ping" || args[0] == "cm" {
				return finished{line, w.knock(t.Context(), args...)}
			}
			status := a.run(t.Context(), args)
			return finished{line, outcome{status, out.String(), err.String()}}
		}
		if background {
			beside++
			go func() { results <- start() }()
			continue
		}
		f := start()
		f.want(t, f.line, 0)
	}
	for range beside {
		f := <-results
		f.want(t, f.line, 0)
	}
}

// shorten makes arguments for app.run from a line of a document.
func shorten(t *testing.T, line, port string) []string {
	words := strings.Fields(strings.Replace(line, "go run ./cmd/roce", "roce", 1))
	if len(words) < 2 || words[0] != "roce" {
		t.Fatalf("not a command of ours: %s", line)
	}
	switch args := words[1:]; args[0] {
	case "demo":
		return append(args, "--budget", "1ms", "--size-max", "4096", "--pcap", t.TempDir()+"/x")
	case "dump": // documents name files from the top of the checkout
		return append(args[:len(args)-1:len(args)-1], "../../"+args[len(args)-1])
	case "pingpong", "perf":
		return append(args, "-p", port, "-n", "50")
	default:
		return args
	}
}
