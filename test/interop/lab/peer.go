//go:build linux

package lab

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/goroce/goroce/test/interop/wire"
)

// Peer is a running verbs peer, on either side. Its methods are for one goroutine.
type Peer struct {
	Name   string // for messages: "goroce" or "rxe"
	in     io.Writer
	lines  chan []byte
	kill   func()
	stderr func() string
	dead   atomic.Bool
}

// peerTimeout bounds one answer beyond the time that the request itself may wait.
const peerTimeout = 60 * time.Second

// StartPeer starts a verbs peer in the guest.
func (g *Guest) StartPeer(name string, argv ...string) (*Peer, error) {
	pr, pw := io.Pipe()
	r, err := g.Start(pw, argv...)
	if err != nil {
		return nil, err
	}
	go func() { <-r.Done(); pw.Close() }()
	return newPeer(name, r, pr, r.Kill, r.Stderr), nil
}

// StartPeer starts a verbs peer of ours in the namespace.
func (ns *Netns) StartPeer(name string, argv ...string) (*Peer, error) {
	pr, pw := io.Pipe()
	p, err := StartProcess(pw, ns.Argv(argv...)...)
	if err != nil {
		return nil, err
	}
	go func() { <-p.Done(); pw.Close() }()
	return newPeer(name, p.Stdin, pr, p.Kill, p.Stderr), nil
}

func newPeer(name string, in io.Writer, out io.Reader, kill func(), stderr func() string) *Peer {
	p := &Peer{Name: name, in: in, lines: make(chan []byte, 1), kill: kill, stderr: stderr}
	go func() {
		defer close(p.lines)
		defer p.dead.Store(true)
		sc := bufio.NewScanner(out)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			p.lines <- append([]byte(nil), sc.Bytes()...)
		}
		io.Copy(io.Discard, out)
	}()
	return p
}

// Do sends a request and waits for the answer. An error that the peer reports is an error here.
func (p *Peer) Do(r wire.Request) (wire.Response, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return wire.Response{}, err
	}
	if _, err := p.in.Write(append(b, '\n')); err != nil {
		return wire.Response{}, fmt.Errorf("%s peer: %w: %s", p.Name, err, lastLines(p.stderr(), 10))
	}
	t := time.NewTimer(peerTimeout + time.Duration(r.TimeoutMS)*time.Millisecond)
	defer t.Stop()
	select {
	case line, ok := <-p.lines:
		if !ok {
			return wire.Response{}, fmt.Errorf("%s peer ended during %s: %s", p.Name, r.Op, lastLines(p.stderr(), 30))
		}
		var res wire.Response
		if err := json.Unmarshal(line, &res); err != nil {
			return res, fmt.Errorf("%s peer answers %q: %w", p.Name, line, err)
		}
		if res.Err != "" {
			return res, fmt.Errorf("%s peer: %s", p.Name, res.Err)
		}
		return res, nil
	case <-t.C:
		p.dead.Store(true) // a late answer must not be taken for the next one
		p.kill()
		return wire.Response{}, errors.New(p.Name + " peer does not answer " + r.Op)
	}
}

// Close ends the peer.
func (p *Peer) Close() {
	if b, err := json.Marshal(wire.Request{Op: "quit"}); err == nil {
		p.in.Write(append(b, '\n'))
	}
	end := time.After(3 * time.Second)
	for {
		select {
		case _, ok := <-p.lines:
			if !ok {
				p.kill()
				return
			}
		case <-end:
			p.kill()
			return
		}
	}
}

// Alive says whether the peer can take another request.
func (p *Peer) Alive() bool { return !p.dead.Load() }
