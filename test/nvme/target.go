package nvme

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// TargetConfig says what a target is. SubNQN and Device are needed.
type TargetConfig struct {
	// SubNQN names the subsystem, 1 to 223 bytes.
	SubNQN string
	// Device is where hosts connect.
	Device *roce.Device
	// Disk is namespace 1, in blocks of 512 bytes. It belongs to the target until Close; what commands that overlap leave there is not
	// defined.
	Disk []byte
	// InlineData is how many bytes of data an I/O capsule may have, a multiple of 16 up to 64 KiB; 0 means 4096.
	InlineData int
	// MaxQueues is how many I/O queues a host may have, 0 means 4; MaxConnections how many queues there may be in all, 0 means 64.
	MaxQueues, MaxConnections int
	// Logger is told of connections and their ends; nil is silent.
	Logger *slog.Logger
}

const (
	blockShift  = 9
	blockSize   = 1 << blockShift
	namespaceID = 1
	maxNQN      = 223 // NVMe 1.3, 7.9
)

// Target is a subsystem with one namespace, and the discovery subsystem that tells of it.
type Target struct {
	cfg      TargetConfig
	listener *rdmacm.Listener
	pd       *roce.PD
	disk     *roce.MR
	nguid    [16]byte
	log      *slog.Logger
	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	running  sync.WaitGroup // goroutines of queues, and the one that accepts

	mu          sync.Mutex
	connections int
	controllers map[uint16]*controller
	last        uint16 // controller ID that was given last
}

// Listen starts a target at addr, "host:port" of the device. Errors name a field of the configuration, or are those of rdmacm.Listen.
func Listen(addr string, cfg TargetConfig) (*Target, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	t := &Target{cfg: cfg, log: cfg.Logger, controllers: map[uint16]*controller{}}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	rand.Read(t.nguid[:])
	var err error
	if t.pd, err = cfg.Device.AllocPD(); err != nil {
		return nil, err
	}
	if t.disk, err = t.pd.RegisterMR(cfg.Disk, roce.LocalWrite); err == nil {
		t.listener, err = rdmacm.Listen(addr, rdmacm.ListenConfig{Device: cfg.Device})
	}
	if err != nil {
		return nil, errors.Join(err, t.free())
	}
	t.ctx, t.stop = context.WithCancel(context.Background())
	t.running.Add(1)
	go t.accept()
	return t, nil
}

func (c *TargetConfig) check() error {
	if c.InlineData == 0 {
		c.InlineData = 4096
	}
	if c.MaxQueues == 0 {
		c.MaxQueues = 4
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = 64
	}
	switch {
	case c.SubNQN == "" || len(c.SubNQN) > maxNQN || c.SubNQN == DiscoveryNQN:
		return fmt.Errorf("nvme: TargetConfig.SubNQN is %q, want 1 to %d bytes and not the discovery subsystem", c.SubNQN, maxNQN)
	case c.Device == nil:
		return errors.New("nvme: TargetConfig.Device is nil")
	case len(c.Disk) == 0 || len(c.Disk)%blockSize != 0:
		return fmt.Errorf("nvme: TargetConfig.Disk has %d bytes, want a multiple of %d", len(c.Disk), blockSize)
	case c.InlineData < 0 || c.InlineData > 64<<10 || c.InlineData%16 != 0:
		return fmt.Errorf("nvme: TargetConfig.InlineData is %d, want a multiple of 16 up to %d", c.InlineData, 64<<10)
	case c.MaxQueues < 1 || c.MaxQueues > 0xffff:
		return fmt.Errorf("nvme: TargetConfig.MaxQueues is %d, want 1 to %d", c.MaxQueues, 0xffff)
	case c.MaxConnections < 1:
		return fmt.Errorf("nvme: TargetConfig.MaxConnections is %d, want at least 1", c.MaxConnections)
	}
	return nil
}

// Addr returns the address and port.
func (t *Target) Addr() netip.AddrPort { return t.listener.Addr() }

// Close ends all connections and the target. The device stays.
func (t *Target) Close() error {
	t.stop()
	t.running.Wait()
	return errors.Join(t.listener.Close(), t.free())
}

// free gives back the memory.
func (t *Target) free() error {
	var err error
	if t.disk != nil {
		err = t.disk.Deregister()
	}
	// Connections that linger have queue pairs of the domain: the device frees it with them.
	if e := t.pd.Dealloc(); !errors.Is(e, roce.ErrBusy) {
		err = errors.Join(err, e)
	}
	return err
}

func (t *Target) accept() {
	defer t.running.Done()
	for {
		req, err := t.listener.Accept(t.ctx)
		if err != nil {
			return
		}
		t.running.Add(1)
		go func() {
			defer t.running.Done()
			t.serve(req)
		}()
	}
}

// serve answers a request for a connection and runs its queue to the end.
func (t *Target) serve(req *rdmacm.Request) {
	log := t.log.With("host", req.RemoteAddr())
	cm, why := t.admit(req)
	if why != 0 {
		log.Info("rejected", "err", why)
		req.Reject(encoded(&cmReject{Status: why}))
		return
	}
	q, err := t.newQueue(req, cm)
	if err == nil {
		log.Info("connected", "qid", cm.QID, "size", q.size)
		err = q.run()
		q.leave()
		log.Info("ended", "qid", cm.QID, "err", err)
	} else {
		log.Info("failed", "err", err)
	}
	t.mu.Lock()
	t.connections--
	t.mu.Unlock()
}

// admit checks a request's private data, and counts the connection if it is to be.
func (t *Target) admit(req *rdmacm.Request) (cm cmRequest, why CMStatus) {
	private := req.PrivateData()
	if len(private) < binary.Size(cm) {
		return cm, cmInvalidFormat
	}
	mustCode(binary.Decode(private, binary.LittleEndian, &cm))
	size := int(cm.HSQSize) + 1
	switch {
	case cm.Format != 0:
		return cm, cmInvalidFormat
	case size < 2 || size > maxQueueSize || cm.QID == 0 && size > adminDepth:
		return cm, cmInvalidHSQSize
	case int(cm.HRQSize) < 1:
		return cm, cmInvalidHRQSize
	case req.Params().InitiatorDepth == 0:
		return cm, cmInvalidIRD // no READ of the data of writes
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.connections >= t.cfg.MaxConnections || t.ctx.Err() != nil {
		return cm, cmNoResources
	}
	t.connections++
	return cm, 0
}
