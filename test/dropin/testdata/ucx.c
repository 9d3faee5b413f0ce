/* ucx PORT [HOST]: a program of UCX. Two of it, of which one has no HOST, send each other
 * tagged and active messages, put into each other's memory and get from it, of 1 byte to
 * 4 MiB and several at a time, in both directions at once. Each compares every byte of
 * what it gets. A TCP connection carries the addresses and keeps the two in step. Exit
 * status 0: all was right. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ucp/api/ucp.h>

#include "need.h"

#define MOST (4 << 20)
#define REGION (8 << 20)

enum op { TAG, AM, PUT, GET, OPS };

static int peer; /* the TCP connection */
static int serves;
static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h ep;
static ucp_rkey_h rkey;
static uint64_t remote;   /* where the peer's region is */
static uint8_t *out, *in; /* what is sent, and the region that the peer may reach */
static ucp_mem_h out_mem, in_mem;

/* What is there of one step: message i has the bytes from i * size on. */
static size_t size;
static unsigned count;
static unsigned arrived; /* active messages */

/* byte_of is byte at of message i of a step, as the server or the client sends it. */
static uint8_t byte_of(int server, enum op op, unsigned i, size_t at)
{
	return at * 7 + (at >> 8) * 13 + (at >> 16) * 31 + i * 57 + size * 3 + op * 11 + server * 101;
}

static void fill(uint8_t *p, enum op op)
{
	for (unsigned i = 0; i < count; i++)
		for (size_t at = 0; at < size; at++)
			*p++ = byte_of(serves, op, i, at);
}

static void check(const uint8_t *p, enum op op)
{
	for (unsigned i = 0; i < count; i++)
		for (size_t at = 0; at < size; at++, p++)
			if (*p != byte_of(!serves, op, i, at)) {
				fprintf(stderr, "operation %d of %zu bytes: byte %zu of message %u is wrong\n", op, size, at, i);
				exit(1);
			}
}

static void full_send(const void *p, size_t n) { NEED(send(peer, p, n, MSG_NOSIGNAL) == (ssize_t)n); }
static void full_recv(void *p, size_t n) { NEED(recv(peer, p, n, MSG_WAITALL) == (ssize_t)n); }

/* barrier returns when the peer has come to it as well. */
static void barrier(void)
{
	char c = 'x';
	ssize_t n;
	full_send(&c, 1);
	while ((n = recv(peer, &c, 1, MSG_DONTWAIT)) < 0) {
		NEED(errno == EAGAIN);
		ucp_worker_progress(worker);
	}
	NEED(n == 1);
}

/* done waits for a request. */
static void done(ucs_status_ptr_t request)
{
	if (request == NULL)
		return;
	NEED(!UCS_PTR_IS_ERR(request));
	while (ucp_request_check_status(request) == UCS_INPROGRESS)
		ucp_worker_progress(worker);
	NEED(ucp_request_check_status(request) == UCS_OK);
	ucp_request_free(request);
}

static void all_done(ucs_status_ptr_t *requests)
{
	for (unsigned i = 0; i < count; i++)
		done(requests[i]);
}

static void flush(void)
{
	ucp_request_param_t p = {0};
	done(ucp_ep_flush_nbx(ep, &p));
}

static void tag(void)
{
	ucs_status_ptr_t recvs[count], sends[count];
	ucp_request_param_t p = {0};
	for (unsigned i = 0; i < count; i++)
		recvs[i] = ucp_tag_recv_nbx(worker, in + i * size, size, i, UINT64_MAX, &p);
	for (unsigned i = 0; i < count; i++)
		sends[i] = ucp_tag_send_nbx(ep, out + i * size, size, i, &p);
	all_done(recvs);
	all_done(sends);
}

static void fetched(void *request, ucs_status_t status, size_t length, void *arg)
{
	(void)arg;
	NEED(status == UCS_OK && length == size);
	arrived++;
	ucp_request_free(request);
}

static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data, size_t length, const ucp_am_recv_param_t *param)
{
	(void)arg;
	uint32_t i;
	NEED(header_length == sizeof(i) && length == size);
	memcpy(&i, header, sizeof(i));
	NEED(i < count);
	if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
		memcpy(in + i * size, data, length);
		arrived++;
		return UCS_OK;
	}
	ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FLAG_NO_IMM_CMPL, .cb.recv_am = fetched};
	NEED(!UCS_PTR_IS_ERR(ucp_am_recv_data_nbx(worker, data, in + i * size, length, &p)));
	return UCS_INPROGRESS;
}

static void am(void)
{
	ucs_status_ptr_t sends[count];
	uint32_t headers[count];
	ucp_request_param_t p = {0};
	for (unsigned i = 0; i < count; i++) {
		headers[i] = i;
		sends[i] = ucp_am_send_nbx(ep, 0, &headers[i], sizeof(headers[i]), out + i * size, size, &p);
	}
	all_done(sends);
	while (arrived < count)
		ucp_worker_progress(worker);
}

static void put(void)
{
	ucs_status_ptr_t requests[count];
	ucp_request_param_t p = {0};
	for (unsigned i = 0; i < count; i++)
		requests[i] = ucp_put_nbx(ep, out + i * size, size, remote + i * size, rkey, &p);
	all_done(requests);
	flush();
}

static void get(void)
{
	ucs_status_ptr_t requests[count];
	ucp_request_param_t p = {0};
	for (unsigned i = 0; i < count; i++)
		requests[i] = ucp_get_nbx(ep, out + i * size, size, remote + i * size, rkey, &p);
	all_done(requests);
	flush();
}

/* step does one operation, in both directions. */
static void step(enum op op)
{
	static void (*const does[OPS])(void) = {tag, am, put, get};
	uint8_t *from = op == GET ? in : out, *to = op == GET ? out : in;
	arrived = 0;
	fill(from, op);
	memset(to, 0x55, count * size);
	barrier();
	does[op]();
	barrier(); /* the peer's are here, too, and it has what it gets */
	check(to, op);
}

static void meet(int port, const char *host)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int on = 1, s = socket(AF_INET, SOCK_STREAM, 0);
	NEED(s >= 0);
	if (host) {
		NEED(inet_pton(AF_INET, host, &at.sin_addr) == 1);
		NEED(!connect(s, (struct sockaddr *)&at, sizeof(at)));
		peer = s;
	} else {
		NEED(!setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
		NEED(!bind(s, (struct sockaddr *)&at, sizeof(at)) && !listen(s, 1));
		NEED((peer = accept(s, NULL, NULL)) >= 0);
		close(s);
	}
	NEED(!setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
}

/* swap sends what there is, and returns what the peer has sent. */
static void *swap(const void *p, size_t n)
{
	uint64_t mine = n, theirs;
	full_send(&mine, sizeof(mine));
	full_send(p, n);
	full_recv(&theirs, sizeof(theirs));
	void *got = malloc(theirs);
	NEED(got);
	full_recv(got, theirs);
	return got;
}

static ucp_mem_h map(void *p)
{
	ucp_mem_map_params_t m = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH, .address = p, .length = REGION};
	ucp_mem_h mem;
	NEED(ucp_mem_map(context, &m, &mem) == UCS_OK);
	return mem;
}

static void make(void)
{
	ucp_params_t cp = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_RMA};
	NEED(ucp_init(&cp, NULL, &context) == UCS_OK);
	ucp_worker_params_t wp = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
	NEED(ucp_worker_create(context, &wp, &worker) == UCS_OK);
	ucp_am_handler_param_t hp = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB, .cb = on_am};
	NEED(ucp_worker_set_am_recv_handler(worker, &hp) == UCS_OK);
	NEED(!posix_memalign((void **)&out, 4096, REGION) && !posix_memalign((void **)&in, 4096, REGION));
	out_mem = map(out);
	in_mem = map(in);
}

static void join(void)
{
	ucp_address_t *address;
	size_t n;
	NEED(ucp_worker_get_address(worker, &address, &n) == UCS_OK);
	void *theirs = swap(address, n);
	ucp_worker_release_address(worker, address);
	ucp_ep_params_t p = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = theirs};
	NEED(ucp_ep_create(worker, &p, &ep) == UCS_OK);
	free(theirs);

	void *key;
	NEED(ucp_rkey_pack(context, in_mem, &key, &n) == UCS_OK);
	theirs = swap(key, n);
	ucp_rkey_buffer_release(key);
	NEED(ucp_ep_rkey_unpack(ep, theirs, &rkey) == UCS_OK);
	free(theirs);
	uint64_t at = (uintptr_t)in, *where = swap(&at, sizeof(at));
	remote = *where;
	free(where);
}

static void part(void)
{
	ucp_request_param_t p = {0};
	flush();
	barrier();
	ucp_rkey_destroy(rkey);
	done(ucp_ep_close_nbx(ep, &p));
	barrier();
	NEED(ucp_mem_unmap(context, out_mem) == UCS_OK && ucp_mem_unmap(context, in_mem) == UCS_OK);
	ucp_worker_destroy(worker);
	ucp_cleanup(context);
}

int main(int argc, char **argv)
{
	static const int around[] = {-1, 0, 1}; /* sizes beside a power of two */
	NEED(argc == 2 || argc == 3);
	serves = argc == 2;
	make();
	meet(atoi(argv[1]), argv[2]);
	join();
	for (enum op op = 0; op < OPS; op++)
		for (size_t n = 1; n <= MOST; n *= 2)
			for (int i = 0; i < 3; i++) {
				size = n + around[i];
				if (size == 0 || size > MOST)
					continue;
				count = size <= 65536 ? 16 : 2;
				step(op);
			}
	part();
	puts("right");
	return 0;
}
