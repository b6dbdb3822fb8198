"""What every op carries besides its shape rule: examples to check kernels on, and how close they must come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from poot_executor.encodings.types import Dense, WeightSource
from poot_executor.errors import GraphError
from poot_executor.ir.graph import Op
from poot_executor.ir.types import Role, TensorType

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Tolerance:
    """`|kernel - reference| <= absolute + relative * |reference|` in float32; `low` times more in lower types."""

    absolute: float = 1e-5
    relative: float = 1e-5
    low: float = 1000.0


EXACT = Tolerance(0.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Example:
    """One case of an op.

    `types` are the inputs' capacities and `roles` how each is fed; `live` gives the live counts. `make` returns full
    capacity tensors (a WeightSource for a weight). `derived` maps an input index to an op and the indices of the
    inputs it reads: that input is computed inside the graph (an attention plan is private to its backend).
    """

    name: str
    op: Op
    types: tuple[TensorType, ...]
    roles: tuple[Role, ...]
    make: Callable[[torch.Generator], tuple[torch.Tensor | WeightSource, ...]]
    live: dict[str, int] = field(default_factory=dict)
    derived: dict[int, tuple[Op, tuple[int, ...]]] = field(default_factory=dict)


def require(holds: bool, op: Op, message: str, *of: object) -> None:
    """Raise GraphError naming the op unless `holds`. `of` are what `message` has braces for, put in only then: a start
    checks some hundred thousand times."""
    if not holds:
        raise GraphError(f"{op}: {message.format(*of)}")


def floats(generator: torch.Generator, *shape: int, scale: float = 1.0) -> torch.Tensor:
    """Normal float32 noise for examples."""
    import torch

    return torch.randn(shape, generator=generator, dtype=torch.float32) * scale


def dense_weight(name: str, tensor: torch.Tensor) -> WeightSource:
    """A float32 tensor as a weight source."""
    data = tensor.contiguous().numpy().reshape(-1).view("uint8")
    return WeightSource(name, tuple(tensor.shape), Dense("F32"), data)
