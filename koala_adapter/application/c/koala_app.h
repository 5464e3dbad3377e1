/* SPDX-License-Identifier: Apache-2.0 */
/* For programs that change their number of processes while they run, as koala has processors for them.
 *
 *   koala_app *app = koala_app_join("any", NULL, NULL, "host:port");
 *   const koala_app_change *change;
 *   if (!app) return 1;                                   // koala_app_error() says why
 *   change = koala_app_present_change(app);               // that of a process that starts later
 *   while (change || koala_app_reached(app) < steps) {
 *       if (!change && koala_app_point(app, &change) < 0) return 1;
 *       if (change) {
 *           ...                                           // redistribute from change->old to change->members
 *           if (koala_app_done(app)) return 1;
 *           if (change->rank < 0) return koala_app_leave(app);
 *           change = NULL;
 *       }
 *       ...                                               // step number koala_app_reached(app)
 *   }
 *   koala_app_close(app);
 *
 * Not under koala the program runs as it is: every call works, and there is never a change. Needs koala_nt.c and
 * -pthread.
 *
 * What fails returns -1 (or NULL), writes a line to standard error, and koala_app_error() says why. The calls are made by
 * one thread. docs/adaptive.md of koala-adapter says what happens when. */
#ifndef KOALA_APP_H
#define KOALA_APP_H

#include <stddef.h>

typedef struct koala_app koala_app;

typedef struct {
    int rank; /* koala's number of it, never used again; its rank in the program is its place among the members */
    char cluster[64], address[256], contact[201];
} koala_app_member;

typedef struct {
    int number;
    long at; /* the point: how often each old member has called koala_app_point */
    int rank; /* of this process afterwards; -1: it leaves */
    int old_rank; /* before; -1: it is new */
    int size, old_size, leaving_size, joining_size;
    const koala_app_member *members, *old, *leaving, *joining; /* in the order of their ranks */
    const char *reason;
} koala_app_change; /* stands until the next change */

/* Returns the size that the program wants, given its size and how many processors are offered (below 0: wanted back).
 * It is called by another thread, must return soon, and make no call of this library. */
typedef int (*koala_app_sizing)(int size, int offered, void *context);

/* Returns when all processes of the program have joined. sizes: "any", "power-of-two", "multiple-of-N"; with a function
 * it is not looked at. contact: at most 200 bytes by which the others find this process. */
koala_app *koala_app_join(const char *sizes, koala_app_sizing function, void *context, const char *contact);

/* For a program of MPI, of which only the first process joins. method: "spawn" when it starts newcomers itself, which
 * come after the change, or "restart" when all processes end in the change and are started again. */
koala_app *koala_app_join_mpi(const char *method, const char *sizes, koala_app_sizing function, void *context,
                              const char *contact);

/* An adaptation point, which all processes pass in the same order. Returns 0 when nothing is to be done, which costs a
 * look at memory, or 1 and the change. */
int koala_app_point(koala_app *app, const koala_app_change **change);

/* This process has carried out the change; returns 0 when all have. One that leaves then calls koala_app_leave. */
int koala_app_done(koala_app *app);

/* This process is about to exit. Ends the connection; app may no longer be used. Returns 0; -1: it was not asked to. */
int koala_app_leave(koala_app *app);

/* Asks for more processors. Returns how many were granted; they come with a later change. Why not all, is in reason. */
int koala_app_request(koala_app *app, int number, int mandatory, char *reason, size_t room);

/* The same with memory: MiB for each of the new processes, without which it is of no use; 0: as the others have. */
int koala_app_request_memory(koala_app *app, int number, int memory, int mandatory, char *reason, size_t room);

/* Gives processors back. Returns how many koala will take, with a later change. */
int koala_app_give_back(koala_app *app, int number, char *reason, size_t room);

int koala_app_rank(const koala_app *app); /* -1: this process was taken out */
int koala_app_size(const koala_app *app);
long koala_app_reached(const koala_app *app); /* points */
const koala_app_member *koala_app_members(const koala_app *app);
/* Seconds until the processes are ended as their walltime is over, 0 or more. -1: nobody knows, as outside koala. */
double koala_app_time_left(const koala_app *app);
/* Whether this end is near, as koala has told (warn_before of the job file): a look at memory and at the clock. It is so
 * without contact, too. Each process learns of it by itself: one that decides for all what follows has to tell the others. */
int koala_app_ending(const koala_app *app);
const koala_app_change *koala_app_present_change(const koala_app *app); /* NULL: none, or it is done */

/* Ends the connection; the program goes on as it is. app may no longer be used. */
void koala_app_close(koala_app *app);

const char *koala_app_error(void);

#endif
