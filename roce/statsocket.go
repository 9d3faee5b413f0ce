package roce

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// statDeadline bounds how long a reader of Stats may take.
const statDeadline = time.Second

// statNumber tells the sockets of a process apart.
var statNumber atomic.Uint64

// statSocket is a Unix socket that tells whoever connects the Stats of a device, as
// one JSON object, and hangs up.
type statSocket struct {
	l     net.Listener
	ended chan struct{}
}

// openStats opens the socket that Config.StatDir asks for.
func (d *Device) openStats() error {
	if d.cfg.StatDir == "" {
		return nil
	}
	addr := strings.NewReplacer(":", "_", "%", "_").Replace(d.addr.String())
	name := filepath.Join(d.cfg.StatDir, fmt.Sprintf("%d-%s-%d.sock", os.Getpid(), addr, statNumber.Add(1)))
	l, err := listenStats(name)
	if err != nil {
		return &ConfigError{"StatDir", d.cfg.StatDir, "a directory is needed in which a socket can be made: " + err.Error()}
	}
	if err := os.Chmod(name, 0o600); err != nil {
		l.Close()
		return &ConfigError{"StatDir", d.cfg.StatDir, err.Error()}
	}
	d.stat = &statSocket{l: l, ended: make(chan struct{})}
	go d.stat.serve(d)
	return nil
}

// listenStats makes a socket with a name. One that nobody serves is that of a process that
// has ended without closing its device, whose number the system has given away again.
func listenStats(name string) (net.Listener, error) {
	l, err := net.Listen("unix", name)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	c, dialErr := net.DialTimeout("unix", name, statDeadline)
	if dialErr == nil {
		c.Close()
		return nil, err // a process in another container has the same number
	}
	if !errors.Is(dialErr, syscall.ECONNREFUSED) || os.Remove(name) != nil {
		return nil, err
	}
	return net.Listen("unix", name)
}

// serve answers one reader after the other.
func (s *statSocket) serve(d *Device) {
	defer close(s.ended)
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		c.SetDeadline(time.Now().Add(statDeadline))
		json.NewEncoder(c).Encode(d.Stats()) // or the reader has gone
		c.Close()
	}
}

// close ends the socket, which may be nil.
func (s *statSocket) close() {
	if s != nil {
		s.l.Close()
		<-s.ended
	}
}
