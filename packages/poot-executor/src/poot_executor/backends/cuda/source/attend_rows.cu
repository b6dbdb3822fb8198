// Paged attention of rows that decode on Hopper: keys and values of many heads come at once, by the copy engine.
//
// Units are (some KV heads, item of the plan, eight of the item's (query, head) pairs). A warp has one KV head and every
// WAYS-th 16 keys; no warp waits for another before an item's keys are over. One more warp copies: keys and values in
// turn, a slot each.
//
// Macros: HEADS, KV_HEADS, DIM (64 or 128), TILE (queries of an item), PAGE (keys of a page, a multiple of 16), WINDOW
// (0: none), CAPPED, SINKS, SPLITS (most parts of an item), UNIT_HEADS (KV heads of a unit), WAYS (a power of two),
// STAGES, BLOCKS (of a multiprocessor), PDL.
constexpr int KEYS = 16, SHARE = HEADS / KV_HEADS, PIECES = UNIT_HEADS * DIM / 64;
constexpr int BOX = KEYS * 128 * PIECES, STAGE = WAYS * BOX;
constexpr int WARPS = UNIT_HEADS * WAYS, THREADS = WARPS * 32;
constexpr int HEAD_GROUPS = KV_HEADS / UNIT_HEADS, PAIR_GROUPS = (TILE * SHARE + 7) / 8;
#include "attend_pairs.cuh"
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

// After all of a block's warps have written a part: whoever comes last adds up all parts.
__device__ __forceinline__ void merge(const Units& units, unsigned short* out, const float* parts, int* locks,
                                      int* last) {
  int* lock = locks + units.item.start * KV_HEADS + units.head + units.pair / 8;
  if (!comes_last(lock, units.item.splits, last)) return;
  const int pairs = min(units.item.queries * SHARE - units.pair, 8);
  for (int i = threadIdx.x / 32; i < UNIT_HEADS * pairs; i += WARPS)
    merge_parts(out, parts, Pair(units.item, units.head + i / pairs, units.pair, i % pairs).target, units.item.splits);
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
    const Pair pair(units.item, head, units.pair, g);
    const unsigned short* from = q + static_cast<long long>(units.item.start + pair.query) * q_pitch +
                                 (head * SHARE + pair.of_share) * q_head + 2 * t;
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
      queries[i / 2][i % 2] = pair.inside ? *reinterpret_cast<const unsigned*>(from + i * 8) : 0;
    Pairs rows(units.item, head, units.pair, SINKS && way == 0 ? sinks : nullptr, unit);
    for (int base = units.first(); base < end; base += WAYS * KEYS) {
      const int key = base + way * KEYS;
      float scores[4];
      slots.wait_full();
      if (key < end) score_pairs<KEYS * 128>(scores, queries, slots.stage() + place);
      slots.leave();
      slots.next();
      if (key < end) soften_pairs(scores, rows, key, scale, softcap, unit);
      slots.wait_full();
      if (key < end) add_pair_values<KEYS * 128>(rows, scores, slots.stage() + place);
      slots.leave();
      slots.next();
    }
#pragma unroll
    for (int i = 0; i < 2; i++) rows.total[i] = column_sum(rows.total[i]);
    if (WAYS > 1) add_ways<WAYS, UNIT_HEADS>(rows, rooms, unit);
    const bool whole = SPLITS == 1 || units.item.splits == 1;
    if (way == 0 && whole) write_pairs(rows, units.item, head, units.pair, out);
    if (way == 0 && !whole) write_part(rows, units.item, head, units.pair, unit, parts);
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
