// Paged attention of prompts on Hopper: matrices of 128 (query, head) pairs, whose heads share a KV head.
//
// Units are (item of the plan, KV head). Two warpgroups have 64 rows each: while one computes weights from scores, the
// other multiplies. A third fetches keys and values, 128 at a time, and the next unit's queries. The scores of the next
// keys are under way together with the product of weights and values. Of rows that decode beside prompts each warp has 16
// of the keys.
//
// Macros: HEADS, KV_HEADS, DIM (64 or 128), TILE (queries of an item), PAGE (keys of a page), WINDOW (0: none), CAPPED,
// SINKS, SPLITS (most parts of an item), STAGES, PDL.
#define THREADS 256
#define COPIERS 128
constexpr int KEYS = 128, SHARE = HEADS / KV_HEADS;
constexpr int KEY_BYTES = KEYS * DIM * 2, STAGE = 2 * KEY_BYTES;
constexpr int HALF = KEYS * 128;  // bytes of a tile of 64 elements of each key
#include "attend_pairs.cuh"
#include "slots.cuh"

// A block is launched with 168 registers a thread, and those that copiers leave go to the others.
constexpr int COPIER_REGISTERS = 40, REGISTERS = 232;

// A block's units, in turns. Later items of a prompt have more keys: the longest come first, to and fro, so that a turn
// which not all blocks have is a short one. Every other block takes its own from the last to the first, so that some read
// the keys of rows that decode, which are a plan's first, while others multiply.
struct Units {
  int count, turns, turn = 0;
  __device__ __forceinline__ explicit Units(int count) : count(count), turns((count + gridDim.x - 1) / gridDim.x) {}
  // The next one, -1 after the last.
  __device__ __forceinline__ int next() {
    while (turn < turns) {
      const int at = blockIdx.x % 2 ? turns - 1 - turn : turn;
      const int unit = at * gridDim.x + (at % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
      turn++;
      if (unit < count) return count - 1 - unit;
    }
    return -1;
  }
};

// The keys that are fetched at once begin with a page.
__device__ __forceinline__ int first_key(const Item& item) { return item.begin / PAGE * PAGE; }

// Queries of the next unit, in rows of the matrix.
struct Queries {
  unsigned char* shared;
  unsigned char* barriers;
  unsigned parity = 0;
  __device__ __forceinline__ void* full() const { return barriers; }
  __device__ __forceinline__ void* empty() const { return barriers + 8; }
  __device__ __forceinline__ void wait_full() const { barrier_wait(full(), parity); }
  __device__ __forceinline__ void wait_empty() const { barrier_wait(empty(), parity ^ 1); }
  // By all lanes of a warp that has them.
  __device__ __forceinline__ void leave() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty());
    parity ^= 1;
  }
};
constexpr int QUERY_PITCH = DIM * 2 + 16, VALUE_COPIERS = COPIERS - 32;

// The keys of a block's units, KEYS at a time, one ahead: a lane knows where a page of the next ones begins.
struct Pages {
  const int *plan, *table, *pages;
  int table_pitch;
  Units units;
  int unit, base = 0, end = 0, row;
  bool fresh;  // the first of a unit
  __device__ __forceinline__ Pages(const int* plan, const int* table, int table_pitch, int count)
      : plan(plan), table(table), table_pitch(table_pitch), units(count) {
    advance();
  }
  __device__ __forceinline__ void advance() {
    base += KEYS;
    fresh = base >= end;
    while (base >= end) {
      unit = units.next();
      if (unit < 0) return;
      const Item item = load_item(plan, unit / KV_HEADS);
      pages = table + static_cast<long long>(item.row) * table_pitch;
      end = item.end;
      base = item.begin < end ? first_key(item) : end;
    }
    int place = base / PAGE + threadIdx.x % 32;
    const bool there = threadIdx.x % 32 < KEYS / PAGE && place * PAGE < end;
    if (WINDOW) place %= table_pitch;
    row = there ? pages[place] * PAGE : -PAGE;
  }
};

// The queries of a unit, by one warp.
__device__ __forceinline__ void copy_queries(Queries& queries, const unsigned short* q, const Item& item, int head,
                                             int q_pitch, int q_head) {
  constexpr int CHUNKS = DIM / 8;
#pragma unroll 2
  for (int i = threadIdx.x % 32; i < item.queries * SHARE * CHUNKS; i += 32) {
    const int line = i / CHUNKS, chunk = i % CHUNKS;
    const unsigned short* from = q + static_cast<long long>(item.start + line / SHARE) * q_pitch +
                                 (head * SHARE + line % SHARE) * q_head + chunk * 8;
    copy_async<16>(queries.shared + line * QUERY_PITCH + chunk * 16, from, true);
  }
  barrier_arrive_copied(queries.full());
  queries.parity ^= 1;
}

// Queries; and keys by the copy engine, a box a lane: a page, 64 elements of each key. What is before the pool is zeros.
__device__ __forceinline__ void copy_keys(Slots slots, Queries queries, const unsigned short* q, const BoxMap& k_pool,
                                          Pages pages, int q_pitch, int q_head) {
  constexpr int PIECES = DIM / 64, BOXES = PIECES * KEYS / PAGE;
  const int lane = threadIdx.x % 32;
  while (pages.unit >= 0) {
    const int row = pages.row, head = pages.unit % KV_HEADS;
    if (pages.fresh) {
      queries.wait_empty();
      copy_queries(queries, q, load_item(pages.plan, pages.unit / KV_HEADS), head, q_pitch, q_head);
    }
    pages.advance();
    slots.wait_empty();
    if (lane == 0) barrier_expect(slots.full(), KEY_BYTES);
    __syncwarp();
#pragma unroll
    for (int first = 0; first < BOXES; first += 32) {
      const int box = first + lane, page = box / PIECES, piece = box % PIECES;
      const int of_box = __shfl_sync(0xFFFFFFFFu, row, page % 32);
      unsigned char* to = slots.stage() + piece * HALF + page * PAGE * 128;
      if (box < BOXES) load_box(to, k_pool, head * DIM + piece * 64, of_box, slots.full());
    }
    slots.next();
  }
  copy_commit();
  copy_wait<0>();
}

// Values, by the other warps: there are too many pages for the copy engine alone. A warp has groups of eight, whose places
// are constants but for the first.
__device__ __forceinline__ void copy_values(Slots slots, const unsigned char* v_pool, Pages pages) {
  constexpr int CHUNKS = DIM / 8, AT_ONCE = 32 / CHUNKS, STEPS = 8 / AT_ONCE, PITCH = KV_HEADS * DIM * 2;
  const int lane = threadIdx.x % 32, warp = (threadIdx.x - THREADS) / 32 - 1, chunk = lane % CHUNKS;
  int to[STEPS];
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    const int key = i * AT_ONCE + lane / CHUNKS;
    to[i] = KEY_BYTES + chunk / 8 * HALF + key * 128 + (chunk % 8 ^ key) * 16;
  }
  while (pages.unit >= 0) {
    const int row = pages.row, first = pages.unit % KV_HEADS * DIM * 2 + lane / CHUNKS * PITCH + chunk * 16;
    pages.advance();
    slots.wait_empty();
#pragma unroll
    for (int i = 0; i < KEYS / 8; i += VALUE_COPIERS / 32) {
      const int group = i + warp;
      const int of_page = __shfl_sync(0xFFFFFFFFu, row, group * 8 / PAGE % 32);
      if (group >= KEYS / 8) continue;
      const bool there = of_page >= 0;
      const unsigned char* from = v_pool + static_cast<long long>(there ? of_page + group * 8 % PAGE : 0) * PITCH + first;
      unsigned char* stage = slots.stage() + group * 1024;
#pragma unroll
      for (int step = 0; step < STEPS; step++) copy_async<16>(stage + to[step], from + step * AT_ONCE * PITCH, there);
    }
    barrier_arrive_copied(slots.full());
    slots.next();
  }
  copy_commit();
  copy_wait<0>();
}

// A thread's two rows of the matrix, eight apart, and their running softmax. Scores times `unit` are exponents of two.
struct Rows {
  int upper[2];  // a query sees keys before it
  float most[2], total[2];
};

// A thread's row of the matrix, as made of heads and queries.
struct Line {
  int at, query, head;
  bool inside;
  __device__ __forceinline__ Line(int half, const Item& item, int thread = threadIdx.x) {
    at = thread / 32 * 16 + thread % 32 / 4 + half * 8;
    query = static_cast<unsigned>(at) / SHARE;
    head = static_cast<unsigned>(at) % SHARE;
    inside = query < item.queries && at < TILE * SHARE;
  }
};

__device__ __forceinline__ float quad_most(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 2));
}

__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFu, value, 1);
  return value + __shfl_xor_sync(0xFFFFFFFFu, value, 2);
}

// Scores of keys from `base` on, to weights in their place. What came before fades by `fade`.
__device__ __forceinline__ void soften(float (&scores)[KEYS / 2], float (&fade)[2], Rows& rows, int base,
                                       const Item& item, bool some_masked, float scale, float softcap, float unit) {
  const int t = threadIdx.x % 4;
  if (CAPPED) {
    const float by = 2.f * scale / softcap, twice = 2.f * softcap;
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) scores[i] = softcap - __fdividef(twice, 1.f + __expf(scores[i] * by));
  }
  if (some_masked) {
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
      const int key = base + i / 4 * 8 + 2 * t + i % 2, half = i / 2 % 2;
      const int lower = WINDOW ? max(rows.upper[half] - WINDOW, item.begin) : item.begin;
      if (key >= min(rows.upper[half], item.end) || key < lower) scores[i] = NEVER;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float peak = NEVER;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++)
      peak = fmaxf(peak, fmaxf(scores[4 * i + 2 * half], scores[4 * i + 2 * half + 1]));
    peak = fmaxf(rows.most[half], quad_most(peak));
    const float safe = peak == NEVER ? 0.f : peak, least = safe * unit;
    fade[half] = power_of_two((rows.most[half] - safe) * unit);
    rows.most[half] = peak;
    float total = rows.total[half] * fade[half];
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++) {
      float &one = scores[4 * i + 2 * half], &two = scores[4 * i + 2 * half + 1];
      one = power_of_two(one * unit - least);
      two = power_of_two(two * unit - least);
      total += one + two;
    }
    rows.total[half] = total;
  }
}

// Whether some query of an item does not see all keys from `base` on.
__device__ __forceinline__ bool masked(const Item& item, int base) {
  return WINDOW || base < item.begin || base + KEYS > min(item.position + 1, item.end);
}

// Weights as operands.
__device__ __forceinline__ void pack(unsigned (&weights)[KEYS / 16][4], const float (&scores)[KEYS / 2]) {
#pragma unroll
  for (int i = 0; i < KEYS / 4; i++) weights[i / 4][i % 4] = pair_bf16(scores[2 * i], scores[2 * i + 1]);
}

// Until the keys and values of a stage are there. Values come by copies that products see only behind a fence.
__device__ __forceinline__ void wait_keys(const Slots& slots) {
  slots.wait_full();
  fence_async();
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

__device__ __forceinline__ void add_values(float (&sums)[DIM / 2], const unsigned (&weights)[KEYS / 16][4],
                                           const unsigned char* stage) {
  multiply_fence();
#pragma unroll
  for (int i = 0; i < KEYS / 16; i++) multiply_async_rows(sums, weights[i], stage + KEY_BYTES, i, HALF);
  multiply_commit();
}

// After all warps have written their part of an item that was cut: the last block to come adds up all parts.
__device__ __forceinline__ void merge(const Item& item, int head, unsigned short* out, const float* parts, int* locks,
                                      int* last) {
  if (!comes_last(locks + item.start * KV_HEADS + head, item.splits, last)) return;
  for (int line = threadIdx.x / 32; line < item.queries * SHARE; line += THREADS / 32) {
    const long long target = static_cast<long long>(item.start + line / SHARE) * HEADS + head * SHARE + line % SHARE;
    merge_parts(out, parts, target, item.splits);
  }
}

// Write an item's result, or its part of one that was cut.
__device__ __forceinline__ void finish(const Rows& rows, const float (&sums)[DIM / 2], const Item& item, int head,
                                       float unit, unsigned short* out, float* parts) {
  const int t = threadIdx.x % 4;
  const bool whole = SPLITS == 1 || item.splits == 1;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float total = quad_sum(rows.total[half]);
    const Line line(half, item);
    if (!line.inside) continue;
    const long long target = static_cast<long long>(item.start + line.query) * HEADS + head * SHARE + line.head;
    if (whole) {
      const float by = 1.f / (total == 0.f ? 1.f : total);
#pragma unroll
      for (int j = 0; j < DIM / 8; j++)
        *reinterpret_cast<unsigned*>(out + target * DIM + j * 8 + 2 * t) =
            pair_bf16(sums[4 * j + 2 * half] * by, sums[4 * j + 2 * half + 1] * by);
    } else {
      float* part = part_of(parts, target, item.split);
#pragma unroll
      for (int j = 0; j < DIM / 8; j++) {
        part[j * 8 + 2 * t] = sums[4 * j + 2 * half];
        part[j * 8 + 2 * t + 1] = sums[4 * j + 2 * half + 1];
      }
      if (t == 0) part[DIM] = rows.most[half] * (unit / LOG2E), part[DIM + 1] = total;
    }
  }
}

// One warpgroup's turn to begin products, while the other computes weights. Both take as many.
struct Turns {
  int mine = threadIdx.x / 128;
  __device__ __forceinline__ void begin() const {
    if (mine == 1) come<THREADS>(2);
  }
  __device__ __forceinline__ void wait() const { meet<THREADS>(2 + mine); }
  __device__ __forceinline__ void leave() const { come<THREADS>(3 - mine); }
};

// All keys of an item, for a warpgroup's rows.
__device__ __forceinline__ void attend_keys(Slots& slots, const Turns& turns, const unsigned (&queries)[DIM / 16][4],
                                            Rows& rows, float (&sums)[DIM / 2], const Item& item,
                                            float scale, float softcap, float unit) {
  const int begin = first_key(item);
  float scores[KEYS / 2], fade[2];
  unsigned weights[KEYS / 16][4];
  wait_keys(slots);
  score(scores, queries, slots.stage());
  multiply_wait<0>(scores);
  soften(scores, fade, rows, begin, item, masked(item, begin), scale, softcap, unit);
  pack(weights, scores);
  for (int next = begin + KEYS; next < item.end; next += KEYS) {
    const Slots now = slots;
    slots.next();
    wait_keys(slots);
    turns.wait();
    score(scores, queries, slots.stage());
    add_values(sums, weights, now.stage());
    turns.leave();
    multiply_wait<1>(scores);
    soften(scores, fade, rows, next, item, masked(item, next), scale, softcap, unit);
    multiply_wait<0>(sums);
    now.leave();
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) sums[i] *= fade[i / 2 % 2];
    pack(weights, scores);
  }
  turns.wait();
  add_values(sums, weights, slots.stage());
  turns.leave();
  multiply_wait<0>(sums);
  slots.leave();
  slots.next();
}

// What the second warpgroup has is added to the first's, by way of a stage that the second has not left.
__device__ __forceinline__ void add_half(unsigned char* stage, Rows& rows, float (&sums)[DIM / 2], float unit) {
  float* there = reinterpret_cast<float*>(stage) + threadIdx.x % 128;
  if (threadIdx.x >= 128) {
    meet<128>(4);  // no warp multiplies with the stage any more
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) there[i * 128] = sums[i];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      there[(DIM / 2 + half) * 128] = rows.most[half];
      there[(DIM / 2 + 2 + half) * 128] = rows.total[half];
    }
  }
  sync_first<THREADS>();
  if (threadIdx.x < 128) {
    float mine[2], other[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
      join(rows.most[half], rows.total[half], there[(DIM / 2 + half) * 128], there[(DIM / 2 + 2 + half) * 128], unit,
           mine[half], other[half]);
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) sums[i] = sums[i] * mine[i / 2 % 2] + there[i * 128] * other[i / 2 % 2];
  }
  sync_first<THREADS>();
}

// Of an item of few rows both warpgroups have the same ones, and every other keys.
__device__ __forceinline__ void attend_half(Slots& slots, const unsigned (&queries)[DIM / 16][4], Rows& rows,
                                            float (&sums)[DIM / 2], const Item& item, float scale, float softcap,
                                            float unit) {
  const int second = threadIdx.x / 128;
  int turn = 0;
  Slots held = slots;
  for (int base = first_key(item); base < item.end; base += KEYS, turn++) {
    wait_keys(slots);
    const bool mine = turn % 2 == second;
    if (mine) {
      float scores[KEYS / 2], fade[2];
      unsigned weights[KEYS / 16][4];
      score(scores, queries, slots.stage());
      multiply_wait<0>(scores);
      soften(scores, fade, rows, base, item, masked(item, base), scale, softcap, unit);
      pack(weights, scores);
#pragma unroll
      for (int i = 0; i < DIM / 2; i++) sums[i] *= fade[i / 2 % 2];
      add_values(sums, weights, slots.stage());
      multiply_wait<0>(sums);
    }
    // The last stage of the second warpgroup is for its results.
    const bool last = turn % 2 == 1 && base + 2 * KEYS >= item.end;
    if (last) held = slots;
    if (!(last && second)) slots.leave();
    slots.next();
  }
  if (turn < 2) return;
  add_half(held.stage(), rows, sums, unit);
  if (second) {
    fence_async();  // before the copy engine writes there again
    held.leave();
  }
}

// Of an item of eight pairs at most each warp has 16 of the keys that are fetched at once. The last of them are written
// over with what the warps have.
__device__ __forceinline__ void attend_pairs(Slots& slots, Queries& next_queries, const Item& item, int head,
                                             const float* sinks, unsigned short* out, float* parts, float scale,
                                             float softcap, float unit) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  unsigned queries[DIM / 16][2];
  const bool inside = g < item.queries * SHARE;
  const unsigned char* from = next_queries.shared + g * QUERY_PITCH + 4 * t;
#pragma unroll
  for (int i = 0; i < DIM / 8; i++)
    queries[i / 2][i % 2] = inside ? *reinterpret_cast<const unsigned*>(from + i * 16) : 0;
  next_queries.leave();
  Pairs rows(item, head, 0, SINKS && warp == 0 ? sinks : nullptr, unit);
  Slots held = slots;
  for (int base = first_key(item); base < item.end; base += KEYS) {
    const int key = base + warp * 16;
    slots.wait_full();
    if (key < item.end) {
      const unsigned char* stage = slots.stage() + warp * 16 * 128;
      float scores[4];
      score_pairs<HALF>(scores, queries, stage);
      soften_pairs(scores, rows, key, scale, softcap, unit);
      add_pair_values<HALF>(rows, scores, stage + KEY_BYTES);
    }
    held = slots;
    if (base + KEYS < item.end) slots.leave();
    slots.next();
  }
#pragma unroll
  for (int i = 0; i < 2; i++) rows.total[i] = column_sum(rows.total[i]);
  sync_first<THREADS>();
  add_ways<THREADS / 32, 1>(rows, reinterpret_cast<float*>(held.stage()), unit);
  fence_async();  // before the copy engine writes there again
  held.leave();
  const bool whole = SPLITS == 1 || item.splits == 1;
  if (warp == 0 && whole) write_pairs(rows, item, head, 0, out);
  if (warp == 0 && !whole) write_part(rows, item, head, 0, unit, parts);
}

// Others fill a matrix of 64 rows for each warpgroup, or the same for both.
__device__ __forceinline__ void attend_matrix(Slots& slots, const Turns& turns, Queries& next_queries, const Item& item,
                                              int head, const float* sinks, unsigned short* out, float* parts, float scale,
                                              float softcap, float unit) {
  const int t = threadIdx.x % 4;
  const bool few = item.queries * SHARE <= 64;
  Rows rows;
  unsigned queries[DIM / 16][4];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const Line line(half, item, few ? threadIdx.x % 128 : threadIdx.x);
    rows.upper[half] = item.position + line.query + 1;
    // A sink is a key without a value, which the first part has seen before its own.
    const bool sunk = SINKS && item.split == 0 && line.inside && !(few && threadIdx.x >= 128);
    rows.most[half] = sunk ? sinks[head * SHARE + line.head] * (LOG2E / unit) : NEVER;
    rows.total[half] = sunk && t == 0 ? 1.f : 0.f;
    const unsigned char* from = next_queries.shared + line.at * QUERY_PITCH + 4 * t;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
      queries[i][half] = line.inside ? *reinterpret_cast<const unsigned*>(from + i * 32) : 0;
      queries[i][2 + half] = line.inside ? *reinterpret_cast<const unsigned*>(from + i * 32 + 16) : 0;
    }
  }
  next_queries.leave();
  float sums[DIM / 2] = {};
  if (few)
    attend_half(slots, queries, rows, sums, item, scale, softcap, unit);
  else
    attend_keys(slots, turns, queries, rows, sums, item, scale, softcap, unit);
  finish(rows, sums, item, head, unit, out, parts);
}

__device__ __forceinline__ void attend_units(Slots slots, Queries next_queries, const int* plan, const float* sinks,
                                             unsigned short* out, float* parts, int* locks, int* last, int count,
                                             float scale, float softcap) {
  const float unit = CAPPED ? LOG2E : scale * LOG2E;
  const Turns turns;
  turns.begin();
  Units units(count);
  for (int index = units.next(); index >= 0; index = units.next()) {
    const int head = index % KV_HEADS;
    const Item item = load_item(plan, index / KV_HEADS);
    if (item.begin >= item.end) continue;  // as copiers do; no plan has such an item
    next_queries.wait_full();
    if (item.queries * SHARE <= 8)
      attend_pairs(slots, next_queries, item, head, sinks, out, parts, scale, softcap, unit);
    else
      attend_matrix(slots, turns, next_queries, item, head, sinks, out, parts, scale, softcap, unit);
    if (SPLITS > 1 && item.splits > 1) merge(item, head, out, parts, locks, last);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS + COPIERS, 1)
    attend_prompt(const unsigned short* q, const __grid_constant__ BoxMap k_pool, const unsigned char* v_pool,
                  const int* plan, const int* table, const float* sinks, unsigned short* out, float* parts, int* locks,
                  int q_pitch, int q_head, int table_pitch, float scale, float softcap) {
  SHARED_BYTES(shared);
  unsigned char* barriers = shared + STAGES * STAGE + 128 * QUERY_PITCH;
  Slots slots{shared, barriers};
  Queries queries{shared + STAGES * STAGE, barriers + STAGES * 16};
  if (threadIdx.x == 0) {
    slots.begin(1 + VALUE_COPIERS, THREADS / 32);
    barrier_init(queries.full(), 32);
    barrier_init(queries.empty(), THREADS / 32);
  }
  __syncthreads();
  if (PDL) {
    depend_wait();
    depend_launch();
  }
  const int count = *plan * KV_HEADS;
  if (threadIdx.x >= THREADS) {
    fewer_registers<COPIER_REGISTERS>();
    const Pages pages(plan, table, table_pitch, count);
    if (threadIdx.x < THREADS + 32)
      copy_keys(slots, queries, q, k_pool, pages, q_pitch, q_head);
    else
      copy_values(slots, v_pool, pages);
  } else {
    more_registers<REGISTERS>();
    attend_units(slots, queries, plan, sinks, out, parts, locks, reinterpret_cast<int*>(queries.barriers + 16), count,
                 scale, softcap);
  }
}
