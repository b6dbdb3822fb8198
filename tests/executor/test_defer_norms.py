"""Norms after products, put off or in one node with them: when, when not, and that the numbers stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from poot_executor.encodings import Dense
from poot_executor.ir import DType, Graph, GraphBuilder, Value, verify
from poot_executor.ops import (
    Add,
    AddRmsNorm,
    GatedActivation,
    Linear,
    LinearAddRmsNorm,
    NormedGatedLinear,
    NormedLinear,
    ResidualLinear,
    RmsNorm,
    Scale,
)
from poot_executor.passes import defer_norms, fuse_add_norm, fuse_gated, fuse_linears, fuse_product_norm
from poot_executor.runtime import EntryKey
from poot_executor.testing import interpret

DEFERRED = (ResidualLinear, NormedLinear, NormedGatedLinear)
KEY = EntryKey("g", 4)
TOKENS, WIDTH = 4, 72  # a row's squares are of 64 columns and of 8


class Layer:
    """A graph under construction: every weight it asks for is made up."""

    def __init__(self) -> None:
        self.builder = GraphBuilder("g")
        self.y = self.input("y")
        self.residual = self.input("residual")
        self._weights = 0

    def input(self, name: str) -> Value:
        return self.builder.input(name, (TOKENS, WIDTH), DType.ACT, "tokens")

    def weight(self, *shape: int) -> Value:
        self._weights += 1
        return self.builder.weight(f"w{self._weights}", shape, Dense("F32"))

    def linear(
        self, x: Value, rows: int = WIDTH, *, weights: int = 1, bias: bool = False, logits: bool = False
    ) -> Value:
        given = [self.weight(rows, x.type.shape[1]) for _ in range(weights)]
        given += [self.weight(rows) for _ in range(weights)] if bias else []
        return self.builder.apply(Linear(weights, bias, DType.F32 if logits else DType.ACT), x, *given)

    def norm(self, x: Value, offset: float = 0.0) -> Value:
        return self.builder.apply(RmsNorm(1e-5, offset), x, self.weight(WIDTH))

    def add(self, x: Value, y: Value) -> Value:
        return self.builder.apply(Add(), x, y)

    def output(self, name: str, value: Value) -> None:
        """A scaled copy: the value itself stays a temporary."""
        self.builder.output(name, self.builder.apply(Scale(2.0), value))

    def finish(self) -> Graph:
        graph = self.builder.finish()
        verify(graph)
        return fuse_add_norm(fuse_gated(fuse_linears(graph)))


def ops(graph: Graph) -> Counter[str]:
    return Counter(type(node.op).__name__ for node in graph.nodes)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_norm_between_products_is_put_off(offset: float, swapped: bool, same: Any) -> None:
    layer = Layer()
    product = layer.linear(layer.y)
    total = layer.add(*((layer.residual, product) if swapped else (product, layer.residual)))
    normed = layer.norm(total, offset)
    gate_up = layer.linear(normed, 40, weights=2)
    down = layer.linear(layer.builder.apply(GatedActivation("silu"), gate_up))
    layer.output("sum", layer.add(down, total))
    graph = layer.finish()
    deferred = defer_norms(graph)
    assert [type(node.op) for node in deferred.nodes] == [ResidualLinear, NormedGatedLinear, Linear, Add, Scale]
    assert deferred.nodes[0].op == ResidualLinear(offset)
    assert deferred.nodes[1].op == NormedGatedLinear("silu", 1e-5)
    same(graph, deferred, tokens=TOKENS - 1, tolerance=1e-4)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_product_and_the_norm_after_it_are_one_node(swapped: bool, same: Any) -> None:
    layer = Layer()
    product = layer.linear(layer.y)
    total = layer.add(*((layer.residual, product) if swapped else (product, layer.residual)))
    layer.output("z", layer.linear(layer.norm(total, 1.0), 40))
    layer.output("sum", total)
    graph = layer.finish()
    fused = fuse_product_norm(graph)
    assert [type(node.op) for node in fused.nodes] == [LinearAddRmsNorm, Linear, Scale, Scale]
    assert fused.nodes[0].op == LinearAddRmsNorm(1e-5, 1.0)
    same(graph, fused, tokens=TOKENS - 1, tolerance=1e-4)


def test_every_product_of_the_norm_scales_for_itself(same: Any) -> None:
    layer = Layer()
    total = layer.add(layer.linear(layer.y), layer.residual)
    normed = layer.norm(total)
    layer.output("three", layer.linear(normed, 24, weights=3, bias=True))
    # Of the same input, but not joined with the others: they have no bias, or end a graph.
    layer.output("one", layer.linear(normed, 8))
    graph = layer.finish()
    deferred = defer_norms(graph)
    made = [node.op for node in deferred.nodes if isinstance(node.op, DEFERRED)]
    assert made == [ResidualLinear(), NormedLinear(1e-5, 3, True), NormedLinear(1e-5)]
    same(graph, deferred, tokens=TOKENS - 1, tolerance=1e-4)


def test_norms_that_follow_each_other_through_products_alone_are_all_scaled(same: Any) -> None:
    """The product between two norms reads one that is put off, so it cannot be the second one's."""
    layer = Layer()
    total = layer.add(layer.linear(layer.y), layer.residual)
    again = layer.add(layer.linear(layer.norm(total)), total)
    layer.output("z", layer.linear(layer.norm(again), 16))
    graph = layer.finish()
    deferred = defer_norms(graph)
    made = [type(node.op) for node in deferred.nodes]
    assert made == [ResidualLinear, NormedLinear, AddRmsNorm, Linear, Scale]
    same(graph, deferred, tokens=TOKENS - 1, tolerance=1e-4)


def other_reader(layer: Layer) -> None:
    normed = layer.norm(layer.add(layer.linear(layer.y), layer.residual))
    layer.output("normed", normed)
    layer.output("z", layer.linear(normed))


def norm_is_an_output(layer: Layer) -> None:
    normed = layer.norm(layer.add(layer.linear(layer.y), layer.residual))
    layer.output("z", layer.linear(normed))
    layer.builder.output("normed", normed)


def no_reader(layer: Layer) -> None:
    total = layer.add(layer.linear(layer.y), layer.residual)
    layer.norm(total)
    layer.output("total", total)


def bias(layer: Layer) -> None:
    total = layer.add(layer.linear(layer.y, bias=True), layer.residual)
    layer.output("z", layer.linear(layer.norm(total)))


def product_read_again(layer: Layer) -> None:
    product = layer.linear(layer.y)
    layer.output("product", product)
    layer.output("z", layer.linear(layer.norm(layer.add(product, layer.residual))))


def product_with_itself(layer: Layer) -> None:
    product = layer.linear(layer.y)
    layer.output("z", layer.linear(layer.norm(layer.add(product, product))))


def logits(layer: Layer) -> None:
    total = layer.add(layer.linear(layer.y), layer.residual)
    layer.output("z", layer.builder.apply(Scale(0.5), layer.linear(layer.norm(total), logits=True)))


def no_product(layer: Layer) -> None:
    total = layer.add(layer.y, layer.residual)
    layer.output("z", layer.linear(layer.norm(total)))


def norm_before_the_sum(layer: Layer) -> None:
    """As Gemma has it: the product is normed, then added, then normed again."""
    total = layer.add(layer.norm(layer.linear(layer.y), 1.0), layer.residual)
    layer.output("z", layer.linear(layer.norm(total, 1.0)))


CASES = (
    other_reader,
    norm_is_an_output,
    no_reader,
    bias,
    product_read_again,
    product_with_itself,
    logits,
    no_product,
    norm_before_the_sum,
)


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_other_norms_stay(build: Callable[[Layer], None]) -> None:
    layer = Layer()
    build(layer)
    graph = layer.finish()
    assert ops(graph)["AddRmsNorm"] == 1
    assert defer_norms(graph) == graph


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_products_of_other_norms_stay_nodes_of_their_own(build: Callable[[Layer], None]) -> None:
    layer = Layer()
    build(layer)
    graph = layer.finish()
    # Who reads such a norm makes no difference here.
    mixed = build in {other_reader, logits}
    assert ops(fuse_product_norm(graph))["LinearAddRmsNorm"] == (1 if mixed else 0)


@pytest.mark.parametrize("sizes", [{}, {"fused": True}, {"width": 72, "layers": 3}])
def test_a_decoder_is_the_same(decoder: Any, sizes: dict[str, Any]) -> None:
    model = decoder(**sizes)
    graph = fuse_add_norm(fuse_gated(fuse_linears(model.step(8))))
    deferred = defer_norms(graph)
    verify(deferred)
    # Not put off: the first norm, which follows no sum. The last sum has no norm.
    assert (ops(graph)["AddRmsNorm"], ops(deferred)["AddRmsNorm"]) == (2 * model.layers - 1, 0)
    assert ops(deferred)["ResidualLinear"] == 2 * model.layers - 1
    assert (ops(deferred)["NormedGatedLinear"], ops(deferred)["GatedLinear"]) == (model.layers, 0)
    assert ops(deferred)["NormedLinear"] == model.layers - 1
    block, live = model.step_block(8, [(1, 0, [5, 6, 7, 8]), (0, 0, [9, 3])])
    states = {"rows.table.0": torch.arange(model.rows * model.blocks, dtype=torch.int32).view(model.rows, -1)}
    found, wanted = (
        interpret(
            g, live=live, inputs={"block": torch.from_numpy(block)}, weights=model.weights(), states=states
        ).states
        for g in (deferred, graph)
    )
    assert wanted["rows.hidden"][:2].abs().sum() > 0
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-5)
