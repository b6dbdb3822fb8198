/* What the files of the library share: vectors of 16 floats, and the threads. */

#ifndef POOT_NATIVE_H
#define POOT_NATIVE_H

#include <stdint.h>
#include <string.h>

/* The compiler cuts these to what the processor has. */
typedef float v16 __attribute__((vector_size(64), aligned(4)));
typedef int32_t v16i __attribute__((vector_size(64), aligned(4)));

#define LOAD(p) (*(const v16 *)(p))
#define STORE(p, v) (*(v16 *)(p) = (v))

/* The sum of all sixteen. */
static inline float total(v16 v) {
    v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    return v[0];
}

/* Units first..last of a job. */
typedef void (*kernel_t)(const void *job, long first, long last);

/* How many units to hand out at a time: an eighth of a thread's share, since threads may be put aside; even; at least
   `least`, below which the handing out would cost more than the work. */
long poot_grain(long units, long least);

/* Run all units of a job, at most `grain` at a time, on all threads; returns when they are done. One caller at a time. */
void poot_run(kernel_t kernel, const void *job, long units, long grain);

#endif
