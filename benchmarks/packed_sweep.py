"""Which tiling of a kernel of packed products is the fastest: every one of a list, timed as packed_products does.

    python benchmarks/packed_sweep.py dot|narrow|wide|few|tiles [--rows 1] [--products o,down] [--seconds 60] [--best 5]

dot, narrow and wide are the kernels in CUDA C++, few and tiles Triton's. Programs are compiled several at once.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from here import require_gpu
from packed_products import CASES, Case, in_turn, launches, noise, room, timed, weights

from poot_executor.backends.cuda import packed_dot, packed_product
from poot_executor.backends.cuda.device import CudaDevice
from poot_executor.backends.cuda.nvrtc import ProgramError
from poot_executor.backends.cuda.programs import Program, cubin
from poot_executor.backends.triton.kernels import packed_few, packed_tiles
from poot_executor.backends.triton.packed import LAYOUTS, Segment

Tiling = packed_dot.Tiling | packed_product.Tiling | packed_tiles.Tiling | dict[str, int]
MOST_BLOCKS = 700  # of a cut product
COMPILERS = 16


def dot_tilings(case: Case, rows: int) -> Iterator[Tiling]:
    places = itertools.product((8, 16, 32), (1, 2, 4), (1, 2, 4, 8), (8, 16, 32), (1, 2, 4))
    for lanes, outs, cuts, warps, stages in places:
        lines = stages * outs * (2 if case.gated else 1)
        if warps % cuts == 0 and lines in {4, 6, 8} and rows * lines // stages <= 16 and 32 // lanes * outs <= 64:
            for blocks, resident in ((1, 1), (1, 2), (2, 2)):
                if warps * 32 * resident <= 1024:
                    yield packed_dot.Tiling(lanes, outs, cuts, warps, stages, blocks, resident)


def cut(case: Case, rows: int, how: packed_product.Tiling) -> Iterator[packed_product.Tiling]:
    """The tiling with every number of parts that makes sense, if its block can be had."""
    if how.shared(LAYOUTS[case.encoding]) > 227 * 1024 or how.threads > 1024:
        return
    blocks = -(-case.n // how.lines) * -(-rows // how.columns)
    for splits in (1, 2, 4, 8):
        fits = (
            not case.gated and case.k // splits >= 512 and splits * case.n <= 2**16 and blocks * splits <= MOST_BLOCKS
        )
        if splits == 1 or fits:
            yield replace(how, splits=splits)


def narrow_tilings(case: Case, rows: int) -> Iterator[Tiling]:
    columns = max(8, min(128, 1 << (rows - 1).bit_length()))
    for warps, tiles, cuts, depth, stages in itertools.product((2, 4, 8), (1, 2, 4), (1, 2), (128, 256), (2, 3, 4)):
        threads, lines = 32 * warps * cuts, 16 * warps * tiles
        if depth % (128 * cuts) == 0 and 128 <= threads <= 512 and 64 <= lines <= 256 and tiles * columns <= 256:
            yield from cut(case, rows, packed_product.Tiling(columns, warps, cuts, tiles, depth, stages))


def wide_tilings(case: Case, rows: int) -> Iterator[Tiling]:
    for columns, groups, stages in itertools.product((64, 128), (2, 3, 4), (2, 3, 4, 5)):
        yield from cut(case, rows, packed_product.Tiling(columns, 4 * groups, 1, 1, 128, stages, wide=True))


def few_tilings(case: Case, rows: int) -> Iterator[Tiling]:
    for outs, octs, stages in itertools.product((1, 2, 4, 8), (128, 256), (1, 2, 3)):
        yield {"OUTS": outs, "OCTS": octs, "STAGES": stages}


def tile_tilings(case: Case, rows: int) -> Iterator[Tiling]:
    bm = max(16, 1 << (rows - 1).bit_length())
    for bn, warps in ((64, 4), (128, 4), (128, 8)):
        for octs, stages, split in itertools.product((16, 32, 64), (1, 2, 3, 4), (1, 2, 4)):
            yield packed_tiles.Tiling(bn, bm, octs, split, stages, warps)


KINDS: dict[str, Callable[[Case, int], Iterator[Tiling]]] = {
    "dot": dot_tilings, "narrow": narrow_tilings, "wide": wide_tilings, "few": few_tilings, "tiles": tile_tilings,
}  # fmt: skip


def program(case: Case, rows: int, segment: Segment, how: Tiling) -> Program | None:
    """What has to be compiled; Triton's are when they are first run."""
    if isinstance(how, packed_dot.Tiling):
        return packed_dot.program(how, segment, room(case, rows, gated=case.gated), rows, pdl=True)
    if isinstance(how, packed_product.Tiling):
        return packed_product.program(how, segment, room(case, rows, gated=case.gated), pdl=True)
    return None


def product(case: Case, rows: int, held: list[Segment], device: CudaDevice, how: Tiling) -> Callable[[], None]:
    """A call of the product with each of the segments, so tiled."""
    if isinstance(how, dict):
        for name, value in how.items():
            setattr(packed_few, f"_{name}", value)
        return launches(case, rows, held, device, triton=True)
    if isinstance(how, packed_tiles.Tiling):
        packed_tiles._tiling = lambda *args, **named: how
        return launches(case, rows, held, device, triton=True)
    x, around = torch.randn(rows, case.k, device="cuda").bfloat16(), room(case, rows, gated=case.gated)
    if isinstance(how, packed_dot.Tiling):
        return in_turn([packed_dot.packed_dot(x, segment, around, device, how=how) for segment in held])
    parts = torch.empty(how.splits * rows * case.n, device="cuda")
    return in_turn([packed_product.packed_product(x, one, around, parts, device, how=how) for one in held])


def compile_all(programs: set[Program]) -> None:
    """What does not compile (too few registers, say) is told and left out when it is run."""
    capability = torch.cuda.get_device_capability()

    def one(program: Program) -> None:
        try:
            cubin(program, capability)
        except ProgramError as error:
            print(f"{program.kernel}: {str(error).splitlines()[-1]}", flush=True)

    with ThreadPoolExecutor(COMPILERS) as threads:
        list(threads.map(one, programs))


def sweep(kind: str, cases: list[Case], rows: list[int], seconds: float, best: int) -> None:
    require_gpu()
    device = CudaDevice()
    jobs = {(case, n): list(KINDS[kind](case, n)) for case in cases for n in rows}
    made = (program(case, n, noise(case), how) for (case, n), ways in jobs.items() for how in ways)
    compile_all({one for one in made if one is not None})
    end = time.monotonic() + seconds
    for case in cases:
        held, size = weights(case), LAYOUTS[case.encoding].nbytes(case.n * case.k)
        for n in rows:
            found: list[tuple[float, Any]] = []
            for how in jobs[case, n]:
                if time.monotonic() > end:
                    break
                try:
                    found.append((timed(product(case, n, held, device, how), len(held)), how))
                except Exception as error:
                    print(f"{case.name} {n} rows {how}: {type(error).__name__} {str(error)[:80]}", flush=True)
            found.sort(key=lambda pair: pair[0])
            for us, how in found[:best]:
                print(f"{case.name:8} {n:4} rows: {us:7.1f} us, {size / us / 1e6:5.2f} TB/s, {how}", flush=True)
            print(f"{case.name:8} {n:4} rows: {len(found)} of {len(jobs[case, n])} tilings timed", flush=True)
        del held
        torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=tuple(KINDS))
    parser.add_argument("--rows", default="1", help="with commas between")
    parser.add_argument("--products", default=",".join(case.name for case in CASES))
    parser.add_argument("--seconds", type=float, default=60.0, help="of timing, after which the rest is left out")
    parser.add_argument("--best", type=int, default=5)
    arguments = parser.parse_args()
    cases = [case for case in CASES if case.name in arguments.products.split(",")]
    rows = [int(n) for n in arguments.rows.split(",")]
    sweep(arguments.kind, cases, rows, arguments.seconds, arguments.best)
    return 0


if __name__ == "__main__":
    sys.exit(main())
