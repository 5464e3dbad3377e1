/* SPDX-License-Identifier: Apache-2.0 */
#include "resize.h"

#include "processes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static struct {
    MPI_Comm world;
    enum resize_method method;
    const struct orders *orders;
    struct change change;
    int entering, changing;
    int ending; /* the walltime is nearly over */
    int unable; /* the state could not be kept */
    int first; /* this process asks for orders */
    long points; /* reached so far */
} self;

void resize_fail(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fputs("resize: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    abort();
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_REALTIME, &time); /* with restart, what comes after a change is another process */
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* For benchmarks: since when the program stands still, or goes on. */
static void tell_time(const char *what, double when)
{
    if (self.first && getenv("RESIZE_TIMES") != NULL)
        fprintf(stderr, "resize: %s at %.6f\n", what, when);
}

static void forget_order(struct order *order)
{
    free(order->leaver);
    free(order->host);
    free(order->members);
}

/* Bring a program that was started as one process to its first size. */
static void spawn_first(void)
{
    struct order order = {0};
    int size;

    MPI_Comm_size(self.world, &size);
    if (size != 1)
        resize_fail("found %d processes that share one MPI_COMM_WORLD, of which none could leave alone: start one, with "
                    "mpiexec -n 1", size);
    if (self.orders->start(&order)) {
        spawn_begin(&self.change, self.world, &order);
        spawn_value(&self.change, &self.points, sizeof self.points);
        self.world = spawn_end(&self.change);
        self.orders->done();
    }
    forget_order(&order);
}

void resize_init(int *argc, char ***argv, const char *sizes)
{
    MPI_Comm parent;
    int rank;

    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_get_parent(&parent);
    self.first = rank == 0 && parent == MPI_COMM_NULL;
    self.orders = orders_find(sizes, self.first, &self.method);
    if (parent != MPI_COMM_NULL) {
        self.method = RESIZE_SPAWN;
        spawn_enter(&self.change, parent);
        spawn_value(&self.change, &self.points, sizeof self.points);
        if (self.change.number == 0) /* they start together */
            self.world = spawn_end(&self.change);
        else
            self.entering = self.changing = 1;
        return;
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &self.world);
    spawn_command(*argv);
    if (self.method == RESIZE_SPAWN)
        spawn_first();
    if (self.method == RESIZE_RESTART && restart_number() >= 0) {
        restart_enter(&self.change, self.world);
        restart_value(&self.change, &self.points, sizeof self.points);
        self.entering = self.changing = 1;
    }
}

MPI_Comm resize_world(void)
{
    return self.world;
}

int resize_entering(void)
{
    return self.entering;
}

int resize_point(void)
{
    struct order order = {0};
    double reached = now();
    int size, asked, said[2] = {0, 0}; /* whether the size changes, and whether the end is near */

    if (self.method == RESIZE_RIGID)
        return 0;
    self.points++;
    MPI_Comm_size(self.world, &size);
    if (self.first) {
        said[0] = self.orders->point(&order, self.points, size);
        said[1] = self.orders->ending();
    }
    MPI_Bcast(said, 2, MPI_INT, 0, self.world);
    asked = said[0];
    self.ending = said[1] && !asked; /* who enters here knows of none */
    if (asked && self.method == RESIZE_SPAWN)
        spawn_begin(&self.change, self.world, &order);
    else if (asked)
        restart_begin(&self.change, self.world, &order);
    self.changing = asked;
    if (asked) {
        tell_time("stands", reached);
        resize_carry_value(&self.points, sizeof self.points);
    }
    forget_order(&order);
    return asked;
}

int resize_ending(void)
{
    return self.ending;
}

void resize_carry_value(void *value, size_t bytes)
{
    if (!self.changing)
        resize_fail("resize_carry_value() while the size does not change");
    if (self.method == RESIZE_SPAWN)
        spawn_value(&self.change, value, bytes);
    else
        restart_value(&self.change, value, bytes);
}

void *resize_carry_array(void *part, size_t bytes, long total)
{
    const struct change *change = &self.change;
    void *fresh = NULL;
    long count;

    if (!self.changing)
        resize_fail("resize_carry_array() while the size does not change");
    if (change->mine_after >= 0) {
        count = resize_first(total, change->mine_after + 1, change->after)
                - resize_first(total, change->mine_after, change->after);
        fresh = malloc(count > 0 ? (size_t)count * bytes : 1);
        if (fresh == NULL)
            resize_fail("no memory for %ld elements of %zu bytes", count, bytes);
    }
    if (self.method == RESIZE_SPAWN)
        spawn_array(&self.change, part, fresh, bytes, total);
    else
        restart_array(&self.change, part, fresh, bytes, total);
    if (self.method == RESIZE_RESTART && !self.entering)
        return part; /* still needed when the state cannot be kept */
    free(part);
    return fresh;
}

long resize_first(long total, int rank, int size)
{
    return total / size * rank + total % size * rank / size;
}

int resize_done(void)
{
    int goes_on = 1;

    if (self.method == RESIZE_SPAWN) {
        self.world = spawn_end(&self.change);
        goes_on = self.world != MPI_COMM_NULL;
    } else if (self.entering) {
        restart_entered(&self.change, self.world);
    } else {
        goes_on = !restart_end(&self.change, self.world);
        self.unable = goes_on;
    }
    self.entering = self.changing = 0;
    if (self.first && self.unable)
        self.orders->unable();
    else if (self.first && goes_on)
        self.orders->done();
    self.unable = 0;
    if (goes_on)
        tell_time("goes on", now());
    return goes_on;
}

void resize_finalize(void)
{
    if (self.first)
        self.orders->leave();
    if (self.world != MPI_COMM_NULL)
        MPI_Comm_disconnect(&self.world);
    MPI_Finalize();
}
