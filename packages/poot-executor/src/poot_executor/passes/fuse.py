"""Fusing nodes: those that read the same data, and those of which one reads the other's result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from poot_executor.ir.graph import Graph, Node
from poot_executor.ir.types import DType, Role, TensorType
from poot_executor.ops.linear import GatedLinear, Linear
from poot_executor.ops.norm import AddRmsNorm, RmsNorm
from poot_executor.ops.pointwise import Add, GatedActivation
from poot_executor.ops.views import Split
from poot_executor.passes.rewrite import Rewriter, uses_of


def fuse_linears(graph: Graph) -> Graph:
    """Make one product of all plain products of one input (QKV, gate and up), and views of its columns.

    A weight that is used elsewhere too (a tied table) or an output that the host reads stays on its own.
    """
    uses = uses_of(graph)
    groups: dict[tuple[int, bool], list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if isinstance(node.op, Linear) and node.op == Linear(bias=node.op.bias) and _fusable(graph, node, uses):
            groups[node.inputs[0], node.op.bias].append(node)
    first = {id(nodes[0]): nodes for nodes in groups.values() if len(nodes) > 1}
    rest = {id(node) for nodes in first.values() for node in nodes[1:]}
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if id(node) in rest:
            continue
        if id(node) not in first:
            rewriter.keep(node)
            continue
        nodes = first[id(node)]
        outputs = [n.outputs[0] for n in nodes]
        widths = tuple(graph.values[i].type.shape[-1] for i in outputs)
        x = graph.values[node.inputs[0]].type
        joined = rewriter.temporary("linear", TensorType((*x.shape[:-1], sum(widths)), DType.ACT, x.live))
        weights = [n.inputs[1] for n in nodes]
        biases = [i for n in nodes for i in n.inputs[2:]]
        rewriter.add(Linear(len(nodes), bool(biases)), (node.inputs[0], *weights, *biases), (joined,))
        rewriter.add(Split(widths), (joined,), outputs)
    return rewriter.finish()


def _fusable(graph: Graph, node: Node, uses: Mapping[int, int]) -> bool:
    return graph.values[node.outputs[0]].role is Role.TEMPORARY and all(uses[i] == 1 for i in node.inputs[1:])


def fuse_gated(graph: Graph) -> Graph:
    """Make one node of a gate-and-up product and the activation right after it, if nothing else reads the product.

    Right after: then the fused node reads and writes where and when both did, whatever lies between other nodes.
    """
    uses = uses_of(graph)
    rewriter = Rewriter(graph)
    fused: set[int] = set()
    for node, after in zip(graph.nodes, (*graph.nodes[1:], None), strict=True):
        if after is not None and isinstance(after.op, GatedActivation) and _is_gated(graph, node, after, uses):
            rewriter.add(GatedLinear(after.op.activation), node.inputs, after.outputs)
            fused.add(id(after))
        elif id(node) not in fused:
            rewriter.keep(node)
    return rewriter.finish()


def _is_gated(graph: Graph, product: Node, activation: Node, uses: Mapping[int, int]) -> bool:
    """Whether `activation` is all that reads `product`, and that is a plain product with a gate and an up weight."""
    if product.op != Linear(2) or activation.inputs != product.outputs:
        return False
    _, gate, up = graph.types(product.inputs)
    value = graph.values[product.outputs[0]]
    return gate == up and value.role is Role.TEMPORARY and uses[value.id] == 1


def fuse_add_norm(graph: Graph) -> Graph:
    """Make one node of `s = x + y; n = RmsNorm(s)`, whoever else reads s."""
    norm_of: dict[int, Node] = {}
    for node in graph.nodes:
        if isinstance(node.op, RmsNorm):
            norm_of.setdefault(node.inputs[0], node)
    rewriter = Rewriter(graph)
    fused: set[int] = set()
    for node in graph.nodes:
        norm = norm_of.get(node.outputs[0]) if isinstance(node.op, Add) else None
        if norm is not None and isinstance(norm.op, RmsNorm) and graph.values[node.outputs[0]].role is Role.TEMPORARY:
            op = AddRmsNorm(norm.op.eps, norm.op.offset)
            rewriter.add(op, (*node.inputs, norm.inputs[1]), (norm.outputs[0], node.outputs[0]))
            fused.add(id(norm))
        elif id(node) not in fused:
            rewriter.keep(node)
    return rewriter.finish()
