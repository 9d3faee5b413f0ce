// Package wire holds what the parts of the interoperability harness say to each other: the frames between the harness and the agent in
// a guest, the JSON lines between the harness and a verbs peer, and the data pattern that both peers compute.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// AgentPort is the TCP port on which the agent in a guest listens.
const AgentPort = 7077

// MaxFrame is the longest frame payload in bytes; a longer one is a protocol error.
const MaxFrame = 1 << 20

// Kind says what a frame carries.
type Kind byte

// The frame kinds. A connection carries one command: the harness opens with FrameCommand; for "exec" it may send FrameData (standard
// input) and FrameEnd (end of input) and receives FrameStdout and FrameStderr until FrameResult; for "put" it sends the file's content
// as FrameData and then FrameEnd; for "get" it receives FrameData. Every command ends with FrameResult, unless the connection dies.
const (
	FrameCommand Kind = 'q' // a Command in JSON
	FrameData    Kind = 'd' // bytes of standard input or of a file
	FrameEnd     Kind = 'e' // no more FrameData
	FrameStdout  Kind = 'o' // bytes of standard output
	FrameStderr  Kind = 'r' // bytes of standard error
	FrameResult  Kind = 'x' // a Result in JSON
)

// Command is one request to the agent. Op is one of:
//
//	ping      nothing but an answer
//	exec      run Argv until it ends; when the connection closes first, its process group is killed
//	put       write a file Path with mode Mode from the following data
//	get       read a file Path
//	waitport  wait until something listens on TCP port Port, at most TimeoutMS
//	poweroff  stop the guest
type Command struct {
	Op        string   `json:"op"`
	Argv      []string `json:"argv,omitempty"`
	Path      string   `json:"path,omitempty"`
	Mode      uint32   `json:"mode,omitempty"`
	Port      int      `json:"port,omitempty"`
	TimeoutMS int      `json:"timeout_ms,omitempty"`
}

// Result ends a command. Err is empty on success of the command itself; Exit is the exit status of an "exec", 128+n for signal n.
type Result struct {
	Exit int    `json:"exit"`
	Err  string `json:"err,omitempty"`
}

// WriteFrame writes one frame with one Write. It may be called concurrently only if w's Write may.
func WriteFrame(w io.Writer, k Kind, payload []byte) error {
	if len(payload) > MaxFrame {
		return fmt.Errorf("frame of %d bytes is longer than %d", len(payload), MaxFrame)
	}
	b := make([]byte, 5, 5+len(payload))
	b[0] = byte(k)
	binary.BigEndian.PutUint32(b[1:], uint32(len(payload)))
	_, err := w.Write(append(b, payload...))
	return err
}

// WriteJSON writes v as the payload of one frame.
func WriteJSON(w io.Writer, k Kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return WriteFrame(w, k, b)
}

// ReadFrame reads one frame. A clean end of the stream between frames is io.EOF, one inside a frame io.ErrUnexpectedEOF.
func ReadFrame(r io.Reader) (Kind, []byte, error) {
	var h [5]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("frame of %d bytes is longer than %d", n, MaxFrame)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return Kind(h[0]), b, nil
}
