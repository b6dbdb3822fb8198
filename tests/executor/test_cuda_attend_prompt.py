"""Attention of prompts in CUDA C++, run on the host by emulation, against softmax by the definition in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from cuda_host_device import HostDevice
from cuda_on_host import compiler

from poot_executor.backends.cuda.attend_check import agrees
from poot_executor.backends.cuda.attend_prompt import accepts, attend_prompt
from poot_executor.backends.triton.kernels.items import Attended
from poot_executor.ops import PagedAttention

pytestmark = pytest.mark.skipif(compiler() is None, reason="no g++ to compile kernels with")
BLOCK, SCALE = 16, 0.2
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


def plan(case: Case, tile: int) -> torch.Tensor:
    """Items of at most `tile` queries; those of runs of one item are cut into parts of whole blocks of 128 keys."""
    items, flat = [], 0
    for row, first, count in case.runs:
        parts = case.parts if count <= tile else 1
        for start in range(0, count, tile):
            queries, position = min(tile, count - start), first + start
            begin = max(position - case.window + 1, 0) if case.window else 0
            end = position + queries
            size = -(-(end - begin) // (parts * 128)) * 128 if parts > 1 else end - begin
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
    share, tokens = case.heads // case.kv_heads, sum(count for _, _, count in case.runs)
    tile, rows = max(1, 128 // share), max(row for row, _, _ in case.runs) + 1
    longest = max(first + count for _, first, count in case.runs)
    ring = -(-(case.window + tile) // BLOCK) + 2 if case.window else -(-longest // BLOCK)
    table = torch.randperm(rows * ring, generator=noise).int().view(rows, ring)
    pools = [torch.randn(rows * ring * BLOCK, case.kv_heads, case.width, generator=noise).bfloat16() for _ in range(2)]
    q = torch.randn(tokens, case.heads, case.width, generator=noise).bfloat16() * 3
    sinks = torch.randn(case.heads, generator=noise) if case.sinks else None
    op = PagedAttention(
        SCALE, BLOCK, case.window, softcap=case.softcap, sinks=case.sinks, tile=tile, splits=max(1, case.parts)
    )
    out = torch.full((tokens, case.heads, case.width), torch.nan).bfloat16()
    parts = torch.full((tokens * case.heads * op.splits * (case.width + 2),), torch.nan)
    locks = torch.zeros(tokens * case.kv_heads, dtype=torch.int32)
    tensors = plan(case, tile), table, out if sinks is None else sinks, out, parts, locks
    it = Attended(op, q, *pools, tensors, (q.stride(0), q.stride(1), ring, op.scale, op.softcap or 1.0))
    return it, definition(case, q, pools, table, sinks)


def run(case: Case, *, backwards: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel made, and what is wanted."""
    it, wanted = attended(case)
    assert accepts(it)
    device = HostDevice()
    device.processors, device.backwards = 3, backwards
    launch, out = attend_prompt(it, device), it.tensors[3]
    launch()
    first = out.clone()
    launch()  # locks are as they were
    assert torch.equal(first, out)
    assert not it.tensors[5].any()
    return out, wanted


def definition(
    case: Case, q: torch.Tensor, pools: list[torch.Tensor], table: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    wanted, flat = torch.zeros(q.shape, dtype=torch.float64), 0
    for row, first, count in case.runs:
        for i in range(count):
            position = first + i
            at = torch.arange(max(0, position - case.window + 1) if case.window else 0, position + 1)
            slots = table[row].long()[at // BLOCK % table.shape[1]] * BLOCK + at % BLOCK
            for head in range(case.heads):
                k, v = (pool[slots, head * case.kv_heads // case.heads].double() for pool in pools)
                scores = k @ q[flat + i, head].double() * SCALE
                if case.softcap is not None:
                    scores = case.softcap * torch.tanh(scores / case.softcap)
                if sinks is not None:
                    scores = torch.cat((scores, sinks[head : head + 1].double()))
                weights = torch.softmax(scores, 0)[: len(at)]
                wanted[flat + i, head] = weights @ v
        flat += count
    return wanted


CASES = [
    Case(((0, 0, 70),)),
    Case(((1, 150, 40), (0, 0, 3), (2, 300, 1)), width=128, heads=8, kv_heads=2),
    Case(((0, 200, 50),), heads=3, kv_heads=1, window=100),
    Case(((0, 130, 20), (1, 5, 40)), heads=2, kv_heads=2, softcap=3.0, sinks=True, width=128),
    Case(((0, 500, 2), (1, 40, 1), (2, 290, 33)), parts=4),
    Case(((0, 600, 5),), parts=3, sinks=True, heads=8, width=128),
    # As many rows of the matrix as one warpgroup has, and one more.
    Case(((0, 100, 16), (1, 60, 17), (2, 255, 1)), heads=8, kv_heads=2, width=128),
    # Rows that decode beside prompts, windows that begin within a page.
    Case(((0, 700, 1), (1, 0, 60), (2, 391, 1), (3, 128, 1)), heads=5, window=300, sinks=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: Case) -> None:
    found, wanted = run(case)
    assert float((found.double() - wanted).norm() / wanted.norm()) < TOLERANCE
    assert float((found.double() - wanted).abs().max()) < 4 * TOLERANCE * float(wanted.abs().max())


def test_an_item_without_keys_is_passed_over() -> None:
    """No plan has one, but blocks must not wait for what nobody fetches."""
    it, wanted = attended(Case(((0, 200, 3), (1, 130, 2))))
    items = it.tensors[0].view(-1, 8)
    items[2, 4] = items[2, 5]
    attend_prompt(it, HostDevice())()
    found = it.tensors[3].double()
    assert float((found[:3] - wanted[:3]).norm() / wanted[:3].norm()) < TOLERANCE
    assert bool(found[3:].isnan().all())


def strided(it: Attended) -> Attended:
    return replace(it, q=torch.zeros(*it.q.shape[:2], 2 * it.q.shape[2]).bfloat16()[..., ::2])


def wider(it: Attended) -> Attended:
    return replace(it, v_pool=torch.zeros(*it.v_pool.shape[:2], 128).bfloat16())


def empty(it: Attended) -> Attended:
    return replace(it, k_pool=it.k_pool[:0], v_pool=it.v_pool[:0])


def other_pages(it: Attended) -> Attended:
    return replace(it, op=replace(it.op, block=12))


@pytest.mark.parametrize("changed", [strided, wider, empty, other_pages])
def test_what_it_does_not_take_is_left_to_others(changed: Callable[[Attended], Attended]) -> None:
    it, _ = attended(Case(((0, 0, 70),)))
    assert accepts(it)
    assert not accepts(changed(it))


def test_results_do_not_depend_on_who_comes_first() -> None:
    case = Case(((0, 500, 2), (1, 100, 40)), parts=4)
    (forward, _), (backward, _) = run(case), run(case, backwards=True)
    assert torch.equal(forward, backward)


@pytest.mark.parametrize(
    "case",
    [Case(((0, 0, 70),), sinks=True, parts=2), Case(((0, 0, 80),), window=90, softcap=2.0, heads=2)],
    ids=str,
)
def test_a_program_is_checked_before_it_is_used(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    it, _ = attended(case)
    device = HostDevice()

    def wrong(small: Attended) -> Callable[[], object]:
        launch = attend_prompt(small, device)

        def both() -> None:
            launch()
            small.tensors[3][-1, -1, :2] += 40.0  # of one head of one query

        return both

    assert agrees(it, lambda small: attend_prompt(small, device))
    assert not caplog.records
    assert not agrees(it, wrong)
    assert "off by" in caplog.text
