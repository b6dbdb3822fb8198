"""Printing a graph for people."""

from __future__ import annotations

from poot_executor.ir.graph import Graph, Value
from poot_executor.ir.types import Role


def show(graph: Graph) -> str:
    """One line a node, `outputs = Op(fields)(inputs)`, after a header with the graph's inputs and states."""
    lines = [f"graph {graph.name}: {len(graph.nodes)} nodes, {graph.dispatches} dispatches"]
    lines += [f"  {v.role.value} {_ref(v)}: {v.type}" for v in graph.values if v.role is Role.INPUT]
    lines += [f"  state {name}: {graph.values[first].type}" for name, (first, _) in sorted(graph.states.items())]
    for node in graph.nodes:
        outputs = ", ".join(f"{_ref(graph.values[i])}: {graph.values[i].type}" for i in node.outputs)
        inputs = ", ".join(_ref(graph.values[i]) for i in node.inputs)
        lines.append(f"  {outputs} = {node.op}({inputs})")
    return "\n".join(lines)


def _ref(value: Value) -> str:
    if value.role is Role.WEIGHT:
        return f"{value.name}<{value.encoding}>"
    return f"%{value.id}.{value.name}" if value.role is not Role.INPUT else f"%{value.id}.{value.name}!"
