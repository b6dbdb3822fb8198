"""Graphs as data: a tuple of nodes over typed values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from poot_executor.ir.types import Role, TensorType

if TYPE_CHECKING:
    import torch

    from poot_executor.encodings.types import Encoding
    from poot_executor.ops.base import Example, Tolerance


class Op:
    """A pure operation, told apart by its type and its fields (every op is a frozen dataclass).

    `writes` maps an output index to the input index whose storage it takes over: the output is the next version of
    that state. `views` does the same for outputs that are mere views of an input: no kernel runs for an op of which
    every output is a view.
    """

    writes: ClassVar[dict[int, int]] = {}
    views: ClassVar[bool] = False
    tolerance: ClassVar[Tolerance]

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        """Types of the outputs. Raises GraphError when the inputs do not fit."""
        raise TypeError(f"{type(self).__name__} has no shape rule")

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The definition, in plain torch, over live-sized float32 tensors (weights dequantised)."""
        raise TypeError(f"{type(self).__name__} has no reference")

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Cases that every backend's kernel is checked on."""
        return ()


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a graph. `encoding` is set for weights; `state` names the state a version belongs to."""

    id: int
    name: str
    type: TensorType
    role: Role
    encoding: Encoding | None = None
    state: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    op: Op
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """A program at one capacity. `values` is indexed by value id; `states` has each state's first and last version."""

    name: str
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: dict[str, tuple[int, int]] = field(default_factory=dict)

    def of_role(self, role: Role) -> Iterator[Value]:
        return (value for value in self.values if value.role is role)

    def types(self, ids: tuple[int, ...]) -> tuple[TensorType, ...]:
        return tuple(self.values[i].type for i in ids)

    @property
    def dispatches(self) -> int:
        """Nodes that launch a kernel."""
        return sum(not node.op.views for node in self.nodes)
