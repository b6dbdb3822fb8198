"""Seeded draws: what each row asks for, then, when its cuts are known, the token that the drawn share falls on.

Masses that are compared with the share are 64-bit fixed-point numbers: their sums are exact in any order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.best import load_chunk, row_best
from poot_executor.backends.triton.kernels.cut import ASKS, CUT, DRAW, ONE, PEAK, SCALE, STATE, column
from poot_executor.backends.triton.kernels.kernel import begin_kernel
from poot_executor.ops import RowLayout

WIDEST = 2**19  # logits whose masses cannot overflow 63 bits

_RANGE: tl.constexpr = tl.constexpr(29.9)  # ln(ONE), rounded up: further below the greatest logit, masses are 0
_LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
_INTS: tl.constexpr = tl.constexpr(RowLayout.INTS)
_FLOATS: tl.constexpr = tl.constexpr(RowLayout.FLOATS)
_LENGTH: tl.constexpr = tl.constexpr(RowLayout.LENGTH)
_SEED_LOW: tl.constexpr = tl.constexpr(RowLayout.SEED_LOW)
_SEED_HIGH: tl.constexpr = tl.constexpr(RowLayout.SEED_HIGH)
_TOP_K: tl.constexpr = tl.constexpr(RowLayout.TOP_K)
_TEMPERATURE: tl.constexpr = tl.constexpr(RowLayout.TEMPERATURE)
_TOP_P: tl.constexpr = tl.constexpr(RowLayout.TOP_P)
_MIN_P: tl.constexpr = tl.constexpr(RowLayout.MIN_P)


@triton.jit
def begin(
    best, ids, least, rows, ints, reals, tokens, flags, state, asks, gathered, live, width, chunks,
    LIVE: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The greedy token, which stays where nothing is drawn; what each row asks for; and its first state."""
    n = tl.program_id(0)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    peak, usable = row_best(best, ids, tokens, flags, n, chunks, CHUNKS)
    row = tl.load(rows + n)
    temperature = tl.load(reals + row * _FLOATS + _TEMPERATURE)
    drawn = usable & (temperature > 0)
    top_k = tl.load(ints + row * _INTS + _TOP_K)
    tl.store(asks + n * ASKS, (drawn & (top_k > 0) & (top_k < width)).to(tl.int32))
    tl.store(asks + n * ASKS + 1, (drawn & (tl.load(reals + row * _FLOATS + _TOP_P) < 1)).to(tl.int32))
    tl.store(asks + n * ASKS + DRAW, drawn.to(tl.int32))
    tl.store(gathered + n * 2, 0)
    tl.store(gathered + n * 2 + 1, 0)
    c = tl.arange(0, CHUNKS)
    bottom = tl.min(tl.load(least + n * chunks + c, mask=c < chunks, other=float("inf")), 0)
    # The bound keeps 0 * scale at 0.
    scale = tl.minimum(_LOG2E / tl.where(drawn, temperature, 1.0), 1e38)
    tl.store(state + n * STATE + PEAK, peak.to(tl.float64))
    tl.store(state + n * STATE + SCALE, scale.to(tl.float64))
    tl.store(state + n * STATE + CUT, tl.maximum(bottom, peak - _RANGE * temperature).to(tl.float64))


@triton.jit
def random_bits(ints):
    """24 bits, as an int64, of Philox4x32-10 with the row's seed as its key and its length as the counter."""
    low = tl.load(ints + _SEED_LOW).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(ints + _SEED_HIGH).to(tl.uint32, bitcast=True).to(tl.uint64)
    word, _, _, _ = tl.philox(low | (high << 32), tl.load(ints + _LENGTH), 0, 0, 0)
    return (word >> 8).to(tl.int64)


@triton.jit
def _kept(x, peak, scale, cut, min_p):
    """Fixed-point masses of what survives the cuts, 0 for the rest."""
    value = tl.exp2((x - peak) * scale)
    return tl.where((x >= cut) & (value >= min_p), (value * ONE).to(tl.int64), 0)


@triton.jit
def keep(
    logits, pitch, width, rows, reals, state, asks, masses, live,
    LIVE: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each chunk's surviving mass."""
    n = tl.program_id(1)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    if tl.load(asks + n * ASKS + DRAW) == 0:
        return
    x, _ = load_chunk(logits, pitch, width, CHUNK)
    min_p = tl.load(reals + tl.load(rows + n) * _FLOATS + _MIN_P)
    mass = _kept(x, column(state, n, PEAK), column(state, n, SCALE), column(state, n, CUT), min_p)
    tl.store(masses + n * tl.num_programs(0) + tl.program_id(0), tl.sum(mass, 0))


@triton.jit
def pick(
    logits, pitch, width, rows, ints, reals, state, asks, masses, tokens, live, chunks,
    LIVE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The first token in id order whose running mass exceeds the drawn share; greedy's if nothing survived."""
    n = tl.program_id(0)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    if tl.load(asks + n * ASKS + DRAW) == 0:
        return
    row = tl.load(rows + n)
    draw = random_bits(ints + row * _INTS)
    c = tl.arange(0, CHUNKS)
    running = tl.cumsum(tl.load(masses + n * chunks + c, mask=c < chunks, other=0), 0)
    whole = tl.max(running, 0)
    # draw * whole / 2**24, rounded down, in 63 bits.
    share = draw * (whole >> 24) + ((draw * (whole & 0xFFFFFF)) >> 24)
    chunk = tl.sum((running <= share).to(tl.int32), 0)
    before = tl.max(tl.where(running <= share, running, 0), 0)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + n.to(tl.int64) * pitch + at, mask=at < width, other=float("-inf"))
    min_p = tl.load(reals + row * _FLOATS + _MIN_P)
    mass = _kept(x, column(state, n, PEAK), column(state, n, SCALE), column(state, n, CUT), min_p)
    passed = (before + tl.cumsum(mass, 0) <= share).to(tl.int32)
    if whole > 0:
        tl.store(tokens + n, chunk * CHUNK + tl.sum(passed, 0))
