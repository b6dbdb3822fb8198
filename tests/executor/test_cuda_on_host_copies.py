"""The emulation of Hopper's copies, of clusters, and of products of tiles: right numbers, and what is wrong is said."""

from __future__ import annotations

from typing import Any

import cuda_host_device
import cuda_on_host as host
import pytest
import torch

from poot_executor.backends.cuda.boxes import Boxes
from poot_executor.backends.cuda.programs import Program

pytestmark = pytest.mark.skipif(host.compiler() is None, reason="no g++ on the path to compile CUDA C++ for the host")

POISON = 0xCBCBCBCB - 2**32  # of an int32 that nobody has written
START = '#include "intrinsics.cuh"\nextern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(256) '
MAP = "const __grid_constant__ BoxMap"
WAYS = pytest.mark.parametrize("reversed", [False, True], ids=["forwards", "backwards"])


def kernel(parameters: str, body: str, **macros: int) -> Any:
    start = "SHARED_BYTES(shared); const int i = threadIdx.x, rank = block_of_cluster();\n"
    return host.HostKernel(f"{START}tried({parameters}) {{ {start}{body}\n}}\n", "tried", macros)


def numbers(*shape: int) -> torch.Tensor:
    """Small integers but zero, of which products of some hundred are exact in float32."""
    drawn = torch.randint(-8, 8, shape, generator=torch.Generator().manual_seed(sum(shape)))
    return (drawn + (drawn >= 0)).bfloat16()


def matrix() -> torch.Tensor:
    """(21, 72), with other numbers before, behind and beside it."""
    return numbers(23, 96)[1:22, 8:80]


def in_shared_memory(source: torch.Tensor, column: int, row: int, rows: int) -> list[list[float]]:
    """A box as its rows of 64 places lie: element by element, a chunk being eight of them."""
    lying = [[0.0] * 64 for _ in range(rows)]
    for r in range(rows):
        for c in range(64):
            if 0 <= row + r < source.shape[0] and 0 <= column + c < source.shape[1]:
                chunk = (c // 8) ^ (r % 8)
                lying[r][chunk * 8 + c % 8] = source[row + r, column + c].item()
    return lying


BOX = """
  unsigned char* barrier = shared + 3072;
  if (i == 0) barrier_init(barrier, 1), load_box(shared + 1024, map, column, row, barrier);
  if (i == 0) barrier_expect(barrier, ROWS * 128);
  __syncthreads();
  barrier_wait(barrier, 0);
  for (int at = i; at < 768; at += 32) out[at] = reinterpret_cast<unsigned*>(shared)[at];
"""


def box_copier(rows: int) -> Any:
    return kernel(f"{MAP} map, unsigned* out, int column, int row", BOX, ROWS=rows)


@pytest.mark.parametrize("rows", [12, 16])
@pytest.mark.parametrize(
    ("column", "row"),
    [(0, 0), (8, 5), (-5, -3), (13, 10), (-63, 20), (71, -11), (72, 0), (0, 21), (-64, 0), (2**31 - 1, -(2**31))],
)
def test_a_box_has_its_chunks_in_places_by_row_and_zeros_outside(rows: int, column: int, row: int) -> None:
    source, out = matrix(), torch.zeros(24, 64).bfloat16()
    box_copier(rows).launch((1, 1, 1), 32, 3080, (Boxes(source, rows), out, column, row))
    assert out[8 : 8 + rows].tolist() == in_shared_memory(source, column, row, rows)
    untouched = torch.cat((out[:8], out[8 + rows :])).view(torch.int32)
    assert set(untouched.flatten().tolist()) == {POISON}


BOXES = """
  unsigned char* barrier = shared + 9216;
  if (i == 0) barrier_init(barrier, 1), load_boxes(shared + 1024, map, row, piece, barrier);
  if (i == 0) barrier_expect(barrier, ROWS * 128 * PIECES);
  __syncthreads();
  for (int at = i; at < 2304; at += 32) out[2304 + at] = reinterpret_cast<unsigned*>(shared)[at];
  __syncthreads();
  barrier_wait(barrier, 0);
  for (int at = i; at < 2304; at += 32) out[at] = reinterpret_cast<unsigned*>(shared)[at];
"""


@pytest.mark.parametrize(("rows", "pieces"), [(8, 1), (8, 4), (16, 3)])
@pytest.mark.parametrize(("row", "piece"), [(0, 0), (5, 1), (13, 2), (-3, 3), (20, -2), (21, 0), (0, 4), (-(2**31), 5)])
def test_boxes_next_to_each_other_come_one_after_another(rows: int, pieces: int, row: int, piece: int) -> None:
    """And no earlier than they are waited for."""
    source, out = numbers(23, 384)[1:22, 64:320], torch.zeros(2, 72, 64).bfloat16()
    of = kernel(f"{MAP} map, unsigned* out, int row, int piece", BOXES, ROWS=rows, PIECES=pieces)
    of.launch((1, 1, 1), 32, 9224, (Boxes(source, rows, pieces), out, row, piece))
    end = 8 + rows * pieces
    for at in range(pieces):
        lying = in_shared_memory(source, (piece + at) * 64, row, rows)
        assert out[0, 8 + at * rows : 8 + (at + 1) * rows].tolist() == lying
    untouched = torch.cat((out[0, :8], out[0, end:], out[1])).view(torch.int32)
    assert set(untouched.flatten().tolist()) == {POISON}


HALVES = """
  unsigned char* barrier = shared + 5120;
  if (i == 0) barrier_init(barrier, 1), load_halves(shared + 1024, map, column, line, barrier);
  if (i == 0) barrier_expect(barrier, 32 * 128);
  __syncthreads();
  barrier_wait(barrier, 0);
  for (int at = i; at < 1280; at += 32) out[at] = reinterpret_cast<unsigned*>(shared)[at];
"""


@pytest.mark.parametrize(("column", "line"), [(0, 0), (64, 8), (8, 16), (0, 24), (0, 32)])
def test_eights_of_both_halves_take_turns(column: int, line: int) -> None:
    """Of 48 rows 24 are a half; what is beyond it is zero, and not the other's."""
    source, out = numbers(50, 88)[1:49, 8:80], torch.zeros(40, 64).bfloat16()
    of = kernel(f"{MAP} map, unsigned* out, int column, int line", HALVES)
    of.launch((1, 1, 1), 32, 5128, (Boxes(source, 32, halves=True), out, column, line))
    for eight in range(4):
        half, first = eight % 2, line + eight // 2 * 8
        wanted = in_shared_memory(source, column, half * 24 + first if first < 24 else 48, 8)
        assert out[8 + 8 * eight : 16 + 8 * eight].tolist() == wanted


def test_halves_are_for_maps_of_halves_and_begin_with_an_eight() -> None:
    of = kernel(f"{MAP} map, unsigned* out, int column, int line", HALVES)
    out = torch.zeros(40, 64).bfloat16()
    with pytest.raises(host.KernelFault, match="a map without halves"):
        of.launch((1, 1, 1), 32, 5128, (Boxes(numbers(48, 72), 32), out, 0, 0))
    with pytest.raises(host.KernelFault, match="line 4 is no multiple of eight"):
        of.launch((1, 1, 1), 32, 5128, (Boxes(numbers(48, 72), 32, halves=True), out, 0, 4))


MULTICAST = """
  unsigned char* barrier = shared + 4096;
  if (i == 0) barrier_init(barrier, 1);
  for (int at = i; at < 512; at += 32) reinterpret_cast<int*>(shared)[at] = 7;
  meet_cluster();
  if (i == 0) barrier_expect(barrier, 2048 + 1024 * (1 - rank));
  if (i == 0) load_box_to(shared + rank * 1024, map, 0, blockIdx.x * 8, barrier, 3);
  if (i == 0 && rank == 0) load_box(shared + 2048, map, 8, 0, barrier);
  meet_cluster();
  if (i < 2) early[blockIdx.x * 2 + i] = reinterpret_cast<int*>(shared)[i * 256];
  __syncwarp();
  barrier_wait(barrier, 0);
  for (int at = i; at < 768; at += 32) out[blockIdx.x * 768 + at] = reinterpret_cast<unsigned*>(shared)[at];
  meet_cluster();
"""


@WAYS
def test_a_box_goes_to_the_blocks_of_the_cluster_that_are_named(reversed: bool) -> None:
    source, out = matrix(), torch.zeros(4, 3, 8, 64).bfloat16()
    early = torch.zeros(8, dtype=torch.int32)
    of = kernel(f"{MAP} map, unsigned* out, int* early", MULTICAST)
    of.launch((4, 1, 1), 32, 4104, (Boxes(source, 8), out, early), reversed, cluster=2)
    assert early.tolist() == [POISON] * 8
    for block in range(4):
        for sender in range(2):
            row = (block // 2 * 2 + sender) * 8
            assert out[block, sender].tolist() == in_shared_memory(source, 0, row, 8)
    assert out[::2, 2].tolist() == [in_shared_memory(source, 8, 0, 8)] * 2
    assert set(out[1::2, 2].contiguous().view(torch.int32).flatten().tolist()) == {POISON}


LATE = """
  if (i) return;
  unsigned char *barrier = shared + 2048, *other = shared + 2056;
  const int *one = reinterpret_cast<int*>(shared), *two = one + 256;
  barrier_init(barrier, 2), barrier_init(other, 1), shared[0] = 7;
  if (which == 1) barrier_expect(barrier, 2048);
  load_box(shared, map, 0, 0, barrier);
  if (which == 2) barrier_expect(barrier, 2048);
  load_box(shared + 1024, map, 0, 8, barrier);
  if (which > 2) barrier_expect(barrier, which == 4 ? 1024 : 2048);
  __syncthreads(), barrier_arrive(other), barrier_wait(other, 0);
  out[0] = *one, out[1] = *two;
  barrier_arrive(barrier);
  out[2] = *one, out[3] = *two;
  barrier_wait(barrier, 0);
  out[4] = *one, out[5] = *two;
  barrier_expect(barrier, which == 4 ? 1024 : 0), barrier_arrive(barrier);
  barrier_wait(barrier, 1);
  out[6] = *one, out[7] = *two;
"""


@WAYS
@pytest.mark.parametrize("which", [1, 2, 3, 4])
def test_a_box_is_there_behind_the_wait_for_its_bytes_and_no_earlier(which: int, reversed: bool) -> None:
    """Its bytes are expected before, between and behind the copies; in the last case half of them at first."""
    source, out = matrix(), torch.zeros(8, dtype=torch.int32)
    arguments = Boxes(source, 8), out, which
    kernel(f"{MAP} map, int* out, int which", LATE).launch((1, 1, 1), 64, 2064, arguments, reversed)
    one, two = (source[row, :2].contiguous().view(torch.int32).item() for row in (0, 8))
    assert out.tolist() == [POISON] * 4 + [one, POISON if which == 4 else two, one, two]


@WAYS
def test_who_waits_already_gets_what_is_asked_for_later(reversed: bool) -> None:
    body = """
      unsigned char* barrier = shared + 1024;
      if (i == 0) barrier_init(barrier, 1), barrier_init(barrier + 8, 32);
      __syncthreads();
      if (i < 32) barrier_wait(barrier, 0), out[i] = reinterpret_cast<int*>(shared)[i], barrier_arrive(barrier + 8);
      if (i == 32) barrier_expect(barrier, 1024), load_box(shared, map, 0, 0, barrier);
      if (i >= 32) barrier_wait(barrier + 8, 0);
    """
    source, out = matrix(), torch.zeros(64).bfloat16()
    kernel(f"{MAP} map, int* out", body).launch((1, 1, 1), 64, 1040, (Boxes(source, 8), out), reversed)
    assert torch.equal(out, source[0, :64])


PRODUCT = """
  constexpr int COUNT = COLUMNS / 2;
  unsigned char *b_tile = shared + 8192, *barrier = b_tile + COLUMNS * 128;
  float sums[COUNT];
  if (i == 0) barrier_init(barrier, 1), barrier_expect(barrier, 8192 + COLUMNS * 128);
  if (i == 0) load_box(shared, a, 0, 0, barrier), load_box(b_tile, b, 0, 0, barrier);
  __syncthreads();
  barrier_wait(barrier, 0);
  for (int at = 0; at < COUNT; at++) sums[at] = c[i * COUNT + at];
  multiply_fence();
  for (int slab = first; slab < end; slab++) multiply_async(sums, shared, b_tile, slab);
  multiply_commit();
  multiply_wait<0>(sums);
  for (int at = 0; at < COUNT; at++) c[i * COUNT + at] = sums[at];
"""


@pytest.mark.parametrize(("first", "end"), [(0, 4), (2, 3)])
@pytest.mark.parametrize("columns", [64, 128, 256])
def test_two_tiles_are_multiplied(columns: int, first: int, end: int) -> None:
    """By two warpgroups, which have the same rows. Places of c are those of wgmma's D in the PTX ISA."""
    a, b, c = numbers(64, 64), numbers(columns, 64), numbers(256, columns // 2).float()
    wanted = a[:, 16 * first : 16 * end].double() @ b[:, 16 * first : 16 * end].double().T
    thread, at = torch.arange(256)[:, None], torch.arange(columns // 2)[None]
    row = thread // 32 % 4 * 16 + thread % 32 // 4 + at // 2 % 2 * 8
    column = at // 4 * 8 + thread % 4 * 2 + at % 2
    wanted = (c + wanted[row, column]).double()
    of = kernel(f"{MAP} a, {MAP} b, float* c, int first, int end", PRODUCT, COLUMNS=columns)
    of.launch((1, 1, 1), 256, 8200 + columns * 128, (Boxes(a, 64), Boxes(b, columns), c, first, end))
    assert torch.equal(c.double(), wanted)


CLUSTER = """
  unsigned char* barrier = shared;
  int* mine = reinterpret_cast<int*>(shared + 8);
  if (i == 0) barrier_init(barrier, 4), *mine = blockIdx.x;
  if (i >= 32) return;
  x[blockIdx.x * 32 + i] = 100 * blockIdx.x + i;
  meet_cluster();  // by those that have not returned
  out[blockIdx.x * 4] = rank, out[blockIdx.x * 4 + 1] = *mine, out[blockIdx.x * 4 + 2] = gridDim.x;
  const int other = blockIdx.x / 4 * 4 + (rank + 1) % 4;
  x[256 + blockIdx.x * 32 + i] = x[other * 32 + 31 - i];
  if (i < 4) barrier_arrive_in(barrier, i);
  barrier_wait(barrier, 0);
  if (i == 0) out[blockIdx.x * 4 + 3] = atomicAdd(out + 32 + blockIdx.x / 4, 1);
  meet_cluster();
"""


@WAYS
def test_blocks_of_a_cluster_run_at_the_same_time(reversed: bool) -> None:
    x, out = torch.zeros(2, 8, 32, dtype=torch.int32), torch.zeros(34, dtype=torch.int32)
    kernel("int* x, int* out", CLUSTER).launch((8, 1, 1), 64, 16, (x, out), reversed, cluster=4)
    for block in range(8):
        other = block // 4 * 4 + (block + 1) % 4
        assert x[1, block].tolist() == [100 * other + 31 - lane for lane in range(32)]
        assert out[4 * block : 4 * block + 3].tolist() == [block % 4, block, 8]
    assert [sorted(out[3:32:4][half].tolist()) for half in (slice(4), slice(4, 8))] == [[0, 1, 2, 3]] * 2
    assert out[32:].tolist() == [4, 4]


DEADLOCK = r"^deadlock in block \(0, 0, 0\): 0 .* 31 have returned, and 1 wait at a barrier in shared memory"
RETURNED = r"block \(0, 0, 0\): the block has returned before 1 boxes were copied to it"
# What thread 0 of both blocks of a cluster does, and what must be said of that; LINE is where it stands.
WRONG = {
    "if (!rank) barrier_expect(b, 1024), barrier_arrive(b);": r"^thread 0 of .*more threads .* than the 1 of a phase",
    "barrier_expect(b, 24);": "barrier_expect of 24 bytes",
    "barrier_expect(b, 1 << 18);": "barrier_expect of 262144 bytes",
    "barrier_wait(shared + 5120, 1);": "a barrier that nobody has made",
    "barrier_arrive(b + 4);": "a barrier at a misaligned address .*LINE",
    "barrier_arrive_in(x, 1);": r"arrives at a barrier of 8 bytes at offset 0 of argument 1 of 64 bytes \[.*LINE",
    "barrier_wait(shared + 6080, 0);": "uses a barrier of 8 bytes at offset 6080 of shared memory .*LINE",
    "barrier_arrive_in(b, 2);": "block 2 of a cluster of 2",
    "load_box_to(shared, map, 0, 0, b, 0);": "to no block",
    "load_box(shared + 512, map, 0, 0, b);": "not aligned to 1024",
    "load_box(shared + 5120, map, 0, 0, b);": r"copies 1024 bytes at offset 5120 of shared .* 6080 .*LINE",
    "load_box(shared, map, 0, 0, shared + 5120);": "a barrier that nobody has made",
    "load_box(shared, maps, 0, 0, b);": "a map of several boxes at once",
    "load_box_to(shared, maps, 0, 0, b, 1);": "a map of several boxes at once",
    "load_boxes(shared, map, 0, 0, b);": "a map of single boxes",
    "load_boxes(shared + 512, maps, 0, 0, b);": "not aligned to 1024",
    "load_boxes(shared + 4096, maps, 0, 0, b);": r"copies 1024 bytes at offset 5120 of shared .* 6080 .*LINE",
    "load_boxes(shared, maps, 0, 0, shared + 5120);": "a barrier that nobody has made",
    "load_boxes(shared, maps, 0, 0, b);": RETURNED.replace("1 boxes", "2 boxes"),
    "barrier_expect(b, 1024), load_boxes(shared, maps, 0, 0, b), barrier_wait(b, 0);": RETURNED,
    "barrier_expect(b, 3072), load_boxes(shared, maps, 0, 0, b), barrier_wait(b, 0);": DEADLOCK
    + r" \(thread 0: 0 arrivals and 1024 bytes are missing\)",
    "load_box(shared, map, 0, 0, x);": "counts at a barrier of 8 bytes at offset 0 of argument 1",
    "load_box(shared, map, 0, 0, b);": RETURNED,
    "if (rank) load_box_to(shared, map, 0, 0, b - 8, 1), barrier_arrive_in(b, 0); else barrier_wait(b, 0);": RETURNED,
    "if (rank) barrier_arrive_in(b, 0);": r"block \(1, 0, 0\): block 0 of the cluster, to which .* has returned",
    "if (rank) load_box_to(shared, map, 0, 0, b, 3);": r"block \(1, 0, 0\): block 0 of the cluster, .* has returned",
    "barrier_expect(b, 2048), load_box(shared, map, 0, 0, b), barrier_wait(b, 0);": DEADLOCK
    + r" \(thread 0: 0 arrivals and 1024 bytes are missing\); block \(1, 0, 0\): 0 threads wait",
    "if (rank) meet_cluster(); else barrier_wait(b, 0);": DEADLOCK
    + r"; block \(1, 0, 0\): 0 threads wait at __syncthreads, 1 at meet_cluster, 31 have returned",
    "if (rank) __syncwarp();": r"^deadlock in block \(1, 0, 0\): 0 .* 1 wait for lanes .*: thread 0 at __syncwarp\)$",
    "float c[32]; multiply_async(c, shared, shared + 512, 0);": "aligned to 1024 bytes, in multiply_async",
    "float c[32]; multiply_async(c, shared, shared, 4);": "slab 4",
    "float c[32]; multiply_async(c, shared, shared, 0);": r"multiplies 8192 bytes at offset 0 of shared .*6080.*LINE",
}


@pytest.fixture(scope="module")
def wrong() -> Any:
    start = "unsigned char* b = shared + 6072; if (!i) barrier_init(b, 1), barrier_init(b - 8, 1);"
    cases = [f"case {which}: {{ {body} break; }}" for which, body in enumerate(WRONG)]
    body = "\n".join((f"{start} meet_cluster(); if (i) return; switch (which) {{", *cases, "}"))
    return kernel(f"{MAP} map, int* x, int which, {MAP} maps", body)


@pytest.mark.parametrize("body", WRONG)
def test_what_goes_wrong_is_said(wrong: Any, body: str) -> None:
    which = list(WRONG).index(body)
    arguments = Boxes(matrix(), 8), torch.zeros(16, dtype=torch.int32), which, Boxes(numbers(21, 128), 8, 2)
    with pytest.raises(host.KernelFault, match=WRONG[body].replace("LINE", rf"kernel\.cu:{4 + which}\b")):
        wrong.launch((2, 1, 1), 32, 6080, arguments, cluster=2)


def test_lanes_multiply_the_same_tiles() -> None:
    tried = kernel("int by", "float c[32] = {}; multiply_async(c, shared, shared, i / 16 * by); __syncwarp();")
    tried.launch((1, 1, 1), 32, 8192, [0])
    with pytest.raises(host.KernelFault, match="lanes of a warp multiply different tiles"):
        tried.launch((1, 1, 1), 32, 8192, [1])


def test_boxes_and_clusters_are_those_of_the_kernel() -> None:
    source, out, of = matrix(), torch.zeros(24, 64).bfloat16(), box_copier(12)
    for wrong in ((source, out, 0, 0), (Boxes(source, 12), Boxes(source, 12), 0, 0), (None, out, 0, 0)):
        with pytest.raises(TypeError, match="argument"):
            of.launch((1, 1, 1), 32, 3080, wrong)
    right = Boxes(source, 12), out, 0, 0
    for x, cluster in ((3, 2), (2, 0), (2, -1)):
        with pytest.raises(ValueError, match=f"clusters of {cluster} blocks in a grid of {x}"):
            of.launch((x, 1, 1), 32, 3080, right, cluster=cluster)
    for cluster, threads in ((16, 32), (4, 1024)):
        with pytest.raises(host.KernelFault, match=f"cluster of {cluster} blocks of {threads} threads"):
            of.launch((16, 1, 1), threads, 3080, right, cluster=cluster)


def test_a_device_hands_on_the_size_of_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_host_device, "_kernel", lambda _: kernel("int* out", "if (!i) out[blockIdx.x] = rank;"))
    out, bound = torch.full((4,), -1, dtype=torch.int32), (Program("", "tried", ()), (4, 1, 1), 32, 0)
    cuda_host_device.HostDevice().bind(*bound, [out], cluster=2)()
    assert out.tolist() == [0, 1, 0, 1]
    cuda_host_device.HostDevice().bind(*bound, [out])()
    assert out.tolist() == [0, 0, 0, 0]
