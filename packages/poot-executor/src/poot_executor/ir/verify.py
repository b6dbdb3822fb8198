"""The verifier: what must hold of every graph, checked after building and after the passes."""

from __future__ import annotations

from collections.abc import Iterable

from poot_executor.errors import GraphError
from poot_executor.ir.graph import Graph
from poot_executor.ir.types import LIVE_COUNTS, Role


def verify(graph: Graph) -> None:
    """Raise GraphError unless the graph is well formed.

    Holds: ids are dense; each value is defined once and before its uses; types are what the ops infer; weights carry
    an encoding; a state's versions form a chain, and no version is read, itself or through a view, after its successor
    was written; outputs are computed by a kernel and flagged as such; inputs and outputs have names of their own.
    """
    _check_values(graph)
    _check_nodes(graph)
    _check_outputs(graph)
    _check_storage(graph)


def _check_values(graph: Graph) -> None:
    for index, value in enumerate(graph.values):
        if value.id != index:
            raise GraphError(f"value {value.name} has id {value.id} at index {index}")
        encoded = value.encoding is not None
        if encoded != (value.role is Role.WEIGHT):
            raise GraphError(f"{value.name}: encoding and role disagree")
        if value.type.live not in LIVE_COUNTS:
            raise GraphError(f"{value.name} has an unknown live count {value.type.live}")
        if min(value.type.shape, default=1) <= 0:
            raise GraphError(f"{value.name} has an empty shape {value.type}")
    for ids, kind in ((graph.inputs, "inputs"), (graph.outputs, "outputs")):
        names = [graph.values[i].name for i in ids]
        if len(set(names)) != len(names):
            raise GraphError(f"two {kind} share a name: {', '.join(sorted(names))}")


def _check_nodes(graph: Graph) -> None:
    defined = {v.id for v in graph.values if v.role in (Role.INPUT, Role.WEIGHT)}
    defined |= {first for first, _ in graph.states.values()}
    for node in graph.nodes:
        label = type(node.op).__name__
        for source in node.inputs:
            if source not in defined:
                raise GraphError(f"{label} reads {graph.values[source].name} before it is defined")
        inferred = node.op.infer(*graph.types(node.inputs))
        if inferred != graph.types(node.outputs):
            raise GraphError(f"{label} infers {_text(inferred)}, the graph says otherwise")
        for index, target in enumerate(node.outputs):
            if target in defined:
                raise GraphError(f"{graph.values[target].name} is defined twice")
            defined.add(target)
            written = node.op.writes.get(index)
            state = None if written is None else graph.values[node.inputs[written]].state
            if written is not None and state is None:
                raise GraphError(f"{label} writes {graph.values[target].name}, which is no state")
            if graph.values[target].state != state:
                raise GraphError(f"{label} does not write state {graph.values[target].state}")


def _check_outputs(graph: Graph) -> None:
    makers = {target: node for node in graph.nodes for target in node.outputs}
    for value_id in graph.outputs:
        value = graph.values[value_id]
        if value_id not in makers:
            raise GraphError(f"output {value.name} is never computed")
        if value.role is not Role.OUTPUT:
            raise GraphError(f"{value.name} is no output")
        if makers[value_id].op.views:
            raise GraphError(f"output {value.name} is a view; an output must be computed")


def _check_storage(graph: Graph) -> None:
    """Whatever lies in a state (a version, a view of one, a value computed in it) is read only while it is there."""
    seats = {value.id: (value.state, value.id) for value in graph.values if value.state is not None}
    begun = _values_computed_in_states(graph, seats)
    current = {name: first for name, (first, _) in graph.states.items()}
    building: dict[str, int] = {}  # the version under way in a state
    for index, node in enumerate(graph.nodes):
        label = type(node.op).__name__
        for state, version in begun.get(index, ()):
            if state in building:
                raise GraphError(f"two values are computed in state {state} at once")
            building[state] = version
        for position, source in enumerate(node.inputs):
            value = graph.values[source]
            if source in seats:
                state, version = seats[source]
                ends = node.op.views and node.op.writes.get(0) == position
                there = current[state] if ends else building.get(state, current[state])
                if version != there:
                    raise GraphError(f"{label} reads {value.name}, an old version of state {state}")
            elif node.op.views and value.role is Role.WEIGHT:
                raise GraphError(f"{label} views weight {value.name}")
        for target in node.outputs:
            value = graph.values[target]
            if value.state is not None:
                current[value.state] = target
                building.pop(value.state, None)
            elif node.op.views and node.inputs[0] in seats:
                seats[target] = seats[node.inputs[0]]
    open_ended = [name for name, (_, last) in graph.states.items() if current[name] != last]
    if open_ended:
        raise GraphError(f"state {open_ended[0]} does not end at its last version")


def _values_computed_in_states(graph: Graph, seats: dict[int, tuple[str, int]]) -> dict[int, list[tuple[str, int]]]:
    """Seat the values of `Into` nodes. By the node that computes one: the state, and the version it will be."""
    makers = {target: index for index, node in enumerate(graph.nodes) for target in node.outputs}
    begun: dict[int, list[tuple[str, int]]] = {}
    for node in graph.nodes:
        if node.op.views and node.op.writes:
            value, state = (graph.values[i] for i in node.inputs)
            maker = makers.get(value.id, -1)
            plain = value.role is Role.TEMPORARY and value.id not in seats and not graph.nodes[maker].op.views
            if not plain:
                raise GraphError(f"{value.name} cannot be computed in state {state.name}: it is no plain temporary")
            seats[value.id] = (str(state.state), node.outputs[0])
            begun.setdefault(maker, []).append(seats[value.id])
    return begun


def _text(types: Iterable[object]) -> str:
    return ", ".join(str(type_) for type_ in types)
