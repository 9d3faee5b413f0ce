/* Queue pairs and shared receive queues: making, changing, ending. */
#include "goroce.h"

static struct qp *qp_of(struct ibv_qp *qp) { return container_of(qp, struct qp, ibv); }

static struct qp *new_qp(struct ibv_context *context, void *qp_context)
{
	struct qp *q = calloc(1, sizeof(*q));
	if (!q)
		return fail(ENOMEM);
	q->ibv.context = context;
	q->ibv.qp_context = qp_context;
	pthread_mutex_init(&q->ibv.mutex, NULL);
	pthread_cond_init(&q->ibv.cond, NULL);
	pthread_mutex_init(&q->send_lock, NULL);
	pthread_mutex_init(&q->recv_lock, NULL);
	hold(context);
	return q;
}

static void free_qp(struct qp *q)
{
	struct ibv_context *context = q->ibv.context;
	pthread_mutex_destroy(&q->ibv.mutex);
	pthread_cond_destroy(&q->ibv.cond);
	pthread_mutex_destroy(&q->send_lock);
	pthread_mutex_destroy(&q->recv_lock);
	free(q);
	let_go(context);
}

static struct qp *create_qp(struct ibv_context *context, struct ibv_pd *pd, struct ibv_xrcd *xrcd, struct ibv_qp_init_attr *attr)
{
	struct qp *q = new_qp(context, attr->qp_context);
	if (!q)
		return NULL;
	struct goroce_qp c = {
		.pd = pd ? pd->handle : 0,
		.send_cq = attr->send_cq ? attr->send_cq->handle : 0,
		.recv_cq = attr->recv_cq ? attr->recv_cq->handle : 0,
		.srq = attr->srq ? attr->srq->handle : 0,
		.xrcd = xrcd ? container_of(xrcd, struct xrcd, ibv)->handle : 0,
		.type = attr->qp_type,
		.sig_all = attr->sq_sig_all,
		.cookie = (uintptr_t)q,
		.cap = attr->cap,
	};
	int err = CALL(CreateQP, context_of(context)->handle, &c);
	if (err) {
		free_qp(q);
		return fail(err);
	}
	q->sq_sig_all = attr->sq_sig_all;
	q->cap = attr->cap = c.cap;
	q->queues = c.queues;
	q->ibv.pd = pd;
	q->ibv.send_cq = attr->send_cq;
	q->ibv.recv_cq = attr->recv_cq;
	q->ibv.srq = attr->srq;
	q->ibv.handle = c.handle;
	q->ibv.qp_num = c.num;
	q->ibv.qp_type = attr->qp_type;
	q->ibv.state = IBV_QPS_RESET;
	return q;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	if (attr->qp_type == IBV_QPT_RAW_PACKET || attr->qp_type == IBV_QPT_DRIVER)
		return fail(EOPNOTSUPP);
	if (attr->qp_type == IBV_QPT_XRC_RECV)
		return fail(EINVAL); /* needs a domain */
	struct qp *q = create_qp(pd->context, pd, NULL, attr);
	return q ? &q->ibv : NULL;
}

struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	uint32_t mask = attr->comp_mask;
	if (mask & ~(uint32_t)(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) ||
	    (mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && attr->create_flags))
		return fail(EOPNOTSUPP);
	bool target = attr->qp_type == IBV_QPT_XRC_RECV, builder = mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	if (target ? !(mask & IBV_QP_INIT_ATTR_XRCD) : !(mask & IBV_QP_INIT_ATTR_PD))
		return fail(EINVAL);
	if (attr->qp_type == IBV_QPT_RAW_PACKET || attr->qp_type == IBV_QPT_DRIVER ||
	    (builder && attr->send_ops_flags & ~builder_ops(attr->qp_type)))
		return fail(EOPNOTSUPP);
	if (builder && attr->send_ops_flags & QP_EX_WITH_ATOMIC_WRITE && attr->cap.max_inline_data < 8)
		attr->cap.max_inline_data = 8; /* ibv_wr_atomic_write brings its data in the request */
	/* The attributes begin as those of ibv_create_qp do. */
	struct qp *q = create_qp(context, target ? NULL : attr->pd, target ? attr->xrcd : NULL, (struct ibv_qp_init_attr *)attr);
	if (!q)
		return NULL;
	if (builder)
		fill_builder(q, attr->send_ops_flags);
	return &q->ibv;
}

struct ibv_qp *open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr)
{
	const uint32_t need = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	if (attr->comp_mask & ~(need | IBV_QP_OPEN_ATTR_CONTEXT))
		return fail(EOPNOTSUPP);
	if ((attr->comp_mask & need) != need || attr->qp_type != IBV_QPT_XRC_RECV)
		return fail(EINVAL);
	struct qp *q = new_qp(context, attr->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT ? attr->qp_context : NULL);
	if (!q)
		return NULL;
	int err = CALL(OpenQP, context_of(context)->handle, container_of(attr->xrcd, struct xrcd, ibv)->handle, attr->qp_num, (uintptr_t)q, &q->ibv.handle);
	if (err) {
		free_qp(q);
		return fail(err);
	}
	q->ibv.qp_num = attr->qp_num;
	q->ibv.qp_type = attr->qp_type;
	return &q->ibv;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct qp *q = qp_of(qp);
	return q->extended ? &q->ex : NULL;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (mask & IBV_QP_RATE_LIMIT)
		return EOPNOTSUPP;
	int err = CALL(ModifyQP, qp->handle, attr, mask);
	if (err || !(mask & IBV_QP_STATE))
		return err;
	qp->state = attr->qp_state;
	if (qp->state == IBV_QPS_RESET) {
		forget(qp->send_cq, qp->qp_num);
		forget(qp->recv_cq, qp->qp_num);
	}
	return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct qp *q = qp_of(qp);
	(void)mask; /* all of it */
	int err = CALL(QueryQP, qp->handle, attr, &q->sq_sig_all);
	if (err)
		return err;
	*init = (struct ibv_qp_init_attr){
		.qp_context = qp->qp_context,
		.send_cq = qp->send_cq,
		.recv_cq = qp->recv_cq,
		.srq = qp->srq,
		.cap = attr->cap,
		.qp_type = qp->qp_type,
		.sq_sig_all = q->sq_sig_all,
	};
	qp->state = attr->qp_state;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	uint32_t given;
	int err = CALL(DestroyQP, qp->handle, &given);
	if (err)
		return err;
	goroce_await_acks(&qp->mutex, &qp->cond, &qp->events_completed, given);
	free_qp(qp_of(qp));
	return 0;
}

/* Data is written in the order of its packets, whatever the peer is. */
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)qp, (void)op, (void)flags;
	return 0;
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	union ibv_gid g = *gid;
	(void)lid;
	return CALL(AttachMulticast, qp->handle, &g);
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	union ibv_gid g = *gid;
	(void)lid;
	return CALL(DetachMulticast, qp->handle, &g);
}

/* Enhanced connection establishment is between devices of one vendor, and we have
 * nothing to tell. */
int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	memset(ece, 0, sizeof(*ece));
	return 0;
}

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	return ece->vendor_id || ece->options ? EOPNOTSUPP : 0;
}

static struct ibv_srq *create_srq(struct ibv_context *context, struct ibv_pd *pd, struct ibv_xrcd *xrcd, struct ibv_cq *cq, void *srq_context,
                                  struct ibv_srq_attr *attr)
{
	struct srq *s = calloc(1, sizeof(*s));
	if (!s)
		return fail(ENOMEM);
	struct goroce_srq c = {
		.pd = pd->handle,
		.xrcd = xrcd ? container_of(xrcd, struct xrcd, ibv)->handle : 0,
		.cq = cq ? cq->handle : 0,
		.cookie = (uintptr_t)s,
		.attr = *attr,
	};
	int err = CALL(CreateSRQ, context_of(context)->handle, &c);
	if (err) {
		free(s);
		return fail(err);
	}
	*attr = c.attr;
	s->num = c.num;
	s->ibv.context = context;
	s->ibv.srq_context = srq_context;
	s->ibv.pd = pd;
	s->ibv.handle = c.handle;
	pthread_mutex_init(&s->ibv.mutex, NULL);
	pthread_cond_init(&s->ibv.cond, NULL);
	hold(context);
	return &s->ibv;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq_attr a = attr->attr;
	a.srq_limit = 0; /* of no meaning here: ibv_create_srq(3) */
	struct ibv_srq *srq = create_srq(pd->context, pd, NULL, NULL, attr->srq_context, &a);
	if (srq)
		attr->attr = a;
	return srq;
}

struct ibv_srq *create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
	uint32_t mask = attr->comp_mask;
	enum ibv_srq_type type = mask & IBV_SRQ_INIT_ATTR_TYPE ? attr->srq_type : IBV_SRQT_BASIC;
	const uint32_t xrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	if (mask >= IBV_SRQ_INIT_ATTR_RESERVED || (type != IBV_SRQT_BASIC && type != IBV_SRQT_XRC))
		return fail(EOPNOTSUPP);
	if (!(mask & IBV_SRQ_INIT_ATTR_PD) || (type == IBV_SRQT_XRC && (mask & xrc) != xrc))
		return fail(EINVAL);
	bool x = type == IBV_SRQT_XRC;
	struct ibv_srq_attr a = attr->attr;
	a.srq_limit = 0;
	struct ibv_srq *srq = create_srq(context, attr->pd, x ? attr->xrcd : NULL, x ? attr->cq : NULL, attr->srq_context, &a);
	if (srq)
		attr->attr = a;
	return srq;
}

int get_srq_num(struct ibv_srq *srq, uint32_t *num)
{
	*num = container_of(srq, struct srq, ibv)->num;
	return *num ? 0 : EINVAL;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask) { return CALL(ModifySRQ, srq->handle, attr, mask); }
int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr) { return CALL(QuerySRQ, srq->handle, attr); }

int ibv_destroy_srq(struct ibv_srq *srq)
{
	struct ibv_context *context = srq->context;
	uint32_t given;
	int err = CALL(DestroySRQ, srq->handle, &given);
	if (err)
		return err;
	goroce_await_acks(&srq->mutex, &srq->cond, &srq->events_completed, given);
	pthread_mutex_destroy(&srq->mutex);
	pthread_cond_destroy(&srq->cond);
	free(container_of(srq, struct srq, ibv));
	let_go(context);
	return 0;
}
