package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"testing"
)

func TestFramesSurviveTheTrip(t *testing.T) {
	var b bytes.Buffer
	want := []struct {
		k Kind
		p []byte
	}{{FrameData, nil}, {FrameStdout, []byte("x")}, {FrameData, bytes.Repeat([]byte{7}, MaxFrame)}}
	for _, f := range want {
		if err := WriteFrame(&b, f.k, f.p); err != nil {
			t.Fatal(err)
		}
	}
	for i, f := range want {
		k, p, err := ReadFrame(&b)
		if err != nil || k != f.k || !bytes.Equal(p, f.p) {
			t.Fatalf("frame %d: got kind %c, %d bytes, %v", i, k, len(p), err)
		}
	}
	if _, _, err := ReadFrame(&b); err != io.EOF {
		t.Fatalf("at the end: got %v, want io.EOF", err)
	}
}

func TestBadFramesAreRefused(t *testing.T) {
	if err := WriteFrame(io.Discard, FrameData, make([]byte, MaxFrame+1)); err == nil {
		t.Error("a frame that is too long was written")
	}
	if _, _, err := ReadFrame(bytes.NewReader([]byte{'d', 0xff, 0xff, 0xff, 0xff})); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a frame that claims 4 GiB: got %v, want a refusal of its length", err)
	}
	if _, _, err := ReadFrame(bytes.NewReader([]byte{'d', 0, 0, 0, 9, 1})); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a frame cut short: got %v, want io.ErrUnexpectedEOF", err)
	}
}

// The value is what Python's hashlib.shake_128(b"s").hexdigest(8) prints: both peers must agree.
func TestPatternIsShake128(t *testing.T) {
	b := make([]byte, 8)
	Pattern(b, "s")
	if got := hex.EncodeToString(b); got != "bc5ac4a37d609be4" {
		t.Errorf("got %s", got)
	}
}
