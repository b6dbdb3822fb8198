"""Paged attention: persistent programs over the items of a plan.

An item is at most `tile` queries of one run and a stretch of their keys; with the heads that share a KV head they make
the rows of one matrix. Where a row is cut into several items, the program that comes last adds up their results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.kernel import (
    TRITON_KERNELS,
    TritonKernel,
    begin_kernel,
    dense_form,
    typed,
    view,
)
from poot_executor.backends.triton.kernels.plan import FEW
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operands, Site, WeightForm
from poot_executor.ops import PagedAttention

# Keys that a program of a few rows' step fetches into the cache before it waits for the step's own.
AHEAD = 128


class Shape(NamedTuple):
    """Keys of a block, warps of a program, blocks under way at once."""

    keys: int
    warps: int
    stages: int


# Numbers of a result that one warp can keep in registers.
WARP_KEEPS = 4096


def shape(tokens: int, wide: int, rows: int) -> Shape:
    """The fastest found on an H200 over 1 to 256 rows, contexts of 200 to 32,768, 32 heads over 8 KV heads of 128.

    Many rows fill the device with programs of one warp, in which no warp waits for another. Heads wider than 128 would
    not leave room for the next keys beside wide blocks. `rows` are those of the matrix of queries.
    """
    if wide > 128 or tokens > 64:
        return Shape(32, 1 if rows * wide <= WARP_KEEPS else 4, 2)
    if tokens > FEW:
        return Shape(32, 4, 3)
    return Shape(64, 4, 3 if tokens <= 4 else 4)


def stages_within(shared: int, keys: int, wide: int, rows: int, size: int) -> int:
    """Blocks under way at once that fit into so much shared memory, beside a matrix of `rows` queries or weights.

    Of those under way one is in registers; elements are of `size` bytes. Checked against what Triton allocates.
    """
    room = shared - 2048 - max(rows, 128) * wide * size
    return 1 + max(0, room // (2 * keys * wide * size))


def programs(tokens: int, device: Any) -> int:
    """Persistent programs of a step's attention: those of one warp are more."""
    return int(device.programs) * (4 if tokens > FEW else 1)


def merge_together(splits: int, lines: int, wide: int, warps: int, values: int = 128) -> int:
    """Parts that `_merge` reads at once: as many as give each thread so many values."""
    return int(triton.next_power_of_2(max(1, min(splits, values * warps * 32 // (wide * lines)))))


@triton.jit
def _merge(
    out, parts, start, queries, head, used,
    HEADS: tl.constexpr, SHARE: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, SPLITS: tl.constexpr,
    TOGETHER: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Add up an item's partial results, in their order: of a query's heads at once, TOGETHER parts at a time."""
    at = tl.arange(0, WIDE)
    each = tl.arange(0, TOGETHER)
    line = tl.arange(0, LINES)
    for query in range(0, queries):
        target = (start + query) * HEADS + head * SHARE + line
        most = tl.full((LINES,), float("-inf"), tl.float32)
        total = tl.zeros((LINES,), tl.float32)
        sums = tl.zeros((LINES, WIDE), tl.float32)
        for first in range(0, used, TOGETHER):
            there = (line < SHARE)[:, None] & (first + each < used)[None, :]
            part = parts + (target[:, None] * SPLITS + (first + each)[None, :]) * (DIM + 2)
            peaks = tl.load(part + DIM, mask=there, other=float("-inf"), cache_modifier=".cg")
            totals = tl.load(part + DIM + 1, mask=there, other=0.0, cache_modifier=".cg")
            wanted = there[:, :, None] & (at < DIM)[None, None, :]
            values = tl.load(part[:, :, None] + at[None, None, :], mask=wanted, other=0.0, cache_modifier=".cg")
            peak = tl.maximum(most, tl.max(peaks, 1))
            safe = tl.where(peak == float("-inf"), 0.0, peak)
            share = tl.exp(peaks - safe[:, None])
            fade = tl.exp(most - safe)
            sums = sums * fade[:, None] + tl.sum(values * share[:, :, None], 1)
            total = total * fade + tl.sum(totals * share, 1)
            most = peak
        value = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        written = (line < SHARE)[:, None] & (at < DIM)[None, :]
        tl.store(out + target[:, None] * DIM + at[None, :], value, mask=written)


@triton.jit
def page_of(key, pitch, PAGE: tl.constexpr, WINDOW: tl.constexpr):
    """Where a row's table has the page of a key. Tables of windows are rings."""
    page = key // PAGE
    if WINDOW > 0:
        page = page % pitch
    return page


@triton.jit
def _fetch_ahead(
    k_pool, v_pool, plan, table, table_pitch,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Bring the program's first keys and values into the cache of the device: all but the step's own are there."""
    LINES: tl.constexpr = (DIM + 63) // 64
    unit = tl.program_id(0)
    if unit < tl.load(plan) * KV_HEADS:
        entry = plan + (1 + unit // KV_HEADS) * 8
        key = tl.load(entry + 4) + tl.arange(0, AHEAD)
        known = key < tl.load(entry + 5)
        page = tl.load(
            table + tl.load(entry) * table_pitch + page_of(key, table_pitch, PAGE, WINDOW), mask=known, other=0
        )
        first = (page.to(tl.int64) * PAGE + key % PAGE) * KV_HEADS + unit % KV_HEADS
        at = tl.where(known, first, 0)[:, None] * DIM + tl.arange(0, LINES)[None, :] * 64
        code: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
        tl.inline_asm_elementwise(code, "=r,l", [(k_pool + at).to(tl.int64)], tl.int32, is_pure=False, pack=1)
        tl.inline_asm_elementwise(code, "=r,l", [(v_pool + at).to(tl.int64)], tl.int32, is_pure=False, pack=1)


@triton.jit
def load_item(plan, index):
    """An item of a plan: its row, first query and number of queries, their position, its keys, split and splits."""
    entry = plan + (1 + index) * 8
    row = tl.load(entry)
    start = tl.load(entry + 1)
    queries = tl.load(entry + 2)
    position = tl.load(entry + 3)
    begin = tl.load(entry + 4)
    end = tl.load(entry + 5)
    return row, start, queries, position, begin, end, tl.load(entry + 6), tl.load(entry + 7)


@triton.jit
def finish_item(
    out, parts, locks, sums, total, most, target, inside, start, queries, head, split, splits,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, SPLITS: tl.constexpr,
    TOGETHER: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Write an item's result. Of one that was cut it is a part, and the last program to come adds up all parts."""
    SHARE: tl.constexpr = HEADS // KV_HEADS
    at = tl.arange(0, WIDE)
    written = inside[:, None] & (at[None, :] < DIM)
    if (SPLITS == 1) | (splits == 1):
        value = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + target[:, None] * DIM + at[None, :], value, mask=written)
    else:
        # Of each (query, head) and split: DIM sums, then the greatest score and the sum of weights.
        part = parts + (target * SPLITS + split) * (DIM + 2)
        tl.store(part[:, None] + at[None, :], sums, mask=written)
        tl.store(part + DIM, most, mask=inside)
        tl.store(part + DIM + 1, total, mask=inside)
        tl.debug_barrier()
        lock = locks + start * KV_HEADS + head
        if tl.atomic_add(lock, 1, sem="acq_rel") == splits - 1:
            tl.debug_barrier()
            tl.store(lock, 0)
            _merge(out, parts, start, queries, head, splits, HEADS, SHARE, DIM, WIDE, SPLITS, TOGETHER, LINES)


@triton.jit
def _attend(
    q, k_pool, v_pool, plan, table, sinks, out, parts, locks, q_pitch, q_head, table_pitch, scale, softcap,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    SPLITS: tl.constexpr, TOGETHER: tl.constexpr, LINES: tl.constexpr, AHEAD: tl.constexpr, SINKS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Units are (item, KV head); a matrix row is a query and one of the heads that share the KV head."""
    SHARE: tl.constexpr = HEADS // KV_HEADS
    if PDL and AHEAD > 0:
        _fetch_ahead(k_pool, v_pool, plan, table, table_pitch, KV_HEADS, DIM, PAGE, WINDOW, AHEAD)
    begin_kernel(PDL)
    units = tl.load(plan) * KV_HEADS
    line = tl.arange(0, ROWS)
    at = tl.arange(0, WIDE)
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        head = unit % KV_HEADS
        row, start, queries, position, begin, end, split, splits = load_item(plan, unit // KV_HEADS)
        query = line // SHARE
        of_head = head * SHARE + line % SHARE
        inside = (query < queries) & (line < TILE * SHARE)
        q_at = q + (start + query)[:, None] * q_pitch + of_head[:, None] * q_head + at[None, :]
        a = tl.load(q_at, mask=inside[:, None] & (at[None, :] < DIM), other=0.0)
        most = tl.full((ROWS,), float("-inf"), tl.float32)
        if SINKS:
            # A key without a value, which the first part has seen before its own.
            most = tl.where(split == 0, tl.load(sinks + of_head, mask=inside, other=0.0), float("-inf"))
        total = tl.where(most == float("-inf"), 0.0, 1.0)
        sums = tl.zeros((ROWS, WIDE), tl.float32)
        pages = table + row * table_pitch
        key = begin + tl.arange(0, KEYS)
        page = tl.load(pages + page_of(key, table_pitch, PAGE, WINDOW), mask=key < end, other=0)
        for base in range(begin, end, KEYS):
            key = base + tl.arange(0, KEYS)
            known = key < end
            slot = page.to(tl.int64) * PAGE + key % PAGE
            # The next pages are looked up while these keys are on their way.
            there = page_of(key + KEYS, table_pitch, PAGE, WINDOW)
            page = tl.load(pages + there, mask=key + KEYS < end, other=0)
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
        finish_item(
            out, parts, locks, sums, total, most, (start + query) * HEADS + of_head, inside, start, queries, head,
            split, splits, HEADS, KV_HEADS, DIM, WIDE, SPLITS, TOGETHER, LINES,
        )  # fmt: skip


@TRITON_KERNELS.register(PagedAttention)
class PagedAttentionKernel(TritonKernel):
    """Cut items need float32 partial results of every query of the step, and locks, which are zero between runs."""

    name = "persistent, split keys"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        op = site.op
        assert isinstance(op, PagedAttention)
        return (dense_form(site, (5,)),) if op.sinks else ()

    def accepts(self, site: Site) -> str | None:
        if site.inputs[1].shape != site.inputs[2].shape:
            return "keys and values differ in shape"
        return None if site.inputs[0].shape[2] <= 256 else "heads are wider than 256"

    def workspace(self, site: Site) -> int:
        op = site.op
        assert isinstance(op, PagedAttention)
        tokens, heads, width = site.inputs[0].shape
        return 4 * tokens * heads * op.splits * (width + 2) if op.splits > 1 else 0

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, PagedAttention)
        q, k_pool, v_pool, plan, table = (view(operands.input(i)) for i in range(5))
        out = view(operands.outputs[0])
        tokens, heads, width = q.shape
        kv_heads, parts, splits = k_pool.shape[1], out, op.splits
        if operands.workspace is not None:
            parts = typed(operands.workspace, (tokens * heads * splits * (width + 2),), None, DType.F32)
        tile = min(op.tile, tokens)
        wide = max(16, triton.next_power_of_2(width))
        rows = max(16, triton.next_power_of_2(tile * heads // kv_heads))
        keys, warps, stages = shape(tokens, wide, rows)
        count = programs(tokens, device)
        sinks = operands.held[0] if op.sinks else out
        locks = torch.zeros(tokens * kv_heads, dtype=torch.int32, device=out.device)
        pitches = q.stride(0), q.stride(1), table.shape[1], op.scale, op.softcap or 1.0
        stages = min(stages, stages_within(device.shared, keys, wide, rows, q.element_size())) if device.ahead else 1
        lines = triton.next_power_of_2(heads // kv_heads)
        return lambda: _attend[(count,)](
            q, k_pool, v_pool, plan, table, sinks, out, parts, locks, *pitches,
            HEADS=heads, KV_HEADS=kv_heads, DIM=width, WIDE=wide, TILE=tile, PAGE=op.block, WINDOW=op.window or 0,
            CAPPED=op.softcap is not None, ROWS=rows, KEYS=keys, SPLITS=splits,
            TOGETHER=merge_together(splits, lines, wide, warps), LINES=lines, AHEAD=AHEAD if tokens <= FEW else 0,
            SINKS=op.sinks, num_warps=warps, num_stages=stages, **device.launch,
        )  # fmt: skip
