"""Placing temporaries: lifetimes to offsets in one arena.

The arena is shared by all entries of a device, since only one runs at a time; its size is that of the largest plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poot_executor.errors import GraphError
from poot_executor.ir.graph import Graph
from poot_executor.ir.types import DType, Role


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a value's elements lie: the value whose storage it shares, and the view of it, in elements."""

    root: int
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Offsets in bytes of each root temporary, and of each node's workspace; `peak` is the size that suffices."""

    offsets: dict[int, int]
    workspaces: dict[int, int]
    peak: int


@dataclass(slots=True)
class _Block:
    """Bytes that are needed from node `first` to node `last`; `key` is a root value, or a node for its workspace."""

    key: int
    workspace: bool
    nbytes: int
    first: int
    last: int
    offset: int = 0


def placements(graph: Graph) -> tuple[Placement, ...]:
    """Resolve views and state versions: each value's root and its strides within the root.

    Raises GraphError for a reshape that only a copy could make. The graph is verified.
    """
    from poot_executor.ops.views import Into, Reshape, Split

    result: list[Placement] = [Placement(v.id, 0, _contiguous(v.type.shape)) for v in graph.values]
    for node in graph.nodes:
        if isinstance(node.op, Into):
            value, state = (graph.values[i] for i in node.inputs)
            result[value.id] = Placement(graph.states[str(state.state)][0], 0, result[value.id].strides)
    for node in graph.nodes:
        for index, source in node.op.writes.items():
            if index < len(node.outputs):
                result[node.outputs[index]] = result[node.inputs[source]]
        if isinstance(node.op, Split):
            base, at = result[node.inputs[0]], 0
            for width, target in zip(node.op.widths, node.outputs, strict=True):
                result[target] = Placement(base.root, base.offset + at, base.strides)
                at += width
        elif isinstance(node.op, Reshape):
            base, value = result[node.inputs[0]], graph.values[node.inputs[0]]
            if base.strides[1:] != _contiguous(value.type.shape[1:]):
                raise GraphError(f"{node.op} of {value.name} needs a copy: its rows are columns of a wider value")
            trailing = graph.values[node.outputs[0]].type.shape[1:]
            result[node.outputs[0]] = Placement(base.root, base.offset, (base.strides[0], *_contiguous(trailing)))
    return tuple(result)


def plan_arena(graph: Graph, activation: DType, workspaces: Sequence[int], alignment: int = 64) -> ArenaPlan:
    """Place every temporary of a graph, and `workspaces[i]` bytes for node i while it runs.

    Larger blocks are placed first, each at the lowest offset that no block of an overlapping lifetime covers.
    """
    where = placements(graph)
    spans: dict[int, _Block] = {}
    for index, node in enumerate(graph.nodes):
        for value_id in (*node.inputs, *node.outputs):
            root = graph.values[where[value_id].root]
            if root.role is Role.TEMPORARY:
                nbytes = _aligned(root.type.nbytes(activation), alignment)
                spans.setdefault(root.id, _Block(root.id, False, nbytes, index, index)).last = index
    blocks = list(spans.values())
    blocks += [_Block(i, True, _aligned(size, alignment), i, i) for i, size in enumerate(workspaces) if size]
    alive: list[list[_Block]] = [[] for _ in graph.nodes]  # the blocks placed so far, by node
    for block in sorted(blocks, key=lambda b: (-b.nbytes, b.first)):
        lifetime = range(block.first, block.last + 1)
        others = {id(other): other for index in lifetime for other in alive[index]}
        for other in sorted(others.values(), key=lambda b: b.offset):
            if other.offset - block.offset >= block.nbytes:
                break
            block.offset = max(block.offset, other.offset + other.nbytes)
        for index in lifetime:
            alive[index].append(block)
    return ArenaPlan(
        {block.key: block.offset for block in blocks if not block.workspace},
        {block.key: block.offset for block in blocks if block.workspace},
        max((block.offset + block.nbytes for block in blocks), default=0),
    )


def _aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
