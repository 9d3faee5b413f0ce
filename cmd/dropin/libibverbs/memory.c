/* Protection domains and what lies in them: memory regions and windows, address
 * handles, thread and XRC domains. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "goroce.h"

static struct pd *pd_of(struct ibv_pd *pd) { return container_of(pd, struct pd, ibv); }

/* new_pd returns memory of a protection domain. */
static struct pd *new_pd(struct ibv_context *context)
{
	struct pd *p = calloc(1, sizeof(*p));
	if (p) {
		p->ibv.context = context;
		hold(context);
	}
	return p;
}

static void free_pd(struct pd *p)
{
	struct ibv_context *context = p->ibv.context;
	free(p);
	let_go(context);
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct pd *p = new_pd(context);
	if (!p)
		return fail(ENOMEM);
	int err = CALL(AllocPD, context_of(context)->handle, &p->ibv.handle);
	if (err) {
		free_pd(p);
		return fail(err);
	}
	return &p->ibv;
}

/* A parent domain is the domain it is made of, with objects to be allocated by the
 * program, which is of no use here: the queues are the engine's. */
struct ibv_pd *alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr)
{
	const uint32_t known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	if (attr->comp_mask & ~known)
		return fail(EOPNOTSUPP);
	if (!attr->pd)
		return fail(EINVAL);
	struct pd *p = new_pd(context);
	if (!p)
		return fail(ENOMEM);
	p->parent = pd_of(attr->pd);
	p->ibv.handle = attr->pd->handle;
	__atomic_add_fetch(&p->parent->refs, 1, __ATOMIC_RELAXED);
	return &p->ibv;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	struct pd *p = pd_of(pd);
	if (__atomic_load_n(&p->refs, __ATOMIC_RELAXED))
		return EBUSY;
	if (p->parent) {
		__atomic_sub_fetch(&p->parent->refs, 1, __ATOMIC_RELAXED);
	} else {
		int err = CALL(DeallocPD, pd->handle);
		if (err)
			return err;
	}
	free_pd(p);
	return 0;
}

struct ibv_td *alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	if (attr->comp_mask)
		return fail(EOPNOTSUPP);
	struct td *t = calloc(1, sizeof(*t));
	if (!t)
		return fail(ENOMEM);
	t->ibv.context = context;
	hold(context);
	return &t->ibv;
}

int dealloc_td(struct ibv_td *td)
{
	struct ibv_context *context = td->context;
	free(container_of(td, struct td, ibv));
	let_go(context);
	return 0;
}

/* mapped says whether there is memory behind a range, as registering does where memory
 * is pinned. */
static bool mapped(void *addr, size_t n)
{
	uintptr_t page = sysconf(_SC_PAGESIZE), from = (uintptr_t)addr & ~(page - 1), end = (uintptr_t)addr + n;
	unsigned char there[1024];
	for (; from < end; from += page * sizeof(there)) {
		size_t part = end - from < page * sizeof(there) ? end - from : page * sizeof(there);
		if (mincore((void *)from, part, there) != 0)
			return false;
	}
	return true;
}

static struct ibv_mr *register_mr(struct ibv_pd *pd, void *addr, size_t n, uint64_t iova, unsigned access)
{
	if (access & IBV_ACCESS_ON_DEMAND)
		return fail(EOPNOTSUPP); /* query_device_ex says so */
	if ((uintptr_t)addr + n < (uintptr_t)addr || !mapped(addr, n))
		return fail(EFAULT);
	struct mr *m = calloc(1, sizeof(*m));
	if (!m)
		return fail(ENOMEM);
	int err = CALL(RegMR, pd->handle, addr, n, iova, access, &m->ibv.handle, &m->ibv.lkey);
	if (err) {
		free(m);
		return fail(err);
	}
	m->ibv.rkey = m->ibv.lkey;
	m->ibv.context = pd->context;
	m->ibv.pd = pd;
	m->ibv.addr = addr;
	m->ibv.length = n;
	m->access = access;
	hold(pd->context);
	return &m->ibv;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t n, int access)
{
	return register_mr(pd, addr, n, access & IBV_ACCESS_ZERO_BASED ? 0 : (uintptr_t)addr, access);
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t n, uint64_t iova, int access)
{
	return register_mr(pd, addr, n, access & IBV_ACCESS_ZERO_BASED ? 0 : iova, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t n, uint64_t iova, unsigned access)
{
	return ibv_reg_mr_iova(pd, addr, n, iova, (int)access);
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t n, int access)
{
	struct mr *m = container_of(mr, struct mr, ibv);
	if (!flags || flags & ~IBV_REREG_MR_FLAGS_SUPPORTED || (flags & IBV_REREG_MR_CHANGE_PD && !pd) ||
	    (flags & IBV_REREG_MR_CHANGE_TRANSLATION && (!addr || !n || !mapped(addr, n)))) {
		errno = EINVAL;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (!(flags & IBV_REREG_MR_CHANGE_ACCESS))
		access = (int)m->access;
	int err = CALL(ReregMR, mr->handle, flags, flags & IBV_REREG_MR_CHANGE_PD ? pd->handle : 0, addr, n, access);
	if (err) {
		errno = err; /* the region is as it was */
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (flags & IBV_REREG_MR_CHANGE_PD)
		mr->pd = pd;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		mr->addr = addr;
		mr->length = n;
	}
	m->access = access;
	return 0;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	int err = CALL(DeregMR, mr->handle);
	if (err)
		return err;
	let_go(mr->context);
	free(container_of(mr, struct mr, ibv));
	return 0;
}

/* There is no device memory to export, and no buffer of another device to import. */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t n, uint64_t iova, int fd, int access)
{
	(void)pd, (void)offset, (void)n, (void)iova, (void)fd, (void)access;
	return fail(EOPNOTSUPP);
}

struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw = calloc(1, sizeof(*mw));
	if (!mw)
		return fail(ENOMEM);
	int err = CALL(AllocMW, pd->handle, type, &mw->handle, &mw->rkey);
	if (err) {
		free(mw);
		return fail(err);
	}
	mw->context = pd->context;
	mw->pd = pd;
	mw->type = type;
	hold(pd->context);
	return mw;
}

int dealloc_mw(struct ibv_mw *mw)
{
	int err = CALL(DeallocMW, mw->handle);
	if (err)
		return err;
	let_go(mw->context);
	free(mw);
	return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ah *a = calloc(1, sizeof(*a));
	if (!a)
		return fail(ENOMEM);
	int err = CALL(CreateAH, pd->handle, attr, &a->object, &a->ibv.handle);
	if (err) {
		free(a);
		return fail(err);
	}
	a->ibv.context = pd->context;
	a->ibv.pd = pd;
	hold(pd->context);
	return &a->ibv;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	struct ah *a = container_of(ah, struct ah, ibv);
	int err = CALL(DestroyAH, a->object);
	if (err)
		return err;
	let_go(ah->context);
	free(a);
	return 0;
}

int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
	int err = port == 1 ? CALL(InitAH, context_of(context)->handle, wc, grh, attr) : EINVAL;
	return err ? failing(err) : 0;
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;
	if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}

struct ibv_xrcd *open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr)
{
	const uint32_t all = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	struct stat st = {0};
	if (attr->comp_mask != all)
		return fail(attr->comp_mask & ~all ? EOPNOTSUPP : EINVAL);
	if (attr->fd >= 0 && fstat(attr->fd, &st) != 0)
		return NULL;
	if (attr->oflags & ~(O_CREAT | O_EXCL))
		return fail(EINVAL);
	struct xrcd *x = calloc(1, sizeof(*x));
	if (!x)
		return fail(ENOMEM);
	int err = CALL(OpenXRCD, context_of(context)->handle, attr->fd >= 0, st.st_dev, st.st_ino, attr->oflags, &x->handle);
	if (err) {
		free(x);
		return fail(err);
	}
	x->ibv.context = context;
	hold(context);
	return &x->ibv;
}

int close_xrcd(struct ibv_xrcd *xrcd)
{
	struct xrcd *x = container_of(xrcd, struct xrcd, ibv);
	int err = CALL(CloseXRCD, x->handle);
	if (err)
		return err;
	let_go(xrcd->context);
	free(x);
	return 0;
}
