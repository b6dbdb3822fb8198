/* Stands in for the NVIDIA driver: it writes down what it is told. Structs are those of cuda.h.

   It has two kernels: `scale` (three pointers, int, float) and `boxed` (a map of boxes, int). */
#include <stddef.h>
#include <string.h>

typedef struct { int id; char pad[4]; union { char pad[64]; void *pointer; int flag; } value; } attribute;
typedef struct {
    unsigned grid[3], block[3], shared; void *stream; attribute *attributes; unsigned count;
} config;
typedef unsigned long long word;

static void *const SCALE = (void *)0x7fff00000020, *const BOXED = (void *)0x7fff00000040;

/* What the caller sets: what launches and maps answer, and how many clusters run at once. */
int status, refuses, clusters;
/* The latest launch. */
config got; attribute first; void *function; word pointers[3], map[16]; int count; float factor;
/* The latest question about clusters, and the latest map. */
config asked; attribute of_cluster; void *asked_of;
int kind, rank, layout[4]; void *address; word sizes[4], strides[3]; unsigned box[4], steps[4];
int allowed, loads, contexts, launches, questions;

int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(0x100L + device); return 0; }
int cuCtxSetCurrent(void *context) { contexts = (int)(long)context; return 0; }
int cuModuleLoadData(void **module, const char *image) {
    if (memcmp(image, "cubin", 5)) return 200;
    loads++; *module = (void *)0x10; return 0;
}
int cuModuleGetFunction(void **found, void *module, const char *name) {
    const int boxed = !strcmp(name, "boxed");
    if (module != (void *)0x10 || (!boxed && strcmp(name, "scale"))) return 500;
    *found = boxed ? BOXED : SCALE; return 0;
}
int cuFuncGetAttribute(int *value, int number, void *of) {
    static const int values[] = {512, 0, 0, 16, 40, 0, 0, 0, 48000};
    *value = values[number]; return 0;
}
int cuFuncSetAttribute(void *of, int number, int value) {
    if (number != 8 || value > 232448) return 1;
    allowed = value; return 0;
}
int cuFuncGetParamInfo(void *of, size_t at, size_t *offset, size_t *size) {
    static const size_t plain[] = {8, 8, 8, 4, 4}, boxed[] = {128, 4};
    if (at >= (of == BOXED ? 2 : 5)) return 1;
    *size = of == BOXED ? boxed[at] : plain[at]; return 0;
}
int cuOccupancyMaxActiveClusters(int *found, void *of, const config *given) {
    questions++; asked = *given; asked_of = of; *found = clusters;
    memset(&of_cluster, 0, sizeof of_cluster);
    if (given->count == 1) of_cluster = *given->attributes;
    return clusters < 0 ? 1 : 0;
}
int cuTensorMapEncodeTiled(word *made, int type, unsigned dimensions, void *at, const word *given_sizes,
                           const word *given_strides, const unsigned *given_box, const unsigned *given_steps,
                           int interleave, int swizzle, int promotion, int fill) {
    if (refuses) return refuses;
    if ((unsigned long long)made % 64) return 1;
    if (dimensions < 2 || dimensions > 4) return 1;
    kind = type; rank = (int)dimensions; address = at;
    for (int i = 0; i < 4; i++) {
        const int there = i < rank;
        sizes[i] = there ? given_sizes[i] : 0; box[i] = there ? given_box[i] : 0; steps[i] = there ? given_steps[i] : 0;
    }
    for (int i = 0; i < 3; i++) strides[i] = i < rank - 1 ? given_strides[i] : 0;
    layout[0] = interleave; layout[1] = swizzle; layout[2] = promotion; layout[3] = fill;
    for (int i = 0; i < 16; i++) made[i] = 0x0101010101010101ull * (unsigned)(i + 1);
    return 0;
}
int cuLaunchKernelEx(const config *given, void *which, void **parameters, void **extra) {
    if (status) return status;
    got = *given; function = which; launches++;
    memset(&first, 0, sizeof first);
    if (given->count) first = *given->attributes;
    if (which == BOXED) {
        memcpy(map, parameters[0], sizeof map);
        count = *(int *)parameters[1];
        return extra != 0;
    }
    for (int i = 0; i < 3; i++) pointers[i] = *(word *)parameters[i];
    count = *(int *)parameters[3]; factor = *(float *)parameters[4];
    return extra != 0;
}
static int say(int code, const char **text, const char *said) { *text = code == 700 ? said : 0; return !*text; }
int cuGetErrorName(int code, const char **text) { return say(code, text, "CUDA_ERROR_ILLEGAL_ADDRESS"); }
int cuGetErrorString(int code, const char **text) { return say(code, text, "an illegal access"); }
