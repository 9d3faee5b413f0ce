package nvme

import (
	"errors"
	"testing"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// dial makes a queue of a host by hand.
func (l *lab) dial(id uint16) *hostQueue {
	l.Helper()
	q, err := dialQueue(l.ctx, "10.0.0.2:4420", HostConfig{Device: l.here}, queueConfig{id: id, size: 8, maxData: 4096})
	must(l.T, err)
	l.Cleanup(func() { q.close(l.ctx) })
	return q
}

func TestConnectIsChecked(t *testing.T) {
	l := newLab(t, TargetConfig{})
	h := l.connect(HostConfig{SubNQN: subsystem, HostNQN: "nqn.2026-11.test:host"})
	q0, q1, q9 := l.dial(0), l.dial(1), l.dial(9)
	good := connectData{CNTLID: cntlidDynamic, SubNQN: makeName(subsystem), HostNQN: makeName("nqn.2026-11.test:host")}
	join := good
	join.CNTLID = h.data.CNTLID
	for _, c := range []struct {
		what   string
		q      *hostQueue
		id     uint16
		change func(*connectData)
		data   connectData
		want   Status
		result uint64
	}{
		{"another queue than the connection's", q0, 1, nil, good, connectInvalidParam, connectOffsetQID},
		{"no such subsystem", q0, 0, func(d *connectData) { d.SubNQN = makeName("nqn.2026-11.test:none") }, good, connectInvalidParam, connectOffsetSubNQN},
		{"no host", q0, 0, func(d *connectData) { d.HostNQN = name{} }, good, connectInvalidParam, connectOffsetHostNQN},
		{"a controller of its choice", q0, 0, func(d *connectData) { d.CNTLID = 7 }, good, connectInvalidParam, connectOffsetCNTLID},
		{"no such controller", q1, 1, func(d *connectData) { d.CNTLID++ }, join, connectInvalidParam, connectOffsetCNTLID},
		{"another host's controller", q1, 1, func(d *connectData) { d.HostNQN = makeName("nqn.2026-11.test:other") }, join, connectInvalidParam, connectOffsetCNTLID},
		{"I/O queue of discovery", q1, 1, func(d *connectData) { d.SubNQN = makeName(DiscoveryNQN) }, join, connectInvalidParam, connectOffsetSubNQN},
		{"a queue that there is", q1, 1, nil, join, connectBusy, 0},
		{"more queues than allowed", q9, 9, nil, join, connectInvalidParam, connectOffsetQID},
	} {
		t.Run(c.what, func(t *testing.T) {
			data := c.data
			if c.change != nil {
				c.change(&data)
			}
			cmd := Command{Opcode: opFabrics, NSID: fabricsConnect, CDW: [6]uint32{uint32(c.id) << 16, 7}}
			got, err := c.q.do(l.ctx, &cmd, encoded(&data), roce.RemoteRead)
			if !errors.Is(err, c.want) || got.Result != c.result {
				t.Errorf("got %v with %#x, want %v with %#x", err, got.Result, c.want, c.result)
			}
		})
	}
	// The head wraps at the size that Connect has said, not at that of the connection.
	q := l.dial(0)
	cmd := Command{Opcode: opFabrics, NSID: fabricsConnect, CDW: [6]uint32{0, 1}}
	for _, want := range []uint16{1, 0, 1} {
		c, err := q.do(l.ctx, &cmd, encoded(&good), roce.RemoteRead)
		if cmd = (Command{Opcode: opFabrics, NSID: fabricsPropertyGet, CDW: [6]uint32{0, propVS}}); err != nil || c.SQHead != want {
			t.Errorf("head %d, want %d, %v", c.SQHead, want, err)
		}
	}
	if _, err := q1.do(l.ctx, &Command{Opcode: opRead, NSID: 1}, make([]byte, 512), roce.RemoteWrite); !errors.Is(err, sequenceError) {
		t.Errorf("a read before Connect: %v, want %v", err, sequenceError)
	}
}

func TestConnectionRequestsAreChecked(t *testing.T) {
	l := newLab(t, TargetConfig{MaxConnections: 1})
	l.connect(HostConfig{})
	for _, c := range []struct {
		what    string
		private cmRequest
		want    CMStatus
	}{
		{"format", cmRequest{Format: 1, HRQSize: 2, HSQSize: 1}, cmInvalidFormat},
		{"no commands", cmRequest{HRQSize: 2}, cmInvalidHSQSize},
		{"33 admin commands", cmRequest{HRQSize: 2, HSQSize: 32}, cmInvalidHSQSize},
		{"129 commands", cmRequest{QID: 1, HRQSize: 2, HSQSize: 128}, cmInvalidHSQSize},
		{"no responses", cmRequest{HSQSize: 1}, cmInvalidHRQSize},
		{"one connection more", cmRequest{HRQSize: 2, HSQSize: 1}, cmNoResources},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, err := rdmacm.Dial(l.ctx, "10.0.0.2:4420", rdmacm.Config{Device: l.here, PrivateData: encoded(&c.private)})
			if err = rejection(err); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}
