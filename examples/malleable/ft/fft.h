/* SPDX-License-Identifier: Apache-2.0 */
/* Fourier transforms whose length is a power of two. */
#ifndef FFT_H
#define FFT_H

#include <complex.h>

#define LONGEST_FFT 512

/* Transform `count` rows of `length` numbers each, without a factor. `sign`: 1 for exp(+i...), -1 for exp(-i...). */
void fft_rows(double complex *rows, long count, int length, int sign);

#endif
