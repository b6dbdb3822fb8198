// Paged attention of rows that decode on Hopper: keys and values of many heads come at once, by the copy engine.
//
// Units are (some KV heads, item of the plan, eight of the item's (query, head) pairs). A warp has one KV head and every
// WAYS-th 16 keys; no warp waits for another before an item's keys are over. Products are turned, keys by pairs and
// elements by pairs, so that eight pairs fill a matrix. One more warp copies: keys and values in turn, a slot each.
//
// Macros: HEADS, KV_HEADS, DIM (64 or 128), TILE (queries of an item), PAGE (keys of a page, a multiple of 16), WINDOW
// (0: none), CAPPED, SINKS, SPLITS (most parts of an item), UNIT_HEADS (KV heads of a unit), WAYS (a power of two),
// STAGES, BLOCKS (of a multiprocessor), PDL.
constexpr int KEYS = 16, SHARE = HEADS / KV_HEADS, PIECES = UNIT_HEADS * DIM / 64;
constexpr int BOX = KEYS * 128 * PIECES, STAGE = WAYS * BOX;
constexpr int WARPS = UNIT_HEADS * WAYS, THREADS = WARPS * 32;
constexpr int HEAD_GROUPS = KV_HEADS / UNIT_HEADS, PAIR_GROUPS = (TILE * SHARE + 7) / 8;
#include "attend_items.cuh"
#include "slots.cuh"

// A block's units, one after another.
struct Units {
  const int* plan;
  int items, count, unit;
  Item item;
  int head, pair;  // the first of each
  __device__ __forceinline__ explicit Units(const int* plan) : plan(plan), items(*plan), unit(blockIdx.x) {
    count = items * HEAD_GROUPS * PAIR_GROUPS;
    find();
  }
  __device__ __forceinline__ bool there() const { return unit < count; }
  __device__ __forceinline__ void next() {
    unit += gridDim.x;
    find();
  }
  // The next that has pairs and keys.
  __device__ __forceinline__ void find() {
    for (; unit < count; unit += gridDim.x) {
      const int rest = unit / HEAD_GROUPS;
      head = unit % HEAD_GROUPS * UNIT_HEADS;
      pair = rest / items * 8;
      item = load_item(plan, rest % items);
      if (pair < item.queries * SHARE && item.begin < item.end) return;
    }
  }
  // The first keys begin with a box.
  __device__ __forceinline__ int first() const { return item.begin / KEYS * KEYS; }
};

// Where the keys of an item lie: a lane knows it of 16 of the next 512.
struct Places {
  const int* pages;
  int table_pitch, end, row;
  __device__ __forceinline__ Places(const int* table, int table_pitch, const Item& item)
      : pages(table + static_cast<long long>(item.row) * table_pitch), table_pitch(table_pitch), end(item.end) {}
  __device__ __forceinline__ void look_up(int base) {
    const int key = base + threadIdx.x % 32 * KEYS;
    int place = key / PAGE;
    if (WINDOW) place %= table_pitch;
    row = key < end ? pages[place] * PAGE + key % PAGE : -1;
  }
};

// By one warp; a lane copies a way's keys.
__device__ __forceinline__ void copy(Slots slots, const BoxMap& k_pool, const BoxMap& v_pool, const int* plan,
                                     const int* table, int table_pitch) {
  const int lane = threadIdx.x % 32;
  Units units(plan);
  bool waited = !PDL;
  while (units.there()) {
    const int first = units.first(), end = units.item.end, piece = units.head * DIM / 64;
    Places now(table, table_pitch, units.item);
    now.look_up(first);
    if (!waited) depend_wait();
    waited = true;
    Places later = now;
    for (int base = first, i = 0; base < end; base += WAYS * KEYS, i += WAYS) {
      if (i % 32 == 0) {
        if (i) now = later;
        later.look_up(base + 32 * KEYS);
      }
      const int row = __shfl_sync(0xFFFFFFFFu, now.row, (i + lane) % 32);
      const int boxes = min(WAYS, (end - base + KEYS - 1) / KEYS);
#pragma unroll
      for (int values = 0; values < 2; values++) {
        slots.wait_empty();
        if (lane == 0) barrier_expect(slots.full(), boxes * BOX);
        __syncwarp();
        if (lane < boxes) load_boxes(slots.stage() + lane * BOX, values ? v_pool : k_pool, row, piece, slots.full());
        slots.next();
      }
    }
    units.next();
  }
}

// What a warp has of its eight pairs: a lane of two of them (2 t and 2 t + 1, of lane 4 g + t), of elements g and g + 8
// of each sixteen.
struct Rows {
  float most[2], total[2], sums[DIM / 16][4];
};

// A (query, head) pair of a unit.
struct Pair {
  bool inside;
  int query;
  long long target;
  __device__ __forceinline__ Pair(const Units& units, int head, int at) {
    const int pair = units.pair + at;
    query = pair / SHARE;
    inside = pair < units.item.queries * SHARE;
    target = static_cast<long long>(units.item.start + query) * HEADS + head * SHARE + pair % SHARE;
  }
};

__device__ __forceinline__ float column_most(float value) {
#pragma unroll
  for (int bits = 4; bits < 32; bits *= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, bits));
  return value;
}

__device__ __forceinline__ float column_sum(float value) {
#pragma unroll
  for (int bits = 4; bits < 32; bits *= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, bits);
  return value;
}

// Scores of 16 keys, g and g + 8 of pairs 2 t and 2 t + 1.
__device__ __forceinline__ void score(float (&scores)[4], const unsigned (&queries)[DIM / 16][2],
                                      const unsigned char* keys) {
  const int lane = threadIdx.x % 32, key = lane % 16, chunk = lane / 16;
  float more[4] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) scores[i] = 0.f;
#pragma unroll
  for (int i = 0; i < DIM / 16; i++) {
    unsigned a[4];
    load_matrices(a, keys + i / 4 * KEYS * 128 + key * 128 + ((i % 4 * 2 + chunk) ^ key % 8) * 16);
    mma_bf16(i % 2 ? more : scores, a, queries[i][0], queries[i][1]);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) scores[i] += more[i];
}

// Scores to weights in their place, and what came before fades.
__device__ __forceinline__ void soften(float (&scores)[4], Rows& rows, const int (&upper)[2], const int (&lower)[2],
                                       int base, float scale, float softcap, float unit) {
  const int g = threadIdx.x % 32 / 4;
  if (CAPPED) {
    const float by = 2.f * scale / softcap, twice = 2.f * softcap;
#pragma unroll
    for (int i = 0; i < 4; i++) scores[i] = softcap - __fdividef(twice, 1.f + __expf(scores[i] * by));
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int key = base + g + i / 2 * 8;
    if (key >= upper[i % 2] || key < lower[i % 2]) scores[i] = NEVER;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float peak = fmaxf(rows.most[i], column_most(fmaxf(scores[i], scores[2 + i])));
    const float safe = peak == NEVER ? 0.f : peak, fade = power_of_two((rows.most[i] - safe) * unit);
    rows.most[i] = peak;
    scores[i] = power_of_two((scores[i] - safe) * unit);
    scores[2 + i] = power_of_two((scores[2 + i] - safe) * unit);
    rows.total[i] = rows.total[i] * fade + scores[i] + scores[2 + i];
#pragma unroll
    for (int m = 0; m < DIM / 16; m++) rows.sums[m][i] *= fade, rows.sums[m][2 + i] *= fade;
  }
}

__device__ __forceinline__ void add_values(Rows& rows, const float (&weights)[4], const unsigned char* values) {
  const int lane = threadIdx.x % 32, key = lane % 8 + lane / 16 * 8, chunk = lane / 8 % 2;
  const unsigned b0 = turn_matrix(pair_bf16(weights[0], weights[1]));
  const unsigned b1 = turn_matrix(pair_bf16(weights[2], weights[3]));
#pragma unroll
  for (int i = 0; i < DIM / 16; i++) {
    unsigned a[4];
    load_matrices_turned(a, values + i / 4 * KEYS * 128 + key * 128 + ((i % 4 * 2 + chunk) ^ key % 8) * 16);
    mma_bf16(rows.sums[i], a, b0, b1);
  }
}

// What a head's other warps have is added to the first's, half of them at a time. A warp's room is for a lane's numbers.
constexpr int NUMBERS = DIM / 4 + 4, ROOM = NUMBERS * 32;
__device__ __forceinline__ void add_ways(Rows& rows, float* rooms, float unit) {
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int half = WAYS / 2; half; half /= 2) {
    float* room = rooms + warp % (half * UNIT_HEADS) * ROOM + threadIdx.x % 32;
    const int way = warp / UNIT_HEADS;
    if (way >= half && way < 2 * half) {
#pragma unroll
      for (int i = 0; i < DIM / 4; i++) room[i * 32] = rows.sums[i / 4][i % 4];
#pragma unroll
      for (int i = 0; i < 2; i++) room[(DIM / 4 + i) * 32] = rows.most[i], room[(DIM / 4 + 2 + i) * 32] = rows.total[i];
    }
    sync_first<THREADS>();
    if (way < half) {
      float mine[2], other[2];
#pragma unroll
      for (int i = 0; i < 2; i++)
        join(rows.most[i], rows.total[i], room[(DIM / 4 + i) * 32], room[(DIM / 4 + 2 + i) * 32], unit, mine[i], other[i]);
#pragma unroll
      for (int i = 0; i < DIM / 4; i++)
        rows.sums[i / 4][i % 4] = rows.sums[i / 4][i % 4] * mine[i % 2] + room[i * 32] * other[i % 2];
    }
    sync_first<THREADS>();
  }
}

// A head's result of an item that was not cut.
__device__ __forceinline__ void write(const Rows& rows, const Units& units, int head, unsigned short* out) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const Pair pair(units, head, g);
  float by[2];
#pragma unroll
  for (int i = 0; i < 2; i++) by[i] = 1.f / (rows.total[i] == 0.f ? 1.f : rows.total[i]);
#pragma unroll
  for (int m = 0; m < DIM / 16; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const unsigned two = turn_matrix(pair_bf16(rows.sums[m][2 * half] * by[0], rows.sums[m][2 * half + 1] * by[1]));
      if (pair.inside)
        *reinterpret_cast<unsigned*>(out + pair.target * DIM + m * 16 + half * 8 + 2 * t) = two;
    }
}

// A head's part of one that was.
__device__ __forceinline__ void write_part(const Rows& rows, const Units& units, int head, float unit, float* parts) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const Pair pair(units, head, 2 * t + i);
    if (!pair.inside) continue;
    float* part = part_of(parts, pair.target, units.item.split);
#pragma unroll
    for (int m = 0; m < DIM / 16; m++) {
      part[m * 16 + g] = rows.sums[m][i];
      part[m * 16 + 8 + g] = rows.sums[m][2 + i];
    }
    if (g == 0) part[DIM] = rows.most[i] * (unit / LOG2E), part[DIM + 1] = rows.total[i];
  }
}

// After all of a block's warps have written a part: whoever comes last adds up all parts.
__device__ __forceinline__ void merge(const Units& units, unsigned short* out, const float* parts, int* locks,
                                      int* last) {
  __threadfence();
  sync_first<THREADS>();
  if (threadIdx.x == 0) {
    int* lock = locks + units.item.start * KV_HEADS + units.head + units.pair / 8;
    *last = add_acq_rel(lock, 1) == units.item.splits - 1;
    if (*last) *lock = 0;
  }
  sync_first<THREADS>();
  __threadfence();
  if (!*last) return;
  const int pairs = min(units.item.queries * SHARE - units.pair, 8);
  for (int i = threadIdx.x / 32; i < UNIT_HEADS * pairs; i += WARPS)
    merge_parts(out, parts, Pair(units, units.head + i / pairs, i % pairs).target, units.item.splits);
}

__device__ __forceinline__ void attend(Slots slots, const unsigned short* q, const int* plan, const float* sinks,
                                       unsigned short* out, float* parts, int* locks, float* rooms, int* last,
                                       int q_pitch, int q_head, float scale, float softcap) {
  const int warp = threadIdx.x / 32, of_unit = warp % UNIT_HEADS, way = warp / UNIT_HEADS;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const float unit = CAPPED ? LOG2E : scale * LOG2E;
  const int place = way * BOX + of_unit * (DIM / 64) * KEYS * 128;
  for (Units units(plan); units.there(); units.next()) {
    const int head = units.head + of_unit, end = units.item.end;
    unsigned queries[DIM / 16][2];
    const Pair pair(units, head, g);
    const unsigned short* from = q + static_cast<long long>(units.item.start + pair.query) * q_pitch +
                                 (head * SHARE + (units.pair + g) % SHARE) * q_head + 2 * t;
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
      queries[i / 2][i % 2] = pair.inside ? *reinterpret_cast<const unsigned*>(from + i * 8) : 0;
    Rows rows = {};
    int upper[2], lower[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const Pair mine(units, head, 2 * t + i);
      const int position = units.item.position + mine.query;
      upper[i] = mine.inside ? min(position + 1, end) : 0;
      lower[i] = WINDOW ? max(position + 1 - WINDOW, units.item.begin) : units.item.begin;
      // A sink is a key without a value, which the first part has seen before its own.
      const bool sunk = SINKS && units.item.split == 0 && mine.inside && way == 0;
      rows.most[i] = sunk ? sinks[head * SHARE + (units.pair + 2 * t + i) % SHARE] * (LOG2E / unit) : NEVER;
      rows.total[i] = sunk && g == 0 ? 1.f : 0.f;
    }
    for (int base = units.first(); base < end; base += WAYS * KEYS) {
      const int key = base + way * KEYS;
      float scores[4];
      slots.wait_full();
      if (key < end) score(scores, queries, slots.stage() + place);
      slots.leave();
      slots.next();
      if (key < end) soften(scores, rows, upper, lower, key, scale, softcap, unit);
      slots.wait_full();
      if (key < end) add_values(rows, scores, slots.stage() + place);
      slots.leave();
      slots.next();
    }
#pragma unroll
    for (int i = 0; i < 2; i++) rows.total[i] = column_sum(rows.total[i]);
    if (WAYS > 1) add_ways(rows, rooms, unit);
    const bool whole = SPLITS == 1 || units.item.splits == 1;
    if (way == 0 && whole) write(rows, units, head, out);
    if (way == 0 && !whole) write_part(rows, units, head, unit, parts);
    if (!whole) merge(units, out, parts, locks, last);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS + 32, BLOCKS)
    attend_rows(const unsigned short* q, const __grid_constant__ BoxMap k_pool, const __grid_constant__ BoxMap v_pool,
                const int* plan, const int* table, const float* sinks, unsigned short* out, float* parts, int* locks,
                int q_pitch, int q_head, int table_pitch, float scale, float softcap) {
  SHARED_BYTES(shared);
  unsigned char* barriers = shared + STAGES * STAGE;
  Slots slots{shared, barriers};
  if (threadIdx.x == 0) slots.begin(1, WARPS);
  __syncthreads();
  if (threadIdx.x >= THREADS) {
    copy(slots, k_pool, v_pool, plan, table, table_pitch);
    if (PDL) depend_launch();
  } else {
    if (PDL) {
      depend_wait();
      depend_launch();
    }
    float* rooms = reinterpret_cast<float*>(barriers + STAGES * 16 + 16);
    attend(slots, q, plan, sinks, out, parts, locks, rooms, reinterpret_cast<int*>(barriers + STAGES * 16), q_pitch,
           q_head, scale, softcap);
  }
}
