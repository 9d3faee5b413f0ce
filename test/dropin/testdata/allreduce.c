/* allreduce: a program of MPI. All ranks combine vectors of 1 byte to 4 MiB, and each
 * compares every byte. Exit status 0 on all ranks: all was right. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST (4 << 20)

static uint8_t byte_of(int rank, int i) { return i * 3 + (i >> 8) * 5 + rank * 7 + (i * (rank + 1) >> 3); }

/* combine has all ranks xor n bytes (which is exact: sums of bytes saturate in some
 * versions) and returns how many are wrong. */
static int combine(int n, int rank, int ranks, uint8_t *in, uint8_t *out)
{
	for (int i = 0; i < n; i++)
		in[i] = byte_of(rank, i);
	MPI_Allreduce(in, out, n, MPI_BYTE, MPI_BXOR, MPI_COMM_WORLD);
	int wrong = 0;
	for (int i = 0; i < n; i++) {
		uint8_t want = 0;
		for (int r = 0; r < ranks; r++)
			want ^= byte_of(r, i);
		wrong += out[i] != want;
	}
	return wrong;
}

int main(int argc, char **argv)
{
	int rank, ranks, wrong = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	uint8_t *in = malloc(MOST), *out = malloc(MOST);
	for (int n = 1; n <= MOST; n *= 2)
		for (int round = 0; round < 3; round++)
			wrong += combine(n, rank, ranks, in, out);
	if (wrong)
		printf("rank %d: %d bytes are wrong\n", rank, wrong);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0 && !wrong)
		printf("%d ranks, right\n", ranks);
	MPI_Finalize();
	return wrong != 0;
}
