"""Running a whole graph by its ops' references: what a prepared graph is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from poot_executor.devices.protocol import Live
from poot_executor.encodings.dequantise import dequantise
from poot_executor.encodings.types import WeightSource
from poot_executor.errors import GraphError
from poot_executor.ir.graph import Graph, Value
from poot_executor.ir.types import DType, Role


@dataclass(frozen=True, slots=True)
class Interpreted:
    """Outputs of live size by name, and every state's last version."""

    outputs: dict[str, torch.Tensor]
    states: dict[str, torch.Tensor]


def interpret(
    graph: Graph,
    *,
    live: Live,
    inputs: Mapping[str, torch.Tensor] | None = None,
    weights: Mapping[str, WeightSource] | None = None,
    states: Mapping[str, torch.Tensor] | None = None,
) -> Interpreted:
    """Run a verified graph in float32 on the host, with no regard for speed.

    Inputs are cut to their live counts; an input shorter than its capacity is padded with zeros first, and a state
    that is not given is zero. Raises GraphError for an input or weight that is missing.
    """
    given, sources, before = inputs or {}, weights or {}, states or {}
    values: dict[int, torch.Tensor] = {}
    for value in graph.values:
        if value.role is Role.INPUT:
            full = _padded(value, given.get(value.name))
            values[value.id] = full if value.type.live is None else full[: getattr(live, value.type.live)]
        elif value.role is Role.WEIGHT:
            if value.name not in sources:
                raise GraphError(f"{graph.name} wants weight {value.name}")
            values[value.id] = dequantise(sources[value.name])
    for name, (first, _) in graph.states.items():
        value = graph.values[first]
        values[first] = before[name].clone() if name in before else torch.zeros(value.type.shape, dtype=_dtype(value))
    for node in graph.nodes:
        results = node.op.reference(*(values[i] for i in node.inputs))
        values.update(zip(node.outputs, results, strict=True))
    outputs = {graph.values[i].name: values[i] for i in graph.outputs}
    return Interpreted(outputs, {name: values[last] for name, (_, last) in graph.states.items()})


def _padded(value: Value, given: torch.Tensor | None) -> torch.Tensor:
    if given is None or given.numel() > value.type.elements:
        raise GraphError(f"input {value.name} is {value.type}, not {None if given is None else tuple(given.shape)}")
    full = torch.zeros(value.type.elements, dtype=_dtype(value))
    full[: given.numel()] = given.reshape(-1)
    return full.view(value.type.shape)


def _dtype(value: Value) -> torch.dtype:
    return torch.int32 if value.type.dtype is DType.I32 else torch.float32
