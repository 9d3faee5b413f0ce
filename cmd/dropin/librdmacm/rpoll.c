/* rpoll and rselect: rsockets are asked, other descriptors are polled; whoever waits for
 * an rsocket does so at an eventfd that the engine writes to after each change of it. */
#define _GNU_SOURCE
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rsocket.h>

#include "cm.h"

static int64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000) + t.tv_nsec / 1000;
}

/* What a call of rpoll has. */
struct waiting {
	struct pollfd *fds, *others; /* others are those that are no rsockets, and bell */
	uint32_t *handles;           /* of fds, 0 where they are no rsockets */
	nfds_t n;
	int bell; /* the eventfd, or -1 */
};

/* look fills in revents, for which others wait up to timeout ms, and returns how many
 * have some. */
static int look(struct waiting *w, int timeout)
{
	int ready = 0;
	for (nfds_t i = 0; i < w->n; i++) {
		w->fds[i].revents = 0;
		if (w->handles[i])
			w->fds[i].revents = goroce_engine.RReady(w->handles[i]) & (w->fds[i].events | POLLERR | POLLHUP | POLLNVAL);
		ready += w->fds[i].revents != 0;
	}
	int rc = poll(w->others, w->n + 1, ready ? 0 : timeout);
	if (rc < 0)
		return -1;
	for (nfds_t i = 0; i < w->n; i++)
		if (!w->handles[i] && (w->fds[i].revents = w->others[i].revents))
			ready++;
	if (w->others[w->n].revents) { /* something has changed: the next look tells what */
		uint64_t times;
		if (read(w->bell, &times, sizeof(times)) < 0)
			return -1;
	}
	return ready;
}

/* wait_for waits at the bell. */
static int wait_for(struct waiting *w, int timeout)
{
	int64_t end = now_us() + timeout * INT64_C(1000);
	int ready = look(w, 0); /* what has changed before the bell was there */
	if (ready)
		return ready;
	for (;;) {
		int64_t left = (end - now_us() + 999) / 1000;
		ready = look(w, timeout < 0 ? -1 : left > 0 ? (int)left : 0);
		if (ready)
			return ready;
		if (timeout >= 0 && left <= 0)
			return 0;
	}
}

#define SPIN_US 50 /* before it sleeps, as rnet does */

static int poll_all(struct waiting *w, int timeout)
{
	for (int64_t until = now_us() + SPIN_US;;) {
		int ready = look(w, 0);
		if (ready || timeout == 0)
			return ready;
		if (now_us() > until)
			break;
	}
	w->bell = w->others[w->n].fd = eventfd(0, EFD_CLOEXEC);
	if (w->bell < 0)
		return -1;
	for (nfds_t i = 0; i < w->n; i++)
		if (w->handles[i])
			goroce_engine.RWatch(w->handles[i], w->bell);
	int ready = wait_for(w, timeout);
	int err = errno;
	for (nfds_t i = 0; i < w->n; i++)
		if (w->handles[i])
			goroce_engine.RUnwatch(w->handles[i], w->bell);
	close(w->bell);
	errno = err;
	return ready;
}

int rpoll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct waiting w = {.fds = fds, .n = n, .bell = -1};
	if (goroce_orphan)
		return failing(EIO);
	w.others = calloc(n + 1, sizeof(*w.others));
	w.handles = calloc(n + 1, sizeof(*w.handles));
	int rc = -1;
	if (w.others && w.handles) {
		w.others[n] = (struct pollfd){.fd = -1, .events = POLLIN};
		for (nfds_t i = 0; i < n; i++) {
			w.handles[i] = rsocket_handle(fds[i].fd);
			w.others[i] = (struct pollfd){.fd = w.handles[i] ? -1 : fds[i].fd, .events = fds[i].events};
		}
		rc = poll_all(&w, timeout);
	}
	int err = errno;
	free(w.others);
	free(w.handles);
	errno = err;
	return rc;
}

static bool in(const fd_set *set, int fd) { return set && FD_ISSET(fd, set); }

/* keep leaves a descriptor in a set if it is ready, and counts it. */
static int keep(fd_set *set, int fd, bool ready)
{
	if (!in(set, fd))
		return 0;
	if (!ready)
		FD_CLR(fd, set);
	return ready;
}

int rselect(int nfds, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
{
	struct pollfd fds[FD_SETSIZE];
	nfds_t n = 0;
	if (nfds < 0 || nfds > FD_SETSIZE)
		return failing(EINVAL);
	for (int fd = 0; fd < nfds; fd++) {
		short events = (in(r, fd) ? POLLIN : 0) | (in(w, fd) ? POLLOUT : 0) | (in(e, fd) ? POLLPRI : 0);
		if (events)
			fds[n++] = (struct pollfd){.fd = fd, .events = events};
	}
	int rc = rpoll(fds, n, timeout ? (int)(timeout->tv_sec * 1000 + (timeout->tv_usec + 999) / 1000) : -1);
	if (rc < 0)
		return -1;
	int ready = 0;
	for (nfds_t i = 0; i < n; i++) {
		ready += keep(r, fds[i].fd, fds[i].revents & (POLLIN | POLLHUP | POLLERR));
		ready += keep(w, fds[i].fd, fds[i].revents & (POLLOUT | POLLERR));
		ready += keep(e, fds[i].fd, fds[i].revents & POLLPRI);
	}
	return ready;
}
