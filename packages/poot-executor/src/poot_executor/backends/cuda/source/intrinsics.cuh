// What kernels need of the hardware beyond the language. No toolkit headers: NVRTC compiles this as it stands.
#pragma once

#define SHARED_BYTES(name) extern __shared__ __align__(16) unsigned char name[]

// c += a * b. Fragments as the PTX ISA lays them out for mma.m16n8k16: a (16, 16) by rows, b (16, 8) by columns.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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

// What no kernel writes and is read once: it pushes nothing out of the cache of this multiprocessor.
__device__ __forceinline__ uint4 load_stream(const uint4* from) {
  uint4 d;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
               : "l"(from));
  return d;
}

__device__ __forceinline__ uint2 load_stream(const uint2* from) {
  uint2 d;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];" : "=r"(d.x), "=r"(d.y) : "l"(from));
  return d;
}

__device__ __forceinline__ unsigned load_stream(const unsigned* from) {
  unsigned d;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.u32 %0, [%1];" : "=r"(d) : "l"(from));
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
