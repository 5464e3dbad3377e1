/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4) of data in memory. */
#ifndef SHA256_H
#define SHA256_H

#include <stddef.h>

/* Write the digest as 64 hexadecimal digits and a NUL. */
void sha256(const void *data, size_t bytes, char digest[65]);

#endif
