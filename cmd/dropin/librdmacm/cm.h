/* What the files of librdmacm know of each other. */
#ifndef GOROCE_CM_H
#define GOROCE_CM_H

#include <netinet/in.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "goroce.h"

struct channel_of {
	struct rdma_event_channel ibv;
	uint32_t handle; /* 0: the engine does not know it yet */
};

struct cm_id {
	struct rdma_cm_id id;
	uint32_t handle; /* 0: the engine does not know it yet */
	bool sync;       /* it has a channel of its own, and its calls wait */
	int backlog;
	uint8_t tos, timeout;
	struct goroce_cm_event asked; /* of a request: what the peer asks for */
	struct ibv_qp_init_attr *qp_attr; /* of an endpoint that listens: for its requests */
	void *connect;                    /* of an endpoint: private data of rdma_addrinfo */
	size_t connect_len;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t acked; /* events, below mutex */
};

struct cm_event {
	struct rdma_cm_event ev;
	struct cm_id *counts; /* the id whose event it is */
	uint8_t private_data[256];
};

static inline struct cm_id *cm(struct rdma_cm_id *id) { return container_of(id, struct cm_id, id); }

/* CM_CALL is CALL of an id: EINVAL when the engine does not know it, which it may not
 * even be loaded for. */
#define CM_CALL(name, c, ...) ((c)->handle ? CALL(name, (c)->handle, ##__VA_ARGS__) : EINVAL)

/* done returns 0, or -1 with errno, for an errno. */
static inline int done(int err) { return err ? failing(err) : 0; }

#pragma GCC visibility push(hidden)

/* id.c */
struct ibv_context *shared_context(void); /* of this process; NULL with errno set */
int known(struct cm_id *id);              /* makes the engine know the id; 0 or an errno */
int complete(struct rdma_cm_id *id);      /* waits for the event of a synchronous call; 0, or -1 with errno */
void put_sockaddr(struct sockaddr_storage *sa, const struct goroce_addr *a);
int get_addr(struct goroce_addr *a, const struct sockaddr *sa);
struct cm_id *new_id(struct rdma_event_channel *channel, void *context, enum rdma_port_space ps);
void use_device(struct rdma_cm_id *id, struct ibv_context *verbs);

int own_addr(struct goroce_addr *at, union ibv_gid *gid); /* checks that an address is the device's, or none in particular; 0 or an errno */

/* rsocket.c */
uint32_t rsocket_handle(int fd); /* the engine's, 0 of what is no rsocket */

#pragma GCC visibility pop

#endif
