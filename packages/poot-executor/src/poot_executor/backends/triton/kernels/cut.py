"""Where a row's distribution is cut: the search for top_k's and top_p's least logit, without a sort.

A token's mass is exp((logit - greatest) / temperature). The search finds the greatest logit at or above which there
are enough tokens (top_k: counts) or enough mass (top_p: masses). Two rounds split an interval of logits into EDGES
parts, each keeping the one where the sum crosses the target; what lies in the last interval, usually few tokens, is
gathered, and one program a row settles the cut among them by bisection on the float's ordered bits. When a row has
too many equal or nearly equal logits to gather, the bisection reads the whole row.

Each step is a kernel over (chunks, rows), or over rows; programs whose row does not ask for it leave at once. Sums
whose order is open are of integers, so that results are the same in every run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.best import load_chunk, ordered, unordered
from poot_executor.backends.triton.kernels.kernel import begin_kernel
from poot_executor.ops import RowLayout

EDGES = 16
ROOM = 4096  # gathered logits a row

# Columns of a row's state (float64). What is sought lies in [low, HIGH), and ABOVE is the sum from HIGH on.
STATE: tl.constexpr = tl.constexpr(9)
PEAK: tl.constexpr = tl.constexpr(0)
SCALE: tl.constexpr = tl.constexpr(1)
CUT: tl.constexpr = tl.constexpr(2)
_TARGET: tl.constexpr = tl.constexpr(3)
_HIGH: tl.constexpr = tl.constexpr(4)  # after the first round
_ABOVE: tl.constexpr = tl.constexpr(5)
_LAST_LOW: tl.constexpr = tl.constexpr(6)  # after the second
_LAST_HIGH: tl.constexpr = tl.constexpr(7)
_LAST_ABOVE: tl.constexpr = tl.constexpr(8)
# What a row asks for: a cut by count, a cut by mass, a draw.
ASKS: tl.constexpr = tl.constexpr(3)
DRAW: tl.constexpr = tl.constexpr(2)

ONE: tl.constexpr = tl.constexpr(float(2**43))  # the mass 1 in fixed point: 2**19 of them are below 2**63
_INTS: tl.constexpr = tl.constexpr(RowLayout.INTS)
_FLOATS: tl.constexpr = tl.constexpr(RowLayout.FLOATS)
_TOP_K: tl.constexpr = tl.constexpr(RowLayout.TOP_K)
_TOP_P: tl.constexpr = tl.constexpr(RowLayout.TOP_P)


@triton.jit
def column(state, n, COLUMN: tl.constexpr):
    return tl.load(state + n * STATE + COLUMN).to(tl.float32)


@triton.jit
def _narrow(edges, sums, target, high, above, chunks, CHUNKS: tl.constexpr, EDGES: tl.constexpr):
    """The part between falling edges where the sums reach the target: its low, its high, what lies over, and within.

    `high` and `above` are those of the whole interval.
    """
    j, c = tl.arange(0, EDGES), tl.arange(0, CHUNKS)
    part = tl.load(sums + c[:, None] * EDGES + j[None, :], mask=c[:, None] < chunks, other=0.0)
    reached = above + tl.sum(part.to(tl.float64), 0)
    edge = tl.load(edges + j)
    place = tl.minimum(tl.sum((reached < target).to(tl.int32), 0), EDGES - 1)
    low = tl.sum(tl.where(j == place, edge, 0.0), 0)
    upto = tl.sum(tl.where(j == place, reached, 0.0), 0)
    if place > 0:
        high = tl.sum(tl.where(j == place - 1, edge, 0.0), 0)
        above = tl.sum(tl.where(j == place - 1, reached, 0.0), 0)
    return low, high, above, upto


@triton.jit
def weigh(
    logits, pitch, width, rows, ints, reals, state, asks, edges, sums, live, chunks,
    LIVE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, EDGES: tl.constexpr, BLOCK: tl.constexpr,
    MASS: tl.constexpr, SECOND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A round of the search: each chunk's count or mass at or above each edge of the interval, and under its high.

    `edges` is (N, 2, EDGES) and `sums` (N, 2, chunks, EDGES), by round.
    """
    n = tl.program_id(1)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    if tl.load(asks + n * ASKS + MASS) == 0:
        return
    peak, scale = column(state, n, PEAK), column(state, n, SCALE)
    low, high = column(state, n, CUT), peak
    bound = float("inf")
    first = tl.program_id(0) == 0
    kept = sums + n * 2 * chunks * EDGES
    line = edges + n * 2 * EDGES
    if SECOND:
        row = tl.load(rows + n)
        if MASS:
            c = tl.arange(0, CHUNKS)
            whole = tl.sum(tl.load(kept + c * EDGES + EDGES - 1, mask=c < chunks, other=0.0).to(tl.float64), 0)
            target = whole * tl.load(reals + row * _FLOATS + _TOP_P)
        else:
            target = tl.load(ints + row * _INTS + _TOP_K).to(tl.float64)
        zero = target * 0.0
        low, bound, above, _ = _narrow(line, kept, target, bound, zero, chunks, CHUNKS, EDGES)
        high = tl.minimum(bound, peak)
        if first:
            tl.store(state + n * STATE + _TARGET, target)
            tl.store(state + n * STATE + _HIGH, bound.to(tl.float64))
            tl.store(state + n * STATE + _ABOVE, above)
        kept += chunks * EDGES
        line += EDGES
    j = tl.arange(0, EDGES)
    edge = tl.maximum(high - (j + 1).to(tl.float32) * ((high - low) / EDGES), low)
    edge = tl.where(j == EDGES - 1, low, edge)
    if first:
        tl.store(line + j, edge)
    start = tl.program_id(0) * CHUNK
    source = logits + n.to(tl.int64) * pitch
    total = tl.zeros((EDGES, BLOCK), tl.float32)
    for step in tl.range(0, CHUNK, BLOCK, num_stages=4):
        at = start + step + tl.arange(0, BLOCK)[None, :]
        x = tl.load(source + at, mask=at < width, other=float("-inf"))
        value = tl.exp2((x - peak) * scale) if MASS else tl.full((1, BLOCK), 1.0, tl.float32)
        total += tl.where((x >= edge[:, None]) & (x < bound), value, 0.0)
    tl.store(kept + tl.program_id(0) * EDGES + j, tl.sum(total, 1))


@triton.jit
def gather(
    logits, pitch, width, state, asks, edges, sums, gathered, candidates, live, chunks,
    LIVE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, EDGES: tl.constexpr, ROOM: tl.constexpr,
    MASS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Collect the logits of the last interval, in any order; for a count, all from its low on if there is room."""
    n = tl.program_id(1)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    if tl.load(asks + n * ASKS + MASS) == 0:
        return
    target = tl.load(state + n * STATE + _TARGET)
    above = tl.load(state + n * STATE + _ABOVE)
    bound = column(state, n, _HIGH)
    kept = sums + (n * 2 + 1) * chunks * EDGES
    line = edges + (n * 2 + 1) * EDGES
    low, high, above, upto = _narrow(line, kept, target, bound, above, chunks, CHUNKS, EDGES)
    if not MASS:  # noqa: SIM102 - known when it is compiled
        if upto <= ROOM:
            high = float("inf")
            above = above * 0.0
    if tl.program_id(0) == 0:
        tl.store(state + n * STATE + _LAST_LOW, low.to(tl.float64))
        tl.store(state + n * STATE + _LAST_HIGH, high.to(tl.float64))
        tl.store(state + n * STATE + _LAST_ABOVE, above)
    x, _ = load_chunk(logits, pitch, width, CHUNK)
    within = (x >= low) & (x < high)
    rank = tl.cumsum(within.to(tl.int32), 0)
    found = tl.sum(within.to(tl.int32), 0)
    if found > 0:
        place = tl.atomic_add(gathered + n * 2 + MASS, found) + rank - 1
        tl.store(candidates + n * ROOM + place, x, mask=within & (place < ROOM))


@triton.jit
def _sum(few, all_, length, low, high, peak, scale, ROOM: tl.constexpr, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The int64 count or fixed-point mass of what lies in [low, high): of the candidates if there is room for them.

    Loaded from either, and not from one that is chosen: Triton 3.6 cannot compile such a pointer for AMD.
    """
    total = tl.zeros((BLOCK,), tl.int64)
    gathered = tl.where(length <= ROOM, length, 0)
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(few + at, mask=at < gathered, other=float("-inf"))
        x = tl.maximum(x, tl.load(all_ + at, mask=at < length - gathered, other=float("-inf")))
        value = (tl.exp2((x - peak) * scale) * ONE).to(tl.int64) if MASS else tl.full((BLOCK,), 1, tl.int64)
        total += tl.where((x >= low) & (x < high), value, 0)
    return tl.sum(total, 0)


@triton.jit
def _bisect(
    few, all_, length, low, top, high, above, target, peak, scale,
    ROOM: tl.constexpr, MASS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The greatest logit of [low, top] at or above which the sum reaches the target; low if there is none."""
    least, most = ordered(low).to(tl.int64), ordered(top).to(tl.int64)
    while least < most:
        middle = least + (most - least + 1) // 2
        edge = unordered(middle.to(tl.int32))
        if above + _sum(few, all_, length, edge, high, peak, scale, ROOM, MASS, BLOCK) >= target:
            least = middle
        else:
            most = middle - 1
    return unordered(least.to(tl.int32))


@triton.jit
def settle(
    logits, pitch, width, rows, reals, state, asks, gathered, candidates, live,
    LIVE: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr, MASS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Set the row's cut. A count's candidates, if complete, also settle the cut by mass."""
    n = tl.program_id(0)
    if n >= tl.load(live + LIVE):
        return
    begin_kernel(PDL)
    if tl.load(asks + n * ASKS + MASS) == 0:
        return
    peak, scale = column(state, n, PEAK), column(state, n, SCALE)
    low, high = column(state, n, _LAST_LOW), column(state, n, _LAST_HIGH)
    above, target = tl.load(state + n * STATE + _LAST_ABOVE), tl.load(state + n * STATE + _TARGET)
    if MASS:
        above *= ONE
        target *= ONE
    few, all_, length = candidates + n * ROOM, logits + n.to(tl.int64) * pitch, tl.load(gathered + n * 2 + MASS)
    complete = (high == float("inf")) & (length <= ROOM)
    length = tl.where(length > ROOM, width, length)
    top = tl.minimum(high, peak)
    cut = _bisect(
        few, all_, length, low, top, high, above.to(tl.int64), target.to(tl.int64), peak, scale, ROOM, MASS, BLOCK
    )  # fmt: skip
    if not MASS:  # noqa: SIM102 - known when it is compiled
        if complete & (tl.load(asks + n * ASKS + 1) != 0):
            whole = _sum(few, all_, length, cut, high, peak, scale, ROOM, True, BLOCK)
            share = tl.load(reals + tl.load(rows + n) * _FLOATS + _TOP_P).to(tl.float64)
            goal = (whole.to(tl.float64) * share).to(tl.int64)
            cut = _bisect(
                few, all_, length, cut, peak, high, whole * 0, goal, peak, scale, ROOM, True, BLOCK
            )  # fmt: skip
            tl.store(asks + n * ASKS + 1, 0)
    tl.store(state + n * STATE + CUT, cut.to(tl.float64))
