/* Posting: requests are written into the work queues, which the engine reads
 * (docs/decisions/0005-post-rings.md). What roce.QP.PostSend checks is checked here. */
#include <endian.h>

#include "goroce.h"

/* Not in all headers that this is built with. */
enum {
	WR_FLUSH = 14,
	WR_ATOMIC_WRITE = 15,
};

static struct qp *qp_of(struct ibv_qp *qp) { return container_of(qp, struct qp, ibv); }

/* sends says whether queue pairs of a type take an operation, as
 * transport.QPType.Sends does. */
static bool sends(enum ibv_qp_type type, unsigned op)
{
	const uint32_t messages = 1 << IBV_WR_SEND | 1 << IBV_WR_SEND_WITH_IMM;
	const uint32_t writes = 1 << IBV_WR_RDMA_WRITE | 1 << IBV_WR_RDMA_WRITE_WITH_IMM;
	const uint32_t local = 1 << IBV_WR_LOCAL_INV | 1 << IBV_WR_BIND_MW;
	const uint32_t reliable = messages | writes | local | 1 << IBV_WR_RDMA_READ | 1 << IBV_WR_SEND_WITH_INV | 1 << IBV_WR_ATOMIC_CMP_AND_SWP |
	                          1 << IBV_WR_ATOMIC_FETCH_AND_ADD;
	uint32_t ops = 0;
	switch (type) {
	case IBV_QPT_RC:
		ops = reliable | 1 << WR_FLUSH | 1 << WR_ATOMIC_WRITE;
		break;
	case IBV_QPT_XRC_SEND:
		ops = reliable;
		break;
	case IBV_QPT_UC:
		ops = messages | writes | local;
		break;
	case IBV_QPT_UD:
		ops = messages;
		break;
	default:
		break;
	}
	return op < 32 && ops >> op & 1;
}

/* An entry of the send queue that is being filled. */
struct slot {
	struct goroce_send *w;
	struct ibv_sge *sges;
	uint8_t *inline_data;
};

static struct slot slot_at(struct qp *q, uint32_t index)
{
	uint32_t i = index & (q->cap.max_send_wr - 1);
	return (struct slot){
		.w = &q->queues.send[i],
		.sges = q->queues.send_sges + (size_t)i * q->cap.max_send_sge,
		.inline_data = q->queues.send_inline + (size_t)i * q->cap.max_inline_data,
	};
}

/* ready says whether the state takes send requests. It is the engine's: the connection
 * manager changes it, too. */
static int ready(struct qp *q)
{
	if (goroce_orphan)
		return EIO;
	if (!q->queues.send)
		return EINVAL; /* an XRC target */
	switch (__atomic_load_n(q->queues.state, __ATOMIC_ACQUIRE)) {
	case IBV_QPS_RESET:
	case IBV_QPS_INIT:
	case IBV_QPS_RTR:
		return EINVAL;
	default:
		return 0;
	}
}

static bool room(struct qp *q, uint32_t index)
{
	return index - __atomic_load_n(q->queues.send_consumed, __ATOMIC_ACQUIRE) < q->cap.max_send_wr;
}

static bool local(const struct goroce_send *w) { return w->opcode == IBV_WR_LOCAL_INV || w->opcode == IBV_WR_BIND_MW; }

/* check says what is wrong with an entry that was filled, as far as its contents go:
 * 0, EINVAL, or, where a length is, EINVAL as well. */
static int check(struct qp *q, const struct slot *s)
{
	const struct goroce_send *w = s->w;
	uint64_t n = w->inline_len;
	for (unsigned i = 0; i < w->num_sge; i++)
		n += s->sges[i].length;
	if (!sends(q->ibv.qp_type, w->opcode) || n > q->queues.max_len)
		return EINVAL;
	bool inlined = w->flags & IBV_SEND_INLINE;
	if (local(w))
		return w->num_sge || w->flags & (IBV_SEND_INLINE | IBV_SEND_SOLICITED) ? EINVAL : 0;
	if (q->ibv.qp_type == IBV_QPT_UD && (!w->ah || !w->remote_qpn || w->remote_qpn > 0xffffff))
		return EINVAL;
	if (q->ibv.qp_type == IBV_QPT_XRC_SEND && (!w->srqn || w->srqn > 0xffffff))
		return EINVAL;
	switch ((unsigned)w->opcode) {
	case IBV_WR_RDMA_READ:
		return inlined ? EINVAL : 0;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return inlined || n != 8 ? EINVAL : 0;
	case WR_ATOMIC_WRITE:
		return n != 8 ? EINVAL : 0;
	case WR_FLUSH:
		return n || inlined ? EINVAL : 0;
	default:
		return 0;
	}
}

/* publish hands all entries before index to the engine. It is told of them if it has
 * found the queue without any, or does not send (roce.QueueLayout); otherwise it takes
 * them up behind those before them. */
static void publish(struct qp *q, uint32_t index)
{
	const struct goroce_queues *u = &q->queues;
	uint32_t first = *u->send_produced;
	__atomic_store_n(u->send_produced, index, __ATOMIC_SEQ_CST);
	bool idle = __atomic_load_n(u->send_idle, __ATOMIC_SEQ_CST) - first < index - first;
	if (idle || __atomic_load_n(u->state, __ATOMIC_SEQ_CST) != IBV_QPS_RTS)
		goroce_engine.Doorbell(q->ibv.handle);
}

static bool put_sges(struct qp *q, const struct slot *s, const struct ibv_sge *list, size_t n)
{
	if (n > q->cap.max_send_sge)
		return false;
	if (n) /* the list may be NULL then, which memcpy may not get */
		memcpy(s->sges, list, n * sizeof(*list));
	s->w->num_sge = n;
	return true;
}

/* put_inline appends to the payload of an entry. */
static bool put_inline(struct qp *q, const struct slot *s, const void *data, size_t n)
{
	if (n > q->cap.max_inline_data - s->w->inline_len)
		return false;
	if (n)
		memcpy(s->inline_data + s->w->inline_len, data, n);
	s->w->inline_len += n;
	return true;
}

/* A window has rights of peers alone: to write locally is the region's, and programs
 * name it all the same. */
static unsigned window_access(unsigned access) { return access & ~(unsigned)IBV_ACCESS_LOCAL_WRITE; }

static bool put_bind(struct goroce_send *w, const struct ibv_mw *mw, uint32_t key, const struct ibv_mw_bind_info *b)
{
	if (!mw || mw->type != IBV_MW_TYPE_2 || (b->length && !b->mr) || key >> 8 != mw->rkey >> 8)
		return false;
	w->rkey = key;
	w->imm = b->mr ? b->mr->lkey : 0;
	w->remote_addr = b->addr;
	w->compare_add = b->length;
	w->swap = window_access(b->mw_access_flags);
	return true;
}

static bool put_ah(struct qp *q, struct goroce_send *w, const struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	if (!ah || container_of(ah->pd, struct pd, ibv)->ibv.handle != q->ibv.pd->handle)
		return false;
	w->ah = ah->handle;
	w->remote_qpn = qpn;
	w->qkey = qkey;
	return true;
}

/* put fills the entry at index with a request. */
static int put(struct qp *q, uint32_t index, const struct ibv_send_wr *wr)
{
	struct slot s = slot_at(q, index);
	struct goroce_send *w = s.w;
	unsigned op = wr->opcode;
	if (op > UINT8_MAX || wr->num_sge < 0)
		return EINVAL;
	*w = (struct goroce_send){.id = wr->wr_id, .opcode = op, .flags = wr->send_flags & 0xf};
	switch (op) {
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		w->imm = be32toh(wr->imm_data);
		break;
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_LOCAL_INV:
		w->imm = wr->invalidate_rkey;
		break;
	case IBV_WR_BIND_MW:
		if (!put_bind(w, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info))
			return EINVAL;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		w->remote_addr = wr->wr.atomic.remote_addr;
		w->rkey = wr->wr.atomic.rkey;
		w->compare_add = wr->wr.atomic.compare_add;
		w->swap = wr->wr.atomic.swap;
		break;
	case WR_FLUSH:
		return EINVAL; /* ibv_wr_flush has the room for what it needs */
	}
	if (op == IBV_WR_RDMA_WRITE || op == IBV_WR_RDMA_WRITE_WITH_IMM || op == IBV_WR_RDMA_READ || op == WR_ATOMIC_WRITE) {
		w->remote_addr = wr->wr.rdma.remote_addr;
		w->rkey = wr->wr.rdma.rkey;
	}
	if (q->ibv.qp_type == IBV_QPT_UD && !put_ah(q, w, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey))
		return EINVAL;
	if (q->ibv.qp_type == IBV_QPT_XRC_SEND)
		w->srqn = wr->qp_type.xrc.remote_srqn;
	if (!(w->flags & IBV_SEND_INLINE))
		return put_sges(q, &s, wr->sg_list, wr->num_sge) ? check(q, &s) : EINVAL;
	for (int i = 0; i < wr->num_sge; i++)
		if (!put_inline(q, &s, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length))
			return EINVAL;
	return check(q, &s);
}

int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct qp *q = qp_of(qp);
	pthread_mutex_lock(&q->send_lock);
	int err = ready(q);
	uint32_t index = err ? 0 : *q->queues.send_produced, first = index;
	for (; !err && wr; wr = wr->next) {
		err = room(q, index) ? put(q, index, wr) : ENOMEM;
		if (err)
			break;
		index++;
	}
	if (index != first)
		publish(q, index);
	pthread_mutex_unlock(&q->send_lock);
	if (err)
		*bad = wr;
	return err;
}

int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct qp *q = qp_of(qp);
	struct ibv_mw_bind b = *bind;
	b.bind_info.mw_access_flags = window_access(b.bind_info.mw_access_flags);
	pthread_mutex_lock(&q->send_lock);
	int err = ready(q);
	if (!err)
		err = CALL(BindMW, qp->handle, mw->handle, b.bind_info.mr ? b.bind_info.mr->handle : 0, &b, &mw->rkey);
	pthread_mutex_unlock(&q->send_lock);
	return err;
}

/* put_recv fills the slot at index of the receive queue. */
static int put_recv(struct qp *q, uint32_t index, const struct ibv_recv_wr *wr)
{
	uint32_t i = index & (q->cap.max_recv_wr - 1);
	uint64_t n = 0;
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->cap.max_recv_sge)
		return EINVAL;
	for (int s = 0; s < wr->num_sge; s++)
		n += wr->sg_list[s].length;
	if (n > UINT32_C(1) << 31)
		return EINVAL;
	q->queues.recv[i] = (struct goroce_recv){.id = wr->wr_id, .num_sge = wr->num_sge};
	if (wr->num_sge)
		memcpy(q->queues.recv_sges + (size_t)i * q->cap.max_recv_sge, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
	return 0;
}

int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct qp *q = qp_of(qp);
	struct goroce_queues *u = &q->queues;
	int err = 0;
	if (goroce_orphan)
		err = EIO;
	else if (!u->recv || __atomic_load_n(u->state, __ATOMIC_ACQUIRE) == IBV_QPS_RESET)
		err = EINVAL;
	if (err) {
		*bad = wr;
		return err;
	}
	pthread_mutex_lock(&q->recv_lock);
	uint32_t index = *u->recv_produced, first = index;
	for (; wr; wr = wr->next) {
		err = index - __atomic_load_n(u->recv_consumed, __ATOMIC_ACQUIRE) < q->cap.max_recv_wr ? put_recv(q, index, wr) : ENOMEM;
		if (err) {
			*bad = wr;
			break;
		}
		index++;
	}
	if (index != first) {
		__atomic_store_n(u->recv_produced, index, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(u->state, __ATOMIC_SEQ_CST) == IBV_QPS_ERR)
			goroce_engine.Doorbell(qp->handle); /* to be flushed */
	}
	pthread_mutex_unlock(&q->recv_lock);
	return err;
}

int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	if (goroce_orphan)
		*bad = wr;
	return CALL(PostSRQ, srq->handle, wr, bad);
}

/* The builder: between wr_start and wr_complete the send queue is locked, and requests
 * are written behind those that are posted. What is wrong with one shows when the next
 * is begun or all are completed: then none is posted. */

static struct qp *building(struct ibv_qp_ex *ex) { return container_of(ex, struct qp, ex); }

static struct slot built(struct qp *q) { return slot_at(q, *q->queues.send_produced + q->built - 1); }

/* finish checks the request that was built last. */
static void finish(struct qp *q)
{
	if (q->built && !q->error) {
		struct slot s = built(q);
		q->error = check(q, &s);
	}
}

/* begin starts a request. After an error it is written all the same, where nobody
 * looks. */
static struct goroce_send *begin(struct ibv_qp_ex *ex, unsigned op)
{
	struct qp *q = building(ex);
	finish(q);
	if (!q->error && !room(q, *q->queues.send_produced + q->built))
		q->error = ENOMEM;
	static __thread struct goroce_send nowhere;
	struct goroce_send *w = &nowhere;
	if (!q->error) {
		q->built++;
		w = built(q).w;
	}
	*w = (struct goroce_send){.id = ex->wr_id, .opcode = op, .flags = ex->wr_flags & 0x7};
	return w;
}

static void wr_start(struct ibv_qp_ex *ex)
{
	struct qp *q = building(ex);
	pthread_mutex_lock(&q->send_lock);
	q->built = 0;
	q->error = ready(q);
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	struct qp *q = building(ex);
	finish(q);
	int err = q->error;
	if (!err && q->built)
		publish(q, *q->queues.send_produced + q->built);
	pthread_mutex_unlock(&q->send_lock);
	return err;
}

static void wr_abort(struct ibv_qp_ex *ex) { pthread_mutex_unlock(&building(ex)->send_lock); }

static struct goroce_send *begin_remote(struct ibv_qp_ex *ex, unsigned op, uint32_t rkey, uint64_t addr)
{
	struct goroce_send *w = begin(ex, op);
	w->rkey = rkey;
	w->remote_addr = addr;
	return w;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
	struct goroce_send *w = begin_remote(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr);
	w->compare_add = compare;
	w->swap = swap;
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t add)
{
	begin_remote(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr)->compare_add = add;
}

static void refuse(struct qp *q)
{
	if (!q->error)
		q->error = EINVAL;
}

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	if (!put_bind(begin(ex, IBV_WR_BIND_MW), mw, rkey, info))
		refuse(building(ex));
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey) { begin(ex, IBV_WR_LOCAL_INV)->imm = rkey; }
static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) { begin_remote(ex, IBV_WR_RDMA_READ, rkey, addr); }
static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) { begin_remote(ex, IBV_WR_RDMA_WRITE, rkey, addr); }

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm)
{
	begin_remote(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr)->imm = be32toh(imm);
}

static void wr_send(struct ibv_qp_ex *ex) { begin(ex, IBV_WR_SEND); }
static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm) { begin(ex, IBV_WR_SEND_WITH_IMM)->imm = be32toh(imm); }
static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey) { begin(ex, IBV_WR_SEND_WITH_INV)->imm = rkey; }

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct qp *q = building(ex);
	if (!q->error && !put_ah(q, built(q).w, ah, qpn, qkey))
		refuse(q);
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *ex, uint32_t srqn)
{
	struct qp *q = building(ex);
	if (!q->error)
		built(q).w->srqn = srqn;
}

static void set_inline(struct qp *q, const void *addr, size_t n)
{
	if (q->error)
		return;
	struct slot s = built(q);
	s.w->flags |= IBV_SEND_INLINE;
	if (!put_inline(q, &s, addr, n))
		refuse(q);
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t n) { set_inline(building(ex), addr, n); }

static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
	for (size_t i = 0; i < n; i++)
		set_inline(building(ex), list[i].addr, list[i].length);
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
	struct qp *q = building(ex);
	if (q->error)
		return;
	struct slot s = built(q);
	if (!put_sges(q, &s, list, n))
		refuse(q);
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t n)
{
	struct ibv_sge sge = {.addr = addr, .length = n, .lkey = lkey};
	wr_set_sge_list(ex, 1, &sge);
}

static void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, const void *word)
{
	begin_remote(ex, WR_ATOMIC_WRITE, rkey, addr);
	set_inline(building(ex), word, 8);
}

/* type and level are IBV_FLUSH_GLOBAL (1), _PERSISTENT (2) and IBV_FLUSH_RANGE (0), _MR (1). */
static void wr_flush(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, size_t n, uint8_t type, uint8_t level)
{
	struct goroce_send *w = begin_remote(ex, WR_FLUSH, rkey, addr);
	w->imm = (type & 3) | (level & 3) << 4;
	w->compare_add = n;
	if (!type || type > 3 || level > 1 || n > UINT32_MAX)
		refuse(building(ex));
}

/* The operations of the builder are bits numbered as the operations themselves, but
 * for these. */
static uint64_t op_bit(unsigned op)
{
	switch (op) {
	case WR_FLUSH:
		return QP_EX_WITH_FLUSH;
	case WR_ATOMIC_WRITE:
		return QP_EX_WITH_ATOMIC_WRITE;
	default:
		return op <= IBV_WR_SEND_WITH_INV ? 1 << op : 0;
	}
}

uint64_t builder_ops(enum ibv_qp_type type)
{
	uint64_t ops = 0;
	for (unsigned op = 0; op < 32; op++)
		if (sends(type, op))
			ops |= op_bit(op);
	return ops;
}

void fill_builder(struct qp *q, uint64_t ops)
{
	struct ibv_qp_ex *ex = &q->ex;
	q->extended = true;
	ex->wr_start = wr_start;
	ex->wr_complete = wr_complete;
	ex->wr_abort = wr_abort;
	ex->wr_set_ud_addr = wr_set_ud_addr;
	ex->wr_set_xrc_srqn = wr_set_xrc_srqn;
	ex->wr_set_inline_data = wr_set_inline_data;
	ex->wr_set_inline_data_list = wr_set_inline_data_list;
	ex->wr_set_sge = wr_set_sge;
	ex->wr_set_sge_list = wr_set_sge_list;
#define X(bit, name)        \
	if (ops & (bit))    \
		ex->name = name;
	X(IBV_QP_EX_WITH_RDMA_WRITE, wr_rdma_write)
	X(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, wr_rdma_write_imm)
	X(IBV_QP_EX_WITH_SEND, wr_send)
	X(IBV_QP_EX_WITH_SEND_WITH_IMM, wr_send_imm)
	X(IBV_QP_EX_WITH_RDMA_READ, wr_rdma_read)
	X(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, wr_atomic_cmp_swp)
	X(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, wr_atomic_fetch_add)
	X(IBV_QP_EX_WITH_LOCAL_INV, wr_local_inv)
	X(IBV_QP_EX_WITH_BIND_MW, wr_bind_mw)
	X(IBV_QP_EX_WITH_SEND_WITH_INV, wr_send_inv)
	X(QP_EX_WITH_ATOMIC_WRITE, wr_atomic_write)
#undef X
	if (ops & QP_EX_WITH_FLUSH)
		q->wr_flush = wr_flush;
}
