/* What a decode step does between its products: norms, and attention of one query a row. Through torch each would cost
   more in calls than in work. */

#include <math.h>
#include <stddef.h>

#include "native.h"

/* ---- norms ---------------------------------------------------------------------------------------------------- */

static inline float squares(const float *x, long width) {
    v16 sum = {0};
    long i = 0;
    for (; i + 16 <= width; i += 16) sum += LOAD(x + i) * LOAD(x + i);
    float rest = total(sum);
    for (; i < width; i++) rest += x[i] * x[i];
    return rest;
}

/* out = (x + residual) / rms * (weight + offset), row by row; sum = x + residual is kept when there is a residual. Strides are in
   elements; rows of out, residual and sum are dense. */
void poot_rms_norm(const float *x, long ldx, const float *residual, const float *weight, float offset, float eps,
                   float *out, float *sum, long rows, long width) {
    for (long r = 0; r < rows; r++, x += ldx, out += width) {
        const float *row = x;
        if (residual) {
            for (long i = 0; i < width; i++) sum[i] = x[i] + residual[i];
            row = sum, sum += width, residual += width;
        }
        float scale = 1.0f / sqrtf(squares(row, width) / (float)width + eps);
        for (long i = 0; i < width; i++) out[i] = row[i] * scale * (weight[i] + offset);
    }
}

/* ---- attention ------------------------------------------------------------------------------------------------ */

/* a where the mask is set, else b. */
static inline v16 choose(v16i mask, v16 a, v16 b) { return (v16)((mask & (v16i)a) | (~mask & (v16i)b)); }

/* e^x for x <= 0 (Cephes' polynomial; relative error about 1e-7). */
static inline v16 exp16(v16 x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    x = choose(x < -87.0f, (v16){0} - 87.0f, x);
    v16 shifted = x * 1.44269504088896341f + magic, n = shifted - magic;
    v16 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    v16 p = ((((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r +
             1.6666665459e-1f) * r + 5.0000001201e-1f;
    v16 value = p * r * r + r + 1.0f;
    v16i exponent = (v16i)shifted << 23;
    return (v16)((v16i)value + exponent);
}

typedef struct {
    const float *q, *k, *v;
    float *out, *scores;
    const int64_t *slots; /* NULL: consecutive slots from k and v on */
    long length, share, kv_heads, dim;
    float scale, softcap;
} attention_t;

static inline const float *at(const attention_t *job, const float *pool, long head, long position) {
    long slot = job->slots ? (long)job->slots[position] : position;
    return pool + (slot * job->kv_heads + head) * job->dim;
}

static void softmax(float *scores, long length, float softcap) {
    float most = -INFINITY, sum = 0;
    if (softcap > 0)
        for (long i = 0; i < length; i++) scores[i] = softcap * tanhf(scores[i] / softcap);
    for (long i = 0; i < length; i++) most = scores[i] > most ? scores[i] : most;
    long i = 0;
    v16 sums = {0};
    for (; i + 16 <= length; i += 16) {
        v16 weight = exp16(LOAD(scores + i) - most);
        STORE(scores + i, weight);
        sums += weight;
    }
    for (; i < length; i++) sum += scores[i] = expf(scores[i] - most);
    sum += total(sums);
    for (i = 0; i < length; i++) scores[i] /= sum;
}

/* Scores of S queries that share a KV head; S is a constant wherever this is inlined, so sums stay in registers. */
__attribute__((always_inline)) static inline void score(const attention_t *job, const float *q, float *scores,
                                                        long head, const int S) {
    long dim = job->dim, length = job->length;
    for (long p = 0; p < length; p++) {
        const float *key = at(job, job->k, head, p);
        v16 sums[S];
        for (int s = 0; s < S; s++) sums[s] = (v16){0};
        for (long i = 0; i < dim; i += 16) {
            v16 part = LOAD(key + i);
            for (int s = 0; s < S; s++) sums[s] += LOAD(q + s * dim + i) * part;
        }
        for (int s = 0; s < S; s++) scores[s * length + p] = job->scale * total(sums[s]);
    }
}

/* Their weighted sums of values, 64 columns at a time (the last columns of other head sizes 16 at a time). */
__attribute__((always_inline)) static inline void combine(const attention_t *job, const float *weights, float *out,
                                                          long head, const int S, long from, const int PARTS) {
    long length = job->length;
    v16 sums[S][PARTS];
    for (int s = 0; s < S; s++)
        for (int i = 0; i < PARTS; i++) sums[s][i] = (v16){0};
    for (long p = 0; p < length; p++) {
        const float *value = at(job, job->v, head, p) + from;
        for (int i = 0; i < PARTS; i++) {
            v16 part = LOAD(value + 16 * i);
            for (int s = 0; s < S; s++) sums[s][i] += weights[s * length + p] * part;
        }
    }
    for (int s = 0; s < S; s++)
        for (int i = 0; i < PARTS; i++) STORE(out + s * job->dim + from + 16 * i, sums[s][i]);
}

__attribute__((always_inline)) static inline void attend_some(const attention_t *job, long head, long query,
                                                              const int S) {
    long first = head * job->share + query;
    float *scores = job->scores + first * job->length, *out = job->out + first * job->dim;
    score(job, job->q + first * job->dim, scores, head, S);
    for (int s = 0; s < S; s++) softmax(scores + s * job->length, job->length, job->softcap);
    long from = 0;
    for (; from + 64 <= job->dim; from += 64) combine(job, scores, out, head, S, from, 4);
    for (; from < job->dim; from += 16) combine(job, scores, out, head, S, from, 1);
}

/* KV heads first..last of one query: each with its `share` query heads, at most four at a time. */
static void attend(const void *given, long first, long last) {
    const attention_t *job = given;
    for (long head = first; head < last; head++)
        for (long query = 0; query < job->share; query += 4) switch (job->share - query) {
                case 1: attend_some(job, head, query, 1); break;
                case 2: attend_some(job, head, query, 2); break;
                case 3: attend_some(job, head, query, 3); break;
                default: attend_some(job, head, query, 4);
            }
}

/* One query over `length` keys and values: q and out (kv_heads * share, dim), k and v with (kv_heads, dim) a slot,
   scores room for kv_heads * share * length; dim a multiple of 16. softcap 0 is none. One caller at a time. */
void poot_attend(const float *q, const float *k, const float *v, float *out, float *scores, const int64_t *slots,
                 long length, long share, long kv_heads, long dim, float scale, float softcap) {
    attention_t job = {q, k, v, out, scores, slots, length, share, kv_heads, dim, scale, softcap};
    /* Handing heads to other threads costs some microseconds. */
    poot_run(attend, &job, kv_heads, length * share * dim > 16384 ? 1 : kv_heads);
}

/* ---- activations and rotation --------------------------------------------------------------------------------- */

/* 1 / (1 + e^-x). */
static inline v16 sigmoid16(v16 x) {
    v16 one = (v16){0} + 1.0f, e = exp16(choose(x < 0, x, -x));
    return choose(x < 0, e, one) / (one + e);
}

/* activation(gate) * up over rows of [gate | up]; width is that of each half and a multiple of 16. kind 0 is SiLU,
   1 is GELU by its tanh form, which is x sigmoid(2 u) with u the tanh's argument. */
void poot_gated(const float *x, long ldx, float *out, long rows, long width, int kind) {
    for (long r = 0; r < rows; r++, x += ldx, out += width)
        for (long i = 0; i < width; i += 16) {
            v16 gate = LOAD(x + i), u = gate;
            if (kind) u = 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate);
            STORE(out + i, gate * sigmoid16(u) * LOAD(x + width + i));
        }
}

typedef struct {
    const float *q, *k, *v, *table, *norms;
    const int32_t *slots;
    float *out, *k_pool, *v_pool;
    long ldq, ldk, ldv, heads, kv_heads, width, dim;
    float offset, eps;
    int interleaved;
} rotary_t;

/* One head: normed if NORM, rotated, into out. NORM and step are constants wherever this is inlined. */
__attribute__((always_inline)) static inline void turn(const rotary_t *job, const float *restrict x,
                                                       const float *restrict table, const float *restrict weight,
                                                       float *restrict out, const int NORM, long step, long apart) {
    long half = job->dim / 2;
    float offset = job->offset, scale = 1.0f;
    if (NORM) scale /= sqrtf(squares(x, job->width) / (float)job->width + job->eps);
    for (long i = 0; i < half; i++) {
        float a = x[i * step], b = x[i * step + apart], c = table[i], s = table[half + i];
        if (NORM) {
            a *= scale * (weight[i * step] + offset);
            b *= scale * (weight[i * step + apart] + offset);
        }
        out[i * step] = a * c - b * s;
        out[i * step + apart] = b * c + a * s;
    }
    for (long i = job->dim; i < job->width; i++) out[i] = NORM ? x[i] * scale * (weight[i] + offset) : x[i];
}

static void turn_heads(const rotary_t *job, const float *x, const float *table, const float *weight, float *out,
                       long heads) {
    long half = job->dim / 2;
    for (long h = 0; h < heads; h++, x += job->width, out += job->width)
        if (job->interleaved)
            weight ? turn(job, x, table, weight, out, 1, 2, 1) : turn(job, x, table, weight, out, 0, 2, 1);
        else
            weight ? turn(job, x, table, weight, out, 1, 1, half) : turn(job, x, table, weight, out, 0, 1, half);
}

static void rotary_rows(const void *given, long first, long last) {
    const rotary_t *job = given;
    const float *k_norm = job->norms ? job->norms + job->width : NULL;
    long kv_width = job->kv_heads * job->width;
    for (long r = first; r < last; r++) {
        const float *table = job->table + r * job->dim;
        long at = job->slots[r] * kv_width;
        turn_heads(job, job->q + r * job->ldq, table, job->norms, job->out + r * job->heads * job->width, job->heads);
        turn_heads(job, job->k + r * job->ldk, table, k_norm, job->k_pool + at, job->kv_heads);
        memcpy(job->v_pool + at, job->v + r * job->ldv, (size_t)kv_width * sizeof(float));
    }
}

/* For each row: `heads` heads of q, rotated, to out; `kv_heads` of k, rotated, and of v, as they are, to the row's slot
   of the pools; no two rows have the same slot. Heads have `width` columns, of which the first `dim` are rotated, in
   pairs (i, i + dim/2), or (2 i, 2 i + 1) when `interleaved`; a row of the table is `dim`/2 cosines and as many sines.
   Where there are norms (the weights for q, then those for k), heads of q and k are first divided by their root mean
   square. q, k and v have pitches, all else is dense. One caller at a time. */
void poot_rotary_kv_write(const float *q, long ldq, const float *k, long ldk, const float *v, long ldv,
                          const float *table, const int32_t *slots, const float *norms, float offset, float eps,
                          float *out, float *k_pool, float *v_pool, long rows, long heads, long kv_heads, long width,
                          long dim, int interleaved) {
    rotary_t job = {q,   k,   v,     table,    norms, slots, out,    k_pool, v_pool,     ldq,
                    ldk, ldv, heads, kv_heads, width, dim,   offset, eps,    interleaved};
    /* Handing rows to other threads costs some microseconds, which some hundred thousand columns are worth. */
    poot_run(rotary_rows, &job, rows, poot_grain(rows, 1 + 262144 / ((heads + 2 * kv_heads) * width)));
}
