"""What a pass is, and rebuilding a graph with some nodes replaced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_

from poot_executor.ir.graph import Graph, Node, Op, Value
from poot_executor.ir.types import Role, TensorType


@dataclass(frozen=True, slots=True)
class Pass:
    """A function from graph to graph.

    `makes` are ops that not every backend has: the result is taken only if the device has kernels for all of them.
    """

    run: Callable[[Graph], Graph]
    makes: tuple[type[Op], ...] = ()


def uses_of(graph: Graph) -> dict[int, int]:
    """How often each value is an input."""
    uses: dict[int, int] = defaultdict(int)
    for node in graph.nodes:
        for value_id in node.inputs:
            uses[value_id] += 1
    return uses


class Rewriter:
    """Collects the nodes of the new graph; old value ids stay valid, new values get ids after them."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._values = list(graph.values)
        self.nodes: list[Node] = []

    def temporary(self, name: str, type_: TensorType) -> int:
        self._values.append(Value(len(self._values), name, type_, Role.TEMPORARY))
        return len(self._values) - 1

    def types(self, ids: Sequence[int]) -> tuple[TensorType, ...]:
        return tuple(self._values[i].type for i in ids)

    def keep(self, node: Node) -> None:
        """Take a node of the old graph as it is."""
        self.nodes.append(node)

    def add(self, op: Op, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.nodes.append(Node(op, tuple(inputs), tuple(outputs)))

    def finish(self) -> Graph:
        """The new graph, without values that nothing uses, ids dense again; the old one if all its nodes were kept."""
        graph = self._graph
        if len(self.nodes) == len(graph.nodes) and all(map(is_, self.nodes, graph.nodes)):
            return graph
        used = set(graph.inputs) | set(graph.outputs)
        used |= {i for versions in graph.states.values() for i in versions}
        used |= {i for node in self.nodes for i in (*node.inputs, *node.outputs)}
        order = sorted(used)
        new_id = {old: new for new, old in enumerate(order)}

        def ids(old: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(new_id[i] for i in old)

        return Graph(
            graph.name,
            tuple(_numbered(self._values[old], new) for new, old in enumerate(order)),
            tuple(Node(node.op, ids(node.inputs), ids(node.outputs)) for node in self.nodes),
            ids(graph.inputs),
            ids(graph.outputs),
            {name: (new_id[a], new_id[b]) for name, (a, b) in graph.states.items()},
        )


def _numbered(value: Value, new: int) -> Value:
    # Not `dataclasses.replace`, which takes several times as long: graphs have thousands of values.
    return value if value.id == new else Value(new, value.name, value.type, value.role, value.encoding, value.state)
