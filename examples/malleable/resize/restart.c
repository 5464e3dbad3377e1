/* SPDX-License-Identifier: Apache-2.0 */
/* Where processes cannot be spawned: the state goes to a file in a directory that all nodes share (RESIZE_DIRECTORY), all
 * processes end, and whoever started the program starts it again on the processors of the other size, with RESIZE_CHANGE=N
 * for the change N. That file is removed when all have read it. What to start is also said in the file `next` there:
 * the number of the change, the number of processes, its point and, where koala gives the orders, its numbers of them. */
#include "processes.h"
#include "resize.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int file = -1;
static off_t position; /* in the file, of what is carried next: the same in all processes */
static int trouble;    /* errno of the first thing that went wrong */
static char *word;     /* what the file `next` says after the number of processes */

static void path_of(char path[PATH_MAX], const char *name, long number)
{
    const char *directory = getenv("RESIZE_DIRECTORY");
    int length;

    if (directory == NULL)
        resize_fail("RESIZE_DIRECTORY is not set: name a directory that all nodes share");
    length = number < 0 ? snprintf(path, PATH_MAX, "%s/%s", directory, name)
                        : snprintf(path, PATH_MAX, "%s/%s.%ld", directory, name, number);
    if (length >= PATH_MAX)
        resize_fail("RESIZE_DIRECTORY is too long");
}

long restart_number(void)
{
    const char *text = getenv("RESIZE_CHANGE");

    return text == NULL ? -1 : atol(text);
}

static void move(int writes, void *data, size_t bytes, off_t at)
{
    char *next = data;

    while (bytes > 0 && trouble == 0) {
        ssize_t moved = writes ? pwrite(file, next, bytes, at) : pread(file, next, bytes, at);
        if (moved > 0) {
            next += moved;
            at += moved;
            bytes -= (size_t)moved;
        } else if (moved == 0) {
            trouble = EIO; /* the file is too short */
        } else if (errno != EINTR) {
            trouble = errno;
        }
    }
}

static void keep_word(const struct order *order)
{
    const char *members = order->members != NULL ? order->members : "";
    size_t room = strlen(members) + 30;

    free(word);
    word = malloc(room);
    if (word == NULL)
        resize_fail("no memory for %zu bytes", room);
    snprintf(word, room, "%ld%s", order->point, members);
}

void restart_begin(struct change *change, MPI_Comm world, const struct order *order)
{
    long said[2] = {0, 0};
    char path[PATH_MAX];

    MPI_Comm_rank(world, &change->mine_before);
    MPI_Comm_size(world, &change->before);
    if (change->mine_before == 0) {
        said[0] = order->number;
        said[1] = change->before - order->leaving + order->joining;
        keep_word(order);
    }
    MPI_Bcast(said, 2, MPI_LONG, 0, world);
    change->number = said[0];
    change->after = (int)said[1];
    change->mine_after = -1;
    path_of(path, "state", change->number);
    position = trouble = 0;
    /* The first makes it: others might make another one where the directory is not shared, and would not be missed. */
    if (change->mine_before == 0 && (file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0)
        trouble = errno;
    MPI_Barrier(world);
    if (change->mine_before != 0 && (file = open(path, O_WRONLY | O_CLOEXEC)) < 0)
        trouble = errno;
}

void restart_enter(struct change *change, MPI_Comm world)
{
    char path[PATH_MAX];

    change->number = restart_number();
    change->mine_before = -1;
    change->before = 0;
    MPI_Comm_rank(world, &change->mine_after);
    MPI_Comm_size(world, &change->after);
    path_of(path, "state", change->number);
    position = trouble = 0;
    if ((file = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        resize_fail("%s: %s", path, strerror(errno));
}

void restart_value(struct change *change, void *value, size_t bytes)
{
    if (change->mine_before <= 0)
        move(change->mine_before == 0, value, bytes, position);
    position += (off_t)bytes;
}

void restart_array(struct change *change, const void *part, void *fresh, size_t bytes, long total)
{
    int writes = change->mine_before >= 0;
    int rank = writes ? change->mine_before : change->mine_after, size = writes ? change->before : change->after;
    long first = resize_first(total, rank, size), last = resize_first(total, rank + 1, size);

    move(writes, writes ? (void *)part : fresh, (size_t)(last - first) * bytes, position + first * (off_t)bytes);
    position += total * (off_t)bytes;
}

/* Say what is to be started. */
static void leave_word(const struct change *change)
{
    char path[PATH_MAX], fresh[PATH_MAX];
    FILE *next;

    path_of(path, "next", -1);
    path_of(fresh, "next", change->number);
    next = fopen(fresh, "w");
    if (next == NULL) {
        trouble = errno;
        return;
    }
    fprintf(next, "%ld %d %s\n", change->number, change->after, word);
    if (fclose(next) != 0 || rename(fresh, path) != 0)
        trouble = errno;
}

int restart_end(struct change *change, MPI_Comm world)
{
    char path[PATH_MAX];
    int worst;

    if (file >= 0 && trouble == 0 && fsync(file) != 0)
        trouble = errno;
    if (file >= 0 && close(file) != 0 && trouble == 0)
        trouble = errno;
    file = -1;
    MPI_Allreduce(&trouble, &worst, 1, MPI_INT, MPI_MAX, world);
    if (worst == 0 && change->mine_before == 0)
        leave_word(change);
    if (worst == 0) {
        worst = trouble;
        MPI_Bcast(&worst, 1, MPI_INT, 0, world);
    }
    if (worst != 0 && change->mine_before == 0) {
        path_of(path, "state", change->number);
        fprintf(stderr, "resize: %s: %s; the size stays %d\n", path, strerror(worst), change->before);
        unlink(path);
    }
    return worst == 0;
}

void restart_entered(struct change *change, MPI_Comm world)
{
    char path[PATH_MAX];

    path_of(path, "state", change->number);
    if (trouble != 0)
        resize_fail("%s: %s", path, strerror(trouble));
    close(file);
    file = -1;
    MPI_Barrier(world);
    if (change->mine_after == 0)
        unlink(path);
}
