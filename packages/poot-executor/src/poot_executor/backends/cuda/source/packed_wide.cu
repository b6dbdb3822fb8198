// Products of some hundred rows with a packed weight, codes decoded in registers to operands of Hopper's asynchronous
// matrix unit.
//
// A warpgroup has 64 rows of the weight, a warp 16 of them, and decodes operands while the unit multiplies the ones
// before. x comes from shared memory in its own order, so a lane's operands are elements 2 t and 2 t + 1 of every oct, and
// all lanes of a quad need each group's scale: each decodes one of four, and the others get it from there.
//
// A warpgroup of its own copies, and barriers say what is there and what may be written over, so that the others need not
// keep step: while one decodes, another multiplies.
#define THREADS (128 * GROUPS)
#define COPIERS 128
#define FIRST_COPIER THREADS
#define LINES (64 * GROUPS)
#define CUTS 1
#include "packed_frame.cuh"
#include "slots.cuh"

static_assert(DEPTH == 128 && (COLUMNS == 64 || COLUMNS == 128), "tiles are 64 or 128 rows of 128 bytes");

constexpr int BARRIERS_AT = FACTORS_AT + COLUMNS * 4;
// A block is launched with as many registers a thread as there are, and those that copiers leave go to the others.
constexpr int COPIER_REGISTERS = 64;
constexpr int LAUNCHED = 65536 / (THREADS + COPIERS) / 8 * 8;
constexpr int LEFT = (LAUNCHED * (THREADS + COPIERS) - COPIERS * COPIER_REGISTERS) / THREADS / 8 * 8;

struct Sums {
  float sums[COLUMNS / 2] = {};
  Masks masks;

  // Two tiles of 64 columns; chunks as the matrix unit wants them (`multiply_async`).
  __device__ static __forceinline__ int x_place(int row, int chunk) {
    return (chunk / 8 * COLUMNS + row) * 128 + (chunk % 8 ^ row % 8) * 16;
  }

  __device__ __forceinline__ void multiply(const unsigned char* stage) {
    const int lane = threadIdx.x % 32, t = lane % 4, first = threadIdx.x / 32 * 16 + lane / 4;
    unsigned scales[2][32 / GROUP];  // those of group t
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int line = first + half * 8;
      const unsigned unit = MULTIPLES ? *reinterpret_cast<const unsigned*>(stage + UNIT_AT + line * Unit::ROW) : 0;
#pragma unroll
      for (int s = 0; s < 32 / GROUP; s++)
        scales[half][s] =
            scale_pair(stage + SCALE_AT + line * Scale::ROW + (t * (32 / GROUP) + s) * SCALE_BYTES, unit);
    }
    unsigned a[2][4];
#pragma unroll
    for (int group = 0; group < 4; group++) {
      Group<LOW_BITS> low[2];
      Group<HIGH_BITS ? HIGH_BITS : 1> high[2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        low[half].load(stage + LOW_AT + Low::place(first + half * 8, group * 4 * LOW_BITS));
        if (HIGH_BITS) high[half].load(stage + HIGH_AT + High::place(first + half * 8, group * 4 * HIGH_BITS));
      }
#pragma unroll
      for (int of_group = 0; of_group < 2; of_group++) {
        const int slab = group * 2 + of_group;
        unsigned(&operand)[4] = a[slab % 2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const unsigned pair = __shfl_sync(0xFFFFFFFFu, scales[half][of_group * 16 / GROUP], lane / 4 * 4 + group);
          unsigned size, least;
          spread_scale(pair, size, least);
#pragma unroll
          for (int oct = 0; oct < 2; oct++)
            operand[oct * 2 + half] =
                weights_at(masks, t, low[half].word(of_group * 2 + oct),
                           HIGH_BITS ? high[half].word(of_group * 2 + oct) : 0, size, least);
        }
        multiply_fence();
        multiply_async(sums, operand, stage + slab / 4 * COLUMNS * 128, slab % 4);
        multiply_commit();
        multiply_wait<1>();
      }
    }
    multiply_wait<0>();
  }

  __device__ __forceinline__ void keep(float* results) const {
    const int lane = threadIdx.x % 32, t = lane % 4, first = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++)
      results[(i / 4 * 8 + 2 * t + i % 2) * RESULT_PITCH + first + i / 2 % 2 * 8] = sums[i];
  }
};

__device__ __forceinline__ void copy_all(Slots slots, const unsigned char* x, const unsigned char* low,
                                         const unsigned char* high, const unsigned char* scale,
                                         const unsigned char* unit, const Place& at, int rows, int begin, int steps) {
  Weight weight;
  weight.begin(low, high, scale, unit, at);
  Rows<Sums> of_x;
  of_x.begin(x, at, rows);
#pragma unroll
  for (int i = 0; i < STAGES; i++)
    if (i < steps) weight.copy(slots.shared + i * STAGE, begin + i * DEPTH);
  if (PDL) depend_wait();
  for (int step = 0; step < steps; step++) {
    if (step >= STAGES) {
      slots.wait_empty();
      weight.copy(slots.stage(), begin + step * DEPTH);
    }
    of_x.copy(slots.stage(), begin + step * DEPTH);
    barrier_arrive_copied(slots.full());
    slots.next();
  }
  copy_commit();
  copy_wait<0>();
}

extern "C" __global__ void __launch_bounds__(THREADS + COPIERS, 1) packed_wide(PRODUCT_ARGUMENTS) {
  SHARED_BYTES(shared);
  const Place at PRODUCT_PLACE;
  const int begin = at.part * span, steps = (min(begin + span, k) - begin + DEPTH - 1) / DEPTH;
  Slots slots{shared, shared + BARRIERS_AT};
  if (threadIdx.x == 0) slots.begin(COPIERS, THREADS / 32);
  __syncthreads();
  // The next kernel may start at once: while this one streams weights there is room for blocks that wait.
  if (PDL) depend_launch();
  if (threadIdx.x >= THREADS) {
    fewer_registers<COPIER_REGISTERS>();
    copy_all(slots, x, low, high, scale, unit, at, rows, begin, steps);
  } else {
    more_registers<(LEFT < 232 ? LEFT : 232)>();
    const Finish finish PRODUCT_FINISH;
    if (PDL) depend_wait();
    float* factors = reinterpret_cast<float*>(shared + FACTORS_AT);
    if (PIECES) norm_factors(factors, finish, at, rows);
    Sums products;
    for (int step = 0; step < steps; step++) {
      slots.wait_full();
      fence_async();
      products.multiply(slots.stage());
      slots.leave();
      slots.next();
    }
    sync_first<THREADS>();
    float* results = reinterpret_cast<float*>(shared);
    products.keep(results);
    sync_first<THREADS>();
    finish_block(results, factors, finish, at, rows);
  }
}
