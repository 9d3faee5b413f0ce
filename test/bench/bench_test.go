//go:build linux

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func measured(values ...float64) *subject {
	s := &subject{Unit: gbit}
	for _, v := range values {
		s.Samples = append(s.Samples, sample{Value: v})
	}
	return s
}

// A subject stands for its median, of an even number for the middle of both.
func TestMedian(t *testing.T) {
	for want, s := range map[float64]*subject{2: measured(9, 1, 2), 3: measured(1, 2, 4, 9), 0: measured()} {
		if got := s.median(value); got != want {
			t.Errorf("%v: %v, want %v", s.Samples, got, want)
		}
	}
}

// A target is judged by the ratio of two medians; without one of them there is no line.
func TestTargets(t *testing.T) {
	var b strings.Builder
	printTargets(&b, map[string]*subject{"write": measured(26, 1, 30), "tcp": measured(20), "limit": measured(40, 50, 60)})
	for _, want := range []string{
		"| WRITE 1 MiB, MTU 4096, one QP, to TCP | 1.30 | at least 1.30 | yes |\n",
		"| the same to the limit program | 0.52 | at least 0.85 | no |\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if n := strings.Count(b.String(), "\n"); n != 4 {
		t.Errorf("%d lines, want head, rule and 2", n)
	}
}

// Every target names subjects that are measured.
func TestTargetsAreMeasured(t *testing.T) {
	p := part{groups: targetGroups(&testLab{})}
	by := p.byID()
	for _, tt := range targets {
		for _, id := range []string{tt.id, tt.of} {
			if by[id] == nil && id != "" && !strings.HasPrefix(id, "ucx") {
				t.Errorf("%s: there is no subject %q", tt.what, id)
			}
		}
	}
}

// What is between the markers is replaced, everything else stays.
func TestReplaceBetween(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.md")
	const head, tail = "a\n<!-- bench x -->\n", "<!-- end x -->\nb\n<!-- bench y -->\nz\n<!-- end y -->\n"
	if err := os.WriteFile(file, []byte(head+"old\n"+tail), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := replaceBetween(file, "x", []byte("new\n")); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(file); string(got) != head+"new\n"+tail {
		t.Errorf("%q", got)
	}
	if err := replaceBetween(file, "w", nil); err == nil {
		t.Error("markers that are not there are found")
	}
}

// The document has a place for each part.
func TestDocumentHasAllParts(t *testing.T) {
	doc, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(allParts(&testLab{}), rxePart("", "", "")) {
		for _, marker := range []string{"\n<!-- bench " + p.name + " -->\n", "\n<!-- end " + p.name + " -->\n"} {
			if strings.Count(string(doc), marker) != 1 {
				t.Errorf("no single line %q", marker)
			}
		}
	}
}

// A chart is XML with a point for each size.
func TestChart(t *testing.T) {
	c := chart{title: "t", sizes: []int{64, 1024, 1 << 20}, lines: []chartLine{{"a", []float64{1, 2, 17}}}, levels: []chartLine{{"b", []float64{9}}}}
	text := string(c.svg())
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{">1 KiB<", ">1 MiB<", ">64 B<", ">20<", "points=\"60.0,"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// Numbers are found in the tables of perftest.
func TestPerftestCell(t *testing.T) {
	const out = "---\n #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n 65536      400              0.52               0.51\t\t   0.000966\n---\n"
	if v, err := perftestCell(out, columnAverage); err != nil || v != 0.51 {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := perftestCell("nothing", columnAverage); err == nil {
		t.Error("a row is found in nothing")
	}
}
