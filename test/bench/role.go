//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"time"
)

// The baselines run in processes of their own, as roce perf does: this program with
// the name of a role and its arguments. The server listens on rolePort, where the
// client connects: the test lasts as long as the connection, and the client prints a
// roleReport.

const rolePort = 18600

// streamFor is how long throughput is measured.
const streamFor = time.Second

type roleReport struct {
	Messages uint64        `json:"messages"`
	Bytes    uint64        `json:"bytes"` // of payload, that have arrived
	Took     time.Duration `json:"took"`
	P50      float64       `json:"p50"` // us
	P99      float64       `json:"p99"`
	P999     float64       `json:"p999"`
}

// A role is one end of a baseline: control is connected to the other one.
type role struct {
	server func(control net.Conn, args []string) error
	client func(control net.Conn, args []string) (roleReport, error)
}

var roles = map[string]role{
	"udp-stream":   {udpStreamServer, udpStreamClient},
	"udp-pingpong": {udpPingPongServer, udpPingPongClient},
	"tcp-stream":   {tcpStreamServer, tcpStreamClient},
	"tcp-pingpong": {tcpPingPongServer, tcpPingPongClient},
	"beside":       {besideServer, besideClient},
}

// runRole is main in such a process: role, "server" or "client", the addresses of
// server and client, arguments.
func runRole(args []string) error {
	r, ok := roles[args[0]]
	if !ok || len(args) < 4 {
		return fmt.Errorf("no such role: %q", args)
	}
	at := net.JoinHostPort(args[2], strconv.Itoa(rolePort))
	if args[1] == "server" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		control, err := l.Accept()
		if err != nil {
			return err
		}
		return r.server(control, args[4:])
	}
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(args[3])}}
	control, err := from.Dial("tcp", at)
	if err != nil {
		return err
	}
	report, err := r.client(control, args[4:])
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

// baseline is a subject that runs in a role.
type baseline struct {
	on     *network
	role   string
	args   []string
	metric func(r *roleReport, s *sample)
}

func roleGbits(r *roleReport, s *sample) {
	s.Value = float64(r.Bytes) * 8 / float64(r.Took.Nanoseconds())
}
func roleUsecs(r *roleReport, s *sample) { s.Value, s.P99, s.P999 = r.P50, r.P99, r.P999 }

func (b baseline) play(ctx context.Context, _ *testLab) (s sample, err error) {
	self, err := os.Executable()
	if err != nil {
		return s, err
	}
	argv := func(side string) []string {
		return append([]string{self, b.role, side, b.on.server.addr, b.on.client.addr}, b.args...)
	}
	o, err := b.on.play(ctx, rolePort, argv("server"), argv("client"))
	if err != nil {
		return s, err
	}
	var r roleReport
	if err := json.Unmarshal(o.client, &r); err != nil {
		return s, err
	}
	if r.Messages == 0 {
		return s, errors.New(b.role + " has measured nothing")
	}
	b.metric(&r, &s)
	if b.role != "beside" { // what it costs is the stream's
		s.perMessage(r.Messages, int(r.Bytes/r.Messages), o)
	}
	return s, nil
}

// percentiles sets those of times, divided by per.
func (r *roleReport) percentiles(trips []time.Duration, per float64) {
	slices.Sort(trips)
	at := func(rank float64) float64 {
		return float64(trips[int(float64(len(trips)-1)*rank)].Nanoseconds()) / 1e3 / per
	}
	r.Messages, r.P50, r.P99, r.P999 = uint64(len(trips)), at(.5), at(.99), at(.999)
}

const (
	pingPongs = 20000
	warmUps   = 500             // that come before and do not count
	pingLimit = 5 * time.Second // on a machine that is busy otherwise there are fewer
	pingBytes = 8
)

// pingPong measures halves of round trips.
func pingPong(trip func() error) (r roleReport, err error) {
	trips, err := measureTrips(trip)
	if err == nil {
		r.percentiles(trips, 2)
	}
	return r, err
}

// measureTrips measures how long each of many trips takes.
func measureTrips(trip func() error) ([]time.Duration, error) {
	trips := make([]time.Duration, 0, warmUps+pingPongs)
	for start := time.Now(); len(trips) < cap(trips) && (len(trips) <= warmUps || time.Since(start) < pingLimit); {
		begin := time.Now()
		if err := trip(); err != nil {
			return nil, err
		}
		trips = append(trips, time.Since(begin))
	}
	return trips[warmUps:], nil
}
