// Paged attention of prompts on Hopper: matrices of 128 (query, head) pairs, whose heads share a KV head.
//
// Units are (item of the plan, KV head). Two warpgroups have 64 rows each: while one computes weights from scores, the
// other multiplies. A third copies keys and values, 128 at a time. The scores of the next keys are under way together
// with the product of weights and values.
//
// Macros: HEADS, KV_HEADS, DIM (64 or 128), TILE (queries of an item), PAGE (keys of a page), WINDOW (0: none), CAPPED,
// SINKS, SPLITS (most parts of an item), STAGES, PDL.
#define THREADS 256
#define COPIERS 128
constexpr int KEYS = 128, SHARE = HEADS / KV_HEADS;
constexpr int KEY_BYTES = KEYS * DIM * 2, STAGE = 2 * KEY_BYTES;
constexpr int HALF = KEYS * 128;  // bytes of a tile of 64 elements of each key
#include "slots.cuh"

constexpr float LOG2E = 1.4426950408889634f;
#define NEVER __int_as_float(0xFF800000)
// A block is launched with 168 registers a thread, and those that copiers leave go to the others.
constexpr int COPIER_REGISTERS = 40, REGISTERS = 232;

struct Item {
  int row, start, queries, position, begin, end, split, splits;
};

__device__ __forceinline__ Item load_item(const int* plan, int index) {
  const int4* entry = reinterpret_cast<const int4*>(plan + (1 + index) * 8);
  int4 one = entry[0], two = entry[1];
  return {one.x, one.y, one.z, one.w, two.x, two.y, two.z, two.w};
}

// The unit of a turn. Later items of a prompt have more keys, so blocks take units to and fro.
__device__ __forceinline__ int unit_of(int turn) {
  return turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

__device__ __forceinline__ void copy_units(Slots slots, const unsigned char* k_pool, const unsigned char* v_pool,
                                           const int* plan, const int* table, int table_pitch, int units) {
  constexpr int CHUNKS = DIM / 8, ROWS = 32 / CHUNKS, TURN = 4 * ROWS, TURNS = KEYS / TURN;
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * ROWS, chunk = lane % CHUNKS;
  long long done = 0;
  for (int turn = 0; unit_of(turn) < units || turn * static_cast<int>(gridDim.x) < units; turn++) {
    const int unit = unit_of(turn), head = unit % KV_HEADS;
    if (unit >= units) continue;
    const Item item = load_item(plan, unit / KV_HEADS);
    const int* pages = table + static_cast<long long>(item.row) * table_pitch;
    for (int base = item.begin; base < item.end; base += KEYS, done++) {
      // A lane looks up one of its warp's 32 keys.
      const int key = base + first + lane % ROWS + lane / ROWS * TURN;
      int page = key / PAGE;
      if (WINDOW) page %= table_pitch;
      const int slot = key < item.end ? pages[page] * PAGE + key % PAGE : 0;
      if (done >= STAGES) barrier_wait(slots.empty(), slots.parity ^ 1);
      unsigned char* stage = slots.stage();
#pragma unroll 4
      for (int i = 0; i < TURNS; i++) {
        const int within = first + lane / CHUNKS + i * TURN;
        const long long from = __shfl_sync(0xFFFFFFFFu, slot, i * ROWS + lane / CHUNKS);
        const long long at = ((from * KV_HEADS + head) * DIM + chunk * 8) * 2;
        unsigned char* to = stage + chunk / 8 * HALF + within * 128 + (chunk % 8 ^ within % 8) * 16;
        const bool there = base + within < item.end;
        copy_async<16>(to, k_pool + at, there);
        copy_async<16>(to + KEY_BYTES, v_pool + at, there);
      }
      barrier_arrive_copied(slots.full());
      slots.next();
    }
  }
  copy_commit();
  copy_wait<0>();
}

// A thread's two rows of the matrix, eight apart, and their running softmax. Scores times `unit` are exponents of two.
struct Rows {
  int query[2], head[2], upper[2], lower[2];
  bool inside[2];
  float most[2], total[2];
};

__device__ __forceinline__ float quad_most(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 2));
}

__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFu, value, 1);
  return value + __shfl_xor_sync(0xFFFFFFFFu, value, 2);
}

// One turn of the softmax over scores of keys from `base` on: to weights, as operands; what came before fades.
__device__ __forceinline__ void soften(float (&scores)[KEYS / 2], unsigned (&weights)[KEYS / 16][4], Rows& rows,
                                       float (&sums)[DIM / 2], int base, bool masked, float scale, float softcap,
                                       float unit) {
  const int t = threadIdx.x % 4;
  if (CAPPED) {
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++)
      scores[i] = softcap - 2.f * softcap / (1.f + __expf(2.f * scores[i] * scale / softcap));
  }
  if (masked) {
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
      const int key = base + i / 4 * 8 + 2 * t + i % 2, half = i / 2 % 2;
      if (key >= rows.upper[half] || (WINDOW && key < rows.lower[half])) scores[i] = NEVER;
    }
  }
  float least[2], fade[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float peak = NEVER;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++)
      peak = fmaxf(peak, fmaxf(scores[4 * i + 2 * half], scores[4 * i + 2 * half + 1]));
    peak = fmaxf(rows.most[half], quad_most(peak));
    const float safe = peak == NEVER ? 0.f : peak;
    fade[half] = power_of_two((rows.most[half] - safe) * unit);
    least[half] = safe * unit;
    rows.most[half] = peak;
    rows.total[half] *= fade[half];
  }
#pragma unroll
  for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float one = power_of_two(scores[4 * i + 2 * half] * unit - least[half]);
      float two = power_of_two(scores[4 * i + 2 * half + 1] * unit - least[half]);
      rows.total[half] += one + two;
      weights[i / 2][i % 2 * 2 + half] = pair_bf16(one, two);
    }
#pragma unroll
  for (int i = 0; i < DIM / 2; i++) sums[i] *= fade[i / 2 % 2];
}

__device__ __forceinline__ void score(float (&scores)[KEYS / 2], const unsigned (&queries)[DIM / 16][4],
                                      const unsigned char* keys) {
#pragma unroll
  for (int i = 0; i < KEYS / 2; i++) scores[i] = 0.f;
  multiply_fence();
#pragma unroll
  for (int i = 0; i < DIM / 16; i++) multiply_async(scores, queries[i], keys + i / 4 * HALF, i % 4);
  multiply_commit();
}

// Add up the parts of an item's rows, in their order, a warp a row.
__device__ __forceinline__ void merge(unsigned short* out, const float* parts, const Item& item, int head) {
  const int lane = threadIdx.x % 32;
  for (int line = threadIdx.x / 32; line < item.queries * SHARE; line += THREADS / 32) {
    const long long target =
        static_cast<long long>(item.start + line / SHARE) * HEADS + head * SHARE + line % SHARE;
    float most = NEVER, total = 0.f, sums[DIM / 32] = {};
    for (int i = 0; i < item.splits; i++) {
      const float* part = parts + (target * SPLITS + i) * (DIM + 2);
      const float peak = load_fresh(part + DIM), weight = load_fresh(part + DIM + 1);
      const float next = fmaxf(most, peak), safe = next == NEVER ? 0.f : next;
      const float share = __expf(peak - safe), fade = __expf(most - safe);
      total = total * fade + weight * share;
#pragma unroll
      for (int j = 0; j < DIM / 32; j++) sums[j] = sums[j] * fade + load_fresh(part + j * 32 + lane) * share;
      most = next;
    }
#pragma unroll
    for (int j = 0; j < DIM / 32; j++)
      out[target * DIM + j * 32 + lane] = to_bf16(sums[j] / (total == 0.f ? 1.f : total));
  }
}

// Write an item's result. Of one that was cut it is a part, and the last block to come adds up all parts.
__device__ __forceinline__ void finish(const Rows& rows, const float (&sums)[DIM / 2], const Item& item, int head,
                                       float unit, unsigned short* out, float* parts, int* locks, int* last) {
  const int t = threadIdx.x % 4;
  const bool whole = SPLITS == 1 || item.splits == 1;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float total = quad_sum(rows.total[half]);
    if (!rows.inside[half]) continue;
    const long long target = static_cast<long long>(item.start + rows.query[half]) * HEADS + rows.head[half];
    if (whole) {
      const float by = 1.f / (total == 0.f ? 1.f : total);
#pragma unroll
      for (int j = 0; j < DIM / 8; j++)
        *reinterpret_cast<unsigned*>(out + target * DIM + j * 8 + 2 * t) =
            pair_bf16(sums[4 * j + 2 * half] * by, sums[4 * j + 2 * half + 1] * by);
    } else {
      // DIM sums, then the greatest score and the sum of weights.
      float* part = parts + (target * SPLITS + item.split) * (DIM + 2);
#pragma unroll
      for (int j = 0; j < DIM / 8; j++) {
        part[j * 8 + 2 * t] = sums[4 * j + 2 * half];
        part[j * 8 + 2 * t + 1] = sums[4 * j + 2 * half + 1];
      }
      if (t == 0) part[DIM] = rows.most[half] * (unit / LOG2E), part[DIM + 1] = total;
    }
  }
  if (whole) return;
  __threadfence();
  sync_first<THREADS>();
  if (threadIdx.x == 0) {
    int* lock = locks + item.start * KV_HEADS + head;
    *last = add_acq_rel(lock, 1) == item.splits - 1;
    if (*last) *lock = 0;
  }
  sync_first<THREADS>();
  __threadfence();
  const bool mine = *last;
  sync_first<THREADS>();
  if (mine) merge(out, parts, item, head);
}

__device__ __forceinline__ void attend_units(Slots slots, const unsigned short* q, const int* plan, const float* sinks,
                                             unsigned short* out, float* parts, int* locks, int* last, int units,
                                             int q_pitch, int q_head, float scale, float softcap) {
  const int lane = threadIdx.x % 32, t = lane % 4, first = threadIdx.x / 32 * 16 + lane / 4;
  const float unit = CAPPED ? LOG2E : scale * LOG2E;
  for (int turn = 0; unit_of(turn) < units || turn * static_cast<int>(gridDim.x) < units; turn++) {
    const int index = unit_of(turn), head = index % KV_HEADS;
    if (index >= units) continue;
    const Item item = load_item(plan, index / KV_HEADS);
    Rows rows;
    unsigned queries[DIM / 16][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int line = first + half * 8, query = line / SHARE;
      rows.query[half] = query;
      rows.head[half] = head * SHARE + line % SHARE;
      rows.inside[half] = query < item.queries && line < TILE * SHARE;
      rows.upper[half] = min(item.position + query + 1, item.end);
      rows.lower[half] = max(item.position + query - WINDOW + 1, item.begin);
      // A sink is a key without a value, which the first part has seen before its own.
      const bool sunk = SINKS && item.split == 0 && rows.inside[half];
      rows.most[half] = sunk ? sinks[rows.head[half]] * (LOG2E / unit) : NEVER;
      rows.total[half] = sunk && t == 0 ? 1.f : 0.f;
      const unsigned short* from =
          q + static_cast<long long>(item.start + query) * q_pitch + rows.head[half] * q_head + 2 * t;
#pragma unroll
      for (int i = 0; i < DIM / 16; i++) {
        queries[i][half] = rows.inside[half] ? *reinterpret_cast<const unsigned*>(from + i * 16) : 0;
        queries[i][2 + half] = rows.inside[half] ? *reinterpret_cast<const unsigned*>(from + i * 16 + 8) : 0;
      }
    }
    // The first query sees all keys before `whole`.
    int whole = item.begin;
    if (!WINDOW) whole += (min(item.position + 1, item.end) - item.begin) / KEYS * KEYS;
    float scores[KEYS / 2], sums[DIM / 2] = {};
    if (item.begin < item.end) {
      barrier_wait(slots.full(), slots.parity);
      fence_async();
      score(scores, queries, slots.stage());
      multiply_wait<0>();
    }
    for (int base = item.begin; base < item.end; base += KEYS) {
      unsigned weights[KEYS / 16][4];
      soften(scores, weights, rows, sums, base, base >= whole, scale, softcap, unit);
      const Slots now = slots;
      slots.next();
      if (base + KEYS < item.end) {
        barrier_wait(slots.full(), slots.parity);
        fence_async();
        score(scores, queries, slots.stage());
      }
      multiply_fence();
#pragma unroll
      for (int i = 0; i < KEYS / 16; i++) multiply_async_rows(sums, weights[i], now.stage() + KEY_BYTES, i, HALF);
      multiply_commit();
      multiply_wait<0>();
      now.leave();
    }
    finish(rows, sums, item, head, unit, out, parts, locks, last);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS + COPIERS, 1)
    attend_prompt(const unsigned short* q, const unsigned char* k_pool, const unsigned char* v_pool, const int* plan,
                  const int* table, const float* sinks, unsigned short* out, float* parts, int* locks, int q_pitch,
                  int q_head, int table_pitch, float scale, float softcap) {
  SHARED_BYTES(shared);
  unsigned char* barriers = shared + STAGES * STAGE;
  Slots slots{shared, barriers};
  if (threadIdx.x == 0) slots.begin(COPIERS, THREADS / 32);
  __syncthreads();
  if (PDL) {
    depend_wait();
    depend_launch();
  }
  const int units = *plan * KV_HEADS;
  if (threadIdx.x >= THREADS) {
    fewer_registers<COPIER_REGISTERS>();
    copy_units(slots, k_pool, v_pool, plan, table, table_pitch, units);
  } else {
    more_registers<REGISTERS>();
    attend_units(slots, q, plan, sinks, out, parts, locks, reinterpret_cast<int*>(barriers + STAGES * 16), units, q_pitch,
                 q_head, scale, softcap);
  }
}
