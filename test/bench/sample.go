//go:build linux

package main

import (
	"context"
	"slices"
	"time"
)

// A sample is the result of one run.
type sample struct {
	Value         float64 `json:"value"` // in the subject's unit; of latencies the median
	P99           float64 `json:"p99,omitempty"`
	P999          float64 `json:"p999,omitempty"`
	SendNs        float64 `json:"client_ns_per_message,omitempty"` // processor time
	RecvNs        float64 `json:"server_ns_per_message,omitempty"`
	Bytes         int     `json:"bytes,omitempty"`         // of a message
	Retransmitted float64 `json:"retransmitted,omitempty"` // of the packets sent
}

// perMessage notes what n messages have cost on both sides.
func (s *sample) perMessage(n uint64, bytes int, o outcome) {
	s.Bytes = bytes
	s.SendNs = float64(o.clientCPU/time.Nanosecond) / float64(n)
	s.RecvNs = float64(o.serverCPU/time.Nanosecond) / float64(n)
}

// A subject is something that is measured several times.
type subject struct {
	ID      string   `json:"id"`
	What    string   `json:"what"`
	Unit    string   `json:"unit"`
	Samples []sample `json:"samples"`
	player  player
}

type player interface {
	play(ctx context.Context, l *testLab) (sample, error)
}

// Units.
const (
	gbit = "Gbit/s"
	usec = "us"
	mmsg = "M messages/s"
)

// median returns the median of a number of each sample.
func (s *subject) median(of func(sample) float64) float64 {
	var all []float64
	for _, x := range s.Samples {
		all = append(all, of(x))
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	mid := len(all) / 2
	if len(all)%2 == 1 {
		return all[mid]
	}
	return (all[mid-1] + all[mid]) / 2
}

func value(s sample) float64  { return s.Value }
func p99(s sample) float64    { return s.P99 }
func p999(s sample) float64   { return s.P999 }
func again(s sample) float64  { return s.Retransmitted }
func sendNs(s sample) float64 { return s.SendNs }
func recvNs(s sample) float64 { return s.RecvNs }
