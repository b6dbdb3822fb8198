// Slots that the blocks of a cluster fill for one another. Macros: THREADS (that use them), CLUSTER (1 or 2).
#pragma once

#include "slots.cuh"

// A stage may be written over, in all blocks that write to it.
__device__ __forceinline__ void leave(const Slots& slots) {
  if (CLUSTER == 1) return slots.leave();
  __syncwarp();
  if (threadIdx.x % 32 < CLUSTER) barrier_arrive_in(slots.empty(), threadIdx.x % 32);
}

// Products over k columns, of which there are some, 64 of them a stage, by a warpgroup: `multiply(stage, slab)` asks for
// those of 16 columns. They are done when this returns, and sums that are read afterwards are named by multiply_done.
template <class Multiply>
__device__ __forceinline__ void multiply_stages(Slots& slots, int k, Multiply multiply) {
  Slots before = slots;
  int at = 0;
  do {  // at least once: where sums may come to their end without a product, the assembler waits after each of them
    slots.wait_full();
    multiply_fence();
#pragma unroll
    for (int slab = 0; slab < 4; slab++) multiply(slots.stage(), slab);
    multiply_commit();
    if (at) {
      multiply_wait<1>();
      leave(before);
    }
    before = slots;
    slots.next();
    at += 64;
  } while (at < k);
  multiply_wait<0>();
  leave(before);
}

template <int COUNT>
__device__ __forceinline__ void clear(float (&sums)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) sums[i] = 0.f;
}

// The sums of a tile, by a warpgroup: its rows of one operand (from byte `a` of a stage on) by all columns of the other
// (from `b` on).
template <int COUNT>
__device__ __forceinline__ void multiply_stages(Slots& slots, float (&sums)[COUNT], int a, int b, int k) {
  clear(sums);
  multiply_stages(slots, k, [&](const unsigned char* stage, int slab) { multiply_async(sums, stage + a, stage + b, slab); });
  multiply_done(sums);
}

// The same for two such pairs of operands at once.
template <int COUNT, int MORE>
__device__ __forceinline__ void multiply_stages(Slots& slots, float (&sums)[COUNT], int a, int b, float (&more)[MORE], int c,
                                                int d, int k) {
  clear(sums);
  clear(more);
  multiply_stages(slots, k, [&](const unsigned char* stage, int slab) {
    multiply_async(sums, stage + a, stage + b, slab);
    multiply_async(more, stage + c, stage + d, slab);
  });
  multiply_done(sums);
  multiply_done(more);
}

// By all threads of a block, before any of them uses the slots.
__device__ __forceinline__ void begin_slots(const Slots& slots) {
  if (threadIdx.x == 0) slots.begin(1, THREADS / 32 * CLUSTER);
  if (CLUSTER > 1)
    meet_cluster();
  else
    __syncthreads();
}

// By all threads of a block, last: none goes while the other may still arrive at its barriers.
__device__ __forceinline__ void end_slots() {
  __syncwarp();
  if (CLUSTER > 1) meet_cluster();
}
