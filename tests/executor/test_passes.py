"""Passes: what they change, what they leave, and that the numbers stay the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from poot_executor.encodings import Dense
from poot_executor.ir import DType, Graph, GraphBuilder, Value, verify
from poot_executor.ops import (
    Add,
    AddRmsNorm,
    Clamp,
    GatedActivation,
    GatedLinear,
    Gelu,
    LayerNorm,
    Linear,
    ResidualLinear,
    RmsNorm,
    Scale,
    Split,
)
from poot_executor.ops.pointwise import Activation
from poot_executor.passes import PASSES, fuse_add_norm, fuse_gated, fuse_linears
from poot_executor.testing import interpret

F32 = Dense("F32")


def ops(graph: Graph) -> Counter[str]:
    return Counter(type(node.op).__name__ for node in graph.nodes)


def products(*names: str, shared: str | None = None, kept: str | None = None, bias: bool = False) -> Graph:
    """Products of one input, scaled; `shared` is used twice, `kept` is an output."""
    builder = GraphBuilder("g")
    x = builder.input("x", (3, 8), DType.ACT, "tokens")
    for index, name in enumerate(names):
        weight = builder.weight(name, (4 + index, 8), F32)
        biases = [builder.weight(f"{name}.bias", (4 + index,), F32)] if bias else []
        y = builder.apply(Linear(bias=bias), x, weight, *biases)
        if name == kept:
            builder.output(name, y)
        else:
            builder.output(f"{name}.scaled", builder.apply(Scale(2.0), y))
        if name == shared:
            builder.output("again", builder.apply(Linear(), builder.apply(Scale(0.5), x), weight))
    graph = builder.finish()
    verify(graph)
    return graph


@pytest.mark.parametrize("bias", [False, True])
def test_products_of_one_input_become_one(bias: bool, same: Any) -> None:
    graph = products("q", "k", "v", bias=bias)
    fused = fuse_linears(graph)
    assert ops(fused) == {"Linear": 1, "Split": 1, "Scale": 3}
    assert fused.nodes[0].op == Linear(3, bias)
    assert fused.nodes[1].op == Split((4, 5, 6))
    assert fused.dispatches == graph.dispatches - 2
    same(graph, fused, tokens=2)


def test_a_shared_weight_and_an_output_stay_alone(same: Any) -> None:
    graph = products("q", "tied", "v", "seen", shared="tied", kept="seen")
    fused = fuse_linears(graph)
    assert [node.op for node in fused.nodes if isinstance(node.op, Linear)] == [Linear(2), Linear(), Linear(), Linear()]
    same(graph, fused, tokens=2)


def test_products_of_other_kinds_are_not_mixed() -> None:
    builder = GraphBuilder("g")
    x, y = builder.input("x", (3, 8), DType.ACT), builder.input("y", (3, 8), DType.ACT)
    weights = [builder.weight(f"w{i}", (4, 8), F32) for i in range(4)]
    bias = builder.weight("b", (4,), F32)
    for op, *inputs in (
        (Linear(), x, weights[0]),
        (Linear(), y, weights[1]),
        (Linear(bias=True), x, weights[2], bias),
        (Linear(out=DType.F32), x, weights[3]),
    ):
        builder.apply(Scale(2.0), builder.apply(op, *inputs))
    graph = builder.finish()
    assert fuse_linears(graph) == graph


def gated(
    widths: tuple[int, ...] = (6, 6),
    activation: Activation = "silu",
    *,
    bias: bool = False,
    kept: bool = False,
    again: bool = False,
    between: bool = False,
) -> Graph:
    """A product and its gated activation. The product may be an output, be read again, or be followed by a node."""
    builder = GraphBuilder("g")
    x = builder.input("x", (3, 8), DType.ACT, "tokens")
    weights = [builder.weight(f"w{i}", (width, 8), F32) for i, width in enumerate(widths)]
    biases = [builder.weight(f"b{i}", (width,), F32) for i, width in enumerate(widths)] if bias else []
    product = builder.apply(Linear(len(widths), bias), x, *weights, *biases)
    if between:
        builder.output("other", builder.apply(Scale(2.0), x))
    builder.output("y", builder.apply(Scale(1.5), builder.apply(GatedActivation(activation), product)))
    if again:
        builder.output("again", builder.apply(Scale(2.0), product))
    if kept:
        builder.output("product", product)
    graph = builder.finish()
    verify(graph)
    return graph


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gated_product_and_its_activation_become_one(activation: Activation, same: Any) -> None:
    graph = gated(activation=activation)
    fused = fuse_gated(graph)
    assert [node.op for node in fused.nodes] == [GatedLinear(activation), Scale(1.5)]
    assert [fused.values[i].name for i in fused.nodes[0].inputs] == ["x", "w0", "w1"]
    same(graph, fused, tokens=2)


@pytest.mark.parametrize(
    "graph",
    [
        gated(bias=True),
        gated(kept=True),
        gated(again=True),
        gated(between=True),
        gated((5, 7)),
        gated((12,)),
        gated((4, 4, 4)),
    ],
    ids=["bias", "an output", "read again", "not right after", "uneven", "one weight", "three"],
)
def test_other_gated_products_stay_alone(graph: Graph) -> None:
    assert fuse_gated(graph) == graph


def test_a_sum_and_its_norm_become_one(same: Any) -> None:
    builder = GraphBuilder("g")
    x, y = builder.input("x", (3, 8), DType.ACT, "tokens"), builder.input("y", (3, 8), DType.ACT, "tokens")
    total = builder.apply(Add(), x, y)
    scaled = builder.apply(Scale(2.0), total)
    normed = builder.apply(RmsNorm(1e-5, 1.0), total, builder.weight("w", (8,), F32))
    again = builder.apply(RmsNorm(1e-5), total, builder.weight("w2", (8,), F32))
    for index, value in enumerate((scaled, normed, again)):
        builder.output(f"y{index}", value)
    graph = builder.finish()
    fused = fuse_add_norm(graph)
    assert [node.op for node in fused.nodes] == [AddRmsNorm(1e-5, 1.0), Scale(2.0), RmsNorm(1e-5)]
    same(graph, fused, tokens=2)


def test_a_sum_that_is_an_output_stays_alone() -> None:
    builder = GraphBuilder("g")
    x = builder.input("x", (3, 8), DType.ACT)
    total = builder.apply(Add(), x, x)
    builder.output("sum", total)
    builder.output("y", builder.apply(RmsNorm(1e-5), total, builder.weight("w", (8,), F32)))
    graph = builder.finish()
    assert fuse_add_norm(graph) == graph


def test_what_is_fused_in_a_decoder(decoder: Any) -> None:
    model = decoder()
    graph, layers = model.step(8), model.layers
    fused = fuse_add_norm(fuse_gated(fuse_linears(graph)))
    assert ops(fused)["AddRmsNorm"] == 2 * layers - 1
    assert (ops(fused)["GatedLinear"], ops(fused)["GatedActivation"]) == (layers, 0)
    # Of queries, keys and values one is left; gate and up are no Linear any more.
    assert ops(fused)["Linear"] == ops(graph)["Linear"] - 3 * layers


@pytest.mark.parametrize("window", [None, 3])
def test_a_decoder_is_the_same_after_all_passes(decoder: Any, window: int | None) -> None:
    model = decoder(window=window)
    graph = fused = model.step(8)
    for step in PASSES:
        fused = step.run(fused)
        verify(fused)
    assert fused.dispatches < graph.dispatches
    block, live = model.step_block(8, [(1, 0, [5, 6, 7, 8]), (0, 0, [9, 3])])
    states = {"rows.table.0": torch.arange(model.rows * model.blocks, dtype=torch.int32).view(model.rows, -1)}
    run_both = [
        interpret(g, live=live, inputs={"block": torch.from_numpy(block)}, weights=model.weights(), states=states)
        for g in (graph, fused)
    ]
    for name, wanted in run_both[0].states.items():
        torch.testing.assert_close(run_both[1].states[name], wanted)
    assert np.isfinite(run_both[0].states["rows.hidden"].numpy()).all()
    assert run_both[0].states["rows.hidden"][:2].abs().sum() > 0


WIDTH = 72  # more than the columns whose squares are summed together


class Block:
    """Two layers of a decoder without their attention, of which only the products and the order matter here."""

    def __init__(self, norm: str, bias: bool, gate: bool, beside: bool) -> None:
        self.builder = GraphBuilder("g")
        self._norm, self._bias, self._gate, self._weights = norm, bias, gate, 0
        h = self.builder.input("x", (3, WIDTH), DType.ACT, "tokens")
        for _ in range(2):
            h = self.side_by_side(h) if beside else self.one_by_one(h)
        last = self.builder.apply(Linear(out=DType.F32), self.norm(h), self.weight(5, WIDTH))
        self.builder.output("logits", self.builder.apply(Scale(0.5), last))
        self.graph = self.builder.finish()
        verify(self.graph)

    def weight(self, *shape: int) -> Value:
        self._weights += 1
        return self.builder.weight(f"w{self._weights}", shape, F32)

    def norm(self, x: Value) -> Value:
        if self._norm == "rms":
            return self.builder.apply(RmsNorm(1e-5), x, self.weight(WIDTH))
        count = {"layer": 1, "layer+bias": 2}.get(self._norm, 0)
        weights = [self.weight(WIDTH) for _ in range(count)]
        return self.builder.apply(LayerNorm(1e-5, weight=count > 0, bias=count > 1), x, *weights)

    def linear(self, x: Value, *widths: int) -> Value:
        weights = [self.weight(width, x.type.shape[1]) for width in widths]
        biases = [self.weight(width) for width in widths] if self._bias else []
        return self.builder.apply(Linear(len(widths), self._bias), x, *weights, *biases)

    def mixed(self, x: Value) -> Value:
        """Queries, keys and values, clipped; their sum; and the product that follows attention."""
        qkv = self.builder.apply(Clamp(1.5), self.linear(x, 24, 24, 24))
        q, k, v = self.builder.apply_many(Split((24, 24, 24)), qkv)
        return self.linear(self.builder.apply(Add(), self.builder.apply(Add(), q, k), v), WIDTH)

    def fed(self, x: Value) -> Value:
        if self._gate:
            return self.linear(self.builder.apply(GatedActivation("silu"), self.linear(x, 40, 40)), WIDTH)
        return self.linear(self.builder.apply(Gelu("tanh"), self.linear(x, 40)), WIDTH)

    def one_by_one(self, h: Value) -> Value:
        h = self.builder.apply(Add(), h, self.mixed(self.norm(h)))
        return self.builder.apply(Add(), h, self.fed(self.norm(h)))

    def side_by_side(self, h: Value) -> Value:
        x = self.norm(h)
        return self.builder.apply(Add(), self.builder.apply(Add(), h, self.mixed(x)), self.fed(x))


@pytest.mark.parametrize("norm", ["rms", "layer", "layer+bias", "layer bare"])
@pytest.mark.parametrize("beside", [False, True], ids=["one by one", "side by side"])
@pytest.mark.parametrize("gate", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
def test_layers_are_the_same_after_all_passes(norm: str, beside: bool, gate: bool, bias: bool, same: Any) -> None:
    """After each of them in turn."""
    graph = fused = Block(norm, bias, gate, beside).graph
    for step in PASSES:
        fused = step.run(fused)
        same(graph, fused, tokens=2, tolerance=1e-4)
    found = Counter(type(node.op) for node in fused.nodes)
    # Sums that a norm for products follows: of four norms all but the first, or that of the second layer.
    sums = (1 if beside else 3) if norm == "rms" else 0
    assert found[ResidualLinear] == (0 if bias else sums)
    # Of those that follow a sum none stands alone any more, whatever took it.
    assert found[RmsNorm] == (norm == "rms")
    # Layer norms stay as they are: what is put off is a root mean square alone.
    assert found[LayerNorm] == (0 if norm == "rms" else 3 if beside else 5)
    assert found[Clamp] == 2
