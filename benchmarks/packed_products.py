"""Products with packed weights on a GPU, alone: microseconds and bytes a second, against the rate of a copy.

    python benchmarks/packed_products.py [--rows 1,8,32,128] [--check]
    python benchmarks/packed_products.py --sweep few|tiles [--rows 1] [--products o,down]

The products of a decoder layer of the 8B shape as a Q4_K_M file has them, each with the kernel that brings the rows
into their form, in a CUDA graph over weights enough that none is found in the cache. The last line adds up a step.
--sweep times every tiling of a list in place of the one that the kernels choose, and prints the best.

--check: exit 1 unless each product is as fast as its reach says.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
from ceilings import copy_rate, milliseconds

from poot_executor.backends.cuda.device import CudaDevice
from poot_executor.backends.triton.kernels import packed_few, packed_tiles
from poot_executor.backends.triton.kernels.arrange import Quantised, spread
from poot_executor.backends.triton.kernels.packed_many import packed_many, piece_rows
from poot_executor.backends.triton.kernels.products import Around
from poot_executor.backends.triton.packed import LAYOUTS, OCT, Segment, empty_segment

LEAST_BYTES = 256e6  # of the weights of a graph, several times what a cache holds
PROCESSES = 12
# rows: milliseconds of all products of a step
REACH = {1: 2.0, 8: 2.8, 32: 4.0, 128: 6.3}


@dataclass(frozen=True)
class Case:
    """A product of rows (K,) with (N, K), how often it is in a step, and whether gate and up are its halves."""

    name: str
    encoding: str
    n: int
    k: int
    count: int
    gated: bool = False
    out: torch.dtype = torch.bfloat16


CASES = (
    Case("qk", "Q4_K", 5120, 4096, 32),
    Case("v", "Q4_K", 1024, 4096, 16),
    Case("v6", "Q6_K", 1024, 4096, 16),
    Case("o", "Q4_K", 4096, 4096, 32),
    Case("gate_up", "Q4_K", 28672, 4096, 32, gated=True),
    Case("down", "Q4_K", 4096, 14336, 16),
    Case("down6", "Q6_K", 4096, 14336, 16),
    Case("head", "Q6_K", 128256, 4096, 1, out=torch.float32),
)


def noise(case: Case) -> Segment:
    segment = empty_segment(LAYOUTS[case.encoding], 0, case.n, case.k, "cuda")
    for plane in segment.planes:
        plane.view(torch.uint8).random_(0, 255)
    segment.scale.view(torch.uint8).random_(0, 63)
    assert segment.unit is not None
    (segment.unit if segment.unit.dtype == torch.float32 else segment.unit.view(torch.float16)).fill_(1e-4)
    return segment


def launches(
    case: Case, rows: int, segments: list[Segment], device: CudaDevice, *, triton: bool = False
) -> Callable[[], None]:
    """A call that runs the product once with each of the segments; `triton`: not by a kernel of the device's own."""
    x = torch.randn(rows, case.k, device="cuda").bfloat16()
    parts = torch.empty(packed_tiles.parts_bytes(min(rows, packed_tiles.MOST_ROWS), case.n, case.k) // 4, device="cuda")

    def room(*, gated: bool) -> Around:
        out = torch.empty(rows, case.n // 2 if gated else case.n, dtype=case.out, device="cuda")
        return Around(out, gate="silu" if gated else None)

    around = room(gated=case.gated)
    own = [] if triton else [device.packed_product(x, segment, around, parts) for segment in segments]
    calls: list[Callable[[], object]] = [call for call in own if call is not None]
    if calls:
        return in_turn(calls)
    around = room(gated=case.gated and rows <= packed_tiles.MOST_GATED)
    out = around.out
    if rows <= packed_few.MOST_ROWS:
        made = (torch.empty(rows, case.k // size, device="cuda") for size in (32, 32, 16))
        quantised = Quantised(torch.empty(rows, 2, case.k // OCT, dtype=torch.int32, device="cuda"), *made)
        for segment in segments:
            calls += [quantised.fill(x, device), packed_few.packed_few(quantised, segment, around, device)]
    elif rows <= packed_tiles.MOST_ROWS:
        by_place = torch.empty(OCT, rows, case.k // OCT, dtype=torch.bfloat16, device="cuda")
        for segment in segments:
            product = packed_tiles.packed_tiles(by_place, segment, around, parts, device)
            calls += [spread(x, by_place, device), product]
    else:
        scratch = torch.empty(piece_rows(case.n, case.k) * case.k, dtype=torch.bfloat16, device="cuda")
        calls += [call for segment in segments for call in packed_many(x, segment, out, scratch, device)]
    return in_turn(calls)


def in_turn(calls: list[Callable[[], object]]) -> Callable[[], None]:
    def run() -> None:
        for call in calls:
            call()

    return run


def timed(case: Case, rows: int, segments: list[Segment], device: CudaDevice, *, triton: bool = False) -> float:
    """Microseconds of one product."""
    run = launches(case, rows, segments, device, triton=triton)
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return milliseconds(graph.replay) * 1e3 / len(segments)


def weights(case: Case) -> list[Segment]:
    size = LAYOUTS[case.encoding].nbytes(case.n * case.k)
    return [noise(case) for _ in range(max(1, round(LEAST_BYTES / size)))]


def few_tilings() -> Iterator[dict[str, int]]:
    for outs, octs, stages in itertools.product((1, 2, 4, 8), (128, 256), (1, 2, 3)):
        yield {"OUTS": outs, "OCTS": octs, "STAGES": stages}


def tile_tilings() -> Iterator[dict[str, int]]:
    for bn, warps in ((64, 4), (128, 4), (128, 8)):
        for octs, stages, split in itertools.product((16, 32, 64), (1, 2, 3, 4), (1, 2, 4)):
            yield {"bn": bn, "warps": warps, "octs": octs, "stages": stages, "split": split}


def use(kind: str, tiling: dict[str, int], rows: int) -> None:
    """Make the kernels take this tiling."""
    if kind == "few":
        for name, value in tiling.items():
            setattr(packed_few, f"_{name}", value)
        return
    bm = max(16, 1 << (rows - 1).bit_length())
    made = packed_tiles.Tiling(bm=bm, **tiling)
    packed_tiles._tiling = lambda *args, **named: made  # type: ignore[attr-defined]


def compile_one(job: tuple[str, dict[str, int], Case, int]) -> str:
    """In a process of its own: run a product once, so that its kernel lies compiled on the disk."""
    kind, tiling, case, rows = job
    try:
        use(kind, tiling, rows)
        launches(case, rows, [noise(case)], CudaDevice(), triton=True)()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    return ""


def sweep(kind: str, cases: list[Case], rows: list[int]) -> None:
    tilings = list(few_tilings() if kind == "few" else tile_tilings())
    jobs = [(kind, tiling, case, n) for case in cases for n in rows for tiling in tilings]
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        wrong = list(pool.map(compile_one, jobs, chunksize=8))
    device = CudaDevice()
    for case in cases:
        held = weights(case)
        for n in rows:
            found: list[tuple[float, Any]] = []
            for job, why in zip(jobs, wrong, strict=True):
                if job[2:] == (case, n) and not why:
                    use(kind, job[1], n)
                    found.append((timed(case, n, held, device, triton=True), tuple(job[1].values())))
            found.sort()
            best = ", ".join(f"{us:.1f} {tiling}" for us, tiling in found[:6])
            print(f"{case.name:8} {n:4} rows: {best}; worst {found[-1][0]:.1f}", flush=True)
        del held
        torch.cuda.empty_cache()


def table(cases: list[Case], rows: list[int], *, triton: bool) -> bool:
    rate = copy_rate()
    torch.cuda.empty_cache()
    device, sums, passed = CudaDevice(), dict.fromkeys(rows, 0.0), True
    for case in cases:
        held, size = weights(case), LAYOUTS[case.encoding].nbytes(case.n * case.k)
        for n in rows:
            us = timed(case, n, held, device, triton=triton)
            sums[n] += us * case.count / 1e3
            told = f"{size / us / 1e6:5.2f} TB/s, {size / us * 1e6 / rate:.3f} of a copy"
            told += f", {2 * n * case.n * case.k / us / 1e6:6.1f} TFLOP/s"
            print(f"{case.name:8} {case.encoding} {n:4} rows: {us:8.1f} us, {told}", flush=True)
        del held
        torch.cuda.empty_cache()
    for n, ms in sums.items():
        told = f"all products of a step of {n} rows: {ms:.3f} ms"
        if n in REACH and len(cases) == len(CASES):
            passed &= ms <= REACH[n]
            told += f" {'PASS' if ms <= REACH[n] else 'FAIL'} (reach {REACH[n]})"
        print(told)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,2,4,8,16,32,64,128,256,512,2048", help="with commas between")
    parser.add_argument("--products", default=",".join(case.name for case in CASES))
    parser.add_argument("--sweep", choices=("few", "tiles"), default=None)
    parser.add_argument("--triton", action="store_true", help="not by the device's own kernels")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = [int(n) for n in arguments.rows.split(",")]
    cases = [case for case in CASES if case.name in arguments.products.split(",")]
    if arguments.sweep:
        sweep(arguments.sweep, cases, rows)
        return 0
    return int(not table(cases, rows, triton=arguments.triton) and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
