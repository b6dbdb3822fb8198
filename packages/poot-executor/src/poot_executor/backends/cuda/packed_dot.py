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
MULTIPLE = 64  # elements that rows must be a multiple of
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
        group = 32 + 4 * (2 if layout.group == _GROUP else 4)
        results = 2 * self.warps * rows * self.warp_outs * (2 if gated else 1)
        return rows * k // _GROUP * group + 4 * (-(-rows // 4) * 4 + results)


def tiling(rows: int, n: int, k: int, *, gated: bool, processors: int) -> Tiling:
    """The tiling of a product (rows, k) with (n, k), n of gate and of up each if gated."""
    outs = 1 if gated or rows > 4 else 2
    how = Tiling(lanes=8, outs=outs, cuts=1, warps=16, stages=2 if rows > 1 else 4)
    # With fewer columns of the result than lanes for them, a row is shared out among more.
    while how.cuts < 4 and n < how.block_outs * processors and k >= 2 * how.cuts * how.lanes * _GROUP * how.stages:
        how = Tiling(how.lanes, outs, how.cuts * 2, how.warps, how.stages)
    return how


def program(how: Tiling, segment: Segment, around: Around, rows: int, *, pdl: bool) -> Program:
    """The kernel of a product of so many rows."""
    step = how.lanes * how.cuts * how.stages * _GROUP
    macros = {
        "ROWS": rows, "LANES": how.lanes, "OUTS": how.outs, "CUTS": how.cuts, "WARPS": how.warps,
        "STAGES": how.stages, "RESIDENT": how.resident, "WHOLE": segment.width % step == 0,
        "FLOAT": around.out.dtype == torch.float32, "PDL": pdl, **constants(segment), **around.constants(),
    }  # fmt: skip
    return Program("packed_dot.cu", "packed_dot", tuple((name, int(value)) for name, value in macros.items()))


def packed_dot(
    x: torch.Tensor, segment: Segment, around: Around, device: Any, how: Tiling | None = None
) -> Callable[[], object]:
    """The product of x (rows, K) bfloat16 with a segment, into its columns. The locks are zero between runs."""
    of = around.columns(segment.first, segment.rows)
    (rows, n), k, gated = of.out.shape, segment.width, of.gate is not None
    how = how or tiling(rows, n, k, gated=gated, processors=device.processors)
    locks = torch.zeros(-(-n // SQUARES), dtype=torch.int32, device=x.device)
    arguments = (
        *(x, *plane_tensors(segment), *of.tensors(), locks),
        *(n, k, x.stride(0), of.out.stride(0), float(of.eps), float(of.offset)),
    )
    grid = min(-(-n // how.block_outs), device.processors * how.blocks)
    return device.bind(  # type: ignore[no-any-return]
        program(how, segment, of, rows, pdl=device.pdl), (grid, 1, 1), how.threads,
        how.shared(segment.layout, rows, k, gated=gated), arguments,
    )  # fmt: skip
