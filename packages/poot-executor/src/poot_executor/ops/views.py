"""Ops that only look at their input in another way: no kernel runs, the planner gives them their input's storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from poot_executor.ir.graph import Op
from poot_executor.ir.types import TensorType
from poot_executor.ops.base import EXACT, require

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Split(Op):
    """Columns of the last dimension, cut into parts of these widths."""

    widths: tuple[int, ...]

    views: ClassVar[bool] = True
    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = inputs
        require(len(x.shape) > 1, self, "{} has no columns", x)
        require(sum(self.widths) == x.shape[-1], self, "widths do not add up to {}", x.shape[-1])
        return tuple(x.with_shape(*x.shape[:-1], width) for width in self.widths)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import torch

        return torch.split(inputs[0], list(self.widths), dim=-1)


@dataclass(frozen=True, slots=True)
class Reshape(Op):
    """The same elements with other trailing dimensions; the leading one stays."""

    trailing: tuple[int, ...]

    views: ClassVar[bool] = True
    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = inputs
        result = x.with_shape(x.shape[0], *self.trailing)
        require(result.elements == x.elements, self, "cannot take the elements of {}", x)
        return (result,)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (inputs[0].reshape(inputs[0].shape[0], *self.trailing),)


@dataclass(frozen=True, slots=True)
class Into(Op):
    """Let a temporary (N, ...) be computed in the leading rows of a state (R, ...): (x, state) to state'.

    The planner puts x's storage into the state, so nothing is copied. Between x's computation and this node nothing
    may read the state.
    """

    views: ClassVar[bool] = True
    writes: ClassVar = {0: 1}
    tolerance: ClassVar = EXACT

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, state = inputs
        require(x.dtype is state.dtype and x.shape[1:] == state.shape[1:], self, "{} does not fit {}", x, state)
        require(x.shape[0] <= state.shape[0], self, "{} has more rows than {}", x, state)
        return (state,)

    def reference(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = inputs[1].clone()
        result[: len(inputs[0])] = inputs[0]
        return (result,)
