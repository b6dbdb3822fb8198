"""Bias, penalties and the ban on ending early, applied to logits.

Tokens of a row's history are counted in the result's own storage, as int32, before the adjusted logits overwrite the
counts; the counts of biased tokens are set aside first, since a bias comes before the penalties.
"""

from __future__ import annotations

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.best import load_chunk
from poot_executor.backends.triton.kernels.kernel import begin_kernel
from poot_executor.ops import RowLayout

_INTS: tl.constexpr = tl.constexpr(RowLayout.INTS)
_FLOATS: tl.constexpr = tl.constexpr(RowLayout.FLOATS)
_LENGTH: tl.constexpr = tl.constexpr(RowLayout.LENGTH)
_PROMPT: tl.constexpr = tl.constexpr(RowLayout.PROMPT)
_MIN_LENGTH: tl.constexpr = tl.constexpr(RowLayout.MIN_LENGTH)
_BIAS_COUNT: tl.constexpr = tl.constexpr(RowLayout.BIAS_COUNT)
_PRESENCE: tl.constexpr = tl.constexpr(RowLayout.PRESENCE)
_FREQUENCY: tl.constexpr = tl.constexpr(RowLayout.FREQUENCY)
_REPETITION: tl.constexpr = tl.constexpr(RowLayout.REPETITION)
_PROMPTED: tl.constexpr = tl.constexpr(1 << 30)  # set in a count: the token is in the prompt


@triton.jit
def _penalties(reals, row):
    at = reals + row * _FLOATS
    return tl.load(at + _REPETITION), tl.load(at + _FREQUENCY), tl.load(at + _PRESENCE)


@triton.jit
def _penalised(reals, row):
    repetition, frequency, presence = _penalties(reals, row)
    return (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0)


@triton.jit
def _penalise(x, count, reals, row):
    repetition, frequency, presence = _penalties(reals, row)
    output = count & (_PROMPTED - 1)
    x = tl.where(count != 0, tl.where(x > 0, x / repetition, x * repetition), x)
    return x - (frequency * output.to(tl.float32) + tl.where(output > 0, presence, 0.0))


@triton.jit
def clear(counts, rows, reals, live, width, LIVE: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr):
    n = tl.program_id(1)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    if _penalised(reals, tl.load(rows + n)):
        at = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
        tl.store(counts + n.to(tl.int64) * width + at, tl.zeros((CHUNK,), tl.int32), mask=at < width)


@triton.jit
def count(
    counts, rows, ints, reals, history, history_pitch, live, width,
    LIVE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Count tokens of the output and mark those of the prompt; programs over (positions, rows)."""
    n = tl.program_id(1)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    row = tl.load(rows + n)
    length = tl.load(ints + row * _INTS + _LENGTH)
    start = tl.program_id(0) * BLOCK
    if start >= length:
        return
    if _penalised(reals, row):
        at = start + tl.arange(0, BLOCK)
        token = tl.load(history + row.to(tl.int64) * history_pitch + at, mask=at < length, other=-1)
        valid = (token >= 0) & (token < width)
        prompted = at < tl.load(ints + row * _INTS + _PROMPT)
        place = counts + n.to(tl.int64) * width + token
        tl.atomic_or(place, tl.full((BLOCK,), _PROMPTED, tl.int32), mask=valid & prompted)
        tl.atomic_add(place, tl.full((BLOCK,), 1, tl.int32), mask=valid & (prompted == 0))


@triton.jit
def set_aside(
    counts, rows, ints, reals, bias_ids, bias_pitch, aside, live, width,
    LIVE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Counts of the biased tokens; programs over (bias entries, rows)."""
    n = tl.program_id(1)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    row = tl.load(rows + n)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < tl.load(ints + row * _INTS + _BIAS_COUNT)
    token = tl.load(bias_ids + row * bias_pitch + at, mask=mask, other=-1)
    seen = tl.zeros((BLOCK,), tl.int32)
    if _penalised(reals, row):
        valid = (token >= 0) & (token < width)
        seen = tl.load(counts + n.to(tl.int64) * width + token, mask=valid, other=0)
    tl.store(aside + n * bias_pitch + at, seen, mask=mask)


@triton.jit
def adjust(
    logits, pitch, width, counts, result, rows, reals, live,
    LIVE: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Penalised logits over their counts; `counts` and `result` are the same storage."""
    n = tl.program_id(1)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    row = tl.load(rows + n)
    x, at = load_chunk(logits, pitch, width, CHUNK)
    place = n.to(tl.int64) * width + at
    if _penalised(reals, row):
        x = _penalise(x, tl.load(counts + place, mask=at < width, other=0), reals, row)
    tl.store(result + place, x, mask=at < width)


@triton.jit
def bias(
    logits, pitch, width, rows, ints, reals, bias_ids, bias_values, bias_pitch, aside, result, live,
    LIVE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Adjust the biased tokens anew; entries of one token add up, and each of them stores their sum's result."""
    n = tl.program_id(1)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    row = tl.load(rows + n)
    entries = tl.load(ints + row * _INTS + _BIAS_COUNT)
    start = tl.program_id(0) * BLOCK
    if start >= entries:
        return
    ids, values = bias_ids + row * bias_pitch, bias_values + row * bias_pitch
    at = start + tl.arange(0, BLOCK)
    token = tl.load(ids + at, mask=at < entries, other=-1)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, entries, BLOCK):
        other = first + tl.arange(0, BLOCK)
        same = token[:, None] == tl.load(ids + other, mask=other < entries, other=-1)[None, :]
        total += tl.sum(tl.where(same, tl.load(values + other, mask=other < entries, other=0.0)[None, :], 0.0), 1)
    valid = (token >= 0) & (token < width)
    x = tl.load(logits + n.to(tl.int64) * pitch + token, mask=valid, other=0.0) + total
    x = _penalise(x, tl.load(aside + n * bias_pitch + at, mask=at < entries, other=0), reals, row)
    tl.store(result + n.to(tl.int64) * width + token, x, mask=valid)


@triton.jit
def ban(
    result, width, rows, ints, ends, live, count, LIVE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Minus infinity at the `count` ends of rows that are too short."""
    n = tl.program_id(0)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    numbers = ints + tl.load(rows + n) * _INTS
    if tl.load(numbers + _LENGTH) < tl.load(numbers + _MIN_LENGTH):
        at = tl.arange(0, BLOCK)
        token = tl.load(ends + at, mask=at < count, other=-1)
        place = result + n.to(tl.int64) * width + token
        tl.store(place, tl.full((BLOCK,), float("-inf"), tl.float32), mask=(token >= 0) & (token < width))
