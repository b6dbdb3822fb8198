// Products of few rows with a packed weight, codes decoded in registers to operands of mma.m16n8k16.
//
// The weight's rows are the matrix unit's rows: LINE_WARPS warps have TILES times 16 of them each. Where a lane's operands
// stand along the columns is free, as long as both sides agree: of 128 columns, each lane of a quad takes a group of 32,
// so that it decodes one scale for all of them, and of a row of x the same, eight elements at a time, as they lie.
#define THREADS (32 * LINE_WARPS * CUTS)
#define COPIERS THREADS
#define FIRST_COPIER 0
#define LINES (16 * TILES * LINE_WARPS)
#include "packed_frame.cuh"

static_assert(DEPTH % (128 * CUTS) == 0, "a cut is whole quads of groups");
constexpr int NTILES = COLUMNS / 8;  // of the matrix unit, along the rows of x

// The sums of a warp: its rows of the weight times its share of the columns.
struct Sums {
  float sums[TILES][NTILES][4] = {};
  Masks masks;

  // Neighbours change places so that what a quad loads for two rows, every fourth chunk, lies in different banks.
  __device__ static __forceinline__ int x_place(int row, int chunk) {
    return row * DEPTH * 2 + (chunk ^ (chunk / 8 % 2 * 2) ^ (row % 2)) * 16;
  }

  __device__ __forceinline__ void multiply(const unsigned char* stage) {
    const int lane = threadIdx.x % 32, quad = lane / 4, t = lane % 4;
    const int warp = threadIdx.x / 32, first = warp % LINE_WARPS * TILES * 16 + quad, cut = warp / LINE_WARPS;
    unsigned unit[TILES][2];
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const unsigned char* at = stage + UNIT_AT + (first + m * 16 + half * 8) * Unit::ROW;
        unit[m][half] = MULTIPLES ? *reinterpret_cast<const unsigned*>(at) : 0;
      }
    constexpr int QUADS = DEPTH / 128 / CUTS;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
      const int group = (cut * QUADS + i) * 4 + t;
      Group<LOW_BITS> low[TILES][2];
      Group<HIGH_BITS ? HIGH_BITS : 1> high[TILES][2];
      unsigned size[TILES][2][32 / GROUP], least[TILES][2][32 / GROUP];
#pragma unroll
      for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int line = first + m * 16 + half * 8;
          low[m][half].load(stage + LOW_AT + Low::place(line, group * 4 * LOW_BITS));
          if (HIGH_BITS) high[m][half].load(stage + HIGH_AT + High::place(line, group * 4 * HIGH_BITS));
#pragma unroll
          for (int s = 0; s < 32 / GROUP; s++)
            spread_scale(scale_pair(stage + SCALE_AT + line * Scale::ROW + (group * (32 / GROUP) + s) * SCALE_BYTES,
                                    unit[m][half]),
                         size[m][half][s], least[m][half][s]);
        }
#pragma unroll
      for (int oct = 0; oct < 4; oct++) {
        unsigned a[TILES][2][4];
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            unsigned w[4];
            const int s = oct * 8 / GROUP;
            weights_of(masks, low[m][half].word(oct), HIGH_BITS ? high[m][half].word(oct) : 0, size[m][half][s],
                       least[m][half][s], w);
            a[m][0][half] = w[0];
            a[m][0][2 + half] = w[1];
            a[m][1][half] = w[2];
            a[m][1][2 + half] = w[3];
          }
#pragma unroll
        for (int j = 0; j < NTILES; j++) {
          uint4 b = *reinterpret_cast<const uint4*>(stage + x_place(j * 8 + quad, group * 4 + oct));
#pragma unroll
          for (int m = 0; m < TILES; m++) {
            mma_bf16(sums[m][j], a[m][0], b.x, b.y);
            mma_bf16(sums[m][j], a[m][1], b.z, b.w);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void keep(float* results) const {
    const int lane = threadIdx.x % 32, quad = lane / 4, t = lane % 4;
    const int warp = threadIdx.x / 32, first = warp % LINE_WARPS * TILES * 16 + quad, cut = warp / LINE_WARPS;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int j = 0; j < NTILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          results[(cut * COLUMNS + j * 8 + 2 * t + i % 2) * RESULT_PITCH + first + m * 16 + i / 2 * 8] = sums[m][j][i];
  }
};

extern "C" __global__ void __launch_bounds__(THREADS) packed_product(PRODUCT_ARGUMENTS) {
  SHARED_BYTES(shared);
  const Place at PRODUCT_PLACE;
  const Finish finish PRODUCT_FINISH;
  Weight weight;
  weight.begin(low, high, scale, unit, at);
  Rows<Sums> of_x;
  of_x.begin(x, at, rows);
  const int begin = at.part * span, steps = (min(begin + span, k) - begin + DEPTH - 1) / DEPTH;
  // The next kernel may start at once: while this one streams weights there is room for blocks that wait.
  if (PDL) depend_launch();
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++)
    if (i < steps) weight.copy(shared + i * STAGE, begin + i * DEPTH);
  if (PDL) depend_wait();
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) {
    if (i < steps) of_x.copy(shared + i * STAGE, begin + i * DEPTH);
    copy_commit();
  }
  float* factors = reinterpret_cast<float*>(shared + FACTORS_AT);
  if (PIECES) norm_factors(factors, finish, at, rows);
  Sums products;
  int stage = 0, next = STAGES - 1;
  for (int step = 0; step < steps; step++) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    if (step + STAGES - 1 < steps) {
      weight.copy(shared + next * STAGE, begin + (step + STAGES - 1) * DEPTH);
      of_x.copy(shared + next * STAGE, begin + (step + STAGES - 1) * DEPTH);
    }
    copy_commit();
    products.multiply(shared + stage * STAGE);
    stage = stage + 1 < STAGES ? stage + 1 : 0;
    next = next + 1 < STAGES ? next + 1 : 0;
  }
  copy_wait<0>();
  __syncthreads();
  float* results = reinterpret_cast<float*>(shared);
  products.keep(results);
  __syncthreads();
  finish_block(results, factors, finish, at, rows);
}
