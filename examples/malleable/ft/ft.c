/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel FT of the NAS Parallel Benchmarks over a power of two of processes, which may change after each iteration.
 *
 *   ft CLASS [ROUNDS [SECONDS [STOP]]]
 *
 * CLASS: S (64 x 64 x 64) or W (128 x 128 x 32), 6 iterations. ROUNDS: how often all is done, for a longer run. SECONDS: a
 * rest after each iteration. STOP: a file; when it is there the round is the last. Every checksum is compared with the published one; exit status 1 when one differs. */
#include "../resize/resize.h"
#include "spectrum.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define TOLERANCE 1e-12 /* relative, as the benchmark has it */

/* What is carried over a change of size, beside the spectrum: the same in all processes. */
static struct {
    int round, iteration;
    int wrong; /* checksums that differed */
} progress;
static double complex *spectrum;
static const struct problem *problem;

static void carry(void)
{
    size_t plane = (size_t)problem->ny * (size_t)problem->nz * sizeof *spectrum;

    resize_carry_value(&progress, sizeof progress);
    spectrum = resize_carry_array(spectrum, plane, problem->nx);
}

static int first(void)
{
    int rank;

    MPI_Comm_rank(resize_world(), &rank);
    return rank == 0;
}

static void tell_size(void)
{
    int size;

    MPI_Comm_size(resize_world(), &size);
    if (problem->nx % size != 0 || problem->nz % size != 0) {
        if (first())
            fprintf(stderr, "ft: found %d processes, allowed is a power of two up to %d\n", size,
                    problem->nx < problem->nz ? problem->nx : problem->nz);
        MPI_Abort(resize_world(), EXIT_FAILURE);
    }
    if (first())
        printf("round %d, T = %d: %d processes\n", progress.round, progress.iteration, size);
    fflush(stdout);
}

static int differ(double found, double published)
{
    return !(fabs((found - published) / published) <= TOLERANCE);
}

static void iterate(void)
{
    spectrum_evolve(resize_world(), problem, spectrum);
    double complex sum = spectrum_checksum(resize_world(), problem, spectrum);
    double complex published = problem->checksum[progress.iteration++];
    int wrong = differ(creal(sum), creal(published)) || differ(cimag(sum), cimag(published));

    progress.wrong += wrong;
    if (first())
        printf("round %d, T = %d: checksum %.12e %.12e%s\n", progress.round, progress.iteration, creal(sum), cimag(sum),
               wrong ? " is WRONG" : "");
    fflush(stdout);
}

static void next_round(void)
{
    free(spectrum);
    spectrum = spectrum_start(resize_world(), problem);
    progress.iteration = 0;
}

/* Tell in all processes whether the first finds the file. */
static int stopped(const char *path)
{
    int found = path != NULL && access(path, F_OK) == 0;

    MPI_Bcast(&found, 1, MPI_INT, 0, resize_world());
    return found;
}

/* Return 0 when this process left before the end. */
static int compute(int rounds, double rest, const char *stop)
{
    struct timespec time = {(time_t)rest, (long)((rest - (double)(time_t)rest) * 1e9)};

    for (;;) {
        if (progress.iteration == ITERATIONS) {
            if (++progress.round > rounds || (progress.round > 1 && stopped(stop)))
                return 1;
            next_round();
        }
        iterate();
        nanosleep(&time, NULL);
        if (resize_point()) {
            carry();
            if (!resize_done())
                return 0;
            tell_size();
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 5 || (problem = problem_of(argv[1][0])) == NULL) {
        fputs("usage: ft S|W [ROUNDS [SECONDS [STOP]]]\n", stderr);
        return EXIT_FAILURE;
    }
    resize_init(&argc, &argv, "power-of-two");
    if (resize_entering()) {
        carry();
        resize_done();
    } else {
        progress.iteration = ITERATIONS;
    }
    tell_size();
    if (compute(argc > 2 ? atoi(argv[2]) : 1, argc > 3 ? atof(argv[3]) : 0, argc > 4 ? argv[4] : NULL) && first())
        puts(progress.wrong ? "VERIFICATION FAILED" : "VERIFICATION SUCCESSFUL");
    free(spectrum);
    resize_finalize();
    return progress.wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
