/* The files of a device that the kernel has, for programs that look at them past
 * libibverbs: UCX lists a device only if it may open its node under /dev/infiniband, and
 * reads from sysfs whether its GID is one of RoCE v2. Ours has no files. Whoever asks for
 * the node is told of /dev/null, and for one of the files in sysfs gets a memory file.
 *
 * A program that loads libibverbs by dlopen, as UCX does, finds these functions in front
 * of libc's if the library is preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "goroce.h"

#pragma GCC diagnostic ignored "-Wnonnull-compare" /* whoever passes NULL gets libc's answer */

/* below returns what of a path is below a folder, or NULL. */
static const char *below(const char *path, const char *dir)
{
	size_t n = strlen(dir);
	return path && strncmp(path, dir, n) == 0 ? path + n : NULL;
}

/* real returns what stands for a path. */
static const char *real(const char *path)
{
	const char *name = below(path, "/dev/infiniband/");
	return name && is_device(name) ? "/dev/null" : path;
}

/* sysfs returns what a file of the device has in it, or NULL. */
static const char *sysfs(const char *path)
{
	char name[IBV_SYSFS_NAME_MAX];
	const char *rest = below(path, "/sys/class/infiniband/");
	const char *end = rest ? strchr(rest, '/') : NULL;
	if (!end || (size_t)(end - rest) >= sizeof(name))
		return NULL;
	memcpy(name, rest, end - rest);
	name[end - rest] = 0;
	if (!is_device(name))
		return NULL;
	return strcmp(end, "/ports/1/gid_attrs/types/0") == 0 ? "RoCE v2\n" : NULL;
}

/* memory_file returns a descriptor of a file that has a text in it, or -1. */
static int memory_file(const char *text, int flags)
{
	int fd = memfd_create("goroce", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
	ssize_t n = strlen(text);
	if (fd < 0)
		return -1;
	if (write(fd, text, n) == n && lseek(fd, 0, SEEK_SET) == 0)
		return fd;
	close(fd);
	return failing(EIO);
}

/* NEXT(name) is libc's function of a name. */
#define NEXT(name)                                                                    \
	static __typeof__(name) *next;                                                \
	if (!next && !(next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)))           \
		return failing(ENOSYS)

#define LOOK(name, type, arg)                       \
	int name(const char *path, type arg)        \
	{                                           \
		NEXT(name);                         \
		return next(real(path), arg);       \
	}

LOOK(stat, struct stat *, st)
LOOK(stat64, struct stat64 *, st)
LOOK(access, int, mode)
LOOK(euidaccess, int, mode)
LOOK(eaccess, int, mode)

#define OPEN(name)                                                 \
	int name(const char *path, int flags, ...)                 \
	{                                                          \
		NEXT(name);                                        \
		const char *text = sysfs(path);                    \
		if (text)                                          \
			return memory_file(text, flags);           \
		va_list args;                                      \
		va_start(args, flags);                             \
		mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0; \
		va_end(args);                                      \
		return next(path, flags, mode);                    \
	}

OPEN(open)
OPEN(open64)
