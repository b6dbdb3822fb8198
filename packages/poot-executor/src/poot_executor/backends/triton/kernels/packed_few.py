"""Products of very few rows with packed weights, by integer dot products of rows quantised to int8 by groups of 32.

One warp has some rows of the weight and goes along their columns: a lane takes four octs, which is a group of 32, at a
time. Integers are exact within a group; scales and minimums come after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.arrange import QUANTISED, Quantised
from poot_executor.backends.triton.kernels.codes import (
    codes,
    constants,
    fetch_ahead,
    fetch_scales,
    plane_tensors,
    scales,
)
from poot_executor.backends.triton.kernels.pointwise import gated
from poot_executor.backends.triton.kernels.products import Around
from poot_executor.backends.triton.packed import OCT, Segment
from poot_executor.ops.deferred import SQUARES

# Rows of a step up to which this is the way: with more, matrix units are faster.
MOST_ROWS = 8
_OCTS = 128  # octs of a step along the columns
_OUTS = 4  # rows of the weight that a program has
# Rows of a step up to which it has as many of gate and of up: with more, sums do not fit into registers.
_GATED_ROWS = 4
_STAGES = 1  # steps whose loads are under way


@triton.jit
def _dot(a, b, total, DP4A: tl.constexpr):
    """total + the sum of the products of unsigned bytes of a and signed bytes of b."""
    if DP4A:
        return tl.inline_asm_elementwise(
            "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, total], tl.int32, is_pure=True, pack=1
        )
    for i in tl.static_range(4):
        total += ((a >> (8 * i)) & 255) * ((b << (24 - 8 * i)) >> 24)
    return total


@triton.jit
def _packed_few(
    quads, x_scale, x_sums, low, high, scale, unit, bias, squares, residual, gain, out, scaled, sums, locks,
    n, octs, pitch, eps, offset,
    ROWS: tl.constexpr, OUTS: tl.constexpr, OCTS: tl.constexpr, EVEN: tl.constexpr, LOW: tl.constexpr,
    HIGH: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, MINIMUM: tl.constexpr, MULTIPLES: tl.constexpr,
    BIAS: tl.constexpr, GATE: tl.constexpr, PIECES: tl.constexpr, RESIDUAL: tl.constexpr, DP4A: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """OUTS rows of the weight, or half as many of gate and of up, which are n apart.

    `octs` are four times the groups of 32, so that loads of four are seen to be aligned.
    """
    WIDE: tl.constexpr = GROUP // 8
    COUNT: tl.constexpr = OCTS // WIDE
    EACH: tl.constexpr = 2 if GATE > 0 else 1
    begin = tl.program_id(0) * (OUTS // EACH)
    k8 = octs * 4
    of_oct = tl.arange(0, OCTS)
    of_group = tl.arange(0, COUNT)
    if PDL:
        # The next kernel may start at once: while this one streams weights there is room for programs that wait.
        tl.extra.cuda.gdc_launch_dependents()
        of_line = tl.arange(0, OUTS)
        fetch_ahead(low, tl.minimum(begin + of_line // EACH, n - 1) + of_line % EACH * n, 0, k8, LOW)
        tl.extra.cuda.gdc_wait()
    totals = ()
    for _ in tl.static_range(ROWS * OUTS):
        totals = totals + (tl.zeros((COUNT,), tl.float32),)  # type: ignore[assignment]
    for at in tl.range(0, k8, OCTS, num_stages=STAGES):
        mask = tl.full((OCTS,), 1, tl.int1) if EVEN else of_oct < k8 - at
        groups = tl.full((COUNT,), 1, tl.int1) if EVEN else of_group < (k8 - at) // WIDE
        heads = ()
        tails = ()
        steps = ()
        counts = ()
        for row in tl.static_range(ROWS):
            source = quads + row * 2 * k8 + at + of_oct
            heads = heads + (tl.load(source, mask=mask, other=0),)  # type: ignore[assignment]
            tails = tails + (tl.load(source + k8, mask=mask, other=0),)  # type: ignore[assignment]
            of_x = row * (k8 // WIDE) + at // WIDE + of_group
            steps = steps + (tl.load(x_scale + of_x // (32 // GROUP), mask=groups, other=0.0),)  # type: ignore[assignment]
            counts = counts + (tl.load(x_sums + of_x, mask=groups, other=0.0),)  # type: ignore[assignment]
        following = ()
        for i in tl.static_range(OUTS):
            line = tl.minimum(begin + i // EACH, n - 1) + i % EACH * n
            head, tail = codes(low, high, line * k8 + at + of_oct, mask, LOW, HIGH)
            group = line * (k8 // WIDE) + at // WIDE + of_group
            number, halves = fetch_scales(scale, unit, group, groups, GROUP, MULTIPLES)
            size, least = scales(number, halves, MINIMUM, MULTIPLES)
            for row in tl.static_range(ROWS):
                dots = _dot(tail, tails[row], tl.zeros_like(head), DP4A)
                dots = _dot(head, heads[row], dots, DP4A)
                dots = tl.sum(tl.reshape(dots, (COUNT, WIDE)), 1).to(tl.float32)
                total = totals[i * ROWS + row] + size * (steps[row] * dots)
                if MINIMUM or OFFSET > 0:
                    total -= (size * OFFSET + least) * counts[row]
                following = following + (total,)  # type: ignore[assignment]
        totals = following
    for i in tl.static_range(OUTS // EACH):
        line = begin + i
        for row in tl.static_range(ROWS):
            value = tl.sum(totals[i * EACH * ROWS + row])
            up = tl.sum(totals[(2 * i + 1) * ROWS + row]) if GATE > 0 else 0.0
            if PIECES > 0:
                factor = _norm_factor(squares, row, tl.cdiv(k8, 8), k8 * 8, eps, PIECES)
                value *= factor
                up *= factor
            if BIAS:
                value += tl.load(bias + tl.minimum(line, n - 1))
            if GATE > 0:
                value = gated(value, up, GATE)
            if RESIDUAL:
                kept = tl.load(residual + row * n + line, mask=line < n, other=0.0).to(tl.float32)
                # The norm is that of the sum as it is kept.
                value = (value + kept).to(out.dtype.element_ty).to(tl.float32)
                weight = tl.load(gain + line, mask=line < n, other=0.0) + offset
                tl.store(scaled + row * n + line, value * weight, mask=line < n)
            tl.store(out + row * pitch + line, value, mask=line < n)
    if RESIDUAL:
        _sum_squares(out, sums, locks, begin, n, ROWS, OUTS)


@triton.jit
def _norm_factor(squares, row, pieces, k, eps, PIECES: tl.constexpr):
    """1 / rms of a row whose sums of squares are given."""
    piece = tl.arange(0, PIECES)
    return 1.0 / tl.sqrt(tl.sum(tl.load(squares + row * pieces + piece, mask=piece < pieces, other=0.0)) / k + eps)


@triton.jit
def _sum_squares(out, sums, locks, begin, n, ROWS: tl.constexpr, OUTS: tl.constexpr):
    """Of 64 columns, by the last of their programs, so that they are added up in one order."""
    tile = begin // 64
    tl.debug_barrier()
    programs = tl.cdiv(tl.minimum(64, n - tile * 64), OUTS)
    if tl.atomic_add(locks + tile, 1, sem="acq_rel") == programs - 1:
        tl.debug_barrier()
        tl.store(locks + tile, 0)
        column = tile * 64 + tl.arange(0, 64)
        for row in tl.static_range(ROWS):
            value = tl.load(out + row * n + column, mask=column < n, other=0.0, cache_modifier=".cg").to(tl.float32)
            tl.store(sums + row * tl.cdiv(n, 64) + tile, tl.sum(value * value))


def packed_few(x: Quantised, segment: Segment, around: Around, device: Any) -> Callable[[], object]:
    """The product of quantised rows with a segment, into its columns. The locks are zero between runs."""
    of = around.columns(segment.first, segment.rows)
    (rows, n), octs = of.out.shape, segment.width // OCT
    sums = x.sums if segment.layout.group == QUANTISED else x.halves
    locks = torch.zeros(triton.cdiv(n, SQUARES), dtype=torch.int32, device=x.quads.device)
    tensors = *plane_tensors(segment), *of.tensors()
    each = 1 if of.gate is None else 2
    outs = each * _OUTS if rows <= _GATED_ROWS else _OUTS
    grid = (triton.cdiv(n, outs // each),)
    return lambda: _packed_few[grid](
        x.quads, x.scale, sums, *tensors, locks, n, octs // 4, of.out.stride(0), of.eps, of.offset,
        ROWS=rows, OUTS=outs, OCTS=_OCTS, EVEN=octs % _OCTS == 0,
        **constants(segment), **of.constants(), DP4A=device.dp4a, STAGES=_STAGES, num_warps=1, **device.launch,
    )  # fmt: skip
