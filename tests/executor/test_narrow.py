"""What no one reads of a step is left out, and what is read stays the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from poot_executor.devices import Live, open_device
from poot_executor.encodings import Dense
from poot_executor.ir import DType, Graph, GraphBuilder, Value, verify
from poot_executor.ops import (
    Add,
    AttentionPlan,
    Embed,
    GatedActivation,
    KeepLast,
    LastRows,
    Linear,
    PagedAttention,
    RmsNorm,
    RowLayout,
    Scale,
)
from poot_executor.ops.base import dense_weight
from poot_executor.passes import PASSES, narrow
from poot_executor.runtime import EntryKey, compile_graphs
from poot_executor.testing import interpret

# Runs of (row, first position, tokens): fewer than there are rows, in another order than theirs.
RUNS = {
    "one prompt": [(1, 0, [5, 6, 7, 8, 2, 4])],
    "rows and a prompt": [(2, 0, [9]), (0, 0, [1, 2, 3, 4, 5])],
    "all rows": [(2, 0, [5, 6]), (0, 0, [7]), (1, 0, [3, 1, 2])],
}


def tiling(tokens: int, share: int, width: int) -> tuple[int, int]:
    return 4, 1


def narrowed(graph: Graph) -> Graph:
    made = narrow(graph, tiling)
    verify(made)
    return made


def ops(graph: Graph) -> Counter[type]:
    return Counter(type(node.op) for node in graph.nodes)


@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("window", [None, 3])
def test_what_a_step_leaves_is_the_same(decoder: Any, runs: list[Any], layers: int, window: int | None) -> None:
    model = decoder(layers=layers, window=window)
    graph = model.step(8)
    made = narrowed(graph)
    block, live = model.step_block(8, runs)
    states = {"rows.table.0": torch.arange(model.rows * model.blocks, dtype=torch.int32).view(model.rows, -1)}
    for then in (made, all_passes(made)):
        wanted, found = (
            interpret(g, live=live, inputs={"block": torch.from_numpy(block)}, weights=model.weights(), states=states)
            for g in (graph, then)
        )
        for name, value in wanted.states.items():
            torch.testing.assert_close(found.states[name], value)
        kept = wanted.states["rows.hidden"].abs().sum(1)
        assert [bool(kept[row] > 0) for row in range(3)] == [row in {run[0] for run in runs} for row in range(3)]


def all_passes(graph: Graph) -> Graph:
    for step in PASSES:
        graph = step.run(graph)
        verify(graph)
    return graph


def test_the_last_layer_runs_for_the_last_tokens_alone(decoder: Any) -> None:
    model = decoder()
    made = narrowed(model.step(8))
    of_runs = Counter(type(node.op) for node in made.nodes if made.values[node.outputs[0]].type.live == "runs")
    # Of two layers one: its attention's output, gate and up, and down; queries, keys and values are of all tokens.
    assert of_runs[PagedAttention] == 1
    assert of_runs[Linear] == 3
    assert (of_runs[RmsNorm], of_runs[GatedActivation], of_runs[Add]) == (1, 1, 2)
    # The queries, and what the attention's output is added to.
    assert of_runs[LastRows] == 2
    assert ops(made)[AttentionPlan] == 2
    kept = next(node for node in made.nodes if isinstance(node.op, KeepLast))
    assert kept.op == KeepLast(taken=True)


def test_attention_of_the_last_tokens_is_tiled_as_the_device_says(decoder: Any) -> None:
    model, asked = decoder(), []

    def tiling(tokens: int, share: int, width: int) -> tuple[int, int]:
        asked.append((tokens, share, width))
        return 2, 3

    made = narrow(model.step(8), tiling)
    assert asked == [(model.rows, model.heads // model.kv_heads, model.head)]
    plan = next(node.op for node in made.nodes if isinstance(node.op, AttentionPlan) and node.op.last)
    attention = [node.op for node in made.nodes if isinstance(node.op, PagedAttention)][-1]
    assert isinstance(attention, PagedAttention)
    assert (plan.tokens, plan.tile, plan.splits) == (model.rows, 2, 3)
    assert (attention.tile, attention.splits) == (2, 3)


def test_a_plan_that_no_attention_is_left_for_goes(decoder: Any) -> None:
    made = narrowed(decoder(layers=1).step(8))
    assert [node.op.last for node in made.nodes if isinstance(node.op, AttentionPlan)] == [True]


def test_steps_of_few_tokens_and_other_programs_stay_as_they_are(decoder: Any) -> None:
    model = decoder()
    for graph in (model.step(5), model.head_graph(2)):
        assert narrow(graph, tiling) is graph
    assert narrow(model.step(6), tiling) is not model.step(6)


def test_a_prepared_step_is_narrow_where_it_has_twice_as_many_tokens_as_rows(decoder: Any) -> None:
    model, device = decoder(), open_device("cpu")
    keys = {EntryKey("step", tokens): model.step(tokens) for tokens in (5, 6)}
    compiled = compile_graphs(device, keys).entries
    assert [ops(compiled[key].graph)[LastRows] for key in keys] == [0, 2]


class Rows:
    """Programs of single layers without attention, and a run's last vector kept."""

    def __init__(self) -> None:
        self.builder = GraphBuilder("g")
        self.x = self.builder.input("x", (8, 16), DType.ACT, "tokens")
        self.runs = self.builder.input("runs", (3, RowLayout.RUN), DType.I32)

    def linear(self, x: Value, name: str) -> Value:
        return self.builder.apply(Linear(), x, self.builder.weight(name, (16, x.type.shape[1]), Dense("F32")))

    def keep(self, x: Value) -> Graph:
        self.builder.apply(KeepLast(), x, self.runs, self.builder.state("kept", (3, 16), DType.ACT))
        graph = self.builder.finish()
        verify(graph)
        return graph


def test_what_is_read_of_all_tokens_is_computed_of_all() -> None:
    rows = Rows()
    read = rows.linear(rows.x, "a")
    rows.builder.output("out", read)
    graph = rows.keep(rows.builder.apply(Add(), rows.linear(read, "b"), rows.x))
    made = narrowed(graph)
    lives = [made.values[node.outputs[0]].type.live for node in made.nodes if isinstance(node.op, Linear)]
    assert lives == ["tokens", "runs"]
    assert ops(made)[LastRows] == 2


def test_a_step_whose_hidden_vectors_are_all_read_stays_as_it_is() -> None:
    rows = Rows()
    hidden = rows.linear(rows.x, "a")
    rows.builder.output("out", rows.builder.apply(Scale(0.5), hidden))
    graph = rows.keep(hidden)
    assert narrow(graph, tiling) is graph


def test_what_is_not_known_to_go_row_by_row_is_computed_of_all() -> None:
    rows = Rows()
    ids = rows.builder.input("ids", (8,), DType.I32, "tokens")
    found = rows.builder.apply(Embed(), ids, rows.builder.weight("table", (9, 16), Dense("F32")))
    made = narrowed(rows.keep(rows.builder.apply(Scale(0.5), found)))
    lives = {type(node.op): made.values[node.outputs[0]].type.live for node in made.nodes}
    assert (lives[Embed], lives[LastRows], lives[Scale]) == ("tokens", "runs", "runs")
    table = torch.randn(9, 16, generator=torch.Generator().manual_seed(1))
    runs = torch.tensor([[2, 0, 1, 0], [0, 0, 3, 0], [0, 0, 0, 0]], dtype=torch.int32)
    inputs = {"ids": torch.tensor([4, 7, 8, 1], dtype=torch.int32), "runs": runs, "x": torch.zeros(8, 16)}
    weights = {"table": dense_weight("table", table)}
    after = interpret(made, live=Live(tokens=4, runs=2), inputs=inputs, weights=weights)
    wanted = torch.zeros(3, 16)
    wanted[2], wanted[0] = table[4] / 2, table[1] / 2
    torch.testing.assert_close(after.states["kept"], wanted)
