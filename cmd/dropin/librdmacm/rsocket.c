/* rsockets: sockets whose descriptors are eventfds, numbers for the program to name them
 * by. Connections are the engine's, package rnet of goroce. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <rdma/rsocket.h>

#include "cm.h"

struct rs {
	uint32_t handle;
	int family;
	bool nonblocking;
	struct goroce_addr local; /* where it was bound to */
	struct goroce_rconfig config;
	struct linger linger;
	int reuse, oob_inline, nodelay, v6only; /* options that change nothing */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rs **table; /* by descriptor */
static int table_size;

/* find returns the rsocket of a descriptor, or NULL with errno set. */
static struct rs *find(int fd)
{
	pthread_mutex_lock(&lock);
	struct rs *rs = fd >= 0 && fd < table_size ? table[fd] : NULL;
	pthread_mutex_unlock(&lock);
	return rs ? rs : fail(EBADF);
}

uint32_t rsocket_handle(int fd)
{
	struct rs *rs = find(fd);
	return rs ? rs->handle : 0;
}

/* add gives an rsocket a descriptor, which it returns, or -1. */
static int add(struct rs *rs)
{
	int fd = eventfd(0, EFD_CLOEXEC);
	if (fd < 0)
		return -1;
	pthread_mutex_lock(&lock);
	if (fd >= table_size) {
		int size = 2 * fd + 16;
		struct rs **bigger = realloc(table, size * sizeof(*table));
		if (!bigger) {
			pthread_mutex_unlock(&lock);
			close(fd);
			return failing(ENOMEM);
		}
		memset(bigger + table_size, 0, (size - table_size) * sizeof(*table));
		table = bigger;
		table_size = size;
	}
	table[fd] = rs;
	pthread_mutex_unlock(&lock);
	return fd;
}

static struct rs *new_rs(int family, uint32_t handle, const struct goroce_rconfig *config)
{
	struct rs *rs = calloc(1, sizeof(*rs));
	if (!rs)
		return fail(ENOMEM);
	rs->family = family;
	rs->handle = handle;
	if (config)
		rs->config = *config;
	return rs;
}

/* There are no datagrams over RoCE, as in rdma-core. */
int rsocket(int domain, int type, int protocol)
{
	if (domain != PF_INET && domain != PF_INET6)
		return failing(EAFNOSUPPORT);
	if (type != SOCK_STREAM || (protocol && protocol != IPPROTO_TCP))
		return failing(EPROTONOSUPPORT);
	if (goroce_orphan)
		return failing(EIO);
	if (!shared_context())
		return -1;
	struct rs *rs = new_rs(domain, goroce_engine.RSocket(), NULL);
	if (!rs)
		return -1;
	int fd = add(rs);
	if (fd < 0)
		free(rs);
	return fd;
}

/* device returns the engine's handle of the device. */
static uint32_t device(void) { return context_of(shared_context())->handle; }

int rbind(int fd, const struct sockaddr *addr, socklen_t len)
{
	struct rs *rs = find(fd);
	struct goroce_addr at;
	union ibv_gid gid;
	(void)len;
	if (!rs)
		return -1;
	int err = get_addr(&at, addr);
	if (!err)
		err = own_addr(&at, &gid);
	if (!err)
		rs->local = at;
	return done(err);
}

int rlisten(int fd, int backlog)
{
	struct rs *rs = find(fd);
	return rs ? done(CALL(RListen, rs->handle, device(), &rs->local, backlog)) : -1;
}

/* give writes an address to the program's memory. */
static void give(struct sockaddr *addr, socklen_t *len, const struct goroce_addr *a, int family)
{
	struct sockaddr_storage sa;
	if (!addr || !len)
		return;
	put_sockaddr(&sa, a);
	socklen_t size = sa.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	if (family == AF_INET6 && sa.ss_family == AF_INET) {
		struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)&sa;
		*sin6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(a->port)};
		memcpy(&sin6->sin6_addr, a->ip, 16);
		size = sizeof(*sin6);
	}
	memcpy(addr, &sa, *len < size ? *len : size);
	*len = size;
}

int raccept(int fd, struct sockaddr *addr, socklen_t *len)
{
	struct rs *rs = find(fd);
	uint32_t child;
	if (!rs)
		return -1;
	int err = CALL(RAccept, rs->handle, device(), &rs->config, !rs->nonblocking, &child);
	if (err)
		return failing(err);
	struct rs *c = new_rs(rs->family, child, &rs->config);
	int cfd = c ? add(c) : -1;
	if (cfd < 0) {
		goroce_engine.RClose(child, 0);
		free(c);
		return -1;
	}
	struct goroce_addr local, peer;
	if (!goroce_engine.RNames(child, &local, &peer))
		give(addr, len, &peer, rs->family);
	return cfd;
}

int rconnect(int fd, const struct sockaddr *addr, socklen_t len)
{
	struct rs *rs = find(fd);
	struct goroce_addr to;
	(void)len;
	if (!rs)
		return -1;
	int err = get_addr(&to, addr);
	return done(err ? err : CALL(RConnect, rs->handle, device(), &rs->local, &to, &rs->config, !rs->nonblocking));
}

int rshutdown(int fd, int how)
{
	struct rs *rs = find(fd);
	if (!rs)
		return -1;
	if (how == SHUT_RD) /* nobody is told of that */
		return 0;
	return done(CALL(RShutdown, rs->handle));
}

int rclose(int fd)
{
	struct rs *rs = find(fd);
	if (!rs)
		return -1;
	pthread_mutex_lock(&lock);
	table[fd] = NULL;
	pthread_mutex_unlock(&lock);
	int err = CALL(RClose, rs->handle, rs->linger.l_onoff ? rs->linger.l_linger : 5);
	close(fd);
	free(rs);
	return done(err);
}

/* result returns bytes, or -1 with errno for a negative errno. */
static ssize_t result(int64_t n) { return n < 0 ? failing((int)-n) : n; }

static bool waits(const struct rs *rs, int flags) { return !rs->nonblocking && !(flags & MSG_DONTWAIT); }

ssize_t rrecv(int fd, void *buf, size_t n, int flags)
{
	struct rs *rs = find(fd);
	size_t got = 0;
	if (!rs)
		return -1;
	if (flags & ~(MSG_DONTWAIT | MSG_PEEK | MSG_WAITALL | MSG_NOSIGNAL))
		return failing(EOPNOTSUPP);
	if (goroce_orphan)
		return failing(EIO);
	do {
		int64_t more = goroce_engine.RRecv(rs->handle, (char *)buf + got, n - got, waits(rs, flags), !!(flags & MSG_PEEK));
		if (more <= 0)
			return got ? (ssize_t)got : result(more);
		got += more;
	} while (flags & MSG_WAITALL && waits(rs, flags) && !(flags & MSG_PEEK) && got < n);
	return got;
}

ssize_t rrecvfrom(int fd, void *buf, size_t n, int flags, struct sockaddr *addr, socklen_t *len)
{
	ssize_t got = rrecv(fd, buf, n, flags);
	if (got >= 0 && addr && len)
		rgetpeername(fd, addr, len);
	return got;
}

/* each calls f for the pieces of a vector, until one is not whole. */
static ssize_t each(int fd, const struct iovec *iov, int count, int flags, ssize_t (*f)(int, void *, size_t, int))
{
	ssize_t all = 0;
	for (int i = 0; i < count; i++) {
		if (!iov[i].iov_len)
			continue;
		/* Only the first byte is waited for. */
		ssize_t n = f(fd, iov[i].iov_base, iov[i].iov_len, flags);
		if (n < 0)
			return all ? all : -1;
		all += n;
		if ((size_t)n < iov[i].iov_len)
			break;
		if (f == rrecv)
			flags |= MSG_DONTWAIT;
	}
	return all;
}

ssize_t rrecvmsg(int fd, struct msghdr *msg, int flags)
{
	if (msg->msg_control && msg->msg_controllen)
		return failing(EOPNOTSUPP);
	return each(fd, msg->msg_iov, (int)msg->msg_iovlen, flags, rrecv);
}

ssize_t rread(int fd, void *buf, size_t n) { return rrecv(fd, buf, n, 0); }
ssize_t rreadv(int fd, const struct iovec *iov, int count) { return each(fd, iov, count, 0, rrecv); }

ssize_t rsend(int fd, const void *buf, size_t n, int flags)
{
	struct rs *rs = find(fd);
	if (!rs)
		return -1;
	if (flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE | MSG_WAITALL)) /* the last, of rstream, says nothing here */
		return failing(EOPNOTSUPP);
	if (goroce_orphan)
		return failing(EIO);
	return result(goroce_engine.RSend(rs->handle, (void *)(uintptr_t)buf, n, waits(rs, flags)));
}

static ssize_t send_piece(int fd, void *buf, size_t n, int flags) { return rsend(fd, buf, n, flags); }

ssize_t rsendto(int fd, const void *buf, size_t n, int flags, const struct sockaddr *addr, socklen_t len)
{
	(void)len;
	return addr ? failing(EISCONN) : rsend(fd, buf, n, flags);
}

ssize_t rsendmsg(int fd, const struct msghdr *msg, int flags)
{
	if (msg->msg_control && msg->msg_controllen)
		return failing(EOPNOTSUPP);
	return each(fd, msg->msg_iov, (int)msg->msg_iovlen, flags, send_piece);
}

ssize_t rwrite(int fd, const void *buf, size_t n) { return rsend(fd, buf, n, 0); }
ssize_t rwritev(int fd, const struct iovec *iov, int count) { return each(fd, iov, count, 0, send_piece); }

static int names(int fd, struct rs **rs, struct goroce_addr *local, struct goroce_addr *peer)
{
	*rs = find(fd);
	return *rs ? CALL(RNames, (*rs)->handle, local, peer) : EBADF;
}

int rgetpeername(int fd, struct sockaddr *addr, socklen_t *len)
{
	struct rs *rs;
	struct goroce_addr local, peer;
	int err = names(fd, &rs, &local, &peer);
	if (!err)
		give(addr, len, &peer, rs->family);
	return done(err);
}

int rgetsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
	struct rs *rs;
	struct goroce_addr local, peer;
	int err = names(fd, &rs, &local, &peer);
	if (err == ENOTCONN) { /* where it was bound to */
		local = rs->local;
		err = 0;
	}
	if (!err)
		give(addr, len, &local, rs->family);
	return done(err);
}

/* option returns where an option of an int is kept, and whether it may still change. */
static int *option(struct rs *rs, int level, int name)
{
	struct goroce_rconfig *c = &rs->config;
	switch (level) {
	case SOL_SOCKET:
		return name == SO_SNDBUF ? &c->send_buffer : name == SO_RCVBUF ? &c->recv_buffer : name == SO_KEEPALIVE ? &c->keepalive
		     : name == SO_REUSEADDR ? &rs->reuse : name == SO_OOBINLINE ? &rs->oob_inline : NULL;
	case IPPROTO_TCP:
		return name == TCP_NODELAY ? &rs->nodelay : NULL;
	case IPPROTO_IPV6:
		return name == IPV6_V6ONLY ? &rs->v6only : NULL;
	case SOL_RDMA:
		return name == RDMA_SQSIZE ? &c->send_queue : name == RDMA_RQSIZE ? &c->recv_queue : name == RDMA_INLINE ? &c->inlined
		     : name == RDMA_IOMAPSIZE ? &c->maps : NULL;
	default:
		return NULL;
	}
}

int rsetsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	struct rs *rs = find(fd);
	if (!rs)
		return -1;
	if (level == SOL_SOCKET && name == SO_LINGER) {
		if (len < sizeof(rs->linger))
			return failing(EINVAL);
		memcpy(&rs->linger, value, sizeof(rs->linger));
		return 0;
	}
	int *at = option(rs, level, name);
	if (!at)
		return failing(ENOTSUP);
	if (len < sizeof(int))
		return failing(EINVAL);
	memcpy(at, value, sizeof(int));
	return 0;
}

int rgetsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	struct rs *rs = find(fd);
	if (!rs)
		return -1;
	if (level == SOL_SOCKET && name == SO_LINGER) {
		if (*len < sizeof(rs->linger))
			return failing(EINVAL);
		memcpy(value, &rs->linger, *len = sizeof(rs->linger));
		return 0;
	}
	int error, *at = &error;
	if (level == SOL_SOCKET && name == SO_ERROR)
		error = CALL(RError, rs->handle);
	else
		at = option(rs, level, name);
	if (!at)
		return failing(ENOTSUP);
	if (*len < sizeof(int))
		return failing(EINVAL);
	memcpy(value, at, *len = sizeof(int));
	return 0;
}

int rfcntl(int fd, int cmd, ...)
{
	struct rs *rs = find(fd);
	va_list args;
	if (!rs)
		return -1;
	va_start(args, cmd);
	int arg = va_arg(args, int);
	va_end(args);
	switch (cmd) {
	case F_GETFL:
		return O_RDWR | (rs->nonblocking ? O_NONBLOCK : 0);
	case F_SETFL:
		rs->nonblocking = arg & O_NONBLOCK;
		return 0;
	default:
		return failing(ENOTSUP);
	}
}

off_t riomap(int fd, void *buf, size_t n, int prot, int flags, off_t offset)
{
	struct rs *rs = find(fd);
	if (!rs)
		return -1;
	if (prot & ~PROT_WRITE || flags)
		return failing(EINVAL);
	if (offset == -1)
		offset = (uintptr_t)buf;
	int err = prot ? CALL(RMap, rs->handle, buf, n, offset) : 0; /* our own memory needs no registering */
	return err ? failing(err) : offset;
}

int riounmap(int fd, void *buf, size_t n)
{
	struct rs *rs = find(fd);
	(void)n;
	return rs ? done(CALL(RUnmap, rs->handle, buf)) : -1;
}

size_t riowrite(int fd, const void *buf, size_t n, off_t offset, int flags)
{
	struct rs *rs = find(fd);
	if (!rs)
		return -1;
	if (goroce_orphan)
		return failing(EIO);
	return result(goroce_engine.RWriteAt(rs->handle, (void *)(uintptr_t)buf, n, offset, waits(rs, flags)));
}
