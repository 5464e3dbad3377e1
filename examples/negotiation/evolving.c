/* SPDX-License-Identifier: Apache-2.0 */
/* Asks for processors, takes what there is, and says what became of it:  evolving HOST PORT TOKEN PROCESSORS */
#include "koala_nt.h"

#include <stdio.h>
#include <stdlib.h>

static long all(const char *type, long offered, void *context) {
    (void)type;
    (void)context;
    return offered;
}

int main(int count, char **words) {
    NT nt, answer;
    int connection, got;
    if (count != 5) return fprintf(stderr, "usage: evolving HOST PORT TOKEN PROCESSORS\n"), 2;
    connection = NT_Connect(words[1], atoi(words[2]), words[3]);
    NT_Create(&nt, "1", NT_APPLICATION, "node7", "head");
    nt.direction = 'g';
    NT_Add(&nt, "CPU", atol(words[4]));
    if (connection < 0 || NT_Send(connection, &nt)) return fprintf(stderr, "evolving: %s\n", NT_Error()), 1;
    while ((got = NT_Recv(connection, &nt)) == 1) {
        printf("%d: %ld processors%s%s\n", (int)nt.status, NT_Quantity(&nt, "CPU"), nt.reason[0] ? ": " : "", nt.reason);
        if (nt.status == NT_NEGOTIATION)
            NT_Decide(&nt, all, NULL, &answer);
        else if (nt.status == NT_ACCEPTED) {
            answer = nt;
            NT_Say(&answer, NT_COMMITTED, "");
        } else if (nt.status == NT_COMMITTED)
            continue;
        else
            break; /* they are there, or the negotiation has ended */
        if (NT_Send(connection, &answer)) break;
    }
    if (got < 0) fprintf(stderr, "evolving: %s\n", NT_Error());
    NT_Close(connection);
    return got == 1 && nt.status == NT_CONSUMED ? 0 : 1;
}
