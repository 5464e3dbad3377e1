/* SPDX-License-Identifier: Apache-2.0 */
#include "spectrum.h"

#include "fft.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED 314159265U
#define MULTIPLIER 1220703125U /* 5^13 */
#define ALPHA 1e-6
#define POINTS 1024 /* summed up in a checksum */

static const struct problem problems[] = {
    {'S', 64, 64, 64,
     {5.546087004964e+02 + 4.845363331978e+02 * I, 5.546385409189e+02 + 4.865304269511e+02 * I,
      5.546148406171e+02 + 4.883910722336e+02 * I, 5.545423607415e+02 + 4.901273169046e+02 * I,
      5.544255039624e+02 + 4.917475857993e+02 * I, 5.542683411902e+02 + 4.932597244941e+02 * I}},
    {'W', 128, 128, 32,
     {5.673612178944e+02 + 5.293246849175e+02 * I, 5.631436885271e+02 + 5.282149986629e+02 * I,
      5.594024089970e+02 + 5.270996558037e+02 * I, 5.560698047020e+02 + 5.260027904925e+02 * I,
      5.530898991250e+02 + 5.249400845633e+02 * I, 5.504159734538e+02 + 5.239212247086e+02 * I}},
};

const struct problem *problem_of(char name)
{
    for (size_t each = 0; each < sizeof problems / sizeof *problems; each++)
        if (problems[each].name == name)
            return problems + each;
    return NULL;
}

static double complex *memory(long count)
{
    double complex *found = malloc((size_t)count * sizeof *found);

    if (found == NULL) {
        fprintf(stderr, "ft: no memory for %ld numbers\n", count);
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
    return found;
}

/* ---- pseudo-random numbers: x[k+1] = a x[k] mod 2^46 (the report, section 2.3) -------------------------------------- */

static uint64_t product46(uint64_t a, uint64_t b)
{
    return a * b & ((UINT64_C(1) << 46) - 1); /* 2^46 divides 2^64: what overflows does not matter */
}

static double randlc(uint64_t *x)
{
    *x = product46(*x, MULTIPLIER);
    return (double)*x * 0x1p-46;
}

/* Return the seed after `count` numbers. */
static uint64_t skipped(uint64_t count)
{
    uint64_t x = SEED, power = MULTIPLIER;

    for (; count > 0; count >>= 1) {
        if (count & 1)
            x = product46(x, power);
        power = product46(power, power);
    }
    return x;
}

/* ---- the two divisions ---------------------------------------------------------------------------------------------- */

/* Exchange the first and the last index of a block: [a][b][c] becomes [c][b][a]. */
static void turn(const double complex *from, double complex *to, int na, int nb, int nc)
{
    for (int a = 0; a < na; a++)
        for (int b = 0; b < nb; b++)
            for (int c = 0; c < nc; c++)
                to[((long)c * nb + b) * na + a] = from[((long)a * nb + b) * nc + c];
}

/* From planes of a, [a][b][c], to planes of c, [c][b][a]. */
static void transpose(MPI_Comm world, double complex *planes, int na, int nb, int nc)
{
    int size;

    MPI_Comm_size(world, &size);
    int mine = na / size, theirs = nc / size;
    long block = (long)mine * nb * theirs;
    double complex *sent = memory(block * size), *got = memory(block * size);

    turn(planes, sent, mine, nb, nc); /* [c][b][a of mine]: what is for one process is in one piece */
    MPI_Alltoall(sent, (int)block, MPI_C_DOUBLE_COMPLEX, got, (int)block, MPI_C_DOUBLE_COMPLEX, world);
    for (int from = 0; from < size; from++)
        for (long row = 0; row < (long)theirs * nb; row++)
            memcpy(planes + row * na + (long)from * mine, got + from * block + row * mine, (size_t)mine * sizeof *got);
    free(sent);
    free(got);
}

/* Transform along the middle index of planes [a][b][c]. */
static void fft_middle(double complex *planes, int na, int nb, int nc, int sign)
{
    double complex *turned = memory((long)nb * nc);

    for (int a = 0; a < na; a++) {
        double complex *plane = planes + (long)a * nb * nc;
        turn(plane, turned, nb, 1, nc);
        fft_rows(turned, nc, nb, sign);
        turn(turned, plane, nc, 1, nb);
    }
    free(turned);
}

/* ---- the kernel ----------------------------------------------------------------------------------------------------- */

double complex *spectrum_start(MPI_Comm world, const struct problem *problem)
{
    int rank, size, nx = problem->nx, ny = problem->ny, nz = problem->nz;

    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    int depth = nz / size;
    long count = (long)depth * ny * nx;
    double complex *planes = memory(count);
    uint64_t x = skipped(2 * (uint64_t)count * (uint64_t)rank);

    for (long each = 0; each < count; each++) {
        double real = randlc(&x);
        planes[each] = real + randlc(&x) * I;
    }
    fft_rows(planes, (long)depth * ny, nx, 1);
    fft_middle(planes, depth, ny, nx, 1);
    transpose(world, planes, nz, ny, nx);
    fft_rows(planes, (long)(nx / size) * ny, nz, 1);
    return planes;
}

/* The square of a wave number: indices above the middle stand for negative ones. */
static double square(int index, int length)
{
    int wave = index < length / 2 ? index : index - length;

    return (double)wave * wave;
}

void spectrum_evolve(MPI_Comm world, const struct problem *problem, double complex *spectrum)
{
    int rank, size, nx = problem->nx, ny = problem->ny, nz = problem->nz;
    double factor = -4 * ALPHA * acos(-1) * acos(-1);

    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    for (int x = 0; x < nx / size; x++)
        for (int y = 0; y < ny; y++)
            for (int z = 0; z < nz; z++)
                spectrum[((long)x * ny + y) * nz + z] *=
                    exp(factor * (square(rank * (nx / size) + x, nx) + square(y, ny) + square(z, nz)));
}

double complex spectrum_checksum(MPI_Comm world, const struct problem *problem, const double complex *spectrum)
{
    int rank, size, nx = problem->nx, ny = problem->ny, nz = problem->nz;
    double complex mine = 0, sum;

    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    int depth = nz / size;
    long count = (long)depth * ny * nx;
    double complex *planes = memory(count);

    memcpy(planes, spectrum, (size_t)count * sizeof *planes);
    fft_rows(planes, (long)(nx / size) * ny, nz, -1);
    transpose(world, planes, nx, ny, nz);
    fft_middle(planes, depth, ny, nx, -1);
    fft_rows(planes, (long)depth * ny, nx, -1);
    for (int j = 1; j <= POINTS; j++) {
        int z = 5 * j % nz - rank * depth;
        if (z >= 0 && z < depth)
            mine += planes[((long)z * ny + 3 * j % ny) * nx + j % nx];
    }
    free(planes);
    MPI_Allreduce(&mine, &sum, 1, MPI_C_DOUBLE_COMPLEX, MPI_SUM, world);
    return sum / ((double)nx * ny * nz);
}
