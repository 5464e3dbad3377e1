/* SPDX-License-Identifier: Apache-2.0
 *
 * One MPI_COMM_WORLD over all components of a job: every rank adds up the numbers of all ranks and prints one line,
 *     rank=R size=N host=NODE component=NAME sum=S
 * where NODE is what the batch system calls the node (or the machine's name), NAME is $KOALA_COMPONENT, and S must be
 * N * (N - 1) / 2 + N. Made with: mpicc -O2 -o allreduce allreduce.c
 *
 * Arguments, all optional: FILE waits between two allreduces until there is that file; "exit" R CODE lets rank R end with CODE after the
 * first allreduce instead; "kill" R SIGNAL lets rank R kill itself then.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *variable(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value != NULL ? value : otherwise;
}

static long sum_of_ranks(int rank)
{
    long mine = rank + 1, sum = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}

int main(int argc, char **argv)
{
    int rank, size;
    char machine[MPI_MAX_PROCESSOR_NAME];
    int length;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(machine, &length);

    long sum = sum_of_ranks(rank);
    if (argc == 4 && atoi(argv[2]) == rank) {
        if (strcmp(argv[1], "exit") == 0)
            _exit(atoi(argv[3]));
        if (strcmp(argv[1], "kill") == 0)
            raise(atoi(argv[3]));
    }
    if (argc == 2)
        while (access(argv[1], F_OK) != 0)
            usleep(100000);
    if (sum_of_ranks(rank) != sum)
        MPI_Abort(MPI_COMM_WORLD, 99);

    printf("rank=%d size=%d host=%s component=%s sum=%ld\n", rank, size, variable("SLURMD_NODENAME", machine),
           variable("KOALA_COMPONENT", "-"), sum);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
