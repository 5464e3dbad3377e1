/* SPDX-License-Identifier: Apache-2.0 */
/* N bodies over any number of processes, which may change while they are computed.
 *
 *   nbody BODIES STEPS [SECONDS [STOP]]
 *
 * SECONDS: a rest after each step, so that a small example takes its time. STOP: a file; when it is there the program ends
 * before all steps are done. Printed are the sizes and, at the end, SHA-256 of
 * all bodies: the same for any number of processes and any changes. */
#include "../resize/resize.h"
#include "bodies.h"
#include "sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define DT 1e-3

static struct body *part;
static long total, step;

static void carry(void)
{
    resize_carry_value(&step, sizeof step);
    part = resize_carry_array(part, sizeof *part, total);
}

static void tell_size(void)
{
    int rank, size;

    MPI_Comm_rank(resize_world(), &rank);
    MPI_Comm_size(resize_world(), &size);
    if (rank == 0) {
        printf("step %ld: %d processes\n", step, size);
        fflush(stdout);
    }
}

static void begin(void)
{
    int rank, size;

    if (resize_entering()) {
        carry();
        resize_done();
    } else {
        MPI_Comm_rank(resize_world(), &rank);
        MPI_Comm_size(resize_world(), &size);
        part = bodies_make(resize_first(total, rank, size), resize_first(total, rank + 1, size));
    }
    tell_size();
}

/* Tell in all processes whether the first finds the file. */
static int stopped(const char *path)
{
    int found = path != NULL && access(path, F_OK) == 0;

    MPI_Bcast(&found, 1, MPI_INT, 0, resize_world());
    return found;
}

/* Return 0 when this process left before the end. */
static int compute(long steps, double rest, const char *stop)
{
    struct timespec time = {(time_t)rest, (long)((rest - (double)(time_t)rest) * 1e9)};

    while (step < steps && !stopped(stop)) {
        bodies_step(resize_world(), part, total, DT);
        nanosleep(&time, NULL);
        step++;
        if (resize_point()) {
            carry();
            if (!resize_done())
                return 0;
            tell_size();
        }
    }
    return 1;
}

static void tell_end(void)
{
    struct body *all = bodies_gather(resize_world(), part, total);
    char digest[65];

    if (all != NULL) {
        sha256(all, (size_t)total * sizeof *all, digest);
        printf("step %ld: SHA-256 %s\n", step, digest);
        fflush(stdout);
    }
    free(all);
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 5 || (total = atol(argv[1])) < 1) {
        fputs("usage: nbody BODIES STEPS [SECONDS [STOP]]\n", stderr);
        return EXIT_FAILURE;
    }
    resize_init(&argc, &argv, "any");
    begin();
    if (compute(atol(argv[2]), argc > 3 ? atof(argv[3]) : 0, argc > 4 ? argv[4] : NULL))
        tell_end();
    free(part);
    resize_finalize();
    return EXIT_SUCCESS;
}
