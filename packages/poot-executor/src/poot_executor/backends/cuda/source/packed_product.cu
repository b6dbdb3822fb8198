// Products of up to some hundred rows with a packed weight, codes decoded in registers to operands of the matrix unit.
//
// A block has LINES rows of the weight and all rows of the step (or COLUMNS of them): CUTS groups of warps share its
// columns out among themselves, LINE_WARPS warps its rows. Copies for STAGES steps of DEPTH columns are under way. The
// weight's rows are the matrix unit's rows. Where a lane's operands stand along the columns is free, as long as both
// sides agree: of 128 columns, each lane of a quad takes a group of 32, so that it decodes one scale for all of them, and
// of a row of x the same, eight elements at a time, as they lie.
//
// Macros, beside those of packed_codes.cuh: COLUMNS, LINE_WARPS, CUTS, TILES (of 16 rows a warp), DEPTH, STAGES; ALIGNED:
// elements, up to 256, that the rows are a multiple of; WHOLE: whether of DEPTH; BIAS, GATE (1 SiLU, 2 GELU), PIECES (0: no norm), RESIDUAL, SPLIT,
// FLOAT (the result is float32), PDL.
#include "intrinsics.cuh"
#include "packed_codes.cuh"

constexpr int THREADS = 32 * LINE_WARPS * CUTS;
constexpr int LINES = 16 * TILES * LINE_WARPS;
constexpr int EACH = GATE ? 2 : 1;       // rows of the weight for a column of the result
constexpr int OUTS = LINES / EACH;       // columns of the result that a block has
constexpr int SUMMED = 64;               // columns that a sum of squares is of
constexpr int NTILES = COLUMNS / 8;      // of the matrix unit, along the rows of x

__device__ constexpr int divisor(int a, int b) { return b == 0 ? a : divisor(b, a % b); }

// A plane's part of a stage: bytes of a row and of a copy, and where a byte of a row is.
template <int BITS>
struct Plane {
  static constexpr int ROW = DEPTH * BITS / 8;
  static constexpr int COPY = divisor(16, divisor(ROW, ALIGNED * BITS / 8));
  // What lanes load at once lies in different banks: of 256 columns, the halves change places in every other 16 bytes'
  // worth of rows.
  __device__ static __forceinline__ int place(int line, int byte) {
    return line * ROW + (DEPTH == 128 ? byte : byte ^ (line * BITS / 4 % 2 * (ROW / 2)));
  }
};
using Low = Plane<LOW_BITS>;
using High = Plane<HIGH_BITS ? HIGH_BITS : 4>;
struct Scale {
  static constexpr int ROW = DEPTH / GROUP * SCALE_BYTES;
  static constexpr int COPY = divisor(16, divisor(ROW, ALIGNED / GROUP * SCALE_BYTES));
  __device__ static __forceinline__ int place(int line, int byte) { return line * ROW + byte; }
};
struct Unit {  // one for 256 columns
  static constexpr int ROW = 4, COPY = 4;
  __device__ static __forceinline__ int place(int line, int byte) { return line * ROW + byte; }
};
static_assert(DEPTH == 128 || DEPTH == 256, "stages are one or two times 128 columns");
static_assert(DEPTH % (128 * CUTS) == 0, "a cut is whole quads of groups");
constexpr int LOW_AT = COLUMNS * DEPTH * 2;
constexpr int HIGH_AT = LOW_AT + LINES * Low::ROW;
constexpr int SCALE_AT = HIGH_AT + (HIGH_BITS ? LINES * High::ROW : 0);
constexpr int UNIT_AT = SCALE_AT + LINES * Scale::ROW;
constexpr int STAGE = (UNIT_AT + (MULTIPLES ? LINES * Unit::ROW : 0) + 127) / 128 * 128;
constexpr int RESULT_PITCH = LINES + 4;  // floats between the rows of x in the results

struct Place {
  int tile, part, block;  // of the weight's rows, of the columns, of the rows of x
  int n, k, x_pitch;
};

// The row of the weight that is row `line` of the block: 16 of gate, 16 of up and so on, if there are both.
__device__ __forceinline__ int weight_row(const Place& at, int line) {
  if (!GATE) return min(at.tile * OUTS + line, at.n - 1);
  constexpr int HALF = 8 * TILES;  // a warp's rows of gate, which are before those of up
  int warp = line / (16 * TILES), within = line % (16 * TILES);
  int out = at.tile * OUTS + warp * HALF + within % HALF;
  return min(out, at.n - 1) + (within < HALF ? 0 : at.n);
}

// A thread's copies of a stage's part of a plane: always the same bytes of lines that are a constant apart.
template <class P>
struct Copies {
  static constexpr int A_ROW = P::ROW / P::COPY;
  static constexpr int TURNS = (LINES * A_ROW + THREADS - 1) / THREADS;
  static constexpr bool EVEN = LINES * A_ROW % THREADS == 0;
  static_assert(THREADS % A_ROW == 0, "a turn is whole lines");

  const unsigned char* from;
  unsigned at[TURNS];  // from there, bytes
  int line, byte, bytes;

  // `bytes` are those of a row of the plane.
  __device__ __forceinline__ void begin(const unsigned char* plane, const Place& place, int row_bytes) {
    from = plane, bytes = row_bytes, line = threadIdx.x / A_ROW, byte = threadIdx.x % A_ROW * P::COPY;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
      at[turn] = static_cast<unsigned>(weight_row(place, line + turn * (THREADS / A_ROW))) * bytes + byte;
  }

  // Copy from byte `start` of the rows on.
  __device__ __forceinline__ void copy(unsigned char* to, unsigned start) const {
    const bool there = WHOLE || start + byte < bytes;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
      if (EVEN || line + turn * (THREADS / A_ROW) < LINES)
        copy_async<P::COPY>(to + P::place(line + turn * (THREADS / A_ROW), byte), from + (at[turn] + start), there);
  }
};

// The planes of the weight.
struct Weight {
  Copies<Low> low;
  Copies<High> high;
  Copies<Scale> scale;
  Copies<Unit> unit;

  __device__ __forceinline__ void begin(const unsigned char* of_low, const unsigned char* of_high,
                                        const unsigned char* of_scale, const unsigned char* of_unit, const Place& place) {
    low.begin(of_low, place, place.k / 8 * LOW_BITS);
    if (HIGH_BITS) high.begin(of_high, place, place.k / 8 * HIGH_BITS);
    scale.begin(of_scale, place, place.k / GROUP * SCALE_BYTES);
    if (MULTIPLES) unit.begin(of_unit, place, place.k / 256 * 4);
  }

  __device__ __forceinline__ void copy(unsigned char* stage, int column) const {
    low.copy(stage + LOW_AT, column / 8 * LOW_BITS);
    if (HIGH_BITS) high.copy(stage + HIGH_AT, column / 8 * HIGH_BITS);
    scale.copy(stage + SCALE_AT, column / GROUP * SCALE_BYTES);
    if (MULTIPLES) unit.copy(stage + UNIT_AT, column / 256 * 4);
  }
};

// Where eight elements of x are: neighbours change places so that what a quad of lanes loads for two rows, every fourth
// chunk, lies in different banks.
__device__ __forceinline__ int x_place(int row, int chunk) {
  return row * DEPTH * 2 + (chunk ^ (chunk / 8 % 2 * 2) ^ (row % 2)) * 16;
}

// A thread's copies of the rows of x. Beyond the last row it is the last row: those results go nowhere.
struct Rows {
  static constexpr int CHUNKS = DEPTH / 8, STRIDE = THREADS / CHUNKS;
  static constexpr int TURNS = (COLUMNS + STRIDE - 1) / STRIDE;
  static_assert(THREADS % CHUNKS == 0, "a turn is whole rows");

  const unsigned char* from;
  unsigned at[TURNS];
  int row, chunk, k;

  __device__ __forceinline__ void begin(const unsigned char* x, const Place& place, int rows) {
    from = x, k = place.k, row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      int of_x = min(place.block * COLUMNS + row + turn * STRIDE, rows - 1);
      at[turn] = (static_cast<unsigned>(of_x) * place.x_pitch + chunk * 8) * 2;
    }
  }

  __device__ __forceinline__ void copy(unsigned char* stage, unsigned column) const {
    const bool there = WHOLE || column + chunk * 8 < k;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
      if (COLUMNS % STRIDE == 0 || row + turn * STRIDE < COLUMNS)
        copy_async<16>(stage + x_place(row + turn * STRIDE, chunk), from + (at[turn] + column * 2), there);
  }
};

// What a warp has of a stage: its rows of the weight times its share of the columns.
__device__ __forceinline__ void multiply(float (&sums)[TILES][NTILES][4], const unsigned char* stage,
                                         const Masks& masks) {
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
          scale_of(stage + SCALE_AT + line * Scale::ROW + (group * (32 / GROUP) + s) * SCALE_BYTES, unit[m][half],
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

// Results go to (CUTS, COLUMNS, RESULT_PITCH) floats.
__device__ __forceinline__ void keep(float* results, const float (&sums)[TILES][NTILES][4]) {
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

// The sum of the cuts at a row of x and a row of the block.
__device__ __forceinline__ float result(const float* results, int row, int line) {
  float sum = 0.f;
#pragma unroll
  for (int cut = 0; cut < CUTS; cut++) sum += results[(cut * COLUMNS + row) * RESULT_PITCH + line];
  return sum;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int lanes = 16; lanes; lanes /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, lanes);
  return value;
}

__device__ __forceinline__ float gate(float value, float up) {
  float inner = GATE == 2 ? 1.5957691216057308f * (value + 0.044715f * value * value * value) : value;
  return value / (1.f + __expf(-inner)) * up;
}

// 1 / rms of the block's rows of x, whose sums of squares are given, to `factors`.
__device__ __forceinline__ void norm_factors(float* factors, const float* squares, const Place& at, int rows, float eps) {
  const int lane = threadIdx.x % 32, pieces = (at.k + SUMMED - 1) / SUMMED;
  for (int row = threadIdx.x / 32; row < COLUMNS; row += THREADS / 32) {
    int of_x = at.block * COLUMNS + row;
    float sum = 0.f;
    if (of_x < rows)
      for (int i = lane; i < pieces; i += 32) sum += squares[static_cast<long long>(of_x) * pieces + i];
    sum = warp_sum(sum);
    if (lane == 0) factors[row] = rsqrtf(sum / at.k + eps);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    packed_product(const unsigned char* x, const unsigned char* low, const unsigned char* high,
                   const unsigned char* scale, const unsigned char* unit, const float* bias, const float* squares,
                   const unsigned short* residual, const float* gain, void* out, unsigned short* scaled, float* sums,
                   float* parts, int* locks, int rows, int n, int k, int span, int splits, int x_pitch, int pitch,
                   float eps, float offset) {
  SHARED_BYTES(shared);
  const Place at{static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z), n, k, x_pitch};
  Weight weight;
  weight.begin(low, high, scale, unit, at);
  Rows of_x;
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
  const Masks masks;
  float products[TILES][NTILES][4] = {};
  int stage = 0, next = STAGES - 1;
  for (int step = 0; step < steps; step++) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    if (step + STAGES - 1 < steps) {
      weight.copy(shared + next * STAGE, begin + (step + STAGES - 1) * DEPTH);
      of_x.copy(shared + next * STAGE, begin + (step + STAGES - 1) * DEPTH);
    }
    copy_commit();
    multiply(products, shared + stage * STAGE, masks);
    stage = stage + 1 < STAGES ? stage + 1 : 0;
    next = next + 1 < STAGES ? next + 1 : 0;
  }
  copy_wait<0>();
  __syncthreads();
  float* results = reinterpret_cast<float*>(shared);
  float* factors = results + CUTS * COLUMNS * RESULT_PITCH;
  keep(results, products);
  if (PIECES) norm_factors(factors, squares, at, rows, eps);
  __syncthreads();

  const int first_row = at.block * COLUMNS, first_out = at.tile * OUTS;
  const int some = min(COLUMNS, rows - first_row);
  if (SPLIT) {
    for (int i = threadIdx.x; i < some * OUTS; i += THREADS) {
      int row = i / OUTS, line = i % OUTS;
      if (first_out + line < n)
        parts[(static_cast<long long>(at.part) * rows + first_row + row) * n + first_out + line] =
            result(results, row, line);
    }
    __threadfence();
    __syncthreads();
    int* last = reinterpret_cast<int*>(factors + COLUMNS);
    int* lock = locks + at.block * gridDim.x + at.tile;
    if (threadIdx.x == 0) {
      *last = add_acq_rel(lock, 1) == splits - 1;
      if (*last) *lock = 0;
    }
    __syncthreads();
    if (!*last) return;
    __threadfence();
  }
  for (int i = threadIdx.x; i < some * OUTS; i += THREADS) {
    int row = i / OUTS, line = i % OUTS, of_out = first_out + line;
    if (of_out >= n) {
      if (RESIDUAL) results[row * RESULT_PITCH + line] = 0.f;
      continue;
    }
    const long long of_row = first_row + row;
    float value = 0.f, up = 0.f;
    if (SPLIT) {
      for (int part = 0; part < splits; part++)
        value += load_fresh(parts + (static_cast<long long>(part) * rows + of_row) * n + of_out);
    } else if (GATE) {
      constexpr int HALF = 8 * TILES;
      int of_gate = line / HALF * 2 * HALF + line % HALF;
      value = result(results, row, of_gate);
      up = result(results, row, of_gate + HALF);
    } else {
      value = result(results, row, line);
    }
    if (PIECES) {
      value *= factors[row];
      up *= factors[row];
    }
    if (BIAS) value += bias[of_out];
    if (GATE) value = gate(value, up);
    if (RESIDUAL) {
      // The norm is that of the sum as it is kept.
      unsigned short sum = to_bf16(value + from_bf16(residual[of_row * n + of_out]));
      value = from_bf16(sum);
      scaled[of_row * n + of_out] = to_bf16(value * (gain[of_out] + offset));
      results[row * RESULT_PITCH + line] = value * value;
    }
    if (FLOAT)
      static_cast<float*>(out)[of_row * pitch + of_out] = value;
    else
      static_cast<unsigned short*>(out)[of_row * pitch + of_out] = to_bf16(value);
  }
  if (RESIDUAL) {
    __syncthreads();
    const int lane = threadIdx.x % 32, pieces = (n + SUMMED - 1) / SUMMED;
    for (int i = threadIdx.x / 32; i < some * (OUTS / SUMMED); i += THREADS / 32) {
      int row = i / (OUTS / SUMMED), piece = i % (OUTS / SUMMED), of_piece = first_out / SUMMED + piece;
      const float* from = results + row * RESULT_PITCH + piece * SUMMED + lane;
      float sum = warp_sum(from[0] + from[32]);
      if (lane == 0 && of_piece < pieces) sums[(first_row + row) * static_cast<long long>(pieces) + of_piece] = sum;
    }
  }
}
