// Package rnet is Go's package net over RDMA: a Conn is a net.Conn over a reliable
// connection, whose bytes the sender writes straight into a buffer of the receiver.
//
// The protocol is that of the rsockets of librdmacm (rsocket(7)), so the other side
// may be any program that uses them. On the wire it is RDMA WRITEs with immediate
// data; see the comments of type stream.
//
// # Concurrency
//
// Every method may be called from any goroutine. Read and Write do not hinder each
// other. Close returns at once; what was written is still delivered, for as long as
// Config.Linger says.
package rnet
