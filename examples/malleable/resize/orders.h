/* SPDX-License-Identifier: Apache-2.0 */
/* Who says when the size changes, and to what: a plan given by hand, or koala. Only the first process asks. */
#ifndef ORDERS_H
#define ORDERS_H

#define HOST_LENGTH 256

/* One change of size. */
struct order {
    long number;               /* of the change, from 0 (the start) */
    int leaving;               /* so many processes leave */
    int *leaver;               /* their ranks, never 0; from malloc() */
    int joining;               /* so many processes come */
    char (*host)[HOST_LENGTH]; /* the host of each, as mpiexec is to know it; from malloc() */
    long point;                /* restart: the point at which it happens, for the orders of the new program */
    char *members;             /* restart: who computes afterwards, for who starts it; NULL or from malloc() */
};

/* Where the processes of a change come from. */
enum resize_method {
    RESIZE_RIGID,  /* nowhere: the size stays */
    RESIZE_SPAWN,  /* each is spawned, and can leave, alone */
    RESIZE_RESTART /* all end, and the program is started anew with the other size */
};

struct orders {
    /* Return 1 and the change with which a spawning program comes to its first size; 0: it stays as it is. */
    int (*start)(struct order *order);
    /* Return 1 and a change that is to happen at this point, the how many-th; 0: there is none. */
    int (*point)(struct order *order, long point, int size);
    /* Return 1 when the walltime is nearly over. */
    int (*ending)(void);
    /* The change is complete. */
    void (*done)(void);
    /* It cannot be carried out; returns only where whoever gave the order does not have to know. */
    void (*unable)(void);
    /* The program ends. */
    void (*leave)(void);
};

/* Return what says when the size changes here, and how it does. Called in every process after MPI_Init; only the first
 * process uses the calls, and only in it `first` is 1. */
const struct orders *orders_find(const char *sizes, int first, enum resize_method *method);

/* The orders of RESIZE_PLAN, see orders_plan.c. */
extern const struct orders orders_by_plan;

/* Join the other programs that koala runs, and return its orders; see orders_koala.c. */
const struct orders *orders_from_koala(const char *sizes, enum resize_method method);

/* Write a line to stderr and end all processes. */
void resize_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
