/* SPDX-License-Identifier: Apache-2.0 */
/* Processes come by MPI_Comm_spawn, one at a time: each has an MPI_COMM_WORLD of its own, so that each can leave alone.
 * They are joined by merging the intercommunicator of each spawn; those that came before take part in what follows. */
#include "processes.h"
#include "resize.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

static char **own_command;

void spawn_command(char **argv)
{
    own_command = argv;
}

/* Tell koala which host mpiexec is going to ask for: its launch lines do not say. */
static void announce(const char *host)
{
    const char *number = getenv("KOALA_SPAWN_FD");

    if (number != NULL)
        dprintf(atoi(number), "koala: spawn %s\n", host);
}

/* Start one process on a host. koala says in KOALA_RANK_SHELL how the command of a rank is run. */
static MPI_Comm spawn_one(MPI_Comm comm, int root, const char *host)
{
    static char *shell[] = {"-c", "eval \"$KOALA_RANK_SHELL\"", "koala-rank", NULL};
    char **arguments = MPI_ARGV_NULL;
    const char *program = "";
    MPI_Info info = MPI_INFO_NULL;
    MPI_Comm children;
    int error;

    if (root) {
        program = getenv("KOALA_RANK_SHELL") != NULL ? "sh" : own_command[0];
        arguments = getenv("KOALA_RANK_SHELL") != NULL ? shell : own_command + 1;
        MPI_Info_create(&info);
        if (getenv("KOALA_RANK_SHELL") != NULL)
            MPI_Info_set(info, "wdir", "/"); /* the shell goes to the right one */
        MPI_Info_set(info, "host", host);
        announce(host);
    }
    MPI_Comm_spawn(program, arguments, 1, info, 0, comm, &children, &error);
    if (info != MPI_INFO_NULL)
        MPI_Info_free(&info);
    return children;
}

/* Return `comm` with one process more, and let go of the former. */
static MPI_Comm widened(MPI_Comm comm, MPI_Comm children)
{
    MPI_Comm wider;

    MPI_Intercomm_merge(children, 0, &wider);
    MPI_Comm_disconnect(&children);
    MPI_Comm_disconnect(&comm);
    return wider;
}

/* Bring in as many as are missing. All that are in `comm` call it, newcomers as soon as they are; `order` is NULL in all
 * but the first. */
static MPI_Comm complete(MPI_Comm comm, const struct order *order)
{
    int rank, missing = order != NULL ? order->joining : 0, done = 0;

    MPI_Comm_rank(comm, &rank);
    for (;; done++) {
        MPI_Bcast(&missing, 1, MPI_INT, 0, comm);
        if (missing == 0)
            return comm;
        comm = widened(comm, spawn_one(comm, rank == 0, order != NULL ? order->host[done] : ""));
        missing--;
    }
}

/* Tell all of everybody what happens, and work out who has which rank. */
static void agree(struct change *change, int before, const struct order *order)
{
    long said[3] = {0, before, order != NULL ? order->leaving : 0};
    int rank, size, next = 0;

    MPI_Comm_rank(change->everybody, &rank);
    MPI_Comm_size(change->everybody, &size);
    if (order != NULL)
        said[0] = order->number;
    MPI_Bcast(said, 3, MPI_LONG, 0, change->everybody);
    change->number = said[0];
    change->before = (int)said[1];
    change->after = size - (int)said[2];
    change->position = calloc((size_t)size, sizeof *change->position);
    if (change->position == NULL)
        resize_fail("no memory");
    for (int each = 0; order != NULL && each < order->leaving; each++)
        change->position[order->leaver[each]] = -1;
    for (int each = 0; each < size; each++)
        if (change->position[each] == 0)
            change->position[each] = next++;
    MPI_Bcast(change->position, size, MPI_INT, 0, change->everybody);
    change->mine_before = rank < change->before ? rank : -1;
    change->mine_after = change->position[rank];
}

void spawn_begin(struct change *change, MPI_Comm world, const struct order *order)
{
    int rank, size;

    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    change->everybody = complete(world, rank == 0 ? order : NULL);
    agree(change, size, rank == 0 ? order : NULL);
}

void spawn_enter(struct change *change, MPI_Comm parent)
{
    MPI_Comm comm;

    MPI_Intercomm_merge(parent, 1, &comm);
    MPI_Comm_disconnect(&parent);
    change->everybody = complete(comm, NULL);
    agree(change, 0, NULL);
}

void spawn_value(struct change *change, void *value, size_t bytes)
{
    if (bytes > INT_MAX)
        resize_fail("found a value of %zu bytes, allowed is %d", bytes, INT_MAX);
    MPI_Bcast(value, (int)bytes, MPI_BYTE, 0, change->everybody);
}

static struct range part_of(long total, int rank, int size)
{
    struct range part = {0, 0};

    if (rank >= 0) {
        part.first = resize_first(total, rank, size);
        part.last = resize_first(total, rank + 1, size);
    }
    return part;
}

/* Where `theirs` lies in `mine`: how many elements, and from which one of mine. */
static void overlap(struct range mine, struct range theirs, int *count, int *offset)
{
    long first = mine.first > theirs.first ? mine.first : theirs.first;
    long last = mine.last < theirs.last ? mine.last : theirs.last;

    *count = last > first ? (int)(last - first) : 0;
    *offset = last > first ? (int)(first - mine.first) : 0;
}

void spawn_array(struct change *change, const void *part, void *fresh, size_t bytes, long total)
{
    struct range had = part_of(total, change->mine_before, change->before);
    struct range gets = part_of(total, change->mine_after, change->after);
    MPI_Datatype element;
    int size, *counts;

    MPI_Comm_size(change->everybody, &size);
    counts = calloc(4 * (size_t)size, sizeof *counts);
    if (counts == NULL || bytes > INT_MAX)
        resize_fail("no memory for an array of elements of %zu bytes", bytes);
    for (int each = 0; each < size; each++) {
        int before = each < change->before ? each : -1;
        overlap(had, part_of(total, change->position[each], change->after), counts + each, counts + size + each);
        overlap(gets, part_of(total, before, change->before), counts + 2 * size + each, counts + 3 * size + each);
    }
    MPI_Type_contiguous((int)bytes, MPI_BYTE, &element);
    MPI_Type_commit(&element);
    MPI_Alltoallv(part, counts, counts + size, element, fresh, counts + 2 * size, counts + 3 * size, element,
                  change->everybody);
    MPI_Type_free(&element);
    free(counts);
}

MPI_Comm spawn_end(struct change *change)
{
    MPI_Comm world;

    MPI_Comm_split(change->everybody, change->mine_after < 0 ? MPI_UNDEFINED : 0, change->mine_after, &world);
    MPI_Comm_disconnect(&change->everybody);
    free(change->position);
    change->position = NULL;
    return world;
}
