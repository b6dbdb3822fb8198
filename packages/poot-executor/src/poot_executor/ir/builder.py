"""Building a graph: each call appends a node and returns its values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from poot_executor.errors import GraphError
from poot_executor.ir.graph import Graph, Node, Op, Value
from poot_executor.ir.types import DType, Role, TensorType

if TYPE_CHECKING:
    from poot_executor.encodings.types import Encoding


class GraphBuilder:
    """Collects values and nodes. States are versioned: `apply` of a writing op moves the state's current version on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._values: list[Value] = []
        self._nodes: list[Node] = []
        self._states: dict[str, tuple[int, int]] = {}
        self._weights: dict[str, Value] = {}
        self._outputs: list[int] = []

    def input(self, name: str, shape: tuple[int, ...], dtype: DType, live: str | None = None) -> Value:
        return self._add(name, TensorType(shape, dtype, live), Role.INPUT)

    def weight(self, name: str, shape: tuple[int, ...], encoding: Encoding) -> Value:
        """A weight, declared once by name; its element type in the graph is f32, whatever its encoding."""
        known = self._weights.get(name)
        if known is not None:
            if known.type.shape != shape or known.encoding != encoding:
                raise GraphError(f"weight {name} is used with two shapes or encodings")
            return known
        value = self._add(name, TensorType(shape, DType.F32), Role.WEIGHT, encoding=encoding)
        self._weights[name] = value
        return value

    def state(self, name: str, shape: tuple[int, ...], dtype: DType) -> Value:
        """The current version of a state, declared by its first use."""
        if name in self._states:
            value = self._values[self._states[name][1]]
            if value.type.shape != shape or value.type.dtype is not dtype:
                raise GraphError(f"state {name} is used with two types")
            return value
        value = self._add(name, TensorType(shape, dtype), Role.STATE, state=name)
        self._states[name] = (value.id, value.id)
        return value

    def apply(self, op: Op, *inputs: Value) -> Value:
        """Apply an op of one output."""
        outputs = self.apply_many(op, *inputs)
        if len(outputs) != 1:
            raise GraphError(f"{op} has {len(outputs)} outputs; use apply_many")
        return outputs[0]

    def apply_many(self, op: Op, *inputs: Value) -> tuple[Value, ...]:
        """Apply an op. Raises GraphError when the types do not fit or a state's old version is used."""
        label = type(op).__name__
        for value in inputs:
            self._own(value)
            if value.state is not None and self._states[value.state][1] != value.id:
                raise GraphError(f"{label} uses an old version of state {value.state}")
        try:
            types = op.infer(*(value.type for value in inputs))
        except (ValueError, IndexError) as error:
            given = ", ".join(str(value.type) for value in inputs)
            raise GraphError(f"{label} does not take {len(inputs)} inputs of types {given}") from error
        outputs = []
        for index, type_ in enumerate(types):
            source = op.writes.get(index)
            state = inputs[source].state if source is not None else None
            if source is not None and state is None:
                raise GraphError(f"{label} writes {inputs[source].name}, which is no state")
            name = state or f"{label.lower()}_{len(self._nodes)}"
            role = Role.STATE if state else Role.TEMPORARY
            value = self._add(name, type_, role, state=state)
            if state:
                self._states[state] = (self._states[state][0], value.id)
            outputs.append(value)
        self._nodes.append(Node(op, tuple(v.id for v in inputs), tuple(v.id for v in outputs)))
        return tuple(outputs)

    def output(self, name: str, value: Value) -> None:
        """Mark a temporary as read back by the host under `name`."""
        value = self._own(value)
        if value.role is not Role.TEMPORARY:
            raise GraphError(f"{value.name} ({value.role.value}) is no temporary: it cannot be an output")
        self._values[value.id] = replace(value, name=name, role=Role.OUTPUT)
        self._outputs.append(value.id)

    def finish(self) -> Graph:
        values = tuple(self._values)
        inputs = tuple(value.id for value in values if value.role is Role.INPUT)
        return Graph(self._name, values, tuple(self._nodes), inputs, tuple(self._outputs), dict(self._states))

    def _own(self, value: Value) -> Value:
        """The value as it stands now. Raises GraphError for a value of another builder."""
        known = self._values[value.id] if value.id < len(self._values) else None
        if known is None or (known.type, known.state) != (value.type, value.state):
            raise GraphError(f"{value.name} is a value of another graph")
        return known

    def _add(
        self, name: str, type_: TensorType, role: Role, *, encoding: Encoding | None = None, state: str | None = None
    ) -> Value:
        value = Value(len(self._values), name, type_, role, encoding, state)
        self._values.append(value)
        return value
