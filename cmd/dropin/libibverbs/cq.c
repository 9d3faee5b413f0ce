/* Completion queues. Completions are fetched from the engine in batches and polled
 * from there: a call into the engine is made when there is nothing left. */
#include "goroce.h"

static struct cq *cq_of(struct ibv_cq *cq) { return container_of(cq, struct cq, ibv); }

static struct cq *create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, uint32_t vector)
{
	if (vector >= (uint32_t)context->num_comp_vectors)
		return fail(EINVAL);
	struct cq *c = calloc(1, sizeof(*c));
	if (!c)
		return fail(ENOMEM);
	uint32_t ch = channel ? container_of(channel, struct channel, ibv)->handle : 0;
	int err = CALL(CreateCQ, context_of(context)->handle, ch, (uintptr_t)c, &cqe, &c->ibv.handle);
	if (err) {
		free(c);
		return fail(err);
	}
	c->ibv.context = context;
	c->ibv.channel = channel;
	c->ibv.cq_context = cq_context;
	c->ibv.cqe = cqe;
	pthread_mutex_init(&c->ibv.mutex, NULL);
	pthread_cond_init(&c->ibv.cond, NULL);
	pthread_mutex_init(&c->lock, NULL);
	hold(context);
	if (channel) {
		pthread_mutex_lock(&context->mutex);
		channel->refcnt++;
		pthread_mutex_unlock(&context->mutex);
	}
	return c;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	struct cq *c = create_cq(context, cqe, cq_context, channel, (uint32_t)vector);
	return c ? &c->ibv : NULL;
}

int ibv_resize_cq(struct ibv_cq *cq, int cqe) { return CALL(ResizeCQ, cq->handle, cqe, &cq->cqe); }

int modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	if (attr->attr_mask & ~(uint32_t)IBV_CQ_ATTR_MODERATE)
		return EOPNOTSUPP;
	if (!attr->attr_mask)
		return EINVAL;
	return CALL(ModerateCQ, cq->handle, attr->moderate.cq_count, attr->moderate.cq_period);
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct ibv_context *context = cq->context;
	struct cq *c = cq_of(cq);
	uint32_t comp, async;
	int err = CALL(DestroyCQ, cq->handle, &comp, &async);
	if (err)
		return err;
	goroce_await_acks(&cq->mutex, &cq->cond, &cq->comp_events_completed, comp);
	goroce_await_acks(&cq->mutex, &cq->cond, &cq->async_events_completed, async);
	if (cq->channel) {
		pthread_mutex_lock(&context->mutex);
		cq->channel->refcnt--;
		pthread_mutex_unlock(&context->mutex);
	}
	pthread_mutex_destroy(&cq->mutex);
	pthread_cond_destroy(&cq->cond);
	pthread_mutex_destroy(&c->lock);
	free(c);
	let_go(context);
	return 0;
}

static void lock(struct cq *c)
{
	if (!c->unlocked)
		pthread_mutex_lock(&c->lock);
}

static void unlock(struct cq *c)
{
	if (!c->unlocked)
		pthread_mutex_unlock(&c->lock);
}

/* fetch gets the next batch. It returns how many there are, or a negative errno. The
 * lock is held. */
static int fetch(struct cq *c)
{
	if (goroce_orphan)
		return -EIO;
	int n = goroce_engine.PollCQ(c->ibv.handle, CQ_BATCH, c->wcs);
	c->first = 0;
	c->end = n > 0 ? n : 0;
	return n;
}

void forget(struct ibv_cq *cq, uint32_t qp_num)
{
	if (!cq)
		return;
	struct cq *c = cq_of(cq);
	lock(c);
	unsigned kept = c->first;
	for (unsigned i = kept; i < c->end; i++)
		if (c->wcs[i].qp_num != qp_num)
			c->wcs[kept++] = c->wcs[i];
	c->end = kept;
	unlock(c);
}

int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct cq *c = cq_of(cq);
	int got = 0, more = 1;
	lock(c);
	while (got < n) {
		if (c->first == c->end) {
			/* Only the first look is worth the work of a batch of packets. */
			if (got > 0 && more < CQ_BATCH)
				break;
			more = fetch(c);
			if (more <= 0)
				break;
		}
		wc[got++] = c->wcs[c->first++];
	}
	unlock(c);
	return got > 0 ? got : more < 0 ? more : 0;
}

int req_notify_cq(struct ibv_cq *cq, int solicited_only) { return CALL(ReqNotifyCQ, cq->handle, solicited_only); }

/* The extended queue: the current completion is the first of the batch. start_poll
 * takes the lock, end_poll gives it back. */

static void show(struct cq *c)
{
	c->ex.status = c->wcs[c->first].status;
	c->ex.wr_id = c->wcs[c->first].wr_id;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct cq *c = container_of(ex, struct cq, ex);
	if (attr->comp_mask)
		return EINVAL;
	lock(c);
	int n = c->first < c->end ? 1 : fetch(c);
	if (n <= 0) {
		unlock(c);
		return n < 0 ? -n : ENOENT;
	}
	show(c);
	return 0;
}

static int next_poll(struct ibv_cq_ex *ex)
{
	struct cq *c = container_of(ex, struct cq, ex);
	int n = c->first + 1 < c->end ? 1 : 0;
	if (n) {
		c->first++;
	} else {
		/* The current one stays readable when there is no other. */
		struct ibv_wc last = c->wcs[c->first];
		n = fetch(c);
		if (n <= 0) {
			c->wcs[0] = last;
			c->first = 0;
			c->end = 1;
			return n < 0 ? -n : ENOENT;
		}
	}
	show(c);
	return 0;
}

static void end_poll(struct ibv_cq_ex *ex)
{
	struct cq *c = container_of(ex, struct cq, ex);
	c->first++;
	unlock(c);
}

static const struct ibv_wc *current(struct ibv_cq_ex *ex)
{
	struct cq *c = container_of(ex, struct cq, ex);
	return &c->wcs[c->first];
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex) { return current(ex)->opcode; }
static uint32_t read_vendor_err(struct ibv_cq_ex *ex) { return current(ex)->vendor_err; }
static uint32_t read_byte_len(struct ibv_cq_ex *ex) { return current(ex)->byte_len; }
static __be32 read_imm_data(struct ibv_cq_ex *ex) { return current(ex)->imm_data; }
static uint32_t read_qp_num(struct ibv_cq_ex *ex) { return current(ex)->qp_num; }
static uint32_t read_src_qp(struct ibv_cq_ex *ex) { return current(ex)->src_qp; }
static unsigned read_wc_flags(struct ibv_cq_ex *ex) { return current(ex)->wc_flags; }
static uint32_t read_slid(struct ibv_cq_ex *ex) { return current(ex)->slid; }
static uint8_t read_sl(struct ibv_cq_ex *ex) { return current(ex)->sl; }
static uint8_t read_dlid_path_bits(struct ibv_cq_ex *ex) { return current(ex)->dlid_path_bits; }

struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	const uint32_t masks = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
	const uint32_t flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	uint32_t wanted = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;
	if (attr->wc_flags & ~(uint64_t)IBV_WC_STANDARD_FLAGS || attr->comp_mask & ~masks || wanted & ~flags)
		return fail(EOPNOTSUPP);
	struct cq *c = create_cq(context, (int)attr->cqe, attr->cq_context, attr->channel, attr->comp_vector);
	if (!c)
		return NULL;
	c->unlocked = wanted & IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	struct ibv_cq_ex *ex = &c->ex;
	ex->start_poll = start_poll;
	ex->next_poll = next_poll;
	ex->end_poll = end_poll;
	ex->read_opcode = read_opcode;
	ex->read_vendor_err = read_vendor_err;
	ex->read_byte_len = read_byte_len;
	ex->read_imm_data = read_imm_data;
	ex->read_qp_num = read_qp_num;
	ex->read_src_qp = read_src_qp;
	ex->read_wc_flags = read_wc_flags;
	ex->read_slid = read_slid;
	ex->read_sl = read_sl;
	ex->read_dlid_path_bits = read_dlid_path_bits;
	return ex;
}
