"""Products of up to some hundred rows with packed weights, by a kernel in CUDA C++ (`source/packed_product.cu`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import torch

from poot_executor.backends.cuda.programs import Program
from poot_executor.backends.triton.kernels.codes import constants, plane_tensors
from poot_executor.backends.triton.kernels.products import Around
from poot_executor.backends.triton.packed import Layout, Segment
from poot_executor.ops.deferred import SQUARES

MOST_ROWS = 256
MOST_COLUMNS = 128  # rows of a step that a block has
_MULTIPLE = 64  # elements that rows must be a multiple of
_MOST_BYTES = 2**32  # of a plane: kernels count them in 32 bits
_MOST_PARTS = 2**16  # rows of the weight, for each of its parts, that there is room for the results of
_LEAST = 512  # columns of a part
_TILE = 16  # rows and columns of the matrix unit's operands


@dataclass(frozen=True, slots=True)
class Tiling:
    """A block: `columns` rows of the step, `line_warps` warps of `tiles` times 16 rows of the weight.

    Each `cuts`-fold, along the columns; `depth` columns a stage. `splits`: blocks that share out the columns.
    """

    columns: int
    line_warps: int
    cuts: int
    tiles: int
    depth: int
    stages: int
    splits: int = 1

    @property
    def lines(self) -> int:
        return self.line_warps * self.tiles * _TILE

    @property
    def threads(self) -> int:
        return 32 * self.line_warps * self.cuts

    def shared(self, layout: Layout) -> int:
        """Bytes of shared memory, as the kernel lays it out."""
        planes = [4, 4] if layout.bits == (8,) else list(layout.bits)
        line = sum(self.depth * bits // 8 for bits in planes)
        own = 4 if layout.minimum else 2
        line += self.depth // layout.group * (layout.multiples or own) + (4 if layout.multiples else 0)
        stage = -(-(self.columns * self.depth * 2 + self.lines * line) // 128) * 128
        return max(self.stages * stage, 4 * (self.cuts * self.columns * (self.lines + 4) + self.columns + 1))


def tiling(rows: int, n: int, k: int, layout: Layout, *, gated: bool, processors: int, shared: int) -> Tiling:
    """The fastest found on an H200 (sweeps over the shapes of an 8B decoder, 1 to 128 rows), within `shared` bytes.

    Of a product (rows, k) with (n, k), n of gate and of up each if gated. Many small warps hide what each waits for;
    columns are cut where there are too few tiles for all multiprocessors, which costs a second pass over results.
    """
    columns = max(8, min(MOST_COLUMNS, 1 << (rows - 1).bit_length()))
    many = n >= 128 * 2 * processors  # more tiles than can be under way: nothing to be cut
    if columns <= 32:
        how = Tiling(columns, 4, 2, 2 if gated else 1, 256, 4 if columns <= 16 else 3)
        if many:
            how = replace(how, cuts=1, stages=3)
    elif columns <= 64:
        how = Tiling(columns, 4, 1, 2, 256, 2) if gated or many else Tiling(columns, 4, 2, 1, 256, 2)
    elif gated or many:
        how = Tiling(columns, 8 if gated else 4, 1, 2, 128, 2)
    else:
        how = Tiling(columns, 8, 2, 1, 256, 2)
    while how.shared(layout) > shared and how != (how := _smaller(how)):
        pass
    lines = how.lines // (2 if gated else 1)
    blocks, splits = -(-n // lines) * -(-rows // how.columns), 1
    most = processors * (5 if columns <= 8 else 5 / 2)
    while not gated and 2 * splits * blocks <= most and k >= 2 * splits * _LEAST and 2 * splits * n <= _MOST_PARTS:
        splits *= 2
    return replace(how, splits=splits)


def _smaller(how: Tiling) -> Tiling:
    """A tiling that takes less shared memory: fewer stages, columns at a time, or rows; itself if there is none."""
    if how.stages > 2:
        return replace(how, stages=how.stages - 1)
    if how.depth == 256:
        return replace(how, depth=128, cuts=1)
    if how.columns > 8:
        return replace(how, columns=how.columns // 2)
    return replace(how, line_warps=how.line_warps // 2) if how.lines > SQUARES else how


def parts_bytes(rows: int, n: int, k: int) -> int:
    """Room for the float32 results of every part of a product (rows, k) with (n, k)."""
    return 4 * rows * min(_MOST_PARTS, n * max(1, k // _LEAST))


def accepts(x: torch.Tensor, segment: Segment) -> bool:
    """Whether the product of x (rows, K) with a segment is one for this kernel."""
    planes = (tensor.numel() * tensor.element_size() for tensor in segment.planes)
    whole = segment.width % _MULTIPLE == 0 and x.stride(1) == 1 and x.stride(0) % 8 == 0
    return x.dtype == torch.bfloat16 and len(x) <= MOST_ROWS and whole and max(planes) < _MOST_BYTES


def program(how: Tiling, segment: Segment, around: Around, *, pdl: bool) -> Program:
    """The kernel of a product."""
    if around.residual is not None and how.lines % SQUARES:
        raise ValueError(f"sums of squares are of {SQUARES} columns, not of {how.lines}")
    macros = {
        "COLUMNS": how.columns, "LINE_WARPS": how.line_warps, "CUTS": how.cuts, "TILES": how.tiles, "DEPTH": how.depth,
        "STAGES": how.stages, "SPLIT": how.splits > 1, "ALIGNED": gcd(segment.width, 256),
        "WHOLE": segment.width % how.depth == 0, "FLOAT": around.out.dtype == torch.float32, "PDL": pdl,
        **constants(segment), **around.constants(),
    }  # fmt: skip
    return Program("packed_product.cu", "packed_product", tuple((name, int(value)) for name, value in macros.items()))


def packed_product(
    x: torch.Tensor, segment: Segment, around: Around, parts: torch.Tensor, device: Any, *, how: Tiling | None = None
) -> Callable[[], object]:
    """The product of x (rows, K) bfloat16 with a segment, into its columns. The locks are zero between runs."""
    of = around.columns(segment.first, segment.rows)
    (rows, n), k = of.out.shape, segment.width
    gated = of.gate is not None
    if how is None:
        how = tiling(rows, n, k, segment.layout, gated=gated, processors=device.processors, shared=device.shared)
    blocks, tiles = -(-rows // how.columns), -(-n * (2 if gated else 1) // how.lines)
    span = -(-k // (how.splits * how.depth)) * how.depth
    splits = -(-k // span)
    locks = torch.zeros(blocks * tiles, dtype=torch.int32, device=x.device)
    tensors = x, *plane_tensors(segment), *of.tensors(), parts, locks
    numbers = rows, n, k, span, splits, x.stride(0), of.out.stride(0), float(of.eps), float(of.offset)
    return device.bind(  # type: ignore[no-any-return]
        program(how, segment, of, pdl=device.pdl), (tiles, splits, blocks), how.threads, how.shared(segment.layout),
        (*tensors, *numbers),
    )  # fmt: skip
