package mem_test

import (
	"fmt"

	"github.com/goroce/goroce/mem"
)

func ExampleNewTable() {
	table := mem.NewTable(nil)
	buf := make([]byte, 4096)
	region, err := table.Register(buf, 1, mem.LocalWrite|mem.RemoteWrite, 0x10000)
	if err != nil {
		fmt.Println(err)
		return
	}

	// A peer's WRITE of 5 bytes to address 0x10010.
	var c mem.Cursor
	fmt.Println(c.Remote(table, 1, region.Key(), 0x10010, 5, mem.RemoteWrite))
	fmt.Println(c.CopyIn(0, []byte("hello")))
	fmt.Printf("%s\n", buf[0x10:0x15])

	// It may not read.
	fmt.Println(c.Remote(table, 1, region.Key(), 0x10010, 5, mem.RemoteRead))

	fmt.Println(table.Deregister(region))
	fmt.Println(c.Remote(table, 1, region.Key(), 0x10010, 5, mem.RemoteWrite))
	// Output:
	// ok
	// ok
	// hello
	// access denied
	// <nil>
	// bad key
}
