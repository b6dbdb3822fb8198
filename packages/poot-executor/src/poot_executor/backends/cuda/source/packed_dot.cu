// Products of one to some rows with a packed weight, by integer dot products.
//
// Each block quantises the rows of x to int8 by groups of 32, into shared memory, and then goes along its share of the
// weight's rows. A lane takes a group of 32 of OUTS rows (or OUTS of gate and of up) at a time; ROW_LANES lanes and
// CUTS warps share out a row's groups. Weights for STAGES such steps are under way, in registers, also from one row to
// the next; the first are asked for before the kernel before has ended, since they do not depend on it. Integers are
// exact within a group; scales and minimums come after.
//
// Macros, beside those of packed_codes.cuh: ROWS and WIDTH of x, ROW_LANES, OUTS, CUTS, WARPS, STAGES, RESIDENT (blocks
// that a multiprocessor has room for), BIAS, GATE (1 SiLU, 2 GELU), PIECES (0: no norm), RESIDUAL, FLOAT (the result is
// float32), PDL.
#include "around.cuh"
#include "intrinsics.cuh"
#include "packed_codes.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int PARTS = 32 / ROW_LANES;           // rows of the weight, for each of a lane's, that a warp has at once
constexpr int LINES = OUTS * (GATE ? 2 : 1);    // rows of the weight that a lane has
constexpr int WARP_OUTS = PARTS * OUTS;         // columns of the result that a warp has
constexpr int BLOCK_OUTS = WARPS / CUTS * WARP_OUTS;
constexpr int GROUPS = WIDTH / 32;
constexpr int STEP = ROW_LANES * CUTS;          // groups of a row that its lanes take at a time
constexpr int STEPS = (GROUPS + STEP - 1) / STEP;
constexpr bool WHOLE = GROUPS % (STEP * STAGES) == 0;
constexpr int SETS = 32 / GROUP;                // scales of a group of 32
constexpr int NUMBER = SETS * SCALE_BYTES;      // bytes that these take
constexpr int SCALED = LOW == 4 && !HIGH ? 16 : 1;  // times that dot products are too large: codes need no shift
constexpr int FACTORS = SETS == 1 ? 2 : 4;      // numbers that go with a group of x: the step, then one for each set
constexpr int TURNS = (ROWS * WARP_OUTS + 31) / 32;
// 1.5 * 2^23: an integer of up to 22 bits is added to its bits, so that they are a float.
constexpr float NUMBERS = 12582912.f;
constexpr unsigned NUMBERS_BITS = 0x4B400000u;
static_assert(WARPS % CUTS == 0 && SUMMED % WARP_OUTS == 0, "warps share out rows, and squares are of several warps");
static_assert(NUMBER == 2 || NUMBER == 4, "a lane loads its scales at once");

// A group of 32 of a row of the weight, as stored.
struct Part {
  uint4 low, more;  // of four and of eight bits
  uint2 pairs;      // of two
  uint2 high;
  unsigned number, unit;
};

struct Planes {
  const unsigned char *low, *high, *scale, *unit;
};

// Group `at` of the weight; not `there`: a group of zeros.
__device__ __forceinline__ void fetch(Part& part, const Planes& planes, unsigned at, bool there) {
  if (LOW == 2) {
    part.pairs = load_stream(reinterpret_cast<const uint2*>(planes.low) + at);
  } else {
    part.low = load_stream(reinterpret_cast<const uint4*>(planes.low) + at);
    if (LOW == 8) part.more = load_stream(reinterpret_cast<const uint4*>(planes.high) + at);
  }
  if (HIGH == 2) part.high = load_stream(reinterpret_cast<const uint2*>(planes.high) + at);
  if (HIGH == 1) part.high.x = load_kept(reinterpret_cast<const unsigned*>(planes.high) + at);
  // Lanes further on, or this one in its next step, take the rest of what these bring.
  part.number = NUMBER == 4 ? load_kept(reinterpret_cast<const unsigned*>(planes.scale) + at)
                            : load_kept(reinterpret_cast<const unsigned short*>(planes.scale) + at);
  part.unit = MULTIPLES ? load_kept(reinterpret_cast<const unsigned*>(planes.unit) + at / 8) : 0;
  if (!WHOLE && !there) part.number = 0;
}

// Rows of x in shared memory: two planes of 16 bytes a group, and FACTORS numbers a group. For codes of four or eight
// low bits, a word is elements 0, 4, 1, 5 of an oct, or 2, 6, 3, 7 in the second plane, as codes lie. For those of
// two, a plane is of two octs, and a word elements 2 i and 2 i + 1 of both.
struct Rows {
  unsigned char* words;
  float* factors;

  __device__ __forceinline__ unsigned char* plane(int which, int row, int group) const {
    return words + ((which * ROWS + row) * GROUPS + group) * 16;
  }
  __device__ __forceinline__ float* factor(int row, int group) const {
    return factors + (row * GROUPS + group) * FACTORS;
  }
};

// The lowest bytes of four words.
__device__ __forceinline__ unsigned join(unsigned a, unsigned b, unsigned c, unsigned d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// An oct to its place, by a lane; the lanes of its group are neighbours.
__device__ __forceinline__ void quantise(const Rows& rows, const uint4& oct, int row, int at, bool there) {
  const unsigned pairs[4] = {oct.x, oct.y, oct.z, oct.w};
  unsigned most = 0;  // as bits, of which those of a NaN are the largest
#pragma unroll
  for (int i = 0; i < 4; i++) most = max(most, max(pairs[i] << 16 & 0x7FFF0000u, pairs[i] & 0x7FFF0000u));
  most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
  most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
  const float largest = __uint_as_float(most), by = 127.f / (largest > 1e-36f ? largest : 1.f);
  // Not a number if the largest is infinite.
  const float step = largest / 127.f + (largest - largest);
  unsigned whole[8];  // in the lowest byte
#pragma unroll
  for (int i = 0; i < 8; i++) {
    float value = __uint_as_float(i % 2 ? pairs[i / 2] & 0xFFFF0000u : pairs[i / 2] << 16);
    whole[i] = __float_as_uint(__fadd_rd(value * by + 0.5f, NUMBERS));
  }
  const unsigned head = join(whole[0], whole[4], whole[1], whole[5]);
  const unsigned tail = join(whole[2], whole[6], whole[3], whole[7]);
  int sum = dot_bytes(0x01010101u, head, dot_bytes(0x01010101u, tail, 0));
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
  if (SETS == 1) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
  if (!there) return;
  const int group = at / 4, o = at % 4;
  if (LOW == 2) {
    unsigned short* to = reinterpret_cast<unsigned short*>(rows.plane(o / 2, row, group)) + o % 2;
    to[0] = __byte_perm(head, 0, 0x4420);
    to[2] = __byte_perm(tail, 0, 0x4420);
    to[4] = __byte_perm(head, 0, 0x4431);
    to[6] = __byte_perm(tail, 0, 0x4431);
  } else {
    reinterpret_cast<unsigned*>(rows.plane(0, row, group))[o] = head;
    reinterpret_cast<unsigned*>(rows.plane(1, row, group))[o] = tail;
  }
  float* factor = rows.factor(row, group);
  if (o == 0) factor[0] = step / SCALED;
  // With a minimum, what that is times; else where integer dot products begin, so that offsets are taken off.
  const unsigned start = NUMBERS_BITS - static_cast<unsigned>(OFFSET * SCALED * sum);
  if (o % (4 / SETS) == 0) factor[1 + o / 2] = MINIMUM ? step * sum : __uint_as_float(start);
}

// All of x, which is loaded for the most part while `meanwhile` runs.
template <class Work>
__device__ __forceinline__ void quantise_all(const Rows& rows, const unsigned char* x, int pitch, Work meanwhile) {
  constexpr int AT_ONCE = THREADS * RESIDENT > 768 ? 2 : 4;  // as registers allow
  constexpr int OCTS = GROUPS * 4, TOTAL = ROWS * OCTS;
  for (int first = threadIdx.x; first - static_cast<int>(threadIdx.x) < TOTAL; first += AT_ONCE * THREADS) {
    uint4 oct[AT_ONCE];
    int row[AT_ONCE], at[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      at[i] = min(first + i * THREADS, TOTAL - 1), row[i] = 0;
#pragma unroll
      for (int past = 1; past < ROWS; past++)
        if (at[i] >= OCTS) at[i] -= OCTS, row[i] = past;
      oct[i] = reinterpret_cast<const uint4*>(x + static_cast<unsigned>(row[i]) * pitch * 2)[at[i]];
    }
    if (first == static_cast<int>(threadIdx.x)) meanwhile();
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
      if (first - static_cast<int>(threadIdx.x) + i * THREADS < TOTAL)
        quantise(rows, oct[i], row[i], at[i], first + i * THREADS < TOTAL);
  }
}

// Of a group of a row of x, what dot products take: the words of both planes and the numbers that go with it.
struct Group32 {
  unsigned first[4], second[4];
  float step, of_set[SETS];

  __device__ __forceinline__ void load(const Rows& rows, int row, int group) {
    const uint4 a = *reinterpret_cast<const uint4*>(rows.plane(0, row, group));
    const uint4 b = *reinterpret_cast<const uint4*>(rows.plane(1, row, group));
    first[0] = a.x, first[1] = a.y, first[2] = a.z, first[3] = a.w;
    second[0] = b.x, second[1] = b.y, second[2] = b.z, second[3] = b.w;
    if (SETS == 1) {
      const float2 two = *reinterpret_cast<const float2*>(rows.factor(row, group));
      step = two.x, of_set[0] = two.y;
    } else {
      const float4 four = *reinterpret_cast<const float4*>(rows.factor(row, group));
      step = four.x, of_set[0] = four.y, of_set[SETS - 1] = four.z;
    }
  }
};

// A group of a row of the weight: codes as bytes that lie as x does, and scales.
struct Codes {
  unsigned first[4], second[4];
  float size[SETS], least[SETS];

  __device__ __forceinline__ void decode(const Part& part) {
    if (LOW == 8) {
      first[0] = part.low.x, first[1] = part.low.y, first[2] = part.low.z, first[3] = part.low.w;
      second[0] = part.more.x, second[1] = part.more.y, second[2] = part.more.z, second[3] = part.more.w;
    } else if (LOW == 4) {
      decode_four(part);
    } else {
      decode_two(first, part.pairs.x, __byte_perm(part.high.x, part.high.x >> 4, 0x5140));
      decode_two(second, part.pairs.y, __byte_perm(part.high.x, part.high.x >> 4, 0x7362));
    }
#pragma unroll
    for (int set = 0; set < SETS; set++) scale_numbers(part.number, set, part.unit, size[set], least[set]);
  }

  // Of two octs: a word of two bits each, and of the bits above, lowest in bytes that lie as these do.
  __device__ __forceinline__ static void decode_two(unsigned (&codes)[4], unsigned word, unsigned above) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      codes[i] = word >> (2 * i) & 0x03030303u;
      if (HIGH) codes[i] |= (i < 3 ? above << (2 - i) : above >> 1) & 0x04040404u;
    }
  }

  __device__ __forceinline__ void decode_four(const Part& part) {
    const unsigned words[4] = {part.low.x, part.low.y, part.low.z, part.low.w};
#pragma unroll
    for (int oct = 0; oct < 4; oct++) {
      first[oct] = words[oct] & 0x0F0F0F0Fu;
      second[oct] = HIGH ? words[oct] >> 4 & 0x0F0F0F0Fu : words[oct] & 0xF0F0F0F0u;  // as they are: 16 times as large
      if (HIGH == 2) {
        const unsigned pairs = oct / 2 ? part.high.y : part.high.x, bytes = oct % 2 ? 0x7362 : 0x5140;
        first[oct] |= __byte_perm(pairs << 4, pairs, bytes) & 0x30303030u;
        second[oct] |= __byte_perm(pairs << 2, pairs >> 2, bytes) & 0x30303030u;
      }
      if (HIGH == 1) {
        const unsigned bits = part.high.x >> (8 * oct);
        first[oct] |= (bits & 0x55) * 0x410410 & 0x10101010u;
        second[oct] |= (bits & 0xAA) * 0x208208 & 0x10101010u;
      }
    }
  }

  // SCALED times the sum of the products of a set, less its offset, on top of NUMBERS' bits.
  __device__ __forceinline__ int dot(const Group32& x, int set) const {
    int sum = MINIMUM ? static_cast<int>(NUMBERS_BITS) : __float_as_int(x.of_set[set]), unscaled = 0;
    // A set is one of the planes, a half of both, or both.
    constexpr int WORDS = LOW == 2 ? 4 : 4 / SETS;
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
      const int word = LOW == 2 ? i : set * WORDS + i;
      if (LOW != 2 || set == 0) {
        int& to = SCALED > 1 ? unscaled : sum;
        to = dot_bytes(first[word], x.first[word], to);
      }
      if (LOW != 2 || set == 1) sum = dot_bytes(second[word], x.second[word], sum);
    }
    return SCALED > 1 ? SCALED * unscaled + sum : sum;
  }
};

// Add the products of a group of each of the lane's rows with x.
__device__ __forceinline__ void multiply(float (&totals)[ROWS][LINES], const Part (&parts)[LINES], const Rows& rows,
                                         int group) {
  Codes codes[LINES];
#pragma unroll
  for (int line = 0; line < LINES; line++) codes[line].decode(parts[line]);
#pragma unroll
  for (int row = 0; row < ROWS; row++) {
    Group32 x;
    x.load(rows, row, group);
#pragma unroll
    for (int line = 0; line < LINES; line++)
#pragma unroll
      for (int set = 0; set < SETS; set++) {
        const float dots = __int_as_float(codes[line].dot(x, set)) - NUMBERS;
        totals[row][line] += codes[line].size[set] * (x.step * dots);
        if (MINIMUM) totals[row][line] -= codes[line].least[set] * x.of_set[set];
      }
  }
}

struct Ends {
  const float* bias;
  const unsigned short* residual;
  const float* gain;
  void* out;
  unsigned short* scaled;
  float* sums;
  int* locks;
  int n, pitch;
  float offset;
};

// Numbers that go with a lane's results, loaded before these are there.
struct Beside {
  float bias[TURNS], kept[TURNS], gain[TURNS];

  __device__ __forceinline__ void load(const Ends& ends, int first) {
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int i = turn * 32 + threadIdx.x % 32, of_out = first + i % WARP_OUTS;
      const bool there = i < ROWS * WARP_OUTS && of_out < ends.n;
      if (BIAS) bias[turn] = there ? ends.bias[of_out] : 0.f;
      if (RESIDUAL) kept[turn] = there ? from_bf16(ends.residual[i / WARP_OUTS * ends.n + of_out]) : 0.f;
      if (RESIDUAL) gain[turn] = there ? ends.gain[of_out] : 0.f;
    }
  }
};

// The sums of squares of the 64 columns that a warp's are of, by the last of their warps, so that they are added up in
// one order.
__device__ __forceinline__ void sum_squares(const Ends& ends, int first) {
  const int lane = threadIdx.x % 32, piece = first / SUMMED;
  __syncwarp();
  int last = 0;
  if (lane == 0) {
    const int warps = (min(SUMMED, ends.n - piece * SUMMED) + WARP_OUTS - 1) / WARP_OUTS;
    last = add_acq_rel(ends.locks + piece, 1) == warps - 1;
    if (last) ends.locks[piece] = 0;
  }
  if (!__shfl_sync(0xFFFFFFFFu, last, 0)) return;
  __syncwarp();
#pragma unroll
  for (int row = 0; row < ROWS; row++) {
    float squares = 0.f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int of_out = piece * SUMMED + half * 32 + lane;
      const unsigned at = static_cast<unsigned>(row) * ends.pitch + of_out;
      if (of_out < ends.n) {
        float value = FLOAT ? load_fresh(static_cast<const float*>(ends.out) + at)
                            : from_bf16(load_fresh(static_cast<const unsigned short*>(ends.out) + at));
        squares += value * value;
      }
    }
    squares = warp_sum(squares);
    if (lane == 0) ends.sums[row * ((ends.n + SUMMED - 1) / SUMMED) + piece] = squares;
  }
}

// The sum of a warp's results over its lanes and, by CUTS warps, to (ROWS, PARTS, LINES) floats of each.
__device__ __forceinline__ void keep(float* results, float (&totals)[ROWS][LINES]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int row = 0; row < ROWS; row++)
#pragma unroll
    for (int line = 0; line < LINES; line++) {
#pragma unroll
      for (int lanes = ROW_LANES / 2; lanes; lanes /= 2)
        totals[row][line] += __shfl_xor_sync(0xFFFFFFFFu, totals[row][line], lanes);
      if (lane % ROW_LANES == 0) results[(row * PARTS + lane / ROW_LANES) * LINES + line] = totals[row][line];
    }
}

// What is done around a warp's results.
__device__ __forceinline__ void finish(const Ends& ends, const Beside& beside, const float* results,
                                       const float* factors, int first) {
  constexpr int SIZE = ROWS * PARTS * LINES;  // numbers of a warp's results
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++) {
    const int i = turn * 32 + threadIdx.x % 32, row = i / WARP_OUTS, out = i % WARP_OUTS, of_out = first + out;
    if (i >= ROWS * WARP_OUTS || of_out >= ends.n) continue;
    const float* from = results + (row * PARTS + out / OUTS) * LINES + out % OUTS;
    float value = 0.f, up = 0.f;
#pragma unroll
    for (int cut = 0; cut < CUTS; cut++) {
      value += from[cut * SIZE];
      if (GATE) up += from[cut * SIZE + OUTS];
    }
    if (PIECES) value *= factors[row], up *= factors[row];
    if (BIAS) value += beside.bias[turn];
    if (GATE) value = gate(value, up);
    if (RESIDUAL) {
      // The norm is that of the sum as it is kept.
      value = from_bf16(to_bf16(value + beside.kept[turn]));
      ends.scaled[row * ends.n + of_out] = to_bf16(value * (beside.gain[turn] + ends.offset));
    }
    const unsigned at = static_cast<unsigned>(row) * ends.pitch + of_out;
    if (FLOAT)
      static_cast<float*>(ends.out)[at] = value;
    else
      static_cast<unsigned short*>(ends.out)[at] = to_bf16(value);
  }
  if (RESIDUAL && first < ends.n) sum_squares(ends, first);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    packed_dot(const unsigned char* x, const unsigned char* low, const unsigned char* high, const unsigned char* scale,
               const unsigned char* unit, const float* bias, const float* squares, const unsigned short* residual,
               const float* gain, void* out, unsigned short* scaled, float* sums, int* locks, int n, int x_pitch,
               int pitch, float eps, float offset) {
  SHARED_BYTES(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, cut = warp % CUTS;
  const int tiles = (n + BLOCK_OUTS - 1) / BLOCK_OUTS, of_warp = warp / CUTS * WARP_OUTS;
  const int of_group = cut * ROW_LANES + lane % ROW_LANES;
  const Planes planes{low, high, scale, unit};
  const Ends ends{bias, residual, gain, out, scaled, sums, locks, n, pitch, offset};
  unsigned lines[LINES];  // the first groups of the lane's rows
  Part parts[STAGES][LINES];

  const auto turn_to = [&](int tile) {
    const int first = tile * BLOCK_OUTS + of_warp + lane / ROW_LANES * OUTS;
#pragma unroll
    for (int line = 0; line < LINES; line++)
      lines[line] = static_cast<unsigned>(min(first + line % OUTS, n - 1) + line / OUTS * n) * GROUPS;
  };
  const auto fetch_step = [&](Part(&to)[LINES], int step) {
    const int group = step * STEP + of_group;
#pragma unroll
    for (int line = 0; line < LINES; line++)
      fetch(to[line], planes, lines[line] + (WHOLE ? group : min(group, GROUPS - 1)), group < GROUPS);
  };

  // The next kernel may start at once: while this one streams weights there is room for blocks that wait.
  if (PDL) depend_launch();
  turn_to(blockIdx.x);
#pragma unroll
  for (int stage = 0; stage < STAGES; stage++) fetch_step(parts[stage], stage);
  if (PDL) depend_wait();

  const Rows rows{shared, reinterpret_cast<float*>(shared + ROWS * GROUPS * 32)};
  float* factors = rows.factors + ROWS * GROUPS * FACTORS;
  constexpr int SIZE = ROWS * PARTS * LINES;
  float* results = factors + (ROWS + 3) / 4 * 4 + warp / CUTS * CUTS * SIZE;
  quantise_all(rows, x, x_pitch, [&] {
    if (!PIECES) return;
    for (int row = warp; row < ROWS; row += WARPS) {
      const float factor = norm_factor(squares + row * ((WIDTH + SUMMED - 1) / SUMMED), WIDTH, eps);
      if (lane == 0) factors[row] = factor;
    }
  });
  __syncthreads();

  int half = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int first = tile * BLOCK_OUTS + of_warp;
    Beside beside;
    if (cut == 0) beside.load(ends, first);
    float totals[ROWS][LINES] = {};
#pragma unroll 1
    for (int step = 0; step < STEPS; step += STAGES) {
      const bool last = step + STAGES >= STEPS, more = !last || tile + static_cast<int>(gridDim.x) < tiles;
      if (last) turn_to(tile + gridDim.x);
      const int next = last ? 0 : step + STAGES;
#pragma unroll
      for (int stage = 0; stage < STAGES; stage++) {
        const int group = (step + stage) * STEP + of_group;
        multiply(totals, parts[stage], rows, WHOLE ? group : min(group, GROUPS - 1));
        if (more) fetch_step(parts[stage], next + stage);
      }
    }
    // In turn to one of two places: whoever writes to it again has seen everyone come this far.
    float* place = results + half * (WARPS * SIZE);
    keep(place + cut * SIZE, totals);
    if (CUTS > 1)
      __syncthreads();
    else
      __syncwarp();
    if (cut == 0) finish(ends, beside, place, factors, first);
    half ^= 1;
  }
}
