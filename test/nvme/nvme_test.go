package nvme

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// The layouts of Linux include/linux/nvme.h.
func TestStructuresHaveTheirSizes(t *testing.T) {
	for _, c := range []struct {
		v    any
		want int
	}{
		{Command{}, 64}, {Completion{}, 16}, {SGL{}, 16}, {cmRequest{}, 32}, {cmReply{}, 32}, {cmReject{}, 4}, {connectData{}, 1024},
		{discoveryHeader{}, 1024}, {DiscoveryEntry{}, 1024}, {ControllerData{}, 4096}, {NamespaceData{}, 4096},
	} {
		if got := binary.Size(c.v); got != c.want {
			t.Errorf("%T has %d bytes, want %d", c.v, got, c.want)
		}
	}
}

func TestFieldsAreWhereTheyBelong(t *testing.T) {
	for _, c := range []struct {
		field  string
		v      any
		offset int
	}{
		{"mdts", &ControllerData{MDTS: 0xa5}, 77}, {"cntlid", &ControllerData{CNTLID: 0xa5}, 78}, {"ver", &ControllerData{Version: 0xa5}, 80},
		{"cntrltype", &ControllerData{Type: 0xa5}, 111}, {"aerl", &ControllerData{AERLimit: 0xa5}, 259}, {"lpa", &ControllerData{LogAttr: 0xa5}, 261},
		{"kas", &ControllerData{KeepAlive: 0xa5}, 320}, {"sqes", &ControllerData{SQEntry: 0xa5}, 512},
		{"maxcmd", &ControllerData{MaxCommands: 0xa5}, 514}, {"nn", &ControllerData{Namespaces: 0xa5}, 516},
		{"sgls", &ControllerData{SGLs: 0xa5}, 536}, {"subnqn", &ControllerData{SubNQN: name{0xa5}}, 768},
		{"ioccsz", &ControllerData{CommandSize: 0xa5}, 1792}, {"iorcsz", &ControllerData{ResponseSize: 0xa5}, 1796},
		{"icdoff", &ControllerData{DataOffset: 0xa5}, 1800}, {"msdbd", &ControllerData{MaxSGL: 0xa5}, 1803},
		{"flbas", &NamespaceData{Format: 0xa5}, 26}, {"nguid", &NamespaceData{NGUID: [16]byte{0xa5}}, 104},
		{"eui64", &NamespaceData{EUI64: 0xa5}, 120},
		{"subsysnqn", &connectData{SubNQN: name{0xa5}}, 256}, {"hostnqn", &connectData{HostNQN: name{0xa5}}, 512},
		{"trsvcid", &DiscoveryEntry{ServiceID: [32]byte{0xa5}}, 32}, {"subnqn", &DiscoveryEntry{SubNQN: name{0xa5}}, 256},
		{"traddr", &DiscoveryEntry{Address: name{0xa5}}, 512}, {"tsas", &DiscoveryEntry{QPType: 0xa5}, 768},
		{"command dword 10", &Command{CDW: [6]uint32{0xa5}}, 40}, {"sgl type", &Command{SGL: SGL{Type: 0xa5}}, 39},
		{"status", &Completion{Status: 0xa5}, 14},
	} {
		if got := bytes.IndexByte(encoded(c.v), 0xa5); got != c.offset {
			t.Errorf("%s of %T is at %d, want %d", c.field, c.v, got, c.offset)
		}
	}
}

func TestDiscover(t *testing.T) {
	l := newLab(t, TargetConfig{})
	entries, err := l.connect(HostConfig{}).Discover(l.ctx)
	must(t, err)
	if len(entries) != 1 {
		t.Fatalf("%d entries, want 1", len(entries))
	}
	e := &entries[0]
	if got := fmt.Sprintln(e.Transport, e.AddressFamily, e.Subsystem, &e.SubNQN, &e.Address, e.Port()); got != "1 1 2 "+subsystem+" 10.0.0.2 4420\n" {
		t.Errorf("got %s", got)
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	l := newLab(t, TargetConfig{})
	h := l.connect(HostConfig{SubNQN: subsystem, KeepAlive: 5 * time.Second})
	ids, err := h.Namespaces(l.ctx)
	must(t, err)
	if len(ids) != 1 || ids[0] != namespaceID {
		t.Fatalf("namespaces %v", ids)
	}
	ns, err := h.Namespace(l.ctx, ids[0])
	must(t, err)
	if ns.BlockSize != blockSize || ns.Data.Blocks != blocks {
		t.Errorf("%d blocks of %d bytes", ns.Data.Blocks, ns.BlockSize)
	}
	for _, c := range []struct {
		what  string
		bytes int
		lba   uint64
	}{
		{"the least, in its capsule", 512, 0},
		{"the most in a capsule", 4096, 1},
		{"the least that is fetched", 4608, 9},
		{"the most of a command", 1 << 20, 100},
		{"two commands", 1<<20 + 512, 4000},
		{"the last block", 512, blocks - 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			want := pattern(make([]byte, c.bytes), int(c.lba))
			must(t, ns.Write(l.ctx, want, c.lba))
			must(t, ns.Flush(l.ctx))
			if !bytes.Equal(l.disk[c.lba*blockSize:][:c.bytes], want) {
				t.Error("not what is on the disk")
			}
			got := make([]byte, c.bytes)
			must(t, ns.Read(l.ctx, got, c.lba))
			if !bytes.Equal(got, want) {
				t.Error("not what is read")
			}
		})
	}
}

// More goroutines than the queue has room for, so that commands wait for each other.
func TestManyAtOnce(t *testing.T) {
	l := newLab(t, TargetConfig{})
	ns, err := l.connect(HostConfig{SubNQN: subsystem, QueueSize: 4}).Namespace(l.ctx, namespaceID)
	must(t, err)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			want, got := pattern(make([]byte, 8192), i), make([]byte, 8192)
			for k := range uint64(8) {
				lba := uint64(i)*128 + k*16
				if err := errors.Join(ns.Write(l.ctx, want, lba), ns.Read(l.ctx, got, lba)); err != nil || !bytes.Equal(got, want) {
					t.Errorf("block %d: equal %v, %v", lba, bytes.Equal(got, want), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// What a command may have wrong is answered, and the queue goes on.
func TestWrongCommandsAreAnswered(t *testing.T) {
	l := newLab(t, TargetConfig{})
	h, disc := l.connect(HostConfig{SubNQN: subsystem}), l.connect(HostConfig{})
	dwords := func(d ...uint32) (c [6]uint32) { copy(c[:], d); return c }
	for _, c := range []struct {
		what string
		q    *hostQueue
		cmd  Command
		data int
		want Status
	}{
		{"unknown admin command", h.admin, Command{Opcode: 0xff}, 0, invalidOpcode},
		{"unknown I/O command", h.io, Command{Opcode: 0xff, NSID: 1}, 0, invalidOpcode},
		{"unknown Fabrics command", h.admin, Command{Opcode: opFabrics, NSID: 0xff}, 0, invalidField},
		{"second Connect", h.admin, Command{Opcode: opFabrics, NSID: fabricsConnect}, 1024, sequenceError},
		{"property on an I/O queue", h.io, Command{Opcode: opFabrics, NSID: fabricsPropertyGet}, 0, invalidField},
		{"unknown property", h.admin, Command{Opcode: opFabrics, NSID: fabricsPropertyGet, CDW: dwords(0, 0x20)}, 0, invalidField},
		{"4 bytes of CAP", h.admin, Command{Opcode: opFabrics, NSID: fabricsPropertyGet, CDW: dwords(0, propCAP)}, 0, invalidField},
		{"set CSTS", h.admin, Command{Opcode: opFabrics, NSID: fabricsPropertySet, CDW: dwords(0, propCSTS)}, 0, invalidField},
		{"identify: unknown structure", h.admin, Command{Opcode: opIdentify, CDW: dwords(0x7f)}, 4096, invalidField},
		{"identify: no such namespace", h.admin, Command{Opcode: opIdentify, NSID: 2}, 4096, invalidNamespace},
		{"identify: no data", h.admin, Command{Opcode: opIdentify, CDW: dwords(cnsController)}, 0, invalidSGLLength},
		{"identify: half of the data", h.admin, Command{Opcode: opIdentify, CDW: dwords(cnsController)}, 2048, invalidSGLLength},
		{"identify: namespaces of discovery", disc.admin, Command{Opcode: opIdentify, CDW: dwords(cnsActive)}, 4096, invalidField},
		{"unknown log", h.admin, Command{Opcode: opGetLogPage, CDW: dwords(0x99)}, 4, invalidLogPage},
		{"discovery log of a disk", h.admin, Command{Opcode: opGetLogPage, CDW: dwords(logDiscovery)}, 4, invalidLogPage},
		{"log: behind its end", h.admin, Command{Opcode: opGetLogPage, CDW: dwords(logSMART, 0, 516)}, 4, invalidField},
		{"log: more than there is room for", h.admin, Command{Opcode: opGetLogPage, CDW: dwords(logSMART | 0xffff<<16)}, 4, invalidField},
		{"unknown feature", h.admin, Command{Opcode: opSetFeatures, CDW: dwords(0xff)}, 0, invalidField},
		{"65536 queues", h.admin, Command{Opcode: opSetFeatures, CDW: dwords(featureQueues, 0xffff)}, 0, invalidField},
		{"read: no such namespace", h.io, Command{Opcode: opRead, NSID: 2}, 512, invalidNamespace},
		{"read: behind the end", h.io, Command{Opcode: opRead, NSID: 1, CDW: dwords(blocks)}, 512, lbaOutOfRange},
		{"read: over the end", h.io, Command{Opcode: opRead, NSID: 1, CDW: dwords(blocks-1, 0, 1)}, 1024, lbaOutOfRange},
		{"read: a block number of 64 bits", h.io, Command{Opcode: opRead, NSID: 1, CDW: dwords(0, 1<<31)}, 512, lbaOutOfRange},
		{"read: more than MDTS", h.io, Command{Opcode: opRead, NSID: 1, CDW: dwords(0, 0, 2048)}, 512, invalidField},
		{"read: too little room", h.io, Command{Opcode: opRead, NSID: 1, CDW: dwords(0, 0, 1)}, 512, invalidSGLLength},
		{"write: no data", h.io, Command{Opcode: opWrite, NSID: 1}, 0, invalidSGLLength},
		{"write: too many data", h.io, Command{Opcode: opWrite, NSID: 1}, 1024, invalidSGLLength},
	} {
		t.Run(c.what, func(t *testing.T) {
			rights := roce.RemoteWrite
			if c.cmd.Opcode == opWrite || c.cmd.Opcode == opFabrics {
				rights = roce.RemoteRead
			}
			if _, err := c.q.do(l.ctx, &c.cmd, make([]byte, c.data), rights); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	ns, err := h.Namespace(l.ctx, namespaceID)
	must(t, err)
	must(t, ns.Write(l.ctx, make([]byte, 512), 0))
}

// Commands that nothing but Linux sends, and what is not there to be told.
func TestAdminCommands(t *testing.T) {
	l := newLab(t, TargetConfig{MaxQueues: 3})
	h := l.connect(HostConfig{SubNQN: subsystem})
	for _, c := range []struct {
		what  string
		cmd   Command
		data  int
		want  uint64
		bytes []byte // the data begin with
	}{
		{"queues", Command{Opcode: opSetFeatures, CDW: [6]uint32{featureQueues, 7<<16 | 7}}, 0, 2<<16 | 2, nil},
		{"events", Command{Opcode: opSetFeatures, CDW: [6]uint32{featureAsync, 0x1234}}, 0, 0x1234, nil},
		{"events again", Command{Opcode: opGetFeatures, CDW: [6]uint32{featureAsync}}, 0, 0x1234, nil},
		{"keep-alive timer", Command{Opcode: opSetFeatures, CDW: [6]uint32{featureKeepAlive, 60000}}, 0, 60000, nil},
		{"keep alive", Command{Opcode: opKeepAlive}, 0, 0, nil},
		{"abort", Command{Opcode: opAbort}, 0, 1, nil},
		{"version", Command{Opcode: opFabrics, NSID: fabricsPropertyGet, CDW: [6]uint32{0, propVS}}, 0, 0x10300, nil},
		{"configuration", Command{Opcode: opFabrics, NSID: fabricsPropertyGet, CDW: [6]uint32{0, propCC}}, 0, ccEntrySizes | ccEnable, nil},
		{"SMART", Command{Opcode: opGetLogPage, CDW: [6]uint32{logSMART | 127<<16}}, 512, 0, []byte{0, 300 & 0xff, 300 >> 8, 100}},
		{"end of SMART", Command{Opcode: opGetLogPage, CDW: [6]uint32{logSMART, 0, 508}}, 4, 0, make([]byte, 4)},
		{"errors", Command{Opcode: opGetLogPage, CDW: [6]uint32{logError | 15<<16}}, 64, 0, make([]byte, 64)},
		{"descriptors", Command{Opcode: opIdentify, NSID: 1, CDW: [6]uint32{cnsDescriptors}}, 4096, 0, append([]byte{2, 16, 0, 0}, l.target.nguid[:]...)},
		{"namespaces behind the last", Command{Opcode: opIdentify, NSID: 1, CDW: [6]uint32{cnsActive}}, 4096, 0, make([]byte, 4096)},
	} {
		t.Run(c.what, func(t *testing.T) {
			data := bytes.Repeat([]byte{0x55}, c.data)
			got, err := h.admin.do(l.ctx, &c.cmd, data, roce.RemoteWrite)
			must(t, err)
			if got.Result != c.want || !bytes.HasPrefix(data, c.bytes) {
				t.Errorf("result %#x, want %#x; data %x", got.Result, c.want, data[:min(len(data), 32)])
			}
		})
	}
}

// Four wait; of more, each is answered.
func TestAsynchronousEventRequestsHaveALimit(t *testing.T) {
	l := newLab(t, TargetConfig{})
	h := l.connect(HostConfig{SubNQN: subsystem})
	answers := make(chan error, asyncEvents+1)
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	for range asyncEvents + 1 {
		go func() {
			_, err := h.admin.do(ctx, &Command{Opcode: opAsyncEvent}, nil, 0)
			answers <- err
		}()
	}
	if err := <-answers; !errors.Is(err, asyncEventLimit) {
		t.Errorf("got %v, want %v", err, asyncEventLimit)
	}
	if _, err := h.Namespaces(l.ctx); err != nil {
		t.Error(err)
	}
}

// Before the host enables the controller it is told so.
func TestAControllerHasToBeEnabled(t *testing.T) {
	l := newLab(t, TargetConfig{})
	h := l.connect(HostConfig{SubNQN: subsystem})
	must(t, h.setCC(l.ctx, ccEntrySizes, cstsReady, 0))
	if _, err := h.Namespaces(l.ctx); !errors.Is(err, sequenceError) {
		t.Errorf("got %v, want %v", err, sequenceError)
	}
	must(t, h.enable(l.ctx))
	if _, err := h.Namespaces(l.ctx); err != nil {
		t.Error(err)
	}
}

// ended waits for the end of a host's admin queue.
func (l *lab) ended(h *Host) {
	l.Helper()
	select {
	case <-h.Done():
	case <-l.ctx.Done():
		l.Fatal("the connection does not end")
	}
}

func TestASilentHostIsGivenUp(t *testing.T) {
	l := newLab(t, TargetConfig{})
	h := l.connect(HostConfig{SubNQN: subsystem})
	cmd := Command{Opcode: opSetFeatures, CDW: [6]uint32{featureKeepAlive, 20}}
	_, err := h.admin.do(l.ctx, &cmd, nil, 0)
	must(t, err)
	l.ended(h)
	<-h.io.done // with all its queues
}

func TestTheTargetEnds(t *testing.T) {
	l := newLab(t, TargetConfig{})
	h := l.connect(HostConfig{SubNQN: subsystem, KeepAlive: time.Second})
	l.close()
	l.ended(h)
	if _, err := h.Namespaces(l.ctx); !errors.Is(err, rdmacm.ErrDisconnected) {
		t.Errorf("got %v, want %v", err, rdmacm.ErrDisconnected)
	}
}

// A controller ends with its admin queue, and gives everything back.
func TestTheHostEnds(t *testing.T) {
	l := newLab(t, TargetConfig{MaxConnections: 2})
	for range 3 {
		h := l.connect(HostConfig{SubNQN: subsystem})
		abort(h.admin.conn.QP()) // without a word
		l.ended(h)
		<-h.io.done
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			l.target.mu.Lock()
			n := l.target.connections + len(l.target.controllers)
			l.target.mu.Unlock()
			if n == 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%d connections and controllers are left", n)
			}
		}
	}
}

func TestConfigurationsAreChecked(t *testing.T) {
	_, dev := devices(t)
	good := TargetConfig{SubNQN: subsystem, Device: dev, Disk: make([]byte, 512)}
	for field, change := range map[string]func(*TargetConfig){
		"SubNQN":         func(c *TargetConfig) { c.SubNQN = DiscoveryNQN },
		"Device":         func(c *TargetConfig) { c.Device = nil },
		"Disk":           func(c *TargetConfig) { c.Disk = make([]byte, 513) },
		"InlineData":     func(c *TargetConfig) { c.InlineData = 17 },
		"MaxQueues":      func(c *TargetConfig) { c.MaxQueues = -1 },
		"MaxConnections": func(c *TargetConfig) { c.MaxConnections = -1 },
	} {
		cfg := good
		change(&cfg)
		if _, err := Listen("10.0.0.2:4420", cfg); err == nil || !bytes.Contains([]byte(err.Error()), []byte("TargetConfig."+field+" is")) &&
			!bytes.Contains([]byte(err.Error()), []byte("TargetConfig."+field+" has")) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for field, cfg := range map[string]HostConfig{"QueueSize": {QueueSize: 1}, "KeepAlive": {KeepAlive: 1}} {
		if _, err := Connect(t.Context(), "10.0.0.2:4420", cfg); err == nil || !bytes.Contains([]byte(err.Error()), []byte("HostConfig."+field)) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
