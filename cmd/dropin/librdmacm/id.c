/* Ids, event channels, addresses, connections. The engine has the states; here are the
 * structs, and waiting. */
#include <arpa/inet.h>
#include <infiniband/sa.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "cm.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what is made when first needed */

struct ibv_context *shared_context(void)
{
	static struct ibv_context *context;
	pthread_mutex_lock(&lock);
	if (!context) {
		struct ibv_device **list = ibv_get_device_list(NULL);
		if (list && list[0])
			context = ibv_open_device(list[0]);
		else
			errno = ENODEV;
		ibv_free_device_list(list);
	}
	pthread_mutex_unlock(&lock);
	return context;
}

/* The domain of ids whose programs bring none. */
static struct ibv_pd *shared_pd(struct ibv_context *verbs)
{
	static struct ibv_pd *pd;
	pthread_mutex_lock(&lock);
	if (!pd)
		pd = ibv_alloc_pd(verbs);
	pthread_mutex_unlock(&lock);
	return pd;
}

struct ibv_context **rdma_get_devices(int *num)
{
	struct ibv_context *context = shared_context();
	struct ibv_context **list = calloc(2, sizeof(*list));
	if (!list)
		return fail(ENOMEM);
	list[0] = context;
	if (num)
		*num = context ? 1 : 0;
	return list;
}

void rdma_free_devices(struct ibv_context **list) { free(list); }

/* The engine learns of channels and ids when it is needed: making them is possible
 * before, and before a fork. */

static int known_channel(struct channel_of *ch)
{
	pthread_mutex_lock(&lock);
	int err = goroce_load();
	if (!err && !ch->handle)
		ch->handle = goroce_engine.CMChannel(ch->ibv.fd);
	pthread_mutex_unlock(&lock);
	return err;
}

static struct channel_of *channel_of(struct rdma_event_channel *ch) { return container_of(ch, struct channel_of, ibv); }

int known(struct cm_id *id)
{
	struct channel_of *ch = channel_of(id->id.channel);
	int err = known_channel(ch);
	if (err)
		return err;
	pthread_mutex_lock(&lock);
	if (!id->handle)
		id->handle = goroce_engine.CMCreate(ch->handle, (uintptr_t)id);
	pthread_mutex_unlock(&lock);
	return 0;
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct channel_of *ch = calloc(1, sizeof(*ch));
	if (!ch)
		return fail(ENOMEM);
	ch->ibv.fd = eventfd(0, EFD_CLOEXEC);
	if (ch->ibv.fd < 0) {
		free(ch);
		return NULL;
	}
	return &ch->ibv;
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	struct channel_of *ch = channel_of(channel);
	if (ch->handle && !goroce_orphan)
		goroce_engine.CMCloseChannel(ch->handle);
	close(ch->ibv.fd);
	free(ch);
}

struct cm_id *new_id(struct rdma_event_channel *channel, void *context, enum rdma_port_space ps)
{
	struct cm_id *id = calloc(1, sizeof(*id));
	if (!id)
		return fail(ENOMEM);
	if (!channel) {
		id->sync = true;
		channel = rdma_create_event_channel();
	}
	if (!channel) {
		free(id);
		return NULL;
	}
	id->id.channel = channel;
	id->id.context = context;
	id->id.ps = ps;
	id->id.qp_type = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC;
	pthread_mutex_init(&id->mutex, NULL);
	pthread_cond_init(&id->cond, NULL);
	return id;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps)
{
	if (ps != RDMA_PS_TCP && ps != RDMA_PS_UDP && ps != RDMA_PS_IB)
		return failing(ps == RDMA_PS_IPOIB ? EOPNOTSUPP : EINVAL);
	struct cm_id *c = new_id(channel, context, ps);
	if (!c)
		return -1;
	*id = &c->id;
	return 0;
}

static int destroy_id(struct cm_id *id)
{
	uint32_t given = 0;
	if (id->handle) {
		int err = CALL(CMDestroy, id->handle, &given);
		if (err)
			return failing(err);
	}
	if (id->id.event) {
		rdma_ack_cm_event(id->id.event);
		id->id.event = NULL;
	}
	goroce_await_acks(&id->mutex, &id->cond, &id->acked, given);
	if (id->sync)
		rdma_destroy_event_channel(id->id.channel);
	pthread_mutex_destroy(&id->mutex);
	pthread_cond_destroy(&id->cond);
	free(id->id.route.path_rec);
	free(id->qp_attr);
	free(id->connect);
	free(id);
	return 0;
}

int rdma_destroy_id(struct rdma_cm_id *id) { return destroy_id(cm(id)); }

int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
	struct cm_id *c = cm(id);
	struct rdma_event_channel *old = id->channel;
	bool sync = !channel, was_sync = c->sync;
	if (id->event) /* of the last synchronous call: the program may not see it any more */
		rdma_ack_cm_event(id->event);
	id->event = NULL;
	if (sync && !(channel = rdma_create_event_channel()))
		return -1;
	int err = known_channel(channel_of(channel));
	if (!err && c->handle)
		err = CALL(CMMigrate, c->handle, channel_of(channel)->handle);
	if (err) {
		if (sync)
			rdma_destroy_event_channel(channel);
		return failing(err);
	}
	id->channel = channel;
	c->sync = sync;
	if (was_sync)
		rdma_destroy_event_channel(old);
	return 0;
}

void put_sockaddr(struct sockaddr_storage *sa, const struct goroce_addr *a)
{
	memset(sa, 0, sizeof(*sa));
	if (IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)a->ip)) {
		struct sockaddr_in *sin = (struct sockaddr_in *)sa;
		sin->sin_family = AF_INET;
		sin->sin_port = htons(a->port);
		memcpy(&sin->sin_addr, a->ip + 12, 4);
	} else {
		struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)sa;
		sin6->sin6_family = AF_INET6;
		sin6->sin6_port = htons(a->port);
		sin6->sin6_scope_id = a->scope;
		memcpy(&sin6->sin6_addr, a->ip, 16);
	}
}

int get_addr(struct goroce_addr *a, const struct sockaddr *sa)
{
	memset(a, 0, sizeof(*a));
	if (sa->sa_family == AF_INET) {
		const struct sockaddr_in *sin = (const struct sockaddr_in *)sa;
		memcpy(a->ip, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);
		memcpy(a->ip + 12, &sin->sin_addr, 4);
		a->port = ntohs(sin->sin_port);
		return 0;
	}
	if (sa->sa_family == AF_INET6) {
		const struct sockaddr_in6 *sin6 = (const struct sockaddr_in6 *)sa;
		memcpy(a->ip, &sin6->sin6_addr, 16);
		a->port = ntohs(sin6->sin6_port);
		a->scope = sin6->sin6_scope_id;
		return 0;
	}
	return EAFNOSUPPORT;
}

static bool any(const struct goroce_addr *a)
{
	const struct in6_addr *in6 = (const struct in6_addr *)a->ip;
	return IN6_IS_ADDR_UNSPECIFIED(in6) || (IN6_IS_ADDR_V4MAPPED(in6) && memcmp(a->ip + 12, "\0\0\0", 4) == 0);
}

/* loopback says whether an address is 127.0.0.1 or ::1. */
static bool loopback(const struct goroce_addr *a)
{
	const struct in6_addr *in6 = (const struct in6_addr *)a->ip;
	return IN6_IS_ADDR_LOOPBACK(in6) || (IN6_IS_ADDR_V4MAPPED(in6) && memcmp(a->ip + 12, "\x7f\0\0\1", 4) == 0);
}

static bool v4(const struct goroce_addr *a) { return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)a->ip); }

void use_device(struct rdma_cm_id *id, struct ibv_context *verbs)
{
	id->verbs = verbs;
	id->port_num = 1;
	if (!id->pd)
		id->pd = shared_pd(verbs);
}

int own_addr(struct goroce_addr *at, union ibv_gid *gid)
{
	struct ibv_context *verbs = shared_context();
	if (!verbs || ibv_query_gid(verbs, 1, 0, gid))
		return errno;
	if (loopback(at)) /* libfabric binds to it to have a device: the one there is */
		memcpy(at->ip, gid->raw, 16);
	return any(at) || memcmp(gid->raw, at->ip, 16) == 0 ? 0 : ENODEV; /* as for an address of no RDMA device */
}

/* bind_to gives an id its source: the device's address, or none in particular. */
static int bind_to(struct rdma_cm_id *id, struct goroce_addr *at)
{
	union ibv_gid gid;
	int err = own_addr(at, &gid);
	if (err)
		return err;
	if (!any(at))
		use_device(id, shared_context());
	if (!at->port) { /* of the range that the IANA leaves to such uses */
		uint16_t r = 0;
		if (getrandom(&r, sizeof(r), 0) < 0)
			return errno;
		at->port = 0xc000 | r;
	}
	put_sockaddr(&id->route.addr.src_storage, at);
	return 0;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct goroce_addr at;
	int err = get_addr(&at, addr);
	return done(err ? err : bind_to(id, &at));
}

/* tell has an event come that is known here. */
static int tell(struct rdma_cm_id *id, enum rdma_cm_event_type type, int status)
{
	int err = known(cm(id));
	if (err)
		return failing(err);
	if (goroce_orphan)
		return failing(EIO);
	goroce_engine.CMTell(cm(id)->handle, type, status);
	return complete(id);
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms)
{
	struct goroce_addr from = {0}, to;
	union ibv_gid gid;
	(void)timeout_ms; /* it is resolved at once */
	int err = get_addr(&to, dst);
	if (err)
		return failing(err);
	if (src)
		err = get_addr(&from, src);
	else if (id->route.addr.src_addr.sa_family)
		err = get_addr(&from, &id->route.addr.src_addr);
	if (err)
		return failing(err);
	struct ibv_context *verbs = shared_context();
	if (!verbs || ibv_query_gid(verbs, 1, 0, &gid))
		return -1;
	if (any(&from))
		memcpy(from.ip, gid.raw, 16);
	if (v4(&from) != v4(&to) || any(&to))
		return tell(id, RDMA_CM_EVENT_ADDR_ERROR, -EADDRNOTAVAIL);
	err = bind_to(id, &from);
	if (err)
		return failing(err);
	put_sockaddr(&id->route.addr.dst_storage, &to);
	memcpy(id->route.addr.addr.ibaddr.sgid.raw, from.ip, 16);
	memcpy(id->route.addr.addr.ibaddr.dgid.raw, to.ip, 16);
	id->route.addr.addr.ibaddr.pkey = htons(0xffff);
	return tell(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
}

/* There is one route, which the host knows. */
static int fill_route(struct rdma_cm_id *id)
{
	struct ibv_port_attr port;
	if (!id->verbs)
		return EINVAL;
	int err = ibv_query_port(id->verbs, 1, &port);
	if (err)
		return err;
	struct ibv_sa_path_rec *p = id->route.path_rec;
	if (!p && !(p = calloc(1, sizeof(*p))))
		return ENOMEM;
	p->sgid = id->route.addr.addr.ibaddr.sgid;
	p->dgid = id->route.addr.addr.ibaddr.dgid;
	p->pkey = htons(0xffff);
	p->hop_limit = 64;
	p->reversible = 1;
	p->numb_path = 1;
	p->traffic_class = cm(id)->tos;
	p->mtu_selector = p->rate_selector = p->packet_life_time_selector = 2; /* exactly */
	p->mtu = port.active_mtu;
	id->route.path_rec = p;
	id->route.num_paths = 1;
	return 0;
}

int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	(void)timeout_ms;
	int err = fill_route(id);
	return err ? failing(err) : tell(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
}

int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	struct ibv_context *verbs = shared_context();
	struct goroce_addr at = {0};
	int err = verbs ? known(cm(id)) : errno;
	if (!err && !id->route.addr.src_addr.sa_family) {
		struct sockaddr_in none = {.sin_family = AF_INET};
		err = rdma_bind_addr(id, (struct sockaddr *)&none) ? errno : 0;
	}
	if (!err)
		err = get_addr(&at, &id->route.addr.src_addr);
	if (!err)
		err = CALL(CMListen, cm(id)->handle, context_of(verbs)->handle, id->ps, &at, backlog);
	return done(err);
}

/* param_of makes the engine's parameters of the program's, or of the request's. */
static struct goroce_cm_param param_of(struct cm_id *id, struct rdma_conn_param *p)
{
	struct goroce_cm_param c = {.tos = id->tos, .timeout = id->timeout, .retry_count = 7, .rnr_retry_count = 7,
	                            .responder_resources = RDMA_MAX_RESP_RES, .initiator_depth = RDMA_MAX_INIT_DEPTH,
	                            .private_data = id->connect, .private_len = id->connect_len};
	if (id->asked.type) { /* not more than the peer has asked for */
		c.responder_resources = id->asked.responder_resources;
		c.initiator_depth = id->asked.initiator_depth;
		c.private_len = 0;
	}
	c.qp_type = id->id.qp_type;
	if (!p)
		return c;
	c.qp_num = p->qp_num;
	if (p->private_data && p->private_data_len) {
		c.private_data = p->private_data;
		c.private_len = p->private_data_len;
	}
	if (p->responder_resources < c.responder_resources)
		c.responder_resources = p->responder_resources;
	if (p->initiator_depth < c.initiator_depth)
		c.initiator_depth = p->initiator_depth;
	c.flow_control = p->flow_control;
	c.retry_count = p->retry_count;
	c.rnr_retry_count = p->rnr_retry_count;
	return c;
}

/* A queue pair that the program has made without rdma_create_qp it also brings to RTS:
 * the engine knows its number, of the parameters. */
static uint32_t handle_of(struct ibv_qp *qp) { return qp ? qp->handle : 0; }

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	struct goroce_addr src, dst;
	struct goroce_cm_param p = param_of(cm(id), param);
	if (!id->verbs)
		return failing(EINVAL);
	int err = get_addr(&src, &id->route.addr.src_addr);
	if (!err)
		err = get_addr(&dst, &id->route.addr.dst_addr);
	if (!err)
		err = known(cm(id));
	if (!err)
		err = CALL(CMConnect, cm(id)->handle, context_of(id->verbs)->handle, handle_of(id->qp), id->ps, &src, &dst, &p);
	return err ? failing(err) : complete(id);
}

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	struct goroce_cm_param p = param_of(cm(id), param);
	if (!id->verbs)
		return failing(EINVAL);
	int err = CM_CALL(CMAccept, cm(id), context_of(id->verbs)->handle, handle_of(id->qp), id->ps, &p);
	if (err)
		return failing(err);
	/* A synchronous id waits for a connection; datagrams have none. */
	return id->ps == RDMA_PS_UDP ? 0 : complete(id);
}

int rdma_reject(struct rdma_cm_id *id, const void *private_data, uint8_t len)
{
	return done(CM_CALL(CMReject, cm(id), (void *)(uintptr_t)private_data, private_data ? len : 0));
}

int rdma_disconnect(struct rdma_cm_id *id)
{
	if (id->qp) {
		struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
		ibv_modify_qp(id->qp, &attr, IBV_QP_STATE); /* it fails only when there is no device any more */
	}
	int err = CM_CALL(CMDisconnect, cm(id));
	return err ? failing(err) : complete(id);
}

int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event)
{
	return event == IBV_EVENT_COMM_EST ? done(CM_CALL(CMNotify, cm(id))) : failing(EINVAL);
}

int rdma_establish(struct rdma_cm_id *id)
{
	if (id->qp) /* the engine has brought it to RTS, and told the peer */
		return failing(EINVAL);
	return done(CM_CALL(CMEstablish, cm(id)));
}

/* rdma_init_qp_attr tells the attributes by which a queue pair gets to attr->qp_state:
 * to INIT without a peer, and for datagrams, as Linux drivers/infiniband/core/cma.c,
 * cma_ib_init_qp_attr; else as cm.c, ib_cm_init_qp_attr. */
int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	struct cm_id *c = cm(id);
	enum ibv_qp_state state = attr->qp_state;
	bool datagrams = id->qp_type == IBV_QPT_UD;
	if (state == IBV_QPS_INIT || datagrams) {
		memset(attr, 0, sizeof(*attr));
		attr->qp_state = state;
		attr->port_num = 1;
		*mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
		if (datagrams) {
			attr->qkey = RDMA_UDP_QKEY;
			*mask |= IBV_QP_QKEY;
			return 0;
		}
		*mask |= IBV_QP_ACCESS_FLAGS;
		if (c->asked.type)
			attr->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
		if (c->asked.responder_resources)
			attr->qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
		return 0;
	}
	return done(CM_CALL(CMAttr, c, attr, mask));
}

/* ECE: nothing to tell, as ibv_query_ece says. */
int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	(void)id;
	return ece->vendor_id || ece->options ? failing(EOPNOTSUPP) : 0;
}

int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	(void)id;
	memset(ece, 0, sizeof(*ece));
	return 0;
}

int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data, uint8_t len) { return rdma_reject(id, private_data, len); }

int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t len)
{
	struct cm_id *c = cm(id);
	if (level != RDMA_OPTION_ID)
		return failing(level == RDMA_OPTION_IB ? EOPNOTSUPP : ENOSYS);
	switch (name) {
	case RDMA_OPTION_ID_TOS:
		if (len != 1)
			return failing(EINVAL);
		c->tos = *(uint8_t *)value;
		return 0;
	case RDMA_OPTION_ID_ACK_TIMEOUT:
		if (len != 1 || *(uint8_t *)value > 31)
			return failing(EINVAL);
		c->timeout = *(uint8_t *)value;
		return 0;
	case RDMA_OPTION_ID_REUSEADDR: /* a port is taken by listening alone */
	case RDMA_OPTION_ID_AFONLY:    /* the device has addresses of one family */
		return len == sizeof(int) ? 0 : failing(EINVAL);
	default:
		return failing(ENOSYS);
	}
}

__be16 rdma_get_src_port(struct rdma_cm_id *id)
{
	return id->route.addr.src_addr.sa_family == AF_INET6 ? id->route.addr.src_sin6.sin6_port : id->route.addr.src_sin.sin_port;
}

__be16 rdma_get_dst_port(struct rdma_cm_id *id)
{
	return id->route.addr.dst_addr.sa_family == AF_INET6 ? id->route.addr.dst_sin6.sin6_port : id->route.addr.dst_sin.sin_port;
}

int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr, void *context)
{
	struct goroce_addr group;
	const uint32_t all = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	if (attr->comp_mask & ~all || !(attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS))
		return failing(attr->comp_mask & ~all ? EOPNOTSUPP : EINVAL);
	bool sendonly = attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS && attr->join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
	int err = id->verbs ? get_addr(&group, attr->addr) : EINVAL;
	if (!err)
		err = known(cm(id));
	if (!err) {
		uint32_t qp = id->qp && !sendonly ? id->qp->handle : 0;
		err = CALL(CMJoin, cm(id)->handle, context_of(id->verbs)->handle, qp, &group, (uintptr_t)context);
	}
	return err ? failing(err) : complete(id);
}

int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context)
{
	struct rdma_cm_join_mc_attr_ex attr = {.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS, .addr = addr};
	return rdma_join_multicast_ex(id, &attr, context);
}

int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct goroce_addr group;
	int err = get_addr(&group, addr);
	return done(err ? err : CM_CALL(CMLeave, cm(id), &group));
}
