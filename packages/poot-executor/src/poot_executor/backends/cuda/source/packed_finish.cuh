// What comes after a product, on its way out.
//
// Macros: BIAS, GATE (1 SiLU, 2 GELU), PIECES (0: no norm was put off), RESIDUAL, SPLIT (blocks that share the columns
// out), FLOAT (the result is float32), VECTOR (neighbours of a row that are read and written at once, 4 or 1).
#pragma once

#include "around.cuh"

// Where results go and what is done with them, as `Around` in Python.
struct Finish {
  const float *bias, *squares;
  const unsigned short* residual;
  const float* gain;
  void* out;
  unsigned short* scaled;
  float *sums, *parts;
  int* locks;
  int pitch;
  float eps, offset;
};

// VECTOR neighbours.
struct Some {
  float of[VECTOR];
};

__device__ __forceinline__ Some load_some(const float* from) {
  Some some;
  if constexpr (VECTOR == 4) {
    float4 four = *reinterpret_cast<const float4*>(from);
    some.of[0] = four.x, some.of[1] = four.y, some.of[2] = four.z, some.of[3] = four.w;
  } else {
    some.of[0] = *from;
  }
  return some;
}

__device__ __forceinline__ Some load_some_fresh(const float* from) {
  Some some;
  if constexpr (VECTOR == 4) {
    float4 four = load_fresh(reinterpret_cast<const float4*>(from));
    some.of[0] = four.x, some.of[1] = four.y, some.of[2] = four.z, some.of[3] = four.w;
  } else {
    some.of[0] = load_fresh(from);
  }
  return some;
}

__device__ __forceinline__ Some load_some(const unsigned short* from) {
  Some some;
  if constexpr (VECTOR == 4) {
    uint2 two = *reinterpret_cast<const uint2*>(from);
    some.of[0] = __uint_as_float(two.x << 16), some.of[1] = __uint_as_float(two.x & 0xFFFF0000u);
    some.of[2] = __uint_as_float(two.y << 16), some.of[3] = __uint_as_float(two.y & 0xFFFF0000u);
  } else {
    some.of[0] = from_bf16(*from);
  }
  return some;
}

__device__ __forceinline__ void store_some(float* to, const Some& some) {
  if constexpr (VECTOR == 4)
    *reinterpret_cast<float4*>(to) = make_float4(some.of[0], some.of[1], some.of[2], some.of[3]);
  else
    *to = some.of[0];
}

__device__ __forceinline__ void store_some(unsigned short* to, const Some& some) {
  if constexpr (VECTOR == 4)
    *reinterpret_cast<uint2*>(to) = make_uint2(pair_bf16(some.of[0], some.of[1]), pair_bf16(some.of[2], some.of[3]));
  else
    *to = to_bf16(some.of[0]);
}

// 1 / rms of the block's rows of x, whose sums of squares are given, to `factors`. Several rows' loads are under way.
__device__ __forceinline__ void norm_factors(float* factors, const Finish& finish, const Place& at, int rows) {
  constexpr int WARPS = THREADS / 32, TURNS = (COLUMNS + WARPS - 1) / WARPS, BATCH = TURNS < 8 ? TURNS : 8;
  const int lane = threadIdx.x % 32, pieces = (at.k + SUMMED - 1) / SUMMED;
  for (int turn = 0; turn < TURNS; turn += BATCH) {
    float sum[BATCH] = {};
#pragma unroll 2
    for (int i = lane; i < pieces; i += 32)
#pragma unroll
      for (int b = 0; b < BATCH; b++) {
        int of_x = min(at.block * COLUMNS + (turn + b) * WARPS + static_cast<int>(threadIdx.x) / 32, rows - 1);
        sum[b] += finish.squares[static_cast<long long>(of_x) * pieces + i];
      }
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
      int row = (turn + b) * WARPS + threadIdx.x / 32;
      sum[b] = warp_sum(sum[b]);
      if (lane == 0 && row < COLUMNS) factors[row] = rsqrtf(sum[b] / at.k + finish.eps);
    }
  }
}

// A thread's part of a block's results: always the same columns, in rows that are TURN apart.
constexpr int A_ROW = OUTS / VECTOR;
constexpr int TURN = THREADS / A_ROW;
static_assert(THREADS % A_ROW == 0, "a turn is whole rows");
constexpr int TURNS = (COLUMNS + TURN - 1) / TURN;
constexpr int MOST = SPLIT > 4 ? 2 : 4;
constexpr int BATCH = TURNS < MOST ? TURNS : MOST;  // turns whose loads are under way at once

// The sum of the cuts. Results are (CUTS, COLUMNS, RESULT_PITCH) floats.
__device__ __forceinline__ Some result(const float* results, int row, int line) {
  Some sum = {};
#pragma unroll
  for (int cut = 0; cut < CUTS; cut++) {
    Some one = load_some(results + (cut * COLUMNS + row) * RESULT_PITCH + line);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sum.of[i] += one.of[i];
  }
  return sum;
}

// Put a block's part of the columns down. Whether all parts are there: then the last block has to add them up.
__device__ __forceinline__ bool keep_part(const float* results, const Finish& finish, const Place& at, int rows) {
  const int line = threadIdx.x % A_ROW * VECTOR, of_out = at.tile * OUTS + line;
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++) {
    int row = turn * TURN + threadIdx.x / A_ROW, of_x = at.block * COLUMNS + row;
    if (row < COLUMNS && of_x < rows && of_out < at.n)
      store_some(finish.parts + (static_cast<long long>(at.part) * rows + of_x) * at.n + of_out,
                 result(results, row, line));
  }
  __threadfence();
  sync_first<THREADS>();
  int* last = reinterpret_cast<int*>(const_cast<float*>(results));
  int* lock = finish.locks + at.block * gridDim.x + at.tile;
  if (threadIdx.x == 0) {
    *last = add_acq_rel(lock, 1) == SPLIT - 1;
    if (*last) *lock = 0;
  }
  sync_first<THREADS>();
  __threadfence();
  return *last;
}

__device__ __forceinline__ void finish_block(float* results, const float* factors, const Finish& finish,
                                             const Place& at, int rows) {
  if (SPLIT > 1 && !keep_part(results, finish, at, rows)) return;
  const int line = threadIdx.x % A_ROW * VECTOR, of_out = at.tile * OUTS + line;
  const bool column = of_out < at.n;
  Some bias = {}, gain = {};
  if (BIAS && column) bias = load_some(finish.bias + of_out);
  if (RESIDUAL && column) gain = load_some(finish.gain + of_out);
#pragma unroll
  for (int first = 0; first < TURNS; first += BATCH) {
    Some value[BATCH], kept[BATCH], part[BATCH][SPLIT];
    bool there[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
      int row = (first + b) * TURN + threadIdx.x / A_ROW, of_x = at.block * COLUMNS + row;
      there[b] = column && row < COLUMNS && of_x < rows;
      const long long place = static_cast<long long>(of_x) * at.n + of_out;
      if (RESIDUAL && there[b]) kept[b] = load_some(finish.residual + place);
      if (SPLIT > 1 && there[b])
#pragma unroll
        for (int i = 0; i < SPLIT; i++)
          part[b][i] = load_some_fresh(finish.parts + static_cast<long long>(i) * rows * at.n + place);
    }
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
      const int row = (first + b) * TURN + threadIdx.x / A_ROW;
      const long long of_x = at.block * COLUMNS + row;
      Some up = {};
      float square = 0.f;
      if (there[b]) {
        if (SPLIT > 1) {
          value[b] = {};
#pragma unroll
          for (int i = 0; i < SPLIT; i++)
#pragma unroll
            for (int j = 0; j < VECTOR; j++) value[b].of[j] += part[b][i].of[j];
        } else {
          value[b] = result(results, row, line);
          if (GATE) up = result(results, row, OUTS + line);
        }
        const float factor = PIECES ? factors[row] : 1.f;
        Some scaled;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
          float& one = value[b].of[j];
          if (PIECES) one *= factor, up.of[j] *= factor;
          if (BIAS) one += bias.of[j];
          if (GATE) one = gate(one, up.of[j]);
          if (RESIDUAL) {
            // The norm is that of the sum as it is kept.
            one = from_bf16(to_bf16(one + kept[b].of[j]));
            scaled.of[j] = one * (gain.of[j] + finish.offset);
            square += one * one;
          }
        }
        if (RESIDUAL) store_some(finish.scaled + of_x * at.n + of_out, scaled);
        if (FLOAT)
          store_some(static_cast<float*>(finish.out) + of_x * finish.pitch + of_out, value[b]);
        else
          store_some(static_cast<unsigned short*>(finish.out) + of_x * finish.pitch + of_out, value[b]);
      }
      if (RESIDUAL) {
        constexpr int LANES = VECTOR == 4 ? SUMMED / VECTOR : 32;  // of one sum; else two warps have one
        square = warp_sum<LANES>(square);
        const int lane = threadIdx.x % 32, pieces = (at.n + SUMMED - 1) / SUMMED;
        if (VECTOR == 4) {
          if (there[b] && lane % LANES == 0) finish.sums[of_x * pieces + of_out / SUMMED] = square;
        } else {
          sync_first<THREADS>();  // nobody reads results of these rows any more
          if (lane == 0 && row < COLUMNS) results[row * RESULT_PITCH + line / 32] = square;
          sync_first<THREADS>();
          if (there[b] && line % SUMMED == 0)
            finish.sums[of_x * pieces + of_out / SUMMED] =
                results[row * RESULT_PITCH + line / 32] + results[row * RESULT_PITCH + line / 32 + 1];
        }
      }
    }
  }
}
