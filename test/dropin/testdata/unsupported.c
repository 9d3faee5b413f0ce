/* unsupported: each call that docs/dropin.md lists as not there fails as rdma-core says a
 * device without it does. Exit status 0: all did. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

#include "need.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[1 << 16];

/* NONE: the call makes no object, and says why. */
#define NONE(call) (errno = 0, !(call) && errno == EOPNOTSUPP)

static void open_all(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	NEED(list && list[0]);
	NEED((context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	NEED((pd = ibv_alloc_pd(context)));
	NEED((cq = ibv_create_cq(context, 8, NULL, NULL, 0)));
}

/* flows, and queue pairs whose packets are the program's own */
static void raw(void)
{
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET, .cap = {.max_send_wr = 1, .max_send_sge = 1}};
	NEED(NONE(ibv_create_qp(pd, &init)));
	init.qp_type = IBV_QPT_RC;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	NEED(qp);
	struct ibv_flow_attr flow = {.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(flow), .port = 1};
	NEED(NONE(ibv_create_flow(qp, &flow)));
	struct ibv_flow_action_esp_attr esp = {0};
	NEED(NONE(ibv_create_flow_action_esp(context, &esp)));
	struct ibv_counters_init_attr counters = {0};
	NEED(NONE(ibv_create_counters(context, &counters)));
	struct ibv_qp_rate_limit_attr limit = {.rate_limit = 1000};
	NEED(ibv_modify_qp_rate_limit(qp, &limit) == EOPNOTSUPP);
	struct ibv_qp_attr attr = {.rate_limit = 1000};
	NEED(ibv_modify_qp(qp, &attr, IBV_QP_RATE_LIMIT) == EOPNOTSUPP);
	NEED(!ibv_destroy_qp(qp));
}

static void receive_queues(void)
{
	struct ibv_wq_init_attr wq = {.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = pd, .cq = cq};
	NEED(NONE(ibv_create_wq(context, &wq)));
	struct ibv_rwq_ind_table_init_attr table = {0};
	NEED(NONE(ibv_create_rwq_ind_table(context, &table)));
	struct ibv_srq_init_attr_ex tm = {.attr = {.max_wr = 1, .max_sge = 1}, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
	                                  .srq_type = IBV_SRQT_TM, .pd = pd, .cq = cq, .tm_cap = {.max_num_tags = 1, .max_ops = 1}};
	NEED(NONE(ibv_create_srq_ex(context, &tm)));
	struct ibv_srq_init_attr plain = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &plain);
	NEED(srq);
	struct ibv_ops_wr op = {0}, *bad;
	NEED(ibv_post_srq_ops(srq, &op, &bad) == EOPNOTSUPP);
	NEED(!ibv_destroy_srq(srq));
}

static void kinds_of_memory(void)
{
	struct ibv_alloc_dm_attr dm = {.length = 4096};
	NEED(NONE(ibv_alloc_dm(context, &dm)));
	NEED(NONE(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE)));
	NEED(NONE(ibv_alloc_null_mr(pd)));
	NEED(NONE(ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_ON_DEMAND)));
	struct ibv_sge sge = {0};
	NEED(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == EOPNOTSUPP);
	struct ibv_device_attr_ex attr;
	NEED(!ibv_query_device_ex(context, NULL, &attr) && !attr.odp_caps.general_caps && !attr.max_dm_size && !attr.raw_packet_caps && !attr.tm_caps.max_num_tags &&
	     !attr.completion_timestamp_mask);
}

static void other_processes(void)
{
	NEED(NONE(ibv_import_device(0)) && NONE(ibv_import_pd(context, 1)) && NONE(ibv_import_mr(pd, 1)) && NONE(ibv_import_dm(context, 1)));
}

static void clocks(void)
{
	struct ibv_cq_init_attr_ex stamped = {.cqe = 8, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
	NEED(NONE(ibv_create_cq_ex(context, &stamped)));
	struct ibv_values_ex now = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	NEED(ibv_query_rt_values_ex(context, &now) == EOPNOTSUPP && !now.comp_mask);
}

static void link_layer(void)
{
	struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1};
	uint8_t mac[ETHERNET_LL_SIZE];
	uint16_t vlan;
	NEED(ibv_resolve_eth_l2_from_gid(context, &ah, mac, &vlan) == EOPNOTSUPP);
}

/* The interface of 2005: nobody gets a device, and what needs none fails. */
static void old_interface(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW);
	NEED(lib);
	void **(*get_list)(int *) = dlvsym(lib, "ibv_get_device_list", "IBVERBS_1.0");
	void *(*open_device)(void *) = dlvsym(lib, "ibv_open_device", "IBVERBS_1.0");
	NEED(get_list && open_device);
	int n = 1;
	void **list = get_list(&n);
	NEED(list && !n && !list[0]);
	free(list);
	NEED(!open_device(NULL) && errno == ENOSYS);
}

static void connections(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	NEED(channel);
	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_IPOIB) == -1 && errno == EOPNOTSUPP);
	NEED(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	struct ibv_path_data path = {0};
	NEED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof(path)) == -1 && errno == EOPNOTSUPP);
	NEED(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	NEED(rsocket(AF_INET, SOCK_DGRAM, 0) == -1 && errno == EPROTONOSUPPORT);
	int s = rsocket(AF_INET, SOCK_STREAM, 0);
	struct msghdr control = {.msg_control = memory, .msg_controllen = 16};
	NEED(s >= 0);
	NEED(rsend(s, memory, 1, MSG_OOB) == -1 && errno == EOPNOTSUPP);
	NEED(rsendmsg(s, &control, 0) == -1 && errno == EOPNOTSUPP);
	NEED(!rclose(s));
}

int main(void)
{
	open_all();
	raw();
	receive_queues();
	kinds_of_memory();
	other_processes();
	clocks();
	link_layer();
	old_interface();
	connections();
	NEED(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	puts("right");
	return 0;
}
