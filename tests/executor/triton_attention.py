"""Run by test_triton.py under Triton's interpreter in a process of its own, one line a check: attention that is cut.

Where a row's keys are cut depends on the row alone, so its result keeps its bits whoever else is in the step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from poot_executor.backends.triton.device import TritonDevice
from poot_executor.devices import Live
from poot_executor.ir import DType, Graph, GraphBuilder
from poot_executor.ops import AttentionPlan, PagedAttention
from poot_executor.ops.attention import PlanLayout
from poot_executor.runtime import EntryKey, EntrySet, compile_graphs, prepare
from poot_executor.testing import interpret

KEY = EntryKey("g", 8)
Run = tuple[int, int, int]  # row, first position, queries


@dataclass(frozen=True)
class Step:
    """A step's attention over rows whose keys lie scattered in the pool."""

    splits: int
    window: int | None = None
    tokens: int = 8
    tile: int = 4
    rows: int = 4
    blocks: int = 100
    block: int = 16
    heads: int = 4
    kv_heads: int = 2
    head: int = 16

    def graph(self) -> Graph:
        builder = GraphBuilder("g")
        runs = builder.input("runs", (self.rows, 4), DType.I32, "runs")
        q = builder.input("q", (self.tokens, self.heads, self.head), DType.ACT, "tokens")
        table = builder.input("table", (self.rows, self.blocks), DType.I32)
        shape = (self.rows * self.blocks * self.block, self.kv_heads, self.head)
        pools = [builder.state(f"kv.{part}", shape, DType.ACT) for part in "kv"]
        plan = builder.apply(AttentionPlan(self.tokens, self.tile, self.window, splits=self.splits), runs)
        op = PagedAttention(self.head**-0.5, self.block, self.window, tile=self.tile, splits=self.splits)
        builder.output("out", builder.apply(op, q, *pools, plan, table))
        return builder.finish()

    def tensors(self) -> dict[str, torch.Tensor]:
        noise = torch.Generator().manual_seed(11)
        order = torch.randperm(self.rows * self.blocks, generator=noise).int()
        shape = (self.rows * self.blocks * self.block, self.kv_heads, self.head)
        states = {f"kv.{part}": torch.randn(shape, generator=noise) for part in "kv"}
        # One query a row of the table: whoever is in the step, a row's queries are the same.
        queries = torch.randn(self.rows, self.tokens, self.heads, self.head, generator=noise)
        return {**states, "table": order.view(self.rows, self.blocks), "queries": queries}

    def prepared(self) -> EntrySet:
        device = TritonDevice("cpu", "interpreter", DType.F32)
        entries = prepare(device, compile_graphs(device, {KEY: self.graph()}), {})
        given = self.tensors()
        for part in "kv":
            entries.write_state(f"kv.{part}", given[f"kv.{part}"].numpy())
        entries[KEY].stage("table", given["table"].numpy())
        return entries

    def inputs(self, runs: list[Run]) -> tuple[torch.Tensor, torch.Tensor, Live]:
        """The runs, the queries of each behind one another, and the live counts."""
        given, table = torch.zeros(self.rows, 4, dtype=torch.int32), self.tensors()["queries"]
        given[: len(runs), :3] = torch.tensor(runs)
        parts = [table[row, :count] for row, _, count in runs]
        q = torch.full((self.tokens, self.heads, self.head), 1e9)
        total = sum(count for _, _, count in runs)
        q[:total] = torch.cat(parts)
        return given, q, Live(tokens=total, runs=len(runs))

    def run(self, entries: EntrySet, runs: list[Run]) -> list[torch.Tensor]:
        """What each run gets: (queries, heads, head)."""
        given, q, live = self.inputs(runs)
        entries[KEY].stage("runs", given.numpy())
        entries[KEY].stage("q", q.numpy())
        entries[KEY].run(live)
        out = torch.from_numpy(entries[KEY].read("out")).clone()[: live.tokens]
        return list(out.split([count for _, _, count in runs]))

    def expected(self, runs: list[Run]) -> list[torch.Tensor]:
        given, q, live = self.inputs(runs)
        tensors = self.tensors()
        states = {name: tensor for name, tensor in tensors.items() if name.startswith("kv.")}
        found = interpret(
            self.graph(), live=live, inputs={"runs": given, "q": q, "table": tensors["table"]}, states=states
        )
        return list(found.outputs["out"].split([count for _, _, count in runs]))


LONG: Run = (2, 1400, 1)
STEPS: tuple[list[Run], ...] = (
    [LONG],
    [LONG, (1, 900, 2), (3, 0, 1)],
    [(1, 1590, 1), (0, 700, 4), LONG, (3, 513, 1)],
)


WIDE: list[Run] = [(0, 1590, 1), (1, 1400, 1), (2, 1300, 1), (3, 1580, 1)]


def right(step: Step, steps: Sequence[list[Run]] = (*STEPS, [(1, 0, 7)])) -> str:
    """Every step agrees with the reference; one after the other, so that locks must be free again, and twice each."""
    entries = step.prepared()
    for runs in steps:
        found = step.run(entries, runs)
        for run, mine, wanted in zip(runs, found, step.expected(runs), strict=True):
            if not torch.allclose(mine, wanted, rtol=2e-5, atol=2e-5):
                return f"FAIL run {run} of {runs} is off by {float((mine - wanted).abs().max()):.3g}"
        if not all(map(torch.equal, found, step.run(entries, runs))):
            return f"FAIL {runs} again gives other results"
    return "PASS"


def alone(step: Step) -> str:
    """The long row's result has the same bits in every step."""
    entries = step.prepared()
    found = [step.run(entries, runs)[runs.index(LONG)] for runs in STEPS]
    return "PASS" if all(torch.equal(found[0], other) for other in found[1:]) else "FAIL the row has other bits"


def cut_or_not() -> str:
    """Cut rows equal uncut ones, nearly: were all bits the same, nothing would have been cut."""
    steps = Step(5), Step(1)
    cut, whole = (step.run(step.prepared(), STEPS[-1]) for step in steps)
    if not all(torch.allclose(a, b, rtol=2e-5, atol=2e-6) for a, b in zip(cut, whole, strict=True)):
        return "FAIL cut rows differ from whole ones"
    return "FAIL no row was cut" if all(map(torch.equal, cut, whole)) else "PASS"


def plan_of(splits: int, window: int | None, runs: list[Run], capacity: int = 16) -> list[list[int]]:
    """The items that a plan kernel writes."""
    builder = GraphBuilder("g")
    given = builder.input("runs", (6, 4), DType.I32, "runs")
    builder.output("plan", builder.apply(AttentionPlan(capacity, 4, window, splits=splits), given))
    device = TritonDevice("cpu", "interpreter", DType.F32)
    entries = prepare(device, compile_graphs(device, {KEY: builder.finish()}), {})
    block = torch.zeros(6, 4, dtype=torch.int32)
    block[: len(runs), :3] = torch.tensor(runs)
    entries[KEY].stage("runs", block.numpy())
    entries[KEY].run(Live(tokens=sum(count for *_, count in runs), runs=len(runs)))
    plan = torch.from_numpy(entries[KEY].read("plan"))
    return plan[1 : 1 + int(plan[0, 0])].tolist()


def covered(splits: int, window: int | None) -> str:
    """Every query's keys are in items, once; a run's items depend on the run alone."""
    runs: list[Run] = [(3, 5000, 1), (0, 0, 1), (1, 0, 6), (2, 2047, 3), (4, 511, 1), (5, 128, 4)]
    items, flat = plan_of(splits, window, runs), 0
    for row, first, count in runs:
        seen: dict[int, list[int]] = {}
        mine = [item for item in items if item[PlanLayout.ROW] == row]
        for item in mine:
            _, query, queries, position, begin, end, _, parts = item
            if not 1 <= parts <= splits or position != first + query - flat:
                return f"FAIL item {item} of run {(row, first, count)}"
            for at in range(query, query + queries):
                seen.setdefault(at, []).extend(range(begin, end))
        for at in range(flat, flat + count):
            position = first + at - flat
            needed = range(max(0, position + 1 - window) if window else 0, position + 1)
            if len(set(seen.get(at, []))) != len(seen.get(at, [])) or not set(needed) <= set(seen[at]):
                return f"FAIL keys of query {at} of run {(row, first, count)}: {mine}"
        apart = plan_of(splits, window, [(row, first, count)])
        for item in apart:
            item[PlanLayout.QUERY] += flat
        if apart != mine:
            return f"FAIL run {(row, first, count)} alone is {apart}, not {mine}"
        flat += count
    return "PASS"


CHECKS: dict[str, Callable[[], str]] = {
    **{
        f"{parts} parts at most, window {window}": lambda parts=parts, window=window: right(Step(parts, window))
        for parts, window in ((5, None), (3, 1100))
    },
    # By copied pages, and with a matrix of many queries: the same rows, with room for more tokens.
    **{
        f"{parts} parts at most, window {window}, {tokens} tokens":
        lambda parts=parts, window=window, tokens=tokens, tile=tile: right(Step(parts, window, tokens, tile))
        for parts, window, tokens, tile in ((5, None, 40, 4), (3, 1100, 40, 4), (5, None, 280, 16), (3, 1100, 280, 16))
    },
    **{
        f"neighbours of a row, {tokens} tokens": lambda tokens=tokens, tile=tile: alone(Step(5, None, tokens, tile))
        for tokens, tile in ((40, 4), (280, 16))
    },
    # More parts of wide heads than are added up together.
    "7 parts of wide heads": lambda: right(Step(16, tokens=4, heads=2, kv_heads=1, head=256), [WIDE]),
    **{
        f"neighbours of a row of {parts} parts at most, window {window}":
        lambda parts=parts, window=window: alone(Step(parts, window))
        for parts, window in ((5, None), (3, 1100))
    },
    "cut or not": cut_or_not,
    **{
        f"plan of {parts} parts at most, window {window}": lambda parts=parts, window=window: covered(parts, window)
        for parts in (1, 3, 32) for window in (None, 300, 1024)
    },
}  # fmt: skip

if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name, run in CHECKS.items():
        if wanted in name:
            print(f"{run()} | {name}", flush=True)
