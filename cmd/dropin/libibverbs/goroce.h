/* What the files of libibverbs, and librdmacm, know of each other. */
#ifndef GOROCE_H
#define GOROCE_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "libgoroce.h" /* made with the engine, includes engine.h */

/* The engine's functions, by their names without the prefix. */
#define GOROCE_CALLS(X)                                                                                           \
	X(Open) X(Close) X(QueryDevice) X(QueryPort) X(QueryGID) X(EventFD) X(GetEvent)                           \
	X(AllocPD) X(DeallocPD) X(RegMR) X(ReregMR) X(DeregMR) X(AllocMW) X(DeallocMW) X(BindMW)                  \
	X(CreateAH) X(DestroyAH) X(InitAH) X(OpenXRCD) X(CloseXRCD)                                               \
	X(CreateCQ) X(ResizeCQ) X(ModerateCQ) X(DestroyCQ) X(PollCQ) X(ReqNotifyCQ)                               \
	X(CreateChannel) X(DestroyChannel) X(GetCQEvent)                                                          \
	X(CreateQP) X(OpenQP) X(DestroyQP) X(ModifyQP) X(QueryQP) X(AttachMulticast) X(DetachMulticast) X(Doorbell) \
	X(CreateSRQ) X(ModifySRQ) X(QuerySRQ) X(DestroySRQ) X(PostSRQ)                                            \
	X(CMChannel) X(CMCloseChannel) X(CMCreate) X(CMAdopt) X(CMMigrate) X(CMTell) X(CMGetEvent) X(CMDestroy)   \
	X(CMListen) X(CMConnect) X(CMAccept) X(CMReject) X(CMDisconnect) X(CMJoin) X(CMLeave) \
	X(CMAttr) X(CMEstablish) X(CMNotify)                                                                      \
	X(RSocket) X(RListen) X(RAccept) X(RConnect) X(RError) X(RNames) X(RRecv) X(RSend) X(RWriteAt) X(RMap)    \
	X(RUnmap) X(RShutdown) X(RClose) X(RReady) X(RWatch) X(RUnwatch)

struct goroce_engine {
#define X(name) __typeof__(goroce##name) *name;
	GOROCE_CALLS(X)
#undef X
};

/* engine.c */
extern struct goroce_engine goroce_engine; /* filled by goroce_load */
extern bool goroce_orphan;                 /* a child of a process that had the engine: it has none */
int goroce_load(void);                     /* loads the engine, once; 0 or an errno */

/* CALL(name, ...) is 0 or an errno. Objects exist after goroce_load alone. */
#define CALL(name, ...) (__builtin_expect(goroce_orphan, 0) ? EIO : goroce_engine.name(__VA_ARGS__))

/* fail returns NULL with errno set; failing returns -1. */
static inline void *fail(int err)
{
	errno = err;
	return NULL;
}

static inline int failing(int err)
{
	errno = err;
	return -1;
}

#define container_of(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))

struct context {
	uint32_t handle;
	int refs; /* of the program and of each object: they may be left when it closes the device */
	struct verbs_context v;
};

struct pd {
	struct ibv_pd ibv; /* its handle is the engine's */
	struct pd *parent; /* of a parent domain: the domain it is made of */
	int refs;          /* parent domains made of it */
};

struct td {
	struct ibv_td ibv;
	int refs; /* parent domains made of it */
};

struct mr {
	struct ibv_mr ibv;
	unsigned access;
};

struct ah {
	struct ibv_ah ibv; /* its handle is the number in work requests */
	uint32_t object;
};

struct xrcd {
	struct ibv_xrcd ibv;
	uint32_t handle;
};

struct channel {
	struct ibv_comp_channel ibv;
	uint32_t handle;
};

#define CQ_BATCH 16

struct cq {
	union {
		struct ibv_cq ibv;
		struct ibv_cq_ex ex;
	};
	pthread_mutex_t lock;        /* of what follows */
	struct ibv_wc wcs[CQ_BATCH]; /* taken from the engine and not yet polled: first to end */
	unsigned first, end;
	bool unlocked; /* IBV_CREATE_CQ_ATTR_SINGLE_THREADED */
};

struct srq {
	struct ibv_srq ibv;
	uint32_t num;
};

struct qp {
	union {
		struct ibv_qp ibv;
		struct {
			struct ibv_qp_ex ex;
			/* where newer headers have it */
			void (*wr_flush)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, size_t len, uint8_t type, uint8_t level);
		};
	};
	bool extended;
	int sq_sig_all;
	struct ibv_qp_cap cap;
	struct goroce_queues queues;
	pthread_mutex_t send_lock, recv_lock;
	/* Between wr_start and wr_complete, under send_lock: */
	uint32_t built; /* requests that were begun */
	int error;
};

static inline struct context *context_of(struct ibv_context *c) { return container_of(c, struct context, v.context); }

#pragma GCC visibility push(hidden)

/* device.c */
int hold(struct ibv_context *c);     /* one object more; always 0 */
void let_go(struct ibv_context *c);  /* ... less */
void fill_ops(struct verbs_context *v);
bool is_device(const char *dev_name); /* once it was listed */

/* post.c */
#define QP_EX_WITH_FLUSH (1 << 11) /* not in all headers that this is built with */
#define QP_EX_WITH_ATOMIC_WRITE (1 << 12)
int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
void fill_builder(struct qp *q, uint64_t ops);
uint64_t builder_ops(enum ibv_qp_type type);

/* cq.c */
int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int req_notify_cq(struct ibv_cq *cq, int solicited_only);
struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
void forget(struct ibv_cq *cq, uint32_t qp_num); /* the completions of a queue pair; cq may be NULL */
int modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);

/* qp.c */
struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
struct ibv_qp *open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr);
struct ibv_srq *create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
int get_srq_num(struct ibv_srq *srq, uint32_t *num);

/* memory.c */
struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int dealloc_mw(struct ibv_mw *mw);
struct ibv_pd *alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr);
struct ibv_td *alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr);
int dealloc_td(struct ibv_td *td);
struct ibv_xrcd *open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr);
int close_xrcd(struct ibv_xrcd *xrcd);

#pragma GCC visibility pop

/* events.c */
int goroce_wait_readable(int fd); /* 0, or an errno: EAGAIN when fd is not to be waited for */
void goroce_await_acks(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *completed, uint32_t given);

#endif
