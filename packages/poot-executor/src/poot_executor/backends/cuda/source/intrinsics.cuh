// What kernels need of the hardware beyond the language. No toolkit headers: NVRTC compiles this as it stands.
#pragma once

#define SHARED_BYTES(name) extern __shared__ __align__(1024) unsigned char name[]

// c += a * b. Fragments as the PTX ISA lays them out for mma.m16n8k16: a (16, 16) by rows, b (16, 8) by columns.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices (8, 8) of bfloat16 from shared memory, matrix i from the rows of 16 bytes that lanes 8 i to 8 i + 7 name:
// lane 4 g + t gets elements 2 t and 2 t + 1 of row g. `turned`: of column g.
__device__ __forceinline__ void load_matrices(unsigned (&d)[4], const unsigned char* row) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(at)
               : "memory");
}

__device__ __forceinline__ void load_matrices_turned(unsigned (&d)[4], const unsigned char* row) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(at)
               : "memory");
}

// Of a matrix (8, 8) that a warp has as above, row g to column g.
__device__ __forceinline__ unsigned turn_matrix(unsigned two) {
  unsigned d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(two));
  return d;
}

// Copy 4, 8 or 16 bytes without waiting; zeros if they are not there.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to_shared, const void* from_global, bool there) {
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
  int size = there ? BYTES : 0;
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from_global), "r"(size)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from_global), "n"(BYTES), "r"(size)
                 : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all but the LEFT latest groups of this thread are there.
template <int LEFT>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// A constant that stays in a register: the compiler would make it anew at every use as a second one of an instruction.
__device__ __forceinline__ unsigned in_register(unsigned value) {
  unsigned d;
  asm volatile("mov.u32 %0, %1;" : "=r"(d) : "r"(value));
  return d;
}

// Two bfloat16 in a register: a * b + c, rounded once.
__device__ __forceinline__ unsigned fma_bf16(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ float power_of_two(float exponent) {
  float d;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(exponent));
  return d;
}

__device__ __forceinline__ unsigned pair_bf16(float low, float high) {
  unsigned d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

__device__ __forceinline__ float from_bf16(unsigned short bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

__device__ __forceinline__ float from_f16(unsigned short bits) {
  float d;
  asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(bits));
  return d;
}

__device__ __forceinline__ unsigned short to_bf16(float value) {
  unsigned short d;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(d) : "f"(value));
  return d;
}

// c + the sum of the products of unsigned bytes of a and signed bytes of b.
__device__ __forceinline__ int dot_bytes(unsigned a, unsigned b, int c) {
  int d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// What is read once, or again soon. Not as constants (.nc): the assembler would put off those that stand before
// `depend_wait` until after it.
__device__ __forceinline__ uint4 load_stream(const uint4* from) {
  uint4 d;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
               : "l"(from));
  return d;
}

__device__ __forceinline__ uint2 load_stream(const uint2* from) {
  uint2 d;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];" : "=r"(d.x), "=r"(d.y) : "l"(from));
  return d;
}

__device__ __forceinline__ unsigned load_kept(const unsigned* from) {
  unsigned d;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(d) : "l"(from));
  return d;
}

__device__ __forceinline__ unsigned short load_kept(const unsigned short* from) {
  unsigned short d;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(d) : "l"(from));
  return d;
}

// What another block may have written a moment ago: not from the cache of this multiprocessor.
__device__ __forceinline__ float load_fresh(const float* from) {
  float d;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(d) : "l"(from) : "memory");
  return d;
}

__device__ __forceinline__ unsigned short load_fresh(const unsigned short* from) {
  unsigned short d;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(d) : "l"(from) : "memory");
  return d;
}

__device__ __forceinline__ float2 load_fresh(const float2* from) {
  float2 d;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(d.x), "=f"(d.y) : "l"(from) : "memory");
  return d;
}

__device__ __forceinline__ float4 load_fresh(const float4* from) {
  float4 d;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(d.x), "=f"(d.y), "=f"(d.z), "=f"(d.w)
               : "l"(from)
               : "memory");
  return d;
}

__device__ __forceinline__ int add_acq_rel(int* where, int value) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.s32 %0, [%1], %2;" : "=r"(before) : "l"(where), "r"(value) : "memory");
  return before;
}

// Programmatic dependent launch: wait for the results of the kernel before; let the next one start.
__device__ __forceinline__ void depend_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void depend_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A barrier in shared memory (eight bytes) of `count` arrivals a phase.
__device__ __forceinline__ void barrier_init(void* barrier, int count) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(void* barrier) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(at) : "memory");
}

// Arrive when all copies that this thread has begun are done, without waiting for it.
__device__ __forceinline__ void barrier_arrive_copied(void* barrier) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
}

#if __CUDA_ARCH__ >= 900
#define BARRIER_WAIT "mbarrier.try_wait"  // which may sleep
#else
#define BARRIER_WAIT "mbarrier.test_wait"
#endif

// Until the phase of this parity, counted from 0, is over.
__device__ __forceinline__ void barrier_wait(void* barrier, unsigned parity) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier)), over = 0;
  while (!over)
    asm volatile("{.reg .pred over; " BARRIER_WAIT ".parity.shared.b64 over, [%1], %2; selp.u32 %0, 1, 0, over;}"
                 : "=r"(over)
                 : "r"(at), "r"(parity)
                 : "memory");
}

// One of the block's barriers, 1 to 15, for whole warps of COUNT threads: meet there, or come without waiting.
template <int COUNT>
__device__ __forceinline__ void meet(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(COUNT) : "memory");
}

template <int COUNT>
__device__ __forceinline__ void come(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(COUNT) : "memory");
}

// Wait for the first COUNT threads of the block only.
template <int COUNT>
__device__ __forceinline__ void sync_first() {
  meet<COUNT>(1);
}

#if __CUDA_ARCH__ >= 900
// A matrix of bfloat16 as the copy engine takes it (CUtensorMap): boxes are 64 columns of so many rows. A box lies in
// shared memory as rows of 128 bytes, in which chunks of 16 bytes have changed places by exclusive or with the row modulo
// 8. What is outside of the matrix is zero.
struct alignas(64) BoxMap {
  unsigned long long words[16];
};

// Copy the box from `column` and `row` on, without waiting. Its bytes count at `barrier`.
__device__ __forceinline__ void load_box(void* to_shared, const BoxMap& map, int column, int row, void* barrier) {
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(at)
      : "memory");
}

// The same, to the same place of every block of the cluster whose bit is set, at the same barrier of each.
__device__ __forceinline__ void load_box_to(void* to_shared, const BoxMap& map, int column, int row, void* barrier,
                                            unsigned short blocks) {
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(at), "h"(blocks)
      : "memory");
}

// Copy boxes that are next to each other, from `row` and the 64 columns of `piece` on: one after another in shared memory,
// as many as the map says.
__device__ __forceinline__ void load_boxes(void* to_shared, const BoxMap& map, int row, int piece, void* barrier) {
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          to),
      "l"(&map), "r"(0), "r"(row), "r"(piece), "r"(at)
      : "memory");
}

// Copy rows from `line` on, a multiple of eight, of a matrix's upper and lower half, eight of each in turn, as many as the
// map says.
__device__ __forceinline__ void load_halves(void* to_shared, const BoxMap& map, int column, int line, void* barrier) {
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %3, %4}], [%5];" ::"r"(to),
      "l"(&map), "r"(column), "r"(0), "r"(line / 8), "r"(at)
      : "memory");
}

// The same, to the same place of every block of the cluster whose bit is set, at the same barrier of each.
__device__ __forceinline__ void load_halves_to(void* to_shared, const BoxMap& map, int column, int line, void* barrier,
                                               unsigned short blocks) {
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(column), "r"(0), "r"(line / 8), "r"(at), "h"(blocks)
      : "memory");
}

// Arrive; the phase is over only when so many bytes more have come.
__device__ __forceinline__ void barrier_expect(void* barrier, int bytes) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile("{.reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;}" ::"r"(at), "r"(bytes) : "memory");
}

// Arrive at the same barrier of a block of the cluster.
__device__ __forceinline__ void barrier_arrive_in(void* barrier, int block) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(at),
      "r"(block)
      : "memory");
}

// All threads of all blocks of the cluster meet. Barriers that one of them made before are there for all.
__device__ __forceinline__ void meet_cluster() {
  asm volatile(
      "fence.mbarrier_init.release.cluster; barrier.cluster.arrive.release.aligned; "
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

__device__ __forceinline__ int block_of_cluster() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Asynchronous products of a warpgroup: c (64, N) += a (64, 16) * b, without waiting, c being N / 2 numbers of a thread.
// A warp has 16 rows, fragments are those of mma.m16n8k16, of N / 8 times eight columns. b is in shared memory, in rows of
// 128 bytes, in which chunks of 16 bytes have changed places by exclusive or with the row modulo 8; tiles of such rows
// are aligned to 1024 bytes.
//
// `multiply_async`: rows are N columns of b, of which slab i is elements 16 i to 16 i + 15.
// `multiply_async_rows`: a tile's rows are 64 columns each of slab i's rows 16 i to 16 i + 15 of b; the next 64 are
// `stride` bytes away.

// A descriptor: address / 16; `stride`, in bytes; 1024 bytes from eight rows to the next eight; swizzle of 128 bytes.
__device__ __forceinline__ unsigned long long tile_descriptor(const unsigned char* tile, int offset, int stride) {
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(tile)) + offset;
  return (at & 0x3FFFFu) >> 4 | static_cast<unsigned long long>(stride >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

// The numbers of c as operands, and their places: COUNT of them, by fours.
#define FOUR_OF(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define OPERANDS_4(c) FOUR_OF(c, 0)
#define OPERANDS_8(c) OPERANDS_4(c), FOUR_OF(c, 4)
#define OPERANDS_12(c) OPERANDS_8(c), FOUR_OF(c, 8)
#define OPERANDS_16(c) OPERANDS_12(c), FOUR_OF(c, 12)
#define OPERANDS_20(c) OPERANDS_16(c), FOUR_OF(c, 16)
#define OPERANDS_24(c) OPERANDS_20(c), FOUR_OF(c, 20)
#define OPERANDS_28(c) OPERANDS_24(c), FOUR_OF(c, 24)
#define OPERANDS_32(c) OPERANDS_28(c), FOUR_OF(c, 28)
#define OPERANDS_36(c) OPERANDS_32(c), FOUR_OF(c, 32)
#define OPERANDS_40(c) OPERANDS_36(c), FOUR_OF(c, 36)
#define OPERANDS_44(c) OPERANDS_40(c), FOUR_OF(c, 40)
#define OPERANDS_48(c) OPERANDS_44(c), FOUR_OF(c, 44)
#define OPERANDS_52(c) OPERANDS_48(c), FOUR_OF(c, 48)
#define OPERANDS_56(c) OPERANDS_52(c), FOUR_OF(c, 52)
#define OPERANDS_60(c) OPERANDS_56(c), FOUR_OF(c, 56)
#define OPERANDS_64(c) OPERANDS_60(c), FOUR_OF(c, 60)
#define OPERANDS_68(c) OPERANDS_64(c), FOUR_OF(c, 64)
#define OPERANDS_72(c) OPERANDS_68(c), FOUR_OF(c, 68)
#define OPERANDS_76(c) OPERANDS_72(c), FOUR_OF(c, 72)
#define OPERANDS_80(c) OPERANDS_76(c), FOUR_OF(c, 76)
#define OPERANDS_84(c) OPERANDS_80(c), FOUR_OF(c, 80)
#define OPERANDS_88(c) OPERANDS_84(c), FOUR_OF(c, 84)
#define OPERANDS_92(c) OPERANDS_88(c), FOUR_OF(c, 88)
#define OPERANDS_96(c) OPERANDS_92(c), FOUR_OF(c, 92)
#define OPERANDS_100(c) OPERANDS_96(c), FOUR_OF(c, 96)
#define OPERANDS_104(c) OPERANDS_100(c), FOUR_OF(c, 100)
#define OPERANDS_108(c) OPERANDS_104(c), FOUR_OF(c, 104)
#define OPERANDS_112(c) OPERANDS_108(c), FOUR_OF(c, 108)
#define OPERANDS_116(c) OPERANDS_112(c), FOUR_OF(c, 112)
#define OPERANDS_120(c) OPERANDS_116(c), FOUR_OF(c, 116)
#define OPERANDS_124(c) OPERANDS_120(c), FOUR_OF(c, 120)
#define OPERANDS_128(c) OPERANDS_124(c), FOUR_OF(c, 124)
#define PLACES_4 "%0, %1, %2, %3"
#define PLACES_8 PLACES_4 ", %4, %5, %6, %7"
#define PLACES_12 PLACES_8 ", %8, %9, %10, %11"
#define PLACES_16 PLACES_12 ", %12, %13, %14, %15"
#define PLACES_20 PLACES_16 ", %16, %17, %18, %19"
#define PLACES_24 PLACES_20 ", %20, %21, %22, %23"
#define PLACES_28 PLACES_24 ", %24, %25, %26, %27"
#define PLACES_32 PLACES_28 ", %28, %29, %30, %31"
#define PLACES_36 PLACES_32 ", %32, %33, %34, %35"
#define PLACES_40 PLACES_36 ", %36, %37, %38, %39"
#define PLACES_44 PLACES_40 ", %40, %41, %42, %43"
#define PLACES_48 PLACES_44 ", %44, %45, %46, %47"
#define PLACES_52 PLACES_48 ", %48, %49, %50, %51"
#define PLACES_56 PLACES_52 ", %52, %53, %54, %55"
#define PLACES_60 PLACES_56 ", %56, %57, %58, %59"
#define PLACES_64 PLACES_60 ", %60, %61, %62, %63"
#define PLACES_68 PLACES_64 ", %64, %65, %66, %67"
#define PLACES_72 PLACES_68 ", %68, %69, %70, %71"
#define PLACES_76 PLACES_72 ", %72, %73, %74, %75"
#define PLACES_80 PLACES_76 ", %76, %77, %78, %79"
#define PLACES_84 PLACES_80 ", %80, %81, %82, %83"
#define PLACES_88 PLACES_84 ", %84, %85, %86, %87"
#define PLACES_92 PLACES_88 ", %88, %89, %90, %91"
#define PLACES_96 PLACES_92 ", %92, %93, %94, %95"
#define PLACES_100 PLACES_96 ", %96, %97, %98, %99"
#define PLACES_104 PLACES_100 ", %100, %101, %102, %103"
#define PLACES_108 PLACES_104 ", %104, %105, %106, %107"
#define PLACES_112 PLACES_108 ", %108, %109, %110, %111"
#define PLACES_116 PLACES_112 ", %112, %113, %114, %115"
#define PLACES_120 PLACES_116 ", %116, %117, %118, %119"
#define PLACES_124 PLACES_120 ", %120, %121, %122, %123"
#define PLACES_128 PLACES_124 ", %124, %125, %126, %127"

#define MULTIPLY_ASYNC(N, COUNT, TURNED, A, B, DESCRIPTOR)                                      \
  asm volatile(                                                                                 \
      "{.reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n" #N            \
      "k16.f32.bf16.bf16 {" PLACES_##COUNT "}, " A ", " B ", add, 1, 1, " #TURNED ";}"          \
      : OPERANDS_##COUNT(c)                                                                     \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(DESCRIPTOR))

__device__ __forceinline__ void multiply_async(float (&c)[32], const unsigned (&a)[4], const unsigned char* tile,
                                               int slab) {
  MULTIPLY_ASYNC(64, 32, 0, "{%32, %33, %34, %35}", "%36", tile_descriptor(tile, slab * 32, 16));
}

__device__ __forceinline__ void multiply_async(float (&c)[64], const unsigned (&a)[4], const unsigned char* tile,
                                               int slab) {
  MULTIPLY_ASYNC(128, 64, 0, "{%64, %65, %66, %67}", "%68", tile_descriptor(tile, slab * 32, 16));
}

// a is in shared memory too: its tile's rows are 64 rows of a.
#define MULTIPLY_TILES(N, COUNT, A, B)                                                                                \
  __device__ __forceinline__ void multiply_async(float (&c)[COUNT], const unsigned char* a_tile,                      \
                                                 const unsigned char* b_tile, int slab) {                             \
    asm volatile(                                                                                                     \
        "{.reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n" #N                                \
        "k16.f32.bf16.bf16 {" PLACES_##COUNT "}, " A ", " B ", add, 1, 1, 0, 0;}"                                     \
        : OPERANDS_##COUNT(c)                                                                                         \
        : "l"(tile_descriptor(a_tile, slab * 32, 16)), "l"(tile_descriptor(b_tile, slab * 32, 16)));                  \
  }
MULTIPLY_TILES(8, 4, "%4", "%5")
MULTIPLY_TILES(16, 8, "%8", "%9")
MULTIPLY_TILES(24, 12, "%12", "%13")
MULTIPLY_TILES(32, 16, "%16", "%17")
MULTIPLY_TILES(40, 20, "%20", "%21")
MULTIPLY_TILES(48, 24, "%24", "%25")
MULTIPLY_TILES(56, 28, "%28", "%29")
MULTIPLY_TILES(64, 32, "%32", "%33")
MULTIPLY_TILES(72, 36, "%36", "%37")
MULTIPLY_TILES(80, 40, "%40", "%41")
MULTIPLY_TILES(88, 44, "%44", "%45")
MULTIPLY_TILES(96, 48, "%48", "%49")
MULTIPLY_TILES(104, 52, "%52", "%53")
MULTIPLY_TILES(112, 56, "%56", "%57")
MULTIPLY_TILES(120, 60, "%60", "%61")
MULTIPLY_TILES(128, 64, "%64", "%65")
MULTIPLY_TILES(136, 68, "%68", "%69")
MULTIPLY_TILES(144, 72, "%72", "%73")
MULTIPLY_TILES(152, 76, "%76", "%77")
MULTIPLY_TILES(160, 80, "%80", "%81")
MULTIPLY_TILES(168, 84, "%84", "%85")
MULTIPLY_TILES(176, 88, "%88", "%89")
MULTIPLY_TILES(184, 92, "%92", "%93")
MULTIPLY_TILES(192, 96, "%96", "%97")
MULTIPLY_TILES(200, 100, "%100", "%101")
MULTIPLY_TILES(208, 104, "%104", "%105")
MULTIPLY_TILES(216, 108, "%108", "%109")
MULTIPLY_TILES(224, 112, "%112", "%113")
MULTIPLY_TILES(232, 116, "%116", "%117")
MULTIPLY_TILES(240, 120, "%120", "%121")
MULTIPLY_TILES(248, 124, "%124", "%125")
MULTIPLY_TILES(256, 128, "%128", "%129")

__device__ __forceinline__ void multiply_async_rows(float (&c)[32], const unsigned (&a)[4], const unsigned char* tile,
                                                    int slab, int stride) {
  MULTIPLY_ASYNC(64, 32, 1, "{%32, %33, %34, %35}", "%36", tile_descriptor(tile, slab * 2048, stride));
}

__device__ __forceinline__ void multiply_async_rows(float (&c)[64], const unsigned (&a)[4], const unsigned char* tile,
                                                    int slab, int stride) {
  MULTIPLY_ASYNC(128, 64, 1, "{%64, %65, %66, %67}", "%68", tile_descriptor(tile, slab * 2048, stride));
}

// Before products that take registers which others have written.
__device__ __forceinline__ void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until all but the LEFT latest groups of products are done.
template <int LEFT>
__device__ __forceinline__ void multiply_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Results of products that are done are read no earlier than here.
template <int COUNT>
__device__ __forceinline__ void multiply_done(float (&c)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(c[i]));
}

// Both.
template <int LEFT, int COUNT>
__device__ __forceinline__ void multiply_wait(float (&c)[COUNT]) {
  multiply_wait<LEFT>();
  multiply_done(c);
}

// Between what was put into shared memory and asynchronous products that read it.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers that each thread of a warpgroup has from here on.
template <int COUNT>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
#endif
