"""Paged attention over ragged runs (arXiv 2309.06180), grouped heads (2305.13245), windows and soft-capping."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from poot_executor.encodings.types import WeightSource
from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.base import EXACT, Example, Tolerance, dense_weight, floats, require
from poot_executor.ops.rows import RowLayout

if TYPE_CHECKING:
    import torch


class PlanLayout:
    """Columns of an attention plan's items; row 0 of a plan holds the number of items that follow."""

    ROW, QUERY, QUERIES, POSITION, KV_BEGIN, KV_END, SPLIT, SPLITS = range(8)
    COLUMNS = 8


@dataclass(frozen=True, slots=True)
class AttentionPlan(Op):
    """The step's work list: runs (R, 4) to items (1 + W, 8) of PlanLayout, at most `tile` queries an item.

    One plan serves every layer of a KV group. `window` w lets a query at p see keys p - w + 1 to p; None sees all.
    With `last` each run is its last token alone, and that of run i is query i.
    Backends may cut an item's keys, into at most `splits` items; only their own attention kernels read the plan. Where
    an item is cut depends on it alone, so that a row's result does not depend on its neighbours.
    """

    tokens: int
    tile: int = 64
    window: int | None = None
    splits: int = 1
    last: bool = False

    tolerance: ClassVar = EXACT

    def items(self, rows: int) -> int:
        return min(self.tokens, rows + self.tokens // self.tile) * self.splits

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (runs,) = inputs
        return (TensorType((1 + self.items(runs.shape[0]), PlanLayout.COLUMNS), DType.I32),)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        (runs,) = inputs
        plan = torch.zeros(1 + self.items(runs.shape[0]), PlanLayout.COLUMNS, dtype=torch.int32)
        items, flat = [], 0
        for row, first, length, _ in runs.tolist():
            if self.last and length:
                first, length = first + length - 1, 1  # noqa: PLW2901
            for start in range(0, length, self.tile):
                queries = min(self.tile, length - start)
                position = first + start
                begin = max(0, position - self.window + 1) if self.window else 0
                items.append([row, flat + start, queries, position, begin, position + queries, 0, 1])
            flat += length
        plan[0, 0] = len(items)
        if items:
            plan[1 : 1 + len(items)] = torch.tensor(items, dtype=torch.int32)
        return (plan,)


@dataclass(frozen=True, slots=True)
class PagedAttention(Op):
    """Causal attention of a step's queries over their rows' paged keys and values.

    (q (T, H, D), k_pool, v_pool (S, G, D), plan, table (R, blocks)) to (T, H, D). H is a multiple of G. Scores are
    `scale` q.k, soft-capped if `softcap`, masked to the past (and to `window`), then softmax in float32. `tile` and
    `splits` are the plan's. With `sinks` there is a weight (H,) more: the score of a key that every query of a head
    sees and that has no value (arXiv 2309.17453, as a learned bias). Pools hold no value that is not finite: a backend
    may multiply those that a query does not see with zero.
    """

    scale: float
    block: int
    window: int | None = None
    softcap: float | None = None
    tile: int = 64
    splits: int = 1
    sinks: bool = False

    tolerance: ClassVar = Tolerance(2e-5, 2e-5)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        q, k_pool, v_pool, _, _, *sinks = inputs
        require([s.shape for s in sinks] == [q.shape[1:2]] * self.sinks, self, "{} sinks for {}", len(sinks), q)
        require(q.shape[1] % k_pool.shape[1] == 0, self, "{} heads over {} KV heads", q.shape[1], k_pool.shape[1])
        require(q.shape[2] == k_pool.shape[2], self, "{} and {} differ in head size", q, k_pool)
        return (q.with_shape(q.shape[0], q.shape[1], v_pool.shape[2]),)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        q, k_pool, v_pool, plan, table, *sinks = inputs
        result = torch.zeros(*q.shape[:2], v_pool.shape[2])
        groups = q.shape[1] // k_pool.shape[1]
        for row, start, queries, position, begin, end, _, _ in plan[1 : 1 + int(plan[0, 0])].tolist():
            at = torch.arange(begin, end)
            slots = table[row].long()[(at // self.block) % table.shape[1]] * self.block + at % self.block
            keys = k_pool[slots].float().repeat_interleave(groups, dim=1)
            values = v_pool[slots].float().repeat_interleave(groups, dim=1)
            scores = torch.einsum("qhd,khd->hqk", q[start : start + queries].float(), keys) * self.scale
            if self.softcap:
                scores = torch.tanh(scores / self.softcap) * self.softcap
            ahead = at[None, :] > position + torch.arange(queries)[:, None]
            if self.window:
                ahead |= at[None, :] <= position + torch.arange(queries)[:, None] - self.window
            scores = scores.masked_fill(ahead, float("-inf"))
            if sinks:
                scores = torch.cat((scores, sinks[0][:, None, None].expand(-1, queries, 1)), -1)
            weights = scores.softmax(-1)[..., : len(at)]
            result[start : start + queries] = torch.einsum("hqk,khd->qhd", weights, values)
        return (result,)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        decode = ((1, 9, 1), (0, 0, 1), (2, 22, 1))
        mixed = ((1, 9, 1), (0, 0, 11), (2, 8, 5))
        long = ((1, 1300, 1), (0, 700, 2), (2, 9, 3))
        prompts = ((1, 0, 130), (0, 20, 97), (2, 160, 1), (3, 10, 33))
        far = ((1, 100, 1), (0, 31, 1), (2, 150, 9), (3, 0, 2))
        return (
            _attention_case("decode", cls(0.25, 4), decode, heads=(4, 2, 16)),
            _attention_case("prompt tiles", cls(0.25, 4), mixed, heads=(3, 1, 16)),
            _attention_case("window", cls(0.25, 4, window=6), mixed, heads=(4, 4, 8)),
            _attention_case("window ring", cls(0.25, 4, window=6), ((1, 30, 1), (2, 40, 3)), heads=(4, 2, 8), ring=5),
            _attention_case("wide heads", cls(0.0625, 4), mixed, heads=(2, 1, 256)),
            _attention_case("soft-cap", cls(2.0, 4, softcap=5.0), mixed, heads=(6, 2, 16)),
            _attention_case("split keys", cls(0.25, 128, splits=3), long, heads=(4, 2, 16)),
            _attention_case("sinks", cls(0.25, 4, sinks=True), mixed, heads=(6, 2, 16)),
            _attention_case("sinks, split keys", cls(0.25, 128, splits=3, sinks=True), long, heads=(4, 2, 16)),
            _attention_case("pages", cls(0.25, 16), far, heads=(4, 2, 32), capacity=40),
            _attention_case("pages, window", cls(0.25, 16, window=70), far, heads=(2, 1, 64), capacity=40),
            _attention_case("pages, window ring", cls(0.25, 16, window=35), far, heads=(8, 2, 16), ring=4, capacity=40),
            _attention_case("pages, sinks", cls(1.0, 16, softcap=5.0, sinks=True), far, heads=(3, 1, 32), capacity=40),
            _attention_case("pages, split keys", cls(0.25, 128, splits=3), long, heads=(4, 2, 16), capacity=40),
            _attention_case("prompt", cls(0.25, 16, tile=32), prompts, heads=(4, 1, 16), capacity=280),
            _attention_case("prompt, window", cls(0.25, 16, 70, tile=16), prompts, heads=(8, 1, 24), capacity=280),
            _attention_case(
                "prompt, window ring", cls(0.25, 16, 24, tile=8), prompts, heads=(2, 1, 8), ring=8, capacity=280
            ),
            _attention_case(
                "prompt, sinks, soft-cap",
                cls(1.0, 16, None, 5.0, 32, sinks=True),
                prompts,
                heads=(3, 3, 32),
                capacity=280,
            ),
            _attention_case(
                "prompt, split keys",
                cls(0.25, 128, tile=32, splits=3),
                ((1, 1300, 20), (0, 700, 40), (2, 0, 100)),
                heads=(4, 2, 16),
                capacity=280,
            ),
        )


def _never_written(runs: tuple[tuple[int, int, int], ...], table: torch.Tensor, block: int) -> torch.Tensor:
    """Slots that no position of a run has had: keys and finite values that others left there must not be seen."""
    import torch

    fresh = torch.ones(table.numel() * block, dtype=torch.bool)
    for row, first, length in runs:
        at = torch.arange(first + length)
        fresh[table[row].long()[(at // block) % table.shape[1]] * block + at % block] = False
    return fresh


def _attention_case(
    name: str,
    op: PagedAttention,
    runs: tuple[tuple[int, int, int], ...],
    *,
    heads: tuple[int, int, int],
    ring: int | None = None,
    capacity: int = 24,
) -> Example:
    """Runs of (row, first, tokens) over a shuffled block table."""
    import torch

    rows, blocks = 4, ring or 12
    query_heads, kv_heads, width = heads
    total = sum(length for _, _, length in runs)
    op = replace(op, tile=8) if capacity <= 256 else op
    plan = AttentionPlan(capacity, op.tile, op.window, op.splits)

    def make(generator: torch.Generator) -> tuple[torch.Tensor | WeightSource, ...]:
        resolved = torch.zeros(rows, RowLayout.RUN, dtype=torch.int32)
        for index, run in enumerate(runs):
            resolved[index, :3] = torch.tensor(run, dtype=torch.int32)
        table = torch.randperm(rows * blocks, generator=generator).to(torch.int32).view(rows, blocks)
        pools = [floats(generator, rows * blocks * op.block, kv_heads, width) for _ in range(2)]
        fresh = _never_written(runs, table, op.block)
        for pool, left in zip(pools, (float("nan"), 6e4), strict=True):
            pool[fresh] = left
        q, items = floats(generator, capacity, query_heads, width), plan.reference(resolved)[0]
        sinks = [dense_weight("sinks", floats(generator, query_heads))] if op.sinks else []
        return q, *pools, items, table, *sinks, resolved

    pool = TensorType((rows * blocks * op.block, kv_heads, width), DType.ACT)
    runs_type = TensorType((rows, RowLayout.RUN), DType.I32)
    types = (
        TensorType((capacity, query_heads, width), DType.ACT, "tokens"),
        pool,
        pool,
        plan.infer(runs_type)[0],
        TensorType((rows, blocks), DType.I32),
        *((TensorType((query_heads,), DType.F32),) if op.sinks else ()),
        runs_type,
    )
    sinks = (Role.WEIGHT,) if op.sinks else ()
    roles = (Role.INPUT, Role.STATE, Role.STATE, Role.TEMPORARY, Role.STATE, *sinks, Role.INPUT)
    live = {"tokens": total, "runs": len(runs)}
    return Example(name, op, types, roles, make, live, {3: (plan, (len(types) - 1,))})
