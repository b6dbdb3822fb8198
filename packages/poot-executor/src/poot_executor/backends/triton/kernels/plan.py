"""The plan of a step's attention, written on the device: its items, long rows cut into several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.kernel import TRITON_KERNELS, TritonKernel, view
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import AttentionPlan

# Tokens of a step up to which it is a few rows', and up to which all of its rows may decode: more are prompts'.
FEW = 32
MANY = 256
# (query, head) pairs of an item of a prompt.
_PAIRS = 128


def queries(tokens: int, share: int) -> int:
    """Queries of an item, when `share` heads have one KV head: a matrix of the smallest size for rows that decode."""
    return 4 if tokens <= MANY else max(1, _PAIRS // share)


def most_splits(tokens: int) -> int:
    """Into how many items the keys of a row may be cut: the fewer rows, the more of them fill the device.

    Long items read faster than short ones, so that a step of long rows only is not cut more than that takes; and one
    long row among many is cut so that the others do not wait for it.
    """
    return max(4, 32 // tokens) if tokens <= FEW else 8


def stretch(tokens: int) -> int:
    """Keys of an item at least: with fewer, adding up costs more than cutting saves.

    Beside prompts rows that decode are read while others multiply: there it is enough that none takes long alone.
    """
    if tokens > MANY:
        return 2048
    return 256 if tokens <= 4 else 512


@triton.jit
def _plan(
    runs, plan, live, TILE: tl.constexpr, WINDOW: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
    STRETCH: tl.constexpr, LAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a run. All sum the same counts, so that each knows where its items go.

    Only runs of one item are cut: longer ones fill the device as they are. The next kernel starts when this one is
    over, so that attention may read the plan before it waits.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
    run = tl.program_id(0)
    count = tl.load(live + 1)
    at = tl.arange(0, ROWS)
    lengths = tl.load(runs + at * 4 + 2, mask=at < count, other=0)
    firsts = tl.load(runs + at * 4 + 1, mask=at < count, other=0)
    if LAST:
        firsts += lengths - 1
        lengths = tl.minimum(lengths, 1)
    tiles = (lengths + TILE - 1) // TILE
    seen = firsts + lengths
    if WINDOW > 0:
        seen = tl.minimum(seen, WINDOW + lengths - 1)
    # Parts of whole blocks of 128 keys, all of a run as long as each other but for the last.
    parts = tl.minimum((seen + STRETCH - 1) // STRETCH, SPLITS)
    parts = tl.where(tiles == 1, tl.maximum(parts, 1), 1)
    each = (seen + parts * 128 - 1) // (parts * 128) * 128
    items = tl.where(tiles == 1, (seen + each - 1) // tl.maximum(each, 1), tiles)
    if run == 0:
        tl.store(plan, tl.sum(items))
    if run < count:
        row = tl.load(runs + run * 4)
        first = tl.load(runs + run * 4 + 1)
        length = tl.load(runs + run * 4 + 2)
        if LAST:
            first += length - 1
            length = 1
        item = tl.sum(tl.where(at < run, items, 0))
        flat = tl.sum(tl.where(at < run, lengths, 0))
        mine = tl.sum(tl.where(at == run, items, 0))
        size = tl.sum(tl.where(at == run, each, 0))
        cut = length <= TILE
        for i in range(0, mine):
            start = tl.where(cut, 0, i * TILE)
            queries = tl.minimum(length - start, TILE)
            position = first + start
            begin = 0
            if WINDOW > 0:
                begin = tl.maximum(position - WINDOW + 1, 0)
            end = position + queries
            begin = tl.where(cut, begin + i * size, begin)
            end = tl.where(cut, tl.minimum(begin + size, end), end)
            to = plan + (1 + item + i) * 8
            tl.store(to, row)
            tl.store(to + 1, flat + start)
            tl.store(to + 2, queries)
            tl.store(to + 3, position)
            tl.store(to + 4, begin)
            tl.store(to + 5, end)
            tl.store(to + 6, tl.where(cut, i, 0))
            tl.store(to + 7, tl.where(cut, mine, 1))


@TRITON_KERNELS.register(AttentionPlan)
class AttentionPlanKernel(TritonKernel):
    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, AttentionPlan)
        runs, plan, live = view(operands.input(0)), view(operands.outputs[0]), device.live
        rows, least = triton.next_power_of_2(len(runs)), stretch(op.tokens)
        return lambda: _plan[(len(runs),)](
            runs, plan, live, TILE=op.tile, WINDOW=op.window or 0, ROWS=rows, SPLITS=op.splits, STRETCH=least,
            LAST=op.last, **device.launch,
        )  # fmt: skip
