/* The engine: loaded late and once, lost by fork. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>

#include "goroce.h"

struct goroce_engine goroce_engine;
bool goroce_orphan;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

static void orphan(void) { goroce_orphan = true; }

/* Go runs C's signal handlers on the stack of whatever it is doing, and those of
 * goroutines are small. */
static void alternate_stacks(void)
{
	for (int sig = 1; sig < NSIG; sig++) {
		struct sigaction sa;
		if (sigaction(sig, NULL, &sa) == 0 && sa.sa_handler != SIG_DFL && sa.sa_handler != SIG_IGN && !(sa.sa_flags & SA_ONSTACK))
			sigaction(sig, &sa, NULL); /* which adds the flag */
	}
}

/* SIGURG is what Go interrupts its own threads with, unless it is told not to (build.sh).
 * It takes the signal from a program that has a handler all the same. */
static void give_back_urg(const struct sigaction *program)
{
	if (program->sa_handler != SIG_DFL && program->sa_handler != SIG_IGN)
		sigaction(SIGURG, program, NULL);
}

static int complain(const char *what, const char *why)
{
	fprintf(stderr, "goroce: %s: %s\n", what, why);
	return ENODEV;
}

/* open_library loads the library beside this one. */
static int open_library(void)
{
	char path[PATH_MAX];
	Dl_info self;
	if (!dladdr((void *)open_library, &self))
		return complain("libgoroce.so", "the folder of libibverbs.so.1 is not known");
	const char *slash = strrchr(self.dli_fname, '/');
	int dir = slash ? (int)(slash - self.dli_fname) + 1 : 0;
	if (snprintf(path, sizeof(path), "%.*slibgoroce.so", dir, self.dli_fname) >= (int)sizeof(path))
		return complain("libgoroce.so", "the path is too long");
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!lib)
		return complain("cannot load the engine", dlerror());
#define X(name)                                                                   \
	goroce_engine.name = (__typeof__(goroce_engine.name))dlsym(lib, "goroce" #name); \
	if (!goroce_engine.name)                                                  \
		return complain("the engine is of another version", "it lacks goroce" #name);
	GOROCE_CALLS(X)
#undef X
	return 0;
}

int goroce_load(void)
{
	if (goroce_orphan)
		return EIO;
	pthread_mutex_lock(&lock);
	int err = 0;
	if (!loaded) {
		/* Go's threads keep what is blocked now: the program's signals are not for them. */
		sigset_t all, old;
		sigfillset(&all);
		pthread_sigmask(SIG_BLOCK, &all, &old);
		struct sigaction urg;
		sigaction(SIGURG, NULL, &urg);
		err = open_library();
		give_back_urg(&urg);
		if (err == 0) {
			loaded = true;
			pthread_atfork(NULL, NULL, orphan);
			alternate_stacks();
		}
		pthread_sigmask(SIG_SETMASK, &old, NULL);
	}
	pthread_mutex_unlock(&lock);
	return err;
}
