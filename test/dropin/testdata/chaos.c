/* chaos THREADS SECONDS: threads that make, use and destroy everything, on one device that
 * others open and close meanwhile. Each thread connects queue pairs to each other, does a
 * WRITE, a READ and a SEND whose bytes it compares, and takes things down in varying
 * order, some of them while requests are under way. Exit status 0: all was right. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "need.h"

#define SIZE 20000

static struct ibv_device *device;
static time_t end;
static unsigned long rounds;

/* What a round has. */
struct life {
	unsigned seed;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp[2];
	struct ibv_mr *mr;
	uint8_t *buf; /* two halves */
};

static int chance(struct life *l, int of) { return rand_r(&l->seed) % of == 0; }

static void make(struct life *l)
{
	NEED(l->pd = ibv_alloc_pd(l->context));
	l->channel = NULL;
	if (chance(l, 2))
		NEED(l->channel = ibv_create_comp_channel(l->context));
	NEED(l->cq = ibv_create_cq(l->context, 16, l, l->channel, 0));
	l->srq = NULL;
	if (chance(l, 2)) {
		struct ibv_srq_init_attr a = {.attr = {.max_wr = 4, .max_sge = 1}};
		NEED(l->srq = ibv_create_srq(l->pd, &a));
	}
	NEED(l->buf = calloc(2, SIZE));
	NEED(l->mr = ibv_reg_mr(l->pd, l->buf, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr a = {.send_cq = l->cq, .recv_cq = l->cq, .srq = l->srq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
		NEED(l->qp[i] = ibv_create_qp(l->pd, &a));
	}
}

static void connect_qps(struct life *l)
{
	union ibv_gid gid;
	NEED(!ibv_query_gid(l->context, 1, 0, &gid));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
		NEED(!ibv_modify_qp(l->qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = l->qp[!i]->qp_num, .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		                        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}}};
		NEED(!ibv_modify_qp(l->qp[i], &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
		a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
		NEED(!ibv_modify_qp(l->qp[i], &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
	}
}

static void post(struct life *l, enum ibv_wr_opcode op)
{
	struct ibv_sge sge = {.addr = (uintptr_t)l->buf, .length = SIZE, .lkey = l->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = op, .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED}, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)l->buf + SIZE;
	wr.wr.rdma.rkey = l->mr->rkey;
	NEED(!ibv_post_send(l->qp[0], &wr, &bad));
}

static void post_recv(struct life *l)
{
	struct ibv_sge sge = {.addr = (uintptr_t)l->buf + SIZE, .length = SIZE, .lkey = l->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 99, .sg_list = &sge, .num_sge = 1}, *bad;
	NEED(!(l->srq ? ibv_post_srq_recv(l->srq, &wr, &bad) : ibv_post_recv(l->qp[1], &wr, &bad)));
}

/* next waits for a completion, by event or polling. */
static void next(struct life *l)
{
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(l->cq, 1, &wc)) == 0) {
		struct ibv_cq *cq;
		void *context;
		if (!l->channel || chance(l, 2))
			continue;
		NEED(!ibv_req_notify_cq(l->cq, 0));
		if ((n = ibv_poll_cq(l->cq, 1, &wc)) != 0)
			break;
		NEED(!ibv_get_cq_event(l->channel, &cq, &context) && cq == l->cq && context == l);
		ibv_ack_cq_events(cq, 1);
	}
	NEED(n == 1 && wc.status == IBV_WC_SUCCESS);
}

static void fill(uint8_t *p, unsigned salt)
{
	for (int i = 0; i < SIZE; i++)
		p[i] = i * 7 + (i >> 8) + salt;
}

static void use(struct life *l)
{
	unsigned salt = rand_r(&l->seed);
	fill(l->buf, salt);
	post(l, IBV_WR_RDMA_WRITE);
	next(l);
	NEED(!memcmp(l->buf, l->buf + SIZE, SIZE));
	fill(l->buf + SIZE, salt + 1);
	post(l, IBV_WR_RDMA_READ);
	next(l);
	NEED(!memcmp(l->buf, l->buf + SIZE, SIZE));
	fill(l->buf, salt + 2);
	post_recv(l);
	post(l, IBV_WR_SEND);
	next(l);
	next(l);
	NEED(!memcmp(l->buf, l->buf + SIZE, SIZE));
	if (chance(l, 3)) /* to be destroyed on its way */
		post(l, IBV_WR_RDMA_WRITE);
}

static void destroy(struct life *l)
{
	int first = chance(l, 2);
	NEED(!ibv_destroy_qp(l->qp[first]));
	if (chance(l, 2))
		NEED(ibv_destroy_cq(l->cq) == EBUSY && ibv_dealloc_pd(l->pd) == EBUSY);
	NEED(!ibv_destroy_qp(l->qp[!first]));
	NEED(!ibv_dereg_mr(l->mr));
	if (l->srq)
		NEED(!ibv_destroy_srq(l->srq));
	NEED(!ibv_destroy_cq(l->cq));
	if (l->channel)
		NEED(!ibv_destroy_comp_channel(l->channel));
	NEED(!ibv_dealloc_pd(l->pd));
	free(l->buf);
}

/* listens has an id that listens, and goes. */
static void listens(void)
{
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct sockaddr_in any = {.sin_family = AF_INET};
	NEED(events = rdma_create_event_channel());
	NEED(!rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(id, (struct sockaddr *)&any));
	if (rdma_listen(id, 4)) /* two may have chosen one port */
		NEED(errno == EADDRINUSE);
	NEED(!rdma_destroy_id(id));
	rdma_destroy_event_channel(events);
}

static void *run(void *arg)
{
	struct life l = {.seed = (unsigned)(uintptr_t)arg};
	while (time(NULL) < end) {
		NEED(l.context = ibv_open_device(device));
		for (int i = rand_r(&l.seed) % 4; i >= 0; i--) {
			make(&l);
			connect_qps(&l);
			use(&l);
			destroy(&l);
			if (chance(&l, 4))
				listens();
			__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
		}
		NEED(!ibv_close_device(l.context));
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[64];
	int n = argc == 3 ? atoi(argv[1]) : 0, devices;
	NEED(n > 0 && n <= 64);
	end = time(NULL) + atoi(argv[2]);
	struct ibv_device **list = ibv_get_device_list(&devices);
	NEED(list && devices == 1);
	device = list[0];
	struct ibv_context *first = ibv_open_device(device); /* which keeps the address */
	NEED(first);
	for (int i = 0; i < n; i++)
		NEED(!pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)(i + 1)));
	for (int i = 0; i < n; i++)
		NEED(!pthread_join(threads[i], NULL));
	NEED(!ibv_close_device(first));
	ibv_free_device_list(list);
	printf("%lu rounds, right\n", rounds);
	return 0;
}
