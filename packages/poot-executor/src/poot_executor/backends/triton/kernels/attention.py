"""Paged attention: a plan written on the device, persistent programs over its items, a combination of splits.

An item is at most `tile` queries of one run; with the heads that share a KV head they make the rows of one matrix. Keys
are split over as many programs as fill the device: the plan says how long a split is, the same for all items of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.kernel import (
    TRITON_KERNELS,
    TritonKernel,
    begin_kernel,
    typed,
    view,
)
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import AttentionPlan, PagedAttention

# Keys of a block, in which the plan counts, and blocks below which cutting an item further costs more than it saves.
KEYS = 128
LEAST_BLOCKS = 2
WARPS = 4
STAGES = 2


def most_splits(tokens: int) -> int:
    """Into how many parts a step of this capacity may cut an item's keys: many queries fill the device without."""
    return 32 if tokens <= 64 else 8 if tokens <= 256 else 1


@triton.jit
def _plan(
    runs, plan, live, programs, TILE: tl.constexpr, WINDOW: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, SPLITS: tl.constexpr, LEAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a run. All sum the same counts, so that each knows where its items go and how long a split is."""
    begin_kernel(PDL)
    run = tl.program_id(0)
    count = tl.load(live + 1)
    at = tl.arange(0, ROWS)
    lengths = tl.load(runs + at * 4 + 2, mask=at < count, other=0)
    firsts = tl.load(runs + at * 4 + 1, mask=at < count, other=0)
    items = (lengths + TILE - 1) // TILE
    seen = firsts + lengths
    if WINDOW > 0:
        seen = tl.minimum(seen, WINDOW + lengths)
    # Blocks of keys of the whole step, were each item to see all of its run's keys, shared by the programs.
    work = tl.sum((seen + KEYS - 1) // KEYS * items)
    longest = tl.max(tl.where(at < count, seen, 0))
    split = tl.maximum((work + programs - 1) // programs, LEAST)
    split = tl.maximum(split, (longest + KEYS * SPLITS - 1) // (KEYS * SPLITS))
    splits = tl.maximum((longest + KEYS * split - 1) // (KEYS * split), 1)
    if run == 0:
        tl.store(plan, tl.sum(items))
        tl.store(plan + 1, splits)
        tl.store(plan + 2, split * KEYS)
    if run < count:
        row = tl.load(runs + run * 4)
        first = tl.load(runs + run * 4 + 1)
        length = tl.load(runs + run * 4 + 2)
        item = tl.sum(tl.where(at < run, items, 0))
        flat = tl.sum(tl.where(at < run, lengths, 0))
        for start in range(0, length, TILE):
            queries = tl.minimum(length - start, TILE)
            position = first + start
            begin = 0
            if WINDOW > 0:
                begin = tl.maximum(position - WINDOW + 1, 0)
            to = plan + (1 + item + start // TILE) * 8
            tl.store(to, row)
            tl.store(to + 1, flat + start)
            tl.store(to + 2, queries)
            tl.store(to + 3, position)
            tl.store(to + 4, begin)
            tl.store(to + 5, position + queries)


@TRITON_KERNELS.register(AttentionPlan)
class AttentionPlanKernel(TritonKernel):
    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, AttentionPlan)
        runs, plan, live = view(operands.input(0)), view(operands.outputs[0]), device.live
        rows, splits = triton.next_power_of_2(len(runs)), most_splits(op.tokens)
        programs = max(1, device.programs // op.kv_heads)
        return lambda: _plan[(len(runs),)](
            runs,
            plan,
            live,
            programs,
            **device.launch,
            LEAST=LEAST_BLOCKS,
            TILE=op.tile,
            WINDOW=op.window or 0,
            ROWS=rows,
            KEYS=KEYS,
            SPLITS=splits,
        )


@triton.jit
def _attend(
    q, k_pool, v_pool, plan, table, out, parts, q_pitch, q_head, table_pitch, scale, softcap,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Units are (item, split, KV head); a matrix row is a query and one of the heads that share the KV head."""
    begin_kernel(PDL)
    SHARE: tl.constexpr = HEADS // KV_HEADS
    splits = tl.load(plan + 1)
    stretch = tl.load(plan + 2)
    units = tl.load(plan) * splits * KV_HEADS
    line = tl.arange(0, ROWS)
    at = tl.arange(0, WIDE)
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        head = unit % KV_HEADS
        split = unit // KV_HEADS % splits
        item = unit // KV_HEADS // splits
        entry = plan + (1 + item) * 8
        row = tl.load(entry)
        start = tl.load(entry + 1)
        queries = tl.load(entry + 2)
        position = tl.load(entry + 3)
        first = tl.load(entry + 4)
        last = tl.load(entry + 5)
        begin = first + split * stretch
        end = tl.minimum(begin + stretch, last)
        if begin < last:
            query = line // SHARE
            of_head = head * SHARE + line % SHARE
            inside = (query < queries) & (line < TILE * SHARE)
            q_at = q + (start + query)[:, None] * q_pitch + of_head[:, None] * q_head + at[None, :]
            a = tl.load(q_at, mask=inside[:, None] & (at[None, :] < DIM), other=0.0)
            most = tl.full((ROWS,), float("-inf"), tl.float32)
            total = tl.zeros((ROWS,), tl.float32)
            sums = tl.zeros((ROWS, WIDE), tl.float32)
            pages = table + row * table_pitch
            key = begin + tl.arange(0, KEYS)
            page = tl.load(pages + (key // PAGE) % table_pitch, mask=key < end, other=0)
            for base in range(begin, end, KEYS):
                key = base + tl.arange(0, KEYS)
                known = key < end
                slot = page.to(tl.int64) * PAGE + key % PAGE
                # The next pages are looked up while these keys are on their way.
                page = tl.load(pages + ((key + KEYS) // PAGE) % table_pitch, mask=key + KEYS < end, other=0)
                where = (slot[:, None] * KV_HEADS + head) * DIM + at[None, :]
                loaded = known[:, None] & (at[None, :] < DIM)
                k = tl.load(k_pool + where, mask=loaded, other=0.0)
                v = tl.load(v_pool + where, mask=loaded, other=0.0)
                scores = tl.dot(a, tl.trans(k), input_precision="ieee") * scale
                if CAPPED:
                    scores = (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0) * softcap
                seen = known[None, :] & (key[None, :] <= (position + query)[:, None])
                if WINDOW > 0:
                    seen = seen & (key[None, :] > (position + query - WINDOW)[:, None])
                scores = tl.where(seen, scores, float("-inf"))
                peak = tl.maximum(most, tl.max(scores, 1))
                safe = tl.where(peak == float("-inf"), 0.0, peak)
                weight = tl.exp(scores - safe[:, None])
                fade = tl.exp(most - safe)
                total = total * fade + tl.sum(weight, 1)
                sums = sums * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
                most = peak
            written = inside[:, None] & (at[None, :] < DIM)
            target = (start + query) * HEADS + of_head
            if (SPLITS == 1) | (splits == 1):
                value = sums / tl.where(total == 0.0, 1.0, total)[:, None]
                tl.store(out + target[:, None] * DIM + at[None, :], value, mask=written)
            else:
                # Of each (query, head) and split: DIM sums, then the greatest score and the sum of weights.
                part = parts + (target * SPLITS + split) * (DIM + 2)
                tl.store(part[:, None] + at[None, :], sums, mask=written)
                tl.store(part + DIM, most, mask=inside)
                tl.store(part + DIM + 1, total, mask=inside)


@triton.jit
def _combine(
    plan, out, parts, HEADS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Merge the splits that have keys, of each (item, head) in turn. Nothing to do where nothing was split."""
    begin_kernel(PDL)
    splits = tl.load(plan + 1)
    units = tl.where(splits > 1, tl.load(plan) * HEADS, 0)
    stretch = tl.load(plan + 2)
    each = tl.arange(0, SPLITS)
    at = tl.arange(0, WIDE)
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        head = unit % HEADS
        entry = plan + (1 + unit // HEADS) * 8
        start = tl.load(entry + 1)
        queries = tl.load(entry + 2)
        keys = tl.load(entry + 5) - tl.load(entry + 4)
        used = (keys + stretch - 1) // stretch
        for query in range(0, queries):
            target = (start + query) * HEADS + head
            part = parts + (target * SPLITS + each) * (DIM + 2)
            most = tl.load(part + DIM, mask=each < used, other=float("-inf"))
            total = tl.load(part + DIM + 1, mask=each < used, other=0.0)
            share = tl.exp(most - tl.max(most, 0))
            sums = tl.load(part[:, None] + at[None, :], mask=(each < used)[:, None] & (at[None, :] < DIM), other=0.0)
            value = tl.sum(sums * share[:, None], 0) / tl.sum(total * share, 0)
            tl.store(out + target * DIM + at, value, mask=at < DIM)


@TRITON_KERNELS.register(PagedAttention)
class PagedAttentionKernel(TritonKernel):
    """Splits beyond the first need float32 partial results of every query of the step."""

    name = "persistent, split keys"

    def accepts(self, site: Site) -> str | None:
        if site.inputs[1].shape != site.inputs[2].shape:
            return "keys and values differ in shape"
        return None if site.inputs[0].shape[2] <= 256 else "heads are wider than 256"

    def workspace(self, site: Site) -> int:
        tokens, heads, width = site.inputs[0].shape
        splits = most_splits(tokens)
        return 4 * tokens * heads * splits * (width + 2) if splits > 1 else 0

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, PagedAttention)
        q, k_pool, v_pool, plan, table = (view(operands.input(i)) for i in range(5))
        out = view(operands.outputs[0])
        tokens, heads, width = q.shape
        kv_heads = k_pool.shape[1]
        splits, parts = most_splits(tokens), out
        if operands.workspace is not None:
            parts = typed(operands.workspace, (tokens * heads * splits * (width + 2),), None, DType.F32)
        items = len(plan) - 1
        tile = min(op.tile, tokens)
        rows = max(16, triton.next_power_of_2(tile * heads // kv_heads))
        wide = max(16, triton.next_power_of_2(width))
        sizes = {"HEADS": heads, "DIM": width, "WIDE": wide, "SPLITS": splits}
        # Wide heads would not leave room for the next keys beside these.
        keys = KEYS if wide <= 128 else KEYS // 4
        programs = device.programs
        pitches = q.stride(0), q.stride(1), table.shape[1], op.scale, op.softcap or 1.0

        def run() -> None:
            _attend[(programs,)](
                q, k_pool, v_pool, plan, table, out, parts, *pitches, **sizes, KV_HEADS=kv_heads, TILE=tile,
                PAGE=op.block, WINDOW=op.window or 0, CAPPED=op.softcap is not None, ROWS=rows,
                KEYS=keys, num_warps=WARPS, num_stages=STAGES, **device.launch,
            )  # fmt: skip
            if splits > 1:
                _combine[(min(items * heads, 4 * programs),)](plan, out, parts, **sizes, **device.launch)

        return run
