/* SPDX-License-Identifier: Apache-2.0
 *
 * Adds up one number per rank over all clusters of the job: every rank must see the same sum, or it exits with 1.
 * Build with: mpicc -O2 -o allreduce allreduce.c
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, size, length;
    long mine, sum = 0;
    char host[MPI_MAX_PROCESSOR_NAME];
    const char *component = getenv("KOALA_COMPONENT");

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);

    mine = rank + 1;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d on %s (component %s): sum %ld\n", rank, size, host, component ? component : "?", sum);

    MPI_Finalize();
    return sum == (long)size * (size + 1) / 2 ? EXIT_SUCCESS : EXIT_FAILURE;
}
