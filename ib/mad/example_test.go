package mad_test

import (
	"fmt"
	"net/netip"

	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

// A request for a connection, as rdma_cm makes it and as its receiver reads it.
func ExampleEncodeCM() {
	private := make([]byte, mad.IPHeaderSize)
	mad.IPHeader{SrcPort: 40000, Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2")}.Put(private)
	b := make([]byte, mad.Size)
	mad.EncodeCM(b, 1, &mad.REQ{
		LocalCommID: 7, ServiceID: mad.PortSpaceTCP.ServiceID(7471), LocalQPN: 0x11, PathMTU: ib.MTU1024,
		PrivateData: append(private, "hello"...),
	})

	h, bad := mad.Parse(b)
	fmt.Println(bad, h.Class, h.Attr == mad.AttrREQ)
	var req mad.REQ
	mad.Decode(b, &req)
	from, ok := mad.ParseIPHeader(req.PrivateData)
	fmt.Println(req.ServiceID, req.LocalQPN, from.Src, from.SrcPort, ok, string(req.PrivateData[mad.IPHeaderSize:][:5]))
	// Output:
	// ok CM true
	// RDMA_PS_TCP port 7471 0x000011 10.0.0.1 40000 true hello
}
