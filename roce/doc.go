// Package roce is a RoCEv2 channel adapter in user space: verbs over UDP port
// 4791, with no kernel module, no cgo and no privileges.
//
// The nouns and their numbers are those of libibverbs: a Device is opened on a
// local IP address; it hands out protection domains (PD), memory regions (MR),
// completion queues (CQ) and queue pairs (QP). Requests are posted to a QP and
// complete on a CQ, each exactly once: with success, an error or flushed. A QP is
// a reliable (RC) or unreliable connection (UC), or sends and receives datagrams
// (UD), whose destinations are address handles (AH).
//
// # From start to end
//
// Open a device, allocate a PD, create a CQ and a QP, register memory. Tell the peer,
// by a channel of your own, Device.Addr, QP.Num and QP.PSN, and with them the
// address and key of memory that it may WRITE or READ (MR.Addr, MR.RKey); with the
// same of the peer QP.Connect takes the queue pair to RTS. Post receives before the
// peer sends. Post requests with QP.PostSend; memory that they name belongs to the
// device until they have completed. Take completions with CQ.Poll, or wait for them
// with CQ.Wait. Device.Close ends it all; objects may be freed one by one in the
// reverse order before.
//
// # Errors
//
// What is wrong with the arguments of a call is its error: a *ConfigError,
// *AttrError or *PostError names the field and says what is allowed. What goes wrong
// with a request that was posted is the Status of its completion. Nearly all of
// these end the connection: the QP goes to the error state, what is left completes as
// WCWRFlushErr, and Device.NextEvent may tell more. From there QP.Modify takes the QP to
// RESET, to be connected anew. After Device.Close calls return ErrClosed.
//
// # Concurrency
//
// Every method of every type may be called from any goroutine. Posting and
// polling never wait for the network. CQ.Poll makes progress itself when it
// finds nothing; a goroutine of the device does so when nobody polls. With
// Config.Manual there is no goroutine and Device.Progress is the only thing
// that moves packets.
//
// # Memory
//
// An MR covers a []byte of the caller. What a peer writes there may be read
// once the completion that covers it has been polled, or at any time through
// the MR's atomic accessors.
//
// # More
//
// Package rocetest connects two endpoints in memory, for tests. The page docs/verbs.md
// of the module goes through libibverbs call by call.
package roce
