// What is done around a product (see `backends.triton.kernels.products.Around`). Macros: GATE (1 SiLU, 2 GELU).
#pragma once

#include "intrinsics.cuh"

constexpr int SUMMED = 64;  // columns that a sum of squares is of

// The sum over LANES neighbours of a warp.
template <int LANES = 32>
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int lanes = LANES / 2; lanes; lanes /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, lanes);
  return value;
}

__device__ __forceinline__ float gate(float value, float up) {
  float inner = GATE == 2 ? 1.5957691216057308f * (value + 0.044715f * value * value * value) : value;
  return __fdividef(value, 1.f + __expf(-inner)) * up;
}

// 1 / rms of a row of k columns whose sums of squares these are, by a warp.
__device__ __forceinline__ float norm_factor(const float* squares, int k, float eps) {
  float sum = 0.f;
  for (int i = threadIdx.x % 32; i < (k + SUMMED - 1) / SUMMED; i += 32) sum += squares[i];
  return rsqrtf(warp_sum(sum) / k + eps);
}
