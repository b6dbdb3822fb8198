/* Products of float32 activations with weights in their checkpoint's own encoding.

   y[m][n] = sum_k x[m][k] * w[n][k], w a row-major matrix of N rows of K elements. Rows are decoded in pieces of up to
   256 elements, which stay in the first-level cache while every row of x is multiplied with them: memory is read once,
   packed, whatever M is. Block layouts: ggml-common.h of llama.cpp. Each row is summed by one thread in a fixed order,
   so results do not depend on the number of threads. */

#include <stddef.h>
#include <string.h>

#include "native.h"

typedef uint8_t u8x16 __attribute__((vector_size(16), aligned(1)));

enum { PIECE = 256, MAX_ROWS = 16, ROWS_AT_ONCE = 16 };

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

static inline u8x16 bytes(const uint8_t *p) { return *(const u8x16 *)p; }

static inline v16 floats(v16i q) { return __builtin_convertvector(q, v16); }

static inline v16i widen(u8x16 q) { return __builtin_convertvector(q, v16i); }

/* 32 numbers of five bits, the fifth ones packed apart: d * (q - zero) + m. */
static inline void five_bits(const uint8_t *high, const uint8_t *low, float d, float m, int zero, float *out) {
    const v16i lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int32_t packed;
    memcpy(&packed, high, 4);
    v16i bits = (v16i){0} + packed;
    v16i first = widen(bytes(low) & 15) | (bits >> lanes & 1) << 4;
    v16i second = widen(bytes(low) >> 4) | (bits >> (lanes + 16) & 1) << 4;
    STORE(out, d * floats(first - zero) + m);
    STORE(out + 16, d * floats(second - zero) + m);
}

static inline void q5_0(const uint8_t *b, float *out) { five_bits(b + 2, b + 6, half(b), 0.0f, 16, out); }

static inline void q5_1(const uint8_t *b, float *out) { five_bits(b + 4, b + 8, half(b), half(b + 2), 0, out); }

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
        for (int part = 0; part < 2; part++) {
            u8x16 two = bytes(q + 32 * half_ + 16 * part), bit = bytes(high + 16 * part) >> (4 * half_);
            const int8_t *scale = scales + 8 * half_ + part;
            float *to = out + 128 * half_ + 16 * part;
            STORE(to, d * (float)scale[0] * floats(widen((two & 3) | (bit & 1) << 2) - 4));
            STORE(to + 32, d * (float)scale[2] * floats(widen((two >> 2 & 3) | (bit & 2) << 1) - 4));
            STORE(to + 64, d * (float)scale[4] * floats(widen((two >> 4 & 3) | (bit & 4)) - 4));
            STORE(to + 96, d * (float)scale[6] * floats(widen((two >> 6) | (bit & 8) >> 1) - 4));
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
    for (int half_ = 0; half_ < 2; half_++)
        for (int part = 0; part < 2; part++) {
            u8x16 low = bytes(b + 64 * half_ + 16 * part), next = bytes(b + 64 * half_ + 32 + 16 * part);
            u8x16 high = bytes(b + 128 + 32 * half_ + 16 * part);
            const int8_t *scale = scales + 8 * half_ + part;
            float *to = out + 128 * half_ + 16 * part;
            STORE(to, d * (float)scale[0] * floats(widen((low & 15) | (high & 3) << 4) - 32));
            STORE(to + 32, d * (float)scale[2] * floats(widen((next & 15) | (high & 12) << 2) - 32));
            STORE(to + 64, d * (float)scale[4] * floats(widen((low >> 4) | (high & 48)) - 32));
            STORE(to + 96, d * (float)scale[6] * floats(widen((next >> 4) | (high & 192) >> 2) - 32));
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

/* Not inlined: the compiler would keep all sums in registers that it does not have. */
__attribute__((noinline)) static void products(const job_t *job, long k, long width, int rows, float pieces[2][PIECE],
                                               v16 sums[2][MAX_ROWS]) {
    const float *x = job->x + k;
    long m = 0;
    if (rows == 2)
        for (; m + 4 <= job->m; m += 4)
            dot4x2(sums[0] + m, sums[1] + m, pieces[0], pieces[1], x + m * job->ldx, job->ldx, width);
    for (; m < job->m; m++)
        for (int r = 0; r < rows; r++) dot1(sums[r] + m, pieces[r], x + m * job->ldx, width);
}

/* Rows first..last of a weight in one encoding of SIZE elements and BYTES a block: their products with one row of x, where
   short blocks never leave the registers; with more rows; and their plain decoding. */
#define ENCODING(NAME, SIZE, BYTES)                                                                                    \
    static void row_##NAME(const job_t *job, long first, long last) {                                                  \
        const uint8_t *block = job->w + first * (job->k / SIZE * BYTES);                                               \
        for (long n = first; n < last; n++) {                                                                          \
            v16 sums[4] = {{0}, {0}, {0}, {0}};                                                                        \
            for (long k = 0; k < job->k; k += SIZE, block += BYTES) {                                                  \
                float piece[SIZE] __attribute__((aligned(64)));                                                        \
                NAME(block, piece);                                                                                    \
                for (int i = 0; i < SIZE / 16; i++) sums[i & 3] += LOAD(piece + 16 * i) * LOAD(job->x + k + 16 * i);   \
            }                                                                                                          \
            job->y[n] = total(sums[0] + sums[1] + sums[2] + sums[3]);                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    static void rows_##NAME(const void *given, long first, long last) {                                                \
        const job_t *job = given;                                                                                      \
        if (job->m == 1) {                                                                                             \
            row_##NAME(job, first, last);                                                                              \
            return;                                                                                                    \
        }                                                                                                              \
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
    static void decode_##NAME(const void *given, long first, long last) {                                              \
        const job_t *job = given;                                                                                      \
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

/* The order is that of ENCODINGS in library.py. */
static const kernel_t MULTIPLY[] = {rows_q4_0, rows_q4_1, rows_q5_0, rows_q5_1, rows_q8_0, rows_q2_k, rows_q3_k,
                                    rows_q4_k, rows_q5_k, rows_q6_k, rows_f16,  rows_bf16, rows_f32};
static const kernel_t DECODE[] = {decode_q4_0, decode_q4_1, decode_q5_0, decode_q5_1, decode_q8_0,
                                  decode_q2_k, decode_q3_k, decode_q4_k, decode_q5_k, decode_q6_k,
                                  decode_f16,  decode_bf16, decode_f32};

/* y = x w^T; m at most 16, n below 2^24, k a multiple of 32 and of the encoding's block. One caller at a time. */
void poot_matmul(int encoding, const void *w, const float *x, long ldx, float *y, long ldy, long m, long n, long k) {
    job_t job = {w, x, y, ldx, ldy, m, n, k};
    poot_run(MULTIPLY[encoding], &job, n, poot_grain(n, ROWS_AT_ONCE));
}

/* Rows of w as float32, ldy elements apart. The same bounds. */
void poot_decode(int encoding, const void *w, float *y, long ldy, long n, long k) {
    job_t job = {w, NULL, y, 0, ldy, 0, n, k};
    poot_run(DECODE[encoding], &job, n, poot_grain(n, ROWS_AT_ONCE));
}
