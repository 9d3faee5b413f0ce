//go:build race

package ib

// raceEnabled: the race detector makes some code allocate.
const raceEnabled = true
