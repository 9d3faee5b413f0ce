package transport

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/ib"
)

// set: attributes of the connection, before it is made.
func (w *reqWorld) set(f []string) {
	for _, o := range f {
		name, val, _ := strings.Cut(o, "=")
		v, err := strconv.Atoi(val)
		if err != nil {
			w.t.Fatalf("bad setting %q", o)
		}
		switch name {
		case "mtu":
			w.attr.PathMTU, _ = ib.MTUFromBytes(v)
		case "timeout":
			w.attr.Timeout = ib.AckTimeout(v)
		case "retry":
			w.attr.RetryCnt = uint8(v)
		case "rnr":
			w.attr.RNRRetry = uint8(v)
		case "rd":
			w.attr.MaxRdAtomic = uint8(v)
		case "window":
			w.cfg.Window = v
		case "depth":
			w.cfg.SQDepth = uint32(v)
		case "kin":
			w.resv = bitSelective
		case "sigall":
			w.cfg.SigAll = v != 0
		default:
			w.t.Fatalf("bad setting %q", o)
		}
	}
}

func (w *reqWorld) duration(s string) time.Duration {
	if s == "never" {
		return Never
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// modify: rts | sqd [notify] | err | reset
func (w *reqWorld) modify(f []string) {
	a, mask := w.attr, MaskState
	a.State = map[string]State{"rts": RTS, "sqd": SQD, "err": Err, "reset": Reset}[f[0]]
	if len(f) > 1 {
		a.SQDrainNotify, mask = true, mask|MaskSQDNotify
	}
	if err := w.q.Modify(w.now, &a, mask); err != nil {
		w.t.Fatal(err)
	}
}

// input runs an input line; it reports false for a line of another kind.
func (w *reqWorld) input(f []string) bool {
	if f[0] != "set" && w.q == nil {
		w.connect()
	}
	switch f[0] {
	case "set":
		w.set(f[1:])
	case "post":
		w.post(f[1:])
	case "<":
		w.q.Receive(w.now, w.packet(f[1:]))
	case "at":
		w.now = w.duration(f[1])
		w.q.Expire(w.now)
	case "room":
		w.out.room, _ = strconv.Atoi(f[1])
	case "dereg":
		r := w.src
		if f[1] == "dst" {
			r = w.dst
		}
		if err := w.tab.Deregister(r); err != nil {
			w.t.Fatal(err)
		}
	case "modify":
		w.modify(f[1:])
	case "kick":
		w.q.Kick(w.now)
	default:
		return false
	}
	return true
}

// holds checks a line about what is now; it reports false for other lines.
func (w *reqWorld) holds(line string, f []string) bool {
	var got string
	switch f[0] {
	case "state":
		got = "state " + w.q.State().String()
	case "deadline":
		got = "deadline never"
		if d := w.q.Deadline(); d != Never {
			got = "deadline " + d.String()
		}
	case "freed":
		got = fmt.Sprintf("freed %d", w.sq.consumed)
	case "bound":
		got = w.local.bound(f[1])
	case "window":
		got = fmt.Sprintf("window %d", w.q.req().win.size)
	case "count":
		for i, name := range counterNames {
			if name == f[1] {
				got = fmt.Sprintf("count %s %d", name, w.counts.Load(Counter(i)))
			}
		}
	default:
		return false
	}
	if got != line {
		w.t.Errorf("got %q, want %q", got, line)
	}
	return true
}

// pump lets the queue pair transmit until it wants no more or has no room.
func (w *reqWorld) pump() {
	for i := 0; w.q.Wants()&WantData != 0; i++ {
		if w.q.Transmit(w.now, &w.out, 16<<10) == 0 && w.out.room != 0 && w.q.Wants()&WantData != 0 {
			w.t.Fatal("wants to transmit, but does not")
		}
		if w.out.room == 0 || i > 10000 {
			return
		}
	}
}

// take returns all that came out since the last call.
func (w *reqWorld) take() (got []string) {
	for i, b := range w.out.sent {
		got = append(got, w.show(b, w.out.via[i]))
	}
	got = append(got, w.wcs...)
	for _, e := range w.events {
		got = append(got, "event "+e)
	}
	w.out.sent, w.wcs, w.events = nil, nil, nil
	return got
}

// run runs a script.
func (w *reqWorld) run(script string) {
	w.t.Helper()
	var lines []string
	for l := range strings.SplitSeq(script, "\n") {
		l, _, _ = strings.Cut(l, "//")
		if l = strings.Join(strings.Fields(l), " "); l != "" {
			lines = append(lines, l)
		}
	}
	for i := 0; i < len(lines); {
		from := i
		for i < len(lines) && w.input(strings.Fields(lines[i])) {
			i++
		}
		if w.q == nil {
			w.connect()
		}
		w.pump()
		var want []string
		for i < len(lines) {
			f := strings.Fields(lines[i])
			if f[0] == ">" || f[0] == "wc" || f[0] == "event" {
				want = append(want, lines[i])
			} else if !w.holds(lines[i], f) {
				break
			}
			i++
		}
		got := w.take()
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			w.t.Fatalf("after\n\t%s\ngot\n\t%s\nwant\n\t%s", strings.Join(lines[from:i], "\n\t"), strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
		}
		if i == from {
			w.t.Fatalf("bad line %q", lines[i])
		}
	}
}

// reqCase is a script and the rule that it checks.
type reqCase struct {
	rule   string // the rule, and where it is written
	script string
}

// runReqCases runs each script twice: with PSNs that wrap at 2^24 in its middle
// and with others.
func runReqCases(t *testing.T, cases []reqCase) {
	for _, c := range cases {
		for _, base := range []ib.PSN{1000, 0xffffff} {
			t.Run(fmt.Sprintf("%s/%v", c.rule, base), func(t *testing.T) { newReqWorld(t, base).run(c.script) })
		}
	}
}
