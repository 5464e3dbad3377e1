/* SPDX-License-Identifier: Apache-2.0 */
/* Reads frames from a descriptor and answers each with the template written again, or with why it is none. */
#include "koala_nt.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    static char data[NT_LARGEST], written[NT_LARGEST + 1];
    char header[10] = {0};
    static NT nt;
    while (fread(header, 1, 9, stdin) == 9) {
        int size = 0;
        sscanf(header, "%d", &size);
        if (fread(data, 1, (size_t)size, stdin) != (size_t)size) return 1;
        /* Of just the right size, so that the sanitizer sees each byte too far. */
        char *copy = memcpy(__builtin_malloc((size_t)size), data, (size_t)size);
        int got = NT_Read(copy, (size_t)size, &nt) ? -1 : NT_Write(&nt, written, sizeof written);
        __builtin_free(copy);
        if (got < 0) got = snprintf(written, sizeof written, "! %s", NT_Error());
        printf("%08d\n", got);
        fwrite(written, 1, (size_t)got, stdout);
    }
    return 0;
}
