package nvme

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math/bits"
	"time"

	"github.com/goroce/goroce/roce"
)

// HostConfig says how a host connects. Its zero value connects to the discovery subsystem.
type HostConfig struct {
	// SubNQN is the subsystem; empty means DiscoveryNQN, which has no I/O queue.
	SubNQN string
	// HostNQN names this host; empty means one made of a random UUID.
	HostNQN string
	// QueueSize is how many commands the I/O queue may have under way, 2 to 128; 0 means 32.
	QueueSize int
	// KeepAlive is how long the target may hear nothing before it gives up, in whole milliseconds; the host says something each third of
	// it. 0 means never.
	KeepAlive time.Duration
	// Device is that of this end; nil means the one on the route to the target.
	Device *roce.Device
}

// Host is a connection to a controller: an admin queue and, unless it is one for discovery, an I/O queue. Its methods may be called from
// any goroutine. Errors of the target are a Status; a command whose ctx ends takes its queue with it.
type Host struct {
	admin, io *hostQueue
	data      ControllerData
	maxData   int
	stop      context.CancelFunc // of the keep-alive
	stopped   chan struct{}
}

// maxTransfer is what a host asks for in one command at most, in bytes, even if the target allows more.
const maxTransfer = 1 << 20

// Connect connects to a subsystem at addr, "host:port". Errors are those of rdmacm.Dial, with a CMStatus if the target says why it
// rejects, and a Status for a command.
func Connect(ctx context.Context, addr string, cfg HostConfig) (h *Host, err error) {
	if cfg.QueueSize == 0 {
		cfg.QueueSize = 32
	}
	if cfg.QueueSize < 2 || cfg.QueueSize > maxQueueSize {
		return nil, fmt.Errorf("nvme: HostConfig.QueueSize is %d, want 2 to %d", cfg.QueueSize, maxQueueSize)
	}
	if cfg.KeepAlive < 0 || cfg.KeepAlive%time.Millisecond != 0 {
		return nil, fmt.Errorf("nvme: HostConfig.KeepAlive is %v, want whole milliseconds", cfg.KeepAlive)
	}
	if cfg.SubNQN == "" {
		cfg.SubNQN = DiscoveryNQN
	}
	data := connectData{CNTLID: cntlidDynamic, SubNQN: makeName(cfg.SubNQN)}
	rand.Read(data.HostID[:])
	if cfg.HostNQN == "" {
		id := data.HostID
		cfg.HostNQN = fmt.Sprintf("nqn.2014-08.org.nvmexpress:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	}
	data.HostNQN = makeName(cfg.HostNQN)
	h = &Host{stop: func() {}, stopped: make(chan struct{})}
	close(h.stopped)
	if h.admin, err = dialQueue(ctx, addr, cfg, queueConfig{size: adminDepth, maxData: maxTransfer}); err != nil {
		return nil, err
	}
	if err := h.begin(ctx, addr, cfg, &data); err != nil {
		h.Close(ctx)
		return nil, err
	}
	return h, nil
}

// begin takes the controller from Connect to its I/O queue.
func (h *Host) begin(ctx context.Context, addr string, cfg HostConfig, data *connectData) (err error) {
	if data.CNTLID, err = h.admin.connect(ctx, 0, uint32(cfg.KeepAlive/time.Millisecond), data); err != nil {
		return err
	}
	if cfg.KeepAlive > 0 {
		h.keepAlive(cfg.KeepAlive / 3)
	}
	if err := h.enable(ctx); err != nil {
		return err
	}
	if err := h.admin.identify(ctx, cnsController, 0, &h.data); err != nil {
		return err
	}
	if cfg.SubNQN == DiscoveryNQN {
		return nil
	}
	if h.maxData = maxTransfer; h.data.MDTS > 0 && h.data.MDTS < 8 {
		h.maxData = 4096 << h.data.MDTS
	}
	inline := 0
	if h.data.SGLs&sglsInCapsule != 0 && h.data.DataOffset == 0 {
		inline = max(0, min(int(h.data.CommandSize)*16-commandSize, 64<<10))
	}
	features := Command{Opcode: opSetFeatures}
	features.CDW[0] = featureQueues // one of each kind, 0's based
	if _, err := h.admin.do(ctx, &features, nil, 0); err != nil {
		return fmt.Errorf("set number of queues: %w", err)
	}
	mqes, err := h.property(ctx, propCAP)
	if err != nil {
		return err
	}
	qc := queueConfig{id: 1, size: min(cfg.QueueSize, int(uint16(mqes))+1), inline: inline, maxData: h.maxData}
	if h.io, err = dialQueue(ctx, addr, cfg, qc); err != nil {
		return err
	}
	_, err = h.io.connect(ctx, 1, 0, data)
	return err
}

// property reads a property of 8 bytes, or of 4.
func (h *Host) property(ctx context.Context, offset uint32) (uint64, error) {
	cmd := Command{Opcode: opFabrics, NSID: fabricsPropertyGet}
	if offset == propCAP {
		cmd.CDW[0] = 1 // 8 bytes
	}
	cmd.CDW[1] = offset
	c, err := h.admin.do(ctx, &cmd, nil, 0)
	if err != nil {
		return 0, fmt.Errorf("get property %#x: %w", offset, err)
	}
	return c.Result, nil
}

// setCC sets the controller configuration and waits until the status has what it shall have.
func (h *Host) setCC(ctx context.Context, value uint32, mask, want uint64) error {
	cmd := Command{Opcode: opFabrics, NSID: fabricsPropertySet}
	cmd.CDW[1], cmd.CDW[2] = propCC, value
	if _, err := h.admin.do(ctx, &cmd, nil, 0); err != nil {
		return fmt.Errorf("set property %#x: %w", propCC, err)
	}
	for {
		csts, err := h.property(ctx, propCSTS)
		if err != nil || csts&mask == want {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (h *Host) enable(ctx context.Context) error {
	return h.setCC(ctx, ccEntrySizes|ccEnable, cstsReady, cstsReady)
}

// keepAlive says something to the controller each period until stop.
func (h *Host) keepAlive(period time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	h.stop, h.stopped = cancel, stopped
	go func() {
		defer close(stopped)
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			// The command itself has no end but that of its queue.
			if _, err := h.admin.do(context.Background(), &Command{Opcode: opKeepAlive}, nil, 0); err != nil {
				return
			}
		}
	}()
}

// Done is closed when the connection of the admin queue has ended.
func (h *Host) Done() <-chan struct{} { return h.admin.done }

// Close shuts the controller down and ends the connections. It waits for the target at most until ctx ends.
func (h *Host) Close(ctx context.Context) error {
	var err error
	if h.io != nil {
		err = h.io.close(ctx)
	}
	h.setCC(ctx, ccEntrySizes|ccEnable|ccShutdownNormal, cstsShutdown, cstsShutdownDone) // an orderly end, if it still can be had
	h.stop()
	if e := h.admin.close(ctx); err == nil {
		err = e
	}
	<-h.stopped
	return err
}

// Controller returns what the controller says about itself.
func (h *Host) Controller() ControllerData { return h.data }

// Discover returns the subsystems that a discovery controller knows.
func (h *Host) Discover(ctx context.Context) ([]DiscoveryEntry, error) {
	const size = 1024
	read := func(offset int, v any) error {
		b := make([]byte, size)
		cmd := Command{Opcode: opGetLogPage}
		cmd.CDW[0] = logDiscovery | (size/4-1)<<16
		cmd.CDW[2] = uint32(offset)
		if _, err := h.admin.do(ctx, &cmd, b, roce.RemoteWrite); err != nil {
			return fmt.Errorf("discovery log: %w", err)
		}
		mustCode(binary.Decode(b, binary.LittleEndian, v))
		return nil
	}
	var head, after discoveryHeader
	for {
		if err := read(0, &head); err != nil {
			return nil, err
		}
		if head.Records > 1024 {
			return nil, fmt.Errorf("nvme: a discovery log with %d records, want 1024 at most", head.Records)
		}
		entries := make([]DiscoveryEntry, head.Records)
		for i := range entries {
			if err := read(size*(i+1), &entries[i]); err != nil {
				return nil, err
			}
		}
		// The log may have changed meanwhile, which its generation tells.
		if err := read(0, &after); err != nil || after.Generation == head.Generation {
			return entries, err
		}
	}
}

// Namespaces returns the numbers of the active namespaces, 1024 at most.
func (h *Host) Namespaces(ctx context.Context) ([]uint32, error) {
	var list [1024]uint32
	if err := h.admin.identify(ctx, cnsActive, 0, &list); err != nil {
		return nil, err
	}
	for i, id := range list {
		if id == 0 {
			return list[:i], nil
		}
	}
	return list[:], nil
}

// Namespace is a disk of the subsystem.
type Namespace struct {
	h         *Host
	id        uint32
	BlockSize int
	Data      NamespaceData
}

// Namespace returns a namespace by its number.
func (h *Host) Namespace(ctx context.Context, id uint32) (*Namespace, error) {
	n := &Namespace{h: h, id: id}
	if err := h.admin.identify(ctx, cnsNamespace, id, &n.Data); err != nil {
		return nil, err
	}
	shift := n.Data.LBAF[n.Data.Format&15].Shift
	if shift < 9 || 1<<shift > h.maxData {
		return nil, fmt.Errorf("nvme: namespace %d has blocks of 2^%d bytes, want 2^9 to 2^%d", id, shift, bits.Len(uint(h.maxData))-1)
	}
	n.BlockSize = 1 << shift
	return n, nil
}

// Read fills p, whole blocks, from block lba on.
func (n *Namespace) Read(ctx context.Context, p []byte, lba uint64) error {
	return n.transfer(ctx, opRead, p, lba, roce.RemoteWrite)
}

// Write writes p, whole blocks, from block lba on.
func (n *Namespace) Write(ctx context.Context, p []byte, lba uint64) error {
	return n.transfer(ctx, opWrite, p, lba, roce.RemoteRead)
}

// Flush makes what has been written last.
func (n *Namespace) Flush(ctx context.Context) error {
	_, err := n.h.io.do(ctx, &Command{Opcode: opFlush, NSID: n.id}, nil, 0)
	return err
}

// transfer moves p by commands of at most what the target takes.
func (n *Namespace) transfer(ctx context.Context, op Opcode, p []byte, lba uint64, rights roce.Access) error {
	if len(p)%n.BlockSize != 0 {
		return fmt.Errorf("nvme: %d bytes, want a multiple of %d", len(p), n.BlockSize)
	}
	limit := min(n.h.maxData, n.BlockSize<<16) // the number of blocks has 16 bits
	for len(p) > 0 {
		data := p[:min(len(p), limit)]
		cmd := Command{Opcode: op, NSID: n.id}
		cmd.CDW[0], cmd.CDW[1] = uint32(lba), uint32(lba>>32)
		cmd.CDW[2] = uint32(len(data)/n.BlockSize - 1)
		if _, err := n.h.io.do(ctx, &cmd, data, rights); err != nil {
			return fmt.Errorf("%d bytes at block %d: %w", len(data), lba, err)
		}
		p = p[len(data):]
		lba += uint64(len(data) / n.BlockSize)
	}
	return nil
}
