"""Putting norms off."""

from __future__ import annotations

from poot_executor.ir.graph import Graph, Node, Op
from poot_executor.ir.types import DType
from poot_executor.ops.deferred import NormedGatedLinear, NormedLinear, ResidualLinear, squares_of
from poot_executor.ops.linear import GatedLinear, Linear
from poot_executor.ops.norm import AddRmsNorm
from poot_executor.passes.residual import product_before
from poot_executor.passes.rewrite import Rewriter, uses_of


def defer_norms(graph: Graph) -> Graph:
    """Where an added norm stands between products, let the one before add and weigh, and those after it scale."""
    producer = {i: node for node in graph.nodes for i in node.outputs}
    readers: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for value_id in dict.fromkeys(node.inputs):
            readers.setdefault(value_id, []).append(node)
    uses = uses_of(graph)
    rewriter = Rewriter(graph)
    gone: set[int] = set()
    unscaled: set[int] = set()
    products: dict[int, tuple[Node, int]] = {}
    for node in graph.nodes:
        found = product_before(graph, node, producer, uses)
        # A product that has to scale its input cannot be what comes before another norm.
        if found is None or found[0].inputs[0] in unscaled:
            continue
        if all(_scalable(graph, reader, node.outputs[0]) for reader in readers[node.outputs[0]]):
            products[id(node)] = found
            gone.add(id(found[0]))
            unscaled.add(node.outputs[0])
    squares: dict[int, tuple[int, float]] = {}
    for node in graph.nodes:
        if id(node) in products:
            assert isinstance(node.op, AddRmsNorm)
            product, residual = products[id(node)]
            scaled, total = node.outputs
            sums = rewriter.temporary("squares", squares_of(graph.values[total].type))
            squares[scaled] = sums, node.op.eps
            inputs = (*product.inputs, residual, node.inputs[2])
            rewriter.add(ResidualLinear(node.op.offset), inputs, (total, scaled, sums))
        elif node.inputs and node.inputs[0] in squares:
            sums, eps = squares[node.inputs[0]]
            rewriter.add(_scaled(node.op, eps), (node.inputs[0], sums, *node.inputs[1:]), node.outputs)
        elif id(node) not in gone:
            rewriter.keep(node)
    return rewriter.finish()


def _scalable(graph: Graph, reader: Node, scaled: int) -> bool:
    """Whether a node that reads the norm's result can take it unscaled."""
    plain = isinstance(reader.op, Linear) and reader.op.out is DType.ACT
    return (plain or isinstance(reader.op, GatedLinear)) and reader.inputs[0] == scaled


def _scaled(op: Op, eps: float) -> Op:
    if isinstance(op, GatedLinear):
        return NormedGatedLinear(op.activation, eps)
    assert isinstance(op, Linear)
    return NormedLinear(eps, op.weights, op.bias)
