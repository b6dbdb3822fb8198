// Gated products of some hundred rows with dense weights on Hopper: what dense_gated.cu makes, with the matrix unit turned.
// Its rows are lines of gate and up, its columns are rows of x, of which there may be any multiple of 16.
//
// A block has tiles of 64 lines of gate and up each, and ROWS rows of x. Of the lines eight of gate and eight of up take
// turns, so that a thread has both of a line. Its two warpgroups have half of the lines each; a third has the copy engine
// fetch 64 columns at a time. Where CLUSTER is 2, two blocks have different lines, and each fetches half of x for both.
//
// Macros: GATE (1 SiLU, 2 GELU), ROWS (a multiple of 16, at most 256), TILES (of rows of x), CLUSTER (1 or 2), STAGES,
// LIVE (which of the live counts bounds rows), PDL.
#define THREADS 256
#define COPIERS 128
constexpr int LINES = 64, W_BYTES = 2 * LINES * 128, X_BYTES = ROWS * 128, STAGE = W_BYTES + X_BYTES;
#include "around.cuh"
#include "cluster.cuh"

// A block is launched with 168 registers a thread, and those that copiers leave go to the others.
constexpr int COPIER_REGISTERS = 40, REGISTERS = 232;
constexpr int PITCH = LINES / 2 + 8;  // elements of a row of results on its way out, so that a warp's are in all banks

struct Tile {
  int row, line;  // the first ones of this block
};

// Blocks next to each other have the same lines, and different rows.
__device__ __forceinline__ Tile tile_of(int index) {
  const int block = CLUSTER > 1 ? block_of_cluster() : 0;
  return {index % TILES * ROWS, (index / TILES * CLUSTER + block) * LINES};
}

// Tiles of a block's cluster, those left out in which no row is live. A single one of rows is always made, so that its
// weights may come before it is known how many are.
struct Tiles {
  int index, count, live;
  __device__ __forceinline__ Tiles(int n, int live)
      : index(blockIdx.x / CLUSTER), count((n + LINES * CLUSTER - 1) / (LINES * CLUSTER) * TILES), live(live) {
    skip();
  }
  __device__ __forceinline__ void skip() {
    while (TILES > 1 && index < count && tile_of(index).row >= live) index += gridDim.x / CLUSTER;
  }
  __device__ __forceinline__ void next() {
    index += gridDim.x / CLUSTER;
    skip();
  }
};

__device__ __forceinline__ void copy_lines(const Slots& slots, const BoxMap& w, int at, int line) {
  barrier_expect(slots.full(), STAGE);
  load_halves(slots.stage(), w, at, line, slots.full());
}

__device__ __forceinline__ void copy_rows(const Slots& slots, const BoxMap& x, int at, int row) {
  const int block = CLUSTER > 1 ? block_of_cluster() : 0, first = block * (ROWS / CLUSTER);
  unsigned char* to = slots.stage() + W_BYTES + first * 128;
  if (CLUSTER == 1) load_box(to, x, at, row, slots.full());
  if (CLUSTER == 2) load_box_to(to, x, at, row + first, slots.full(), 3);
}

__device__ __forceinline__ void copy_tiles(Slots slots, const BoxMap& x, const BoxMap& w, const int* live, int rows, int n,
                                           int k) {
  int ahead = 0;  // stages whose weights are on their way
  if (PDL && TILES == 1) {
    Slots next = slots;
    for (; ahead < STAGES && ahead * 64 < k; ahead++, next.next())
      copy_lines(next, w, ahead * 64, tile_of(blockIdx.x / CLUSTER).line);
  }
  if (PDL) {
    depend_wait();
    depend_launch();
  }
  for (Tiles tiles(n, min(rows, live[LIVE])); tiles.index < tiles.count; tiles.next()) {
    const Tile tile = tile_of(tiles.index);
    for (int at = 0; at < k; at += 64, slots.next()) {
      if (ahead) {
        ahead--;
      } else {
        slots.wait_empty();
        copy_lines(slots, w, at, tile.line);
      }
      copy_rows(slots, x, at, tile.row);
    }
  }
}

// A warpgroup's results to `staged`, then out, a row's columns next to each other; half of the rows at a time.
__device__ __forceinline__ void finish_tile(unsigned short* staged, const float (&sums)[ROWS / 2], unsigned short* out,
                                            int live, int n, int row, int line) {
  const int thread = threadIdx.x % 128, lane = thread % 32, group = threadIdx.x / 128;
  const int within = thread / 32 * 8 + lane / 4, column = line + thread % 4 * 8;
#pragma unroll
  for (int first = 0; first < ROWS; first += ROWS / 2) {
    meet<128>(2 + group);  // what was staged before is out
#pragma unroll
    for (int i = 0; i < ROWS / 2; i += 8) {
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const int at = (first + i) / 2 + j;
        staged[(i + lane % 4 * 2 + j) * PITCH + within] = to_bf16(gate(sums[at], sums[at + 2]));
      }
    }
    meet<128>(2 + group);
#pragma unroll
    for (int i = 0; i < ROWS / 2; i += 32) {
      const int at = i + thread / 4, of_x = row + first + at;
      if (at < ROWS / 2 && of_x < live && column < n)
        *reinterpret_cast<uint4*>(out + static_cast<long long>(of_x) * n + column) =
            *reinterpret_cast<const uint4*>(staged + at * PITCH + thread % 4 * 8);
    }
  }
}

__device__ __forceinline__ void multiply_tiles(Slots slots, unsigned short* room, unsigned short* out, int live, int n,
                                               int k) {
  const int group = threadIdx.x / 128;
  unsigned short* staged = room + group * (ROWS / 2) * PITCH;
  for (Tiles tiles(n, live); tiles.index < tiles.count; tiles.next()) {
    const Tile tile = tile_of(tiles.index);
    float sums[ROWS / 2];
    multiply_stages(slots, sums, group * LINES * 128, W_BYTES, k);
    finish_tile(staged, sums, out, live, n, tile.row, tile.line + group * (LINES / 2));
  }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS + COPIERS, 1)
    dense_gated_few(const __grid_constant__ BoxMap x, const __grid_constant__ BoxMap w, unsigned short* out,
                    const int* live, int rows, int n, int k) {
  SHARED_BYTES(shared);
  unsigned char* barriers = shared + STAGES * STAGE;
  Slots slots{shared, barriers};
  begin_slots(slots);
  if (threadIdx.x >= THREADS) {
    fewer_registers<COPIER_REGISTERS>();
    if (threadIdx.x == THREADS) copy_tiles(slots, x, w, live, rows, n, k);
  } else {
    more_registers<REGISTERS>();
    if (PDL) {
      depend_wait();
      depend_launch();
    }
    multiply_tiles(slots, reinterpret_cast<unsigned short*>(barriers + STAGES * 16), out, min(rows, live[LIVE]), n, k);
  }
  end_slots();
}
