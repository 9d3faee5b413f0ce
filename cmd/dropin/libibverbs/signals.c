/* sigaction and signal of the program, who shall not notice that there is Go in the
 * process: each handler runs on the alternate stack, if its thread has one. Go gives
 * one to each thread that calls it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>

int sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
	static int (*next)(int, const struct sigaction *, struct sigaction *);
	if (!next && !(next = (__typeof__(next))dlsym(RTLD_NEXT, "sigaction"))) {
		errno = ENOSYS;
		return -1;
	}
	if (!act || act->sa_handler == SIG_DFL || act->sa_handler == SIG_IGN)
		return next(sig, act, old);
	struct sigaction on = *act;
	on.sa_flags |= SA_ONSTACK;
	return next(sig, &on, old);
}

sighandler_t signal(int sig, sighandler_t handler)
{
	struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
	sigemptyset(&sa.sa_mask);
	return sigaction(sig, &sa, &old) == 0 ? old.sa_handler : SIG_ERR;
}
