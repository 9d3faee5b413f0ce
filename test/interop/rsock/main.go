// Command rsock does with package rnet what the example programs of librdmacm do with rsockets, and with them: stream is the
// counterpart of rstream -T v with -I -C -S, iostream of riostream -T v with the same, copy of rcopy.
// With -to it is the client, else the server of one client, which says "listening" first. The data is checked on our side.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/goroce/goroce/roce/rnet"
)

// options are those that the programs share.
type options struct {
	addr, to                string
	port                    int
	iterations, count, size int
	file, target            string
}

func main() {
	var o options
	flag.StringVar(&o.addr, "addr", "", "local address")
	flag.StringVar(&o.to, "to", "", "address of the server")
	flag.IntVar(&o.port, "port", 7471, "port of the server")
	flag.IntVar(&o.iterations, "iterations", 1, "exchanges")
	flag.IntVar(&o.count, "count", 10, "transfers of an exchange, in each direction")
	flag.IntVar(&o.size, "size", 1000, "bytes of a transfer")
	flag.StringVar(&o.file, "file", "", "copy: what the client sends, where the server stores it")
	flag.StringVar(&o.target, "target", "", "copy: where the server of the client shall store it")
	flag.Parse()
	programs := map[string]func(options) error{"stream": stream, "iostream": iostream, "copy": copyFile}
	run, ok := programs[flag.Arg(0)]
	if !ok {
		fmt.Fprintf(os.Stderr, "rsock: %q is not stream, iostream or copy\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "rsock:", err)
		os.Exit(1)
	}
	fmt.Println("ok")
}

// timeout is for everything that a program does.
const timeout = 60 * time.Second

// connect returns a connection: to the server, which may have to start yet, or of the first client.
func connect(o options) (*rnet.Conn, error) {
	cfg := rnet.Config{}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if o.to == "" {
		l, err := cfg.Listen(ctx, "tcp", net.JoinHostPort(o.addr, fmt.Sprint(o.port)))
		if err != nil {
			return nil, err
		}
		defer l.Close()
		fmt.Println("listening")
		c, err := l.AcceptConn()
		if err == nil {
			c.SetDeadline(time.Now().Add(timeout))
		}
		return c, err
	}
	for {
		c, err := cfg.Dial(ctx, "tcp", net.JoinHostPort(o.to, fmt.Sprint(o.port)))
		if errors.Is(err, syscall.ECONNREFUSED) && ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if err == nil {
			c.SetDeadline(time.Now().Add(timeout))
		}
		return c, err
	}
}
