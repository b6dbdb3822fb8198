"""Products of a few rows with dense weights: what a decode step spends most of its time on.

The weight's rows are the matrix unit's rows and the step's rows its columns, so that a tile of the weight is read once
and nothing is padded to 64 rows. A program has one tile of the weight's rows, or, where that leaves multiprocessors
idle, a part of its columns: then the program that comes last adds up the parts, always in the same order. The copy
engine fetches the tiles (tensor descriptors), so programs wait for nothing but memory.

What comes before and after a product in a decoder is done here too: the scale of a norm that was put off, bias, gated
activation, the residual's addition, and the next norm's weights and sums of squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from poot_executor.backends.triton.kernels.kernel import prefetch
from poot_executor.backends.triton.kernels.pointwise import GATES, gated
from poot_executor.ops.deferred import SQUARES

# Rows of a step up to which a decoder is faster with these products than with the library's, which have no dependent
# launch and leave what comes after to kernels of its own.
MOST_ROWS = 32

# More multiprocessors than any device has.
_MOST_PROCESSORS = 512


@triton.jit
def keep_part(value, part, lock, where, inside, splits):
    """Store a part of a tile. How many came before it: the last one has to add all of them up."""
    tl.store(part + where, value, mask=inside)
    tl.debug_barrier()
    before = tl.atomic_add(lock, 1, sem="acq_rel")
    if before == splits - 1:
        tl.debug_barrier()
        tl.store(lock, 0)
    return before


@triton.jit
def sum_parts(parts, where, inside, size, splits, BN: tl.constexpr, BM: tl.constexpr):
    """The sum of a tile's parts, in their order."""
    value = tl.zeros((BN, BM), tl.float32)
    for i in range(splits):
        value += tl.load(parts + i * size + where, mask=inside, other=0.0, cache_modifier=".cg")
    return value


@triton.jit
def _fetch_ahead(w, of_n, first, n, k, GATE: tl.constexpr):
    """Bring a tile's first weights into the cache of the device, 1 KiB of each row, while earlier kernels run."""
    column = tl.minimum(first + tl.arange(0, 8) * 64, k - 1)
    line = tl.minimum(of_n, n - 1).to(tl.int64)[:, None] * k + column[None, :]
    prefetch(w + line)
    if GATE > 0:
        prefetch(w + line + n.to(tl.int64) * k)


@triton.jit
def squares_of_rows(squares, of_m, rows, k, PIECES: tl.constexpr):
    """The sums of squares (BM, PIECES) of rows whose norm was put off."""
    piece = tl.arange(0, PIECES)
    pieces = tl.cdiv(k, 64)
    there = (of_m[:, None] < rows) & (piece[None, :] < pieces)
    return tl.load(squares + of_m[:, None] * pieces + piece[None, :], mask=there, other=0.0)


@triton.jit
def finish_tile(
    value, up, norm, kept, bias, gain, out, scaled, sums, of_n, of_m, rows, n, k, pitch, tile, eps, offset,
    BN: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, NORMED: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """What comes after the product of a tile (BN, BM), and its way out. `pitch` elements are between rows of `out`."""
    inside = (of_m[None, :] < rows) & (of_n[:, None] < n)
    where = of_m[None, :] * pitch + of_n[:, None]
    if NORMED:
        scale = (1.0 / tl.sqrt(tl.sum(norm, 1) / k + eps))[None, :]
        value *= scale
        up *= scale
    if BIAS:
        value += tl.load(bias + of_n, mask=of_n < n, other=0.0)[:, None]
    if GATE > 0:
        value = gated(value, up, GATE)
    if RESIDUAL:
        # The norm is that of the sum as it is kept.
        value = (value + kept.to(tl.float32)).to(out.dtype.element_ty).to(tl.float32)
        weight = tl.load(gain + of_n, mask=of_n < n, other=0.0) + offset
        tl.store(scaled + where, value * weight[:, None], mask=inside)
        square = tl.sum(tl.where(inside, value * value, 0.0), 0)
        tl.store(sums + of_m * tl.cdiv(n, BN) + tile, square, mask=of_m < rows)
    tl.store(out + where, value, mask=inside)


# One compilation for all capacities of a block of rows.
@triton.jit(do_not_specialize=["rows"])
def _product(
    x_tiles, w_tiles, w, bias, squares, residual, gain, out, scaled, sums, parts, locks,
    rows, n, k, span, splits, eps, offset,
    BN: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr, STAGES: tl.constexpr, SPLIT: tl.constexpr,
    BIAS: tl.constexpr, GATE: tl.constexpr, PIECES: tl.constexpr, RESIDUAL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rows tile*BN on of the weight (of gate and up: n apart), columns part*span on. Tiles are (BN, BM).

    The next kernel may start at once: while this one streams weights there is room for programs that wait.
    """
    tile, part = tl.program_id(0), tl.program_id(1)
    of_n = tile * BN + tl.arange(0, BN)
    of_m = tl.arange(0, BM)
    where = of_m[None, :] * n + of_n[:, None]
    inside = (of_m[None, :] < rows) & (of_n[:, None] < n)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        _fetch_ahead(w, of_n, part * span, n, k, GATE)
        tl.extra.cuda.gdc_wait()
    norm = 0.0
    kept = 0.0
    if PIECES > 0:
        norm = squares_of_rows(squares, of_m, rows, k, PIECES)
    if RESIDUAL:
        kept = tl.load(residual + where, mask=inside, other=0.0)
    value = tl.zeros((BN, BM), tl.float32)
    up = tl.zeros((BN, BM), tl.float32)
    first = part * span
    for at in tl.range(first, tl.minimum(first + span, k), BK, num_stages=STAGES):
        of_x = tl.trans(x_tiles.load([0, at]))
        value = tl.dot(w_tiles.load([tile * BN, at]), of_x, value, input_precision="ieee")
        if GATE > 0:
            up = tl.dot(w_tiles.load([n + tile * BN, at]), of_x, up, input_precision="ieee")
    if SPLIT:
        if keep_part(value, parts + part * rows * n, locks + tile, where, inside, splits) < splits - 1:
            return
        value = sum_parts(parts, where, inside, rows * n, splits, BN, BM)
    finish_tile(
        value, up, norm, kept, bias, gain, out, scaled, sums, of_n, of_m, rows, n, k, n, tile, eps, offset,
        BN, BIAS, GATE, PIECES > 0, RESIDUAL,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tiling:
    """A program's tile: BN rows of the weight, BK columns a step, `split` parts of the columns."""

    stages: int
    split: int
    bn: int = SQUARES
    bk: int = 128
    warps: int = 4


def tiling(rows: int, n: int, k: int, *, gated: bool, size: int, processors: int, shared: int) -> Tiling:
    """The fastest found on an H200 (sweeps over the shapes of an 8B decoder, 2 to 32 rows), within `shared` bytes.

    A product of few tiles gets more of its columns under way at once, and its columns cut where even so most
    multiprocessors would idle. Cutting costs a second pass over the results, so it needs long rows or few tiles.
    """
    tiles, split, processors = triton.cdiv(n, SQUARES), 1, min(processors, _MOST_PROCESSORS)
    while not gated and 2 * split * tiles <= processors:
        least = 256 if 4 * split * tiles < processors else 2048
        if k < 2 * split * least:
            break
        split *= 2
    each = (SQUARES * (2 if gated else 1) + block_rows(rows)) * 128 * size
    stages = 6 if not gated and tiles * split <= processors else 4
    return Tiling(max(1, min(stages, (shared - 4096) // each)), split)


def block_rows(rows: int) -> int:
    return max(16, int(triton.next_power_of_2(rows)))


def workspace_bytes(rows: int, n: int) -> int:
    """Float32 results of every part, on the largest device."""
    cut = 2 * triton.cdiv(n, SQUARES) <= _MOST_PROCESSORS
    return 4 * rows * SQUARES * _MOST_PROCESSORS if cut else 0


@dataclass(frozen=True, slots=True)
class Around:
    """Where a product (rows, n) goes, and what is done around it.

    `squares` and `eps` belong to a norm of the product's input that was put off: that is already times the norm's
    weight. `residual`, `gain` (weight of the next norm, `offset` added), `scaled` and `sums` make the sum and put that
    next norm off.
    """

    out: torch.Tensor
    bias: torch.Tensor | None = None
    gate: str | None = None
    squares: torch.Tensor | None = None
    eps: float = 0.0
    residual: torch.Tensor | None = None
    gain: torch.Tensor | None = None
    offset: float = 0.0
    scaled: torch.Tensor | None = None
    sums: torch.Tensor | None = None

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """As kernels take them; the result stands for those that there are not."""
        before = (self.bias, self.squares, self.residual, self.gain, self.out, self.scaled, self.sums)
        return tuple(self.out if tensor is None else tensor for tensor in before)

    def constants(self) -> dict[str, Any]:
        """What kernels are compiled for."""
        return {
            "BIAS": self.bias is not None,
            "GATE": GATES[self.gate],
            "PIECES": 0 if self.squares is None else triton.next_power_of_2(self.squares.shape[1]),
            "RESIDUAL": self.residual is not None,
        }

    def columns(self, first: int, count: int) -> Around:
        """Of these columns of the product alone. More than those that there are is all (gate and up)."""
        if count >= self.out.shape[1]:
            return self
        columns = slice(first, first + count)
        bias = None if self.bias is None else self.bias[columns]
        return replace(self, out=self.out[:, columns], bias=bias)


@dataclass(frozen=True, slots=True)
class Product:
    """x (rows, k) with `weight` (n or, gated, 2n, k)."""

    x: torch.Tensor
    weight: torch.Tensor
    around: Around
    parts: torch.Tensor | None

    def bind(self, how: Tiling, device: Any) -> Callable[[], object]:
        """The launch. Its locks are zero between runs."""
        rows, k = self.x.shape
        around, block = self.around, block_rows(rows)
        n = around.out.shape[1]
        tiles, span = triton.cdiv(n, how.bn), triton.cdiv(triton.cdiv(k, how.split), how.bk) * how.bk
        splits = triton.cdiv(k, span)
        locks = torch.zeros(tiles, dtype=torch.int32, device=self.x.device)
        x_tiles = TensorDescriptor.from_tensor(self.x, [block, how.bk])
        w_tiles = TensorDescriptor.from_tensor(self.weight, [how.bn, how.bk])
        tensors = *around.tensors(), around.out if self.parts is None else self.parts
        numbers = rows, n, k, span, splits, around.eps, around.offset
        return lambda: _product[(tiles, splits)](
            x_tiles, w_tiles, self.weight, *tensors, locks, *numbers,
            BN=how.bn, BK=how.bk, BM=block, STAGES=how.stages, SPLIT=splits > 1, **around.constants(),
            num_warps=how.warps, num_stages=how.stages, **device.launch,
        )  # fmt: skip
