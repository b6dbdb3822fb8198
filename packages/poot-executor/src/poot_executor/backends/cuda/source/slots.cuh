// Stages that copiers fill and others use, in slots of shared memory in turn.
#pragma once

#include "intrinsics.cuh"

// Two barriers a slot: what is there, and what may be written over.
struct Slots {
  unsigned char *shared, *barriers;
  int slot = 0;
  unsigned parity = 0;

  // By some thread of the block, before all meet.
  __device__ __forceinline__ void begin(int copiers, int users) const {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(barriers + i * 16, copiers);
      barrier_init(barriers + i * 16 + 8, users);
    }
    fence_async();  // the copy engine sees them too
  }
  __device__ __forceinline__ unsigned char* stage() const { return shared + slot * STAGE; }
  __device__ __forceinline__ void* full() const { return barriers + slot * 16; }
  __device__ __forceinline__ void* empty() const { return barriers + slot * 16 + 8; }
  __device__ __forceinline__ void wait_full() const { barrier_wait(full(), parity); }
  // Of a barrier that is new, the phase before its first is over.
  __device__ __forceinline__ void wait_empty() const { barrier_wait(empty(), parity ^ 1); }
  __device__ __forceinline__ void next() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  }
  // By all lanes of a warp, which is one of the users.
  __device__ __forceinline__ void leave() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty());
  }
};
