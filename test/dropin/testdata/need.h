/* NEED ends a test program with status 1, and says where, unless the condition holds. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(cond)                                                                       \
	do {                                                                             \
		if (!(cond)) {                                                           \
			fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #cond, strerror(errno)); \
			exit(1);                                                         \
		}                                                                        \
	} while (0)
