// Gated products of many rows with dense weights on Hopper: x (rows, k) times gate and up (n, k each), one after the other
// in w, both by columns.
//
// A block has tiles of 128 rows of x and LINES of gate and up each. Its two warpgroups have 64 rows each; a third has the
// copy engine fetch 64 columns at a time. Where CLUSTER is 2, two blocks have different rows of x, and one fetches gate
// for both, the other up.
//
// Macros: GATE (1 SiLU, 2 GELU), LINES (96, 112 or 128), CLUSTER (1 or 2), STAGES, BAND (tiles of rows, or of pairs of
// them), LIVE (which of the live counts bounds rows), PDL.
#define THREADS 256
#define COPIERS 128
constexpr int ROWS = 128;
constexpr int X_BYTES = ROWS * 128, HALF_BYTES = LINES * 128, STAGE = X_BYTES + 2 * HALF_BYTES;
#include "around.cuh"
#include "cluster.cuh"

// A block is launched with 168 registers a thread, and those that copiers leave go to the others.
constexpr int COPIER_REGISTERS = 40, REGISTERS = 232;
constexpr int PITCH = LINES + 8;  // elements of a row of results on its way out, so that a warp's are in all banks

struct Size {
  int rows, n, k, row_tiles, line_tiles;
  __device__ __forceinline__ int tiles() const { return row_tiles * line_tiles; }
};

struct Tile {
  int row, line;  // the first ones of this block
};

// Bands of so many tiles of rows that x stays in the cache; in a band rows first, so that blocks share weights.
__device__ __forceinline__ Tile tile_of(int index, const Size& size) {
  const int band = index / (BAND * size.line_tiles), first = band * BAND, height = min(BAND, size.row_tiles - first);
  const int within = index - first * size.line_tiles, block = CLUSTER > 1 ? block_of_cluster() : 0;
  return {((first + within % height) * CLUSTER + block) * ROWS, within / height * LINES};
}

__device__ __forceinline__ void copy_tiles(Slots slots, const BoxMap& x, const BoxMap& w, const Size& size) {
  const int block = CLUSTER > 1 ? block_of_cluster() : 0;
  for (int index = blockIdx.x / CLUSTER; index < size.tiles(); index += gridDim.x / CLUSTER) {
    const Tile tile = tile_of(index, size);
    for (int at = 0; at < size.k; at += 64) {
      slots.wait_empty();
      unsigned char* stage = slots.stage();
      barrier_expect(slots.full(), STAGE);
      load_box(stage, x, at, tile.row, slots.full());
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int line = tile.line + half * size.n;
        unsigned char* to = stage + X_BYTES + half * HALF_BYTES;
        if (CLUSTER == 1) load_box(to, w, at, line, slots.full());
        if (CLUSTER == 2 && half == block) load_box_to(to, w, at, line, slots.full(), 3);
      }
      slots.next();
    }
  }
}

// A warpgroup's results to `staged`, then out, a row's columns next to each other.
__device__ __forceinline__ void finish_tile(unsigned short* staged, const float (&sums)[LINES], unsigned short* out,
                                            const Size& size, int row, int line) {
  const int thread = threadIdx.x % 128, lane = thread % 32, group = threadIdx.x / 128;
  meet<128>(2 + group);  // what was staged before is out
#pragma unroll
  for (int i = 0; i < LINES / 4; i++) {
    const int within = thread / 32 * 16 + lane / 4 + i % 2 * 8;
    const float one = gate(sums[2 * i], sums[LINES / 2 + 2 * i]);
    const float two = gate(sums[2 * i + 1], sums[LINES / 2 + 2 * i + 1]);
    *reinterpret_cast<unsigned*>(staged + within * PITCH + i / 2 * 8 + lane % 4 * 2) = pair_bf16(one, two);
  }
  meet<128>(2 + group);
  const int column = thread % 16 * 8;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int within = i * 8 + thread / 16, of_x = row + within;
    if (of_x < size.rows && column < LINES && line + column < size.n)
      *reinterpret_cast<uint4*>(out + static_cast<long long>(of_x) * size.n + line + column) =
          *reinterpret_cast<const uint4*>(staged + within * PITCH + column);
  }
}

__device__ __forceinline__ void multiply_tiles(Slots slots, unsigned short* room, unsigned short* out, const Size& size) {
  const int group = threadIdx.x / 128;
  unsigned short* staged = room + group * 64 * PITCH;
  for (int index = blockIdx.x / CLUSTER; index < size.tiles(); index += gridDim.x / CLUSTER) {
    const Tile tile = tile_of(index, size);
    const int row = tile.row + group * 64;
    float sums[LINES];
    multiply_stages(slots, sums, group * 64 * 128, X_BYTES, size.k);
    finish_tile(staged, sums, out, size, row, tile.line);
  }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS + COPIERS, 1)
    dense_gated(const __grid_constant__ BoxMap x, const __grid_constant__ BoxMap w, unsigned short* out, const int* live,
                int rows, int n, int k) {
  SHARED_BYTES(shared);
  unsigned char* barriers = shared + STAGES * STAGE;
  Slots slots{shared, barriers};
  begin_slots(slots);
  if (PDL) {
    depend_wait();
    depend_launch();
  }
  const int used = min(rows, live[LIVE]);
  const Size size{used, n, k, (used + ROWS * CLUSTER - 1) / (ROWS * CLUSTER), (n + LINES - 1) / LINES};
  if (threadIdx.x >= THREADS) {
    fewer_registers<COPIER_REGISTERS>();
    if (threadIdx.x == THREADS) copy_tiles(slots, x, w, size);
  } else {
    more_registers<REGISTERS>();
    multiply_tiles(slots, reinterpret_cast<unsigned short*>(barriers + STAGES * 16), out, size);
  }
  end_slots();
}
