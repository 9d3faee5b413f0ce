//go:build linux

package interop

import (
	"strings"
	"time"
)

// begin starts a program of a case, which is killed when the case is over.
func (c *testCase) begin(side *side, argv ...string) program {
	c.Helper()
	c.Logf("%s: %s", side.name, strings.Join(argv, " "))
	p, err := side.start(argv...)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(p.Kill)
	return p
}

// says waits for a program's output.
func (c *testCase) says(p program, text string) {
	c.Helper()
	for end := time.Now().Add(20 * time.Second); !strings.Contains(p.Stdout(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("never says %q:\n%s%s", text, p.Stdout(), p.Stderr())
		}
	}
}

// ends waits until a program has ended, with success.
func (c *testCase) ends(p program) {
	c.Helper()
	c.endsWithin(p, 40*time.Second)
}

// endsWithin is ends for a program that may take its time.
func (c *testCase) endsWithin(p program, timeout time.Duration) {
	c.Helper()
	if exit, err := p.Wait(timeout); exit != 0 || err != nil {
		c.Errorf("exit status %d (%v):\n%s%s", exit, err, p.Stdout(), p.Stderr())
	}
}
