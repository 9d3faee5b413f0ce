/* Asynchronous events, and waiting. Descriptors are the engine's; it makes them
 * readable, and takes the events from itself. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>

#include "goroce.h"

/* restarts says whether each signal handler there is has SA_RESTART. Then a read, which
 * is what programs expect a wait to be, goes on after a signal; poll does not. */
static bool restarts(void)
{
	for (int sig = 1; sig < NSIG; sig++) {
		struct sigaction sa;
		if (sigaction(sig, NULL, &sa) == 0 && sa.sa_handler != SIG_DFL && sa.sa_handler != SIG_IGN && !(sa.sa_flags & SA_RESTART))
			return false;
	}
	return true;
}

int goroce_wait_readable(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0)
		return errno;
	if (flags & O_NONBLOCK)
		return EAGAIN;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	while (poll(&p, 1, -1) < 0)
		if (errno != EINTR || !restarts())
			return errno;
	return 0;
}

void goroce_await_acks(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *completed, uint32_t given)
{
	pthread_mutex_lock(mutex);
	while (*completed != given)
		pthread_cond_wait(cond, mutex);
	pthread_mutex_unlock(mutex);
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	for (;;) {
		uintptr_t cookie;
		int err = CALL(GetEvent, context_of(context)->handle, &event->event_type, &cookie);
		if (err == 0) {
			if (cookie)
				event->element.cq = (void *)cookie; /* or another member: all are pointers */
			else
				event->element.port_num = 1;
			return 0;
		}
		if (err == EAGAIN)
			err = goroce_wait_readable(context->async_fd);
		if (err)
			return failing(err);
	}
}

static void ack(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *completed, unsigned n)
{
	pthread_mutex_lock(mutex);
	*completed += n;
	pthread_cond_signal(cond);
	pthread_mutex_unlock(mutex);
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_CQ_ERR: {
		struct ibv_cq *cq = event->element.cq;
		ack(&cq->mutex, &cq->cond, &cq->async_events_completed, 1);
		return;
	}
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED: {
		struct ibv_qp *qp = event->element.qp;
		ack(&qp->mutex, &qp->cond, &qp->events_completed, 1);
		return;
	}
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED: {
		struct ibv_srq *srq = event->element.srq;
		ack(&srq->mutex, &srq->cond, &srq->events_completed, 1);
		return;
	}
	default:
		return; /* of the device or its port */
	}
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct channel *ch = calloc(1, sizeof(*ch));
	if (!ch)
		return fail(ENOMEM);
	int err = CALL(CreateChannel, context_of(context)->handle, &ch->handle, &ch->ibv.fd);
	if (err) {
		free(ch);
		return fail(err);
	}
	ch->ibv.context = context;
	hold(context);
	return &ch->ibv;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	struct ibv_context *context = channel->context;
	pthread_mutex_lock(&context->mutex);
	int err = channel->refcnt ? EBUSY : CALL(DestroyChannel, container_of(channel, struct channel, ibv)->handle);
	pthread_mutex_unlock(&context->mutex);
	if (err)
		return err;
	free(channel);
	let_go(context);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	for (;;) {
		uintptr_t cookie;
		int err = CALL(GetCQEvent, container_of(channel, struct channel, ibv)->handle, &cookie);
		if (err == 0) {
			*cq = (struct ibv_cq *)cookie;
			*cq_context = (*cq)->cq_context;
			return 0;
		}
		if (err == EAGAIN)
			err = goroce_wait_readable(channel->fd);
		if (err)
			return failing(err);
	}
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n) { ack(&cq->mutex, &cq->cond, &cq->comp_events_completed, n); }
