"""Paged attention of prompts: matrices of many queries, each with all the heads that share a KV head.

The items and the sum of their parts are those of `items`; rows that decode in the same step are items of one
query. Most blocks of keys lie before all of an item's queries, so they need no mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.attention import PagedAttentionKernel, stages_within
from poot_executor.backends.triton.kernels.items import Attended, finish_item, load_item, load_queries, page_of
from poot_executor.backends.triton.kernels.kernel import TRITON_KERNELS, begin_kernel
from poot_executor.backends.triton.kernels.plan import MANY
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import PagedAttention

_LOG2E = tl.constexpr(1.4426950408889634)


class Shape(NamedTuple):
    """Keys of a block, warps of a program, blocks under way at once, programs a multiprocessor."""

    keys: int
    warps: int
    stages: int
    programs: int


def shape(rows: int, wide: int) -> Shape:
    """Of a matrix of `rows` (query, head) pairs that are `wide`."""
    if rows * wide > 128 * 128:
        return Shape(32, 8, 2, 1)
    return Shape(64, 8 if rows > 64 else 4, 3, 1 if rows > 64 else 2)


@triton.jit
def _block(
    a, k_pool, v_pool, page, base, most, total, sums, head, lower, upper, scale, softcap, unit,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One turn of the running softmax over the keys of a block. Scores times `unit` are exponents of two."""
    at = tl.arange(0, WIDE)
    key = base + tl.arange(0, KEYS)
    slot = page.to(tl.int64) * PAGE + key % PAGE
    where = (slot[:, None] * KV_HEADS + head) * DIM + at[None, :]
    if MASKED:
        loaded = (key < tl.max(upper, 0))[:, None] & (at[None, :] < DIM)
        k = tl.load(k_pool + where, mask=loaded, other=0.0)
        v = tl.load(v_pool + where, mask=loaded, other=0.0)
    elif DIM < WIDE:
        k = tl.load(k_pool + where, mask=at[None, :] < DIM, other=0.0)
        v = tl.load(v_pool + where, mask=at[None, :] < DIM, other=0.0)
    else:
        k = tl.load(k_pool + where)
        v = tl.load(v_pool + where)
    scores = tl.dot(a, tl.trans(k), input_precision="ieee")
    if CAPPED:
        scores = (2.0 * tl.sigmoid(2.0 * scores * scale / softcap) - 1.0) * softcap
    if MASKED:
        seen = key[None, :] < upper[:, None]
        if WINDOW > 0:
            seen = seen & (key[None, :] >= lower[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    peak = tl.maximum(most, tl.max(scores, 1))
    safe = tl.where(peak == float("-inf"), 0.0, peak) if MASKED else peak
    weight = tl.exp2(scores * unit - (safe * unit)[:, None])
    fade = tl.exp2((most - safe) * unit)
    total = total * fade + tl.sum(weight, 1)
    sums = tl.dot(weight.to(v.dtype), v, sums * fade[:, None], input_precision="ieee")
    return peak, total, sums


@triton.jit
def _attend_prompt(
    q, k_pool, v_pool, plan, table, sinks, out, parts, locks, q_pitch, q_head, table_pitch, scale, softcap,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr, SPLITS: tl.constexpr, TOGETHER: tl.constexpr, LINES: tl.constexpr, SINKS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Units are (item, KV head). Later items of a prompt have more keys, so programs take units to and fro."""
    begin_kernel(PDL)
    units = tl.load(plan) * KV_HEADS
    programs = tl.num_programs(0)
    unit = tl.full((), _LOG2E, tl.float32)
    if not CAPPED:
        unit = scale * _LOG2E
    for turn in range(0, tl.cdiv(units, programs)):
        back = turn % 2
        index = turn * programs + tl.program_id(0) * (1 - 2 * back) + (programs - 1) * back
        if index < units:
            head = index % KV_HEADS
            row, start, queries, position, begin, end, split, splits = load_item(plan, index // KV_HEADS)
            a, query, of_head, inside, most = load_queries(
                q, sinks, start, queries, head, split, q_pitch, q_head,
                HEADS, KV_HEADS, DIM, WIDE, TILE, ROWS, SINKS,
            )  # fmt: skip
            if SINKS:
                most *= _LOG2E / unit
            total = tl.where(most == float("-inf"), 0.0, 1.0)
            sums = tl.zeros((ROWS, WIDE), tl.float32)
            pages = table + row * table_pitch
            # Each query sees the keys from `lower` up to, but not, `upper`: the first one all those before `whole`.
            upper = tl.minimum(position + query + 1, end)
            lower = tl.maximum(position + query - WINDOW + 1, begin)
            whole = begin
            if WINDOW == 0:
                whole = begin + (tl.minimum(position + 1, end) - begin) // KEYS * KEYS
            key = begin + tl.arange(0, KEYS)
            page = tl.load(pages + page_of(key, table_pitch, PAGE, WINDOW), mask=key < end, other=0)
            for base in tl.range(begin, whole, KEYS, num_stages=STAGES):
                now = page
                # The next pages are looked up while these keys are on their way.
                key = base + KEYS + tl.arange(0, KEYS)
                page = tl.load(pages + page_of(key, table_pitch, PAGE, WINDOW), mask=key < end, other=0)
                most, total, sums = _block(
                    a, k_pool, v_pool, now, base, most, total, sums, head, lower, upper, scale, softcap, unit,
                    KV_HEADS, DIM, WIDE, PAGE, KEYS, WINDOW, CAPPED, False,
                )  # fmt: skip
            for base in tl.range(whole, end, KEYS, num_stages=STAGES):
                now = page
                key = base + KEYS + tl.arange(0, KEYS)
                page = tl.load(pages + page_of(key, table_pitch, PAGE, WINDOW), mask=key < end, other=0)
                most, total, sums = _block(
                    a, k_pool, v_pool, now, base, most, total, sums, head, lower, upper, scale, softcap, unit,
                    KV_HEADS, DIM, WIDE, PAGE, KEYS, WINDOW, CAPPED, True,
                )  # fmt: skip
            finish_item(
                out, parts, locks, sums, total, most * unit / _LOG2E, (start + query) * HEADS + of_head, inside,
                start, queries, head, split, splits, HEADS, KV_HEADS, DIM, WIDE, SPLITS, TOGETHER, LINES,
            )  # fmt: skip


@TRITON_KERNELS.register(PagedAttention, preferred=True)
class PromptAttentionKernel(PagedAttentionKernel):
    name = "prompt tiles, split keys"

    def accepts(self, site: Site) -> str | None:
        op = site.op
        assert isinstance(op, PagedAttention)
        if site.inputs[0].shape[0] <= MANY:
            return f"{MANY} tokens or fewer"
        return super().accepts(site) if op.scale > 0 else "the scale is not positive"

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        it = Attended.of(site, operands)
        if (own := device.attend_prompt(it)) is not None:
            return own  # type: ignore[no-any-return]
        keys, warps, stages, programs = shape(it.rows, it.wide)
        most = stages_within(device.shared // programs, keys, it.wide, it.rows, it.q.element_size())
        stages = min(stages, most) if device.ahead else 1
        return lambda: _attend_prompt[(programs * device.processors,)](
            it.q, it.k_pool, it.v_pool, *it.tensors, *it.numbers, **it.constants, WIDE=it.wide, KEYS=keys,
            STAGES=stages, TOGETHER=it.together(warps), num_warps=warps, num_stages=stages, **device.launch,
        )  # fmt: skip
