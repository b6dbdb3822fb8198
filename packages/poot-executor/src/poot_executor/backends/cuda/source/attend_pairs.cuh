// Attention of eight (query, head) pairs that share a KV head, by warps that have 16 keys at a time. Products are turned,
// keys by pairs and elements by pairs, so that eight pairs fill a matrix.
//
// Macros: HEADS, DIM, WINDOW, CAPPED, SPLITS. Before this, SHARE (heads that have one KV head).
#pragma once

#include "attend_items.cuh"

// A (query, head) pair of an item, of those from `first` on.
struct Pair {
  bool inside;
  int query, of_share;
  long long target;
  __device__ __forceinline__ Pair(const Item& item, int head, int first, int at) {
    const unsigned pair = first + at;
    query = pair / SHARE;
    of_share = pair % SHARE;
    inside = static_cast<int>(pair) < item.queries * SHARE;
    target = static_cast<long long>(item.start + query) * HEADS + head * SHARE + of_share;
  }
};

// What a warp has of its eight pairs: a lane of two of them (2 t and 2 t + 1, of lane 4 g + t), of elements g and g + 8
// of each sixteen. A query sees keys from `lower` on, before `upper`.
struct Pairs {
  int upper[2], lower[2];
  float most[2], total[2], sums[DIM / 16][4];
  // `sinks` of the pairs' heads, null where there are none: keys without a value, which the first part of an item has seen
  // before its own.
  __device__ __forceinline__ Pairs(const Item& item, int head, int first, const float* sinks, float unit) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const Pair pair(item, head, first, 2 * t + i);
      const int position = item.position + pair.query;
      upper[i] = pair.inside ? min(position + 1, item.end) : 0;
      lower[i] = WINDOW ? max(position + 1 - WINDOW, item.begin) : item.begin;
      const bool sunk = sinks && item.split == 0 && pair.inside;
      most[i] = sunk ? sinks[head * SHARE + pair.of_share] * (LOG2E / unit) : NEVER;
      total[i] = sunk && g == 0 ? 1.f : 0.f;
    }
#pragma unroll
    for (int m = 0; m < DIM / 16; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[m][i] = 0.f;
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

// Scores of 16 keys, g and g + 8 of pairs 2 t and 2 t + 1. Pieces of 64 elements of all keys are PITCH bytes apart.
template <int PITCH>
__device__ __forceinline__ void score_pairs(float (&scores)[4], const unsigned (&queries)[DIM / 16][2],
                                            const unsigned char* keys) {
  const int lane = threadIdx.x % 32, key = lane % 16, chunk = lane / 16;
  float more[4] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) scores[i] = 0.f;
#pragma unroll
  for (int i = 0; i < DIM / 16; i++) {
    unsigned a[4];
    load_matrices(a, keys + i / 4 * PITCH + key * 128 + ((i % 4 * 2 + chunk) ^ key % 8) * 16);
    mma_bf16(i % 2 ? more : scores, a, queries[i][0], queries[i][1]);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) scores[i] += more[i];
}

// Scores to weights in their place, and what came before fades.
__device__ __forceinline__ void soften_pairs(float (&scores)[4], Pairs& rows, int base, float scale, float softcap,
                                             float unit) {
  const int g = threadIdx.x % 32 / 4;
  if (CAPPED) {
    const float by = 2.f * scale / softcap, twice = 2.f * softcap;
#pragma unroll
    for (int i = 0; i < 4; i++) scores[i] = softcap - __fdividef(twice, 1.f + __expf(scores[i] * by));
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int key = base + g + i / 2 * 8;
    if (key >= rows.upper[i % 2] || key < rows.lower[i % 2]) scores[i] = NEVER;
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

template <int PITCH>
__device__ __forceinline__ void add_pair_values(Pairs& rows, const float (&weights)[4], const unsigned char* values) {
  const int lane = threadIdx.x % 32, key = lane % 8 + lane / 16 * 8, chunk = lane / 8 % 2;
  const unsigned b0 = turn_matrix(pair_bf16(weights[0], weights[1]));
  const unsigned b1 = turn_matrix(pair_bf16(weights[2], weights[3]));
#pragma unroll
  for (int i = 0; i < DIM / 16; i++) {
    unsigned a[4];
    load_matrices_turned(a, values + i / 4 * PITCH + key * 128 + ((i % 4 * 2 + chunk) ^ key % 8) * 16);
    mma_bf16(rows.sums[i], a, b0, b1);
  }
}

// What MATES warps that have other keys of the same pairs have is added to the first's, half of them at a time. Warps next
// to each other are of different pairs, of which there are UNITS. A warp's room is for a lane's numbers.
constexpr int NUMBERS = DIM / 4 + 4, ROOM = NUMBERS * 32;
template <int MATES, int UNITS>
__device__ __forceinline__ void add_ways(Pairs& rows, float* rooms, float unit) {
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int half = MATES / 2; half; half /= 2) {
    float* room = rooms + warp % (half * UNITS) * ROOM + threadIdx.x % 32;
    const int mate = warp / UNITS;
    if (mate >= half && mate < 2 * half) {
#pragma unroll
      for (int i = 0; i < DIM / 4; i++) room[i * 32] = rows.sums[i / 4][i % 4];
#pragma unroll
      for (int i = 0; i < 2; i++) room[(DIM / 4 + i) * 32] = rows.most[i], room[(DIM / 4 + 2 + i) * 32] = rows.total[i];
    }
    sync_first<MATES * UNITS * 32>();
    if (mate < half) {
      float mine[2], other[2];
#pragma unroll
      for (int i = 0; i < 2; i++)
        join(rows.most[i], rows.total[i], room[(DIM / 4 + i) * 32], room[(DIM / 4 + 2 + i) * 32], unit, mine[i], other[i]);
#pragma unroll
      for (int i = 0; i < DIM / 4; i++)
        rows.sums[i / 4][i % 4] = rows.sums[i / 4][i % 4] * mine[i % 2] + room[i * 32] * other[i % 2];
    }
    sync_first<MATES * UNITS * 32>();
  }
}

// A head's result of an item that was not cut.
__device__ __forceinline__ void write_pairs(const Pairs& rows, const Item& item, int head, int first,
                                            unsigned short* out) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const Pair pair(item, head, first, g);
  float by[2];
#pragma unroll
  for (int i = 0; i < 2; i++) by[i] = 1.f / (rows.total[i] == 0.f ? 1.f : rows.total[i]);
#pragma unroll
  for (int m = 0; m < DIM / 16; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const unsigned two = turn_matrix(pair_bf16(rows.sums[m][2 * half] * by[0], rows.sums[m][2 * half + 1] * by[1]));
      if (pair.inside) *reinterpret_cast<unsigned*>(out + pair.target * DIM + m * 16 + half * 8 + 2 * t) = two;
    }
}

// A head's part of one that was.
__device__ __forceinline__ void write_part(const Pairs& rows, const Item& item, int head, int first, float unit,
                                           float* parts) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const Pair pair(item, head, first, 2 * t + i);
    if (!pair.inside) continue;
    float* part = part_of(parts, pair.target, item.split);
#pragma unroll
    for (int m = 0; m < DIM / 16; m++) {
      part[m * 16 + g] = rows.sums[m][i];
      part[m * 16 + 8 + g] = rows.sums[m][2 + i];
    }
    if (g == 0) part[DIM] = rows.most[i] * (unit / LOG2E), part[DIM + 1] = rows.total[i];
  }
}
