/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel FT of the NAS Parallel Benchmarks (Bailey et al., NAS report RNR-94-007, section 2.3.4): a partial
 * differential equation solved by three-dimensional Fourier transforms. Nothing here knows of a change of size.
 *
 * Two divisions over the processes: by planes of z, [z][y][x], and by planes of x, [x][y][z]. The state is the spectrum,
 * by planes of x. */
#ifndef SPECTRUM_H
#define SPECTRUM_H

#include <complex.h>
#include <mpi.h>

#define ITERATIONS 6

struct problem {
    char name;
    int nx, ny, nz;
    double complex checksum[ITERATIONS]; /* as published */
};

/* Return the problem of a class, 'S' or 'W'; NULL: there is none. */
const struct problem *problem_of(char name);

/* The first spectrum: that of the pseudo-random start. This process' planes of x; the caller frees them. */
double complex *spectrum_start(MPI_Comm world, const struct problem *problem);

/* Go one step in time on. */
void spectrum_evolve(MPI_Comm world, const struct problem *problem, double complex *spectrum);

/* Transform back, and return the checksum of the result, in all processes. */
double complex spectrum_checksum(MPI_Comm world, const struct problem *problem, const double complex *spectrum);

#endif
