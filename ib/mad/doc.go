// Package mad holds management datagrams as RoCE uses them: the header, the
// messages of the connection manager (IBTA chapter 12), the counters that
// performance management reads (IBTA 16.1), and the header of Linux's rdma_cm
// in the private data.
//
// Like package ib it is a leaf: no goroutine, no clock, no lock, no allocation,
// and every function may be called concurrently on different values.
//
// A receiver calls [Parse] once, looks at [Header.Attr] and decodes the message
// that it names; no decoder fails, because each datagram has the same size and
// each bit pattern means something. A sender calls [EncodeCM], or the
// header's Put and [Put]. Every message has one layout method, which both
// directions use.
package mad
