// Package nvme is a minimal NVMe over Fabrics host and target on RDMA: what Linux's nvmet-rdma and nvme-rdma are to each other, on this
// stack. It is here to meet those two; Connect makes a host, Listen a target with one namespace in memory.
//
// Sources: NVM Express over Fabrics 1.1 and NVM Express 1.3 for capsules, commands and data structures; Linux include/linux/nvme.h and
// include/linux/nvme-rdma.h for their layout; drivers/nvme/host/rdma.c and drivers/nvme/target/rdma.c for what goes over RDMA: a command
// capsule is a SEND of 64 bytes with, on an I/O queue, data behind it; other data moves by RDMA READ and RDMA WRITE of the target under
// the key in the command; the response capsule is a SEND of 16 bytes that invalidates this key if the host has asked for it.
//
// What it does not have: authentication, more than one namespace, metadata, reservations, asynchronous events to report, reconnecting.
package nvme
