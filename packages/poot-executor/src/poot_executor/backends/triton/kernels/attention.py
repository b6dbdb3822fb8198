"""Paged attention: persistent programs over the items of a plan, on any device and for any shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.items import Attended, finish_item, load_item, load_queries, page_of
from poot_executor.backends.triton.kernels.kernel import TRITON_KERNELS, TritonKernel, begin_kernel, dense_form
from poot_executor.backends.triton.kernels.plan import FEW
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
def _attend(
    q, k_pool, v_pool, plan, table, sinks, out, parts, locks, q_pitch, q_head, table_pitch, scale, softcap,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    SPLITS: tl.constexpr, TOGETHER: tl.constexpr, LINES: tl.constexpr, AHEAD: tl.constexpr, SINKS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Units are (item, KV head); a matrix row is a query and one of the heads that share the KV head."""
    if PDL and AHEAD > 0:
        _fetch_ahead(k_pool, v_pool, plan, table, table_pitch, KV_HEADS, DIM, PAGE, WINDOW, AHEAD)
    begin_kernel(PDL)
    units = tl.load(plan) * KV_HEADS
    at = tl.arange(0, WIDE)
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        head = unit % KV_HEADS
        row, start, queries, position, begin, end, split, splits = load_item(plan, unit // KV_HEADS)
        a, query, of_head, inside, most = load_queries(
            q, sinks, start, queries, head, split, q_pitch, q_head,
            HEADS, KV_HEADS, DIM, WIDE, TILE, ROWS, SINKS,
        )  # fmt: skip
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
        it = Attended.of(site, operands)
        if (own := device.attend_rows(it)) is not None:
            return own  # type: ignore[no-any-return]
        keys, warps, stages = shape(it.tokens, it.wide, it.rows)
        most = stages_within(device.shared, keys, it.wide, it.rows, it.q.element_size())
        stages, count = min(stages, most) if device.ahead else 1, programs(it.tokens, device)
        ahead = AHEAD if it.tokens <= FEW else 0
        return lambda: _attend[(count,)](
            it.q, it.k_pool, it.v_pool, *it.tensors, *it.numbers, **it.constants, WIDE=it.wide, KEYS=keys,
            TOGETHER=it.together(warps), AHEAD=ahead, num_warps=warps, num_stages=stages, **device.launch,
        )  # fmt: skip
