// Slots that the blocks of a cluster fill for one another. Macros: THREADS (that use them), CLUSTER (1 or 2).
#pragma once

#include "slots.cuh"

// A stage may be written over, in all blocks that write to it.
__device__ __forceinline__ void leave(const Slots& slots) {
  if (CLUSTER == 1) return slots.leave();
  __syncwarp();
  if (threadIdx.x % 32 < CLUSTER) barrier_arrive_in(slots.empty(), threadIdx.x % 32);
}

// The sums of a tile, by a warpgroup: over k columns, 64 of them a stage, its rows of one operand (from byte `a` of a stage
// on) by all columns of the other (from `b` on).
template <int COUNT>
__device__ __forceinline__ void multiply_stages(Slots& slots, float (&sums)[COUNT], int a, int b, int k) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) sums[i] = 0.f;
  Slots before = slots;
  for (int at = 0; at < k; at += 64) {
    slots.wait_full();
    multiply_fence();
    const unsigned char* stage = slots.stage();
#pragma unroll
    for (int slab = 0; slab < 4; slab++) multiply_async(sums, stage + a, stage + b, slab);
    multiply_commit();
    if (at) {
      multiply_wait<1>();
      leave(before);
    }
    before = slots;
    slots.next();
  }
  multiply_wait<0>(sums);
  leave(before);
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
