"""The most likely tokens of each row and their log-probabilities, in three phases.

Every chunk sums its exponentials and finds its greatest logit; then it selects its own candidates, at most k, that are
not less than the k-th greatest of all chunks' greatest (no lesser one can be among the row's k); then one program a
row merges. A logit and its id are one int64, ordered by falling logit, then by rising id.
"""

from __future__ import annotations

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.best import load_chunk, ordered, unordered, visible
from poot_executor.backends.triton.kernels.kernel import begin_kernel

_NONE: tl.constexpr = tl.constexpr(-(2**63))
_LOW_BITS: tl.constexpr = tl.constexpr(0x7FFFFFFF)


@triton.jit
def chunk_sum(logits, pitch, width, best, sums, live, LIVE: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr):
    """Each chunk's greatest logit (NaN counts as infinity), and its sum of exp(logit - greatest)."""
    n = tl.program_id(1)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    x, _ = load_chunk(logits, pitch, width, CHUNK)
    top = tl.max(visible(x), 0)
    total = tl.sum(tl.exp(x - tl.where(top == float("-inf"), 0.0, top)), 0)
    place = n * tl.num_programs(0) + tl.program_id(0)
    tl.store(best + place, top)
    tl.store(sums + place, total)


@triton.jit
def chunk_top(
    logits, pitch, width, best, found, pairs, live,
    LIVE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each chunk's candidates in falling order, (N, chunks, K), and how many they are."""
    n = tl.program_id(1)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    chunks = tl.num_programs(0)
    c = tl.arange(0, CHUNKS)
    top = tl.load(best + n * chunks + c, mask=c < chunks, other=float("-inf"))
    i, j = c[:, None], c[None, :]
    mine = tl.reshape(top, (CHUNKS, 1))
    other = tl.reshape(top, (1, CHUNKS))
    rank = tl.sum(((other > mine) | ((other == mine) & (j < i))).to(tl.int32), 1)
    bound = tl.max(tl.where(rank == K - 1, top, float("-inf")), 0)
    least = ordered(bound).to(tl.int64) << 32
    x, at = load_chunk(logits, pitch, width, CHUNK)
    key = ordered(visible(x)).to(tl.int64)
    pair = tl.where(at < width, (key << 32) | (at ^ _LOW_BITS).to(tl.int64), _NONE)
    place = n * chunks + tl.program_id(0)
    count = 0
    greatest = tl.max(pair, 0)
    while (count < K) & (greatest >= least):
        tl.store(pairs + place * K + count, greatest)
        pair = tl.where(pair == greatest, _NONE, pair)
        greatest = tl.max(pair, 0)
        count += 1
    tl.store(found + place, count)


@triton.jit
def merge_top(
    logits, pitch, width, given, best, sums, found, pairs, chosen, ids, values, live, chunks,
    LIVE: tl.constexpr, CHUNKS: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The row's k most likely tokens among its chunks' candidates, and the given token's log-probability."""
    n = tl.program_id(0)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    c = tl.arange(0, CHUNKS)
    top = tl.load(best + n * chunks + c, mask=c < chunks, other=float("-inf"))
    peak = tl.max(top, 0)
    total = tl.sum(tl.load(sums + n * chunks + c, mask=c < chunks, other=0.0) * tl.exp(top - peak), 0)
    normaliser = peak + tl.log(total)
    token = tl.load(given + n)
    inside = (token >= 0) & (token < width)
    logit = tl.load(logits + n.to(tl.int64) * pitch + token, mask=inside, other=float("-inf"))
    tl.store(chosen + n, logit - normaliser)
    slot = tl.arange(0, CHUNKS * SLOTS)
    chunk, place = slot // SLOTS, slot % SLOTS
    count = tl.load(found + n * chunks + chunk, mask=chunk < chunks, other=0)
    pair = tl.load(pairs + (n * chunks + chunk) * K + place, mask=place < count, other=_NONE)
    for i in range(K):
        greatest = tl.max(pair, 0)
        pair = tl.where(pair == greatest, _NONE, pair)
        tl.store(ids + n * K + i, (greatest & _LOW_BITS).to(tl.int32) ^ _LOW_BITS)
        tl.store(values + n * K + i, unordered((greatest >> 32).to(tl.int32)) - normaliser)
