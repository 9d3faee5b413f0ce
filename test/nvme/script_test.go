package nvme

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/rdmacm"
)

// scripted accepts one queue and answers its first command as respond says. What it returns tries the key of that command afterwards.
func scripted(t *testing.T, dev *roce.Device, respond func(cmd *Command) roce.SendWR) (try func() roce.WCStatus) {
	l, err := rdmacm.Listen("10.0.0.2:4420", rdmacm.ListenConfig{Device: dev})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done, again, status := make(chan struct{}), make(chan struct{}), make(chan roce.WCStatus, 1)
	t.Cleanup(func() { cancel(); <-done; l.Close() })
	go func() {
		defer close(done)
		req, err := l.Accept(ctx)
		if err != nil {
			return
		}
		var mr *roce.MR
		conn, err := req.Accept(ctx, rdmacm.Config{
			QP: roce.QPConfig{MaxInline: 64},
			Prepare: func(c *rdmacm.Conn) (err error) {
				if mr, err = c.PD().RegisterMR(make([]byte, commandSize), roce.LocalWrite); err != nil {
					return err
				}
				return c.QP().PostRecv(roce.RecvWR{SGE: []roce.SGE{mr.SGE(0, commandSize)}})
			},
		})
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		var wc [1]roce.WC
		if _, err := conn.CQ().Wait(ctx, wc[:]); err != nil {
			t.Error(err)
			return
		}
		var cmd Command
		cmd.get(mr.Bytes())
		wr := respond(&cmd)
		wr.Flags = roce.Inline
		if err := conn.QP().PostSend(wr); err != nil {
			t.Error(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		}
		late := roce.SendWR{Opcode: roce.WRWrite, Flags: roce.Signaled | roce.Inline, Data: []byte("late"), RemoteAddr: cmd.SGL.Addr, RKey: cmd.SGL.key()}
		if err := conn.QP().PostSend(late); err != nil {
			t.Error(err)
		}
		if _, err := conn.CQ().Wait(ctx, wc[:]); err != nil {
			t.Error(err)
		}
		status <- wc[0].Status
	}()
	return func() roce.WCStatus {
		close(again)
		select {
		case s := <-status:
			return s
		case <-done:
			return 0
		}
	}
}

// A response that a host cannot trust ends its queue; one that leaves the key open does not.
func TestResponsesAreChecked(t *testing.T) {
	response := func(c Completion) []byte {
		b := make([]byte, responseSize)
		c.put(b)
		return b
	}
	for _, c := range []struct {
		what    string
		respond func(cmd *Command) roce.SendWR
		want    string // of the error
	}{
		{"without invalidation", func(cmd *Command) roce.SendWR {
			return roce.SendWR{Opcode: roce.WRSend, Data: response(Completion{CID: cmd.CID})}
		}, ""},
		{"with invalidation", func(cmd *Command) roce.SendWR {
			return roce.SendWR{Opcode: roce.WRSendWithInv, InvalidateRKey: cmd.SGL.key(), Data: response(Completion{CID: cmd.CID})}
		}, ""},
		{"a status", func(cmd *Command) roce.SendWR {
			return roce.SendWR{Opcode: roce.WRSend, Data: response(Completion{CID: cmd.CID, Status: 0x1fe<<1 | 1})}
		}, "nvme: status type 1 code 0xfe"},
		{"another command", func(cmd *Command) roce.SendWR {
			return roce.SendWR{Opcode: roce.WRSend, Data: response(Completion{CID: cmd.CID + 1})}
		}, "is not under way"},
		{"no command", func(cmd *Command) roce.SendWR {
			return roce.SendWR{Opcode: roce.WRSend, Data: response(Completion{CID: 0xffff})}
		}, "is not under way"},
		{"too short", func(cmd *Command) roce.SendWR {
			return roce.SendWR{Opcode: roce.WRSend, Data: response(Completion{CID: cmd.CID})[:15]}
		}, "a response of 15 bytes, want 16"},
		{"invalidation of another key", func(cmd *Command) roce.SendWR {
			return roce.SendWR{Opcode: roce.WRSendWithInv, InvalidateRKey: cmd.SGL.key() ^ 1, Data: response(Completion{CID: cmd.CID})}
		}, "queue pair"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			here, there := devices(t)
			try := scripted(t, there, c.respond)
			q, err := dialQueue(t.Context(), "10.0.0.2:4420", HostConfig{Device: here}, queueConfig{size: 4, maxData: 4096})
			must(t, err)
			defer q.close(context.Background())
			cmd := Command{Opcode: opIdentify}
			_, err = q.do(t.Context(), &cmd, make([]byte, 4096), roce.RemoteWrite)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("got %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q", err, c.want)
			}
			if c.want == "" {
				if got := try(); got != roce.WCRemAccessErr {
					t.Errorf("the target's late write: %v, want %v", got, roce.WCRemAccessErr)
				}
			}
		})
	}
}

// Who does not wait for a command takes the queue with it, and the target has no access any more.
func TestACommandThatIsGivenUpEndsItsQueue(t *testing.T) {
	l := newLab(t, TargetConfig{})
	h := l.connect(HostConfig{SubNQN: subsystem})
	ctx, cancel := context.WithCancel(l.ctx)
	given := make(chan error, 1)
	go func() {
		_, err := h.admin.do(ctx, &Command{Opcode: opAsyncEvent}, nil, 0) // which never is answered
		given <- err
	}()
	for len(h.admin.free) == adminDepth && l.ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-given; err != context.Canceled {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	l.ended(h)
}
