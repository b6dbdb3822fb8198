"""What the kernels of paged attention share: items of a plan, their queries and results, and the launch's arguments.

An item is at most `tile` queries of one run and a stretch of their keys; with the heads that share a KV head they make
the rows of one matrix. Where a row is cut into several items, the program that comes last adds up their results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.kernel import typed, view
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import PagedAttention


def matrix_rows(op: PagedAttention, tokens: int, share: int) -> int:
    """Rows of the matrix of queries, when `share` heads have one KV head."""
    return max(16, int(triton.next_power_of_2(min(op.tile, tokens) * share)))


@dataclass(frozen=True, slots=True)
class Attended:
    """A site's operands. `tensors` and `numbers` are the kernels' last arguments, `constants` what all of them know."""

    op: PagedAttention
    q: torch.Tensor
    k_pool: torch.Tensor
    v_pool: torch.Tensor
    tensors: tuple[torch.Tensor, ...]
    numbers: tuple[float, ...]

    @classmethod
    def of(cls, site: Site, operands: Operands) -> Attended:
        """The locks are made here; they are zero between runs."""
        op = site.op
        assert isinstance(op, PagedAttention)
        q, k_pool, v_pool, plan, table = (view(operands.input(i)) for i in range(5))
        out = view(operands.outputs[0])
        tokens, heads, width = q.shape
        parts, sinks = out, operands.held[0] if op.sinks else out
        if operands.workspace is not None:
            parts = typed(operands.workspace, (tokens * heads * op.splits * (width + 2),), None, DType.F32)
        locks = torch.zeros(tokens * k_pool.shape[1], dtype=torch.int32, device=out.device)
        numbers = q.stride(0), q.stride(1), table.shape[1], op.scale, op.softcap or 1.0
        return cls(op, q, k_pool, v_pool, (plan, table, sinks, out, parts, locks), numbers)

    @property
    def tokens(self) -> int:
        return self.q.shape[0]

    @property
    def kv_heads(self) -> int:
        return self.k_pool.shape[1]

    @property
    def share(self) -> int:
        """Heads that have one KV head."""
        return self.q.shape[1] // self.kv_heads

    @property
    def rows(self) -> int:
        return matrix_rows(self.op, self.tokens, self.share)

    @property
    def wide(self) -> int:
        return max(16, int(triton.next_power_of_2(self.q.shape[2])))

    def together(self, warps: int, values: int = 128) -> int:
        """Parts that are read at once when they are added up: as many as give each thread so many values."""
        lines = triton.next_power_of_2(self.share)
        fitting = values * warps * 32 // (self.wide * lines)
        return int(triton.next_power_of_2(max(1, min(self.op.splits, fitting))))

    @property
    def constants(self) -> dict[str, Any]:
        op, (_, heads, width) = self.op, self.q.shape
        return {
            "HEADS": heads, "KV_HEADS": self.kv_heads, "DIM": width, "TILE": min(op.tile, self.tokens),
            "PAGE": op.block, "WINDOW": op.window or 0, "CAPPED": op.softcap is not None, "ROWS": self.rows,
            "SPLITS": op.splits, "LINES": triton.next_power_of_2(self.share), "SINKS": op.sinks,
        }  # fmt: skip


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
def load_queries(
    q, sinks, start, queries, head, split, q_pitch, q_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """An item's matrix; of each row its query, its head and whether it is there; and its greatest score so far."""
    SHARE: tl.constexpr = HEADS // KV_HEADS
    line = tl.arange(0, ROWS)
    at = tl.arange(0, WIDE)
    query = line // SHARE
    of_head = head * SHARE + line % SHARE
    inside = (query < queries) & (line < TILE * SHARE)
    q_at = q + (start + query)[:, None] * q_pitch + of_head[:, None] * q_head + at[None, :]
    a = tl.load(q_at, mask=inside[:, None] & (at[None, :] < DIM), other=0.0)
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    if SINKS:
        # A key without a value, which the first part has seen before its own.
        most = tl.where(split == 0, tl.load(sinks + of_head, mask=inside, other=0.0), float("-inf"))
    return a, query, of_head, inside, most


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
