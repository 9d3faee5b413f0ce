//go:build linux

package lab

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Capture records what crosses a device in the namespace, both directions, into one file for the whole run and, between BeginCase and
// EndCase, into a second one.
type Capture struct {
	Path string
	fd   int

	mu      sync.Mutex
	all     *pcapWriter
	one     *pcapWriter
	onePath string
	empty   time.Time // when the socket had last had nothing for 20 ms
	frames  int
	stop    bool
	done    chan struct{}
	err     error
}

// StartCapture captures on a device of the namespace into dir/capture.pcap.
func (ns *Netns) StartCapture(device, dir string) (*Capture, error) {
	c := &Capture{Path: filepath.Join(dir, "capture.pcap"), done: make(chan struct{})}
	if err := ns.do(func() (err error) { c.fd, err = packetSocket(device); return err }); err != nil {
		return nil, fmt.Errorf("capture on %s: %w", device, err)
	}
	var err error
	if c.all, err = createPcap(c.Path); err != nil {
		unix.Close(c.fd)
		return nil, err
	}
	go c.loop()
	return c, nil
}

// packetSocket opens a raw packet socket for one device of the present namespace, with a large buffer and a read timeout of 20 ms.
func packetSocket(device string) (int, error) {
	// Protocol 0 receives nothing until bind names the device, so that frames of others cannot slip in.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = func() error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20000}); err != nil {
			return err
		}
		ifr, err := unix.NewIfreq(device)
		if err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr); err != nil {
			return err
		}
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: int(ifr.Uint32())})
	}()
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// loop reads until Close.
func (c *Capture) loop() {
	defer close(c.done)
	buf := make([]byte, 1<<18)
	for {
		n, _, err := unix.Recvfrom(c.fd, buf, unix.MSG_TRUNC)
		now := time.Now()
		c.mu.Lock()
		switch {
		case err == nil:
			frame := buf[:min(n, len(buf))]
			c.frames++
			c.all.write(now, frame, n)
			if c.one != nil {
				c.one.write(now, frame, n)
			}
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			if err == unix.EAGAIN {
				c.empty = now
			}
			if c.stop {
				c.mu.Unlock()
				return
			}
		case errors.Is(err, unix.ENETDOWN): // the device went down, which the end of a guest does
			c.mu.Unlock()
			time.Sleep(20 * time.Millisecond)
			c.mu.Lock()
			if c.stop {
				c.mu.Unlock()
				return
			}
		default:
			c.err = err
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// BeginCase starts a second file dir/case.pcap.
func (c *Capture) BeginCase(dir string) error {
	w, err := createPcap(filepath.Join(dir, "case.pcap"))
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.one = w
	c.onePath = w.f.Name()
	return nil
}

// EndCase waits until the reader has caught up, on a busy machine it may lag, and 20 ms have brought nothing (at most 10 s); it closes the
// case's file and returns its path.
func (c *Capture) EndCase() (string, error) {
	began := time.Now()
	for time.Since(began) < 10*time.Second {
		c.mu.Lock()
		empty := c.empty
		c.mu.Unlock()
		if empty.Sub(began) >= 20*time.Millisecond {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.one
	c.one = nil
	if w == nil {
		return "", errors.New("no case is being captured")
	}
	return c.onePath, w.close()
}

// Close ends the capture and returns how many frames it has and how many the kernel could not give to it.
func (c *Capture) Close() (frames, lost int, err error) {
	c.mu.Lock()
	c.stop = true
	c.mu.Unlock()
	<-c.done
	st, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err == nil {
		lost = int(st.Drops)
	}
	unix.Close(c.fd)
	return c.frames, lost, errors.Join(c.err, err, c.all.close())
}
