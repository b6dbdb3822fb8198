"""The greatest logit of each row, in two phases: every chunk of a row finds its own, then one program a row compares.

Chunks are CHUNK logits wide, so that a few rows still fill the device. The kernels here are the first step of greedy
choice and of draws.
"""

from __future__ import annotations

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.kernel import begin_kernel

CHUNK = 4096
_NOWHERE: tl.constexpr = tl.constexpr(2**30)


@triton.jit
def ordered(x):
    """An int32 that orders as the float32 does, both zeros being one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def unordered(key):
    """The float32 of an ordered int32."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def visible(x):
    """NaN as infinity, which a comparison finds."""
    return tl.where(x != x, float("inf"), x)  # noqa: PLR0124


@triton.jit
def load_chunk(logits, pitch, width, CHUNK: tl.constexpr):
    """Logits of chunk program_id(0) of row program_id(1), minus infinity past the row's end; and their token ids."""
    at = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    row = logits + tl.program_id(1).to(tl.int64) * pitch
    return tl.load(row + at, mask=at < width, other=float("-inf")), at


@triton.jit
def chunk_best(
    logits, pitch, width, best, ids, least, live,
    LIVE: tl.constexpr, CHUNK: tl.constexpr, LEAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each chunk's greatest logit (NaN counts as infinity), its lowest id, and if LEAST the least finite one."""
    n = tl.program_id(1)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    x, at = load_chunk(logits, pitch, width, CHUNK)
    x = visible(x)
    top = tl.max(x, 0)
    place = n * tl.num_programs(0) + tl.program_id(0)
    tl.store(best + place, top)
    tl.store(ids + place, tl.min(tl.where(x == top, at, _NOWHERE), 0))
    if LEAST:
        tl.store(least + place, tl.min(tl.where(x > float("-inf"), x, float("inf")), 0))


@triton.jit
def row_best(best, ids, tokens, flags, n, chunks, CHUNKS: tl.constexpr):
    """Store the row's greedy token and flag; its greatest logit, and whether it is usable."""
    c = tl.arange(0, CHUNKS)
    top = tl.load(best + n * chunks + c, mask=c < chunks, other=float("-inf"))
    peak = tl.max(top, 0)
    id_ = tl.load(ids + n * chunks + c, mask=c < chunks, other=0)
    token = tl.min(tl.where(top == peak, id_, _NOWHERE), 0)
    usable = (peak > float("-inf")) & (peak < float("inf"))
    tl.store(tokens + n, tl.where(usable, token, 0))
    tl.store(flags + n, tl.where(usable, 0, 1))
    return peak, usable


@triton.jit
def greedy(best, ids, tokens, flags, live, chunks, LIVE: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr):
    n = tl.program_id(0)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    row_best(best, ids, tokens, flags, n, chunks, CHUNKS)
