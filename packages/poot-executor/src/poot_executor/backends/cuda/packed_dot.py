"""Products of one to some rows with packed weights by integer dot products, in CUDA C++ (`source/packed_dot.cu`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from poot_executor.backends.cuda.programs import Program
from poot_executor.backends.triton.kernels.codes import constants, plane_tensors
from poot_executor.backends.triton.kernels.products import Around
from poot_executor.backends.triton.packed import Layout, Segment
from poot_executor.ops.deferred import SQUARES

MOST_ROWS = 8  # of a step: with more, sums do not fit into registers
_FASTER_ROWS = 2  # up to which this is faster than the matrix unit
# Elements of a row at least. Small models have little to gain, and their answers change the most: log-probabilities of
# one of 135M parameters were up to 0.34 apart alone and among others, which are not rounded to int8; in bfloat16 0.05.
_LEAST_WIDTH = 2048
_LONG = 8192  # elements of a row
_GROUP = 32  # elements that a lane takes at a time, and that share a scale when rows are quantised


@dataclass(frozen=True, slots=True)
class Tiling:
    """A block: `warps`, of which `cuts` share out a row's columns, each by `lanes` lanes.

    A lane has `outs` columns of the result at a time and `stages` steps of them under way. `blocks` a multiprocessor
    are launched; registers are such that there is room for `resident`.
    """

    lanes: int
    outs: int
    cuts: int
    warps: int
    stages: int
    blocks: int = 1
    resident: int = 2

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def warp_outs(self) -> int:
        return 32 // self.lanes * self.outs

    @property
    def block_outs(self) -> int:
        return self.warps // self.cuts * self.warp_outs

    def shared(self, layout: Layout, rows: int, k: int, *, gated: bool) -> int:
        """Bytes of shared memory, as the kernel lays it out."""
        results = 2 * self.warps * rows * self.warp_outs * (2 if gated else 1)
        return _rows_bytes(layout, rows, k) + 4 * (-(-rows // 4) * 4 + results)


def faster_rows(segment: Segment, shared: int) -> int:
    """Up to how many rows this is the way, with so many bytes of shared memory for a block."""
    if segment.width < _LEAST_WIDTH:
        return 0
    return min(_FASTER_ROWS, most_rows(segment.width, segment.layout, shared))


def most_rows(k: int, layout: Layout, shared: int) -> int:
    """The most rows of k elements that a kernel takes, with so many bytes of shared memory for a block."""
    for rows in range(MOST_ROWS, 0, -1):
        ways = ((tiling(rows, 1, k, layout, gated=gated), gated) for gated in (False, True))
        if all(how.shared(layout, rows, k, gated=gated) <= shared for how, gated in ways):
            return rows
    return 0


def _rows_bytes(layout: Layout, rows: int, k: int) -> int:
    """Bytes of quantised rows: elements, and of each group its step and a number for each scale of the weight."""
    return rows * k // _GROUP * (_GROUP + 4 * (2 if layout.group == _GROUP else 4))


def tiling(rows: int, n: int, k: int, layout: Layout, *, gated: bool) -> Tiling:
    """The fastest found on an H200 (sweeps over the shapes of an 8B decoder, 1, 2 and 4 rows), or near to it.

    Of a product (rows, k) with (n, k), n of gate and of up each if gated.
    """
    if rows > 4:
        return Tiling(8, 1, 4, 8, 2)
    if k > _LONG:
        # Rows of x take much of the shared memory.
        one = len(layout.bits) == 1 and layout.bits != (8,) and not gated
        return Tiling(8, 2, 8, 32, 2, 1, 1) if one else Tiling(8, 1, 2, 8, 4, 2, 2)
    return Tiling(8, 2, 8, 16 if rows == 1 and n <= 2 * _LONG and not gated else 8, 2, 2, 2)


def program(how: Tiling, segment: Segment, around: Around, rows: int, *, pdl: bool) -> Program:
    """The kernel of a product of so many rows."""
    macros = {
        "ROWS": rows, "WIDTH": segment.width, "ROW_LANES": how.lanes, "OUTS": how.outs, "CUTS": how.cuts,
        "WARPS": how.warps, "STAGES": how.stages, "RESIDENT": how.resident,
        "FLOAT": around.out.dtype == torch.float32, "PDL": pdl, **constants(segment), **around.constants(),
    }  # fmt: skip
    return Program("packed_dot.cu", "packed_dot", tuple((name, int(value)) for name, value in macros.items()))


def packed_dot(
    x: torch.Tensor, segment: Segment, around: Around, device: Any, *, how: Tiling | None = None
) -> Callable[[], object]:
    """The product of x (rows, K) bfloat16 with a segment, into its columns. The locks are zero between runs."""
    of = around.columns(segment.first, segment.rows)
    (rows, n), k, gated = of.out.shape, segment.width, of.gate is not None
    if not 1 <= rows <= MOST_ROWS:
        raise ValueError(f"{rows} rows, of 1 to {MOST_ROWS}")
    how = how or tiling(rows, n, k, segment.layout, gated=gated)
    locks = torch.zeros(-(-n // SQUARES), dtype=torch.int32, device=x.device)
    arguments = (
        *(x, *plane_tensors(segment), *of.tensors(), locks),
        *(n, x.stride(0), of.out.stride(0), float(of.eps), float(of.offset)),
    )
    grid = min(-(-n // how.block_outs), device.processors * how.blocks)
    return device.bind(  # type: ignore[no-any-return]
        program(how, segment, of, rows, pdl=device.pdl), (grid, 1, 1), how.threads,
        how.shared(segment.layout, rows, k, gated=gated), arguments,
    )  # fmt: skip
