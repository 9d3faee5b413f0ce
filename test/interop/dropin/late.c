/* late.so, preloaded: a program of librdmacm that comes three seconds late, each time that
 * it looks for its peer. Between its two connections the server of perftest -R does not
 * listen for a moment, which is long in an emulated guest and on a busy machine, and the
 * client of perftest 4.5 crashes when it is refused: it comes again with identifiers that
 * it has freed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

struct rdma_cm_id;
struct sockaddr;

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms)
{
	int (*next)(struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int) = dlsym(RTLD_NEXT, "rdma_resolve_addr");
	sleep(3);
	return next(id, src, dst, timeout_ms);
}
