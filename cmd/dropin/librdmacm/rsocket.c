/* rsockets: their calls are there, so that everything links, and fail. rsocket itself
 * is the first that a program makes. */
#include <errno.h>

#define REFUSE(name)                \
	int name(void);             \
	int name(void)              \
	{                           \
		errno = EOPNOTSUPP; \
		return -1;          \
	}

#define REFUSE_LONG(name)           \
	long name(void);            \
	long name(void)             \
	{                           \
		errno = EOPNOTSUPP; \
		return -1;          \
	}

REFUSE(raccept)
REFUSE(rbind)
REFUSE(rclose)
REFUSE(rconnect)
REFUSE(rfcntl)
REFUSE(rgetpeername)
REFUSE(rgetsockname)
REFUSE(rgetsockopt)
REFUSE_LONG(riomap)
REFUSE(riounmap)
REFUSE_LONG(riowrite)
REFUSE(rlisten)
REFUSE(rpoll)
REFUSE_LONG(rread)
REFUSE_LONG(rreadv)
REFUSE_LONG(rrecv)
REFUSE_LONG(rrecvfrom)
REFUSE_LONG(rrecvmsg)
REFUSE(rselect)
REFUSE_LONG(rsend)
REFUSE_LONG(rsendmsg)
REFUSE_LONG(rsendto)
REFUSE(rsetsockopt)
REFUSE(rshutdown)
REFUSE(rsocket)
REFUSE_LONG(rwrite)
REFUSE_LONG(rwritev)
