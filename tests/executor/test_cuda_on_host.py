"""The emulation of CUDA C++ on the host: right numbers, and a message for what a GPU would get wrong or hang on."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import cuda_on_host as host
import pytest
import torch

pytestmark = pytest.mark.skipif(host.compiler() is None, reason="no g++ on the path to compile CUDA C++ for the host")

POISON = 0xCBCBCBCB - 2**32  # of an int32 that nobody has written
ONE = (1, 1, 1)
START = '#include "intrinsics.cuh"\nextern "C" __global__ void __launch_bounds__(1024) '

Kernel = Callable[..., Any]


def kernel(parameters: str, body: str, flags: tuple[str, ...] = (), **macros: int) -> Any:
    return host.HostKernel(f"{START}tried({parameters}) {{\n{body}\n}}\n", "tried", macros, flags)


def fault(of: Any, threads: int, shared: int, *arguments: object, reversed: bool = False) -> str:
    """What is said of a launch that must go wrong."""
    with pytest.raises(host.KernelFault) as caught:
        of.launch(ONE, threads, shared, arguments, reversed)
    return str(caught.value)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Small integers, of which products of some hundred are exact in float32."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def words(halves: torch.Tensor) -> torch.Tensor:
    """Pairs of 16-bit numbers, the first in the low bits, as int32."""
    return halves.contiguous().view(torch.int32)


MMA = """
  unsigned of_a[4];
  float of_c[4];
  for (int i = 0; i < 4; i++) of_a[i] = a[threadIdx.x * 4 + i], of_c[i] = c[threadIdx.x * 4 + i];
  mma_{}(of_c, of_a, b[threadIdx.x * 2], b[threadIdx.x * 2 + 1]);
  for (int i = 0; i < 4; i++) c[threadIdx.x * 4 + i] = of_c[i];
"""


@pytest.mark.parametrize("flags", [(), ("-DCUDA_ON_HOST_UCONTEXT=1",)], ids=["switch", "ucontext"])
@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_mma_multiplies_fragments_as_the_ptx_isa_lays_them_out(
    name: str, dtype: torch.dtype, flags: tuple[str, ...]
) -> None:
    """Section "Matrix Fragments for mma.m16n8k16 with floating point type", element by element."""
    a, b, c = numbers(dtype, 2, 16, 16), numbers(dtype, 2, 16, 8), numbers(torch.float32, 2, 16, 8)
    of_a, of_b = torch.zeros(2, 32, 8, dtype=dtype), torch.zeros(2, 32, 4, dtype=dtype)
    of_c = torch.zeros(2, 32, 4)
    rows, columns = torch.zeros(32, 4, dtype=torch.long), torch.zeros(32, 4, dtype=torch.long)
    for lane in range(32):
        group, within = lane >> 2, lane % 4
        for i in range(8):
            row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
            of_a[:, lane, i] = a[:, row, within * 2 + (i & 1) + (8 if i >= 4 else 0)]
        for i in range(4):
            of_b[:, lane, i] = b[:, within * 2 + (i & 1) + (8 if i >= 2 else 0), group]
            rows[lane, i] = group if i < 2 else group + 8
            columns[lane, i] = within * 2 + (i & 1)
    of_c[:] = c[:, rows, columns]
    multiply = kernel("const unsigned* a, const unsigned* b, float* c", MMA.format(name), flags)
    multiply.launch(ONE, 64, 0, (words(of_a), words(of_b), of_c))
    assert torch.equal(of_c, (a.float() @ b.float() + c)[:, rows, columns])


# Fragments of a matrix (8, 8) by the PTX ISA, of ldmatrix and of movmatrix: the thread that has elements 2 c and
# 2 c + 1 of row r, in the low and the high half of its register.
HOLDERS = (
    (0, 1, 2, 3),
    (4, 5, 6, 7),
    (8, 9, 10, 11),
    (12, 13, 14, 15),
    (16, 17, 18, 19),
    (20, 21, 22, 23),
    (24, 25, 26, 27),
    (28, 29, 30, 31),
)
# And of ldmatrix with four matrices: the threads that name the rows of each.
NAMERS = (range(8), range(8, 16), range(16, 24), range(24, 32))


def held(matrices: torch.Tensor) -> torch.Tensor:
    """What threads have of matrices (N, 8, 8): (32, N, 2)."""
    of_threads = torch.zeros(32, len(matrices), 2, dtype=matrices.dtype)
    for row, threads in enumerate(HOLDERS):
        for column, thread in enumerate(threads):
            of_threads[thread] = matrices[:, row, 2 * column : 2 * column + 2]
    return of_threads


LOAD = """
  SHARED_BYTES(shared);
  for (int at = threadIdx.x; at < 512; at += 64) reinterpret_cast<unsigned*>(shared)[at] = x[at];
  __syncthreads();
  unsigned d[4], turned[4];
  load_matrices(d, shared + rows[threadIdx.x] * 16);
  load_matrices_turned(turned, shared + rows[threadIdx.x] * 16);
  for (int at = 0; at < 4; at++) out[threadIdx.x * 4 + at] = d[at], out[256 + threadIdx.x * 4 + at] = turned[at];
"""


def test_matrices_are_loaded_as_the_ptx_isa_lays_them_out() -> None:
    """By two warps, from 128 rows in shared memory, some of which several threads name."""
    x = torch.randperm(1024, generator=torch.Generator().manual_seed(4)).to(torch.int16).view(128, 8)
    rows = torch.randint(0, 128, (64,), generator=torch.Generator().manual_seed(5)).int()
    out = torch.zeros(2, 2, 32, 4, 2, dtype=torch.int16)
    kernel("const unsigned* x, const int* rows, unsigned* out", LOAD).launch(ONE, 64, 2048, (words(x), rows, out))
    for warp in range(2):
        matrices = torch.stack([x[rows.view(2, 32)[warp, list(namers)].long()] for namers in NAMERS])
        assert torch.equal(out[0, warp], held(matrices))
        assert torch.equal(out[1, warp], held(matrices.transpose(1, 2)))


def test_a_matrix_in_registers_is_turned_as_the_ptx_isa_says() -> None:
    matrices = torch.randperm(128, generator=torch.Generator().manual_seed(6)).to(torch.int16).view(2, 8, 8)
    given = held(matrices).transpose(0, 1).contiguous()
    out = torch.zeros_like(given)
    turn = kernel("const unsigned* x, unsigned* out", "out[threadIdx.x] = turn_matrix(x[threadIdx.x]);")
    turn.launch(ONE, 64, 0, (words(given), out))
    assert torch.equal(out, held(matrices.transpose(1, 2)).transpose(0, 1))


CONVERT = """
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    wide[i] = from_bf16(patterns[i]), wide[n + i] = from_f16(patterns[i]);
    narrow[i] = to_bf16(values[i]), narrow[n + i] = to_f16(values[i]);
    pairs[i] = pair_bf16(values[i], 1.f), pairs[n + i] = pair_f16(1.f, values[i]);
  }
"""


def same(found: torch.Tensor, wanted: torch.Tensor, bits: torch.dtype) -> bool:
    """Bit for bit, but for which NaN a NaN is."""
    nan = wanted.isnan()
    return torch.equal(found.isnan(), nan) and torch.equal(found.view(bits)[~nan], wanted.view(bits)[~nan])


def test_conversions_round_to_nearest_even() -> None:
    n = 2**16
    patterns = torch.arange(n, dtype=torch.int32).to(torch.int16)
    bits = torch.randint(-(2**31), 2**31, (n,), generator=torch.Generator().manual_seed(1)).to(torch.int32)
    values = bits.view(torch.float32)
    # Half-way between neighbours in both types, a little above and below, and what is subnormal or too large in one.
    halves = torch.cat([patterns[::8].view(kind).float() for kind in (torch.bfloat16, torch.float16)])
    ties = (halves.view(torch.int32)[:, None] + torch.tensor([0x1000, 0x0FFF, 0x1001, 0x8000, 0x7FFF])).view(-1)
    values[: len(ties) // 2] = ties.to(torch.int32).view(torch.float32)[::2]
    few = torch.rand(4096, generator=torch.Generator().manual_seed(2))
    values[-4096:] = few * 2.0 ** torch.arange(-28, 20).repeat(86)[:4096]
    wide, narrow, pairs = torch.zeros(2, n), torch.zeros(2, n, dtype=torch.int16), torch.zeros(2, n, dtype=torch.int32)
    parameters = "const unsigned short* patterns, const float* values, float* wide, unsigned short* narrow"
    kernel(f"{parameters}, unsigned* pairs, int n", CONVERT).launch(
        (n // 256, 1, 1), 256, 0, (patterns, values, wide, narrow, pairs, n)
    )
    of_pairs = pairs.view(torch.int16).view(2, n, 2)
    for i, kind in enumerate((torch.bfloat16, torch.float16)):
        assert same(wide[i], patterns.view(kind).float(), torch.int32)
        assert same(narrow[i].view(kind), values.to(kind), torch.int16)
        assert torch.equal(of_pairs[i, :, i], narrow[i])
        assert set(of_pairs[i, :, 1 - i].view(kind).tolist()) == {1.0}


def rounded(exact: Fraction, kind: torch.dtype) -> float:
    """The nearest number of a type, of two equally near the even one: by comparing neighbours exactly."""
    near = torch.tensor([float(exact)], dtype=torch.float64).to(kind)
    around = [near + 0, torch.nextafter(near.cpu(), torch.tensor([torch.inf], dtype=kind))]
    around.append(torch.nextafter(near, torch.tensor([-torch.inf], dtype=kind)))
    found = [(abs(Fraction(float(x)) - exact), int(x.view(torch.int16)) & 1, float(x)) for x in around if x.isfinite()]
    return min(found)[2]


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_fma_rounds_once(name: str) -> None:
    kind = torch.bfloat16 if name == "bf16" else torch.float16
    random_ = random.Random(3)
    low, high = (-60, 60) if name == "bf16" else (-13, 7)
    abc = torch.tensor(
        [[random_.uniform(-2, 2) * 2.0 ** random_.randint(low, high) for _ in range(3)] for _ in range(3000)]
    ).to(kind)
    # c is about as large as the product, or it decides a tie of the product alone, or of itself.
    product = abc[:, 0].double() * abc[:, 1].double()
    abc[:1000, 2] = (-product[:1000] * (1 + torch.arange(1000) / 500)).to(kind)
    tiny = 2.0**-120 if name == "bf16" else 2.0**-24
    exponent = 2.0**-8 if name == "bf16" else 2.0**-11
    for i, sign in enumerate((1.0, -1.0, 0.0)):  # half a last place above 1, decided by c far below
        step = 1 + 2.0**-7 if name == "bf16" else 1 + 2.0**-10
        abc[-1 - i] = torch.tensor([exponent * step, 1 + 0.0, 1.0], dtype=kind)
        abc[-4 - i] = torch.tensor([1 + 2 * exponent, 1 + exponent * 16, sign * tiny], dtype=kind)
    assert abc.isfinite().all()
    lanes = torch.stack((abc, abc.flip(0)), -1)  # (3000, 3, 2): another triple in the high half
    out = torch.zeros(3000, dtype=torch.int32)
    body = f"""
      const int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) out[i] = fma_{name}(abc[3 * i], abc[3 * i + 1], abc[3 * i + 2]);
    """
    kernel("const unsigned* abc, unsigned* out, int n", body).launch((94, 1, 1), 32, 0, (words(lanes), out, 3000))
    found = out.view(torch.int16).view(kind).view(3000, 2)
    assert torch.equal(found[:, 0], found[:, 1].flip(0))
    for (a, b, c), value in zip(abc.double().tolist(), found[:, 0].tolist(), strict=True):
        assert value == rounded(Fraction(a) * Fraction(b) + Fraction(c), kind), (a, b, c)


LATE = """
  if (threadIdx.x < 32 * WAITS) depend_wait();
  const int mine = MEET ? 0 : weights[threadIdx.x] + before[threadIdx.x];
  if (MEET) __syncthreads();
  out[threadIdx.x] = weights[threadIdx.x] + before[threadIdx.x] + mine;
"""


def test_what_the_kernel_before_leaves_is_waited_for() -> None:
    """By each thread, or by one that it met in the block since. Weights were there."""
    weights, before, out = (torch.ones(64, dtype=torch.int32) for _ in range(3))

    def run(waits: int, barrier: int, early: tuple[int, ...] | None) -> None:
        of = kernel("const int* weights, const int* before, int* out", LATE, WAITS=waits, MEET=barrier)
        of.launch(ONE, 64, 64, [weights, before, out], early=early)

    run(2, 0, (0,))
    run(1, 1, (0,))
    run(0, 0, None)
    run(0, 0, (0, 1, 2))
    for waits, barrier, early, told in [
        (0, 1, (0,), "reads argument 1"),
        (1, 0, (0,), "thread 32 of .* reads argument 1"),
        (1, 0, (0, 1), "thread 32 of .* writes argument 2"),
        (0, 0, (), "reads argument 0"),
    ]:
        with pytest.raises(host.KernelFault, match=f"{told} before it has waited for the kernel before"):
            run(waits, barrier, early)


def test_shuffles_and_votes_take_what_another_lane_gives() -> None:
    body = """
      const int lane = threadIdx.x % 32, i = threadIdx.x;
      out[i] = __shfl_xor_sync(0xFFFFFFFFu, i, 5);
      out[64 + i] = static_cast<int>(__shfl_xor_sync(0xFFFFFFFFu, i * 0.5f, 16) * 2);
      out[128 + i] = __shfl_sync(0xFFFFFFFFu, static_cast<unsigned>(i), 7);
      out[192 + i] = __shfl_sync(0xFFFFFFFFu, i, lane + 1, 8);
      out[256 + i] = __shfl_down_sync(0xFFFFFFFFu, i, 3);
      out[320 + i] = __shfl_up_sync(0xFFFFFFFFu, i, 3);
      out[384 + i] = __ballot_sync(0xFFFFFFFFu, lane % 3 == 0);
      out[448 + i] = __any_sync(0xFFFFFFFFu, i == 40) + 2 * __all_sync(0xFFFFFFFFu, i >= 32);
    """
    out = torch.zeros(8, 64, dtype=torch.int32)
    kernel("int* out", body).launch(ONE, 64, 0, [out])
    lanes = range(64)
    votes = sum(1 << lane for lane in range(0, 32, 3))
    assert out.tolist() == [
        [i ^ 5 for i in lanes],
        [i ^ 16 for i in lanes],
        [i // 32 * 32 + 7 for i in lanes],
        [i // 8 * 8 + (i + 1) % 8 for i in lanes],
        [i + 3 if i % 32 < 29 else i for i in lanes],
        [i - 3 if i % 32 >= 3 else i for i in lanes],
        [votes - 2**32 if votes >= 2**31 else votes for _ in lanes],
        [0] * 32 + [3] * 32,
    ]


def test_words_are_taken_apart_as_cuda_does() -> None:
    body = """
      out[0] = __byte_perm(0x33221100u, 0x77665544u, 0x7250u);
      out[1] = __byte_perm(0x33221100u, 0x77665544u, 0xFA91u);
      out[2] = __dp4a(static_cast<int>(0x80FF7F01u), 0x02030405, -7);
      out[3] = __dp4a(0x80FF7F01u, 0x02030405u, 9u);
      out[4] = __float_as_uint(-1.5f);
      out[5] = __uint_as_float(0x40490FDBu) > 3.14159f && __int_as_float(0x3F800000) == 1.f;
      out[6] = min(-1, 2) + 10 * max(2u, 3) + static_cast<int>(100 * min(1.f, 2.f));
      out[7] = static_cast<int>(1000 * rsqrtf(16.f)) + static_cast<int>(__frcp_rn(4.f) * 4 + __expf(0.f));
    """
    out = torch.zeros(8, dtype=torch.int32)
    kernel("int* out", "if (threadIdx.x) return;" + body).launch(ONE, 32, 0, [out])
    signed = -128 * 2 - 1 * 3 + 127 * 4 + 1 * 5 - 7
    unsigned = 128 * 2 + 255 * 3 + 127 * 4 + 1 * 5 + 9
    floats = torch.tensor(-1.5).view(torch.int32).item()
    assert out.tolist() == [0x77225500, 0x77221111, signed, unsigned, floats, 1, -1 + 30 + 100, 252]


REDUCE = """
  SHARED_BYTES(shared);
  float* sums = reinterpret_cast<float*>(shared);
  const int i = threadIdx.x;
  float sum = x[blockIdx.x * blockDim.x + i];
  for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lanes);
  if (i % 32 == 0) sums[i / 32] = sum;
  if (SYNC) __syncthreads();
  if (i >= 32) return;
  if (SYNC) __syncthreads();  // by those that have not returned
  float all = i < static_cast<int>(blockDim.x) / 32 ? sums[i] : 0.f;
  for (int lanes = 16; lanes; lanes /= 2) all += __shfl_xor_sync(0xFFFFFFFFu, all, lanes);
  if (i == 0) out[blockIdx.x] = all;
"""


def test_a_block_reduces_and_a_missing_barrier_shows() -> None:
    x, out = numbers(torch.float32, 3, 256), torch.zeros(3)
    right, wrong = (kernel("const float* x, float* out", REDUCE, SYNC=sync) for sync in (1, 0))
    for reversed in (False, True):
        out.zero_()
        right.launch((3, 1, 1), 256, 32, (x, out), reversed)
        assert torch.equal(out, x.sum(1))
    wrong.launch((3, 1, 1), 256, 32, (x, out))
    assert not torch.equal(out, x.sum(1))


def test_blocks_take_turns_in_the_order_asked_for_with_shared_memory_spoiled() -> None:
    body = """
      SHARED_BYTES(shared);
      int* mine = reinterpret_cast<int*>(shared);
      if (threadIdx.x) return;
      const int turn = add_acq_rel(count, 1);
      out[4 * turn] = blockIdx.x, out[4 * turn + 1] = blockIdx.y, out[4 * turn + 2] = blockIdx.z;
      out[4 * turn + 3] = mine[3];
      mine[3] = gridDim.x + 10 * gridDim.y + 100 * gridDim.z;
    """
    order = kernel("int* out, int* count", body)
    blocks = [[x, y, z, POISON] for z in range(2) for y in range(2) for x in range(3)]
    for reversed in (False, True):
        out, count = torch.zeros(12, 4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        order.launch((3, 2, 2), 32, 16, (out, count), reversed)
        assert out.tolist() == (blocks[::-1] if reversed else blocks)
        assert count.item() == 12


def test_warps_come_in_any_order_and_are_interrupted() -> None:
    """What several threads read and then write is lost, unless it is one operation."""
    body = """
      if (threadIdx.x % 32 == 0) order[add_acq_rel(counts, 1)] = threadIdx.x / 32;
      const int seen = counts[1];
      atomicAdd(counts + 2, 1);
      counts[1] = seen + 1;
    """
    tried, found = kernel("int* order, int* counts", body), []
    for turns in (0, *range(1, 11), *range(1, 11)):
        order, counts = torch.zeros(8, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
        tried.launch(ONE, 256, 0, (order, counts), turns=turns)
        assert sorted(order.tolist()) == list(range(8))
        assert (counts[0], counts[2]) == (8, 256)
        found.append((order.tolist(), counts[1].item()))
    assert found[0] == (list(range(8)), 256)
    assert found[1:11] == found[11:]  # by the same numbers
    assert len({str(order) for order, _ in found}) > 8
    assert min(count for _, count in found) < 256


def test_copies_arrive_when_they_are_waited_for() -> None:
    body = """
      SHARED_BYTES(shared);
      if (threadIdx.x) return;
      int* words = reinterpret_cast<int*>(shared);
      for (int i = 0; i < 12; i++) words[i] = 7;
      copy_async<16>(shared, x, true), copy_commit();
      copy_async<8>(shared + 16, x + 4, true), copy_async<8>(shared + 24, x + 6, false), copy_commit();
      copy_async<4>(shared + 32, x + 8, true);
      for (int i = 0; i < 12; i++) out[i] = words[i];
      copy_wait<1>();
      for (int i = 0; i < 12; i++) out[12 + i] = words[i];
      x[4] = 50;
      copy_wait<0>();
      for (int i = 0; i < 12; i++) out[24 + i] = words[i];
      copy_commit(), copy_wait<0>();
      for (int i = 0; i < 12; i++) out[36 + i] = words[i];
    """
    x, out = torch.arange(1, 13, dtype=torch.int32), torch.zeros(4, 12, dtype=torch.int32)
    kernel("int* x, int* out", body).launch(ONE, 32, 48, (x, out))
    no = POISON
    assert out.tolist() == [
        [no, no, no, no, no, no, no, no, no, 7, 7, 7],
        [1, 2, 3, 4, no, no, no, no, no, 7, 7, 7],
        [1, 2, 3, 4, 50, 6, 0, 0, no, 7, 7, 7],
        [1, 2, 3, 4, 50, 6, 0, 0, 9, 7, 7, 7],
    ]


# What a kernel does, and what must be said of that; LINE is where it stands.
WRONG = {
    "if (i < 16) __syncwarp();": r"^deadlock in block \(0, 0, 0\): 0 .* 48 have returned, and 16 .* at __syncwarp\)",
    "if (i < 32) __syncthreads(); else if (i < 63) __syncwarp();": "deadlock.*: 32 threads wait at __syncthreads, 1 ",
    "if (i % 2) __syncwarp(); else __ballot_sync(0xFFFFFFFFu, 1);": "__syncwarp while.* are at __ballot_sync",
    "__syncwarp(1);": "mask 00000001",
    "if (i == 40) __trap();": r"^thread 40 of block \(0, 0, 0\): __trap",
    "while (!load_fresh(x)) {}": "waits for another block",
    "copy_async<16>(shared + 8, x, true);": "16 bytes to a misaligned",
    "copy_async<16>(shared, x + 1, true);": "16 bytes from a misaligned",
    "copy_async<16>(shared + 64, x, true);": r"copies 16 bytes at offset 64 of shared memory of 64 bytes \[.*LINE",
    "copy_async<8>(shared, x + 16, true);": r"copies 8 bytes at offset 64 of argument 0 of 64 bytes \[.*LINE",
    "x[i] = 1;": r"^thread 16 .*writes 4 bytes at offset 64 of argument 0 of 64 bytes \[.*LINE",
    "if (x[i - 1]) __trap();": r"^thread 0 .*reads 4 bytes at offset -4 of argument 0",
    "x[0] = shared[64 + i];": "reads 1 bytes at offset 64 of shared memory of 64 bytes",
    "x[0] = none[100 + i];": "reads 4 bytes at 0x190, which is no operand's",
    "if (!i) x[0] = *none;": "null pointer .*LINE",
    "x[0] = reinterpret_cast<const uint4*>(x + 1)->x;": "misaligned address .* multiple of 16 .*LINE",
    "int few[4] = {x[0], 1, 2, 3}; x[1] = few[i];": "subscript 4 is out of bounds .*LINE",
    "x[0] = 1 << (1 + i);": "shift by 32 .*LINE",
    "unsigned d[4]; load_matrices(d, shared + 8);": "load_matrices from a misaligned address",
    "unsigned d[4]; load_matrices_turned(d, shared + 20);": "load_matrices_turned from a misaligned address",
    "unsigned d[4]; load_matrices(d, shared + 64);": "load_matrices, not shared memory",
    "unsigned d[4]; load_matrices_turned(d, (unsigned char*)x);": "load_matrices_turned, not shared memory",
    "unsigned d[4]; if (i < 31) load_matrices(d, shared);": r"^deadlock.* and 31 wait .*thread 0 at load_matrices\)",
    "unsigned d[4]; if (i % 2) load_matrices_turned(d, shared); else load_matrices(d, shared);": "are at load_matrices",
    "if (i != 40) turn_matrix(i);": r"^deadlock.* 33 have returned, and 31 wait .*thread 32 at turn_matrix\)",
    "x[0] = load_stream(reinterpret_cast<const uint4*>(x) + 4).x;": r"reads .*offset 64 of argument 0 .*LINE",
}


@pytest.fixture(scope="module")
def wrong() -> Any:
    start = "SHARED_BYTES(shared); const int i = threadIdx.x; switch (which) {"
    cases = [f"case {which}: {{ {body} break; }}" for which, body in enumerate(WRONG)]
    return kernel("int* x, const int* none, int which", "\n".join((start, *cases, "}")))


@pytest.mark.parametrize("body", WRONG)
def test_what_goes_wrong_is_said(wrong: Any, body: str) -> None:
    which = list(WRONG).index(body)
    message = fault(wrong, 64, 64, torch.zeros(16, dtype=torch.int32), None, which)
    assert re.search(WRONG[body].replace("LINE", rf"kernel\.cu:{4 + which}\b"), message), message


def test_a_kernel_that_failed_runs_again() -> None:
    tried = kernel("int* x, int n", "if (n == 0 && threadIdx.x == 33) __trap(); __syncthreads(); x[threadIdx.x] = n;")
    x = torch.zeros(64, dtype=torch.int32)
    assert "__trap" in fault(tried, 64, 0, x, 0)
    tried.launch(ONE, 64, 0, (x, 5))
    assert x.tolist() == [5] * 64
    assert "48 threads" in fault(tried, 48, 0, x, 5)


def test_arguments_are_those_of_the_kernel() -> None:
    tried = kernel("float* x, int n, float by", "if (threadIdx.x < n) x[threadIdx.x] *= by;")
    x = torch.arange(4.0)
    tried.launch(ONE, 32, 0, (x, 3, 0.5))
    assert x.tolist() == [0.0, 0.5, 1.0, 3.0]
    for wrong in ((x, 3.0, 0.5), (x, 3, 1), (3, 3, 0.5), (x, None, 0.5), (x, True, 0.5), (x.to("meta"), 3, 0.5)):
        with pytest.raises(TypeError, match="argument"):
            tried.launch(ONE, 32, 0, wrong)
    with pytest.raises(ValueError, match="2 arguments for 3"):
        tried.launch(ONE, 32, 0, (x, 3))
    with pytest.raises(ValueError, match="int32"):
        tried.launch(ONE, 32, 0, (x, 2**31, 0.5))


def test_a_source_is_read_with_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "intrinsics.cuh").write_text("#error this one is for a GPU")
    (tmp_path / "twice.cuh").write_text("__device__ __forceinline__ int twice(int x) { return WIDTH * x; }")
    path = tmp_path / "double.cu"
    path.write_text(f'#include "twice.cuh"\n{START} tried(int* x) {{ x[threadIdx.x] = twice(x[threadIdx.x]); }}')
    x = torch.arange(32, dtype=torch.int32)
    host.HostKernel(path, "tried", {"WIDTH": 2}).launch(ONE, 32, 0, [x])
    assert x.tolist() == list(range(0, 64, 2))
    with pytest.raises(host.HostCompileError, match=r"twice\.cuh:1.*WIDTH"):
        host.HostKernel(path, "tried", {})
