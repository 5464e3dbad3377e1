/* SPDX-License-Identifier: Apache-2.0 */
/* MPI programs whose number of processes changes while they compute: what the numerical part of one has to know.
 *
 *   resize_init(&argc, &argv, "any");
 *   if (resize_entering()) {
 *       carry();                                  the state of the others comes to this process
 *       resize_done();
 *   } else
 *       compute the initial state
 *   while (step < steps) {
 *       compute one step over resize_world(); step++
 *       if (resize_point()) {                     where newcomers enter, too
 *           carry();
 *           if (!resize_done())
 *               break;                            this process leaves
 *       }
 *   }
 *   resize_finalize();
 *
 * carry() calls resize_carry_value() for what every process has alike, and resize_carry_array() for what is divided among
 * them, always in the same order. Arrays are divided in blocks, see resize_first().
 *
 * Whatever goes wrong ends the program as MPI_Abort does, after a line on stderr; only a state that cannot be written to
 * files is no end: the program goes on with the size that it has. */
#ifndef RESIZE_H
#define RESIZE_H

#include <mpi.h>
#include <stddef.h>

/* Stands for MPI_Init. `sizes`: numbers of processes that the program can use, "any", "power-of-two" or
 * "multiple-of-N". */
void resize_init(int *argc, char ***argv, const char *sizes);

/* The processes that compute now, in their order. It is another one after resize_done(); while a size changes, after
 * resize_point() and before resize_done(), there is none to be used. */
MPI_Comm resize_world(void);

/* 1: this process comes to a computation that is under way, and its state is to be carried to it. */
int resize_entering(void);

/* An adaptation point: all processes call it at the same step. 1: the size changes here. */
int resize_point(void);

/* 1: the walltime is nearly over (warn_before of the job file), as it was known at the last point: the same in all
 * processes, so that they may write their state and end together. 0 at a point where the size changes. */
int resize_ending(void);

/* Bring a value that all processes have alike to those that enter. */
void resize_carry_value(void *value, size_t bytes);

/* Divide an array of `total` elements of `bytes` bytes anew. `part`: this process' elements, from malloc(), or NULL when it
 * enters; it is freed. Returned is the new part, from malloc(); NULL: this process leaves. */
void *resize_carry_array(void *part, size_t bytes, long total);

/* The first element of process `rank` of `size` in an array of `total` elements; that of `size` itself is `total`. */
long resize_first(long total, int rank, int size);

/* The state has been carried. 1: compute on; 0: this process has to call resize_finalize() and to end with status 0. */
int resize_done(void);

/* Stands for MPI_Finalize. */
void resize_finalize(void);

#endif
