// What kernels of products with a packed weight have in common: copies to shared memory, and what comes after.
//
// A block has LINES rows of the weight and COLUMNS rows of the step. Copies for STAGES steps of DEPTH columns are under
// way, by COPIERS threads from FIRST_COPIER on. THREADS multiply; CUTS groups of them share the columns out among themselves.
//
// Macros, beside those and the ones of packed_codes.cuh: ALIGNED (elements, up to 256, that the rows are a multiple of),
// WHOLE (whether of DEPTH), PDL; packed_finish.cuh has those of what comes after.
#pragma once

#include "intrinsics.cuh"
#include "packed_codes.cuh"

constexpr int OUTS = GATE ? LINES / 2 : LINES;  // columns of the result that a block has

__device__ constexpr int divisor(int a, int b) { return b == 0 ? a : divisor(b, a % b); }

// A plane's part of a stage: bytes of a row and of a copy, and where a byte of a row is.
template <int BITS>
struct Plane {
  static constexpr int ROW = DEPTH * BITS / 8;
  static constexpr int COPY = divisor(16, divisor(ROW, ALIGNED * BITS / 8));
  // What lanes load at once lies in different banks. Of 256 columns, the halves change places in every other 16 bytes'
  // worth of rows; of 128, groups do from each pair of rows of four bits to the next.
  __device__ static __forceinline__ int place(int line, int byte) {
    if (DEPTH == 256) return line * ROW + (byte ^ (line * BITS / 4 % 2 * (ROW / 2)));
    return line * ROW + (BITS == 4 ? byte ^ (line / 2 % 4 * 16) : byte);
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
constexpr int LOW_AT = COLUMNS * DEPTH * 2;
constexpr int HIGH_AT = LOW_AT + LINES * Low::ROW;
constexpr int SCALE_AT = HIGH_AT + (HIGH_BITS ? LINES * High::ROW : 0);
constexpr int UNIT_AT = SCALE_AT + LINES * Scale::ROW;
constexpr int STAGE = (UNIT_AT + (MULTIPLES ? LINES * Unit::ROW : 0) + 1023) / 1024 * 1024;
constexpr int RESULT_PITCH = LINES + 4;  // floats between the rows of x in the results
constexpr int RESULTS = CUTS * COLUMNS * RESULT_PITCH * 4;
constexpr int FACTORS_AT = STAGES * STAGE > RESULTS ? STAGES * STAGE : RESULTS;  // behind whichever is larger

// Whether copiers find each address anew: those that do nothing else have the time, and few registers.
constexpr bool ANEW = FIRST_COPIER > 0;

// A thread's number among those that copy.
__device__ __forceinline__ int copier() { return threadIdx.x - FIRST_COPIER; }

struct Place {
  int tile, part, block;  // of the weight's rows, of the columns, of the rows of x
  int n, k, x_pitch;
};

// The row of the weight that is row `line` of the block: those of gate, then those of up, if there are both.
__device__ __forceinline__ int weight_row(const Place& at, int line) {
  return min(at.tile * OUTS + line % OUTS, at.n - 1) + line / OUTS * at.n;
}

// A thread's copies of a stage's part of a plane: always the same bytes of lines that are a constant apart.
template <class P>
struct Copies {
  static constexpr int A_ROW = P::ROW / P::COPY;
  static constexpr int TURNS = (LINES * A_ROW + COPIERS - 1) / COPIERS;
  static constexpr bool EVEN = LINES * A_ROW % COPIERS == 0;
  static_assert(COPIERS % A_ROW == 0, "a turn is whole lines");

  const unsigned char* from;
  unsigned at[TURNS];  // from there, bytes
  int line, byte, bytes;
  Place place;

  // `row_bytes` are those of a row of the plane.
  __device__ __forceinline__ void begin(const unsigned char* plane, const Place& of_block, int row_bytes) {
    from = plane, place = of_block, bytes = row_bytes, line = copier() / A_ROW, byte = copier() % A_ROW * P::COPY;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) at[turn] = start_of(line, turn);
  }

  __device__ __forceinline__ unsigned start_of(int first, int turn) const {
    return static_cast<unsigned>(weight_row(place, first + turn * (COPIERS / A_ROW))) * bytes + byte;
  }

  // Copy from byte `start` of the rows on.
  __device__ __forceinline__ void copy(unsigned char* to, unsigned start) const {
    const bool there = WHOLE || start + byte < bytes;
    const int first = ANEW ? in_register(line) : line;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
      if (EVEN || line + turn * (COPIERS / A_ROW) < LINES)
        copy_async<P::COPY>(to + P::place(line + turn * (COPIERS / A_ROW), byte),
                            from + ((ANEW ? start_of(first, turn) : at[turn]) + start), there);
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

// A thread's copies of the rows of x. Beyond the last row it is the last row: those results go nowhere.
template <class Sums>
struct Rows {
  static constexpr int CHUNKS = DEPTH / 8, STRIDE = COPIERS / CHUNKS;
  static constexpr int TURNS = (COLUMNS + STRIDE - 1) / STRIDE;
  static_assert(COPIERS % CHUNKS == 0, "a turn is whole rows");

  const unsigned char* from;
  unsigned at[TURNS];
  int row, chunk, last;
  Place place;

  __device__ __forceinline__ void begin(const unsigned char* x, const Place& of_block, int rows) {
    from = x, place = of_block, last = rows - 1, row = copier() / CHUNKS, chunk = copier() % CHUNKS;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) at[turn] = start_of(row, turn);
  }

  __device__ __forceinline__ unsigned start_of(int first, int turn) const {
    int of_x = min(place.block * COLUMNS + first + turn * STRIDE, last);
    return (static_cast<unsigned>(of_x) * place.x_pitch + chunk * 8) * 2;
  }

  __device__ __forceinline__ void copy(unsigned char* stage, unsigned column) const {
    const bool there = WHOLE || column + chunk * 8 < place.k;
    const int first = ANEW ? in_register(row) : row;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
      if (COLUMNS % STRIDE == 0 || row + turn * STRIDE < COLUMNS)
        copy_async<16>(stage + Sums::x_place(row + turn * STRIDE, chunk),
                       from + ((ANEW ? start_of(first, turn) : at[turn]) + column * 2), there);
  }
};

#include "packed_finish.cuh"

// The arguments of a kernel, as two structures.
#define PRODUCT_ARGUMENTS                                                                                              \
  const unsigned char *x, const unsigned char *low, const unsigned char *high, const unsigned char *scale,             \
      const unsigned char *unit, const float *bias, const float *squares, const unsigned short *residual,              \
      const float *gain, void *out, unsigned short *scaled, float *sums, float *parts, int *locks, int rows, int n,    \
      int k, int span, int x_pitch, int pitch, float eps, float offset
#define PRODUCT_PLACE \
  { static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z), n, k, x_pitch }
#define PRODUCT_FINISH {bias, squares, residual, gain, out, scaled, sums, parts, locks, pitch, eps, offset}
