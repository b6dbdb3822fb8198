"""Products of up to some hundred rows with packed weights: codes become matrix-unit operands in registers.

The weight's rows are the matrix unit's rows, so a code is decoded once and goes to the matrix unit from the registers
that it was decoded in. An oct of columns is eight products, one for each place in the oct: their operands are then
decoded from words as they lie, and only the activations have to be spread by place first (`arrange`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.codes import (
    codes,
    constants,
    fetch_ahead,
    fetch_scales,
    plane_tensors,
    scales,
)
from poot_executor.backends.triton.kernels.products import Around, finish_tile, keep_part, squares_of_rows, sum_parts
from poot_executor.backends.triton.packed import OCT, Segment

MOST_ROWS = 256
# Rows up to which gate and up are one product: with more, their sums do not fit into registers.
MOST_GATED = 64
# Rows up to which a tile has as many rows of the weight as sums of squares are of.
MOST_NORMED = 64
# Float32 results of parts: room for so many tiles' rows at most.
_MOST_PARTS = 512
_LEAST_OCTS = 64  # octs of a part
_MOST_WORDS = 8  # bytes of an oct's planes
_MOST_ALIGNED = 64  # octs of which rows are told to be multiples
_RESERVED = 8 * 2**10  # bytes of shared memory for what is not a stage


@triton.jit
def _of_octs(value, BN: tl.constexpr, GROUPS: tl.constexpr, OCTS: tl.constexpr):
    """What groups of a row have, (BN, GROUPS), for each of their octs, (BN, OCTS)."""
    return tl.reshape(tl.broadcast_to(value[:, :, None], (BN, GROUPS, OCTS // GROUPS)), (BN, OCTS))


@triton.jit
def _scales_of_octs(
    number, halves, OFFSET: tl.constexpr, MINIMUM: tl.constexpr, MULTIPLES: tl.constexpr, BN: tl.constexpr,
    GROUPS: tl.constexpr, OCTS: tl.constexpr,
):  # fmt: skip
    """Of each oct, by what a code is multiplied and what is subtracted then."""
    size, least = scales(number, halves, MINIMUM, MULTIPLES)
    return _of_octs(size, BN, GROUPS, OCTS), _of_octs(size * OFFSET + least, BN, GROUPS, OCTS)


# One compilation for all capacities of a block of rows.
@triton.jit(do_not_specialize=["rows"])
def _packed_tiles(
    x, low, high, scale, unit, bias, squares, residual, gain, out, scaled, sums, parts, locks,
    rows, n, octs, span, splits, pitch, eps, offset,
    BN: tl.constexpr, OCTS: tl.constexpr, BM: tl.constexpr, ALIGNED: tl.constexpr, STAGES: tl.constexpr,
    SPLIT: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr,
    MINIMUM: tl.constexpr, MULTIPLES: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr, PIECES: tl.constexpr,
    RESIDUAL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rows tile*BN on of the weight (of gate and up: n apart), steps part*span on of OCTS octs, of a block of BM rows.

    A row has `octs` times ALIGNED octs, a power of two, so that loads are seen to be aligned.
    Scales are fetched a step ahead, by hand: the compiler does not for loads of two bytes.
    """
    WIDE: tl.constexpr = GROUP // 8
    GROUPS: tl.constexpr = OCTS // WIDE
    EVEN: tl.constexpr = ALIGNED % OCTS == 0
    tile, part = tl.program_id(0), tl.program_id(1)
    of_n = tile * BN + tl.arange(0, BN)
    block = tl.program_id(2)
    of_m = block * BM + tl.arange(0, BM)
    of_k, of_group = tl.arange(0, OCTS), tl.arange(0, GROUPS)
    k8 = octs * ALIGNED
    row = tl.minimum(of_n, n - 1)[:, None]
    of_x = of_m[None, :] * k8 + of_k[:, None]
    there = of_m[None, :] < rows
    begin = part * span * OCTS
    end = tl.minimum(begin + span * OCTS, k8)
    group = row * (k8 // WIDE) + begin // WIDE + of_group[None, :]
    inside = (of_group < (end - begin) // WIDE)[None, :]
    number, halves = fetch_scales(scale, unit, group, inside, GROUP, MULTIPLES)
    if GATE > 0:
        up_number, up_halves = fetch_scales(scale, unit, group + n * (k8 // WIDE), inside, GROUP, MULTIPLES)
    if PDL:
        # The next kernel may start at once: while this one streams weights there is room for programs that wait.
        tl.extra.cuda.gdc_launch_dependents()
        line = tl.minimum(of_n, n - 1)
        fetch_ahead(low, line, begin, k8, LOW)
        if GATE > 0:
            fetch_ahead(low, line + n, begin, k8, LOW)
        tl.extra.cuda.gdc_wait()
    wanted = (of_m[None, :] < rows) & (of_n[:, None] < n)
    norm = 0.0
    kept = 0.0
    if PIECES > 0:
        norm = squares_of_rows(squares, of_m, rows, k8 * 8, PIECES)
    if RESIDUAL:
        kept = tl.load(residual + of_m[None, :] * n + of_n[:, None], mask=wanted, other=0.0)
    value = tl.zeros((BN, BM), tl.float32)
    up = tl.zeros((BN, BM), tl.float32)
    for at in tl.range(begin, end, OCTS, num_stages=STAGES):
        mask = tl.full((1, OCTS), 1, tl.int1) if EVEN else (of_k < k8 - at)[None, :]
        size, less = _scales_of_octs(number, halves, OFFSET, MINIMUM, MULTIPLES, BN, GROUPS, OCTS)
        head, tail = codes(low, high, row * k8 + at + of_k[None, :], mask, LOW, HIGH)
        group += GROUPS
        inside = (of_group < (end - at) // WIDE - GROUPS)[None, :]
        number, halves = fetch_scales(scale, unit, group, inside, GROUP, MULTIPLES)
        if GATE > 0:
            up_size, up_less = _scales_of_octs(up_number, up_halves, OFFSET, MINIMUM, MULTIPLES, BN, GROUPS, OCTS)
            up_head, up_tail = codes(low, high, (row + n) * k8 + at + of_k[None, :], mask, LOW, HIGH)
            up_number, up_halves = fetch_scales(scale, unit, group + n * (k8 // WIDE), inside, GROUP, MULTIPLES)
        both = there if EVEN else there & (of_k < k8 - at)[:, None]
        for i in tl.static_range(8):
            activations = tl.load(x + i * rows * k8 + at + of_x, mask=both, other=0.0)
            code = ((head if i < 4 else tail) >> (i % 4 * 8)) & 255
            weight = (code.to(tl.float32) * size - less).to(activations.dtype)
            value = tl.dot(weight, activations, value, input_precision="ieee")
            if GATE > 0:
                code = ((up_head if i < 4 else up_tail) >> (i % 4 * 8)) & 255
                weight = (code.to(tl.float32) * up_size - up_less).to(activations.dtype)
                up = tl.dot(weight, activations, up, input_precision="ieee")
    if SPLIT:
        where = of_m[None, :] * n + of_n[:, None]
        locks += block * tl.num_programs(0) + tile
        if keep_part(value, parts + part * rows * n, locks, where, wanted, splits) < splits - 1:
            return
        value = sum_parts(parts, where, wanted, rows * n, splits, BN, BM)
    finish_tile(
        value, up, norm, kept, bias, gain, out, scaled, sums, of_n, of_m, rows, n, k8 * 8, pitch, tile, eps, offset,
        BN, BIAS, GATE, PIECES > 0, RESIDUAL,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tiling:
    """A program's tile: `bn` rows of the weight, `bm` of the step; `octs` columns a step, `split` parts of all."""

    bn: int
    bm: int
    octs: int
    split: int
    stages: int
    warps: int


def _tiling(rows: int, n: int, octs: int, *, gated: bool, size: int, processors: int, shared: int) -> Tiling:
    """`size`: bytes of an activation. Within `shared` bytes; two programs a processor, if there is work for them."""
    bm = max(16, int(triton.next_power_of_2(rows)))
    while max((step := 16 if bm > 128 else 32) * bm * OCT * size, bm * 128 * 4) + _RESERVED > shared:
        bm //= 2
    bn, warps = (128, 8) if bm >= 128 else (64, 4)
    each = step * (bm * OCT * size + bn * _MOST_WORDS * (2 if gated else 1))
    tiles, split = triton.cdiv(n, bn) * triton.cdiv(rows, bm), 1
    while (
        not gated
        and split * tiles <= processors
        and octs >= 2 * split * _LEAST_OCTS
        and 2 * split * tiles <= _MOST_PARTS
    ):
        split *= 2
    stages = max(1, min(2 if bm >= 128 else 3, (shared - _RESERVED) // each))
    return Tiling(bn, bm, step, split, stages, warps)


def parts_bytes(rows: int, n: int, k: int) -> int:
    """Room for the float32 results of every part of a product (rows, k) with (n, k)."""
    return 4 * rows * min(128 * _MOST_PARTS, n * max(1, k // (OCT * _LEAST_OCTS)))


def packed_tiles(
    x: torch.Tensor, segment: Segment, around: Around, parts: torch.Tensor, device: Any
) -> Callable[[], object]:
    """The product of spread rows x (8, rows, K / 8) with a segment, into its columns.

    The locks are zero between runs.
    """
    of = around.columns(segment.first, segment.rows)
    (rows, n), octs = of.out.shape, segment.width // OCT
    how = _tiling(
        rows, n, octs, gated=of.gate is not None, size=x.element_size(), processors=device.processors,
        shared=device.shared,
    )  # fmt: skip
    steps, aligned = triton.cdiv(octs, how.octs), gcd(octs, _MOST_ALIGNED)
    span = triton.cdiv(steps, how.split)
    tiles, splits, blocks = triton.cdiv(n, how.bn), triton.cdiv(steps, span), triton.cdiv(rows, how.bm)
    locks = torch.zeros(tiles * blocks, dtype=torch.int32, device=x.device)
    tensors = *plane_tensors(segment), *of.tensors(), parts
    return lambda: _packed_tiles[(tiles, splits, blocks)](
        x, *tensors, locks, rows, n, octs // aligned, span, splits, of.out.stride(0), of.eps, of.offset,
        BN=how.bn, OCTS=how.octs, BM=how.bm, ALIGNED=aligned, STAGES=how.stages, SPLIT=splits > 1,
        **constants(segment), **of.constants(), num_warps=how.warps, num_stages=how.stages, **device.launch,
    )  # fmt: skip
