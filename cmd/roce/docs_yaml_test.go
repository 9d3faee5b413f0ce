package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// githubWorkflow and gitlabJob are the parts of their formats that the documents use;
// what is not here is a mistake.
type githubWorkflow struct {
	Jobs map[string]struct {
		RunsOn string `yaml:"runs-on"`
		Steps  []struct {
			Uses string
			With map[string]string
			Run  string
		}
	}
}

type gitlabJob struct {
	Image  string
	Script []string
}

// The snippets for continuous integration in docs/quickstart.md are of their format, and
// their lines of roce run.
func TestCISnippets(t *testing.T) {
	text, err := os.ReadFile("../../docs/quickstart.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllSubmatch(text, -1)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of YAML, want those of GitHub and of GitLab", len(blocks))
	}
	var lines []string
	var workflow githubWorkflow
	decode(t, blocks[0][1], &workflow)
	for name, job := range workflow.Jobs {
		if job.RunsOn == "" || len(job.Steps) == 0 {
			t.Errorf("job %s: %+v", name, job)
		}
		for _, s := range job.Steps {
			if (s.Uses == "") == (s.Run == "") || s.Uses != "" && !regexp.MustCompile(`^[\w-]+/[\w-]+@v\d+$`).MatchString(s.Uses) {
				t.Errorf("step %+v: one of uses and run is needed", s)
			}
			lines = append(lines, s.Run)
		}
	}
	var pipeline map[string]gitlabJob
	decode(t, blocks[1][1], &pipeline)
	for name, job := range pipeline {
		if job.Image == "" || len(job.Script) == 0 {
			t.Errorf("job %s: %+v", name, job)
		}
		lines = append(lines, job.Script...)
	}
	ours := 0
	for _, line := range lines {
		if args, ok := strings.CutPrefix(line, "go run ./cmd/roce "); ok {
			ours++
			newWorld(t).run(strings.Fields(args)...).want(t, line, 0)
		} else if !slices.Contains([]string{"", "go test ./..."}, line) {
			t.Errorf("%q is run by no test", line)
		}
	}
	if ours != 2 {
		t.Errorf("%d lines of roce in %q", ours, lines)
	}
}

// decode refuses fields that are not known.
func decode(t *testing.T, text []byte, v any) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
}
