"""Leaving out what no one reads: behind the last attention only the runs' last tokens go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from poot_executor.ir.graph import Graph, Node, Op
from poot_executor.ops import (
    Add,
    AttentionPlan,
    Clamp,
    GatedActivation,
    Gelu,
    KeepLast,
    LastRows,
    LayerNorm,
    Linear,
    Mul,
    PagedAttention,
    Reshape,
    RmsNorm,
    Scale,
    SoftCap,
    Split,
    XIelu,
)
from poot_executor.passes.rewrite import Rewriter

# Ops that make each row of their results of the same row of their inputs, and of weights.
_BY_ROW = (Add, Clamp, GatedActivation, Gelu, LayerNorm, Linear, Mul, Reshape, RmsNorm, Scale, SoftCap, Split, XIelu)
_NARROWABLE = (*_BY_ROW, PagedAttention)
# Times that a step must have more tokens than runs: below, what is saved does not pay for the rows' being moved.
_LEAST = 2

# Tokens, heads to a KV head, width of a head -> queries of an attention item, items that a row's keys are cut into.
Tiling = Callable[[int, int, int], tuple[int, int]]


def narrow(graph: Graph, tiling: Tiling) -> Graph:
    """Compute what only KeepLast reads for the runs' last tokens alone, from the last attention on.

    Keys and values of all tokens are needed, and with them the layers before. Neither the last layer's attention nor
    its feed-forward part is, of a prompt's other tokens. `tiling`: of an attention of so many tokens.
    """
    keep = next((node for node in graph.nodes if isinstance(node.op, KeepLast)), None)
    if keep is None:
        return graph
    hidden, runs = graph.types(keep.inputs[:2])
    if hidden.shape[0] < _LEAST * runs.shape[0]:
        return graph
    whole = _read_whole(graph, keep)
    return graph if keep.inputs[0] in whole else _Narrowed(graph, keep, tiling).graph(whole)


def _read_whole(graph: Graph, keep: Node) -> set[int]:
    """Values of which all rows are read."""
    whole = set(graph.outputs)
    for node in reversed(graph.nodes):
        narrowable = isinstance(node.op, _NARROWABLE) and whole.isdisjoint(node.outputs)
        if node is not keep and not narrowable:
            whole.update(node.inputs)
    return whole


class _Narrowed:
    def __init__(self, graph: Graph, keep: Node, tiling: Tiling) -> None:
        self._graph, self._keep, self._tiling = graph, keep, tiling
        self._rewriter = Rewriter(graph)
        self._runs = keep.inputs[1]
        self._rows = graph.values[self._runs].type.shape[0]
        # Old value -> the same of the last tokens; plan and tiling -> the plan of those.
        self._last: dict[int, int] = {}
        self._plans: dict[tuple[int, int, int], int] = {}

    def graph(self, whole: set[int]) -> Graph:
        for node in self._graph.nodes:
            if node is self._keep:
                inputs = (self._of(node.inputs[0]), *node.inputs[1:])
                self._rewriter.add(KeepLast(taken=True), inputs, node.outputs)
            elif not whole.isdisjoint(node.outputs):
                self._rewriter.keep(node)
            elif isinstance(node.op, PagedAttention):
                self._attend(node, node.op)
            elif isinstance(node.op, _BY_ROW):
                self._add(node, node.op, tuple(self._of(i) for i in node.inputs))
            elif not isinstance(node.op, AttentionPlan):  # which is only for attention of all tokens
                self._rewriter.keep(node)
        return self._rewriter.finish()

    def _of(self, value: int) -> int:
        """A value's rows of the last tokens; what has no row for each token is as it was."""
        type_ = self._rewriter.types((value,))[0]
        if value in self._last or type_.live != "tokens":
            return self._last.get(value, value)
        op = LastRows()
        (taken,) = op.infer(type_, *self._rewriter.types((self._runs,)))
        self._last[value] = self._rewriter.temporary("last", taken)
        self._rewriter.add(op, (value, self._runs), (self._last[value],))
        return self._last[value]

    def _attend(self, node: Node, op: PagedAttention) -> None:
        q, k_pool, v_pool, plan, *others = node.inputs
        (_, heads, width), (_, kv_heads, _) = (type_.shape for type_ in self._graph.types((q, k_pool)))
        tile, splits = self._tiling(self._rows, heads // kv_heads, width)
        inputs = (self._of(q), k_pool, v_pool, self._plan(plan, tile, splits), *others)
        self._add(node, replace(op, tile=tile, splits=splits), inputs)

    def _plan(self, plan: int, tile: int, splits: int) -> int:
        made = self._plans.get((plan, tile, splits))
        if made is None:
            before = next(node for node in self._graph.nodes if plan in node.outputs)
            assert isinstance(before.op, AttentionPlan)
            op = replace(before.op, tokens=self._rows, tile=tile, splits=splits, last=True)
            made = self._rewriter.temporary("plan", *op.infer(*self._graph.types(before.inputs)))
            self._rewriter.add(op, before.inputs, (made,))
            self._plans[plan, tile, splits] = made
        return made

    def _add(self, node: Node, op: Op, inputs: tuple[int, ...]) -> None:
        types = op.infer(*self._rewriter.types(inputs))
        made = [self._rewriter.temporary(self._graph.values[old].name, type_)
                for old, type_ in zip(node.outputs, types, strict=True)]  # fmt: skip
        self._last.update(zip(node.outputs, made, strict=True))
        self._rewriter.add(op, inputs, made)
