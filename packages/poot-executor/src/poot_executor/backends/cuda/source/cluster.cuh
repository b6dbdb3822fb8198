// Slots that the blocks of a cluster fill for one another. Macros: THREADS (that use them), CLUSTER (1 or 2).
#pragma once

#include "slots.cuh"

// A stage may be written over, in all blocks that write to it.
__device__ __forceinline__ void leave(const Slots& slots) {
  if (CLUSTER == 1) return slots.leave();
  __syncwarp();
  if (threadIdx.x % 32 < CLUSTER) barrier_arrive_in(slots.empty(), threadIdx.x % 32);
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
