package main

import (
	"strings"
	"testing"

	"github.com/goroce/goroce/roce"
)

// The environment switches GSO and GRO off, and names the directory of stat's sockets
// for devices that have none.
func TestEnvironment(t *testing.T) {
	for _, c := range []struct {
		offload, want string
		noGSO, noGRO  bool
	}{
		{"", "", false, false}, {"on", "", false, false}, {"off", "", true, true}, {"gso", "", false, true}, {"gro", "", true, false},
		{"0", `GOROCE_OFFLOAD is "0": allowed are on, off, gso and gro`, false, false},
	} {
		t.Setenv(offloadEnv, c.offload)
		t.Setenv(statEnv, "/here")
		cfg, err := environment(roce.Config{})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || cfg.NoGSO != c.noGSO || cfg.NoGRO != c.noGRO || cfg.StatDir != "/here" {
			t.Errorf("%q: %+v, %v", c.offload, cfg, err)
		}
	}
	if cfg, err := environment(roce.Config{StatDir: "/there"}); err == nil || cfg.StatDir != "/there" {
		t.Errorf("StatDir %q, %v", cfg.StatDir, err)
	}
}
