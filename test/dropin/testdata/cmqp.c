/* cmqp ADDR PORT [server|fork]: a program of librdmacm whose queue pair is its own: it makes
 * it without rdma_create_qp and moves it to RTS with rdma_init_qp_attr, as UCX does. Each
 * side sends a message, and compares the one it gets. With fork it only listens, in
 * processes that have forked before and after. Exit status 0: all was right. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

#include "need.h"

#define SIZE 65536

static struct rdma_event_channel *events;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint8_t *buf; /* what is sent, then what is received */

static struct rdma_cm_event *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *ev;
	NEED(!rdma_get_cm_event(events, &ev));
	if (ev->event != type)
		fprintf(stderr, "%s, status %d\n", rdma_event_str(ev->event), ev->status);
	NEED(ev->event == type && ev->status == 0);
	return ev;
}

static void pass(enum rdma_cm_event_type type) { NEED(!rdma_ack_cm_event(expect(type))); }

static void move(struct rdma_cm_id *id, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};
	int mask;
	NEED(!rdma_init_qp_attr(id, &attr, &mask));
	NEED(attr.qp_state == state);
	NEED(!ibv_modify_qp(qp, &attr, mask));
}

/* make makes a queue pair in INIT, with the receive posted. */
static void make(struct rdma_cm_id *id)
{
	struct ibv_pd *pd;
	NEED(pd = ibv_alloc_pd(id->verbs));
	NEED(cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0));
	NEED(buf = calloc(2, SIZE));
	NEED(mr = ibv_reg_mr(pd, buf, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	NEED(qp = ibv_create_qp(pd, &attr));
	move(id, IBV_QPS_INIT);
	struct ibv_sge sge = {.addr = (uintptr_t)buf + SIZE, .length = SIZE, .lkey = mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
	NEED(!ibv_post_recv(qp, &wr, &bad));
}

/* exchange sends bytes made of one number and expects those of another. */
static void exchange(int mine, int theirs)
{
	for (int i = 0; i < SIZE; i++)
		buf[i] = i * mine + (i >> 8);
	struct ibv_sge sge = {.addr = (uintptr_t)buf, .length = SIZE, .lkey = mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	NEED(!ibv_post_send(qp, &wr, &bad));
	for (int got = 0; got != 3;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);
		NEED(n >= 0);
		if (n == 0)
			continue;
		NEED(wc.status == IBV_WC_SUCCESS);
		got |= wc.wr_id;
	}
	for (int i = 0; i < SIZE; i++)
		NEED(buf[SIZE + i] == (uint8_t)(i * theirs + (i >> 8)));
}

static void server(struct rdma_cm_id *listener, struct sockaddr_in *at)
{
	NEED(!rdma_bind_addr(listener, (struct sockaddr *)at));
	NEED(!rdma_listen(listener, 1));
	struct rdma_cm_event *ev = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = ev->id;
	NEED(ev->param.conn.responder_resources == 3 && ev->param.conn.private_data_len >= 5 && !memcmp(ev->param.conn.private_data, "hello", 5));
	NEED(!rdma_ack_cm_event(ev));
	make(id);
	move(id, IBV_QPS_RTR);
	move(id, IBV_QPS_RTS);
	struct rdma_conn_param p = {.qp_num = qp->qp_num, .responder_resources = 3, .initiator_depth = 2, .rnr_retry_count = 7};
	NEED(!rdma_accept(id, &p));
	pass(RDMA_CM_EVENT_ESTABLISHED);
	exchange(5, 3);
	pass(RDMA_CM_EVENT_DISCONNECTED);
	NEED(!ibv_destroy_qp(qp));
	NEED(!rdma_destroy_id(id));
}

static void client(struct rdma_cm_id *id, struct sockaddr_in *to)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	int mask;
	NEED(rdma_init_qp_attr(id, &attr, &mask) == -1 && errno == EINVAL);
	NEED(rdma_establish(id) == -1 && rdma_disconnect(id) == -1);
	NEED(!rdma_resolve_addr(id, NULL, (struct sockaddr *)to, 2000));
	pass(RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(!rdma_resolve_route(id, 2000));
	pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
	make(id);
	struct rdma_conn_param p = {.qp_num = qp->qp_num, .initiator_depth = 3, .responder_resources = 2, .retry_count = 7, .rnr_retry_count = 7, .private_data = "hello", .private_data_len = 5};
	NEED(!rdma_connect(id, &p));
	pass(RDMA_CM_EVENT_CONNECT_RESPONSE);
	move(id, IBV_QPS_RTR);
	move(id, IBV_QPS_RTS);
	NEED(!rdma_establish(id));
	exchange(3, 5);
	NEED(!rdma_disconnect(id));
	pass(RDMA_CM_EVENT_DISCONNECTED);
	NEED(!ibv_destroy_qp(qp));
}

static void listens(struct rdma_cm_id *id, struct sockaddr_in *at)
{
	NEED(!rdma_bind_addr(id, (struct sockaddr *)at));
	NEED(!rdma_listen(id, 1));
}

/* forked: a channel and an id are made before the fork and used on both sides of it; a
 * child that is forked after that gets errors. */
static void forked(struct rdma_cm_id *id, struct sockaddr_in *at)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		listens(id, at);
		_exit(0);
	}
	NEED(waitpid(child, &status, 0) == child && status == 0);
	listens(id, at);
	child = fork();
	if (child == 0) {
		struct rdma_cm_id *another;
		struct rdma_cm_event *ev;
		NEED(rdma_listen(id, 1) == -1 && errno == EIO);
		NEED(rdma_get_cm_event(events, &ev) == -1 && errno == EIO);
		NEED(!rdma_create_id(events, &another, NULL, RDMA_PS_TCP));
		NEED(rdma_resolve_addr(another, NULL, (struct sockaddr *)at, 1000) == -1 && errno == EIO);
		NEED(rsocket(AF_INET, SOCK_STREAM, 0) == -1 && errno == EIO);
		_exit(0);
	}
	NEED(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = {.sin_family = AF_INET};
	NEED(argc >= 3 && inet_pton(AF_INET, argv[1], &at.sin_addr) == 1);
	at.sin_port = htons(atoi(argv[2]));
	struct rdma_cm_id *id;
	NEED(events = rdma_create_event_channel());
	NEED(!rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	if (argc == 4 && !strcmp(argv[3], "fork"))
		forked(id, &at);
	else if (argc == 4)
		server(id, &at);
	else
		client(id, &at);
	NEED(!rdma_destroy_id(id));
	rdma_destroy_event_channel(events);
	puts("right");
	return 0;
}
