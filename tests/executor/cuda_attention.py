"""Paged attention over noise, for tests of kernels: its operands, and softmax by the definition in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from poot_executor.backends.triton.kernels.items import Attended
from poot_executor.ops import PagedAttention

SCALE = 0.2
# Weights and results are rounded to bfloat16.
TOLERANCE = 2**-7
# row of the table, first position, queries
Run = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    runs: tuple[Run, ...]
    heads: int = 4
    kv_heads: int = 1
    width: int = 64
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    parts: int = 1  # of an item's keys
    tile: int | None = None  # queries of an item; None: as many as make a matrix of 128 rows
    page: int = 16  # keys
    cut: int = 128  # parts are of whole blocks of so many keys

    @property
    def queries(self) -> int:
        return self.tile or max(1, 128 * self.kv_heads // self.heads)


def plan(case: Case) -> torch.Tensor:
    """Items of at most a tile of queries; those of runs of one item are cut into parts of whole blocks of keys."""
    items, flat, tile = [], 0, case.queries
    for row, first, count in case.runs:
        parts = case.parts if count <= tile else 1
        for start in range(0, count, tile):
            queries, position = min(tile, count - start), first + start
            begin = max(position - case.window + 1, 0) if case.window else 0
            end = position + queries
            size = -(-(end - begin) // (parts * case.cut)) * case.cut if parts > 1 else end - begin
            cuts = [(at, min(at + size, end)) for at in range(begin, end, size)]
            items += [
                (row, flat + start, queries, position, a, b, i, len(cuts)) for i, (a, b) in enumerate(cuts)
            ]  # fmt: skip
        flat += count
    made = torch.zeros(1 + len(items), 8, dtype=torch.int32)
    made.view(-1)[0] = len(items)
    made[1:] = torch.tensor(items, dtype=torch.int32)
    # The entries begin at the eighth number.
    return made.view(-1)


def attended(case: Case) -> tuple[Attended, torch.Tensor]:
    """A site's attention over noise, and the same by the definition: (tokens, heads, width)."""
    noise = torch.Generator().manual_seed(5)
    tokens, tile, page = sum(count for _, _, count in case.runs), case.queries, case.page
    rows, longest = max(row for row, _, _ in case.runs) + 1, max(first + count for _, first, count in case.runs)
    ring = -(-(case.window + tile) // page) + 2 if case.window else -(-longest // page)
    table = torch.randperm(rows * ring, generator=noise).int().view(rows, ring)
    pools = [torch.randn(rows * ring * page, case.kv_heads, case.width, generator=noise).bfloat16() for _ in range(2)]
    q = torch.randn(tokens, case.heads, case.width, generator=noise).bfloat16() * 3
    # As large as the greatest of the scores: else nobody sees whether a sink counts once, with parts of the keys.
    sinks = 8 + 6 * torch.randn(case.heads, generator=noise) if case.sinks else None
    op = PagedAttention(
        SCALE, page, case.window, softcap=case.softcap, sinks=case.sinks, tile=tile, splits=max(1, case.parts)
    )
    out = torch.full((tokens, case.heads, case.width), torch.nan).bfloat16()
    parts = torch.full((tokens * case.heads * op.splits * (case.width + 2),), torch.nan)
    locks = torch.zeros(tokens * case.kv_heads, dtype=torch.int32)
    tensors = plan(case), table, out if sinks is None else sinks, out, parts, locks
    it = Attended(op, q, *pools, tensors, (q.stride(0), q.stride(1), ring, op.scale, op.softcap or 1.0))
    return it, definition(case, it)


def definition(case: Case, it: Attended) -> torch.Tensor:
    """A query after the other, a head after the other."""
    q, table, wanted, flat = it.q.double(), it.tensors[1], torch.zeros(it.q.shape, dtype=torch.float64), 0
    sinks = it.tensors[2].double() if case.sinks else None
    for row, first, count in case.runs:
        for i in range(count):
            position = first + i
            at = torch.arange(max(0, position - case.window + 1) if case.window else 0, position + 1)
            slots = table[row].long()[at // case.page % table.shape[1]] * case.page + at % case.page
            keys, values = (pool[slots].double() for pool in (it.k_pool, it.v_pool))
            for head in range(case.heads):
                of = head * case.kv_heads // case.heads
                scores = keys[:, of] @ q[flat + i, head] * SCALE
                if case.softcap is not None:
                    scores = case.softcap * torch.tanh(scores / case.softcap)
                if sinks is not None:
                    scores = torch.cat((scores, sinks[head : head + 1]))
                weights = torch.softmax(scores, 0)[: len(at)]
                wanted[flat + i, head] = weights @ values[:, of]
        flat += count
    return wanted


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Of the norm; not a number where a result is none."""
    return float((found.double() - wanted).norm() / wanted.norm())


def assert_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """As a whole, and each number."""
    assert off(found, wanted) < TOLERANCE
    assert float((found.double() - wanted).abs().max()) < 4 * TOLERANCE * float(wanted.abs().max())


def run_twice(it: Attended, launch: Callable[[], object]) -> torch.Tensor:
    """The results, which are the same a second time: locks are as they were."""
    out, parts = it.tensors[3:5]
    launch()
    first = out.clone()
    parts.fill_(torch.nan)
    launch()
    assert torch.equal(first, out)
    assert not it.tensors[5].any()
    return out
