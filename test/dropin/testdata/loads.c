/* loads: a program that is not linked with libibverbs and loads it, and that has handlers
 * of its own: for SIGPIPE, and for SIGURG, which Go uses itself, one installed before the
 * device is opened and one afterwards. Exit status 0: all was right. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "need.h"

static volatile sig_atomic_t early, urgent, pipes;

static void on_early_urg(int sig) { early += sig == SIGURG; }
static void on_urg(int sig) { urgent += sig == SIGURG; }
static void on_pipe(int sig) { pipes += sig == SIGPIPE; }

/* of a name, from the library. */
static void *lib;
#define CALL(name) ((__typeof__(&name))dlsym(lib, #name))

static void into_closed_pipe(void)
{
	int fds[2];
	NEED(!pipe(fds) && !close(fds[0]));
	NEED(write(fds[1], "x", 1) == -1 && errno == EPIPE);
	close(fds[1]);
}

int main(void)
{
	int n;
	NEED(signal(SIGPIPE, on_pipe) != SIG_ERR && signal(SIGURG, on_early_urg) != SIG_ERR);
	NEED(lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL));
	struct ibv_device **list = CALL(ibv_get_device_list)(&n);
	NEED(list && n == 1);
	struct ibv_context *context = CALL(ibv_open_device)(list[0]);
	NEED(context);
	for (int i = 0; i < 100; i++)
		NEED(!raise(SIGURG));
	NEED(early == 100);
	NEED(signal(SIGURG, on_urg) == on_early_urg);
	struct ibv_pd *pd = CALL(ibv_alloc_pd)(context);
	NEED(pd);
	for (int i = 0; i < 100; i++)
		NEED(!raise(SIGURG));
	NEED(urgent == 100);
	into_closed_pipe();
	NEED(pipes == 1);
	NEED(signal(SIGPIPE, SIG_IGN) != SIG_ERR); /* the old one is that of Go, in front of ours */
	into_closed_pipe();
	NEED(pipes == 1);
	NEED(!CALL(ibv_dealloc_pd)(pd) && !CALL(ibv_close_device)(context));
	CALL(ibv_free_device_list)(list);
	NEED(!dlclose(lib));
	puts("right");
	return 0;
}
