package netio

import (
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// Rule: Wait returns at its timeout and not before, at once for what is there,
// and for whatever happens while it waits.
func TestWait(t *testing.T) {
	eachKind(t, func(t *testing.T, p pair) {
		wait := func(d time.Duration, write bool) time.Duration {
			t.Helper()
			start := time.Now()
			if err := p.b.Wait(d, write); err != nil {
				t.Fatal(err)
			}
			return time.Since(start)
		}
		for _, d := range []time.Duration{0, time.Nanosecond, 200 * time.Microsecond, 3 * time.Millisecond} {
			if got := wait(d, false); got < d {
				t.Errorf("a wait of %v ended after %v", d, got)
			}
		}
		wait(-1, true) // there is room
		if got := wait(time.Millisecond, false); got < time.Millisecond {
			t.Errorf("after a wait for room, a wait of 1ms ended after %v", got)
		}
		p.b.Wake()
		p.b.Wake()
		wait(-1, false) // or the test hangs
		p.b.Wake()
		wait(Never, false)
		send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 3, 64, 1))
		wait(-1, false)
		wait(-1, false) // it consumes nothing
		if got := collect(t, p.b, 3); len(got) != 3 {
			t.Fatalf("%d packets", len(got))
		}
		// What Recv handed out does not hide what comes after it.
		send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 64, 1))
		var one [1]Received
		for n := 0; n == 0; n, _ = p.b.Recv(0, one[:]) {
			wait(time.Second, false)
		}
		var done sync.WaitGroup
		done.Go(func() {
			time.Sleep(2 * time.Millisecond) // most often the other waits by now; it need not
			send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 64, 1))
		})
		if got := wait(5*time.Second, false); got > 4*time.Second {
			t.Error("a packet that came while another was handed out did not end the wait")
		}
		done.Wait()
		if got := collect(t, p.b, 1); len(got) != 1 {
			t.Fatalf("%d packets", len(got))
		}
		for name, happen := range map[string]func(){
			"wake":   p.b.Wake,
			"packet": func() { send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 1, 64, 1)) },
		} {
			start := make(chan struct{})
			done.Go(func() {
				<-start
				time.Sleep(2 * time.Millisecond) // most often the other waits by now; it need not
				happen()
			})
			close(start)
			if got := wait(5*time.Second, false); got > 4*time.Second {
				t.Errorf("%s: did not end the wait", name)
			}
			done.Wait()
			collectFor(t, p.b, 1, time.Millisecond)
		}
	})
}

// Rule: Close ends a running wait, and afterwards everything says net.ErrClosed.
func TestClose(t *testing.T) {
	eachKind(t, func(t *testing.T, p pair) {
		ended := make(chan error)
		go func() { ended <- p.b.Wait(-1, false) }()
		time.Sleep(2 * time.Millisecond)
		if err := p.b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		_, sendErr := p.b.Send(0, []Run{newRun(p.b.LocalAddr(), p.a.LocalAddr(), 1, 64, 1)})
		_, recvErr := p.b.Recv(0, make([]Received, 1))
		for name, err := range map[string]error{
			"running wait": <-ended, "Wait": p.b.Wait(-1, false), "Wait for room": p.b.Wait(-1, true),
			"Send": sendErr, "Recv": recvErr, "second Close": p.b.Close(),
		} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s after Close: %v", name, err)
			}
		}
		p.b.Wake() // does no harm
		p.b.Stats()
		p.b.Caps()
		// The other one is not disturbed, and the address is free again.
		send(t, p.a, newRun(p.a.LocalAddr(), p.b.LocalAddr(), 2, 64, 1))
		if err := p.a.Wait(0, false); err != nil {
			t.Error(err)
		}
	})
}

// Rule: Close may race with everything else.
func TestCloseRaces(t *testing.T) {
	eachKind(t, func(t *testing.T, p pair) {
		var all sync.WaitGroup
		all.Go(func() {
			for p.b.Wait(time.Millisecond, false) == nil {
			}
		})
		all.Go(func() {
			dst := make([]Received, 4)
			for {
				if _, err := p.b.Recv(0, dst); err != nil {
					return
				}
				runs := []Run{newRun(p.b.LocalAddr(), p.a.LocalAddr(), 2, 64, 1), newRun(p.b.LocalAddr(), p.a.LocalAddr(), 2, 64, 1)}
				runs[1].SrcPort = 0xc111
				if _, err := p.b.Send(0, runs); err != nil && err != ErrWouldBlock {
					return
				}
			}
		})
		all.Go(func() {
			for range 100 {
				p.b.Wake()
				p.b.Stats()
			}
		})
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
		p.b.Close()
		all.Wait()
	})
}
