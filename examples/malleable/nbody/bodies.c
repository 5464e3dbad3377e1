/* SPDX-License-Identifier: Apache-2.0 */
#include "bodies.h"

#include "../resize/resize.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define SOFTENING 1e-4 /* square of the distance below which the attraction grows no more */

static void *memory(size_t count, size_t bytes)
{
    void *found = calloc(count > 0 ? count : 1, bytes);

    if (found == NULL) {
        fprintf(stderr, "nbody: no memory for %zu bodies\n", count);
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
    return found;
}

/* A number from [0, 1) that depends on `key` alone: the finalizer of SplitMix64 (Steele, Lea, Flood 2014). */
static double noise(uint64_t key)
{
    key += 0x9e3779b97f4a7c15U;
    key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9U;
    key = (key ^ key >> 27) * 0x94d049bb133111ebU;
    return (double)((key ^ key >> 31) >> 11) * 0x1p-53;
}

struct body *bodies_make(long first, long last)
{
    struct body *part = memory((size_t)(last - first), sizeof *part);

    for (long each = first; each < last; each++) {
        struct body *body = part + (each - first);
        for (int axis = 0; axis < 3; axis++) {
            body->position[axis] = 2 * noise(8 * (uint64_t)each + (uint64_t)axis) - 1;
            body->velocity[axis] = 0.1 * (noise(8 * (uint64_t)each + 3 + (uint64_t)axis) - 0.5);
        }
        body->mass = 0.001 * (0.5 + noise(8 * (uint64_t)each + 6));
    }
    return part;
}

/* How an array of `total` elements of `width` doubles is divided. */
static void divide(MPI_Comm world, long total, int width, int **counts, int **offsets)
{
    int size;

    MPI_Comm_size(world, &size);
    *counts = memory((size_t)size, sizeof **counts);
    *offsets = memory((size_t)size, sizeof **offsets);
    for (int each = 0; each < size; each++) {
        (*offsets)[each] = width * (int)resize_first(total, each, size);
        (*counts)[each] = width * (int)resize_first(total, each + 1, size) - (*offsets)[each];
    }
}

/* Return position and mass of all bodies. */
static double *everywhere(MPI_Comm world, const struct body *part, long count, long total)
{
    double *mine = memory((size_t)count, 4 * sizeof *mine), *all = memory((size_t)total, 4 * sizeof *all);
    int *counts, *offsets;

    for (long each = 0; each < count; each++) {
        for (int axis = 0; axis < 3; axis++)
            mine[4 * each + axis] = part[each].position[axis];
        mine[4 * each + 3] = part[each].mass;
    }
    divide(world, total, 4, &counts, &offsets);
    MPI_Allgatherv(mine, 4 * (int)count, MPI_DOUBLE, all, counts, offsets, MPI_DOUBLE, world);
    free(mine);
    free(counts);
    free(offsets);
    return all;
}

/* Change the velocity of a body by the attraction of all for a time of `dt`; itself attracts it by 0. */
static void kick(struct body *body, const double *all, long total, double dt)
{
    double sum[3] = {0, 0, 0};

    for (long other = 0; other < total; other++) {
        const double *its = all + 4 * other;
        double way[3] = {its[0] - body->position[0], its[1] - body->position[1], its[2] - body->position[2]};
        double square = way[0] * way[0] + way[1] * way[1] + way[2] * way[2] + SOFTENING;
        double pull = its[3] / (square * sqrt(square));
        for (int axis = 0; axis < 3; axis++)
            sum[axis] += pull * way[axis];
    }
    for (int axis = 0; axis < 3; axis++)
        body->velocity[axis] += dt * sum[axis];
}

void bodies_step(MPI_Comm world, struct body *part, long total, double dt)
{
    int rank, size;
    double *all;

    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    long count = resize_first(total, rank + 1, size) - resize_first(total, rank, size);
    for (long each = 0; each < count; each++)
        for (int axis = 0; axis < 3; axis++)
            part[each].position[axis] += dt / 2 * part[each].velocity[axis];
    all = everywhere(world, part, count, total);
    for (long each = 0; each < count; each++)
        kick(part + each, all, total, dt);
    free(all);
    for (long each = 0; each < count; each++)
        for (int axis = 0; axis < 3; axis++)
            part[each].position[axis] += dt / 2 * part[each].velocity[axis];
}

struct body *bodies_gather(MPI_Comm world, const struct body *part, long total)
{
    const int width = sizeof *part / sizeof(double);
    struct body *all = NULL;
    int rank, *counts, *offsets;

    MPI_Comm_rank(world, &rank);
    divide(world, total, width, &counts, &offsets);
    if (rank == 0)
        all = memory((size_t)total, sizeof *all);
    MPI_Gatherv(part, counts[rank], MPI_DOUBLE, all, counts, offsets, MPI_DOUBLE, 0, world);
    free(counts);
    free(offsets);
    return all;
}
