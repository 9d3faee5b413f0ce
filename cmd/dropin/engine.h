/* What the C libraries and the engine tell each other, besides types of libibverbs.
 *
 * Objects have handles, numbers above 0. A cookie is the caller's: it comes back with
 * events. Functions return 0 or an errno, unless said otherwise.
 */
#ifndef GOROCE_ENGINE_H
#define GOROCE_ENGINE_H

#include <infiniband/verbs.h>

/* The work queues of a queue pair, see roce.QueueLayout: entries of a size, in
 * memory that is the queue pair's. */
struct goroce_queues {
	uint32_t *state; /* enum ibv_qp_state */
	uint32_t *send_produced, *send_consumed, *send_idle;
	uint32_t *recv_produced, *recv_consumed;
	struct goroce_send *send;
	struct ibv_sge *send_sges; /* max_send_sge for each entry */
	uint8_t *send_inline;      /* max_inline_data for each entry */
	struct goroce_recv *recv;  /* NULL without a receive queue */
	struct ibv_sge *recv_sges; /* max_recv_sge for each entry */
	uint32_t max_len;          /* bytes of the longest message */
};

/* transport.SendWQE */
struct goroce_send {
	uint64_t id;
	uint8_t opcode; /* enum ibv_wr_opcode */
	uint8_t flags;  /* enum ibv_send_flags */
	uint16_t num_sge;
	uint32_t imm; /* host order, or the key to invalidate */
	uint64_t remote_addr;
	uint32_t rkey;
	uint32_t inline_len;
	uint64_t compare_add;
	uint64_t swap;
	uint32_t ah; /* number of the address handle */
	uint32_t remote_qpn;
	uint32_t qkey;
	uint32_t srqn;
};

/* A slot of a receive queue. */
struct goroce_recv {
	uint64_t id;
	uint32_t num_sge;
	uint32_t unused;
};

/* What a queue pair is made of, and then has. */
struct goroce_qp {
	uint32_t pd, send_cq, recv_cq, srq, xrcd; /* handles, or 0 */
	uint32_t type;                            /* enum ibv_qp_type */
	int sig_all;
	uintptr_t cookie;
	struct ibv_qp_cap cap; /* as asked for, then as it is */
	uint32_t handle, num;  /* from here on set by the engine */
	struct goroce_queues queues;
};

struct goroce_srq {
	uint32_t pd, xrcd, cq; /* handles, or 0 */
	uintptr_t cookie;
	struct ibv_srq_attr attr; /* as asked for, then as it is */
	uint32_t handle, num;
};

/* An IP address and port, host order. */
struct goroce_addr {
	uint8_t ip[16]; /* IPv4 ones as ::ffff:a.b.c.d */
	uint16_t port;
	uint32_t scope;
};

/* How a connection is asked for or accepted, struct rdma_conn_param. */
struct goroce_cm_param {
	const void *private_data;
	uint8_t private_len;
	uint8_t responder_resources, initiator_depth;
	uint8_t flow_control;
	uint8_t retry_count, rnr_retry_count;
	uint8_t tos;
	uint8_t timeout; /* of acknowledgements, 5 bits; 0: not set */
	uint32_t qp_num, qp_type; /* of a queue pair that the program connects by itself */
};

/* How the connections of an rsocket are made, struct rnet.Config; 0: not set. */
struct goroce_rconfig {
	int send_buffer, recv_buffer; /* bytes */
	int send_queue, recv_queue;   /* messages */
	int inlined;                  /* bytes; the engine has its own idea */
	int maps;                     /* areas of memory that the peer may map */
	int keepalive;
};

struct goroce_cm_event {
	uint32_t type; /* enum rdma_cm_event_type */
	int status;
	uintptr_t id, listen_id; /* cookies; of a request listen_id alone */
	uint32_t child;          /* the handle of a request's new id */
	struct goroce_addr src, dst;
	uint8_t private_data[256];
	uint8_t private_len;
	uint8_t responder_resources, initiator_depth;
	uint8_t flow_control;
	uint8_t retry_count, rnr_retry_count;
	uint8_t srq;
	uint32_t qp_num, qkey;
	uintptr_t join; /* the cookie of rdma_join_multicast */
};

#endif
