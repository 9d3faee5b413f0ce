/* The interface of libibverbs to its providers, IBVERBS_PRIVATE_34: perftest and UCX
 * load libmlx5 and libefa, which need it to load. There is no kernel device for them,
 * so that none of this is called but verbs_register_driver_34. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#define REFUSE(name)               \
	int name(void);            \
	int name(void)             \
	{                          \
		errno = EOPNOTSUPP; \
		return EOPNOTSUPP; \
	}

REFUSE(execute_ioctl)
REFUSE(ibv_cmd_advise_mr)
REFUSE(ibv_cmd_alloc_dm)
REFUSE(ibv_cmd_alloc_mw)
REFUSE(ibv_cmd_alloc_pd)
REFUSE(ibv_cmd_attach_mcast)
REFUSE(ibv_cmd_close_xrcd)
REFUSE(ibv_cmd_create_ah)
REFUSE(ibv_cmd_create_counters)
REFUSE(ibv_cmd_create_cq)
REFUSE(ibv_cmd_create_cq_ex)
REFUSE(ibv_cmd_create_cq_ex2)
REFUSE(ibv_cmd_create_flow)
REFUSE(ibv_cmd_create_flow_action_esp)
REFUSE(ibv_cmd_create_qp)
REFUSE(ibv_cmd_create_qp_ex)
REFUSE(ibv_cmd_create_qp_ex2)
REFUSE(ibv_cmd_create_rwq_ind_table)
REFUSE(ibv_cmd_create_srq)
REFUSE(ibv_cmd_create_srq_ex)
REFUSE(ibv_cmd_create_wq)
REFUSE(ibv_cmd_dealloc_mw)
REFUSE(ibv_cmd_dealloc_pd)
REFUSE(ibv_cmd_dereg_mr)
REFUSE(ibv_cmd_destroy_ah)
REFUSE(ibv_cmd_destroy_counters)
REFUSE(ibv_cmd_destroy_cq)
REFUSE(ibv_cmd_destroy_flow)
REFUSE(ibv_cmd_destroy_flow_action)
REFUSE(ibv_cmd_destroy_qp)
REFUSE(ibv_cmd_destroy_rwq_ind_table)
REFUSE(ibv_cmd_destroy_srq)
REFUSE(ibv_cmd_destroy_wq)
REFUSE(ibv_cmd_detach_mcast)
REFUSE(ibv_cmd_free_dm)
REFUSE(ibv_cmd_get_context)
REFUSE(ibv_cmd_modify_cq)
REFUSE(ibv_cmd_modify_flow_action_esp)
REFUSE(ibv_cmd_modify_qp)
REFUSE(ibv_cmd_modify_qp_ex)
REFUSE(ibv_cmd_modify_srq)
REFUSE(ibv_cmd_modify_wq)
REFUSE(ibv_cmd_open_qp)
REFUSE(ibv_cmd_open_xrcd)
REFUSE(ibv_cmd_poll_cq)
REFUSE(ibv_cmd_post_recv)
REFUSE(ibv_cmd_post_send)
REFUSE(ibv_cmd_post_srq_recv)
REFUSE(ibv_cmd_query_context)
REFUSE(ibv_cmd_query_device_any)
REFUSE(ibv_cmd_query_mr)
REFUSE(ibv_cmd_query_port)
REFUSE(ibv_cmd_query_qp)
REFUSE(ibv_cmd_query_srq)
REFUSE(ibv_cmd_read_counters)
REFUSE(ibv_cmd_reg_dm_mr)
REFUSE(ibv_cmd_reg_dmabuf_mr)
REFUSE(ibv_cmd_reg_mr)
REFUSE(ibv_cmd_req_notify_cq)
REFUSE(ibv_cmd_rereg_mr)
REFUSE(ibv_cmd_resize_cq)

#define IGNORE(name)    \
	void name(void); \
	void name(void) {}

IGNORE(__verbs_log)
IGNORE(verbs_init_cq)
IGNORE(verbs_register_driver_34)
IGNORE(verbs_set_ops)
IGNORE(verbs_uninit_context)

#define NOTHING(name)                \
	void *name(void);            \
	void *name(void)             \
	{                            \
		errno = EOPNOTSUPP;  \
		return NULL;         \
	}

NOTHING(_verbs_init_and_alloc_context)
NOTHING(verbs_open_device)

unsigned __ioctl_final_num_attrs(void);
unsigned __ioctl_final_num_attrs(void) { return 0; }

int ibv_read_ibdev_sysfs_file(void);
int ibv_read_ibdev_sysfs_file(void)
{
	errno = ENOENT;
	return -1;
}

const char *ibv_wr_opcode_str(unsigned op);
const char *ibv_wr_opcode_str(unsigned op)
{
	static const char *const names[] = {
		"IBV_WR_RDMA_WRITE", "IBV_WR_RDMA_WRITE_WITH_IMM", "IBV_WR_SEND", "IBV_WR_SEND_WITH_IMM", "IBV_WR_RDMA_READ",
		"IBV_WR_ATOMIC_CMP_AND_SWP", "IBV_WR_ATOMIC_FETCH_AND_ADD", "IBV_WR_LOCAL_INV", "IBV_WR_BIND_MW", "IBV_WR_SEND_WITH_INV",
		"IBV_WR_TSO", "IBV_WR_DRIVER1", [14] = "IBV_WR_FLUSH", "IBV_WR_ATOMIC_WRITE",
	};
	return op < sizeof(names) / sizeof(*names) && names[op] ? names[op] : "unknown";
}

extern bool verbs_allow_disassociate_destroy;
bool verbs_allow_disassociate_destroy;
