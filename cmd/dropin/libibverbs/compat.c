/* The interface of 2005, IBVERBS_1.0, whose structs are no longer those of any header:
 * its functions are there, so that everything links, and fail. Its device list is
 * empty, so that no program gets to the others. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#define VERSION(name, version) __asm__(".symver goroce_" #name "_old," #name "@" version)

#define POINTER(name)                        \
	void *goroce_##name##_old(void);     \
	void *goroce_##name##_old(void)      \
	{                                    \
		errno = ENOSYS;              \
		return NULL;                 \
	}                                    \
	VERSION(name, "IBVERBS_1.0");

#define NUMBER(name)                         \
	int goroce_##name##_old(void);       \
	int goroce_##name##_old(void)        \
	{                                    \
		errno = ENOSYS;              \
		return -1;                   \
	}                                    \
	VERSION(name, "IBVERBS_1.0");

#pragma GCC visibility push(default)

POINTER(ibv_alloc_pd)
POINTER(ibv_create_ah)
POINTER(ibv_create_cq)
POINTER(ibv_create_qp)
POINTER(ibv_create_srq)
POINTER(ibv_get_device_name)
POINTER(ibv_open_device)
POINTER(ibv_reg_mr)
NUMBER(ibv_ack_async_event)
NUMBER(ibv_ack_cq_events)
NUMBER(ibv_attach_mcast)
NUMBER(ibv_close_device)
NUMBER(ibv_dealloc_pd)
NUMBER(ibv_dereg_mr)
NUMBER(ibv_destroy_ah)
NUMBER(ibv_destroy_cq)
NUMBER(ibv_destroy_qp)
NUMBER(ibv_destroy_srq)
NUMBER(ibv_detach_mcast)
NUMBER(ibv_get_async_event)
NUMBER(ibv_get_cq_event)
NUMBER(ibv_get_device_guid)
NUMBER(ibv_modify_qp)
NUMBER(ibv_modify_srq)
NUMBER(ibv_query_device)
NUMBER(ibv_query_gid)
NUMBER(ibv_query_pkey)
NUMBER(ibv_query_port)
NUMBER(ibv_query_qp)
NUMBER(ibv_query_srq)
NUMBER(ibv_resize_cq)

void **goroce_ibv_get_device_list_old(int *num);
void **goroce_ibv_get_device_list_old(int *num)
{
	if (num)
		*num = 0;
	return calloc(1, sizeof(void *));
}
VERSION(ibv_get_device_list, "IBVERBS_1.0");

void goroce_ibv_free_device_list_old(void **list);
void goroce_ibv_free_device_list_old(void **list) { free(list); }
VERSION(ibv_free_device_list, "IBVERBS_1.0");

/* Drivers of before 2017 make themselves known with this. */
void goroce_ibv_register_driver_old(void);
void goroce_ibv_register_driver_old(void) {}
VERSION(ibv_register_driver, "IBVERBS_1.1");
