// Package rdmacm connects queue pairs by IP address and port, as librdmacm does:
// [Dial], [Listen], [Listener.Accept], [Request.Accept], [Request.Reject],
// [Conn.Disconnect]. The connection manager's datagrams travel by queue pair 1
// (IBTA chapter 12), with the private-data header of Linux's rdma_cm (IBTA annex
// A11), so that the other side may be any RDMA program that uses rdma_cm, on rxe or
// a network card.
//
// A [Conn] is what rdma_cm calls an id: a queue pair with a way to its peer. In
// the port spaces TCP and IB the queue pair is connected; in the port space UDP it
// is a datagram queue pair, and the Conn knows the peer's number and Q_Key and has
// an address handle for it. [JoinMulticast] gives one for a multicast group.
//
// # Order of things
//
// Receive requests have to be posted before the peer may send. Config.Prepare is
// called when the queue pair can take them and before the peer is told of it.
//
// # Concurrency
//
// Every method may be called from any goroutine. Config.Prepare runs in the
// goroutine that called Dial or Accept, with no lock held.
package rdmacm
