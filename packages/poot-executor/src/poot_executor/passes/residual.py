"""Products whose results only an added norm reads."""

from __future__ import annotations

from poot_executor.ir.graph import Graph, Node
from poot_executor.ir.types import Role
from poot_executor.ops.linear import Linear
from poot_executor.ops.norm import AddRmsNorm
from poot_executor.ops.residual import LinearAddRmsNorm
from poot_executor.passes.rewrite import Rewriter, uses_of


def product_before(
    graph: Graph, node: Node, producer: dict[int, Node], uses: dict[int, int]
) -> tuple[Node, int] | None:
    """The plain product whose result only this node, an added norm, reads; and the residual that it is added to."""
    if not isinstance(node.op, AddRmsNorm) or graph.values[node.outputs[0]].role is not Role.TEMPORARY:
        return None
    if uses[node.outputs[0]] == 0:
        return None
    for product, residual in (node.inputs[:2], node.inputs[1::-1]):
        before = producer.get(product)
        if before is not None and before.op == Linear() and uses[product] == 1 and product != residual:
            return before, residual
    return None


def fuse_product_norm(graph: Graph) -> Graph:
    """Make one node of a plain product and the added norm that alone reads it."""
    producer = {i: node for node in graph.nodes for i in node.outputs}
    uses = uses_of(graph)
    found = {id(node): product_before(graph, node, producer, uses) for node in graph.nodes}
    gone = {id(pair[0]) for pair in found.values() if pair is not None}
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        pair = found[id(node)]
        if pair is not None:
            assert isinstance(node.op, AddRmsNorm)
            op = LinearAddRmsNorm(node.op.eps, node.op.offset)
            rewriter.add(op, (*pair[0].inputs, pair[1], node.inputs[2]), node.outputs)
        elif id(node) not in gone:
            rewriter.keep(node)
    return rewriter.finish()
