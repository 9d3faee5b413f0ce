// Package cm is the connection manager (IBTA chapter 12) of one port, as a state
// machine that does no I/O: an [Agent] gets datagrams, commands and the time, and
// hands back datagrams, events and the time at which it wants to be called next.
//
// An active side calls Connect, gets EventREP and calls SendRTU. A passive side
// calls Listen, gets EventREQ, calls SendREP and gets EventEstablished. Either
// calls Disconnect or gets EventDisconnected; then the connection is in
// time-wait, and with EventTimeWaitExit its identifier and queue pair number are
// free again. Datagram services are found by Resolve and answered by Answer.
// What the messages say is in the structs of package mad, which are parameters
// of commands and parts of events alike.
//
// What IBTA leaves open is done as Linux does it (drivers/infiniband/core/cm.c,
// cma.c), because nearly every peer is Linux. The differences:
//
//   - A message must come from the address that its connection is with.
//   - A REQ that names the identifiers of a live connection, but another queue
//     pair or PSN, comes from a peer that has started again: it is stale, and the
//     old connection is ended. Linux takes it for a duplicate and drops it.
//   - A REP for an unknown connection is answered with REJ, so that the passive
//     side need not wait for its timer.
//   - Timeouts that a peer asks for are held between 17 ms and 69 s.
//   - Alternate paths are loaded, as native InfiniBand has it (Linux refuses them
//     on RoCE), but the datagrams of the connection manager itself stay on the
//     primary path.
//
// Subsections of IBTA 12.9 are named only where a public source confirms the
// number.
//
// State is bounded: see [Config] for the limits. Every message that is not acted
// upon has a [Counter].
package cm
