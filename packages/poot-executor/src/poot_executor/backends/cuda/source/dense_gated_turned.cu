// Gated products of some hundred rows with dense weights on Hopper: what dense_gated.cu makes, with the matrix unit turned.
// Its rows are lines of gate and up, its columns are rows of x, of which there may be any multiple of 8.
//
// Lines come in units of 32 of gate and up each, eight of gate and eight of up in turn, so that a thread has both of a line.
// A cluster of two blocks has tiles of four units and ROWS rows of x: a block has two of the units, and each fetches half
// of x for both. What does not fill a turn of all clusters is cut into tiles of REST units: there a block has all of the
// units and half of the rows, and fetches half of the lines for both.
//
// A block's two warpgroups multiply a unit each. Where a block has one that is left over, they have half of its rows each.
// A third has the copy engine fetch 64 columns at a time.
//
// Macros: GATE (1 SiLU, 2 GELU), ROWS (a multiple of 8, 16 to 352), TILES (of rows of x), REST (0 to 3; 0: there is none),
// STAGES, LIVE (which of the live counts bounds rows), PDL.
#define THREADS 256
#define COPIERS 128
#define CLUSTER 2
constexpr int WHOLE = 4;                   // units of a tile that is not of the rest
constexpr int LINES = 32;                  // of gate and up each in a unit
constexpr int UNIT = 2 * LINES * 128;      // bytes
constexpr int HALF = (ROWS + 15) / 16 * 8;  // rows of x of a block, of a tile of the rest
constexpr int PIECE = ROWS > 256 ? HALF : ROWS, OTHERS = ROWS - PIECE;  // of a whole tile: a product has 256 at most
constexpr int PART = (HALF + 15) / 16 * 8;  // of which a warpgroup has so many of the unit that is left over
constexpr int WHOLE_STAGE = 2 * UNIT + ROWS * 128, REST_STAGE = REST * UNIT + HALF * 128;
constexpr int STAGE = WHOLE_STAGE > REST_STAGE ? WHOLE_STAGE : REST_STAGE;
#include "around.cuh"
#include "cluster.cuh"

// A block is launched with 168 registers a thread, and those that copiers leave go to the others.
constexpr int COPIER_REGISTERS = 40, REGISTERS = 232;
constexpr int STAGED = 32;        // rows of results on their way out
constexpr int PITCH = LINES + 8;  // elements of such a row, so that a warp's are in all banks

struct Operands {
  const BoxMap &first, &second, &w;  // the first HALF rows of a tile of x, the others, and a unit
  int rows, n, k;                    // rows that are live
  int lines;                         // in whole tiles
};

// `work.tile<UNITS>(row, line)` for each tile of this block's cluster, but for those of whose rows none is live. A single
// one of rows is always made, so that its weights may come before it is known how many are.
template <class Work>
__device__ __forceinline__ void each_tile(const Operands& of, int live, Work& work) {
  const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
  const int whole = of.lines / (WHOLE * LINES) * TILES;
  for (int i = cluster; i < whole; i += clusters)
    if (TILES == 1 || i % TILES * ROWS < live) work.template tile<WHOLE>(i % TILES * ROWS, i / TILES * WHOLE * LINES);
  if constexpr (REST > 0) {
    // Those that have had fewer come first.
    const int i = clusters - 1 - cluster, line = of.lines + i / TILES * REST * LINES;
    if (line < of.n && (TILES == 1 || i % TILES * ROWS < live)) work.template tile<REST>(i % TILES * ROWS, line);
  }
}

struct Copies {
  const Operands& of;
  Slots slots;
  int ahead;  // stages whose weights are on their way

  template <int UNITS>
  __device__ __forceinline__ void lines(const Slots& at, int step, int line) const {
    const int block = block_of_cluster();
    barrier_expect(at.full(), UNITS == WHOLE ? WHOLE_STAGE : REST_STAGE);
    if (UNITS == WHOLE) {
#pragma unroll
      for (int unit = 0; unit < 2; unit++)
        load_halves(at.stage() + unit * UNIT, of.w, step * 64, line + (block * 2 + unit) * LINES, at.full());
    } else {
#pragma unroll
      for (int unit = 0; unit < UNITS; unit++)
        if ((unit + step) % 2 == block)
          load_halves_to(at.stage() + unit * UNIT, of.w, step * 64, line + unit * LINES, at.full(), 3);
    }
  }

  template <int UNITS>
  __device__ __forceinline__ void rows(const Slots& at, int step, int row) const {
    const int block = block_of_cluster();
    unsigned char* to = at.stage() + (UNITS == WHOLE ? 2 : UNITS) * UNIT;
    if (UNITS != WHOLE)
      load_box(to, of.first, step * 64, row + block * (ROWS - HALF), at.full());
    else if (block == 0)
      load_box_to(to, of.first, step * 64, row, at.full(), 3);
    else
      load_box_to(to + HALF * 128, of.second, step * 64, row + HALF, at.full(), 3);
  }

  // The weights of this block's first tile, as far as there is room.
  template <int UNITS>
  __device__ __forceinline__ void tile_ahead(int line) {
    Slots next = slots;
    for (; ahead < STAGES && ahead * 64 < of.k; ahead++, next.next()) lines<UNITS>(next, ahead, line);
  }

  template <int UNITS>
  __device__ __forceinline__ void tile(int row, int line) {
    for (int step = 0; step * 64 < of.k; step++, slots.next()) {
      if (ahead) {
        ahead--;
      } else {
        slots.wait_empty();
        lines<UNITS>(slots, step, line);
      }
      rows<UNITS>(slots, step, row);
    }
  }
};

struct Ahead {
  Copies& copies;
  template <int UNITS>
  __device__ __forceinline__ void tile(int, int line) {
    if (!copies.ahead) copies.tile_ahead<UNITS>(line);
  }
};

struct Products {
  const Operands& of;
  Slots slots;
  unsigned short *staged, *out;  // staged: this warpgroup's

  // Rows of results, from `row` on, to `staged`, then out, a row's columns next to each other.
  template <int COUNT>
  __device__ __forceinline__ void finish(const float (&sums)[COUNT], int row, int line) {
    constexpr int N = COUNT * 2;
    const int thread = threadIdx.x % 128, lane = thread % 32;
    const int within = thread / 32 * 8 + lane / 4, column = line + thread % 4 * 8;
#pragma unroll
    for (int first = 0; first < N; first += STAGED) {
      meet<128>(2 + threadIdx.x / 128);  // what was staged before is out
#pragma unroll
      for (int i = 0; i < STAGED && first + i < N; i += 8) {
        const float* of = sums + (first + i) / 2;
        unsigned short* to = staged + (i + lane % 4 * 2) * PITCH + within;
        const unsigned both = pair_bf16(gate(of[0], of[2]), gate(of[1], of[3]));
        to[0] = static_cast<unsigned short>(both);
        to[PITCH] = static_cast<unsigned short>(both >> 16);
      }
      meet<128>(2 + threadIdx.x / 128);
      const int at = first + thread / 4, of_x = row + at;
      if (at < N && of_x < of.rows && column < of.n)
        *reinterpret_cast<uint4*>(out + static_cast<long long>(of_x) * of.n + column) =
            *reinterpret_cast<const uint4*>(staged + thread / 4 * PITCH + thread % 4 * 8);
    }
  }

  template <int UNITS>
  __device__ __forceinline__ void tile(int row, int line) {
    const int block = block_of_cluster(), group = threadIdx.x / 128;
    const int own = group * UNIT, left = (UNITS - 1) * UNIT, x = UNITS * UNIT, part = group * (HALF - PART);
    const int first = row + block * (ROWS - HALF);
    if constexpr (UNITS == WHOLE && OTHERS == 0) {
      float sums[ROWS / 2];
      multiply_stages(slots, sums, own, 2 * UNIT, of.k);
      finish(sums, row, line + (block * 2 + group) * LINES);
    } else if constexpr (UNITS == WHOLE) {
      float sums[PIECE / 2], more[(OTHERS ? OTHERS : 8) / 2];
      multiply_stages(slots, sums, own, 2 * UNIT, more, own, 2 * UNIT + PIECE * 128, of.k);
      finish(sums, row, line + (block * 2 + group) * LINES);
      finish(more, row + PIECE, line + (block * 2 + group) * LINES);
    } else if constexpr (UNITS == 1) {
      float sums[PART / 2];
      multiply_stages(slots, sums, 0, x + part * 128, of.k);
      finish(sums, first + part, line);
    } else if constexpr (UNITS == 2) {
      float sums[HALF / 2];
      multiply_stages(slots, sums, own, x, of.k);
      finish(sums, first, line + group * LINES);
    } else {
      float sums[HALF / 2], more[PART / 2];
      multiply_stages(slots, sums, own, x, more, left, x + part * 128, of.k);
      finish(sums, first, line + group * LINES);
      finish(more, first + part, line + 2 * LINES);
    }
  }
};

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS + COPIERS, 1)
    dense_gated_turned(const __grid_constant__ BoxMap first, const __grid_constant__ BoxMap second,
                    const __grid_constant__ BoxMap w, unsigned short* out, const int* live, int rows, int n, int k,
                    int lines) {
  SHARED_BYTES(shared);
  unsigned char* barriers = shared + STAGES * STAGE;
  const Slots slots{shared, barriers};
  Operands of{first, second, w, rows, n, k, lines};
  begin_slots(slots);
  if (threadIdx.x >= THREADS) {
    fewer_registers<COPIER_REGISTERS>();
    if (threadIdx.x == THREADS) {
      Copies copies{of, slots, 0};
      if (PDL && TILES == 1) {
        Ahead ahead{copies};
        each_tile(of, rows, ahead);
      }
      if (PDL) {
        depend_wait();
        depend_launch();
      }
      each_tile(of, min(rows, live[LIVE]), copies);
    }
  } else {
    more_registers<REGISTERS>();
    if (PDL) {
      depend_wait();
      depend_launch();
    }
    of.rows = min(rows, live[LIVE]);
    unsigned short* staged = reinterpret_cast<unsigned short*>(barriers + STAGES * 16) + threadIdx.x / 128 * STAGED * PITCH;
    Products products{of, slots, staged, out};
    each_tile(of, of.rows, products);
  }
  end_slots();
}
