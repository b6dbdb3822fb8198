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

static inline float total(v16 sum) {
    float parts[16];
    memcpy(parts, &sum, sizeof parts);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) parts[i] += parts[i + width];
    return parts[0];
}

/* Units first..last of a job. */
typedef void (*kernel_t)(const void *job, long first, long last);

/* Run all units of a job, at most `grain` at a time, on all threads; returns when they are done. One caller at a time. */
void poot_run(kernel_t kernel, const void *job, long units, long grain);

#endif
