// What kernels of paged attention share: items of a plan, and the sum of the parts of an item that was cut.
#pragma once

#include "intrinsics.cuh"

constexpr float LOG2E = 1.4426950408889634f;
#define NEVER __int_as_float(0xFF800000)

struct Item {
  int row, start, queries, position, begin, end, split, splits;
};

__device__ __forceinline__ Item load_item(const int* plan, int index) {
  const int4* entry = reinterpret_cast<const int4*>(plan + (1 + index) * 8);
  int4 one = entry[0], two = entry[1];
  return {one.x, one.y, one.z, one.w, two.x, two.y, two.z, two.w};
}

// Take in what other keys gave a row. What each has of the values counts by `mine` and `other` from then on.
__device__ __forceinline__ void join(float& most, float& total, float other_most, float other_total, float unit,
                                     float& mine, float& other) {
  const float peak = fmaxf(most, other_most), safe = peak == NEVER ? 0.f : peak;
  mine = power_of_two((most - safe) * unit);
  other = power_of_two((other_most - safe) * unit);
  most = peak;
  total = total * mine + other_total * other;
}

// What part `split` of a (query, head) pair has: DIM sums, then the greatest score and the sum of weights.
__device__ __forceinline__ float* part_of(float* parts, long long target, int split) {
  return parts + (target * SPLITS + split) * (DIM + 2);
}

// After all warps of a block have written their part of what was cut: whether it is the last block to come, which sees
// what all have written. The lock is zero between runs; who writes `last` next has met all others before.
__device__ __forceinline__ bool comes_last(int* lock, int splits, int* last) {
  __threadfence();
  sync_first<THREADS>();
  if (threadIdx.x == 0) {
    *last = add_acq_rel(lock, 1) == splits - 1;
    if (*last) *lock = 0;
  }
  sync_first<THREADS>();
  __threadfence();
  return *last;
}

// Add up the parts of one (query, head) pair, in their order, by one warp. A lane knows one part's share, and has a few
// elements of all parts, which are on their way several parts at a time.
__device__ __forceinline__ void merge_parts(unsigned short* out, const float* parts, long long target, int splits) {
  static_assert(SPLITS <= 32, "a lane a part");
  constexpr int PAIRS = DIM / 64, BATCH = SPLITS < 16 ? SPLITS : 16;
  const int lane = threadIdx.x % 32;
  const float* first = parts + target * SPLITS * (DIM + 2);
  const float* mine = first + (lane < splits ? lane : 0) * (DIM + 2) + DIM;
  const float peak = lane < splits ? load_fresh(mine) : NEVER, weight = load_fresh(mine + 1);
  float share = 0.f, total = 0.f, sums[PAIRS * 2] = {};
  for (int done = 0; done < splits; done += BATCH) {
    float2 values[BATCH][PAIRS];
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      const float* from = first + min(done + i, splits - 1) * (DIM + 2) + lane * 2;
#pragma unroll
      for (int j = 0; j < PAIRS; j++) values[i][j] = load_fresh(reinterpret_cast<const float2*>(from + j * 64));
    }
    if (done == 0) {
      float most = peak;
#pragma unroll
      for (int bits = 16; bits; bits /= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, bits));
      share = __expf(peak - (most == NEVER ? 0.f : most));
      total = weight * share;
#pragma unroll
      for (int bits = 16; bits; bits /= 2) total += __shfl_xor_sync(0xFFFFFFFFu, total, bits);
    }
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      // Of a part that is not there the share is zero.
      const float by = __shfl_sync(0xFFFFFFFFu, share, (done + i) % 32);
#pragma unroll
      for (int j = 0; j < PAIRS; j++) sums[2 * j] += values[i][j].x * by, sums[2 * j + 1] += values[i][j].y * by;
    }
  }
  const float by = 1.f / (total == 0.f ? 1.f : total);
#pragma unroll
  for (int j = 0; j < PAIRS; j++)
    *reinterpret_cast<unsigned*>(out + target * DIM + j * 64 + lane * 2) =
        pair_bf16(sums[2 * j] * by, sums[2 * j + 1] * by);
}
