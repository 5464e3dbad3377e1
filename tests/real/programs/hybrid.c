/* SPDX-License-Identifier: Apache-2.0
 *
 * One MPI_COMM_WORLD whose ranks have threads of OpenMP: every rank prints one line,
 *     rank=R size=N threads=T of=S
 * where T is the number of threads that run in it and S that of all ranks. Made with: mpicc -fopenmp -o hybrid hybrid.c
 */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank, size, threads = 0, all = 0, provided;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
#pragma omp parallel reduction(+ : threads)
    threads += 1;
    MPI_Allreduce(&threads, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank=%d size=%d threads=%d of=%d\n", rank, size, threads, all);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
