"""Products with packed weights on a GPU, alone: microseconds and bytes a second, against the rate of a copy.

    python benchmarks/packed_products.py [--rows 1,8,32,128] [--products o,down] [--triton] [--check]

The products of a decoder layer of the 8B shape as a Q4_K_M file has them, each with the kernel that brings the rows
into their form, in a CUDA graph over weights enough that none is found in the cache. The last line adds up a step.

--check: exit 1 unless each product is as fast as its reach says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from ceilings import copy_rate, milliseconds, recorded

from poot_executor.backends.cuda.device import CudaDevice
from poot_executor.backends.triton.kernels import packed_few, packed_tiles
from poot_executor.backends.triton.kernels.arrange import Quantised, spread
from poot_executor.backends.triton.kernels.packed_many import packed_many, piece_rows
from poot_executor.backends.triton.kernels.products import Around
from poot_executor.backends.triton.packed import LAYOUTS, OCT, Segment, empty_segment

LEAST_BYTES = 256e6  # of the weights of a graph, several times what a cache holds
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


def room(case: Case, rows: int, *, gated: bool) -> Around:
    """Where a product goes; the gate is part of it if `gated`."""
    out = torch.empty(rows, case.n // 2 if gated else case.n, dtype=case.out, device="cuda")
    return Around(out, gate="silu" if gated else None)


def launches(
    case: Case, rows: int, segments: list[Segment], device: CudaDevice, *, triton: bool = False
) -> Callable[[], None]:
    """A call that runs the product once with each of the segments; `triton`: not by a kernel of the device's own."""
    x = torch.randn(rows, case.k, device="cuda").bfloat16()
    parts = torch.empty(packed_tiles.parts_bytes(min(rows, packed_tiles.MOST_ROWS), case.n, case.k) // 4, device="cuda")

    around = room(case, rows, gated=case.gated)
    own = [] if triton else [device.packed_product(x, segment, around, parts) for segment in segments]
    calls: list[Callable[[], object]] = [call for call in own if call is not None]
    if calls:
        return in_turn(calls)
    around = room(case, rows, gated=case.gated and rows <= packed_tiles.MOST_GATED)
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


def timed(run: Callable[[], None], count: int) -> float:
    """Microseconds of one of the `count` products of a call."""
    return milliseconds(recorded(run)) * 1e3 / count


def weights(case: Case) -> list[Segment]:
    size = LAYOUTS[case.encoding].nbytes(case.n * case.k)
    return [noise(case) for _ in range(max(1, round(LEAST_BYTES / size)))]


def table(cases: list[Case], rows: list[int], *, triton: bool) -> bool:
    rate = copy_rate()
    torch.cuda.empty_cache()
    device, sums, passed = CudaDevice(), dict.fromkeys(rows, 0.0), True
    for case in cases:
        held, size = weights(case), LAYOUTS[case.encoding].nbytes(case.n * case.k)
        for n in rows:
            us = timed(launches(case, n, held, device, triton=triton), len(held))
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
    parser.add_argument("--triton", action="store_true", help="not by the device's own kernels")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = [int(n) for n in arguments.rows.split(",")]
    cases = [case for case in CASES if case.name in arguments.products.split(",")]
    return int(not table(cases, rows, triton=arguments.triton) and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
