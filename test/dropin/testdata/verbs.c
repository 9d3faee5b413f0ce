/* verbs MODE: a program of libibverbs that goes where those of the packages do not. Two
 * queue pairs of one device are connected to each other. Exit status 0: all was right. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "need.h"

#define SIZE (1 << 20)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq_ex *cq;
static struct ibv_qp *qp[2];
static struct ibv_qp_ex *ex[2];
static struct ibv_mr *mr[2];
static uint8_t *buf[2];

static struct ibv_context *open_device(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	NEED(list && n == 1);
	struct ibv_context *c = ibv_open_device(list[0]);
	NEED(c);
	ibv_free_device_list(list);
	return c;
}

static void connect_qps(void)
{
	union ibv_gid gid;
	NEED(!ibv_query_gid(context, 1, 0, &gid));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
		                        .port_num = 1,
		                        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
		NEED(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
		                        .path_mtu = IBV_MTU_1024,
		                        .dest_qp_num = qp[!i]->qp_num,
		                        .rq_psn = 7,
		                        .max_dest_rd_atomic = 4,
		                        .min_rnr_timer = 1,
		                        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}}};
		NEED(!ibv_modify_qp(qp[i], &a,
		                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
		                        IBV_QP_MIN_RNR_TIMER));
		a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
		NEED(!ibv_modify_qp(qp[i], &a,
		                    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
	}
}

static void make(void)
{
	context = open_device();
	NEED(pd = ibv_alloc_pd(context));
	NEED(channel = ibv_create_comp_channel(context));
	struct ibv_cq *least = ibv_create_cq(context, 1, NULL, channel, 0);
	NEED(least && least->cqe >= 16 && !ibv_destroy_cq(least)); /* perftest -e needs more than it asks for */
	struct ibv_cq_init_attr_ex ca = {.cqe = 256, .channel = channel, .wc_flags = IBV_WC_STANDARD_FLAGS};
	NEED(cq = ibv_create_cq_ex(context, &ca));
	for (int i = 0; i < 2; i++) {
		NEED(!posix_memalign((void **)&buf[i], 4096, SIZE));
		NEED(mr[i] = ibv_reg_mr(pd, buf[i], SIZE,
		                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
		struct ibv_qp_init_attr_ex a = {.send_cq = ibv_cq_ex_to_cq(cq),
		                                .recv_cq = ibv_cq_ex_to_cq(cq),
		                                .qp_type = IBV_QPT_RC,
		                                .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64},
		                                .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		                                .pd = pd,
		                                .send_ops_flags = 0x7f | IBV_QP_EX_WITH_ATOMIC_WRITE};
		NEED(qp[i] = ibv_create_qp_ex(context, &a));
		NEED(ex[i] = ibv_qp_to_qp_ex(qp[i]));
	}
	connect_qps();
}

/* next waits for a completion, on the channel, and returns its id. */
static uint64_t next(enum ibv_wc_opcode op, uint32_t *imm)
{
	struct ibv_poll_cq_attr none = {0};
	int rc;
	while ((rc = ibv_start_poll(cq, &none)) == ENOENT) {
		struct ibv_cq *which;
		void *ctx;
		NEED(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0));
		if ((rc = ibv_start_poll(cq, &none)) != ENOENT)
			break;
		NEED(!ibv_get_cq_event(channel, &which, &ctx));
		NEED(which == ibv_cq_ex_to_cq(cq));
		ibv_ack_cq_events(which, 1);
	}
	NEED(rc == 0);
	NEED(cq->status == IBV_WC_SUCCESS);
	NEED(ibv_wc_read_opcode(cq) == op);
	if (imm)
		*imm = ibv_wc_read_imm_data(cq);
	uint64_t id = cq->wr_id;
	ibv_end_poll(cq);
	return id;
}

static void pattern(uint8_t *p, size_t n, unsigned salt)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (i * 7 + (i >> 8) * 13 + salt) & 0xff;
}

static void same(const uint8_t *p, size_t n, unsigned salt)
{
	for (size_t i = 0; i < n; i++)
		NEED(p[i] == (uint8_t)((i * 7 + (i >> 8) * 13 + salt) & 0xff));
}

static void recv_at(size_t n)
{
	struct ibv_sge sge = {.addr = (uintptr_t)buf[1], .length = n, .lkey = mr[1]->lkey};
	struct ibv_recv_wr wr = {.wr_id = 99, .sg_list = &sge, .num_sge = 1}, *bad;
	NEED(!ibv_post_recv(qp[1], &wr, &bad));
}

/* ops does each operation by the builder and by lists, and compares every byte. */
static void ops(int rounds)
{
	static const size_t sizes[] = {1, 7, 64, 1023, 1024, 1025, 65536, SIZE};
	uint32_t imm;
	for (int round = 0; round < rounds; round++)
		for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
			size_t n = sizes[s];
			unsigned salt = round * 8 + s;
			pattern(buf[0], n, salt);
			memset(buf[1], 0, n);
			ibv_wr_start(ex[0]);
			ex[0]->wr_id = 1;
			ex[0]->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(ex[0], mr[1]->rkey, (uintptr_t)buf[1]);
			if (n <= 64)
				ibv_wr_set_inline_data(ex[0], buf[0], n);
			else
				ibv_wr_set_sge(ex[0], mr[0]->lkey, (uintptr_t)buf[0], n);
			NEED(!ibv_wr_complete(ex[0]));
			NEED(next(IBV_WC_RDMA_WRITE, NULL) == 1);
			same(buf[1], n, salt);

			memset(buf[0], 0, n);
			struct ibv_sge sge = {.addr = (uintptr_t)buf[0], .length = n, .lkey = mr[0]->lkey};
			struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED}, *bad;
			wr.wr.rdma.remote_addr = (uintptr_t)buf[1];
			wr.wr.rdma.rkey = mr[1]->rkey;
			NEED(!ibv_post_send(qp[0], &wr, &bad));
			NEED(next(IBV_WC_RDMA_READ, NULL) == 2);
			same(buf[0], n, salt);

			memset(buf[1], 0, n);
			recv_at(n);
			ibv_wr_start(ex[0]);
			ex[0]->wr_id = 3;
			ex[0]->wr_flags = 0;
			ibv_wr_send_imm(ex[0], 0x01020304);
			ibv_wr_set_sge(ex[0], mr[0]->lkey, (uintptr_t)buf[0], n);
			NEED(!ibv_wr_complete(ex[0]));
			NEED(next(IBV_WC_RECV, &imm) == 99 && imm == 0x01020304);
			same(buf[1], n, salt);
		}
	uint64_t *word = (uint64_t *)buf[1];
	*word = 40;
	ibv_wr_start(ex[0]);
	ex[0]->wr_id = 4;
	ex[0]->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_fetch_add(ex[0], mr[1]->rkey, (uintptr_t)buf[1], 2);
	ibv_wr_set_sge(ex[0], mr[0]->lkey, (uintptr_t)buf[0], 8);
	ibv_wr_atomic_cmp_swp(ex[0], mr[1]->rkey, (uintptr_t)buf[1], 42, 50);
	ibv_wr_set_sge(ex[0], mr[0]->lkey, (uintptr_t)buf[0] + 8, 8);
	NEED(!ibv_wr_complete(ex[0]));
	NEED(next(IBV_WC_FETCH_ADD, NULL) == 4 && next(IBV_WC_COMP_SWAP, NULL) == 4);
	NEED(((uint64_t *)buf[0])[0] == 40 && ((uint64_t *)buf[0])[1] == 42 && *word == 50);
}

/* refused requests: the errno, bad_wr, and that nothing of the builder's was posted. */
static void refused(void)
{
	struct ibv_sge sges[3] = {0};
	struct ibv_send_wr wr[2] = {{.wr_id = 1, .next = &wr[1], .opcode = IBV_WR_SEND},
	                            {.wr_id = 2, .sg_list = sges, .num_sge = 3, .opcode = IBV_WR_SEND}},
	                   *bad = NULL;
	recv_at(8);
	NEED(ibv_post_send(qp[0], wr, &bad) == EINVAL && bad == &wr[1]);
	NEED(next(IBV_WC_RECV, NULL) == 99);
	ibv_wr_start(ex[0]);
	ibv_wr_rdma_write(ex[0], mr[1]->rkey, (uintptr_t)buf[1]);
	ibv_wr_set_sge(ex[0], mr[0]->lkey, (uintptr_t)buf[0], 8);
	ibv_wr_send(ex[0]);
	ibv_wr_set_sge_list(ex[0], 3, sges);
	NEED(ibv_wr_complete(ex[0]) == EINVAL);
	struct ibv_qp_init_attr_ex raw = {.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_RAW_PACKET, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd};
	NEED(!ibv_create_qp_ex(context, &raw) && errno == EOPNOTSUPP);
	NEED(!ibv_reg_mr(pd, (void *)8192, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	NEED(!ibv_reg_mr(pd, buf[0], 4096, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	NEED(ibv_dealloc_pd(pd) == EBUSY);
	NEED(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == EBUSY);
}

/* events: the peer writes where it may not. The descriptor becomes readable, with what
 * befell which queue pair, and nothing more; the queue pair ends when the event is
 * acknowledged, also when that is done by another thread while it waits. */
static void *acknowledge(void *event)
{
	usleep(20000);
	ibv_ack_async_event(event);
	return NULL;
}

static void events(void)
{
	struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};
	struct ibv_async_event event;
	int flags = fcntl(fd.fd, F_GETFL);
	NEED(flags >= 0 && !(flags & O_NONBLOCK) && !fcntl(fd.fd, F_SETFL, flags | O_NONBLOCK));
	NEED(poll(&fd, 1, 0) == 0 && ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
	ibv_wr_start(ex[0]);
	ibv_wr_rdma_write(ex[0], mr[1]->rkey ^ 0x100, (uintptr_t)buf[1]);
	ibv_wr_set_sge(ex[0], mr[0]->lkey, (uintptr_t)buf[0], 8);
	NEED(!ibv_wr_complete(ex[0]));
	NEED(poll(&fd, 1, 60000) == 1 && fd.revents == POLLIN);
	NEED(!ibv_get_async_event(context, &event) && event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == qp[1]);
	NEED(poll(&fd, 1, 0) == 0 && ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
	event = (struct ibv_async_event){.event_type = IBV_EVENT_QP_ACCESS_ERR, .element.qp = qp[1]};
	pthread_t other;
	NEED(!pthread_create(&other, NULL, acknowledge, &event));
	NEED(!ibv_destroy_qp(qp[1]) && !pthread_join(other, NULL));
}

static void destroy(void)
{
	for (int i = 0; i < 2; i++) {
		NEED(!ibv_destroy_qp(qp[i]));
		NEED(!ibv_dereg_mr(mr[i]));
		free(buf[i]);
	}
	NEED(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	NEED(!ibv_destroy_comp_channel(channel));
	NEED(!ibv_dealloc_pd(pd));
}

/* forked: a child before the device was opened has a device of its own; one afterwards
 * gets errors, and the parent goes on. */
static void forked(void)
{
	int status, n;
	struct ibv_device **list = ibv_get_device_list(&n);
	NEED(list && n == 1);
	pid_t child = fork();
	if (child == 0) {
		make();
		ops(1);
		_exit(0);
	}
	NEED(waitpid(child, &status, 0) == child && status == 0);
	make();
	child = fork();
	if (child == 0) {
		struct ibv_device_attr a;
		struct ibv_wc wc;
		struct ibv_cq *which;
		void *ctx;
		struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad;
		struct ibv_recv_wr rwr = {0}, *rbad;
		NEED(ibv_query_device(context, &a) == EIO);
		NEED(ibv_post_send(qp[0], &wr, &bad) == EIO && bad == &wr);
		NEED(ibv_post_recv(qp[0], &rwr, &rbad) == EIO && rbad == &rwr);
		NEED(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc) < 0);
		NEED(ibv_get_cq_event(channel, &which, &ctx) == -1 && errno == EIO);
		NEED(!ibv_open_device(list[0]));
		_exit(0);
	}
	NEED(waitpid(child, &status, 0) == child && status == 0);
	ops(1);
}

static volatile sig_atomic_t ticks, urgent;

static void urge(int sig) { urgent += sig == SIGURG; }

static void tick(int sig)
{
	volatile char stack[8192];
	memset((char *)stack, sig, sizeof(stack));
	ticks++;
}

/* signals of the program, a thousand in a second, whose handler needs some stack. They
 * end a wait only if the handler says so. Go sends none. */
static void signalled(void)
{
	signal(SIGALRM, tick);
	signal(SIGURG, urge);
	make();
	struct sigaction prof = {.sa_handler = tick, .sa_flags = SA_RESTART};
	NEED(!sigaction(SIGPROF, &prof, NULL));
	struct itimerval often = {.it_interval = {.tv_usec = 1000}, .it_value = {.tv_usec = 1000}};
	NEED(!setitimer(ITIMER_REAL, &often, NULL) && !setitimer(ITIMER_PROF, &often, NULL));
	while (ticks < 500)
		ops(1);
	NEED(urgent == 0);
	struct sigaction alarm = {.sa_handler = tick};
	NEED(!sigaction(SIGALRM, &alarm, NULL));
	struct ibv_cq *which;
	void *ctx;
	while (!ibv_get_cq_event(channel, &which, &ctx)) /* those of completions that were polled without */
		ibv_ack_cq_events(which, 1);
	NEED(errno == EINTR);
}

int main(int argc, char **argv)
{
	const char *mode = argc == 2 ? argv[1] : "";
	if (!strcmp(mode, "ops")) {
		make();
		ops(2);
		refused();
		destroy();
		NEED(!ibv_close_device(context));
	} else if (!strcmp(mode, "fork")) {
		forked();
	} else if (!strcmp(mode, "signals")) {
		signalled();
	} else if (!strcmp(mode, "events")) {
		make();
		events();
	} else if (!strcmp(mode, "close")) { /* the device first, its objects afterwards */
		make();
		ops(1);
		NEED(!ibv_close_device(context));
		struct ibv_pd *another = ibv_alloc_pd(context);
		NEED(!another);
		destroy();
	} else if (!strcmp(mode, "exit")) { /* with everything open */
		make();
		ops(1);
	} else {
		fprintf(stderr, "which mode?\n");
		return 2;
	}
	puts("right");
	return 0;
}
