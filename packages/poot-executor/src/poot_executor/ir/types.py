"""Types of values: shape, element type, role."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import prod


class DType(enum.Enum):
    """Element types. `ACT` is the activation type, which the backend chooses when it prepares the graph."""

    ACT = "act"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I32 = "i32"
    U8 = "u8"

    @property
    def size(self) -> int:
        """Bytes of one element. `ACT` has none until a backend resolves it."""
        if self is DType.ACT:
            raise ValueError("the activation type has no size before a backend resolves it")
        return _SIZES[self]


_SIZES = {DType.F32: 4, DType.F16: 2, DType.BF16: 2, DType.I32: 4, DType.U8: 1}


# What may bound a leading dimension in a step: flat tokens, runs, rows that sample; None is the whole capacity.
LIVE_COUNTS = ("tokens", "runs", "rows", None)


class Role(enum.Enum):
    """Where a value lives: inputs are staged by the host, weights and state outlive the step, outputs are read back."""

    INPUT = "input"
    WEIGHT = "weight"
    STATE = "state"
    TEMPORARY = "temporary"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value.

    Every dimension is a static capacity. `live` names the count (one of LIVE_COUNTS) that bounds the leading dimension
    in a given step.
    """

    shape: tuple[int, ...]
    dtype: DType
    live: str | None = None

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def resolve(self, activation: DType) -> TensorType:
        """The same type with the backend's activation dtype put in."""
        return TensorType(self.shape, activation, self.live) if self.dtype is DType.ACT else self

    def nbytes(self, activation: DType) -> int:
        return self.elements * self.resolve(activation).dtype.size

    def with_shape(self, *shape: int) -> TensorType:
        return TensorType(shape, self.dtype, self.live)

    def __str__(self) -> str:
        dims = "x".join(str(size) for size in self.shape)
        return f"{self.dtype.value}[{dims}]" + (f"@{self.live}" if self.live else "")
