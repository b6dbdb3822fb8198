"""One example of one op, built as a graph of its own, prepared on a device, compared with the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch

from poot_executor.devices.protocol import Device, Live
from poot_executor.encodings.dequantise import dequantise
from poot_executor.encodings.types import WeightSource
from poot_executor.errors import KernelUnavailableError
from poot_executor.ir import DType, GraphBuilder, Role, TensorType, Value, verify
from poot_executor.ops import Example, all_ops
from poot_executor.runtime import EntryKey, compile_graphs, prepare

if TYPE_CHECKING:
    from poot_executor.ir.graph import Graph, Op

_SEED = 20260917


@dataclass(frozen=True, slots=True)
class Case:
    op: type[Op]
    example: Example

    @property
    def id(self) -> str:
        return f"{self.op.__name__}: {self.example.name}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`error` is the largest excess over the tolerance (0 or less passes); `refusal` is set where no kernel accepts."""

    error: float
    refusal: str | None = None

    @property
    def passed(self) -> bool:
        return self.refusal is None and self.error <= 0


def cases() -> tuple[Case, ...]:
    """Every example of every op. An op without examples of its own is checked inside another's (its plan's reader)."""
    return tuple(Case(op, example) for op in all_ops() for example in op.examples())


def run_case(case: Case, device: Device) -> Outcome:
    """Run a case. A KernelUnavailableError becomes a refusal; other errors are faults and are raised."""
    example = case.example
    made = tuple(
        _rounded(device, type_, source)
        for type_, source in zip(example.types, example.make(torch.Generator().manual_seed(_SEED)), strict=True)
    )
    weights = {source.name: source for source in made if isinstance(source, WeightSource)}
    graph, outputs = _graph(example, made)
    key = EntryKey("conformance", 1)
    try:
        compiled = compile_graphs(device, {key: graph})
    except KernelUnavailableError as error:
        return Outcome(0.0, str(error))
    entries = prepare(device, compiled, weights)
    for index, tensor in enumerate(made):
        if isinstance(tensor, WeightSource) or index in example.derived:
            continue
        data = _as(device, example.types[index], tensor)
        if example.roles[index] is Role.STATE:
            entries.write_state(f"state_{index}", data)
        else:
            entries[key].stage(f"input_{index}", data)
    entries[key].run(Live(**{name: example.live.get(name, 0) for name in Live._fields}))
    found = [entries.read_state(name) if name.startswith("state_") else entries[key].read(name) for name in outputs]
    return Outcome(_excess(example, made, found, device))


def _rounded(device: Device, type_: TensorType, source: torch.Tensor | WeightSource) -> torch.Tensor | WeightSource:
    """Activations as the device can hold them: what an op only moves must then come out unchanged."""
    if isinstance(source, WeightSource) or type_.dtype is not DType.ACT:
        return source
    return source.to({DType.BF16: torch.bfloat16, DType.F16: torch.float16}.get(device.activation)).float()


def _as(device: Device, type_: TensorType, tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Host array in the device's element type; bfloat16 as its bits."""
    match type_.resolve(device.activation).dtype:
        case DType.BF16:
            tensor = tensor.to(torch.bfloat16).view(torch.uint16)
        case DType.F16:
            tensor = tensor.to(torch.float16)
    array: npt.NDArray[Any] = tensor.contiguous().numpy()
    return array


def _graph(example: Example, made: tuple[torch.Tensor | WeightSource, ...]) -> tuple[Graph, list[str]]:
    builder = GraphBuilder(example.name)
    values: dict[int, Value] = {}
    for index, (type_, role) in enumerate(zip(example.types, example.roles, strict=True)):
        source = made[index]
        if isinstance(source, WeightSource):
            values[index] = builder.weight(source.name, type_.shape, source.encoding)
        elif index in example.derived:
            continue
        elif role is Role.STATE:
            values[index] = builder.state(f"state_{index}", type_.shape, type_.dtype)
        else:
            values[index] = builder.input(f"input_{index}", type_.shape, type_.dtype, type_.live)
    for index, (op, sources) in example.derived.items():
        values[index] = builder.apply(op, *(values[i] for i in sources))
    count = len(example.op.infer(*example.types[: _arity(example)]))
    results = builder.apply_many(example.op, *(values[i] for i in range(_arity(example))))
    names = []
    for index in range(count):
        if index in example.op.writes:
            names.append(f"state_{example.op.writes[index]}")
        else:
            builder.output(f"output_{index}", results[index])
            names.append(f"output_{index}")
    graph = builder.finish()
    verify(graph)
    return graph, names


def _arity(example: Example) -> int:
    """Inputs of the op itself; those after them only feed derived inputs."""
    extra = {i for _, sources in example.derived.values() for i in sources}
    return len(example.types) - len(extra)


def _excess(
    example: Example, made: tuple[torch.Tensor | WeightSource, ...], found: list[npt.NDArray[Any]], device: Device
) -> float:
    """The largest excess of any element over the tolerance; infinite if there was nothing to compare."""
    cut = []
    for source, type_ in zip(made[: _arity(example)], example.types, strict=False):
        if isinstance(source, WeightSource):
            cut.append(dequantise(source))
        else:
            cut.append(source[: example.live[type_.live]] if type_.live else source)
    tolerance = example.op.tolerance
    factor = 1.0 if device.activation is DType.F32 else tolerance.low
    excesses = []
    for array, expected in zip(found, example.op.reference(*cut), strict=True):
        tensor = torch.from_numpy(array)
        tensor = tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
        given, wanted = tensor[: len(expected)].double(), expected.double()
        same = (given == wanted) | (given.isnan() & wanted.isnan())
        bound = factor * (tolerance.absolute + tolerance.relative * wanted.abs())
        excess = torch.where(same, 0.0, (given - wanted).abs() - bound)
        excesses.append(torch.where(excess.isnan(), float("inf"), excess).flatten())
    everything = torch.cat(excesses)
    return float(everything.max()) if everything.numel() else float("inf")
