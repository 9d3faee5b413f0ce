/* Events: taken from the engine, waited for in poll(2). */
#include <fcntl.h>

#include "cm.h"

/* request makes an id of its own for a request. */
static struct cm_id *request(struct cm_id *listener, const struct goroce_cm_event *c)
{
	struct ibv_context *verbs = shared_context();
	struct cm_id *id = verbs ? new_id(listener->id.channel, listener->id.context, listener->id.ps) : NULL;
	if (!id)
		return NULL;
	id->handle = c->child;
	id->asked = *c;
	id->tos = listener->tos;
	id->id.qp_type = listener->id.qp_type;
	use_device(&id->id, verbs);
	put_sockaddr(&id->id.route.addr.src_storage, &c->src);
	put_sockaddr(&id->id.route.addr.dst_storage, &c->dst);
	memcpy(id->id.route.addr.addr.ibaddr.sgid.raw, c->src.ip, 16);
	memcpy(id->id.route.addr.addr.ibaddr.dgid.raw, c->dst.ip, 16);
	goroce_engine.CMAdopt(c->child, (uintptr_t)id);
	return id;
}

/* fill makes the program's event of the engine's. */
static void fill(struct cm_event *e, const struct goroce_cm_event *c)
{
	struct rdma_cm_id *id = e->ev.id;
	memcpy(e->private_data, c->private_data, sizeof(e->private_data));
	e->ev.event = c->type;
	e->ev.status = c->status;
	if (id->ps == RDMA_PS_UDP) {
		struct rdma_ud_param *p = &e->ev.param.ud;
		struct goroce_addr to = c->dst;
		if (c->type != RDMA_CM_EVENT_MULTICAST_JOIN && id->route.addr.dst_addr.sa_family)
			get_addr(&to, &id->route.addr.dst_addr);
		*p = (struct rdma_ud_param){.private_data = c->private_len ? e->private_data : NULL, .private_data_len = c->private_len, .qp_num = c->qp_num, .qkey = c->qkey};
		p->ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64, .traffic_class = cm(id)->tos}};
		memcpy(p->ah_attr.grh.dgid.raw, to.ip, 16);
		if (c->type == RDMA_CM_EVENT_MULTICAST_JOIN)
			p->private_data = (void *)c->join;
		return;
	}
	e->ev.param.conn = (struct rdma_conn_param){
		.private_data = c->private_len ? e->private_data : NULL,
		.private_data_len = c->private_len,
		.responder_resources = c->responder_resources,
		.initiator_depth = c->initiator_depth,
		.flow_control = c->flow_control,
		.retry_count = c->retry_count,
		.rnr_retry_count = c->rnr_retry_count,
		.srq = c->srq,
		.qp_num = c->qp_num,
	};
}

static int make_event(const struct goroce_cm_event *c, struct rdma_cm_event **event)
{
	struct cm_event *e = calloc(1, sizeof(*e));
	if (!e)
		return ENOMEM;
	e->counts = (struct cm_id *)c->id;
	e->ev.id = &e->counts->id;
	if (c->type == RDMA_CM_EVENT_CONNECT_REQUEST) {
		struct cm_id *child = request(e->counts, c);
		if (!child) {
			free(e);
			return ENOMEM;
		}
		e->ev.listen_id = &e->counts->id;
		e->ev.id = &child->id;
		if (e->counts->sync && rdma_migrate_id(&child->id, NULL)) {
			rdma_destroy_id(&child->id);
			free(e);
			return errno;
		}
	}
	if (c->type == RDMA_CM_EVENT_ESTABLISHED && e->ev.id->qp)
		e->ev.id->qp->state = IBV_QPS_RTS; /* the engine has brought it there */
	fill(e, c);
	*event = &e->ev;
	return 0;
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	struct channel_of *ch = container_of(channel, struct channel_of, ibv);
	for (;;) {
		struct goroce_cm_event c;
		int err = EAGAIN;
		if (goroce_orphan)
			err = EIO;
		else if (ch->handle)
			err = goroce_engine.CMGetEvent(ch->handle, &c);
		if (!err)
			return done(make_event(&c, event));
		if (err == EAGAIN)
			err = goroce_wait_readable(channel->fd);
		if (err)
			return failing(err);
	}
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	struct cm_event *e = container_of(event, struct cm_event, ev);
	struct cm_id *id = e->counts;
	free(e);
	pthread_mutex_lock(&id->mutex);
	id->acked++;
	pthread_cond_signal(&id->cond);
	pthread_mutex_unlock(&id->mutex);
	return 0;
}

int complete(struct rdma_cm_id *id)
{
	if (!cm(id)->sync)
		return 0;
	if (id->event) {
		rdma_ack_cm_event(id->event);
		id->event = NULL;
	}
	if (rdma_get_cm_event(id->channel, &id->event))
		return -1;
	int status = id->event->status;
	if (!status)
		return 0;
	if (id->event->event == RDMA_CM_EVENT_REJECTED)
		return failing(ECONNREFUSED);
	return failing(status < 0 ? -status : ECONNABORTED);
}

int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id)
{
	struct cm_id *l = cm(listen);
	struct rdma_cm_event *event;
	if (!l->sync)
		return failing(EINVAL);
	if (listen->event) {
		rdma_ack_cm_event(listen->event);
		listen->event = NULL;
	}
	if (rdma_get_cm_event(listen->channel, &event))
		return -1;
	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		rdma_ack_cm_event(event);
		return failing(EINVAL);
	}
	struct rdma_cm_id *child = event->id;
	if (l->qp_attr) {
		struct ibv_qp_init_attr attr = *l->qp_attr;
		if (rdma_create_qp(child, listen->pd, &attr)) {
			int err = errno;
			rdma_ack_cm_event(event);
			rdma_destroy_id(child);
			return failing(err);
		}
	}
	child->event = event;
	*id = child;
	return 0;
}

const char *rdma_event_str(enum rdma_cm_event_type event)
{
	static const char *const names[] = {
		"RDMA_CM_EVENT_ADDR_RESOLVED", "RDMA_CM_EVENT_ADDR_ERROR", "RDMA_CM_EVENT_ROUTE_RESOLVED", "RDMA_CM_EVENT_ROUTE_ERROR",
		"RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE", "RDMA_CM_EVENT_CONNECT_ERROR", "RDMA_CM_EVENT_UNREACHABLE",
		"RDMA_CM_EVENT_REJECTED", "RDMA_CM_EVENT_ESTABLISHED", "RDMA_CM_EVENT_DISCONNECTED", "RDMA_CM_EVENT_DEVICE_REMOVAL",
		"RDMA_CM_EVENT_MULTICAST_JOIN", "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE", "RDMA_CM_EVENT_TIMEWAIT_EXIT",
	};
	return (size_t)event < sizeof(names) / sizeof(*names) ? names[event] : "UNKNOWN EVENT";
}
