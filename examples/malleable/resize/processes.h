/* SPDX-License-Identifier: Apache-2.0 */
/* The processes before and after a change, and what carries the state from the ones to the others. */
#ifndef PROCESSES_H
#define PROCESSES_H

#include "orders.h"
#include <mpi.h>
#include <stddef.h>

/* All that a change has to do with. */
struct change {
    long number;
    int before, after; /* numbers of processes */
    int mine_before;   /* this process' rank before; -1: it enters */
    int mine_after;    /* its rank afterwards; -1: it leaves */
    MPI_Comm everybody; /* spawn: those before, in their order, then those that enter */
    int *position;      /* spawn: rank afterwards of each of `everybody`, or -1 */
};

/* Elements [first, last) of an array. */
struct range {
    long first, last;
};

/* The method "spawn" (spawn.c). */

/* `argv`: what starts a further process by hand. */
void spawn_command(char **argv);
/* All of `world` call it; the first gives the order. Brings the newcomers in. `world` is gone afterwards. */
void spawn_begin(struct change *change, MPI_Comm world, const struct order *order);
/* What a newcomer calls instead. */
void spawn_enter(struct change *change, MPI_Comm parent);
void spawn_value(struct change *change, void *value, size_t bytes);
void spawn_array(struct change *change, const void *part, void *fresh, size_t bytes, long total);
/* Return the processes that compute from now on; MPI_COMM_NULL in one that leaves. */
MPI_Comm spawn_end(struct change *change);

/* The method "restart" (restart.c): one file for each change in the directory RESIZE_DIRECTORY. */

/* Return the number of the change with which this program was started anew; -1: it was not. */
long restart_number(void);
void restart_begin(struct change *change, MPI_Comm world, const struct order *order);
void restart_enter(struct change *change, MPI_Comm world);
void restart_value(struct change *change, void *value, size_t bytes);
void restart_array(struct change *change, const void *part, void *fresh, size_t bytes, long total);
/* Return 1: the state is safe, and all are to end; 0: it could not be kept, the program goes on. */
int restart_end(struct change *change, MPI_Comm world);
/* What a process that was started anew calls when it has all of its state. */
void restart_entered(struct change *change, MPI_Comm world);

#endif
