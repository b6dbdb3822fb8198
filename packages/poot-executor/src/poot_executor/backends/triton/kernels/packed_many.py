"""Products of many rows with packed weights: pieces decoded into scratch, and multiplied by the library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.codes import codes, constants, fetch_scales, place, plane_tensors, scales
from poot_executor.backends.triton.kernels.kernel import begin_kernel
from poot_executor.backends.triton.packed import OCT, Segment

# Elements decoded at a time: few enough for the scratch to be small, enough for whole waves of the library's tiles.
_PIECE = 2**26
_MULTIPLE = 256  # rows that a piece is a multiple of
_OCTS = 256  # octs that a program decodes


@triton.jit
def _decode(
    low, high, scale, unit, out, start, count,
    OCTS: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr,
    MINIMUM: tl.constexpr, MULTIPLES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`count` octs from oct `start` on, in their order."""
    at = tl.program_id(0) * OCTS + tl.arange(0, OCTS)
    mask = at < count
    begin_kernel(PDL)
    values = octs_of(low, high, scale, unit, start + at, mask, LOW, HIGH, GROUP, OFFSET, MINIMUM, MULTIPLES)
    where = at.to(tl.int64)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(out + where, values, mask=mask[:, None])


@triton.jit
def octs_of(
    low, high, scale, unit, at, mask,
    LOW: tl.constexpr, HIGH: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, MINIMUM: tl.constexpr,
    MULTIPLES: tl.constexpr,
):  # fmt: skip
    """The octs `at` (n,) as values (n, 8), float32."""
    first, second = codes(low, high, at, mask, LOW, HIGH)
    number, halves = fetch_scales(scale, unit, at // (GROUP // 8), mask, GROUP, MULTIPLES)
    size, least = scales(number, halves, MINIMUM, MULTIPLES)
    byte = place(tl.arange(0, 8))[None, :]
    code = (tl.where(byte < 4, first[:, None], second[:, None]) >> (byte % 4 * 8)) & 255
    return code.to(tl.float32) * size[:, None] - (size * OFFSET + least)[:, None]


def decode(segment: Segment, start: int, rows: int, out: torch.Tensor, device: Any) -> Callable[[], object]:
    """The launch that decodes rows from `start` on into out (rows, K)."""
    octs = segment.width // OCT
    count, planes = rows * octs, plane_tensors(segment)
    grid = (triton.cdiv(count, _OCTS),)
    return lambda: _decode[grid](*planes, out, start * octs, count, OCTS=_OCTS, **constants(segment), **device.launch)


def piece_rows(n: int, k: int) -> int:
    """Rows of an (n, k) weight that are decoded at a time: pieces of about the same size."""
    pieces = triton.cdiv(n * k, _PIECE)
    return min(n, int(triton.cdiv(triton.cdiv(n, pieces), _MULTIPLE)) * _MULTIPLE)


def packed_many(
    x: torch.Tensor, segment: Segment, out: torch.Tensor, scratch: torch.Tensor, device: Any
) -> list[Callable[[], object]]:
    """The launches of the product of x (rows, K) with a segment into its columns of out, by way of scratch (1-D).

    As many rows as fit into the scratch are decoded at a time.
    """
    calls: list[Callable[[], object]] = []
    step = len(scratch) // segment.width
    for start in range(0, segment.rows, step):
        rows = min(step, segment.rows - start)
        weight = scratch[: rows * segment.width].view(rows, segment.width)
        target = out[:, segment.first + start : segment.first + start + rows]
        calls.append(decode(segment, start, rows, weight, device))
        more = {} if target.dtype == x.dtype else {"out_dtype": target.dtype}
        calls.append(partial(torch.mm, x, weight.t(), **more, out=target))
    return calls
