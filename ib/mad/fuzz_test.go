package mad

import (
	"bytes"
	"path/filepath"
	"reflect"
	"testing"
)

// Whatever arrives, decoding does not fail, finds nothing outside the datagram,
// and what it found survives encoding and decoding.
func FuzzDecode(f *testing.F) {
	for _, b := range readCaptured(f, filepath.Join("..", "testdata", "rxe", "rxe-linux-6.1.pcap")) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, bad := Parse(b)
		if bad != OK {
			return
		}
		for _, m := range []Message{
			Header{Class: ClassCM, Attr: h.Attr}.Message(), &ClassPortInfo{Class: h.Class}, &PortCounters{}, &PortCountersExtended{},
		} {
			if m == nil {
				continue
			}
			before := bytes.Clone(b)
			Decode(b, m)
			once := bytes.Repeat([]byte{0xa5}, Size)
			h.Put(once)
			Put(once, m)
			if got, _ := Parse(once); got != h {
				t.Fatalf("header %+v becomes %+v", h, got)
			}
			second := reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)
			if info, ok := m.(*ClassPortInfo); ok {
				second.(*ClassPortInfo).Class = info.Class
			}
			if Decode(once, second); !reflect.DeepEqual(m, second) {
				t.Fatalf("%+v becomes %+v", m, second)
			}
			for i := range once[HeaderSize:] {
				if extra := once[HeaderSize+i] &^ b[HeaderSize+i]; extra != 0 && !changes(m, i) {
					t.Fatalf("%T: byte %d has bits %#x that did not arrive", m, i, extra)
				}
			}
			if !bytes.Equal(b, before) {
				t.Fatal("Decode writes")
			}
		}
		if ip, ok := ParseIPHeader(b); ok && ip.Put(make([]byte, IPHeaderSize)) != IPHeaderSize {
			t.Fatal("rdma_cm header")
		}
	})
}

// changes says which bytes are not copied: the base version, and a length of
// additional information above what there is.
func changes(m Message, at int) bool {
	switch m := m.(type) {
	case *ClassPortInfo:
		return m.Class == ClassPerfMgt && at == perfData || m.Class != ClassPerfMgt && at == 0
	case *REJ:
		return at == 9 && len(m.ARI) == InfoSize
	case *APR:
		return at == 8 && len(m.Info) == InfoSize
	case *SIDRREP:
		return at == 5 && len(m.Info) == InfoSize
	}
	return false
}
