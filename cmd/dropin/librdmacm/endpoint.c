/* Queue pairs of ids, endpoints, names. */
#include <netdb.h>

#include "cm.h"

/* A queue pair without completion queues gets its own, with a channel each, as
 * rdma_get_send_comp and rdma_get_recv_comp of rdma_verbs.h want them. */
static int create_cq(struct rdma_cm_id *id, uint32_t entries, struct ibv_comp_channel **channel, struct ibv_cq **cq)
{
	*channel = ibv_create_comp_channel(id->verbs);
	if (!*channel)
		return -1;
	*cq = ibv_create_cq(id->verbs, entries ? (int)entries : 1, id, *channel, 0);
	return *cq ? 0 : -1;
}

static void destroy_cqs(struct rdma_cm_id *id)
{
	if (id->recv_cq)
		ibv_destroy_cq(id->recv_cq);
	if (id->recv_cq_channel)
		ibv_destroy_comp_channel(id->recv_cq_channel);
	if (id->send_cq)
		ibv_destroy_cq(id->send_cq);
	if (id->send_cq_channel)
		ibv_destroy_comp_channel(id->send_cq_channel);
	id->recv_cq = id->send_cq = NULL;
	id->recv_cq_channel = id->send_cq_channel = NULL;
}

/* start brings a new queue pair to where receives can be posted: one of datagrams to
 * RTS, others to INIT. */
static int start(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = RDMA_UDP_QKEY,
	                           .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	if (qp->qp_type != IBV_QPT_UD)
		return ibv_modify_qp(qp, &attr, mask | IBV_QP_ACCESS_FLAGS);
	int err = ibv_modify_qp(qp, &attr, mask | IBV_QP_QKEY);
	attr.qp_state = IBV_QPS_RTR;
	if (!err)
		err = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	attr.qp_state = IBV_QPS_RTS;
	return err ? err : ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	if (id->qp || !id->verbs)
		return failing(EINVAL);
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD)) {
		attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
		attr->pd = id->pd;
	}
	if (attr->pd->context != id->verbs)
		return failing(EINVAL);
	if (!attr->send_cq && create_cq(id, attr->cap.max_send_wr, &id->send_cq_channel, &id->send_cq))
		goto bad;
	if (!attr->recv_cq && !attr->srq && create_cq(id, attr->cap.max_recv_wr, &id->recv_cq_channel, &id->recv_cq))
		goto bad;
	if (!attr->send_cq)
		attr->send_cq = id->send_cq;
	if (!attr->recv_cq)
		attr->recv_cq = id->recv_cq ? id->recv_cq : attr->send_cq;
	if (!attr->srq)
		attr->srq = id->srq;
	struct ibv_qp *qp = ibv_create_qp_ex(id->verbs, attr);
	if (!qp)
		goto bad;
	int err = start(qp);
	if (err) {
		ibv_destroy_qp(qp);
		errno = err;
		goto bad;
	}
	id->pd = attr->pd;
	id->qp = qp;
	id->qp_type = attr->qp_type;
	return 0;
bad:
	err = errno;
	destroy_cqs(id);
	return failing(err);
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex ex = {.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd ? pd : id->pd};
	if (!ex.pd)
		return failing(EINVAL);
	const size_t same = offsetof(struct ibv_qp_init_attr_ex, comp_mask);
	memcpy(&ex, attr, same);
	int rc = rdma_create_qp_ex(id, &ex);
	memcpy(attr, &ex, same);
	return rc;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	if (id->qp)
		ibv_destroy_qp(id->qp);
	id->qp = NULL;
	destroy_cqs(id);
}

int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr)
{
	if (id->srq || !id->verbs)
		return failing(EINVAL);
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD)) {
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
		attr->pd = id->pd;
	}
	id->srq = ibv_create_srq_ex(id->verbs, attr);
	return id->srq ? 0 : -1;
}

int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq_init_attr_ex ex = {.srq_context = attr->srq_context, .attr = attr->attr, .comp_mask = IBV_SRQ_INIT_ATTR_PD, .pd = pd ? pd : id->pd};
	int rc = rdma_create_srq_ex(id, &ex);
	attr->attr = ex.attr;
	return rc;
}

void rdma_destroy_srq(struct rdma_cm_id *id)
{
	if (id->srq)
		ibv_destroy_srq(id->srq);
	id->srq = NULL;
}

static void *copy(const void *p, size_t n)
{
	void *c = n ? malloc(n) : NULL;
	return c ? memcpy(c, p, n) : NULL;
}

int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct rdma_cm_id *ep;
	if (rdma_create_id(NULL, &ep, NULL, res->ai_port_space))
		return -1;
	struct cm_id *c = cm(ep);
	int rc;
	if (res->ai_flags & RAI_PASSIVE) {
		rc = rdma_bind_addr(ep, res->ai_src_addr);
		ep->pd = pd ? pd : ep->pd;
		if (!rc && attr && !(c->qp_attr = copy(attr, sizeof(*attr))))
			rc = failing(ENOMEM);
		if (c->qp_attr)
			c->qp_attr->qp_type = res->ai_qp_type;
	} else {
		rc = rdma_resolve_addr(ep, res->ai_src_addr, res->ai_dst_addr, 2000);
		if (!rc)
			rc = rdma_resolve_route(ep, 2000);
		if (!rc && attr) {
			attr->qp_type = res->ai_qp_type ? res->ai_qp_type : (int)attr->qp_type;
			rc = rdma_create_qp(ep, pd, attr);
		}
		c->connect = copy(res->ai_connect, res->ai_connect_len);
		c->connect_len = c->connect ? res->ai_connect_len : 0;
	}
	if (rc) {
		int err = errno;
		rdma_destroy_ep(ep);
		return failing(err);
	}
	*id = ep;
	return 0;
}

void rdma_destroy_ep(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	rdma_destroy_id(id);
}

/* to_addrinfo adds what getaddrinfo(3) has found. */
static int to_addrinfo(struct rdma_addrinfo *r, const struct addrinfo *ai, bool passive)
{
	struct sockaddr *sa = copy(ai->ai_addr, ai->ai_addrlen);
	char *name = ai->ai_canonname ? copy(ai->ai_canonname, strlen(ai->ai_canonname) + 1) : NULL;
	r->ai_family = ai->ai_family;
	if (passive) {
		r->ai_src_addr = sa;
		r->ai_src_len = ai->ai_addrlen;
		r->ai_src_canonname = name;
	} else {
		r->ai_dst_addr = sa;
		r->ai_dst_len = ai->ai_addrlen;
		r->ai_dst_canonname = name;
	}
	return sa ? 0 : ENOMEM;
}

/* kind fills in what queue pairs and ports the addresses are for. */
static void kind(struct rdma_addrinfo *r, const struct rdma_addrinfo *hints)
{
	r->ai_qp_type = hints ? hints->ai_qp_type : 0;
	r->ai_port_space = hints ? hints->ai_port_space : 0;
	if (!r->ai_port_space)
		r->ai_port_space = r->ai_qp_type == IBV_QPT_UD ? RDMA_PS_UDP : RDMA_PS_TCP;
	if (!r->ai_qp_type)
		r->ai_qp_type = r->ai_port_space == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC;
}

int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints, struct rdma_addrinfo **res)
{
	int flags = hints ? hints->ai_flags : 0;
	bool passive = flags & RAI_PASSIVE;
	struct addrinfo want = {.ai_socktype = SOCK_STREAM}, *list = NULL;
	if (passive)
		want.ai_flags |= AI_PASSIVE;
	if (flags & RAI_NUMERICHOST)
		want.ai_flags |= AI_NUMERICHOST;
	if (flags & RAI_FAMILY)
		want.ai_family = hints->ai_family;
	struct rdma_addrinfo *r = calloc(1, sizeof(*r));
	if (!r)
		return failing(ENOMEM);
	r->ai_flags = flags;
	kind(r, hints);
	int rc = 0;
	if (node || service) {
		rc = getaddrinfo(node, service, &want, &list);
		if (!rc && to_addrinfo(r, list, passive))
			rc = EAI_MEMORY;
		if (list)
			freeaddrinfo(list);
	} else if (!hints) {
		rc = EAI_NONAME;
	}
	/* Addresses in the hints are those of the other side of what was looked up. */
	if (!rc && hints && hints->ai_src_len && !r->ai_src_addr) {
		r->ai_src_addr = copy(hints->ai_src_addr, hints->ai_src_len);
		r->ai_src_len = hints->ai_src_len;
		r->ai_family = hints->ai_src_addr->sa_family;
	}
	if (!rc && hints && hints->ai_dst_len && !r->ai_dst_addr) {
		r->ai_dst_addr = copy(hints->ai_dst_addr, hints->ai_dst_len);
		r->ai_dst_len = hints->ai_dst_len;
		r->ai_family = hints->ai_dst_addr->sa_family;
	}
	if (rc) {
		rdma_freeaddrinfo(r);
		return rc;
	}
	*res = r;
	return 0;
}

void rdma_freeaddrinfo(struct rdma_addrinfo *res)
{
	while (res) {
		struct rdma_addrinfo *next = res->ai_next;
		free(res->ai_src_addr);
		free(res->ai_dst_addr);
		free(res->ai_src_canonname);
		free(res->ai_dst_canonname);
		free(res->ai_route);
		free(res->ai_connect);
		free(res);
		res = next;
	}
}
