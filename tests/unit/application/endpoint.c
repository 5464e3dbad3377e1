/* SPDX-License-Identifier: Apache-2.0 */
/* Reads "h" or "t" and a frame: a template that is heard, or to be told; "z": all begins anew. Writes the state and a
 * frame of the answer. */
#include "koala_nt.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(const NT *nt) {
    static char data[NT_LARGEST + 1];
    int size = nt ? NT_Write(nt, data, sizeof data) : 0;
    if (size < 0) abort();
    printf("%08d\n", size);
    fwrite(data, 1, (size_t)size, stdout);
}
int main(void) {
    NT_Endpoint *endpoint = calloc(1, sizeof *endpoint);
    NT *nt = calloc(2, sizeof *nt);
    char *data = malloc(NT_LARGEST), header[11] = {0};
    endpoint->side = NT_APPLICATION;
    while (fread(header, 1, 10, stdin) == 10) {
        NT_Negotiation *happened = NULL;
        if (header[0] == 'z') {
            memset(endpoint, 0, sizeof *endpoint);
            endpoint->side = NT_APPLICATION;
            continue;
        }
        int size = atoi(header + 1), answered = 0;
        if (fread(data, 1, (size_t)size, stdin) != (size_t)size || NT_Read(data, (size_t)size, nt)) abort();
        if (header[0] == 'h')
            answered = NT_Hear(endpoint, nt, 1, &happened, nt + 1);
        else if ((answered = !NT_Tell(endpoint, nt, 1)))
            nt[1] = *nt;
        printf("%d %d\n", happened ? (int)happened->state : -1, answered);
        put(answered ? nt + 1 : NULL);
    }
    free(data);
    free(nt);
    free(endpoint);
    return 0;
}
