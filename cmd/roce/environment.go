package main

import (
	"fmt"
	"os"

	"github.com/goroce/goroce/roce"
)

// offloadEnv is the environment variable that says whether devices use segmentation
// and coalescing of UDP: on, the default, off, or gso or gro for that one alone.
const offloadEnv = "GOROCE_OFFLOAD"

// environment puts into the configuration of a device what the environment asks for:
// stat may look at it, and packets leave and come one by one.
func environment(cfg roce.Config) (roce.Config, error) {
	if cfg.StatDir == "" {
		cfg.StatDir = os.Getenv(statEnv)
	}
	switch v := os.Getenv(offloadEnv); v {
	case "", "on":
	case "off", "gso", "gro":
		cfg.NoGSO, cfg.NoGRO = v != "gso", v != "gro"
	default:
		return cfg, fmt.Errorf("%s is %q: allowed are on, off, gso and gro", offloadEnv, v)
	}
	return cfg, nil
}

// openDevice opens a device as the environment asks for.
func openDevice(cfg roce.Config) (*roce.Device, error) {
	cfg, err := environment(cfg)
	if err != nil {
		return nil, err
	}
	return roce.Open(cfg)
}
