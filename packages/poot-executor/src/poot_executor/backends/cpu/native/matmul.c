/* Products of float32 activations with weights in their checkpoint's own encoding.

   y[m][n] = sum_k x[m][k] * w[n][k], w a row-major matrix of N rows of K elements. Rows are decoded in pieces of up to
   256 elements, which stay in the first-level cache while every row of x is multiplied with them: memory is read once,
   packed, whatever M is. Block layouts: ggml-common.h of llama.cpp. Each row is summed by one thread in a fixed order,
   so results do not depend on the number of threads. */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef float v16 __attribute__((vector_size(64), aligned(4)));

enum { PIECE = 256, MAX_ROWS = 16, MAX_THREADS = 256 };

/* ---- decoding ------------------------------------------------------------------------------------------------- */

static inline float half(const uint8_t *p) {
#ifdef __FLT16_MAX__
    _Float16 value;
    memcpy(&value, p, 2);
    return (float)value;
#else
    uint16_t bits;
    memcpy(&bits, p, 2);
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff, word;
    if (exponent == 31)
        word = sign | 0x7f800000 | fraction << 13;
    else if (exponent)
        word = sign | (exponent + 112) << 23 | fraction << 13;
    else {
        float tiny = (float)fraction * 0x1p-24f;
        memcpy(&word, &tiny, 4);
        word |= sign;
    }
    float value;
    memcpy(&value, &word, 4);
    return value;
#endif
}

static inline void q4_0(const uint8_t *b, float *out) {
    float d = half(b);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((b[2 + i] & 15) - 8);
        out[16 + i] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

static inline void q4_1(const uint8_t *b, float *out) {
    float d = half(b), m = half(b + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(b[4 + i] & 15) + m;
        out[16 + i] = d * (float)(b[4 + i] >> 4) + m;
    }
}

static inline void fifth(const uint8_t *high, const uint8_t *low, int *q) {
    uint32_t bits;
    memcpy(&bits, high, 4);
    for (int i = 0; i < 16; i++) {
        q[i] = (low[i] & 15) | (int)((bits >> i & 1) << 4);
        q[16 + i] = (low[i] >> 4) | (int)((bits >> (16 + i) & 1) << 4);
    }
}

static inline void q5_0(const uint8_t *b, float *out) {
    float d = half(b);
    int q[32];
    fifth(b + 2, b + 6, q);
    for (int i = 0; i < 32; i++) out[i] = d * (float)(q[i] - 16);
}

static inline void q5_1(const uint8_t *b, float *out) {
    float d = half(b), m = half(b + 2);
    int q[32];
    fifth(b + 4, b + 8, q);
    for (int i = 0; i < 32; i++) out[i] = d * (float)q[i] + m;
}

static inline void q8_0(const uint8_t *b, float *out) {
    float d = half(b);
    const int8_t *q = (const int8_t *)(b + 2);
    for (int i = 0; i < 32; i++) out[i] = d * (float)q[i];
}

static inline void q2_k(const uint8_t *b, float *out) {
    const uint8_t *scales = b, *q = b + 16;
    float d = half(b + 80), m = half(b + 82);
    for (int half_ = 0; half_ < 2; half_++)
        for (int j = 0; j < 4; j++)
            for (int part = 0; part < 2; part++) {
                uint8_t s = scales[8 * half_ + 2 * j + part];
                float scale = d * (float)(s & 15), low = m * (float)(s >> 4);
                const uint8_t *from = q + 32 * half_ + 16 * part;
                float *to = out + 128 * half_ + 32 * j + 16 * part;
                for (int i = 0; i < 16; i++) to[i] = scale * (float)(from[i] >> (2 * j) & 3) - low;
            }
}

static inline void q3_k(const uint8_t *b, float *out) {
    const uint8_t *high = b, *q = b + 32, *packed = b + 96;
    float d = half(b + 108);
    int8_t scales[16];
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
        scales[i] = (int8_t)((low | (packed[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32);
    }
    for (int half_ = 0; half_ < 2; half_++)
        for (int j = 0; j < 4; j++)
            for (int part = 0; part < 2; part++) {
                float scale = d * (float)scales[8 * half_ + 2 * j + part];
                const uint8_t *from = q + 32 * half_ + 16 * part, *bit = high + 16 * part;
                float *to = out + 128 * half_ + 32 * j + 16 * part;
                for (int i = 0; i < 16; i++) {
                    int value = (from[i] >> (2 * j) & 3) - ((bit[i] >> (4 * half_ + j) & 1) ? 0 : 4);
                    to[i] = scale * (float)value;
                }
            }
}

static inline void scale_and_minimum(const uint8_t *packed, int i, uint8_t *scale, uint8_t *minimum) {
    if (i < 4) {
        *scale = packed[i] & 63;
        *minimum = packed[i + 4] & 63;
    } else {
        *scale = (uint8_t)((packed[i + 4] & 15) | (packed[i - 4] >> 6) << 4);
        *minimum = (uint8_t)((packed[i + 4] >> 4) | (packed[i] >> 6) << 4);
    }
}

static inline void q4_k(const uint8_t *b, float *out) {
    float d = half(b), m = half(b + 2);
    const uint8_t *q = b + 16;
    for (int j = 0; j < 4; j++) {
        uint8_t s0, m0, s1, m1;
        scale_and_minimum(b + 4, 2 * j, &s0, &m0);
        scale_and_minimum(b + 4, 2 * j + 1, &s1, &m1);
        float d0 = d * (float)s0, l0 = m * (float)m0, d1 = d * (float)s1, l1 = m * (float)m1;
        for (int i = 0; i < 32; i++) {
            out[64 * j + i] = d0 * (float)(q[32 * j + i] & 15) - l0;
            out[64 * j + 32 + i] = d1 * (float)(q[32 * j + i] >> 4) - l1;
        }
    }
}

static inline void q5_k(const uint8_t *b, float *out) {
    float d = half(b), m = half(b + 2);
    const uint8_t *high = b + 16, *q = b + 48;
    for (int j = 0; j < 4; j++) {
        uint8_t s0, m0, s1, m1;
        scale_and_minimum(b + 4, 2 * j, &s0, &m0);
        scale_and_minimum(b + 4, 2 * j + 1, &s1, &m1);
        float d0 = d * (float)s0, l0 = m * (float)m0, d1 = d * (float)s1, l1 = m * (float)m1;
        for (int i = 0; i < 32; i++) {
            int low = (q[32 * j + i] & 15) + (high[i] >> (2 * j) & 1) * 16;
            int upper = (q[32 * j + i] >> 4) + (high[i] >> (2 * j + 1) & 1) * 16;
            out[64 * j + i] = d0 * (float)low - l0;
            out[64 * j + 32 + i] = d1 * (float)upper - l1;
        }
    }
}

static inline void q6_k(const uint8_t *b, float *out) {
    const int8_t *scales = (const int8_t *)(b + 192);
    float d = half(b + 208);
    for (int half_ = 0; half_ < 2; half_++) {
        const uint8_t *low = b + 64 * half_, *high = b + 128 + 32 * half_;
        for (int j = 0; j < 4; j++)
            for (int part = 0; part < 2; part++) {
                float scale = d * (float)scales[8 * half_ + 2 * j + part];
                const uint8_t *from = low + 32 * (j & 1) + 16 * part, *bits = high + 16 * part;
                float *to = out + 128 * half_ + 32 * j + 16 * part;
                int shift = j < 2 ? 0 : 4;
                for (int i = 0; i < 16; i++)
                    to[i] = scale * (float)(((from[i] >> shift & 15) | (bits[i] >> (2 * j) & 3) << 4) - 32);
            }
    }
}

static inline void f16(const uint8_t *b, float *out) {
    for (int i = 0; i < 32; i++) out[i] = half(b + 2 * i);
}

static inline void bf16(const uint8_t *b, float *out) {
    for (int i = 0; i < 32; i++) {
        uint16_t bits;
        memcpy(&bits, b + 2 * i, 2);
        uint32_t word = (uint32_t)bits << 16;
        memcpy(out + i, &word, 4);
    }
}

static inline void f32(const uint8_t *b, float *out) { memcpy(out, b, 128); }

/* ---- products ------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *w;
    const float *x;
    float *y;
    long ldx, ldy, m, n, k;
} job_t;

#define LOAD(p) (*(const v16 *)(p))

/* sums[m] += piece . x[m], for one row of x: two chains, since each addition waits for the one before. */
static inline void dot1(v16 *sums, const float *piece, const float *x, long width) {
    v16 even = sums[0], odd = {0};
    for (long i = 0; i < width; i += 32) {
        even += LOAD(piece + i) * LOAD(x + i);
        odd += LOAD(piece + i + 16) * LOAD(x + i + 16);
    }
    sums[0] = even + odd;
}

/* The same for four rows of x and two pieces: eight chains, six loads for eight products. */
static inline void dot4x2(v16 *a, v16 *b, const float *pa, const float *pb, const float *x, long ldx, long width) {
    v16 a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3], b0 = b[0], b1 = b[1], b2 = b[2], b3 = b[3];
    for (long i = 0; i < width; i += 16) {
        v16 wa = LOAD(pa + i), wb = LOAD(pb + i);
        v16 x0 = LOAD(x + i), x1 = LOAD(x + ldx + i), x2 = LOAD(x + 2 * ldx + i), x3 = LOAD(x + 3 * ldx + i);
        a0 += wa * x0, a1 += wa * x1, a2 += wa * x2, a3 += wa * x3;
        b0 += wb * x0, b1 += wb * x1, b2 += wb * x2, b3 += wb * x3;
    }
    a[0] = a0, a[1] = a1, a[2] = a2, a[3] = a3, b[0] = b0, b[1] = b1, b[2] = b2, b[3] = b3;
}

static inline float total(v16 sum) {
    float parts[16];
    memcpy(parts, &sum, sizeof parts);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) parts[i] += parts[i + width];
    return parts[0];
}

static inline void products(const job_t *job, long k, long width, int rows, float pieces[2][PIECE],
                            v16 sums[2][MAX_ROWS]) {
    const float *x = job->x + k;
    long m = 0;
    if (rows == 2)
        for (; m + 4 <= job->m; m += 4)
            dot4x2(sums[0] + m, sums[1] + m, pieces[0], pieces[1], x + m * job->ldx, job->ldx, width);
    for (; m < job->m; m++)
        for (int r = 0; r < rows; r++) dot1(sums[r] + m, pieces[r], x + m * job->ldx, width);
}

/* Rows first..last of a weight in one encoding of SIZE elements and BYTES a block: their products with x, and (below)
   their plain decoding. */
#define ENCODING(NAME, SIZE, BYTES)                                                                                    \
    static void rows_##NAME(const job_t *job, long first, long last) {                                                 \
        float pieces[2][PIECE] __attribute__((aligned(64)));                                                           \
        v16 sums[2][MAX_ROWS];                                                                                         \
        long row_bytes = job->k / SIZE * BYTES;                                                                        \
        for (long n = first; n < last; n += 2) {                                                                       \
            int rows = last - n < 2 ? 1 : 2;                                                                           \
            const uint8_t *blocks[2] = {job->w + n * row_bytes, job->w + (n + 1) * row_bytes};                         \
            for (int r = 0; r < rows; r++)                                                                             \
                for (long m = 0; m < job->m; m++) sums[r][m] = (v16){0};                                               \
            for (long k = 0; k < job->k; k += PIECE) {                                                                 \
                long width = job->k - k < PIECE ? job->k - k : PIECE;                                                  \
                for (int r = 0; r < rows; r++)                                                                         \
                    for (long i = 0; i < width; i += SIZE, blocks[r] += BYTES) NAME(blocks[r], pieces[r] + i);         \
                products(job, k, width, rows, pieces, sums);                                                           \
            }                                                                                                          \
            for (int r = 0; r < rows; r++)                                                                             \
                for (long m = 0; m < job->m; m++) job->y[m * job->ldy + n + r] = total(sums[r][m]);                    \
        }                                                                                                              \
    }                                                                                                                  \
    static void decode_##NAME(const job_t *job, long first, long last) {                                               \
        const uint8_t *block = job->w + first * (job->k / SIZE * BYTES);                                               \
        float *out = job->y + first * job->ldy;                                                                        \
        for (long n = first; n < last; n++, out += job->ldy)                                                           \
            for (long k = 0; k < job->k; k += SIZE, block += BYTES) NAME(block, out + k);                              \
    }

ENCODING(q4_0, 32, 18)
ENCODING(q4_1, 32, 20)
ENCODING(q5_0, 32, 22)
ENCODING(q5_1, 32, 24)
ENCODING(q8_0, 32, 34)
ENCODING(q2_k, 256, 84)
ENCODING(q3_k, 256, 110)
ENCODING(q4_k, 256, 144)
ENCODING(q5_k, 256, 176)
ENCODING(q6_k, 256, 210)
ENCODING(f16, 32, 64)
ENCODING(bf16, 32, 64)
ENCODING(f32, 32, 128)

typedef void (*kernel_t)(const job_t *, long, long);

/* The order is that of ENCODINGS in library.py. */
static const kernel_t MULTIPLY[] = {rows_q4_0, rows_q4_1, rows_q5_0, rows_q5_1, rows_q8_0, rows_q2_k, rows_q3_k,
                                    rows_q4_k, rows_q5_k, rows_q6_k, rows_f16,  rows_bf16, rows_f32};
static const kernel_t DECODE[] = {decode_q4_0, decode_q4_1, decode_q5_0, decode_q5_1, decode_q8_0,
                                  decode_q2_k, decode_q3_k, decode_q4_k, decode_q5_k, decode_q6_k,
                                  decode_f16,  decode_bf16, decode_f32};

/* ---- threads -------------------------------------------------------------------------------------------------- */

/* One job at a time. Rows are claimed from `state`, a job number, the rows in all and the next row in one word: a claim
   succeeds only while the job has rows left, and the job cannot end before all claimed rows are done, so whoever holds
   a claim may read the job. A worker that the system has put aside delays nobody: the others take its rows. Workers
   spin for a moment after each job, since a decode step brings the next within microseconds, then sleep. */

enum { ROWS_AT_ONCE = 16, ROW_BITS = 24 };
static const uint64_t ROW_MASK = (1u << ROW_BITS) - 1;
static const int SPINS = 4000;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_ullong state;
    atomic_long done;
    atomic_int sleeping;
    int threads;
    job_t job;
    kernel_t kernel;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .threads = 1};

static inline void pause_(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static inline int rows_left(uint64_t state) { return (state & ROW_MASK) < (state >> ROW_BITS & ROW_MASK); }

/* Run claimed rows until the job has none left. */
static void take_rows(void) {
    unsigned long long state = atomic_load_explicit(&pool.state, memory_order_acquire);
    while (rows_left(state)) {
        long first = (long)(state & ROW_MASK), n = (long)(state >> ROW_BITS & ROW_MASK);
        long last = first + ROWS_AT_ONCE < n ? first + ROWS_AT_ONCE : n;
        if (!atomic_compare_exchange_weak_explicit(&pool.state, &state, state + (uint64_t)(last - first),
                                                   memory_order_acquire, memory_order_acquire))
            continue;
        pool.kernel(&pool.job, first, last);
        atomic_fetch_add_explicit(&pool.done, last - first, memory_order_release);
        state = atomic_load_explicit(&pool.state, memory_order_acquire);
    }
}

static void *worker(void *unused) {
    (void)unused;
    for (;;) {
        for (int spins = 0; !rows_left(atomic_load_explicit(&pool.state, memory_order_acquire)); spins++) {
            if (spins < SPINS) {
                pause_();
                continue;
            }
            pthread_mutex_lock(&pool.lock);
            atomic_fetch_add(&pool.sleeping, 1);
            while (!rows_left(atomic_load(&pool.state))) pthread_cond_wait(&pool.wake, &pool.lock);
            atomic_fetch_sub(&pool.sleeping, 1);
            pthread_mutex_unlock(&pool.lock);
        }
        take_rows();
    }
    return NULL;
}

/* Start the workers, once; the caller is one of the threads. Returns how many threads there are. */
int poot_threads(int threads) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (pthread_t thread; pool.threads < threads && pool.threads < MAX_THREADS; pool.threads++)
        if (pthread_create(&thread, &attributes, worker, NULL)) break;
    pthread_attr_destroy(&attributes);
    return pool.threads;
}

static void run(kernel_t kernel, job_t job) {
    if (pool.threads == 1 || job.n < 2 * ROWS_AT_ONCE) {
        kernel(&job, 0, job.n);
        return;
    }
    uint64_t number = atomic_load_explicit(&pool.state, memory_order_relaxed) >> 2 * ROW_BITS;
    pool.job = job;
    pool.kernel = kernel;
    atomic_store_explicit(&pool.done, 0, memory_order_relaxed);
    atomic_store(&pool.state, (number + 1) << 2 * ROW_BITS | (uint64_t)job.n << ROW_BITS);
    if (atomic_load(&pool.sleeping)) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    take_rows();
    for (int spins = 0; atomic_load_explicit(&pool.done, memory_order_acquire) != job.n; spins++)
        spins < SPINS ? pause_() : (void)sched_yield();
}

/* y = x w^T; m at most 16, n below 2^24, k a multiple of 32 and of the encoding's block. One caller at a time. */
void poot_matmul(int encoding, const void *w, const float *x, long ldx, float *y, long ldy, long m, long n, long k) {
    run(MULTIPLY[encoding], (job_t){w, x, y, ldx, ldy, m, n, k});
}

/* Rows of w as float32, ldy elements apart. The same bounds. */
void poot_decode(int encoding, const void *w, float *y, long ldy, long n, long k) {
    run(DECODE[encoding], (job_t){w, NULL, y, 0, ldy, 0, n, k});
}
