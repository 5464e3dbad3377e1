/* SPDX-License-Identifier: Apache-2.0 */
/* Negotiation templates for applications in C: the published calls, without any library but the C library.
 *
 *   cc -o evolving evolving.c koala_nt.c
 *
 * docs/negotiation.md says what the fields and the messages mean. Every call that can fail returns -1 then, and NT_Error
 * says why. Nothing is allocated; nothing but NT_Error is kept between calls. */
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

#endif
