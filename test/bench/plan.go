//go:build linux

package main

import "encoding/json"

// A group of subjects is measured in turns.
type group struct {
	title    string
	subjects []*subject
}

// MarshalJSON writes the subjects by name.
func (g group) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"title": g.title, "subjects": g.subjects})
}

const mebi = 1 << 20

// targetGroups are what the targets speak of.
func targetGroups(l *testLab) []group {
	v := &l.veth
	bw := func(id, what, test string, flags []string) *subject {
		return &subject{ID: id, What: what, Unit: gbit, player: perf{v, test, append(flags, "-D", "1"), gbits}}
	}
	lat := func(id, what, test string, flags ...string) *subject {
		return &subject{ID: id, What: what, Unit: usec, player: perf{v, test, append(flags, "-n", "20000"), usecs}}
	}
	stream := func(id, what, mode, datagram string) *subject {
		return &subject{ID: id, What: what, Unit: gbit, player: baseline{v, "udp-stream", []string{mode, datagram}, roleGbits}}
	}
	groups := []group{
		{"bandwidth", []*subject{
			bw("write", "WRITE 1 MiB, MTU 4096", "write_bw", size(mebi)),
			bw("write_none", "WRITE 1 MiB, MTU 4096, without congestion control", "write_bw", size(mebi, "--cc", "none")),
			bw("read", "READ 1 MiB, MTU 4096", "read_bw", size(mebi)),
			bw("send", "SEND 1 MiB, MTU 4096", "send_bw", size(mebi)),
			stream("limit", "UDP with GSO and GRO, header, copy and CRC, 4096 + 16 bytes", "limit", "4112"),
			stream("gso", "UDP with GSO and GRO, 4096 + 16 bytes", "gso", "4112"),
			stream("plain", "UDP, 4096 + 16 bytes, 32 per call", "plain", "4112"),
			{ID: "tcp", What: "TCP, one stream, writes of 64 KiB", Unit: gbit, player: baseline{v, "tcp-stream", nil, roleGbits}},
			bw("write1024", "WRITE 1 MiB, MTU 1024", "write_bw", size(mebi, "-m", "1024")),
			stream("limit1024", "UDP with GSO and GRO, header, copy and CRC, 1024 + 16 bytes", "limit", "1040"),
			bw("write64", "WRITE 1 MiB, MTU 4096, 64 QPs", "write_bw", size(mebi, "-q", "64", "-t", "16")),
			bw("stock", "WRITE 1 MiB, MTU 4096, socket buffers of 212,992 bytes", "write_bw", size(mebi, "--socket-buffer", "212992")),
		}},
		{"latency", []*subject{
			lat("write_lat", "WRITE 8 bytes, one way", "write_lat", "-s", "8"),
			lat("send_lat", "SEND 8 bytes, one way", "send_lat", "-s", "8"),
			lat("read_lat", "READ 8 bytes", "read_lat", "-s", "8"),
			lat("atomic_lat", "FetchAdd", "atomic_lat"),
			{ID: "spin", What: "UDP 8 bytes, polling, one way", Unit: usec, player: baseline{v, "udp-pingpong", []string{"spin"}, roleUsecs}},
			{ID: "tcp_lat", What: "TCP 8 bytes, one way", Unit: usec, player: baseline{v, "tcp-pingpong", nil, roleUsecs}},
			{ID: "beside_write", What: "WRITE 8 bytes, completed, beside WRITEs of 1 GiB, loopback", Unit: usec, player: baseline{&l.loopback, "beside", []string{"WRITE", "1"}, roleUsecs}},
			{ID: "beside_read", What: "the same beside READs of 1 GiB", Unit: usec, player: baseline{&l.loopback, "beside", []string{"READ", "1"}, roleUsecs}},
			{ID: "beside_write2", What: "WRITE 8 bytes, completed, beside WRITEs of 1 GiB, loopback, two engines", Unit: usec, player: baseline{&l.loopback, "beside", []string{"WRITE", "2"}, roleUsecs}},
			{ID: "beside_read2", What: "the same beside READs of 1 GiB", Unit: usec, player: baseline{&l.loopback, "beside", []string{"READ", "2"}, roleUsecs}},
			{ID: "rate", What: "WRITE 8 bytes, lists of 64", Unit: mmsg, player: perf{v, "write_bw", size(8, "-l", "64", "-t", "1024", "-D", "1"), mmsgs}},
		}},
	}
	if ucxThere() {
		groups[0].subjects = append(groups[0].subjects,
			&subject{ID: "ucx", What: "UCX put over TCP, 1 MiB", Unit: gbit, player: ucx{v, "ucp_put_bw", mebi, 1000, ucxBandwidth, mebi * 8 / 1e9}})
		groups[1].subjects = append(groups[1].subjects,
			&subject{ID: "ucx_lat", What: "UCX put over TCP, 8 bytes, one way", Unit: usec, player: ucx{v, "ucp_put_lat", 8, 20000, ucxMedian, 1}})
	}
	return groups
}

// A target is a bound on a ratio of two medians, or on one figure.
type target struct {
	what    string
	id, of  string // subjects; of is empty for a figure
	scale   float64
	figure  func(sample) float64
	bound   float64
	atLeast bool
	unit    string // of a figure
}

var targets = []target{
	{what: "WRITE 1 MiB, MTU 4096, one QP, to TCP", id: "write", of: "tcp", bound: 1.3, atLeast: true},
	{what: "the same to the limit program", id: "write", of: "limit", bound: 0.85, atLeast: true},
	{what: "WRITE 1 MiB, MTU 1024, to TCP", id: "write1024", of: "tcp", bound: 0.8, atLeast: true},
	{what: "the same to the limit program", id: "write1024", of: "limit1024", bound: 0.8, atLeast: true},
	{what: "READ 1 MiB to WRITE", id: "read", of: "write", bound: 0.9, atLeast: true},
	{what: "SEND 1 MiB to WRITE", id: "send", of: "write", bound: 0.9, atLeast: true},
	{what: "WRITE 1 MiB with congestion control to without", id: "write", of: "write_none", bound: 0.97, atLeast: true},
	{what: "WRITE 8 bytes one way to half the UDP round trip", id: "write_lat", of: "spin", bound: 1.3},
	{what: "the same, absolute", id: "write_lat", bound: 10, unit: usec},
	{what: "the same to UCX over TCP", id: "write_lat", of: "ucx_lat", bound: 1},
	{what: "SEND 8 bytes round trip to that of UDP", id: "send_lat", of: "spin", bound: 1.5},
	{what: "WRITE 8 bytes, lists of 64, one QP", id: "rate", bound: 2, atLeast: true, unit: mmsg},
	{what: "64 QPs to one", id: "write64", of: "write", bound: 0.95, atLeast: true},
	{what: "8-byte WRITE beside WRITEs of 1 GiB, p99", id: "beside_write", figure: p99, bound: 200, unit: usec},
	{what: "8-byte WRITE beside READs of 1 GiB, p99", id: "beside_read", figure: p99, bound: 200, unit: usec},
	{what: "8-byte WRITE beside WRITEs of 1 GiB, p99, two engines", id: "beside_write2", figure: p99, bound: 200, unit: usec},
	{what: "8-byte WRITE beside READs of 1 GiB, p99, two engines", id: "beside_read2", figure: p99, bound: 200, unit: usec},
	{what: "socket buffers of 212,992 bytes to large ones", id: "stock", of: "write", bound: 0.5, atLeast: true},
	{what: "the same, packets sent again", id: "stock", figure: again, scale: 100, bound: 1, unit: "%"},
}

// value is the target's figure or ratio; ok is false where a subject was not measured.
func (t *target) value(by map[string]*subject) (v float64, ok bool) {
	a := by[t.id]
	if a == nil || len(a.Samples) == 0 {
		return 0, false
	}
	of := value
	if t.figure != nil {
		of = t.figure
	}
	v = a.median(of)
	if t.of != "" {
		b := by[t.of]
		if b == nil || len(b.Samples) == 0 {
			return 0, false
		}
		v /= b.median(value)
	}
	if t.scale != 0 {
		v *= t.scale
	}
	return v, true
}

func (t *target) met(v float64) bool {
	if t.atLeast {
		return v >= t.bound
	}
	return v <= t.bound
}
