/* The device: the list that has one, opening it, what it says of itself. */
#include <arpa/inet.h>
#include <endian.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <unistd.h>

#include "goroce.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_device device = {
	.node_type = IBV_NODE_CA,
	.transport_type = IBV_TRANSPORT_IB,
};
static char address[INET6_ADDRSTRLEN]; /* of the device, once it is chosen */

/* free_port says whether a device can be opened at an address, as far as can be seen
 * without doing it. */
static bool free_port(const struct sockaddr *sa, socklen_t len)
{
	int fd = socket(sa->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool ok = fd >= 0 && bind(fd, sa, len) == 0;
	if (fd >= 0)
		close(fd);
	return ok;
}

/* within says whether the first bits of two addresses are equal. */
static bool within(const uint8_t *a, const uint8_t *b, int bits)
{
	int whole = bits / 8, rest = bits % 8;
	return memcmp(a, b, whole) == 0 && (rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0);
}

struct wish {
	int family; /* AF_INET, AF_INET6; AF_UNSPEC: any */
	uint8_t addr[16];
	int bits; /* of the prefix */
	bool taken_too;
};

/* parse_wish reads $ROCE_ADDR: an address, or a prefix of which any will do. */
static bool parse_wish(const char *s, struct wish *w)
{
	char text[INET6_ADDRSTRLEN];
	size_t n = strcspn(s, "/");
	if (n >= sizeof(text))
		return false;
	memcpy(text, s, n);
	text[n] = 0;
	w->family = strchr(text, ':') ? AF_INET6 : AF_INET;
	if (inet_pton(w->family, text, w->addr) != 1)
		return false;
	int most = w->family == AF_INET ? 32 : 128;
	w->bits = most;
	if (s[n] == '/') {
		char *end;
		long bits = strtol(s + n + 1, &end, 10);
		if (end == s + n + 1 || *end || bits < 0 || bits > most)
			return false;
		w->bits = bits;
	}
	return true;
}

static const uint8_t *bytes_of(const struct sockaddr *sa)
{
	return sa->sa_family == AF_INET ? (const uint8_t *)&((const struct sockaddr_in *)sa)->sin_addr
	                                : (const uint8_t *)&((const struct sockaddr_in6 *)sa)->sin6_addr;
}

/* try takes an address if it is wished for and free. */
static bool try(struct sockaddr *sa, const struct wish *w)
{
	if (w->family != AF_UNSPEC && (sa->sa_family != w->family || !within(bytes_of(sa), w->addr, w->bits)))
		return false;
	socklen_t len;
	if (sa->sa_family == AF_INET) {
		((struct sockaddr_in *)sa)->sin_port = htons(4791);
		len = sizeof(struct sockaddr_in);
	} else {
		((struct sockaddr_in6 *)sa)->sin6_port = htons(4791);
		len = sizeof(struct sockaddr_in6);
	}
	if (!w->taken_too && !free_port(sa, len))
		return false;
	return inet_ntop(sa->sa_family, bytes_of(sa), address, sizeof(address)) != NULL;
}

/* try_interfaces takes the first address of an interface that is up: those of IPv4
 * first, then global ones of IPv6. */
static bool try_interfaces(const struct wish *w)
{
	struct ifaddrs *list;
	if (getifaddrs(&list) != 0)
		return false;
	bool found = false;
	const int families[] = {AF_INET, AF_INET6};
	for (int f = 0; f < 2 && !found; f++)
		for (struct ifaddrs *i = list; i && !found; i = i->ifa_next) {
			struct sockaddr *sa = i->ifa_addr;
			if (!sa || sa->sa_family != families[f] || !(i->ifa_flags & IFF_UP) || i->ifa_flags & IFF_LOOPBACK)
				continue;
			if (sa->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)sa)->sin6_addr))
				continue;
			found = try(sa, w);
		}
	freeifaddrs(list);
	return found;
}

/* try_loopback takes one of 127.0.0.1 to 127.0.0.254, or of the first 254 of a longer
 * prefix of 127.0.0.0/8, or ::1. */
static bool try_loopback(const struct wish *w)
{
	uint32_t base = INADDR_LOOPBACK - 1;
	if (w->family == AF_INET && w->addr[0] == IN_LOOPBACKNET && w->bits > 8) {
		memcpy(&base, w->addr, sizeof(base));
		base = ntohl(base) & ~(UINT32_MAX >> w->bits);
	}
	for (int i = 1; i < 255; i++) {
		struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(base + i)};
		if (try((struct sockaddr *)&sin, w))
			return true;
	}
	struct sockaddr_in6 sin6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	return try((struct sockaddr *)&sin6, w);
}

/* choose sets the address of the device: the first local one whose UDP port 4791 is
 * free, within $ROCE_ADDR. */
static bool choose(void)
{
	struct wish w = {.family = AF_UNSPEC};
	const char *wish = getenv("ROCE_ADDR");
	if (wish && *wish && !parse_wish(wish, &w)) {
		fprintf(stderr, "goroce: ROCE_ADDR is %s: an IP address or a prefix such as 10.0.0.0/8 is needed\n", wish);
		return false;
	}
	if (w.family != AF_UNSPEC && w.bits == (w.family == AF_INET ? 32 : 128)) {
		/* One address: what is wrong with it shows when the device is opened. */
		w.taken_too = true;
		return inet_ntop(w.family, w.addr, address, sizeof(address)) != NULL;
	}
	if (try_interfaces(&w) || try_loopback(&w))
		return true;
	fprintf(stderr, "goroce: no device: UDP port 4791 is taken at each local address%s%s; see `roce devinfo`\n", w.family ? " within " : "",
	        w.family ? wish : "");
	return false;
}

/* guid is made of the address, so that it is the same each time. */
static __be64 guid(void)
{
	uint8_t b[16] = {0};
	if (inet_pton(AF_INET, address, b + 12) == 1) {
		memcpy(b + 8, (const uint8_t[]){0x02, 0x00, 0x12, 0xb7}, 4); /* local; port 4791 */
	} else {
		inet_pton(AF_INET6, address, b);
		b[8] |= 0x02;
	}
	__be64 v;
	memcpy(&v, b + 8, sizeof(v));
	return v;
}

struct ibv_device **ibv_get_device_list(int *num)
{
	pthread_mutex_lock(&lock);
	if (!device.name[0]) {
		const char *name = getenv("ROCE_NAME");
		snprintf(device.name, sizeof(device.name), "%s", name && *name ? name : "roce0");
		snprintf(device.dev_name, sizeof(device.dev_name), "%s", device.name);
		snprintf(device.dev_path, sizeof(device.dev_path), "/sys/class/infiniband_verbs/%s", device.name);
		snprintf(device.ibdev_path, sizeof(device.ibdev_path), "/sys/class/infiniband/%s", device.name);
	}
	int n = address[0] || choose() ? 1 : 0;
	pthread_mutex_unlock(&lock);
	struct ibv_device **list = calloc(2, sizeof(*list));
	if (!list)
		return fail(ENOMEM);
	if (n)
		list[0] = &device;
	if (num)
		*num = n;
	return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }

bool is_device(const char *dev_name)
{
	pthread_mutex_lock(&lock);
	bool is = device.dev_name[0] && strcmp(device.dev_name, dev_name) == 0;
	pthread_mutex_unlock(&lock);
	return is;
}

const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
int ibv_get_device_index(struct ibv_device *d) { (void)d; return -1; }

__be64 ibv_get_device_guid(struct ibv_device *d)
{
	(void)d;
	pthread_mutex_lock(&lock);
	__be64 g = guid();
	pthread_mutex_unlock(&lock);
	return g;
}

/* open_engine opens the device of the engine. Another process may have taken the
 * address since it was chosen: then another one is. */
static int open_engine(uint32_t *handle)
{
	char why[512] = "";
	int err = goroce_load();
	if (err)
		return err;
	pthread_mutex_lock(&lock);
	err = CALL(Open, address, device.name, handle, why, sizeof(why));
	while (err == EADDRINUSE) {
		char before[sizeof(address)];
		strcpy(before, address);
		if (!choose() || strcmp(before, address) == 0)
			break;
		err = CALL(Open, address, device.name, handle, why, sizeof(why));
	}
	if (err)
		fprintf(stderr, "goroce: %s\n", why);
	pthread_mutex_unlock(&lock);
	return err;
}

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct context *c = calloc(1, sizeof(*c));
	if (!c)
		return fail(ENOMEM);
	int err = open_engine(&c->handle);
	if (err) {
		free(c);
		return fail(err);
	}
	struct ibv_context *ibv = &c->v.context;
	c->refs = 1;
	c->v.sz = sizeof(c->v);
	ibv->device = d;
	ibv->cmd_fd = -1;
	ibv->async_fd = CALL(EventFD, c->handle);
	ibv->num_comp_vectors = 1;
	ibv->abi_compat = __VERBS_ABI_IS_EXTENDED;
	pthread_mutex_init(&ibv->mutex, NULL);
	fill_ops(&c->v);
	return ibv;
}

int hold(struct ibv_context *ibv) { return __atomic_fetch_add(&context_of(ibv)->refs, 1, __ATOMIC_RELAXED), 0; }

void let_go(struct ibv_context *ibv)
{
	struct context *c = context_of(ibv);
	if (__atomic_sub_fetch(&c->refs, 1, __ATOMIC_ACQ_REL) == 0) {
		pthread_mutex_destroy(&ibv->mutex);
		free(c);
	}
}

int ibv_close_device(struct ibv_context *ibv)
{
	int err = CALL(Close, context_of(ibv)->handle);
	if (err && !goroce_orphan)
		return failing(err);
	let_go(ibv);
	return 0;
}

/* query_device fills in the attributes; flags also has those that do not fit there. */
static int query_device(struct ibv_context *ibv, struct ibv_device_attr *a, uint64_t *flags)
{
	memset(a, 0, sizeof(*a));
	int err = CALL(QueryDevice, context_of(ibv)->handle, a, flags);
	a->node_guid = a->sys_image_guid = ibv_get_device_guid(ibv->device);
	return err;
}

int ibv_query_device(struct ibv_context *ibv, struct ibv_device_attr *a)
{
	uint64_t flags;
	return query_device(ibv, a, &flags);
}

static int query_device_ex(struct ibv_context *ibv, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *a, size_t size)
{
	struct ibv_device_attr_ex all = {0};
	if (in && in->comp_mask)
		return EINVAL;
	int err = query_device(ibv, &all.orig_attr, &all.device_cap_flags_ex);
	if (err)
		return err;
	all.cq_mod_caps = (struct ibv_cq_moderation_caps){.max_cq_count = UINT16_MAX, .max_cq_period = UINT16_MAX};
	all.phys_port_cnt_ex = all.orig_attr.phys_port_cnt;
	memset(a, 0, size);
	memcpy(a, &all, size < sizeof(all) ? size : sizeof(all));
	return 0;
}

static int query_port(struct ibv_context *ibv, uint8_t port, struct ibv_port_attr *a, size_t size)
{
	struct ibv_port_attr all;
	if (port != 1)
		return EINVAL;
	int err = CALL(QueryPort, context_of(ibv)->handle, &all);
	if (err)
		return err;
	memset(a, 0, size);
	memcpy(a, &all, size < sizeof(all) ? size : sizeof(all));
	return 0;
}

/* Programs that were built with headers before 2020 call this one: their
 * attributes end before port_cap_flags2. */
#undef ibv_query_port
int ibv_query_port(struct ibv_context *ibv, uint8_t port, struct _compat_ibv_port_attr *a)
{
	return query_port(ibv, port, (struct ibv_port_attr *)a, offsetof(struct ibv_port_attr, port_cap_flags2));
}

/* query_gid reads entry index of the GID table, which has one. */
static int query_gid(struct ibv_context *ibv, uint32_t port, uint32_t index, struct ibv_gid_entry *e)
{
	if (port != 1 || index != 0)
		return EINVAL;
	*e = (struct ibv_gid_entry){.gid_index = index, .port_num = port, .gid_type = IBV_GID_TYPE_ROCE_V2};
	return CALL(QueryGID, context_of(ibv)->handle, &e->gid, &e->ndev_ifindex);
}

int ibv_query_gid(struct ibv_context *ibv, uint8_t port, int index, union ibv_gid *gid)
{
	struct ibv_gid_entry e;
	int err = query_gid(ibv, port, index, &e);
	if (err)
		return failing(err);
	*gid = e.gid;
	return 0;
}

int _ibv_query_gid_ex(struct ibv_context *ibv, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
	struct ibv_gid_entry e;
	if (flags)
		return EOPNOTSUPP;
	int err = query_gid(ibv, port, index, &e);
	if (err)
		return index == 0 ? err : ENODATA; /* as for an empty entry */
	memset(entry, 0, size);
	memcpy(entry, &e, size < sizeof(e) ? size : sizeof(e));
	return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *ibv, struct ibv_gid_entry *entries, size_t max, uint32_t flags, size_t size)
{
	if (flags)
		return -EOPNOTSUPP;
	if (max < 1)
		return -EINVAL;
	int err = _ibv_query_gid_ex(ibv, 1, 0, entries, 0, size);
	return err ? -err : 1;
}

/* ibv_query_gid_type is of the providers' interface, and ibv_devinfo calls it: 0 is IB
 * or RoCEv1, 1 RoCEv2. */
int ibv_query_gid_type(struct ibv_context *ibv, uint8_t port, unsigned index, int *type)
{
	struct ibv_gid_entry e;
	int err = query_gid(ibv, port, index, &e);
	if (err)
		return failing(err);
	*type = 1;
	return 0;
}

#define DEFAULT_PKEY 0xffff

int ibv_query_pkey(struct ibv_context *ibv, uint8_t port, int index, __be16 *pkey)
{
	(void)ibv;
	if (port != 1 || index != 0)
		return failing(EINVAL);
	*pkey = htobe16(DEFAULT_PKEY);
	return 0;
}

int ibv_get_pkey_index(struct ibv_context *ibv, uint8_t port, __be16 pkey)
{
	(void)ibv;
	if (port != 1 || pkey != htobe16(DEFAULT_PKEY))
		return failing(EINVAL);
	return 0;
}

/* query_rt_values reads a clock that nothing of ours is stamped with: there are no
 * completion timestamps. */
static int query_rt_values(struct ibv_context *ibv, struct ibv_values_ex *v)
{
	(void)ibv;
	v->comp_mask = 0;
	return EOPNOTSUPP;
}

/* What a field of verbs_context lacks is answered with EOPNOTSUPP by the program's own
 * inline functions. */
void fill_ops(struct verbs_context *v)
{
	v->query_port = query_port;
	v->query_device_ex = query_device_ex;
	v->query_rt_values = query_rt_values;
	v->alloc_parent_domain = alloc_parent_domain;
	v->alloc_td = alloc_td;
	v->dealloc_td = dealloc_td;
	v->open_xrcd = open_xrcd;
	v->close_xrcd = close_xrcd;
	v->create_cq_ex = create_cq_ex;
	v->modify_cq = modify_cq;
	v->create_qp_ex = create_qp_ex;
	v->open_qp = open_qp;
	v->create_srq_ex = create_srq_ex;
	v->get_srq_num = get_srq_num;

	struct ibv_context_ops *o = &v->context.ops;
	o->alloc_mw = alloc_mw;
	o->bind_mw = bind_mw;
	o->dealloc_mw = dealloc_mw;
	o->poll_cq = poll_cq;
	o->req_notify_cq = req_notify_cq;
	o->post_send = post_send;
	o->post_recv = post_recv;
	o->post_srq_recv = post_srq_recv;
}
