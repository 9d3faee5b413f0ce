package netio

import "time"

// maxPorts is how many sockets for other source ports a backend has at a time.
const maxPorts = 256

// portIdle is how long a source port is left unused before its socket may give way
// to one for another port, and how long a port that could not be had is not tried
// again.
const portIdle = time.Second

// portSet holds the sockets that send from other ports than the backend's own. They
// are opened when first used. A device whose queue pairs come and go would use up
// any number of ports: beyond maxPorts a new one takes the place of one that is
// idle, and cannot be had while there is none.
type portSet[S any] struct {
	open  func(port uint16) (S, error)
	close func(S) error

	m    map[uint16]*portSocket[S]
	full time.Duration // no socket is idle before
}

type portSocket[S any] struct {
	s    S
	ok   bool // s is open; else the port could not be had
	used time.Duration
}

// get returns the socket for a port, or false when it cannot be had now.
func (p *portSet[S]) get(now time.Duration, port uint16) (s S, ok bool) {
	e := p.m[port]
	switch {
	case e != nil && e.ok:
		e.used = now
		return e.s, true
	case e != nil && now-e.used < portIdle:
		return s, false
	case e == nil && len(p.m) >= maxPorts && !p.makeRoom(now):
		return s, false
	}
	if p.m == nil {
		p.m = make(map[uint16]*portSocket[S])
	}
	s, err := p.open(port)
	p.m[port] = &portSocket[S]{s, err == nil, now}
	return s, err == nil
}

// makeRoom gives up the socket that was idle for longest, if one was idle for long
// enough.
func (p *portSet[S]) makeRoom(now time.Duration) bool {
	if now < p.full {
		return false
	}
	var port uint16
	var oldest *portSocket[S]
	for n, e := range p.m {
		if oldest == nil || e.used < oldest.used {
			port, oldest = n, e
		}
	}
	if now-oldest.used < portIdle {
		p.full = oldest.used + portIdle
		return false
	}
	if oldest.ok {
		p.close(oldest.s) // what it has queued still leaves
	}
	delete(p.m, port)
	return true
}

// closeAll closes all sockets and returns the first error.
func (p *portSet[S]) closeAll() (err error) {
	for _, e := range p.m {
		if e.ok {
			if cerr := p.close(e.s); err == nil {
				err = cerr
			}
		}
	}
	p.m = nil
	return err
}
