//go:build linux && !race

package dropin

import "testing"

// A program of ours, testdata/chaos.c: threads that make, use and destroy everything,
// each byte compared.
func TestChaos(t *testing.T) {
	program, threads, seconds := compile(t, "chaos"), "8", "1"
	if *all {
		threads, seconds = "32", "60"
	}
	contains(t, client.run(t, program, threads, seconds), `^\d+ rounds, right\n$`)
}
