//go:build linux

package main

import (
	"errors"
	"io"
	"net"
	"time"
)

// TCP has the connection of the test itself. Nothing is done with the data.

const (
	tcpWrite = 64 << 10
	tcpRead  = 256 << 10
)

func tcpStreamServer(c net.Conn, _ []string) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, tcpRead))
	return err
}

func tcpStreamClient(c net.Conn, _ []string) (r roleReport, err error) {
	b := make([]byte, tcpWrite)
	begin := time.Now()
	for time.Since(begin) < streamFor {
		if _, err := c.Write(b); err != nil {
			return r, err
		}
		r.Messages++
		r.Bytes += tcpWrite
	}
	// What is still in the socket's buffer has not arrived: wait for it.
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return r, err
	}
	if _, err := c.Read(b); !errors.Is(err, io.EOF) {
		return r, err
	}
	r.Took = time.Since(begin)
	return r, nil
}

func tcpPingPongServer(c net.Conn, _ []string) error {
	var b [pingBytes]byte
	for {
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return nil // the client has what it wants
		}
		if _, err := c.Write(b[:]); err != nil {
			return err
		}
	}
}

func tcpPingPongClient(c net.Conn, _ []string) (roleReport, error) {
	var b [pingBytes]byte
	return pingPong(func() error {
		if _, err := c.Write(b[:]); err != nil {
			return err
		}
		_, err := io.ReadFull(c, b[:])
		return err
	})
}
