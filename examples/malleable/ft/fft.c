/* SPDX-License-Identifier: Apache-2.0 */
#include "fft.h"

#include <math.h>
#include <string.h>

/* The self-sorting transform of Stockham (1966), radix 2: half the number of groups and twice their width each time. */
static void transform(double complex *row, double complex *other, int length, const double complex *root)
{
    double complex *from = row, *to = other, *swapped;

    for (int groups = length / 2, width = 1; groups >= 1; groups /= 2, width *= 2) {
        for (int group = 0; group < groups; group++) {
            double complex factor = root[group * width];
            for (int place = 0; place < width; place++) {
                double complex a = from[group * width + place], b = from[(group + groups) * width + place];
                to[2 * group * width + place] = a + b;
                to[(2 * group + 1) * width + place] = (a - b) * factor;
            }
        }
        swapped = from;
        from = to;
        to = swapped;
    }
    if (from != row)
        memcpy(row, from, (size_t)length * sizeof *row);
}

void fft_rows(double complex *rows, long count, int length, int sign)
{
    double complex root[LONGEST_FFT], other[LONGEST_FFT];

    for (int each = 0; each < length; each++) {
        double angle = sign * 2 * acos(-1) * each / length;
        root[each] = cos(angle) + sin(angle) * I;
    }
    for (long row = 0; row < count; row++)
        transform(rows + row * length, other, length, root);
}
