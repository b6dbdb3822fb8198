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
_MOST_NARROW = 32  # rows up to which mma.m16n8k16 is faster
_MULTIPLE = 64  # elements that rows must be a multiple of
_MOST_BYTES = 2**32  # of a plane: kernels count them in 32 bits
_MOST_PARTS = 2**16  # rows of the weight, for each of its parts, that there is room for the results of
_LEAST = 512  # columns of a part
_MOST_SPLITS = 8  # whose results of a column a thread has at once
_TILE = 16  # rows and columns of the matrix unit's operands


@dataclass(frozen=True, slots=True)
class Tiling:
    """A block: `columns` rows of the step, `line_warps` warps of `tiles` times 16 rows of the weight.

    Each `cuts`-fold, along the columns; `depth` columns a stage. `splits`: blocks that share out the columns. `wide`:
    by Hopper's asynchronous matrix unit, four warps of one tile together.
    """

    columns: int
    line_warps: int
    cuts: int
    tiles: int
    depth: int
    stages: int
    splits: int = 1
    wide: bool = False

    @property
    def lines(self) -> int:
        return self.line_warps * self.tiles * _TILE

    @property
    def threads(self) -> int:
        return 32 * self.line_warps * self.cuts + (128 if self.wide else 0)

    def shared(self, layout: Layout) -> int:
        """Bytes of shared memory, as the kernel lays it out."""
        planes = [4, 4] if layout.bits == (8,) else list(layout.bits)
        line = sum(self.depth * bits // 8 for bits in planes)
        own = 4 if layout.minimum else 2
        line += self.depth // layout.group * (layout.multiples or own) + (4 if layout.multiples else 0)
        stage = -(-(self.columns * self.depth * 2 + self.lines * line) // 1024) * 1024
        results = 4 * self.cuts * self.columns * (self.lines + 4)
        return max(self.stages * stage, results) + 4 * self.columns + (16 * self.stages if self.wide else 0)


def tiling(
    rows: int, n: int, k: int, layout: Layout, *, gated: bool, processors: int, shared: int, wide: bool
) -> Tiling:
    """The fastest found on an H200 (sweeps over the shapes of an 8B decoder, 8 to 256 rows), within `shared` bytes.

    Of a product (rows, k) with (n, k), n of gate and of up each if gated. Columns are cut where there are too few tiles
    for all multiprocessors, which costs a second pass over results.
    """
    many = gated or n >= 128 * 2 * processors  # more tiles than can be under way: nothing to be cut
    how = _wide(rows, many=many) if wide and rows > _MOST_NARROW else _narrow(rows, gated=gated, many=many)
    while how.shared(layout) > shared and how != (how := _smaller(how)):
        pass
    blocks, splits = -(-n * (2 if gated else 1) // how.lines) * -(-rows // how.columns), 1
    most = processors * (1 if how.wide else 5 if rows <= 8 else 5 / 2)
    most = 1 if gated else min(_MOST_SPLITS, int(most / blocks), k // _LEAST, _MOST_PARTS // n)
    while 2 * splits <= most:
        splits *= 2
    return replace(how, splits=splits)


def _columns(rows: int, most: int) -> int:
    return max(8, min(most, 1 << (rows - 1).bit_length()))


def _narrow(rows: int, *, gated: bool, many: bool) -> Tiling:
    """For mma.m16n8k16: many small warps hide what each waits for."""
    columns = _columns(rows, 128)
    if columns <= 16:
        if many and not gated:
            return Tiling(columns, 2, 2, 2, 256, 3)
        return Tiling(columns, 4 if gated else 2, 2, 2, 256, 4)
    if columns <= 32:
        return Tiling(columns, 2, 2, 4 if gated else 2, 256, 3)
    if columns <= 64:
        return Tiling(columns, 4, 1, 2, 256, 2) if many else Tiling(columns, 4, 2, 1, 256, 2)
    return Tiling(columns, 8, 1, 2, 128, 2) if many else Tiling(columns, 8, 2, 1, 256, 2)


def _wide(rows: int, *, many: bool) -> Tiling:
    """For Hopper's asynchronous matrix unit: large tiles, since all blocks read all rows of the step."""
    columns = max(64, _columns(rows, 128))
    return Tiling(columns, 16 if many else 8, 1, 1, 128, 3, wide=True)


def _smaller(how: Tiling) -> Tiling:
    """A tiling that takes less shared memory: fewer stages, columns at a time, or rows; itself if there is none."""
    if how.stages > 2:
        return replace(how, stages=how.stages - 1)
    if how.depth == 256:
        return replace(how, depth=128, cuts=1)
    if how.columns > (SQUARES if how.wide else 8):
        return replace(how, columns=how.columns // 2)
    return replace(how, line_warps=how.line_warps // 2) if how.lines > SQUARES else how


def parts_bytes(rows: int, n: int, k: int) -> int:
    """Room for the float32 results of every part of a product (rows, k) with (n, k)."""
    return 4 * rows * min(_MOST_PARTS, n * max(1, k // _LEAST))


def accepts(x: torch.Tensor, segment: Segment) -> bool:
    """Whether the product of x (rows, K) with a segment is one for this kernel."""
    planes = (tensor.numel() * tensor.element_size() for tensor in segment.planes)
    whole = segment.width % _MULTIPLE == 0 and x.stride(1) == 1 and x.stride(0) % 8 == 0
    given = x.dtype == torch.bfloat16 and x.data_ptr() % 16 == 0 and len(x) <= MOST_ROWS
    return given and whole and max(planes) < _MOST_BYTES


def _is_aligned(around: Around) -> bool:
    """Whether four neighbours can be read and written at once everywhere."""
    whole = around.out.shape[1] % 4 == 0 and around.out.stride(0) % 4 == 0
    return whole and all(tensor.data_ptr() % 16 == 0 for tensor in around.tensors())


def program(how: Tiling, segment: Segment, around: Around, *, pdl: bool) -> Program:
    """The kernel of a product."""
    if around.residual is not None and how.lines % SQUARES:
        raise ValueError(f"sums of squares are of {SQUARES} columns, not of {how.lines}")
    macros = {
        "COLUMNS": how.columns, "LINE_WARPS": how.line_warps, "CUTS": how.cuts, "TILES": how.tiles, "DEPTH": how.depth,
        "STAGES": how.stages, "SPLIT": how.splits, "ALIGNED": gcd(segment.width, 256),
        "WHOLE": segment.width % how.depth == 0, "FLOAT": around.out.dtype == torch.float32, "PDL": pdl,
        "VECTOR": 4 if _is_aligned(around) else 1, **constants(segment), **around.constants(),
    }  # fmt: skip
    if how.wide:
        for name in ("LINE_WARPS", "CUTS", "TILES"):
            del macros[name]
        macros["GROUPS"] = how.line_warps // 4
    name = "packed_wide" if how.wide else "packed_product"
    return Program(f"{name}.cu", name, tuple((name, int(value)) for name, value in macros.items()), how.wide)


def packed_product(
    x: torch.Tensor, segment: Segment, around: Around, parts: torch.Tensor, device: Any, *, how: Tiling | None = None
) -> Callable[[], object]:
    """The product of x (rows, K) bfloat16 with a segment, into its columns. The locks are zero between runs."""
    of = around.columns(segment.first, segment.rows)
    (rows, n), k = of.out.shape, segment.width
    gated = of.gate is not None
    if how is None:
        how = tiling(
            rows,
            n,
            k,
            segment.layout,
            gated=gated,
            processors=device.processors,
            shared=device.shared,
            wide=device.wide,
        )
    blocks, tiles = -(-rows // how.columns), -(-n * (2 if gated else 1) // how.lines)
    span = -(-k // (how.splits * how.depth)) * how.depth
    how = replace(how, splits=-(-k // span))
    locks = torch.zeros(blocks * tiles, dtype=torch.int32, device=x.device)
    tensors = x, *plane_tensors(segment), *of.tensors(), parts, locks
    numbers = rows, n, k, span, x.stride(0), of.out.stride(0), float(of.eps), float(of.offset)
    return device.bind(  # type: ignore[no-any-return]
        program(how, segment, of, pdl=device.pdl), (tiles, how.splits, blocks), how.threads, how.shared(segment.layout),
        (*tensors, *numbers),
    )  # fmt: skip
