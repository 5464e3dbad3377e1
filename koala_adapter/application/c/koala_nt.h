/* SPDX-License-Identifier: Apache-2.0 */
/* Negotiation templates for applications in C: the published calls, without any library but the C library.
 *
 *   cc -o evolving evolving.c koala_nt.c
 *
 * docs/negotiation.md says what the fields and the messages mean. Every call that can fail returns -1 then, and NT_Error
 * says why. Nothing is allocated; nothing but NT_Error and an NT_Endpoint of yours is kept between calls. */
#ifndef KOALA_NT_H
#define KOALA_NT_H

#include <stddef.h>

#define NT_LARGEST 65536 /* bytes of a template */
#define NT_MOST_RESOURCES 64

enum NT_Side { NT_RMS, NT_APPLICATION };

enum NT_Status {
    NT_NEGOTIATION, /* an offer, or a counter-offer */
    NT_ACCEPTED,
    NT_COMMITTED,
    NT_CONSUMED, /* what was agreed on is real */
    NT_REJECTED, /* of a resource: it is declined */
    NT_WITHDRAWN,
    NT_EXPIRED,
    NT_ERROR
};

typedef struct {
    char type[65]; /* "CPU" (processors), "MEM" (MiB), or another */
    long quantity;
    int optional;
    int fixed;
    enum NT_Status status;
    long minimum, maximum; /* 0: not said */
    char cluster[64], component[64]; /* "": not said */
} NT_Resource;

typedef struct {
    char agreement_id[65];
    enum NT_Side initiator;
    char source[256], dest[256];
    enum NT_Status status;
    int resources;
    NT_Resource resource[NT_MOST_RESOURCES];
    char direction; /* 'g' grow, 's' shrink, 0: not said */
    char obligation; /* 'v' voluntary, 'm' mandatory, 0: not said */
    long answer_within; /* milliseconds; 0: not said */
    int round; /* 0: not said */
    char reason[2001]; /* UTF-8 */
} NT;

/* What is wanted of a type of resource: returns how many of so many are taken, 0 for none. */
typedef long (*NT_Taking)(const char *type, long offered, void *context);

/* Connections. */
int NT_Connect(const char *host, int port, const char *token); /* token NULL: none is shown */
int NT_ConnectUnix(const char *path);
int NT_Accept(int listening);
int NT_Close(int connection);
int NT_Send(int connection, const NT *nt);
int NT_Recv(int connection, NT *nt); /* 1: a template, 0: the peer has closed */

/* Deciding: fills in the answer: it as it stands, a counter-offer, or a refusal. */
int NT_Decide(const NT *offer, NT_Taking taking, void *context, NT *answer);

/* Making and changing. */
void NT_Create(NT *nt, const char *agreement_id, enum NT_Side initiator, const char *source, const char *dest);
NT_Resource *NT_Add(NT *nt, const char *type, long quantity); /* NULL: there are too many */
void NT_Say(NT *nt, enum NT_Status status, const char *reason); /* of the whole and of what is not declined */
long NT_Quantity(const NT *nt, const char *type);

/* Bytes, without frames. */
int NT_Read(const char *data, size_t size, NT *nt);
int NT_Write(const NT *nt, char *data, size_t size); /* returns how many bytes it wrote */

const char *NT_Error(void);

/* The state machine: one side of the negotiations with one peer. Templates in, templates and what happened out; no
 * socket and no clock. Times are milliseconds of any clock that does not go back. */

enum NT_State {
    NT_IS_NEW,
    NT_IS_OFFERED,
    NT_IS_ASKED, /* it waits for our answer */
    NT_IS_ACCEPTING,
    NT_IS_ACCEPTED, /* it waits for our commitment */
    NT_IS_AGREED,
    NT_IS_CONSUMED,
    NT_IS_REJECTED,
    NT_IS_WITHDRAWN,
    NT_IS_EXPIRED,
    NT_IS_LOST,
    NT_IS_BROKEN
};

#define NT_MOST_OPEN 16
#define NT_MOST_KEPT 32 /* with those that have ended */
#define NT_MOST_ROUNDS 8
#define NT_ANSWER_WITHIN 30000L
#define NT_LONGEST_ANSWER 3600000L

typedef struct {
    enum NT_State state;
    NT standing; /* what was offered or agreed on last */
    NT said; /* what we said last */
    int has_said;
    int round;
    long long deadline; /* 0: none */
    unsigned long touched;
    char reason[2001]; /* why it has ended */
} NT_Negotiation;

typedef struct {
    enum NT_Side side;
    unsigned long touches;
    NT_Negotiation kept[NT_MOST_KEPT];
} NT_Endpoint; /* begins as all zeros but for its side */

/* Takes what the peer says. Returns 1: answer is to be sent, or 0. *happened is where the state has changed, or NULL. */
int NT_Hear(NT_Endpoint *endpoint, const NT *heard, long long now, NT_Negotiation **happened, NT *answer);
/* Takes what is to be said, and completes it; then it may be sent. */
int NT_Tell(NT_Endpoint *endpoint, NT *said, long long now);
/* Ends one negotiation that was not answered in time: said is to be sent. NULL: there is none (any more). */
NT_Negotiation *NT_Overdue(NT_Endpoint *endpoint, long long now, NT *said);
long long NT_Deadline(const NT_Endpoint *endpoint); /* when NT_Overdue finds the next one; 0: never */
/* The connection has ended: ends one negotiation that was not agreed on. NULL: there is none (any more). */
NT_Negotiation *NT_Lose(NT_Endpoint *endpoint);
/* Of kept[place], returns 1: said may not have arrived, and is to be sent on a new connection. */
int NT_Again(const NT_Endpoint *endpoint, int place, NT *said);

#endif
